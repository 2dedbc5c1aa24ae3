//! What each further stream costs a producer: `bench subscribe --fan-out 1,50`.
//!
//! Each step has a fresh producer, and beside it two processes of this program: one that reads all streams, one that sends the load.
//! So the system accounts the CPU time of each for itself. A step ends in an order in which nothing can be missed: the load ends, the
//! producer is behind with no stream any more, it drains, and the readers come to the end of their streams. Then every cookie was
//! read, or declared lost.

use std::{
    collections::BTreeSet,
    env, fs,
    num::{NonZeroU64, NonZeroUsize},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::SubscribeArgs;
use crate::{
    admin,
    cpu::CpuTime,
    memory::Memory,
    producer::{Addresses, Launch, Producer},
    programs::{Process, Programs},
    report::{
        Figure, Plot, Report, Row, counted, grouped, lines, micros_each,
        unit::{COUNT, CPU, MEBIBYTES},
    },
    scrape::names,
    values::parse_rate,
};

const DURATION_DEFAULT: Duration = Duration::from_secs(5);
const STREAMS_MAX: usize = 10_000;
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// What a load may take beyond its duration, for what is late and for answers.
const LOAD_PATIENCE: Duration = Duration::from_secs(15);
/// How long streams may take for what they are behind with when the load has ended: a full log, by readers on a busy machine.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(300);
/// Longer than a producer may take to drain, and readers to end after it.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Steps with producers of their own.
#[derive(Debug, Clone, Default, Args)]
pub struct FanOutArgs {
    /// Measure what streams cost a producer: for each of these numbers, a producer, so many streams and a load are started on this
    /// machine, each in a process of its own, for 5 s or --duration.
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        conflicts_with_all = ["producer", "streams", "requests", "name", "once", "read_rate"]
    )]
    pub fan_out: Vec<NonZeroUsize>,
    /// Requests a second of the load with --fan-out; without it, as many as are answered.
    #[arg(short = 'l', long, requires = "fan_out", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
}

/// Runs all steps, or those before `stop` or one that fails, which is a fault; `progress` gets a line a step.
///
/// # Errors
/// When the arguments are not valid, or the programs cannot be found or built.
pub async fn run(
    args: &SubscribeArgs,
    stop: &CancellationToken,
    mut progress: impl FnMut(&str),
) -> Result<Report> {
    let mut numbers = BTreeSet::new();
    for number in &args.fan_out.fan_out {
        ensure!(numbers.insert(number), "--fan-out names {number} twice");
        ensure!(
            number.get() <= STREAMS_MAX,
            "--fan-out: at most {STREAMS_MAX}"
        );
    }
    let programs = tokio::task::spawn_blocking(Programs::find).await??;
    let folder = tempfile::tempdir().context("cannot make a folder for the logs")?;
    let title = format!("Cost of streams of {}", args.call.name());
    let mut report = Report::new("fan-out", &title);
    let began = Instant::now();
    let mut rows = Vec::new();
    // CPU time of the producer for each cookie by number of streams.
    let mut points = Vec::new();
    for number in &args.fan_out.fan_out {
        let name = counted(number.get(), "stream");
        let folder = folder.path().join(number.to_string());
        fs::create_dir(&folder).context("cannot make a folder for the logs")?;
        let step = tokio::select! {
            step = Step::run(args, number.get(), &programs, &folder) => step,
            () = stop.cancelled() => {
                report.findings.push("The run was ended before its time.".to_owned());
                break;
            }
        };
        match step {
            Ok(step) => {
                progress(&format!("{name}: {:.3} µs a cookie", step.cpu_micros()));
                let faults = step.faults();
                report
                    .faults
                    .extend(faults.iter().map(|fault| format!("{name}: {fault}")));
                points.push((number.get() as f64, step.cpu_micros()));
                rows.push(step.row(name).at(number.get() as f64));
            }
            // What the steps before found is not lost with it.
            Err(error) => {
                let fault = format!("{name}: could not be finished: {error:#}");
                report.faults.push(fault);
                break;
            }
        }
    }
    report.seconds = began.elapsed().as_secs_f64();
    if let Some((base, each)) = line_through(&points) {
        report.findings.push(format!(
            "Each further stream costs the producer {each:.3} µs of CPU per cookie, accepting and encoding {base:.2} µs (a line through \
             all steps)."
        ));
    }
    let cpu = lines(&rows, &["producer CPU per cookie"]);
    report.plots = vec![Plot {
        x: "streams".to_owned(),
        ..Plot::over_time("cpu", "CPU of the producer", "µs a cookie", cpu)
    }];
    let note = "Delivery is from the edge to the reader, where the call tells; what is lost of get-cookies is what is missing of \
                accepted × streams.";
    report.add("Steps", note, rows);
    Ok(report)
}

