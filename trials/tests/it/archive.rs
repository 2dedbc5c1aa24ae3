//! Tests of the archive with a real NATS server: what the stream contains after faults, and which servers are refused.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use async_nats::jetstream::{
    self,
    stream::{Config, RetentionPolicy},
};
use bench::load;
use bytes::Bytes;
use proto::{
    archive::{Events, Origin, VERSION, VERSION_HEADER},
    v1::{EpochEnd, event::Event},
    wire::StreamMessage,
};
use runtime::{connect::credentials::NatsTlsArgs, settings::ConfigErrors};
use runtime_nats::Servers;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{admin, nats, programs::ServerProcess, scrape::names};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::harness::{DRAIN_TIMEOUT, Producer, TIMEOUT, expect_exit, wait_logged, wait_until};

pub(crate) const STREAM: &str = "COOKIES";

/// The recommended stream, on one server with less space.
pub(crate) fn stream_config() -> Config {
    let file = include_str!("../../../deploy/archive/stream.json");
    let config: Config = serde_json::from_str(file).expect("a stream");
    Config {
        num_replicas: 1,
        max_bytes: 1 << 30,
        ..config
    }
}

pub(crate) async fn context(url: &str) -> Result<jetstream::Context> {
    let mut errors = ConfigErrors::default();
    let servers = Servers::check(&mut errors, "", url, &NatsTlsArgs::default());
    let servers = servers.context("a valid URL")?;
    Ok(jetstream::new(servers.connect("test", TIMEOUT).await?))
}

pub(crate) async fn create_stream(url: &str, config: Config) -> Result<()> {
    context(url).await?.create_stream(config).await?;
    Ok(())
}

pub(crate) fn archive_url(nats: &ServerProcess) -> String {
    format!("{}/{STREAM}", nats.uri())
}

/// What one subject has.
#[derive(Debug, Default, PartialEq)]
struct Epoch {
    /// Cookies in chunks.
    cookies: u64,
    /// Cookies in gaps.
    lost: u64,
    ends: Vec<EpochEnd>,
    heartbeats: u64,
    /// The last sequence number, at the end of the run.
    goodbye: Option<u64>,
}

/// Reads the whole stream by sequence number, and checks that each subject is without holes and steps back.
async fn read(url: &str) -> Result<BTreeMap<Origin, Epoch>> {
    let context = context(url).await?;
    let mut stream = context.get_stream(STREAM).await?;
    let state = stream.info().await?.state.clone();
    let mut epochs: BTreeMap<Origin, Epoch> = BTreeMap::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await?;
        let origin = Origin::parse(&message.subject).context(message.subject.to_string())?;
        let version = message.headers.get(VERSION_HEADER).context("a version")?;
        ensure!(version.as_str() == VERSION);
        epochs.entry(origin).or_default().add(message.payload)?;
    }
    Ok(epochs)
}

impl Epoch {
    fn add(&mut self, payload: Bytes) -> Result<()> {
        for event in Events::new(payload) {
            ensure!(self.goodbye.is_none(), "an event after the end");
            let next = self.cookies + self.lost + 1;
            match event? {
                StreamMessage::Chunk(chunk) => {
                    let first = chunk.header().first_sequence;
                    ensure!(first.0 == next, "{first} instead of {next}");
                    let records = chunk.records().collect::<Result<Vec<_>, _>>()?;
                    ensure!(records.len() == chunk.header().count as usize);
                    self.cookies += records.len() as u64;
                }
                StreamMessage::Event(Event::Gap(gap)) => {
                    ensure!(gap.first_sequence == next, "{gap:?} instead of {next}");
                    self.lost += gap.last_sequence + 1 - next;
                }
                StreamMessage::Event(Event::EpochEnds(ends)) => self.ends.extend(ends.ends),
                StreamMessage::Event(Event::Heartbeat(_)) => self.heartbeats += 1,
                StreamMessage::Event(Event::Goodbye(end)) => {
                    self.goodbye = Some(end.final_sequence)
                }
                other => ensure!(matches!(other, StreamMessage::Event(_)), "{other:?}"),
            }
        }
        Ok(())
    }
}

/// Reads the only subject.
async fn read_one(url: &str) -> Result<Epoch> {
    let mut epochs = read(url).await?;
    let (_, epoch) = epochs.pop_first().context("an epoch")?;
    ensure!(epochs.is_empty(), "{epochs:?}");
    Ok(epoch)
}

/// The state of the archive on `/readyz`. The producer must be ready in each state.
async fn state(producer: &Producer) -> Result<String> {
    let response = admin::get(&producer.admin, "/readyz").await?;
    ensure!(response.status == 200, "{}", response.body);
    let body: Value = serde_json::from_str(&response.body)?;
    let components = body["components"].as_array().context("components")?;
    let archive = components.iter().find(|it| it["component"] == "archive");
    let state = archive.context("no archive")?["state"].as_str();
    Ok(state.context("a state")?.to_owned())
}

