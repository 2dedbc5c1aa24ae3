//! One run: starts a broker and its subscribers, publishes a load, and measures the delivery.

use std::{env, num::NonZeroU64, path::Path, pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail};
use launcher::programs::Process;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::{
    broker::Broker,
    count::Counts,
    publisher::Load,
    reader::LINE_INTERVAL,
    report::{Step, Stopped},
    server::Server,
};

/// Maximum time for subscribers to connect on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Missing cookies count as lost after this time without a delivery. No server delays messages for this long.
const QUIET: Duration = Duration::from_secs(3);

/// Maximum time for the delivery of a backlog.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// Time of publishing before one subscriber is stopped.
const BEFORE_STOP: Duration = Duration::from_secs(2);

/// Time of publishing before and after the stop.
pub(crate) const AROUND_STOP: Duration = Duration::from_secs(5);

/// Parameters of a run.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) broker: Broker,
    pub(crate) subscribers: usize,
    pub(crate) load: Load,
    /// Duration of the stop of an additional subscriber; zero starts none.
    pub(crate) stopped_for: Duration,
    /// Maximum cookies kept for a subscriber.
    pub(crate) keep: NonZeroU64,
    pub(crate) bin_dir: &'a Path,
}

impl Run<'_> {
    /// Performs the run with a server whose state is in `dir`.
    ///
    /// # Errors
    /// The server, the load or a subscriber process failed.
    pub(crate) async fn measure(&self, dir: &Path) -> Result<Step> {
        let keep = self.keep.get();
        let mut server = self.broker.start(self.bin_dir, dir, keep).await?;
        let mut readers = vec![
            self.readers("readers", &server, self.subscribers, dir)
                .await?,
        ];
        if !self.stopped_for.is_zero() {
            readers.push(self.readers("stopped", &server, 1, dir).await?);
        }
        let mut monitor = Monitor::new(&mut server)?;
        let to = server.publish_at.clone();
        let mut publishing =
            pin!(
                self.broker
                    .publish(self.load, &to, self.keep, self.bin_dir, dir)
            );
        let published = loop {
            tokio::select! {
                published = &mut publishing => break published?,
                () = sleep(SAMPLE_INTERVAL) => {
                    monitor.sample(&mut server, &readers)?;
                    if let Some(stopped) = readers.get_mut(1) {
                        monitor.stop_and_continue(stopped, self.stopped_for)?;
                    }
                }
            }
        };
        let expected = published.cookies * self.subscribers as u64;
        let counts = monitor
            .settle(&mut server, &readers, &[expected, published.cookies])
            .await?;
        let counted_lost = server.counted_lost().await?;
        let cpu_seconds = server.usage()?.cpu_seconds - monitor.cpu_seconds_before;
        server.stop().await;
        let all = counts[0];
        let seconds = monitor
            .delivered_at
            .duration_since(monitor.began)
            .as_secs_f64();
        let stopped = counts.get(1).map(|counts| Stopped {
            seconds: self.stopped_for.as_secs_f64(),
            lost: published.cookies.saturating_sub(counts.delivered()),
            reported_lost: counts.reported_lost,
            disconnects: counts.disconnects,
            memory_before_bytes: monitor.memory_before_bytes,
        });
        let delivered = all.delivered();
        Ok(Step {
            broker: self.broker,
            subscribers: self.subscribers,
            batch: self.load.batch,
            published: published.cookies,
            rejected: published.rejected,
            publish_seconds: published.seconds,
            delivered,
            deliver_seconds: seconds.max(published.seconds),
            lost: expected.saturating_sub(delivered),
            surplus: delivered.saturating_sub(expected),
            reported_lost: all.reported_lost.max(counted_lost),
            repeated: all.repeated,
            unreadable: all.unreadable,
            disconnects: all.disconnects,
            server_cpu_seconds: cpu_seconds,
            server_peak_bytes: monitor.peak_bytes,
            stopped,
        })
    }

    /// Starts a process with `count` subscribers and waits until all are open.
    async fn readers(
        &self,
        name: &str,
        server: &Server,
        count: usize,
        dir: &Path,
    ) -> Result<Process> {
        let args = [
            "reader".to_owned(),
            format!("--broker={}", self.broker),
            format!("--at={}", server.subscribe_at),
            format!("--subscribers={count}"),
            format!("--batch={}", self.load.batch),
        ];
        let log = dir.join(format!("{name}.log"));
        let mut process = Process::start(name, &env::current_exe()?, &args, &log)?;
        let began = Instant::now();
        while latest(&process).is_err() {
            process.check()?;
            if began.elapsed() > READY_TIMEOUT {
                bail!("{name}: not ready after {READY_TIMEOUT:?}");
            }
            sleep(SAMPLE_INTERVAL).await;
        }
        Ok(process)
    }
}

