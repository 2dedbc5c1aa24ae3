//! Tests of the results of `bench load` for a server that is healthy, paused or down, or that returns errors.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bench::{
    load::{self, Plan},
    traffic::Traffic,
    verify::{RequestHistory as _, RequestOutcome},
};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::harness::{Producer, TIMEOUT, accept_all, wait_until, within_timeout};

fn per_second(rate: u64) -> NonZeroU64 {
    NonZeroU64::new(rate).expect("the rate is not 0")
}

#[tokio::test]
async fn stall_counts_in_the_latency_of_every_request_due_during_it() -> Result<()> {
    const RATE: u64 = 2_000;
    const STALL: Duration = Duration::from_secs(1);
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let plan = Plan {
        connections: 4.try_into()?,
        requests: Some(5 * RATE),
        ..producer.load(1)?.rate(per_second(RATE))
    };
    let stop = CancellationToken::new();
    let stall = async {
        wait_until(TIMEOUT, "the load has begun", async || {
            Ok(producer.appended().await? > 0)
        })
        .await?;
        let began = Instant::now();
        producer.process.signal(Signal::STOP)?;
        sleep(STALL).await;
        producer.process.signal(Signal::CONT)?;
        anyhow::Ok(began.elapsed())
    };
    let (outcome, stalled) = tokio::join!(load::run(&plan, &stop), stall);
    let (outcome, stalled) = (outcome?, stalled?);
    assert!(
        outcome.report().failures.is_empty(),
        "{}",
        outcome.report().summary()
    );
    assert_eq!(
        (outcome.counts.accepted, outcome.counts.unsent),
        (5 * RATE, 0)
    );

    let latency = outcome.latency_micros.unwrap();
    assert!(latency.get("p99.9") >= 500_000, "{}", latency.line());
    // More than 10% of all requests were due at least 100 ms before the end of the stall.
    let due = (stalled - Duration::from_millis(100)).as_secs_f64() * RATE as f64;
    ensure!(
        due > 0.1 * (5 * RATE) as f64,
        "{due:.0} requests were due in the stall"
    );
    assert!(latency.get("p90") >= 90_000, "{}", latency.line());
    Ok(())
}

const ACCEPTED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Responds to each request with the same bytes, up to `max` requests or until the client disconnects.
async fn answer_all(stream: &mut TcpStream, answer: &str, max: u64) {
    let (mut bytes, mut ends, mut answered) = ([0; 4_096], 0, 0);
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        for byte in &bytes[..count] {
            // Only the end of the headers has two newlines in a row.
            ends = match byte {
                b'\r' => ends,
                b'\n' => ends + 1,
                _ => 0,
            };
            if ends == 2 {
                answered += 1;
                if stream.write_all(answer.as_bytes()).await.is_err() || answered == max {
                    return;
                }
            }
        }
    }
}

/// A server that sends the same bytes in response to every request, or never responds.
struct FakeEdge {
    plan: Plan,
    _serving: JoinSet<()>,
}

impl FakeEdge {
    async fn start(answer: &'static str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?).parse()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                answer_all(&mut stream, answer, u64::MAX).await;
            }
        });
        Ok(Self {
            plan: Plan {
                requests: Some(200),
                ..Plan::new(url, Traffic::new(1, None))
            },
            _serving: serving,
        })
    }
}

#[tokio::test]
async fn rejected_requests_are_errors_with_a_known_outcome() -> Result<()> {
    let strict = FakeEdge::start("HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n").await?;
    let outcome = load::run(&strict.plan, &CancellationToken::new()).await?;
    assert_eq!(
        (outcome.counts.errors(), outcome.counts.rejected[&400]),
        (200, 200)
    );
    let history = &outcome.histories[0];
    assert_eq!(history.sent(), 200);
    assert!((0..200).all(|number| history.outcome(number) == RequestOutcome::Rejected));
    Ok(())
}

#[tokio::test]
async fn requests_delayed_by_the_pipeline_limit_count_as_unsent() -> Result<()> {
    let silent = FakeEdge::start("").await?;
    let plan = Plan {
        pipeline: Some(1.try_into()?),
        duration: Some(Duration::from_millis(300)),
        ..silent.plan.clone().rate(per_second(100))
    };
    let outcome =
        within_timeout("the load ends", load::run(&plan, &CancellationToken::new())).await??;
    let counts = (
        outcome.counts.sent,
        outcome.counts.unanswered,
        outcome.counts.unsent,
    );
    assert_eq!(counts, (1, 1, 29), "{}", outcome.report().summary());
    assert!(!outcome.report().failures.is_empty());
    // The load ends by its plan, not by the timeout. A request without a response counts with at least this latency.
    assert!((0.29..0.4).contains(&outcome.seconds));
    assert!(
        outcome
            .latency_micros
            .is_some_and(|latency| latency.get("max") >= 300_000)
    );
    assert_eq!(outcome.histories[0].outcome(0), RequestOutcome::Unknown);
    assert_eq!(outcome.histories[0].outcome(1), RequestOutcome::Unsent);
    Ok(())
}

