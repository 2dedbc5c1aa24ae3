//! Test that every limited cookie has one outcome: stores contain exactly the released cookies, and all others are counted.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{load, traffic::Traffic};
use tempfile::TempDir;
use testkit::{
    ledger,
    scrape::{Samples, names},
};

use super::{BackgroundReader, describe_balance, limit_metric, send, start, write};
use crate::{
    documents::Documents,
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, StoreContents, TIMEOUT, embedded, expect_exit,
        wait_until,
    },
    mongods::shared,
    stream_client::Subscription,
};

const LOAD_TIME: Duration = Duration::from_secs(6);
const OFFERED: u64 = 2_000;
/// Number of users, small enough that new cookies replace queued cookies of their pair.
const USERS: u64 = 10_000;
/// DSPs 1 to 3 have one limit each; DSP 4 has none.
const DSPS: u32 = 4;

/// Limits under which cookies of DSP 1 enter all states of a queued cookie.
fn limits(rate: u64) -> String {
    format!(
        "unknown = \"unlimited\"\n\
         [limits.shaped]\nkeys = [1]\nmode = \"shape\"\n\
         rules = [ {{ id = \"peak\", rate = \"{rate}/s\", burst = 5 }} ]\n\
         shape = {{ max_wait = \"1s\", max_age = \"2s\", queue_bytes = \"256KiB\" }}\n\
         requeue = {{ base = \"500ms\", max = 2 }}\n\
         [limits.policed]\nkeys = [2]\nmode = \"police\"\n\
         rules = [ {{ id = \"peak\", rate = \"100/s\", burst = 5 }} ]\n\
         [limits.observed]\nkeys = [3]\nmode = \"observe\"\n\
         rules = [ {{ id = \"peak\", rate = \"100/s\", burst = 5 }} ]\n"
    )
}

/// Expected store contents: acceptance time and buyer uid of the last accepted cookie of each pair.
#[derive(Default)]
struct ExpectedValues(BTreeMap<(String, u32), (u64, String)>);

impl ExpectedValues {
    /// Adds the cookies released in one epoch. Within a pair, release order must be acceptance order.
    fn add(&mut self, stream: &Subscription) -> Result<()> {
        let mut cookies = stream.cookies.iter();
        for ((_, count), time) in stream.chunks.iter().zip(&stream.times) {
            for cookie in cookies.by_ref().take(usize::try_from(*count)?) {
                let accepted = time - cookie.age_micros;
                let pair = (cookie.user_id.clone(), cookie.dsp_id);
                let value = (accepted, cookie.buyer_uid.clone());
                let before = self.0.insert(pair, value);
                let before = before.map_or(0, |(accepted, _)| accepted);
                ensure!(
                    before <= accepted,
                    "accepted at {accepted}, released after one accepted at {before}: DSP {}",
                    cookie.dsp_id
                );
            }
        }
        Ok(())
    }

    fn contents(&self) -> StoreContents {
        let mut contents = StoreContents::new();
        for ((user, dsp), (_, buyer)) in &self.0 {
            let of_user = contents.entry(user.clone()).or_default();
            of_user.insert(*dsp, buyer.clone());
        }
        contents
    }
}

/// Number of cookies of a DSP in the log.
fn released(stream: &Subscription, dsp: u32) -> u64 {
    let cookies = stream.cookies.iter();
    cookies.filter(|cookie| cookie.dsp_id == dsp).count() as u64
}

/// Cookie counts of a limit by outcome, including `accepted`.
fn outcomes(samples: &Samples, limit: &str) -> Result<BTreeMap<&'static str, u64>> {
    let (accepted, outcomes) = ledger::limit_outcomes(samples, limit)?;
    let all = outcomes.into_iter().chain([("accepted", accepted)]);
    Ok(all.collect())
}

/// Waits until no cookie of the shaped limit is queued or waits for a requeue.
async fn wait_queue_empty(producer: &Producer) -> Result<()> {
    wait_until(TIMEOUT, "the queue is empty", async || {
        let now = producer.metrics().await?;
        let queued = [
            names::DSP_LIMITS_QUEUED,
            names::DSP_LIMITS_OVERDUE,
            names::DSP_LIMITS_PARKED,
        ];
        let queued = queued.map(|metric| limit_metric(&now, metric, "shaped"));
        Ok(queued.iter().sum::<u64>() == 0)
    })
    .await
}