async fn wait_state(producer: &Producer, expected: &str) -> Result<()> {
    wait_until(TIMEOUT, expected, async || {
        Ok(state(producer).await?.starts_with(expected))
    })
    .await
}

/// Waits until nothing is queued; returns the number of archived cookies.
pub(crate) async fn wait_archived(producer: &Producer) -> Result<u64> {
    wait_until(TIMEOUT, "everything is archived", async || {
        let samples = producer.metrics().await?;
        let queued = samples.sum(names::ARCHIVE_QUEUED, &[]);
        Ok(queued == Some(0.0) && samples.count(names::ARCHIVED, &[]) > 0)
    })
    .await?;
    Ok(producer.metrics().await?.count(names::ARCHIVED, &[]))
}

#[tokio::test]
async fn stream_has_every_cookie_in_order_after_kills_and_a_suspension_of_the_server() -> Result<()>
{
    let dir = TempDir::new()?;
    let mut nats = nats::start(dir.path()).await?;
    create_stream(&nats.uri(), stream_config()).await?;
    let mut producer = Producer::start(&dir, &["--archive", &archive_url(&nats)]).await?;
    let plan = producer.load(1)?.rate(2_000.try_into()?);
    let stop = CancellationToken::new();
    let faults = async {
        for _ in 0..3 {
            sleep(Duration::from_millis(700)).await;
            nats.kill()?;
            sleep(Duration::from_millis(300)).await;
            nats.restart().await?;
        }
        // Longer than the time limit of a message.
        nats.pause()?;
        sleep(Duration::from_secs(7)).await;
        nats.resume()?;
        stop.cancel();
        anyhow::Ok(())
    };
    let (outcome, faults) = tokio::join!(load::run(&plan, &stop), faults);
    faults?;
    outcome?;
    let archived = wait_archived(&producer).await?;
    let samples = producer.metrics().await?;
    ensure!(archived == samples.count(names::APPENDED, &[]));
    ensure!(samples.count(names::ARCHIVE_RETRIES, &[]) > 0);
    producer.process.drain(DRAIN_TIMEOUT).await?;
    let epoch = read_one(&nats.uri()).await?;
    ensure!(
        epoch.cookies == archived && epoch.lost == 0 && epoch.goodbye == Some(archived),
        "{epoch:?} instead of {archived}"
    );
    Ok(())
}

#[tokio::test]
async fn producer_starts_without_the_server_and_archives_what_the_log_still_has() -> Result<()> {
    let dir = TempDir::new()?;
    let mut nats = nats::start(dir.path()).await?;
    create_stream(&nats.uri(), stream_config()).await?;
    nats.kill()?;
    let flags = ["--archive", &archive_url(&nats), "--log-bytes", "1MiB"];
    let mut producer = Producer::start(&dir, &flags).await?;
    wait_state(&producer, "connecting: cannot connect").await?;
    // Far more than the log holds.
    producer.accept_load(1, 40_000).await?;
    wait_state(&producer, "stalled: cannot connect").await?;
    nats.restart().await?;
    wait_state(&producer, "current").await?;
    let archived = wait_archived(&producer).await?;
    let lost = producer.metrics().await?.count(names::ARCHIVE_LOST, &[]);
    ensure!(lost > 10_000 && archived > 5_000 && archived + lost == 40_000);
    producer.process.drain(DRAIN_TIMEOUT).await?;
    let epoch = read_one(&nats.uri()).await?;
    ensure!(epoch.cookies == archived && epoch.lost == lost, "{epoch:?}");
    ensure!(epoch.goodbye == Some(40_000) && epoch.heartbeats > 0);
    // Each change is logged once, although dozens of attempts have failed.
    let log = producer.process.last_lines(usize::MAX);
    ensure!(!log.contains("async_nats"), "{log}");
    for state in ["connecting", "stalled", "current"] {
        let lines = log.lines().filter(|line| line.contains("archive"));
        let count = lines.filter(|line| line.contains(state)).count();
        ensure!(count == 1, "{count} lines: {state}: {log}");
    }
    Ok(())
}

#[tokio::test]
async fn run_after_a_kill_archives_the_ends_of_earlier_runs() -> Result<()> {
    let dir = TempDir::new()?;
    let nats = nats::start(dir.path()).await?;
    create_stream(&nats.uri(), stream_config()).await?;
    let flags = ["--archive", &archive_url(&nats), "--id", "edge 1.a"];
    let mut producer = Producer::start(&dir, &flags).await?;
    producer.accept_numbers(1..=100).await?;
    wait_archived(&producer).await?;
    producer.process.drain(DRAIN_TIMEOUT).await?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    producer.accept_numbers(1..=50).await?;
    wait_archived(&producer).await?;
    producer.process.kill()?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    wait_state(&producer, "current").await?;
    let epochs = read(&nats.uri()).await?;
    ensure!(epochs.keys().all(|origin| origin.producer_id == "edge 1.a"));
    let found: Vec<_> = epochs.values().collect();
    let [first, second, third] = found[..] else {
        bail!("{epochs:?}");
    };
    ensure!(first.cookies == 100 && first.goodbye == Some(100) && first.ends.is_empty());
    ensure!(second.cookies == 50 && second.goodbye.is_none());
    let ends = |epoch: &Epoch| -> Vec<_> {
        let ends = epoch.ends.iter();
        ends.map(|it| (it.last_sequence, it.exact)).collect()
    };
    ensure!(ends(second) == [(100, true)], "{second:?}");
    ensure!(
        matches!(ends(third)[..], [(100, true), (50.., false)]),
        "{third:?}"
    );
    Ok(())
}

