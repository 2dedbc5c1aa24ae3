//! How evenly a shaped DSP is released, as a reader of the stream sees it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::scrape::names;
use tempfile::TempDir;

use super::{Reading, of_limit, plan, refused, send, sending, start, told};
use crate::{
    harness::{TIMEOUT, reserve_machine, wait_until},
    stream_client::Subscription,
};

const RATE: u64 = 300;
const BURST: u64 = 5;

/// A reader is told when the first cookie of a chunk was put into the log, and that is a moment after it was released: less than this, the
/// age of a small chunk, unless the machine is busy.
const CHUNK_AGE_SECONDS: f64 = 0.03;

/// Cookies before a chunk, and when that began, in seconds.
struct Begun {
    before: u64,
    at: f64,
}

/// When each chunk began. All cookies between two beginnings were released between them.
fn begun(stream: &Subscription) -> Vec<Begun> {
    let mut before = 0;
    let chunks = stream.chunks.iter().zip(&stream.times);
    let begun = chunks.map(|((_, count), micros)| {
        let this = Begun {
            before,
            at: *micros as f64 / 1e6,
        };
        before += count;
        this
    });
    begun.collect()
}

/// By how much the fullest of all windows is above what the rate lets go in its time.
fn worst_excess(begun: &[Begun], rate: f64) -> f64 {
    let over = |it: &Begun| it.before as f64 - rate * it.at;
    let mut least = f64::INFINITY;
    let mut worst = 0.0_f64;
    for window_end in begun.iter().map(over) {
        worst = worst.max(window_end - least);
        least = least.min(window_end);
    }
    worst
}

#[test]
fn worst_excess_is_that_of_the_fullest_window() {
    let begun = [
        (0, 0.0),
        (1, 1.0),
        (2, 2.0),
        (9, 2.5),
        (10, 3.5),
        (11, 10.0),
    ];
    let begun = begun.map(|(before, at)| Begun { before, at });
    // From the third to the fifth, eight of which one and a half may go.
    assert!((worst_excess(&begun, 1.0) - 6.5).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn shaped_dsp_keeps_its_rate_for_seconds() -> Result<()> {
    keeps_its_rate(sending(20)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes four minutes"]
async fn shaped_dsp_keeps_its_rate_for_minutes() -> Result<()> {
    keeps_its_rate(sending(180)).await
}

/// Offers twice the rate. No window has more releases than the rate and the burst allow, beyond the age of a chunk; the mean is the
/// rate. Cookies that would wait beyond the maximum wait are counted, and dead letters are requeued when the load falls.
async fn keeps_its_rate(sending: Duration) -> Result<()> {
    let _machine = reserve_machine().await;
    // As long as the defaults when it is sent for three minutes.
    let [max_wait, max_age] = [sending / 6, sending / 3].map(|time| time.as_millis());
    let limits = format!(
        "unknown = \"unlimited\"\n[limits.dsp-1]\nkeys = [1]\nmode = \"shape\"\n\
         rules = [ {{ id = \"peak\", rate = \"{RATE}/s\", burst = {BURST} }} ]\n\
         shape = {{ max_wait = \"{max_wait}ms\", max_age = \"{max_age}ms\" }}\n\
         dead_letter = {{ base = \"{max_wait}ms\" }}\n"
    );
    let dir = TempDir::new()?;
    let mut producer = start(&dir, &limits, &[]).await?;
    let reading = Reading::begin(&producer).await?;
    let plan = plan(&producer, (1, 1), 2 * RATE, sending)?;
    let accepted = send(&plan).await?;
    let loaded = producer.metrics().await?;
    println!("{}", told(&loaded, "dsp-1")?);
    ensure!(of_limit(&loaded, names::SHAPING_ACCEPTED, "dsp-1") == accepted);
    ensure!(refused(&loaded, "dsp-1") > 0, "max_wait refused nothing");
    let died = of_limit(&loaded, names::SHAPING_DEAD_LETTERS, "dsp-1");
    ensure!(died > 0, "nothing got too old");
    let requeued = of_limit(&loaded, names::SHAPING_REQUEUED, "dsp-1");
    let dead = of_limit(&loaded, names::SHAPING_DEAD, "dsp-1");
    wait_until(sending + TIMEOUT, "dead letters come back", async || {
        let now = producer.metrics().await?;
        let are_fewer = of_limit(&now, names::SHAPING_DEAD, "dsp-1") < dead;
        Ok(are_fewer && of_limit(&now, names::SHAPING_REQUEUED, "dsp-1") > requeued)
    })
    .await?;

    producer.process.stop(TIMEOUT).await?;
    let stream = reading.end().await?;
    let released = of_limit(&loaded, names::SHAPING_RELEASED, "dsp-1");
    let begun = begun(&stream);
    // As long as there was more than could go. At the end of the process what waits goes at once.
    let loaded: Vec<_> = begun
        .into_iter()
        .filter(|it| it.before < released)
        .collect();
    let (first, last) = loaded.first().zip(loaded.last()).context("no chunks")?;
    let seconds = last.at - first.at;
    let mean = (last.before - first.before) as f64 / seconds;
    let excess = worst_excess(&loaded, RATE as f64);
    println!(
        "{mean:.2}/s over {seconds:.1} s; the fullest window has {excess:.1} more than {RATE}/s let go, of a burst of {BURST}"
    );
    let off = (mean / RATE as f64 - 1.0).abs();
    ensure!(off <= 0.005, "{mean}/s");
    let most = BURST as f64 + RATE as f64 * CHUNK_AGE_SECONDS;
    ensure!(excess <= most, "{excess} is above {most}");
    Ok(())
}
