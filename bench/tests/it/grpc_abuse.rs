//! gRPC clients that behave ill are refused or cut off, and cost no subscriber a cookie: beside each, a good one reads.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::{Reason, client::SendRequest};
use http::Request;
use tempfile::TempDir;
use tokio::{net::TcpStream, task::JoinSet};
use tonic::Code;

use crate::{
    harness::{PATIENCE, Producer, in_time, wait_until},
    stream_client::{Subscription, from_newest},
};

const REFUSED: &str = "producer_grpc_calls_refused_total";
const CONNECTIONS: &str = "producer_grpc_connections";

/// A good subscriber, which must get what is accepted after the abuse, too.
struct Good(Subscription);

impl Good {
    async fn open(producer: &Producer) -> Result<Self> {
        let mut stream = Subscription::open(&producer.grpc, from_newest("good")).await?;
        producer.accept_numbers(1..=10).await?;
        stream.read_to(10).await?;
        Ok(Self(stream))
    }

    async fn goes_on(mut self, producer: &Producer) -> Result<()> {
        producer.accept_numbers(11..=20).await?;
        self.0.read_to(20).await?;
        assert_eq!(self.0.lost(), 0);
        wait_until(PATIENCE, "the ill one is gone", async || {
            Ok(producer.metrics().await?.count(CONNECTIONS, &[]) == 1)
        })
        .await
    }
}

/// A bare HTTP/2 connection; its end is what the task gives.
async fn bare(producer: &Producer) -> Result<(SendRequest<Bytes>, JoinSet<Option<Reason>>)> {
    let address = producer.grpc.trim_start_matches("http://");
    let stream = TcpStream::connect(address).await?;
    let (calls, connection) = h2::client::handshake(stream).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let ended = connection.await;
        ended.err().and_then(|error| error.reason())
    });
    Ok((calls, tasks))
}

fn call(producer: &Producer) -> http::request::Builder {
    Request::post(format!(
        "{}/cookiesync.v1.CookieStreamer/GetCookies",
        producer.grpc
    ))
    .header("content-type", "application/grpc")
}

/// What became of calls.
#[derive(Debug, Default)]
struct Statuses {
    answered: u64,
    refused: u64,
}

/// A request for cookies of a host without a name, which is answered at once.
const NAMELESS: Bytes = Bytes::from_static(&[0; 5]);

/// Makes as many calls at once as a connection may have, again and again until it ends: however slow the machine is, they come faster
/// than they may.
async fn call_without_end(
    producer: &Producer,
    mut calls: SendRequest<Bytes>,
    statuses: &mut Statuses,
) -> Result<std::convert::Infallible> {
    loop {
        let mut open = Vec::new();
        for _ in 0..64 {
            calls = calls.ready().await?;
            let (answer, mut body) = calls.send_request(call(producer).body(())?, false)?;
            body.send_data(NAMELESS, true)?;
            open.push(answer);
        }
        for answer in open {
            let answer = answer.await?;
            let status = answer.headers().get("grpc-status").context("no status")?;
            match Code::from_bytes(status.as_bytes()) {
                Code::InvalidArgument => statuses.answered += 1,
                Code::ResourceExhausted => statuses.refused += 1,
                other => anyhow::bail!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn calls_beyond_the_rate_are_refused_and_a_client_that_goes_on_is_cut_off() -> Result<()> {
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let good = Good::open(&producer).await?;
    let (calls, mut connection) = bare(&producer).await?;
    let mut statuses = Statuses::default();
    let abuse = call_without_end(&producer, calls, &mut statuses);
    let Err(error) = in_time("the abuse ends", abuse).await?;
    ensure!(error.is::<h2::Error>(), "{error:#} after {statuses:?}");
    let reason = in_time("the connection ends", connection.join_next()).await?;
    let reason = reason.context("it has a task")??;
    ensure!(
        matches!(reason, Some(Reason::ENHANCE_YOUR_CALM) | None),
        "{reason:?}"
    );
    // A burst of 200, and 50 a second for as long as this took; a thousand refusals end it, not all of which were heard.
    let Statuses { answered, refused } = statuses;
    ensure!(answered >= 200 && refused > 0, "{answered} and {refused}");
    let metrics = producer.metrics().await?;
    let counted = metrics.count(REFUSED, &[("reason", "connection")]);
    ensure!(counted >= 1_000 && counted >= refused, "{counted}");
    assert_eq!(metrics.count(REFUSED, &[("reason", "all")]), 0);
    good.goes_on(&producer).await
}

#[tokio::test]
async fn opening_and_resetting_without_end_is_cut_off() -> Result<()> {
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let good = Good::open(&producer).await?;
    let (mut calls, mut connection) = bare(&producer).await?;
    let abuse = async {
        for _ in 0..100_000 {
            calls = calls.ready().await?;
            let (_, mut body) = calls.send_request(call(&producer).body(())?, false)?;
            // The head leaves before its reset takes it back.
            tokio::task::yield_now().await;
            body.send_reset(Reason::CANCEL);
        }
        anyhow::Ok(())
    };
    in_time("the abuse ends", abuse)
        .await?
        .expect_err("it is not borne for ever");
    let reason = in_time("the connection ends", connection.join_next()).await?;
    let reason = reason.context("it has a task")??;
    ensure!(
        matches!(reason, Some(Reason::ENHANCE_YOUR_CALM) | None),
        "{reason:?}"
    );
    good.goes_on(&producer).await
}

#[tokio::test]
async fn headers_without_end_are_answered_431() -> Result<()> {
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let good = Good::open(&producer).await?;
    let (calls, connection) = bare(&producer).await?;
    let mut calls = calls.ready().await?;
    let request = call(&producer).header("x", "y".repeat(20_000)).body(())?;
    let (answer, _body) = calls.send_request(request, true)?;
    let answer = in_time("an answer", answer).await??;
    assert_eq!(answer.status(), 431);
    drop((calls, connection));
    good.goes_on(&producer).await
}

#[tokio::test]
async fn calls_at_once_on_one_connection_are_bounded() -> Result<()> {
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let good = Good::open(&producer).await?;
    let (calls, connection) = bare(&producer).await?;
    let mut calls = calls.ready().await?;
    // Heads without a message: each keeps its call open.
    let mut open = Vec::new();
    for _ in 0..64 {
        calls = calls.ready().await?;
        open.push(calls.send_request(call(&producer).body(())?, false)?);
    }
    wait_until(PATIENCE, "the client knows the bound", async || {
        Ok(calls.current_max_send_streams() == 64)
    })
    .await?;
    drop((open, calls, connection));
    good.goes_on(&producer).await
}
