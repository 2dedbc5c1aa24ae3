//! Test that a DSP that floods the producer does not delay the other DSPs.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::scrape::{Buckets, Samples, names};

use super::{describe_balance, exceeded_max_wait, limit_metric, load_time, plan, send, start};
use crate::harness::{Producer, TIMEOUT, reserve_machine, wait_until};

/// Number of DSPs that do not exceed their limits, except for short bursts that are queued.
const OTHERS: u32 = 19;
const FLOODER: u32 = OTHERS + 1;
const RATE: u64 = 50;
const OFFERED: u64 = 45;
const FLOOD: u64 = 100 * OFFERED;

/// Limits: one per DSP, and a global limit that is their sum.
fn limits() -> String {
    let mut text = format!(
        "unknown = \"others\"\n\
         [limits.others]\nrules = [ {{ id = \"peak\", rate = \"1/s\" }} ]\n\
         [limits.whole]\nglobal = true\nrules = [ {{ id = \"all\", rate = \"{}/s\", burst = 100 }} ]\n",
        RATE * u64::from(FLOODER)
    );
    for dsp in 1..=FLOODER {
        write!(
            text,
            "[limits.dsp-{dsp}]\nkeys = [{dsp}]\nmode = \"shape\"\n\
             rules = [ {{ id = \"peak\", rate = \"{RATE}/s\", burst = 5 }} ]\n"
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// Limit names of the other DSPs.
fn others() -> impl Iterator<Item = String> {
    (1..=OTHERS).map(|dsp| format!("dsp-{dsp}"))
}

/// Sends the load of the other DSPs, with or without a flood. Returns the producer's metrics once none of their cookies is queued.
async fn run(is_flooded: bool) -> Result<Samples> {
    let dir = TempDir::new()?;
    let producer = start(&dir, &limits(), &[]).await?;
    let time = load_time(60);
    let calm = plan(&producer, (1, OTHERS), OFFERED * u64::from(OTHERS), time)?;
    let flood = plan(&producer, (FLOODER, 1), FLOOD, time)?;
    let flooding = async {
        if is_flooded {
            send(&flood).await
        } else {
            Ok(0)
        }
    };
    let (calm, flooded) = tokio::join!(send(&calm), flooding);
    let (calm, flooded) = (calm?, flooded?);
    wait_released(&producer).await?;
    let samples = producer.metrics().await?;
    let accepted = others().map(|limit| limit_metric(&samples, names::DSP_LIMITS_ACCEPTED, &limit));
    ensure!(accepted.sum::<u64>() == calm);
    println!("{}", describe_balance(&samples, &format!("dsp-{FLOODER}"))?);
    ensure!(
        limit_metric(
            &samples,
            names::DSP_LIMITS_ACCEPTED,
            &format!("dsp-{FLOODER}")
        ) == flooded
    );
    Ok(samples)
}

/// Waits until no cookie of the other DSPs is queued.
async fn wait_released(producer: &Producer) -> Result<()> {
    wait_until(
        TIMEOUT,
        "no cookie of the other DSPs is queued",
        async || {
            let now = producer.metrics().await?;
            let queued = others().map(|limit| limit_metric(&now, names::DSP_LIMITS_QUEUED, &limit));
            Ok(queued.sum::<u64>() == 0)
        },
    )
    .await
}

/// The 99th percentile of the queueing delay of the other DSPs, in seconds.
fn p99(samples: &Samples) -> Result<f64> {
    let mut delays = Buckets::default();
    for limit in others() {
        let labels = [("limit", &*limit)];
        delays = delays.plus(&samples.histogram_of(names::DSP_LIMITS_DELAY, &labels));
    }
    delays.quantile(0.99).context("no cookie was released")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes"]
async fn flooding_dsp_does_not_delay_nineteen_others() -> Result<()> {
    let _machine = reserve_machine().await;
    let calm = run(false).await?;
    let flooded = run(true).await?;
    for samples in [&calm, &flooded] {
        for limit in others() {
            // All waits were within max_wait, so every cookie was released.
            let of = |metric| limit_metric(samples, metric, &limit);
            let released = of(names::DSP_LIMITS_RELEASED);
            let is_balanced =
                released + of(names::DSP_LIMITS_SUPERSEDED) == of(names::DSP_LIMITS_ACCEPTED);
            ensure!(
                released > 0 && is_balanced && exceeded_max_wait(samples, &limit) == 0,
                "{}",
                describe_balance(samples, &limit)?
            );
        }
    }
    let (calm, flooded) = (p99(&calm)?, p99(&flooded)?);
    println!(
        "p99 delay of the other DSPs: {:.0} ms without the flood, {:.0} ms with it, a factor of {:.2}",
        1e3 * calm,
        1e3 * flooded,
        flooded / calm
    );
    ensure!(
        flooded <= 1.2 * calm,
        "p99 delay is {flooded} s instead of {calm} s"
    );
    Ok(())
}
