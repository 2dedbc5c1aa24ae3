//! `bench subscribe --fan-out 1,50`: cost of each additional stream for a producer.
//!
//! Each step starts a producer; this process reads all streams and sends the load. At the end of a step, the load stops, all
//! streams catch up, the producer drains, and the readers reach the end of their streams. Every cookie is then either read or
//! declared lost.

use std::{collections::BTreeSet, fs, num::NonZeroUsize, path::Path, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use tempfile::TempDir;
use testkit::{
    memory::Memory,
    numbers::{grouped, per_second},
    observe::{Observer, ProcessSample, Role, Target},
    producer::{Addresses, Launch},
    programs::find,
    scrape::names,
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    args::SubscribeArgs,
    streams::{self, SubscribeOutcome},
};
use crate::{
    load::{self, Plan},
    report::{
        Report, Row, micros_per, plural,
        unit::{COUNT, CPU, MEBIBYTES, MILLIS, RATE},
    },
    traffic::Traffic,
};

const DURATION_DEFAULT: Duration = Duration::from_secs(5);
const STREAMS_MAX: usize = 10_000;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long streams may take to catch up after the load: with a full log, on a busy machine.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(300);
/// Longer than the drain timeout of the producer.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs all steps until `stop` or the first failure, which is reported.
///
/// # Errors
/// The arguments are invalid, or the programs cannot be found or built.
pub async fn run(args: &SubscribeArgs, stop: &CancellationToken) -> Result<Report> {
    let mut numbers = BTreeSet::new();
    for number in &args.fan_out {
        ensure!(numbers.insert(number), "--fan-out contains {number} twice");
        ensure!(
            number.get() <= STREAMS_MAX,
            "--fan-out: the maximum is {STREAMS_MAX}"
        );
    }
    let [program] = tokio::task::spawn_blocking(|| find(["producer"])).await??;
    let dir = tempfile::tempdir().context("failed to create a directory for the logs")?;
    let title = format!("Cost of {:?} streams", args.call);
    let mut report = Report::new("fan-out", &title);
    let began = Instant::now();
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for number in &args.fan_out {
        let name = plural(number.get(), "stream");
        let dir = dir.path().join(number.to_string());
        fs::create_dir(&dir).context("failed to create a directory for the logs")?;
        let step = tokio::select! {
            step = FanOutStep::run(args, *number, &program, &dir, stop) => step,
            () = stop.cancelled() => {
                report.findings.push("The run was interrupted.".to_owned());
                break;
            }
        };
        match step {
            Ok(step) => {
                eprintln!("{name}: {:.3} µs per cookie", step.cpu_micros());
                let failures = step.failures();
                report
                    .failures
                    .extend(failures.iter().map(|failure| format!("{name}: {failure}")));
                points.push((number.get() as f64, step.cpu_micros()));
                rows.push(step.row(name));
            }
            // Keeps the results of the previous steps.
            Err(error) => {
                let failure = format!("{name}: {error:#}");
                report.failures.push(failure);
                break;
            }
        }
    }
    report.seconds = began.elapsed().as_secs_f64();
    if let Some((base, each)) = linear_fit(&points) {
        report.findings.push(format!(
            "Each additional stream costs the producer {each:.3} µs of CPU per cookie; accepting and encoding cost {base:.2} µs (linear fit)."
        ));
    }
    let note = "CPU time and memory are those of the producer. Delivery: latency from the edge to the reader (subscribe only). Losses of get-cookies: accepted × streams - delivered.";
    report.add("Steps", note, rows);
    Ok(report)
}

/// Results for one number of streams.
struct FanOutStep {
    load: load::LoadOutcome,
    readers: SubscribeOutcome,
    /// Cookies in the log of the producer.
    appended: u64,
    /// CPU time of the producer from the start of the load until all streams caught up.
    cpu: Duration,
    memory: Memory,
}

impl FanOutStep {
    /// Runs one step. Dropping the future ends the producer.
    async fn run(
        args: &SubscribeArgs,
        streams: NonZeroUsize,
        program: &Path,
        dir: &Path,
        stop: &CancellationToken,
    ) -> Result<Self> {
        // The directory of the epoch history must be in memory.
        let state =
            TempDir::new_in("/dev/shm").context("failed to create a directory in /dev/shm")?;
        let launch = Launch {
            program,
            name: "producer".to_owned(),
            addresses: Addresses::free()?,
            dir,
            flags: vec![format!("--state={}", state.path().display())],
        };
        let mut producer = launch.start()?;
        producer.wait_ready(READY_TIMEOUT).await?;
        let traffic = Traffic::new(fastrand::u64(..), None);
        let plan = Plan {
            connections: NonZeroUsize::new(32).unwrap_or(NonZeroUsize::MIN),
            pipeline: NonZeroUsize::new(16),
            duration: Some(args.duration.unwrap_or(DURATION_DEFAULT)),
            rate: args.rate,
            keeps_history: false,
            ..Plan::new(format!("http://{}/", producer.http).parse()?, traffic)
        };
        let of_readers = SubscribeArgs {
            producer: format!("http://{}", producer.grpc),
            streams,
            duration: None,
            ..args.clone()
        };
        let (opened, are_open) = oneshot::channel();
        let reading = streams::run(&of_readers, stop, || {
            // A closed channel means that the step has failed.
            opened.send(()).ok();
        });
        let driving = async move {
            are_open.await.context("the streams did not open")?;
            let mut observer = Observer::default();
            let targets = [Target {
                role: Role::Producer,
                name: producer.process.name().to_owned(),
                process_id: producer.process.id(),
                admin: Some(producer.admin.clone()),
            }];
            let before = observer.observe(&targets).await.processes[0].clone();
            let load = load::run(&plan, stop).await?;
            let after = wait_caught_up(&mut observer, &targets, streams.get() as u64).await?;
            producer.process.drain(STOP_TIMEOUT).await?;
            anyhow::Ok((load, before, after))
        };
        let (readers, driven) = tokio::join!(reading, driving);
        let (readers, (load, before, after)) = (readers?, driven?);
        Ok(Self {
            load,
            readers,
            appended: after.counts.since(&before.counts).of(names::APPENDED),
            cpu: after.cpu.saturating_sub(before.cpu),
            memory: after.memory,
        })
    }

    /// CPU time of the producer per cookie.
    fn cpu_micros(&self) -> f64 {
        micros_per(self.cpu.as_secs_f64(), self.appended)
    }

    /// Cookies to deliver over all streams.
    fn due(&self) -> u64 {
        self.appended * self.readers.args.streams.get() as u64
    }

    /// Lost cookies over all streams: those declared by the producer, or missing ones if the call has no sequence numbers.
    fn lost(&self) -> u64 {
        if self.readers.detects_loss() {
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
        for (kind, count, expected) in [
            ("cookies are in the log", self.appended, accepted),
            (
                "cookies were delivered or declared lost",
                delivered,
                self.due(),
            ),
        ] {
            if count != expected {
                let (count, expected) = (grouped(count), grouped(expected));
                failures.push(format!("{count} of {expected} {kind}"));
            }
        }
        failures
    }

    fn row(&self, name: String) -> Row {
        let (load, read) = (&self.load, &self.readers.total);
        let accepted = per_second(load.counts.accepted, load.seconds);
        let deliveries = per_second(read.received, read.seconds());
        let each_delivery = micros_per(self.cpu.as_secs_f64(), read.received);
        let shown = ["p50", "p99"];
        let measurements = [
            COUNT.of("requests sent", load.counts.sent),
            RATE.of("accepted", accepted),
            COUNT.of("appended", self.appended),
            COUNT.of("delivered", read.received),
            RATE.of("deliveries", deliveries),
            COUNT.of("lost", self.lost()),
            CPU.of("producer CPU per cookie", self.cpu_micros()),
            CPU.of("CPU per delivery", each_delivery),
            MEBIBYTES.of("memory", self.memory.peak_bytes),
        ];
        let delivery = read.delivery_micros.percentiles();
        Row::new(name, measurements)
            .with(MILLIS.percentiles("request ", load.latency_micros, &shown))
            .with(MILLIS.percentiles("delivery ", delivery, &shown))
    }
}

/// Waits until every cookie was passed to all streams or declared lost.
async fn wait_caught_up(
    observer: &mut Observer,
    targets: &[Target],
    streams: u64,
) -> Result<ProcessSample> {
    let began = Instant::now();
    loop {
        let sample = observer.observe(targets).await.processes[0].clone();
        let of = |metric| sample.counts.of(metric);
        let settled = of(names::DELIVERED) + of(names::SUBSCRIBER_LOST);
        // A broken stream receives nothing more; its cookies are then reported as missing.
        let is_broken = of(names::SUBSCRIBER_CONNECTED) < streams;
        // A producer that does not respond keeps its previous sample.
        if sample.at >= began && (settled >= of(names::APPENDED) * streams || is_broken) {
            let unbalanced = observer.unbalanced().next();
            return unbalanced.map_or(Ok(sample), |error| Err(anyhow!(error)));
        }
        ensure!(
            began.elapsed() < CATCH_UP_TIMEOUT,
            "streams did not catch up within {CATCH_UP_TIMEOUT:?}"
        );
        sleep(POLL_INTERVAL).await;
    }
}

/// Intercept and slope of a linear least-squares fit; `None` with fewer than two distinct points.
fn linear_fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
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
    fn cost_of_a_stream_is_the_slope() {
        assert_eq!(linear_fit(&[(1.0, 2.0), (3.0, 6.0)]), Some((0.0, 2.0)));
        assert_eq!(linear_fit(&[(1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(linear_fit(&[]), None);
    }
}