/// Waits until each of these subscribers has opened a stream. A drain does not wait for subscribers that are not connected.
async fn wait_subscribers(producer: &Producer, subscribers: [&str; 2]) -> Result<()> {
    wait_until(TIMEOUT, "all consumers are connected", async || {
        let metrics = producer.metrics().await?;
        let is_connected = |name: &&str| metrics.count(names::STREAMS, &[("subscriber", name)]) > 0;
        Ok(subscribers.iter().all(is_connected))
    })
    .await
}

async fn stop(producer: &mut Producer) -> Result<()> {
    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 0)
}

/// The producer is stopped under load with queued cookies and restarted with a higher limit.
#[tokio::test(flavor = "multi_thread")]
async fn every_limited_cookie_has_one_outcome_and_stores_have_the_newest_released() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let spool = dir.path().join("spool");
    let spool = spool.to_str().context("a path in UTF-8")?;
    let mut producer = start(&dir, &limits(100), &["--limits-spool", spool]).await?;
    let store = embedded(&dir.path().join("store"));
    let nodes = [("mongodb", &mongod.uri()), ("embedded", &store)];
    let mut consumers = Vec::new();
    for (name, store) in nodes {
        consumers.push(Consumer::start(&dir, name, &[&producer], store, &[]).await?);
    }
    let reader = BackgroundReader::start(&producer).await?;

    let traffic = Traffic::new(1, NonZeroU64::new(USERS)).with_dsps(DSPS.try_into()?);
    let plan = load::Plan {
        connections: 4.try_into()?,
        duration: Some(LOAD_TIME),
        traffic: traffic.clone(),
        ..producer.load(1)?
    };
    let accepted = send(&plan.rate(OFFERED.try_into()?)).await?;
    let first = producer.metrics().await?;
    stop(&mut producer).await?;
    let first_epoch = reader.finish().await?;

    // Without load, the next epoch only releases the spooled cookies.
    write(&dir, &limits(100_000))?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    wait_subscribers(&producer, nodes.map(|(name, _)| name)).await?;
    let reader = BackgroundReader::start(&producer).await?;
    wait_queue_empty(&producer).await?;
    let second = producer.metrics().await?;
    stop(&mut producer).await?;
    let second_epoch = reader.finish().await?;

    for limit in ["shaped", "policed", "observed"] {
        println!(
            "{}\n{}",
            describe_balance(&first, limit)?,
            describe_balance(&second, limit)?
        );
    }
    let (shaped, again) = (outcomes(&first, "shaped")?, outcomes(&second, "shaped")?);
    for state in ["superseded", "dropped", "queued", "overdue"] {
        ensure!(shaped[state] > 0, "no cookie is {state}: {shaped:?}");
    }
    let unreleased =
        shaped["superseded"] + shaped["dropped"] + again["superseded"] + again["dropped"];
    let in_logs = released(&first_epoch, 1) + released(&second_epoch, 1);
    ensure!(
        shaped["accepted"] == in_logs + unreleased,
        "{in_logs} in the logs: {shaped:?}, {again:?}"
    );
    ensure!(
        again["accepted"] > 0
            && again["accepted"]
                == released(&second_epoch, 1) + again["superseded"] + again["dropped"]
    );
    let (policed, observed) = (outcomes(&first, "policed")?, outcomes(&first, "observed")?);
    ensure!(
        policed["dropped"] > 0 && policed["released"] == released(&first_epoch, 2),
        "{policed:?}"
    );
    ensure!(
        observed["accepted"] == released(&first_epoch, 3),
        "{observed:?}"
    );
    let limited = shaped["accepted"] + policed["accepted"] + observed["accepted"];
    ensure!(
        limited + released(&first_epoch, 4) == accepted,
        "{limited} cookies under limits, {accepted} accepted"
    );

    let mut expected = ExpectedValues::default();
    expected.add(&first_epoch)?;
    expected.add(&second_epoch)?;
    let contents = expected.contents();
    let documents = Documents::connect(&mongod.uri()).await?;
    documents.wait_exactly(&contents).await?;
    for consumer in &consumers {
        consumer.wait_lookups(&contents).await?;
        ensure!(consumer.lost().await? == 0);
    }
    // Users without a released cookie.
    let users = (0..accepted).map(|number| traffic.cookie(0, number).user_id().to_owned());
    let unknown = users.filter(|user| !contents.contains_key(user)).take(100);
    consumers[1].check_unknown(unknown).await
}
