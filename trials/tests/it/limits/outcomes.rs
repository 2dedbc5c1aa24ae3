//! Every cookie has one fate: what was released is what the stores have, and all the rest is counted.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{
    ledger, load,
    mongod::Mongod,
    scrape::{Samples, names},
    traffic::Traffic,
};
use tempfile::TempDir;

use super::{Reading, of_limit, send, start, told, write};
use crate::{
    documents::Documents,
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, StoreContents, TIMEOUT, embedded, expect_exit,
        reserve_machine, wait_until,
    },
    stream_client::Subscription,
};

const SENDING: Duration = Duration::from_secs(6);
const OFFERED: u64 = 2_000;
/// Few, so that cookies meet others of their pair that wait.
const USERS: u64 = 10_000;
/// DSPs 1 to 3 have a limit each, the fourth has none.
const DSPS: u32 = 4;

/// DSP 1 gets through all states of a cookie that waits at this rate.
fn limits(rate: u64) -> String {
    format!(
        "unknown = \"unlimited\"\n\
         [limits.shaped]\nkeys = [1]\nmode = \"shape\"\n\
         rules = [ {{ id = \"peak\", rate = \"{rate}/s\", burst = 5 }} ]\n\
         shape = {{ max_wait = \"1s\", max_age = \"2s\", queue_bytes = \"256KiB\" }}\n\
         dead_letter = {{ base = \"500ms\", max_requeues = 2 }}\n\
         [limits.policed]\nkeys = [2]\nmode = \"police\"\n\
         rules = [ {{ id = \"peak\", rate = \"100/s\", burst = 5 }} ]\n\
         [limits.observed]\nkeys = [3]\nmode = \"observe\"\n\
         rules = [ {{ id = \"peak\", rate = \"100/s\", burst = 5 }} ]\n"
    )
}

/// What stores are to have: of each pair the cookie that was accepted last, and when.
#[derive(Default)]
struct Newest(BTreeMap<(String, u32), (u64, String)>);

impl Newest {
    /// Adds what was released in one epoch of a producer. Of each pair, what is released later was accepted later, too.
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
                    "{accepted} after {before}: {}",
                    cookie.dsp_id
                );
            }
        }
        Ok(())
    }

    fn known(&self) -> StoreContents {
        let mut known = StoreContents::new();
        for ((user, dsp), (_, buyer)) in &self.0 {
            let of_user = known.entry(user.clone()).or_default();
            of_user.insert(*dsp, buyer.clone());
        }
        known
    }
}

/// How many cookies of this DSP were in the log.
fn released(stream: &Subscription, dsp: u32) -> u64 {
    let cookies = stream.cookies.iter();
    cookies.filter(|cookie| cookie.dsp_id == dsp).count() as u64
}

/// Fates of a limit's cookies by their words.
fn fates(samples: &Samples, limit: &str) -> Result<BTreeMap<&'static str, u64>> {
    let (accepted, fates) = ledger::limit_outcomes(samples, limit)?;
    let all = fates.into_iter().chain([("accepted", accepted)]);
    Ok(all.collect())
}

/// Waits until nothing is held.
async fn wait_gone(producer: &Producer) -> Result<()> {
    wait_until(TIMEOUT, "nothing waits any more", async || {
        let now = producer.metrics().await?;
        let held = [
            names::SHAPING_QUEUED,
            names::SHAPING_DEAD,
            names::SHAPING_PARKED,
        ];
        let held = held.map(|figure| of_limit(&now, figure, "shaped"));
        Ok(held.iter().sum::<u64>() == 0)
    })
    .await
}

async fn stop(producer: &mut Producer) -> Result<()> {
    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 0)
}

/// Under a load that goes through all states, the producer is stopped with cookies that wait, started again, and given a higher limit.
#[tokio::test(flavor = "multi_thread")]
async fn every_limited_cookie_has_one_outcome_and_stores_have_the_newest_released() -> Result<()> {
    let _machine = reserve_machine().await;
    let dir = TempDir::new()?;
    let mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let spool = dir.path().join("spool");
    let spool = spool.to_str().context("a path in UTF-8")?;
    let mut producer = start(&dir, &limits(100), &["--limits-spool", spool]).await?;
    let store = embedded(&dir.path().join("store"));
    let nodes = [("mongodb", &mongod.uri()), ("embedded", &store)];
    let mut consumers = Vec::new();
    for (name, store) in nodes {
        consumers.push(Consumer::start(&dir, name, &[&producer], store, &[]).await?);
    }
    let reading = Reading::begin(&producer).await?;

    let traffic = Traffic::new(1, NonZeroU64::new(USERS)).with_dsps(DSPS.try_into()?);
    let plan = load::Plan {
        connections: 4.try_into()?,
        duration: Some(SENDING),
        traffic: traffic.clone(),
        ..producer.load(1)?
    };
    let accepted = send(&plan.rate(OFFERED.try_into()?)).await?;
    let first = producer.metrics().await?;
    stop(&mut producer).await?;
    let first_life = reading.end().await?;

    // Nothing is offered any more, so nothing else changes until it ends than what is released, and when; the next epoch takes the rest.
    write(&dir, &limits(100_000))?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    let reading = Reading::begin(&producer).await?;
    wait_gone(&producer).await?;
    let second = producer.metrics().await?;
    stop(&mut producer).await?;
    let second_life = reading.end().await?;

    for limit in ["shaped", "policed", "observed"] {
        println!("{}\n{}", told(&first, limit)?, told(&second, limit)?);
    }
    let (shaped, again) = (fates(&first, "shaped")?, fates(&second, "shaped")?);
    for state in ["superseded", "dropped", "queued", "dead"] {
        ensure!(shaped[state] > 0, "no {state}: {shaped:?}");
    }
    let gone = shaped["superseded"] + shaped["dropped"] + again["superseded"] + again["dropped"];
    let in_logs = released(&first_life, 1) + released(&second_life, 1);
    ensure!(
        shaped["accepted"] == in_logs + gone,
        "{in_logs}: {shaped:?}, {again:?}"
    );
    ensure!(
        again["accepted"] > 0
            && again["accepted"]
                == released(&second_life, 1) + again["superseded"] + again["dropped"]
    );
    let (policed, observed) = (fates(&first, "policed")?, fates(&first, "observed")?);
    ensure!(
        policed["dropped"] > 0 && policed["released"] == released(&first_life, 2),
        "{policed:?}"
    );
    ensure!(
        observed["accepted"] == released(&first_life, 3),
        "{observed:?}"
    );
    let limited = shaped["accepted"] + policed["accepted"] + observed["accepted"];
    ensure!(
        limited + released(&first_life, 4) == accepted,
        "{limited} of {accepted}"
    );

    let mut newest = Newest::default();
    newest.add(&first_life)?;
    newest.add(&second_life)?;
    let known = newest.known();
    let documents = Documents::connect(&mongod.uri()).await?;
    documents.wait_exactly(&known).await?;
    for consumer in &consumers {
        consumer.wait_lookups(&known).await?;
        ensure!(consumer.lost().await? == 0);
    }
    // Those of whom nothing was released.
    let users = (0..accepted).map(|number| traffic.cookie(0, number).user_id().to_owned());
    let unknown = users.filter(|user| !known.contains_key(user)).take(100);
    consumers[1].check_unknown(unknown).await
}
