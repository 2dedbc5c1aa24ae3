//! gRPC beside HTTP, on one port.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::stream;
use http::uri::PathAndQuery;
use http_body_util::{Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use limiter_proto::v1::{
    Counter, DelayRequest, DelayResponse, ReserveRequest, limiter_client::LimiterClient,
};
use rustix::process::Signal;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};
use tonic_prost::ProstCodec;

use crate::harness::{Limiter, PATIENCE, body, nanos};

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'r', rate = '100000/s', burst = 1 }]
[limits.slow]
rules = [{ id = 'r', rate = '1/h' }]
";

async fn channel(limiter: &Limiter) -> Result<Channel> {
    let address = format!("http://{}", limiter.address);
    Ok(Endpoint::from_shared(address)?.connect().await?)
}

fn of(limit: &str, counter: &str) -> Vec<Counter> {
    vec![Counter {
        limit: limit.to_owned(),
        counter: counter.to_owned(),
    }]
}

fn reserve(limit: &str, wait: bool) -> ReserveRequest {
    ReserveRequest {
        of: of(limit, "k"),
        n: None,
        horizon_micros: Some(7_200_000_000),
        wait,
    }
}

async fn until(limiter: &Limiter, waiting: u64) -> Result<()> {
    let waits = async {
        while limiter.status().await?["waiting"] != waiting {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    timeout(PATIENCE, waits).await.context("nobody waits")?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_slot_is_given_over_http_and_grpc_both() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let each = 500;
    let mut asking = JoinSet::new();
    for _ in 0..4 {
        let mut http = limiter.client().await?;
        asking.spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..each {
                let answer = http.post("/v1/limits/a/k/reserve", &[], "{}").await?;
                mine.push(nanos(&body(&answer, 200)["at"]).div_ceil(1_000));
            }
            anyhow::Ok(mine)
        });
        let mut grpc = LimiterClient::new(channel(&limiter).await?);
        asking.spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..each {
                let answer = grpc.reserve(reserve("a", false)).await?.into_inner();
                mine.push(answer.slot.context("no slot")?.at_unix_micros);
            }
            Ok(mine)
        });
    }
    let mut taken = Vec::new();
    while let Some(mine) = asking.join_next().await {
        taken.extend(mine??);
    }
    taken.sort_unstable();
    // Slots are ten microseconds apart, and rounded to one.
    let too_near = taken.windows(2).find(|two| two[1] - two[0] < 9);
    ensure!(
        too_near.is_none() && taken.len() == 8 * each,
        "{too_near:?}"
    );
    let metrics = launcher::admin::get(&limiter.admin, "/metrics").await?.body;
    for protocol in ["http", "grpc"] {
        let line = format!(
            "limiter_requests_total{{call=\"reserve\",protocol=\"{protocol}\",status=\"2xx\"}} {}",
            4 * each
        );
        ensure!(metrics.contains(&line), "{line}:\n{metrics}");
    }
    limiter.stop().await
}

#[tokio::test]
async fn http_2_has_the_same_paths() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let url = format!("http://{}/v1/limits/a/k/delay", limiter.address);
    let asked = tokio::task::spawn_blocking(move || {
        let curl = |host: &str| {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--http2-prior-knowledge", "--write-out"]);
            curl.args([" %{http_version} %{http_code}", "-H", host, &url])
                .output()
        };
        anyhow::Ok((curl("Accept: */*")?, curl("Host: rebound.example")?))
    });
    let (ours, other) = asked.await??;
    let said = String::from_utf8_lossy(&ours.stdout);
    ensure!(
        said.contains("\"wait\":0.0") && said.ends_with(" 2 200"),
        "{said}"
    );
    let said = String::from_utf8_lossy(&other.stdout);
    ensure!(
        said.contains("misdirected") && said.ends_with(" 2 421"),
        "{said}"
    );
    limiter.stop().await
}

