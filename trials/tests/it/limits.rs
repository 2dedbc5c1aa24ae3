//! Limits as those feel them who have agreed on them: what DSPs send, what readers get, and when. What is measured is ignored unless
//! asked for, with dist builds and nothing else running:
//! `COOKIESYNC_BIN_DIR=… cargo test --test it -- --ignored --nocapture --test-threads=1 limits`
//!
//! `LIMITS_SECONDS` says how long each load is sent instead of as long as it is meant to be, to see that it works.

mod flooder;
mod memory;
mod outcomes;
mod rates;
mod shaping;
mod sharing;

use std::{env, fs, num::NonZeroU32, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{
    ledger, load,
    scrape::{Samples, names},
    traffic::Traffic,
};
use metric_defs::MetricDef;
use proto::v1::SubscribeRequest;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    harness::Producer,
    stream_client::{ReadResult, Subscription, from_oldest},
};

/// How long to send, if nobody says otherwise.
fn sending(seconds: u64) -> Duration {
    let given = env::var("LIMITS_SECONDS").ok();
    let given = given.map(|text| text.parse().expect("LIMITS_SECONDS is a number"));
    Duration::from_secs(given.unwrap_or(seconds))
}

/// Writes the file of limits of the producers in this directory.
fn write(dir: &TempDir, limits: &str) -> Result<()> {
    let file = dir.path().join("limits.toml");
    let new = file.with_extension("new");
    fs::write(&new, limits)?;
    Ok(fs::rename(new, file)?)
}

/// Starts a producer under these limits.
async fn start(dir: &TempDir, limits: &str, flags: &[&str]) -> Result<Producer> {
    write(dir, limits)?;
    let file = dir.path().join("limits.toml");
    let file = file.to_str().context("a path in UTF-8")?;
    Producer::start(dir, &[&["--limits", file], flags].concat()).await
}

/// A load of these DSPs at a constant rate.
fn plan(
    producer: &Producer,
    (first, dsps): (u32, u32),
    rate: u64,
    sending: Duration,
) -> Result<load::Plan> {
    let number = |number| NonZeroU32::new(number).context("not 0");
    let plan = producer.load(1)?;
    let plan = load::Plan {
        connections: 4.try_into()?,
        duration: Some(sending),
        keeps_history: false,
        traffic: Traffic::new(u64::from(first), None)
            .with_dsps(number(dsps)?)
            .with_first_dsp(number(first)?),
        ..plan
    };
    Ok(plan.rate(rate.try_into()?))
}

/// Runs a load to its end; what was accepted.
async fn send(plan: &load::Plan) -> Result<u64> {
    let outcome = load::run(plan, &CancellationToken::new()).await?;
    if !outcome.is_faultless() {
        println!("{}", outcome.summary());
    }
    Ok(outcome.counts.accepted)
}

/// A figure of a limit, of all its other labels together.
fn of_limit(samples: &Samples, figure: MetricDef, limit: &str) -> u64 {
    samples.count(figure, &[("limit", limit)])
}

/// How often a cookie would have had to wait for longer than the maximum wait.
fn refused(samples: &Samples, limit: &str) -> u64 {
    let labels = [("limit", limit), ("outcome", "refused")];
    samples.count(names::SHAPING_EXCEEDED, &labels)
}

/// What became of the cookies of a limit, for those who look on.
fn told(samples: &Samples, limit: &str) -> Result<String> {
    let (accepted, fates) = ledger::limit_outcomes(samples, limit)?;
    let fates = fates.iter().map(|(fate, count)| format!("{count} {fate}"));
    let fates: Vec<_> = fates.collect();
    Ok(format!(
        "{limit}: {accepted} accepted = {}",
        fates.join(" + ")
    ))
}

/// Reads all that a producer releases, in the order of its log.
struct Reading(JoinSet<Result<Subscription>>);

impl Reading {
    /// Opens a stream.
    async fn begin(producer: &Producer) -> Result<Self> {
        let request = SubscribeRequest {
            supports_age: true,
            ..from_oldest("probe")
        };
        let mut stream = Subscription::open(&producer.grpc, request).await?;
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            while let ReadResult::Event = stream.read().await? {}
            ensure!(stream.lost() == 0, "{:?}", stream.gaps);
            Ok(stream)
        });
        Ok(Self(reading))
    }

    /// All of it, after the producer has drained.
    async fn end(mut self) -> Result<Subscription> {
        let read = self.0.join_next().await;
        read.context("there is a task")??
    }
}