/// What one number of streams took.
struct Step {
    /// What the load reports.
    load: Report,
    /// What the streams report.
    readers: Report,
    /// Cookies in the producer's log.
    appended: u64,
    /// The same for each stream.
    due: u64,
    /// CPU time of the producer, from the start of the load until everything was delivered.
    cpu: Duration,
    memory: Memory,
}

impl Step {
    /// Runs one step; everything it started is gone when this has ended or is dropped.
    async fn run(
        args: &SubscribeArgs,
        streams: usize,
        programs: &Programs,
        folder: &Path,
    ) -> Result<Self> {
        // In memory, as the record of a producer must be, and removed with the folder.
        let records = TempDir::new_in("/dev/shm").context("no folder in memory")?;
        let launch = Launch {
            program: &programs.producer,
            name: "producer".to_owned(),
            addresses: Addresses::free()?,
            folder,
            flags: vec![format!("--state={}", records.path().display())],
        };
        let mut producer = launch.start()?;
        producer.wait_ready(READY_PATIENCE).await?;
        let flags = vec![
            "subscribe".to_owned(),
            format!("--producer=http://{}", producer.grpc),
            format!("--streams={streams}"),
            format!("--call={}", args.call.name()),
            "--once".to_owned(),
        ];
        let mut readers = start("the readers", flags, folder)?;
        wait_open(&mut readers).await?;

        let before = Look::at(&producer).await?;
        let duration = args.duration.unwrap_or(DURATION_DEFAULT);
        let mut flags = vec![
            "load".to_owned(),
            format!("--url=http://{}/", producer.http),
            "--connections=32".to_owned(),
            "--pipeline=16".to_owned(),
            format!("--duration={}", humantime::format_duration(duration)),
        ];
        flags.extend(args.fan_out.rate.map(|rate| format!("--rate={rate}")));
        let mut load = start("the load", flags, folder)?;
        let load = report_of(&mut load, duration + LOAD_PATIENCE).await?;
        let after = caught_up(&producer, streams as u64).await?;
        let memory = Memory::of(producer.process.id()).context("the producer is gone")?;
        let status = producer.process.stop(STOP_PATIENCE).await?;
        ensure!(
            status.success(),
            "the producer did not drain ({status}): {}",
            producer.process.last_lines(5)
        );
        let appended = after.appended - before.appended;
        Ok(Self {
            load,
            readers: report_of(&mut readers, STOP_PATIENCE).await?,
            appended,
            due: appended * streams as u64,
            cpu: after.cpu.since(&before.cpu).total(),
            memory,
        })
    }

    /// Of the producer, for each cookie.
    fn cpu_micros(&self) -> f64 {
        micros_each(self.cpu.as_secs_f64(), self.appended)
    }

    fn received(&self) -> u64 {
        count(&self.readers, "cookies received").unwrap_or(0)
    }

    /// Cookies not delivered, over all streams: declared by the producer, or where the call has no sequences what is missing.
    fn lost(&self) -> u64 {
        let missing = self.due.saturating_sub(self.received());
        count(&self.readers, "lost").unwrap_or(missing)
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = self.load.faults.clone();
        faults.extend(self.readers.faults.iter().cloned());
        let accepted = count(&self.load, "requests accepted").unwrap_or(0);
        let delivered = self.received() + self.lost();
        for (what, count, expected) in [
            ("cookies are in the log", self.appended, accepted),
            (
                "cookies were delivered or declared lost",
                delivered,
                self.due,
            ),
        ] {
            if count != expected {
                let (count, expected) = (grouped(count), grouped(expected));
                faults.push(format!("{count} of {expected} {what}"));
            }
        }
        faults
    }