#[tokio::test]
async fn calls_of_outsiders_meet_bounds() -> Result<()> {
    let flags = ["--connections=4", "--waiting-per-counter=1"];
    let mut limiter = Limiter::start(LIMITS, &flags).await?;
    let channel = channel(&limiter).await?;
    let mut grpc = LimiterClient::new(channel.clone());
    grpc.reserve(reserve("slow", false)).await?;
    let mut waiter = grpc.clone();
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { waiter.reserve(reserve("slow", true)).await });
    until(&limiter, 1).await?;
    let full = grpc.reserve(reserve("slow", true)).await;
    let full = full.err().context("one more waits")?;
    assert_eq!(full.code(), Code::Unavailable);
    ensure!(full.message().contains("wait"), "{full}");
    // Who waits takes no place of those who ask.
    for _ in 0..10 {
        let of = of("a", "k");
        grpc.delay(DelayRequest { of, n: None }).await?;
    }
    // Four requests whose bodies do not come are all that there may be.
    let mut stuck = JoinSet::new();
    for _ in 0..4 {
        let mut raw = tonic::client::Grpc::new(channel.clone());
        stuck.spawn(async move {
            // One that comes beside a call below may be refused.
            loop {
                raw.ready().await.expect("a connection");
                let path = PathAndQuery::from_static("/cookiesync.limiter.v1.Limiter/Delay");
                let codec = ProstCodec::<DelayRequest, DelayResponse>::default();
                let request = tonic::Request::new(stream::pending::<DelayRequest>());
                raw.streaming(request, path, codec).await.map(drop).ok();
            }
        });
    }
    let refused = async {
        loop {
            let of = of("a", "k");
            match grpc.delay(DelayRequest { of, n: None }).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(status) => return status,
            }
        }
    };
    let refused = timeout(PATIENCE, refused).await?;
    assert_eq!(refused.code(), Code::Unavailable);
    ensure!(refused.message().contains("in progress"), "{refused}");
    let metrics = launcher::admin::get(&limiter.admin, "/metrics").await?.body;
    let line = "limiter_requests_total{call=\"delay\",protocol=\"grpc\",status=\"5xx\"} 0\n";
    ensure!(!metrics.contains(line), "{metrics}");
    drop(stuck);
    waiting.abort_all();
    until(&limiter, 0).await?;
    limiter.stop().await
}

#[tokio::test]
async fn lasting_calls_leave_room_for_others_and_end_before_they_began() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &["--drain-timeout=60s"]).await?;
    let (many, other) = (channel(&limiter).await?, channel(&limiter).await?);
    let mut health = HealthClient::new(many.clone());
    let mut watched = Vec::new();
    for _ in 0..7 {
        let answer = health.watch(HealthCheckRequest::default()).await?;
        watched.push(answer.into_inner());
    }
    // The eighth does not say what it watches.
    let mut eighth = JoinSet::new();
    eighth.spawn(async move {
        let mut raw = tonic::client::Grpc::new(many);
        raw.ready().await.expect("a connection");
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Watch");
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let request = tonic::Request::new(stream::pending::<HealthCheckRequest>());
        raw.streaming(request, path, codec).await.map(drop)
    });
    let refused = async {
        loop {
            match health.watch(HealthCheckRequest::default()).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(status) => return status,
            }
        }
    };
    let refused = timeout(PATIENCE, refused).await?;
    ensure!(refused.message().contains("in progress"), "{refused}");
    for mut health in [health, HealthClient::new(other.clone())] {
        health.check(HealthCheckRequest::default()).await?;
    }
    let mut health = HealthClient::new(other);
    health.watch(HealthCheckRequest::default()).await?;
    limiter.process.signal(Signal::TERM)?;
    let ended = timeout(PATIENCE, eighth.join_next()).await?;
    let ended = ended.context("no call")??.err().context("it goes on")?;
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    drop((watched, health));
    let status = limiter.process.wait(PATIENCE).await?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[tokio::test]
