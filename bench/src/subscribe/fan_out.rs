//! What each further stream costs a producer: `bench subscribe --fan-out 1,50`.
//!
//! Each step has a fresh producer, a process whose CPU time the system accounts; this one reads all streams and sends the load.
//! A step ends in an order in which nothing can be missed: the load ends, the producer is behind with no stream any more, it
//! drains, and the readers come to the end of their streams. Then every cookie was read, or declared lost.

use std::{
    collections::BTreeSet,
    fs,
    num::{NonZeroU64, NonZeroUsize},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use tempfile::TempDir;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{SubscribeArgs, SubscribeOutcome, report::whole_seconds};
use crate::{
    admin, cpu,
    load::{self, Plan},
    memory::Memory,
    producer::{Addresses, Launch, Producer},
    programs::Programs,
    report::{
        Measurement, Plot, Report, Row, grouped, micros_per, per_second, plural, to_series,
        unit::{COUNT, CPU, MEBIBYTES, MILLIS, RATE},
    },
    scrape::names,
    traffic::Traffic,
    values::parse_rate,
};

const DURATION_DEFAULT: Duration = Duration::from_secs(5);
const STREAMS_MAX: usize = 10_000;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long streams may take for what they are behind with when the load has ended: a full log, by readers on a busy machine.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(300);
/// Longer than a producer may take to drain.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Steps with producers of their own.
#[derive(Debug, Clone, Default, Args)]
pub struct FanOutArgs {
    /// Measure what streams cost a producer: for each of these numbers, a producer is started on this machine, and gets so many
    /// streams and a load, for 5 s or --duration.
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

/// Runs all steps, or those before `stop` or one that fails, which is a fault.
///
/// # Errors
/// When the arguments are not valid, or the programs cannot be found or built.
pub async fn run(args: &SubscribeArgs, stop: &CancellationToken) -> Result<Report> {
    let mut numbers = BTreeSet::new();
    for number in &args.fan_out.fan_out {
        ensure!(numbers.insert(number), "--fan-out names {number} twice");
        ensure!(
            number.get() <= STREAMS_MAX,
            "--fan-out: at most {STREAMS_MAX}"
        );
    }
    let programs = tokio::task::spawn_blocking(Programs::find).await??;
    let dir = tempfile::tempdir().context("cannot make a directory for the logs")?;
    let title = format!("Cost of streams of {:?}", args.call);
    let mut report = Report::new("fan-out", &title);
    let began = Instant::now();
    let mut rows = Vec::new();
    for number in &args.fan_out.fan_out {
        let name = plural(number.get(), "stream");
        let dir = dir.path().join(number.to_string());
        fs::create_dir(&dir).context("cannot make a directory for the logs")?;
        let step = tokio::select! {
            step = FanOutStep::run(args, *number, &programs, &dir, stop) => step,
            () = stop.cancelled() => {
                report.findings.push("The run was ended before its time.".to_owned());
                break;
            }
        };
        match step {
            Ok(step) => {
                eprintln!("{name}: {:.3} µs a cookie", step.cpu_micros());
                let failures = step.failures();
                report
                    .failures
                    .extend(failures.iter().map(|failure| format!("{name}: {failure}")));
                rows.push(step.row(name).at(number.get() as f64));
            }
            // What the steps before found is not lost with it.
            Err(error) => {
                let failure = format!("{name}: could not be finished: {error:#}");
                report.failures.push(failure);
                break;
            }
        }
    }
    report.seconds = began.elapsed().as_secs_f64();
    let cpu = to_series(&rows, &["producer CPU per cookie"]);
    let points = cpu.first().map_or(&[][..], |line| &line.points);
    if let Some((base, each)) = line_through(points) {
        report.findings.push(format!(
            "Each further stream costs the producer {each:.3} µs of CPU per cookie, accepting and encoding {base:.2} µs (a line through \
             all steps)."
        ));
    }
    report.plots = vec![Plot {
        x: "streams".to_owned(),
        ..Plot::over_time("CPU of the producer", "µs a cookie", cpu)
    }];
    let note = "Delivery is from the edge to the reader, where the call tells; what is lost of get-cookies is what is missing of \
                accepted × streams.";
    report.add("Steps", note, rows);
    Ok(report)
}

/// What one number of streams took.
struct FanOutStep {
    load: load::LoadOutcome,
    readers: SubscribeOutcome,
    /// Cookies in the producer's log.
    appended: u64,
    /// CPU time of the producer, from the start of the load until everything was delivered.
    cpu: Duration,
    memory: Memory,
}

impl FanOutStep {
    /// Runs one step; the producer is gone when this has ended or is dropped.
    async fn run(
        args: &SubscribeArgs,
        streams: NonZeroUsize,
        programs: &Programs,
        dir: &Path,
        stop: &CancellationToken,
    ) -> Result<Self> {
        // In memory, as the record of a producer must be, and removed with the directory.
        let records = TempDir::new_in("/dev/shm").context("no directory in memory")?;
        let launch = Launch {
            program: &programs.producer,
            name: "producer".to_owned(),
            addresses: Addresses::free()?,
            dir,
            flags: vec![format!("--state={}", records.path().display())],
        };
        let mut producer = launch.start()?;
        producer.wait_ready(READY_TIMEOUT).await?;
        let traffic = Traffic::new(fastrand::u64(..), None);
        let plan = Plan {
            connections: NonZeroUsize::new(32).unwrap_or(NonZeroUsize::MIN),
            pipeline: NonZeroUsize::new(16),
            duration: Some(args.duration.unwrap_or(DURATION_DEFAULT)),
            rate: args.fan_out.rate,
            keeps_history: false,
            ..Plan::new(format!("http://{}/", producer.http).parse()?, traffic)
        };
        let of_readers = SubscribeArgs {
            producer: format!("http://{}", producer.grpc),
            streams,
            duration: None,
            once: true,
            ..args.clone()
        };
        let (opened, are_open) = oneshot::channel();
        let reading = super::run(&of_readers, stop, || {
            // When nobody listens any more, the step has failed.
            opened.send(()).ok();
        });
        let driving = async move {
            are_open.await.context("the streams did not open")?;
            let before = ProducerSample::at(&producer).await?;
            let load = load::run(&plan, stop).await?;
            let after = caught_up(&producer, streams.get() as u64).await?;
            let memory = Memory::of(producer.process.id()).context("the producer is gone")?;
            let status = producer.process.stop(STOP_TIMEOUT).await?;
            ensure!(
                status.success(),
                "the producer did not drain ({status}): {}",
                producer.process.last_lines(5)
            );
            let cpu = after.cpu.saturating_sub(before.cpu);
            Ok((load, after.appended - before.appended, cpu, memory))
        };
        let (readers, driven) = tokio::join!(reading, driving);
        let (readers, (load, appended, cpu, memory)) = (readers?, driven?);
        Ok(Self {
            load,
            readers,
            appended,
            cpu,
            memory,
        })
    }

    /// Of the producer, for each cookie.
    fn cpu_micros(&self) -> f64 {
        micros_per(self.cpu.as_secs_f64(), self.appended)
    }

    /// Cookies for all streams.
    fn due(&self) -> u64 {
        self.appended * self.readers.args.streams.get() as u64
    }

    /// Cookies not delivered, over all streams: declared by the producer, or where the call has no sequences what is missing.
    fn lost(&self) -> u64 {
        if self.readers.knows_lost() {
            self.readers.total.lost
        } else {
            self.due().saturating_sub(self.readers.total.received)
        }
    }

    fn failures(&self) -> Vec<String> {
        let mut failures = self.load.report().failures;
        failures.extend(self.readers.report().failures);
        let accepted = self.load.counts.accepted;
        let delivered = self.readers.total.received + self.lost();
        for (what, count, expected) in [
            ("cookies are in the log", self.appended, accepted),
            (
                "cookies were delivered or declared lost",
                delivered,
                self.due(),
            ),
        ] {
            if count != expected {
                let (count, expected) = (grouped(count), grouped(expected));
                failures.push(format!("{count} of {expected} {what}"));
            }
        }
        failures
    }

    fn row(&self, name: String) -> Row {
        let (load, read) = (&self.load, &self.readers.total);
        let accepted = per_second(load.counts.accepted, load.seconds);
        let deliveries = per_second(read.received, read.seconds());
        let each_delivery = micros_per(self.cpu.as_secs_f64(), read.received);
        let (shown, compared) = (["p50", "p99"], ["p50", "p99"]);
        let measurements = [
            COUNT.of("requests sent", load.counts.sent),
            RATE.of("accepted", accepted).higher(),
            Measurement::text("load limited by", load.generator.limited_by.name()),
            COUNT.of("appended", self.appended),
            COUNT.of("delivered", read.received),
            RATE.of("deliveries", deliveries)
                .higher()
                .with_samples(whole_seconds(&read.by_second)),
            COUNT.of("lost", self.lost()).lower(),
            CPU.of("producer CPU per cookie", self.cpu_micros()).lower(),
            CPU.of("producer CPU per delivery", each_delivery).lower(),
            MEBIBYTES.of("memory", self.memory.peak_bytes).lower(),
        ];
        let delivery = read.delivery_micros.percentiles();
        Row::new(name, measurements)
            .with(MILLIS.percentiles("request ", load.latency_micros, &shown, &compared))
            .with(MILLIS.percentiles("delivery ", delivery, &shown, &compared))
    }
}

/// A look at the producer.
struct ProducerSample {
    cpu: Duration,
    appended: u64,
    /// Handed to streams, or declared lost.
    settled: u64,
    connected: u64,
}

impl ProducerSample {
    async fn at(producer: &Producer) -> Result<Self> {
        let metrics = admin::metrics(&producer.admin).await?;
        let count = |name| metrics.count(name, &[]);
        Ok(Self {
            cpu: cpu::of(producer.process.id()).unwrap_or_default(),
            appended: count(names::APPENDED),
            settled: count(names::DELIVERED) + count(names::SUBSCRIBER_LOST),
            connected: count(names::SUBSCRIBER_CONNECTED),
        })
    }
}

/// Waits until every stream was handed all there is, or told that it will not get it.
async fn caught_up(producer: &Producer, streams: u64) -> Result<ProducerSample> {
    let deadline = Instant::now() + CATCH_UP_TIMEOUT;
    loop {
        let look = ProducerSample::at(producer).await?;
        // A stream that has broken gets nothing more: what it missed is then found to be missing.
        if look.settled >= look.appended * streams || look.connected < streams {
            return Ok(look);
        }
        ensure!(
            Instant::now() < deadline,
            "the streams are still behind after {CATCH_UP_TIMEOUT:?}"
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
