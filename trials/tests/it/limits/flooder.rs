//! One DSP that floods the producer, and what the others feel of it.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use bench::scrape::{Buckets, Samples, names};
use tempfile::TempDir;

use super::{of_limit, plan, refused, send, sending, start, told};
use crate::harness::{Producer, TIMEOUT, reserve_machine, wait_until};

/// DSPs that keep to what was agreed, nearly: what is above it for a moment waits.
const OTHERS: u32 = 19;
const FLOODER: u32 = OTHERS + 1;
const RATE: u64 = 50;
const OFFERED: u64 = 45;
const FLOOD: u64 = 100 * OFFERED;

/// Each DSP has a limit of its own, and all of them share one in which there is room for each.
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
        .expect("a string takes everything");
    }
    text
}

/// The names of the limits of those that do not flood.
fn others() -> impl Iterator<Item = String> {
    (1..=OTHERS).map(|dsp| format!("dsp-{dsp}"))
}

/// Sends what the others send, the same each time, and beside it what the flooder does if it does; what the producer then says.
async fn run(is_flooded: bool) -> Result<Samples> {
    let dir = TempDir::new()?;
    let producer = start(&dir, &limits(), &[]).await?;
    let sending = sending(60);
    let calm = plan(&producer, (1, OTHERS), OFFERED * u64::from(OTHERS), sending)?;
    let flood = plan(&producer, (FLOODER, 1), FLOOD, sending)?;
    let flooding = async {
        if is_flooded {
            send(&flood).await
        } else {
            Ok(0)
        }
    };
    let (calm, flooded) = tokio::join!(send(&calm), flooding);
    let (calm, flooded) = (calm?, flooded?);
    wait_gone(&producer).await?;
    let samples = producer.metrics().await?;
    let accepted = others().map(|limit| of_limit(&samples, names::SHAPING_ACCEPTED, &limit));
    ensure!(accepted.sum::<u64>() == calm);
    println!("{}", told(&samples, &format!("dsp-{FLOODER}"))?);
    ensure!(of_limit(&samples, names::SHAPING_ACCEPTED, &format!("dsp-{FLOODER}")) == flooded);
    Ok(samples)
}

/// Waits until nothing of the others waits.
async fn wait_gone(producer: &Producer) -> Result<()> {
    wait_until(TIMEOUT, "nothing of the others waits", async || {
        let now = producer.metrics().await?;
        let waiting = others().map(|limit| of_limit(&now, names::SHAPING_QUEUED, &limit));
        Ok(waiting.sum::<u64>() == 0)
    })
    .await
}

/// How long the cookies of the others waited at most, but for one in a hundred.
fn p99(samples: &Samples) -> Result<f64> {
    let mut delays = Buckets::default();
    for limit in others() {
        let labels = [("limit", &*limit)];
        delays = delays.plus(&samples.histogram_of(names::SHAPING_DELAY, &labels));
    }
    delays.quantile(0.99).context("nothing was released")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes"]
async fn flooding_dsp_does_not_delay_nineteen_others() -> Result<()> {
    let _machine = reserve_machine().await;
    let calm = run(false).await?;
    let flooded = run(true).await?;
    for samples in [&calm, &flooded] {
        for limit in others() {
            // It was all within the maximum wait, so each went at the rate at which it came.
            let of = |figure| of_limit(samples, figure, &limit);
            let released = of(names::SHAPING_RELEASED);
            let is_kept = released + of(names::SHAPING_SUPERSEDED) == of(names::SHAPING_ACCEPTED);
            ensure!(
                released > 0 && is_kept && refused(samples, &limit) == 0,
                "{}",
                told(samples, &limit)?
            );
        }
    }
    let (calm, flooded) = (p99(&calm)?, p99(&flooded)?);
    println!(
        "p99 of the others' delays: {:.0} ms without the flooder, {:.0} ms with it, {:.2} times",
        1e3 * calm,
        1e3 * flooded,
        flooded / calm
    );
    ensure!(flooded <= 1.2 * calm, "{flooded} s instead of {calm} s");
    Ok(())
}