async fn answers_that_are_not_taken_keep_the_places_of_their_client() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &["--connections=2"]).await?;
    let stream = TcpStream::connect(&limiter.address).await?;
    let (mut asking, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(TokioIo::new(stream))
        .await?;
    let mut connected = JoinSet::new();
    connected.spawn(connection);
    let mut answers = Vec::new();
    for _ in 0..2 {
        let url = format!("http://{}/v1/openapi.json", limiter.address);
        let request = http::Request::get(url).body(Empty::<Bytes>::new())?;
        let answer = asking.send_request(request).await?;
        ensure!(answer.status() == 200, "{answer:?}");
        answers.push(answer);
    }
    let mut client = limiter.client().await?;
    let delay = "/v1/limits/a/k/delay";
    let full = client.get(delay, &[]).await?;
    assert_eq!(body(&full, 503)["type"], "/v1/problems/too-many-calls");
    // They are free again when it is gone.
    drop(answers);
    connected.shutdown().await;
    let answered = async {
        while client.get(delay, &[]).await?.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, answered).await??;
    limiter.stop().await
}

#[tokio::test]
async fn drain_answers_those_who_wait_and_ends_what_lasts() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &["--drain-timeout=60s"]).await?;
    let channel = channel(&limiter).await?;
    let mut grpc = LimiterClient::new(channel.clone());
    grpc.reserve(reserve("slow", false)).await?;
    let mut health = HealthClient::new(channel);
    let watched = HealthCheckRequest {
        service: "cookiesync.limiter.v1.Limiter".to_owned(),
    };
    let mut watched = health.watch(watched).await?.into_inner();
    ensure!(watched.message().await?.is_some());
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { grpc.reserve(reserve("slow", true)).await });
    until(&limiter, 1).await?;
    limiter.process.signal(Signal::TERM)?;
    let waited = timeout(PATIENCE, waiting.join_next()).await?;
    let slot = waited.context("nobody waits")???.into_inner().slot;
    let slot = slot.context("no slot")?;
    ensure!(slot.wait_micros > 0, "{slot:?}");
    let ended = timeout(PATIENCE, watched.message()).await?;
    let ended = ended.err().context("it goes on")?;
    assert_eq!(ended.code(), Code::Unavailable);
    let status = limiter.process.wait(PATIENCE).await?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[tokio::test]
async fn drain_does_not_wait_for_a_client_that_takes_no_end() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &["--drain-timeout=600s"]).await?;
    let stream = TcpStream::connect(&limiter.address).await?;
    let (mut asking, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(TokioIo::new(stream))
        .await?;
    let mut connected = JoinSet::new();
    connected.spawn(connection);
    // A message of no bytes asks for the server as a whole.
    let request = http::Request::post(format!(
        "http://{}/grpc.health.v1.Health/Watch",
        limiter.address
    ));
    let request = request.header("Content-Type", "application/grpc");
    let request = request.body(Full::new(Bytes::from_static(&[0; 5])))?;
    let watched = asking.send_request(request).await?;
    ensure!(watched.status() == 200, "{watched:?}");
    limiter.stop().await?;
    drop(watched);
    Ok(())
}

#[tokio::test]
async fn health_says_whether_the_state_can_be_saved() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut health = HealthClient::new(channel(&limiter).await?);
    let mut watched = Vec::new();
    for service in ["", "cookiesync.limiter.v1.Limiter"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        watched.push(health.watch(request).await?.into_inner());
    }
    let mut told = async |expected: ServingStatus| {
        for watched in &mut watched {
            let told = timeout(PATIENCE, watched.message()).await??;
            assert_eq!(told.context("it ended")?.status(), expected);
        }
        anyhow::Ok(())
    };
    told(ServingStatus::Serving).await?;
    // A folder in its place keeps the next snapshot from being written.
    let next = limiter.file("state/snapshot.next");
    let blocked = async {
        while fs::create_dir(&next).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, blocked).await?;
    told(ServingStatus::NotServing).await?;
    fs::remove_dir(&next)?;
    told(ServingStatus::Serving).await?;
    drop(watched);
    limiter.stop().await
}
