//! `cargo demo limits`: one DSP sends twice its limit, and the limit is changed during the run.
//!
//! All times are fractions of the duration of the load, so that a short run passes through the same states as a long one.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use launcher::{
    admin, ledger,
    numbers::{grouped, per_second, rate},
    programs::flags,
    scrape::{Samples, names},
};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    args::LimitsArgs,
    running::{self, Running},
};

/// The DSP of the load.
const DSP_ID: u32 = 1;
/// The name of its limit.
const LIMIT: &str = "dsp-1";
/// Requests per second of the load.
const LOAD_RATE: u64 = 600;
/// Limits in cookies per second: at the start, and after half of the load.
const RATES: [u64; 2] = [300, 450];
/// Ratio of distinct users to requests, so that few users sync again while their cookie is queued.
const USERS_PER_REQUEST: u64 = 10;

/// Runs the demo to its end or until `stop`, and prints the ledger in both cases.
///
/// # Errors
/// If a port is in use, the build or a process fails, or the ledger does not balance.
pub(crate) async fn run(args: &LimitsArgs, stop: &CancellationToken) -> Result<()> {
    let limit_in = |dir: &Path| DemoLimit::new(dir, args.seconds);
    let flags = |dir: &Path| {
        let limit = limit_in(dir);
        limit.write(RATES[0]).map(|()| limit.flags())
    };
    let show = async |running: &mut Running| {
        let limit = limit_in(&running.dir);
        show(running, &limit).await
    };
    let running = running::run(&args.setup, true, stop, flags, show).await?;
    let Some(mut running) = running else {
        return Ok(());
    };
    if running.stop_load().await {
        print_ledger(&running).await?;
    }
    let spool = limit_in(&running.dir).spool;
    running.stop().await?;
    if spool.exists() {
        let spool = spool.display();
        println!("saved queued cookies in {spool} for the next start");
    }
    Ok(())
}

/// The limits file and spool of the demo, and its times.
struct DemoLimit {
    file: PathBuf,
    spool: PathBuf,
    /// Duration of the load.
    load_time: Duration,
    /// Maximum planned wait of a cookie.
    max_wait: Duration,
    /// Age at which a cookie becomes a dead letter.
    max_age: Duration,
}

impl DemoLimit {
    /// For a load of 180 s, `max_wait` is 30 s and `max_age` 60 s, the defaults; both scale with the duration.
    fn new(dir: &Path, seconds: u64) -> Self {
        let load_time = Duration::from_secs(seconds);
        Self {
            file: dir.join("limits.toml"),
            spool: dir.join("limits.spool"),
            load_time,
            max_wait: load_time / 6,
            max_age: load_time / 3,
        }
    }

    /// Flags of a producer with this limit.
    fn flags(&self) -> Vec<String> {
        flags([
            ("--contracts", self.file.display().to_string()),
            ("--limits-spool", self.spool.display().to_string()),
        ])
    }

    /// Atomically replaces the limits file by one with this rate.
    fn write(&self, rate: u64) -> Result<()> {
        let [max_wait, max_age] = [self.max_wait, self.max_age].map(|time| time.as_millis());
        let text = format!(
            "# Change the rate while the producer runs; it takes effect within a second.\n\
             unknown = \"unlimited\"\n\n\
             [limits.{LIMIT}]\n\
             keys = [{DSP_ID}]\n\
             rules = [ {{ id = \"peak\", rate = \"{rate}/s\", burst = 5 }} ]\n\
             mode = \"shape\"\n\
             shape = {{ max_wait = \"{max_wait}ms\", max_age = \"{max_age}ms\" }}\n\
             dead_letter = {{ base = \"{max_wait}ms\" }}\n"
        );
        let new = self.file.with_extension("new");
        let result = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file));
        result.with_context(|| format!("failed to write {}", self.file.display()))
    }
}