/// The latest counts written by a reader process.
fn latest(reader: &Process) -> Result<Counts> {
    let lines = reader.last_lines(2);
    // The last line may be incomplete.
    let counts = lines
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok());
    counts.with_context(|| format!("{}: {lines}", reader.name()))
}

/// Observations during a run.
struct Monitor {
    began: Instant,
    cpu_seconds_before: f64,
    /// Memory when the subscriber was stopped.
    memory_before_bytes: u64,
    peak_bytes: u64,
    resident_bytes: u64,
    received: u64,
    /// Time of the last delivery.
    delivered_at: Instant,
    phase: StopPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopPhase {
    Before,
    Stopped,
    After,
}

impl Monitor {
    fn new(server: &mut Server) -> Result<Self> {
        let usage = server.usage()?;
        Ok(Self {
            began: Instant::now(),
            cpu_seconds_before: usage.cpu_seconds,
            memory_before_bytes: 0,
            peak_bytes: usage.peak_bytes,
            resident_bytes: usage.resident_bytes,
            received: 0,
            delivered_at: Instant::now(),
            phase: StopPhase::Before,
        })
    }

    /// Samples the server and its subscribers; returns the counts of the subscribers.
    fn sample(&mut self, server: &mut Server, readers: &[Process]) -> Result<Vec<Counts>> {
        let usage = server.usage()?;
        (self.resident_bytes, self.peak_bytes) = (usage.resident_bytes, usage.peak_bytes);
        let counts = readers.iter().map(latest).collect::<Result<Vec<_>>>()?;
        let received = counts.iter().map(|counts| counts.received).sum();
        if received != self.received {
            (self.received, self.delivered_at) = (received, Instant::now());
        }
        Ok(counts)
    }

    /// Suspends the subscriber and resumes it when due.
    fn stop_and_continue(&mut self, subscriber: &mut Process, stopped_for: Duration) -> Result<()> {
        let elapsed = self.began.elapsed();
        if self.phase == StopPhase::Before && elapsed >= BEFORE_STOP {
            self.memory_before_bytes = self.resident_bytes;
            subscriber.signal(Signal::STOP)?;
            self.phase = StopPhase::Stopped;
        }
        if self.phase == StopPhase::Stopped && elapsed >= BEFORE_STOP + stopped_for {
            subscriber.signal(Signal::CONT)?;
            self.phase = StopPhase::After;
        }
        Ok(())
    }

    /// Waits until each reader process counts its `expected` cookies as received or lost, or until deliveries stop; returns the
    /// final counts.
    async fn settle(
        &mut self,
        server: &mut Server,
        readers: &[Process],
        expected: &[u64],
    ) -> Result<Vec<Counts>> {
        let began = Instant::now();
        while began.elapsed().min(self.delivered_at.elapsed()) < QUIET
            && began.elapsed() < SETTLE_TIMEOUT
        {
            let counts = self.sample(server, readers)?;
            let has_all = |(counts, expected): (&Counts, &u64)| {
                counts.delivered() + counts.reported_lost >= *expected
            };
            if counts.iter().zip(expected).all(has_all) {
                break;
            }
            sleep(SAMPLE_INTERVAL).await;
        }
        // Surplus deliveries appear in the next lines.
        sleep(2 * LINE_INTERVAL).await;
        self.sample(server, readers)
    }
}