#[tokio::test]
async fn drain_waits_for_the_archive_and_names_it_if_it_is_away() -> Result<()> {
    let dir = TempDir::new()?;
    let mut nats = nats::start(dir.path()).await?;
    create_stream(&nats.uri(), stream_config()).await?;
    let flags = ["--archive", &archive_url(&nats), "--drain-timeout", "2s"];
    let mut producer = Producer::start(&dir, &flags).await?;
    wait_state(&producer, "current").await?;
    nats.pause()?;
    producer.accept_numbers(1..=10).await?;
    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 1)?;
    wait_logged(
        &producer.process,
        "these did not receive all cookies: the archive",
    )
    .await
}

/// A server that requires a user, whose permissions are those of the test.
const ACCOUNTS: &str = r#"
max_payload: 1MB
authorization {
  users: [
    { user: admin, password: admin }
    # The documented permissions.
    { user: writer, password: "s3cret/@", permissions: {
      publish: ["cookies.>", "$JS.API.STREAM.INFO.*"], subscribe: ["_INBOX.>"]
    } }
    { user: reader, password: reader, permissions: { publish: ["$JS.API.STREAM.INFO.>"] } }
    { user: nobody, password: nobody, permissions: { publish: ["nothing"] } }
  ]
}
"#;

#[tokio::test]
async fn unsuitable_settings_are_refused_with_the_reason_until_they_are_changed() -> Result<()> {
    let dir = TempDir::new()?;
    let nats = nats::start_with(dir.path(), ACCOUNTS).await?;
    let url = |user: &str| format!("nats://{user}@{}", nats.address);
    let admin = context(&url("admin:admin")).await?;
    for (name, subjects, retention) in [
        ("SUBJECT", "other.>", RetentionPolicy::Limits),
        ("RETENTION", "cookies.>", RetentionPolicy::WorkQueue),
    ] {
        let config = Config {
            name: name.to_owned(),
            subjects: vec![subjects.to_owned()],
            retention,
            ..Config::default()
        };
        admin.create_stream(config).await?;
    }
    let check = async |user: &str, stream: &str, chunk: &str, reason: &str| {
        let within = TempDir::new()?;
        let archive = format!("{}/{stream}", url(user));
        let flags = ["--archive", &archive, "--chunk-bytes", chunk];
        let producer = Producer::start(&within, &flags).await?;
        wait_state(&producer, &format!("refused: {reason}")).await?;
        producer.accept("alice", 17, "a-1").await?;
        let log = producer.process.last_lines(usize::MAX);
        ensure!(!log.contains("s3cret") && !log.contains("ERROR"), "{log}");
        anyhow::Ok(producer)
    };
    let writer = "writer:s3cret%2F%40";
    let (nobody, reader) = ("nobody:nobody", "reader:reader");
    let results = tokio::join!(
        check(
            "writer:wrong",
            "SUBJECT",
            "64KiB",
            "the NATS server rejects the credentials"
        ),
        check(
            writer,
            "MISSING",
            "64KiB",
            "stream MISSING: stream not found"
        ),
        check(
            writer,
            "SUBJECT",
            "64KiB",
            "stream SUBJECT lacks subject cookies.>"
        ),
        check(
            writer,
            "RETENTION",
            "64KiB",
            "stream RETENTION needs retention limits"
        ),
        check(
            writer,
            "SUBJECT",
            "1MiB",
            "max_payload of the NATS server is 1048576 bytes"
        ),
        check(nobody, "SUBJECT", "64KiB", "cannot read stream SUBJECT"),
    );
    results.0?;
    let producer = results.1?;
    results.2?;
    results.3?;
    results.4?;
    wait_state(&results.5?, "refused: cannot read stream SUBJECT: ").await?;
    admin.delete_stream("RETENTION").await?;
    // Another stream with the subject, then the configured one.
    let other = Config {
        name: "OTHER".to_owned(),
        ..stream_config()
    };
    admin.create_stream(other).await?;
    check(reader, "OTHER", "64KiB", "cannot publish to NATS").await?;
    admin.delete_stream("OTHER").await?;
    let missing = Config {
        name: "MISSING".to_owned(),
        ..stream_config()
    };
    admin.create_stream(missing).await?;
    wait_state(&producer, "current").await?;
    ensure!(wait_archived(&producer).await? == 1);
    Ok(())
}
