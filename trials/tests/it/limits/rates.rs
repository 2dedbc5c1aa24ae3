//! Tests of the release rate of a shaped DSP, measured by a reader of the stream.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::scrape::names;

use super::{
    BackgroundReader, describe_balance, exceeded_max_wait, limit_metric, load_time, plan, send,
    start,
};
use crate::{
    harness::{TIMEOUT, reserve_machine, wait_until},
    stream_client::Subscription,
};

const RATE: u64 = 300;
const BURST: u64 = 5;

/// Maximum difference between a release and its chunk time for readers, if the machine is not overloaded: the age of a small chunk.
const CHUNK_AGE_SECONDS: f64 = 0.03;

/// Start of a chunk.
struct ChunkStart {
    /// Cookies before the chunk.
    before: u64,
    /// Time of its first cookie, in seconds.
    at: f64,
}

/// The start of each chunk. Cookies of a chunk were released between its start and the next one.
fn chunk_starts(stream: &Subscription) -> Vec<ChunkStart> {
    let mut before = 0;
    let chunks = stream.chunks.iter().zip(&stream.times);
    let starts = chunks.map(|((_, count), micros)| {
        let this = ChunkStart {
            before,
            at: *micros as f64 / 1e6,
        };
        before += count;
        this
    });
    starts.collect()
}

/// The maximum over all windows of the cookies above `rate` times the window length.
fn worst_excess(starts: &[ChunkStart], rate: f64) -> f64 {
    let excess = |it: &ChunkStart| it.before as f64 - rate * it.at;
    let mut least = f64::INFINITY;
    let mut worst = 0.0_f64;
    for window_end in starts.iter().map(excess) {
        worst = worst.max(window_end - least);
        least = least.min(window_end);
    }
    worst
}

#[test]
fn worst_excess_is_that_of_the_fullest_window() {
    let starts = [
        (0, 0.0),
        (1, 1.0),
        (2, 2.0),
        (9, 2.5),
        (10, 3.5),
        (11, 10.0),
    ];
    let starts = starts.map(|(before, at)| ChunkStart { before, at });
    // From the third to the fifth start: 8 cookies in 1.5 s.
    assert!((worst_excess(&starts, 1.0) - 6.5).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn shaped_dsp_never_exceeds_its_rate() -> Result<()> {
    check_rate(load_time(20)).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes four minutes"]
async fn shaped_dsp_keeps_its_rate_for_minutes() -> Result<()> {
    let mean = check_rate(load_time(180)).await?;
    let deviation = (mean / RATE as f64 - 1.0).abs();
    ensure!(deviation <= 0.005, "mean rate {mean}/s");
    Ok(())
}

/// Offers twice the rate and returns the mean rate of the releases. No window, extended by the age of a chunk, may have more releases than
/// rate and burst allow. Cookies that exceed `max_wait` are counted, and overdue cookies are requeued after the load.
///
/// A busy machine lowers the mean, because a late producer does not catch up. `shaping/tests/overload.rs` of the producer checks the mean
/// in virtual time.
async fn check_rate(time: Duration) -> Result<f64> {
    let _machine = reserve_machine().await;
    // Equal to the defaults for a load of three minutes.
    let [max_wait, max_age] = [time / 6, time / 3].map(|time| time.as_millis());
    let limits = format!(
        "unknown = \"unlimited\"\n[limits.dsp-1]\nkeys = [1]\nmode = \"shape\"\n\
         rules = [ {{ id = \"peak\", rate = \"{RATE}/s\", burst = {BURST} }} ]\n\
         shape = {{ max_wait = \"{max_wait}ms\", max_age = \"{max_age}ms\" }}\n\
         requeue = {{ base = \"{max_wait}ms\" }}\n"
    );
    let dir = TempDir::new()?;
    let mut producer = start(&dir, &limits, &[]).await?;
    let reader = BackgroundReader::start(&producer).await?;
    let plan = plan(&producer, (1, 1), 2 * RATE, time)?;
    let accepted = send(&plan).await?;
    let loaded = producer.metrics().await?;
    println!("{}", describe_balance(&loaded, "dsp-1")?);
    ensure!(limit_metric(&loaded, names::DSP_LIMITS_ACCEPTED, "dsp-1") == accepted);
    ensure!(
        exceeded_max_wait(&loaded, "dsp-1") > 0,
        "no cookie exceeded max_wait"
    );
    let expired = limit_metric(&loaded, names::DSP_LIMITS_BECAME_OVERDUE, "dsp-1");
    ensure!(expired > 0, "no cookie exceeded max_age");
    let requeued = limit_metric(&loaded, names::DSP_LIMITS_REQUEUED, "dsp-1");
    let overdue = limit_metric(&loaded, names::DSP_LIMITS_OVERDUE, "dsp-1");
    wait_until(time + TIMEOUT, "overdue cookies are requeued", async || {
        let now = producer.metrics().await?;
        let are_fewer = limit_metric(&now, names::DSP_LIMITS_OVERDUE, "dsp-1") < overdue;
        Ok(are_fewer && limit_metric(&now, names::DSP_LIMITS_REQUEUED, "dsp-1") > requeued)
    })
    .await?;

    producer.process.stop(TIMEOUT).await?;
    let stream = reader.finish().await?;
    let released = limit_metric(&loaded, names::DSP_LIMITS_RELEASED, "dsp-1");
    let starts = chunk_starts(&stream);
    // Excludes the shutdown, when queued cookies are released early.
    let loaded: Vec<_> = starts
        .into_iter()
        .filter(|it| it.before < released)
        .collect();
    let (first, last) = loaded
        .first()
        .zip(loaded.last())
        .context("no chunk was received")?;
    let seconds = last.at - first.at;
    let mean = (last.before - first.before) as f64 / seconds;
    let excess = worst_excess(&loaded, RATE as f64);
    println!(
        "{mean:.2}/s over {seconds:.1} s; worst window: {excess:.1} above {RATE}/s, with a burst of {BURST}"
    );
    let excess_max = BURST as f64 + RATE as f64 * CHUNK_AGE_SECONDS;
    ensure!(excess <= excess_max, "{excess} exceeds {excess_max}");
    Ok(mean)
}