    fn row(&self, name: String) -> Row {
        let each_delivery = micros_each(self.cpu.as_secs_f64(), self.received());
        let from_load = |figure, name| renamed(&self.load, figure, name);
        let from_readers = |figure, name| renamed(&self.readers, figure, name);
        Row::new(
            name,
            [
                from_load("requests sent", "requests sent"),
                from_load("accepted", "accepted"),
                from_load("latency: p50", "request p50"),
                from_load("latency: p99", "request p99"),
                from_load("limited by", "load limited by"),
                COUNT.of("appended", self.appended),
                COUNT.of("delivered", self.received()),
                from_readers("received a second", "deliveries"),
                COUNT.of("lost", self.lost()).lower(),
                from_readers("delivery p50", "delivery p50"),
                from_readers("delivery p99", "delivery p99"),
                CPU.of("producer CPU per cookie", self.cpu_micros()).lower(),
                CPU.of("producer CPU per delivery", each_delivery).lower(),
                from_readers("reader CPU per cookie", "reader CPU per delivery"),
                from_load("generator CPU per request", "load CPU per request"),
                MEBIBYTES.of("memory", self.memory.peak_bytes).lower(),
            ],
        )
    }
}

/// A figure of another report under another name.
fn renamed(report: &Report, figure: &str, name: &str) -> Figure {
    let found = report.figures().find(|(full, _)| full == figure);
    Figure {
        name: name.to_owned(),
        ..found.map(|(_, figure)| figure.clone()).unwrap_or_default()
    }
}

fn count(report: &Report, name: &str) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, reason = "it is a count")]
    let count = |value| value as u64;
    report.value(name).map(count)
}

/// Starts a process of this program that prints its report as JSON.
fn start(name: &str, mut flags: Vec<String>, folder: &Path) -> Result<Process> {
    let own = env::current_exe().context("where is this program?")?;
    flags.extend(["--json", "--no-report"].map(str::to_owned));
    Process::start(name, &own, &flags, &folder.join(format!("{name}.log")))
}

/// Its report, after its end. An exit code of 1 only says that the report names faults.
async fn report_of(process: &mut Process, patience: Duration) -> Result<Report> {
    let status = process.wait(patience).await?;
    let printed = fs::read_to_string(process.log()).unwrap_or_default();
    let name = process.name();
    match printed.lines().rfind(|line| line.starts_with('{')) {
        Some(json) => serde_json::from_str(json).with_context(|| format!("{name} printed {json}")),
        None => bail!("{name} ended ({status}): {}", process.last_lines(5)),
    }
}

async fn wait_open(readers: &mut Process) -> Result<()> {
    let deadline = Instant::now() + READY_PATIENCE;
    loop {
        let printed = fs::read_to_string(readers.log()).unwrap_or_default();
        if printed.lines().any(|line| line.starts_with("subscribed ")) {
            return Ok(());
        }
        readers.check()?;
        ensure!(
            Instant::now() < deadline,
            "the streams are not open after {READY_PATIENCE:?}"
        );
        sleep(POLL_INTERVAL).await;
    }
}

/// A look at the producer.
struct Look {
    cpu: CpuTime,
    appended: u64,
    /// Handed to streams, or declared lost.
    settled: u64,
    connected: u64,
}

impl Look {
    async fn at(producer: &Producer) -> Result<Self> {
        let metrics = admin::metrics(&producer.admin).await?;
        let count = |name| metrics.count(name, &[]);
        Ok(Self {
            cpu: CpuTime::of(producer.process.id()).unwrap_or_default(),
            appended: count(names::APPENDED),
            settled: count(names::DELIVERED) + count(names::SUBSCRIBER_LOST),
            connected: count(names::SUBSCRIBER_CONNECTED),
        })
    }
}

/// Waits until every stream was handed all there is, or told that it will not get it.
async fn caught_up(producer: &Producer, streams: u64) -> Result<Look> {
    let deadline = Instant::now() + CATCH_UP_PATIENCE;
    loop {
        let look = Look::at(producer).await?;
        // A stream that has broken gets nothing more: what it missed is then found to be missing.
        if look.settled >= look.appended * streams || look.connected < streams {
            return Ok(look);
        }
        ensure!(
            Instant::now() < deadline,
            "the streams are still behind after {CATCH_UP_PATIENCE:?}"
        );
        sleep(POLL_INTERVAL).await;
    }
}

/// Intercept and slope of the straight line with the least squared distances; `None` through fewer than two points.
fn line_through(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let joint = points.iter().map(|point| (point.0 - x) * (point.1 - y));
    let slope = joint.sum::<f64>() / spread;
    (spread > 0.0).then_some((y - slope * x, slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_of_a_further_stream_is_a_slope() {
        assert_eq!(line_through(&[(1.0, 2.0), (3.0, 6.0)]), Some((0.0, 2.0)));
        assert_eq!(line_through(&[(1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(line_through(&[]), None);
    }
}