/// Sends the load and changes the limit after half of it. Prints one line per second until `max_wait` after the end of the load.
async fn show(running: &mut Running, limit: &DemoLimit) -> Result<()> {
    running.wait_ready().await?;
    let ([first, second], load_time) = (RATES, limit.load_time);
    println!(
        "DSP {DSP_ID} has a limit of {first} cookies per second, in {}\n\
         status page: http://{}/\n\n\
         sending {LOAD_RATE} requests per second for {load_time:?} or until Ctrl-C\n\
         cookies over the limit are queued for up to {:?}; after {:?} they become dead letters\n\
         the limit changes to {second} per second after half of the time\n",
        limit.file.display(),
        running.producer_admin,
        limit.max_wait,
        limit.max_age
    );
    let users = LOAD_RATE * load_time.as_secs() * USERS_PER_REQUEST;
    let load = [
        ("--rate", LOAD_RATE.to_string()),
        ("--duration", format!("{}s", load_time.as_secs())),
        ("--dsps", DSP_ID.to_string()),
        ("--users", users.to_string()),
        ("--repeat-changed", "1".to_owned()),
    ];
    running.start_load(load)?;
    let began = Instant::now();
    let (mut is_changed, mut end, mut last) = (false, None, None::<Sample>);
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    println!("   time   accepted   released     queued     oldest       dead   requeued");
    while end.is_none_or(|end| Instant::now() < end) {
        ticks.tick().await;
        running.check_servers()?;
        if !is_changed && began.elapsed() >= load_time / 2 {
            limit.write(second)?;
            is_changed = true;
            println!("changed the limit to {second} per second");
        }
        if end.is_none()
            && let Some(status) = running.load_status()?
        {
            let max_wait = limit.max_wait;
            println!(
                "load finished ({status}); draining the queue and requeueing dead letters for {max_wait:?}"
            );
            end = Some(Instant::now() + max_wait);
        }
        let sample = match Sample::take(&running.producer_admin).await {
            Ok(sample) => sample,
            Err(error) => {
                println!("failed to read the metrics: {error:#}");
                continue;
            }
        };
        if sample.is_rejected {
            bail!("the producer rejected its limits file; see its log");
        }
        if let Some(last) = &last {
            if sample.version != last.version {
                println!("version {} of the limits is active", sample.version);
            }
            sample.print(last, began);
        }
        last = Some(sample);
    }
    Ok(())
}

/// One scrape of the producer.
struct Sample {
    at: Instant,
    samples: Samples,
    /// Version of the active limits.
    version: u64,
    /// Whether the current file is rejected.
    is_rejected: bool,
}

impl Sample {
    async fn take(producer: &str) -> Result<Self> {
        let samples = admin::metrics(producer).await?;
        Ok(Self {
            at: Instant::now(),
            version: samples.count(names::CONTRACTS_VERSION, &[]),
            is_rejected: samples.count(names::CONTRACTS_REFUSED_VERSION, &[]) > 0,
            samples,
        })
    }

    fn print(&self, last: &Self, began: Instant) {
        let labels = [("limit", LIMIT)];
        let count = |samples: &Samples, metric| samples.count(metric, &labels);
        let seconds = (self.at - last.at).as_secs_f64();
        let rate_of = |metric| {
            let more = count(&self.samples, metric).saturating_sub(count(&last.samples, metric));
            rate(per_second(more, seconds))
        };
        let count_of = |metric| grouped(count(&self.samples, metric));
        println!(
            "{:>5} s {:>10} {:>10} {:>10} {:>8.1} s {:>10} {:>10}",
            (self.at - began).as_secs(),
            rate_of(names::SHAPING_ACCEPTED),
            rate_of(names::SHAPING_RELEASED),
            count_of(names::SHAPING_QUEUED),
            self.samples
                .sum(names::SHAPING_OLDEST, &labels)
                .unwrap_or(0.0),
            count_of(names::SHAPING_DEAD),
            count_of(names::SHAPING_REQUEUED),
        );
    }
}

/// Prints the outcomes of all cookies, from one scrape.
async fn print_ledger(running: &Running) -> Result<()> {
    let address = &running.producer_admin;
    let (accepted, outcomes) = ledger::limit_outcomes(&admin::metrics(address).await?, LIMIT)?;
    println!("\nledger of the limit, from one scrape of http://{address}/metrics\n");
    println!("    {:<10} {:>10}", "accepted", grouped(accepted));
    for (index, (outcome, count)) in outcomes.iter().enumerate() {
        let sign = if index == 0 { '=' } else { '+' };
        println!("  {sign} {outcome:<10} {:>10}", grouped(*count));
    }
    Ok(())
}