#[tokio::test]
async fn outage_counts_as_latency_and_not_as_generator_delay() -> Result<()> {
    // Much longer than the delay of a generator on a busy machine.
    const OUTAGE: Duration = Duration::from_secs(2);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let url = format!("http://{address}/").parse()?;
    let plan = Plan {
        requests: Some(600),
        ..Plan::new(url, Traffic::new(1, None)).rate(per_second(1_000))
    };
    let edge = async {
        let (mut stream, _) = listener.accept().await?;
        answer_all(&mut stream, ACCEPTED, 200).await;
        drop((stream, listener));
        sleep(OUTAGE).await;
        let listener = TcpListener::bind(address).await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            answer_all(&mut stream, ACCEPTED, u64::MAX).await;
        }
    };
    let stop = CancellationToken::new();
    let outcome = tokio::select! {
        outcome = load::run(&plan, &stop) => outcome?,
        ended = edge => return ended,
    };
    assert_eq!(
        (
            outcome.counts.sent,
            outcome.counts.unsent,
            outcome.counts.reconnects
        ),
        (600, 0, 1),
        "{}",
        outcome.report().summary()
    );
    // Requests due at the beginning of the outage were sent after its end.
    let latency = outcome.latency_micros.unwrap();
    let outage = u64::try_from(OUTAGE.as_micros())?;
    assert!(latency.get("max") >= outage / 4 * 3, "{}", latency.line());
    let own = outcome.generator_delay_micros.unwrap();
    assert!(own.get("p99") < latency.get("max") / 2, "{}", own.line());
    Ok(())
}

#[tokio::test]
async fn response_with_connection_close_closes_its_connection() -> Result<()> {
    let closing = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let edge = FakeEdge::start(closing).await?;
    let plan = Plan {
        requests: Some(4),
        ..edge.plan.clone()
    };
    let outcome = accept_all(&plan).await?;
    assert_eq!(outcome.counts.reconnects, 3);
    Ok(())
}

#[tokio::test]
async fn error_responses_do_not_shorten_a_paced_load() -> Result<()> {
    let strict = FakeEdge::start("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await?;
    let plan = Plan {
        requests: Some(50),
        keeps_history: false,
        ..strict.plan.clone().rate(per_second(100))
    };
    let outcome = load::run(&plan, &CancellationToken::new()).await?;
    assert!(outcome.seconds >= 0.45, "{}", outcome.report().summary());
    assert_eq!(outcome.histories[0].sent(), 50);
    Ok(())
}

#[tokio::test]
async fn load_is_distributed_evenly_over_producers() -> Result<()> {
    let dir = TempDir::new()?;
    let first = Producer::start(&dir, &[]).await?;
    let second = Producer::start(&dir, &[]).await?;
    let plan = Plan {
        urls: vec![
            format!("http://{}/", first.http).parse()?,
            format!("http://{}/", second.http).parse()?,
        ],
        connections: 4.try_into()?,
        requests: Some(1_200),
        ..first.load(3)?.rate(per_second(800))
    };
    accept_all(&plan).await?;
    assert_eq!(
        (first.appended().await?, second.appended().await?),
        (600, 600)
    );
    Ok(())
}

#[tokio::test]
async fn loads_of_one_seed_can_send_different_cookies_of_the_same_users() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let traffic = Traffic::new(5, NonZeroU64::new(10));
    let plan = |first_connection| -> Result<Plan> {
        Ok(Plan {
            connections: 2.try_into()?,
            requests: Some(200),
            traffic: traffic.clone(),
            first_connection,
            ..producer.load(5)?
        })
    };
    let (mut users, mut buyers) = (BTreeMap::new(), BTreeMap::new());
    for first in [0, 2] {
        for history in accept_all(&plan(first)?).await?.histories {
            for number in 0..history.sent() {
                let cookie = traffic.cookie(history.connection(), number);
                *users.entry(cookie.user_id().to_owned()).or_insert(0) += 1;
                *buyers.entry(cookie.buyer_uid().to_owned()).or_insert(0) += 1;
                assert_eq!(history.outcome(number), RequestOutcome::Accepted);
                assert!(history.sent_after(number) <= history.responded_by(number));
            }
        }
    }
    assert_eq!((users.len(), buyers.len()), (10, 400));
    Ok(())
}
