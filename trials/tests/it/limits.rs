//! Tests of the DSP limits of real producers: the cookies that DSPs send, and the cookies and times that readers receive.
//!
//! Measurements are marked as ignored. Run them with dist builds on an idle machine:
//! `COOKIESYNC_BIN_DIR=… cargo test --test it -- --ignored --nocapture --test-threads=1 limits`. `LIMITS_SECONDS` overrides the length of
//! each load, for a quick check.

mod flooder;
mod memory;
mod outcomes;
mod rates;
mod shaping;
mod sharing;

use std::{env, fs, num::NonZeroU32, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{load, traffic::Traffic};
use metric_defs::MetricDef;
use proto::v1::SubscribeRequest;
use tempfile::TempDir;
use testkit::{
    ledger,
    scrape::{Samples, names},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    harness::Producer,
    stream_client::{ReadResult, Subscription, from_oldest},
};

/// Length of a load: `seconds`, unless `LIMITS_SECONDS` overrides it.
fn load_time(seconds: u64) -> Duration {
    let overridden = env::var("LIMITS_SECONDS").ok();
    let overridden = overridden.map(|text| text.parse().expect("LIMITS_SECONDS is a number"));
    Duration::from_secs(overridden.unwrap_or(seconds))
}

/// Writes the limits file of the producers in `dir`.
fn write(dir: &TempDir, limits: &str) -> Result<()> {
    let file = dir.path().join("limits.toml");
    let new = file.with_extension("new");
    fs::write(&new, limits)?;
    Ok(fs::rename(new, file)?)
}

/// Starts a producer with these limits.
async fn start(dir: &TempDir, limits: &str, flags: &[&str]) -> Result<Producer> {
    write(dir, limits)?;
    let file = dir.path().join("limits.toml");
    let file = file.to_str().context("a path in UTF-8")?;
    Producer::start(dir, &[&["--contracts", file], flags].concat()).await
}

/// A load on `dsps` DSPs with ids from `first`, at a constant rate.
fn plan(
    producer: &Producer,
    (first, dsps): (u32, u32),
    rate: u64,
    time: Duration,
) -> Result<load::Plan> {
    let number = |number| NonZeroU32::new(number).context("a count is 0");
    let plan = producer.load(1)?;
    let plan = load::Plan {
        connections: 4.try_into()?,
        duration: Some(time),
        keeps_history: false,
        traffic: Traffic::new(u64::from(first), None)
            .with_dsps(number(dsps)?)
            .with_first_dsp(number(first)?),
        ..plan
    };
    Ok(plan.rate(rate.try_into()?))
}

/// Runs a load and returns the number of accepted requests.
async fn send(plan: &load::Plan) -> Result<u64> {
    let outcome = load::run(plan, &CancellationToken::new()).await?;
    if !outcome.report().failures.is_empty() {
        println!("{}", outcome.report().summary());
    }
    Ok(outcome.counts.accepted)
}

/// A metric of a limit, summed over its other labels.
fn limit_metric(samples: &Samples, metric: MetricDef, limit: &str) -> u64 {
    samples.count(metric, &[("limit", limit)])
}

/// Number of times that a cookie exceeded `max_wait`.
fn exceeded_max_wait(samples: &Samples, limit: &str) -> u64 {
    let labels = [("limit", limit), ("outcome", "refused")];
    samples.count(names::DSP_LIMITS_EXCEEDED, &labels)
}

/// The balance of a limit's cookies by outcome, for the test output.
fn describe_balance(samples: &Samples, limit: &str) -> Result<String> {
    let (accepted, outcomes) = ledger::limit_outcomes(samples, limit)?;
    let outcomes = outcomes
        .iter()
        .map(|(name, count)| format!("{count} {name}"));
    let outcomes: Vec<_> = outcomes.collect();
    Ok(format!(
        "{limit}: {accepted} accepted = {}",
        outcomes.join(" + ")
    ))
}

/// A background reader of all cookies that a producer releases, in log order.
struct BackgroundReader(JoinSet<Result<Subscription>>);

impl BackgroundReader {
    /// Opens a stream and starts to read.
    async fn start(producer: &Producer) -> Result<Self> {
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

    /// Waits for the end of the stream, after a drain of the producer, and returns it.
    async fn finish(mut self) -> Result<Subscription> {
        let read = self.0.join_next().await;
        read.context("the reader task is missing")??
    }
}
