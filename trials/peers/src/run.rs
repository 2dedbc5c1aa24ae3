//! One run: one system with a server of its own, its subscribers, and a load.

use std::{env, num::NonZeroU64, path::Path, pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail};
use launcher::programs::Process;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::{
    count::Counts,
    nats, ours,
    peer::{Peer, Server},
    publisher::{Load, Published, publish},
    reader::LINE_INTERVAL,
    redis,
    report::{Step, Stopped},
};

/// How long subscribers may take to be ready, on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// What is missing when nothing has come for so long is lost: more than any of these servers holds back on purpose.
const QUIET: Duration = Duration::from_secs(3);

/// How long a backlog may take to arrive.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// How often everything is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How long is published before one subscriber is stopped.
const BEFORE_STOP: Duration = Duration::from_secs(2);

/// How long is published before and after the stop.
pub(crate) const AROUND_STOP: Duration = Duration::from_secs(5);

/// What is run.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) peer: Peer,
    pub(crate) subscribers: usize,
    /// Cookies a message.
    pub(crate) batch: u32,
    pub(crate) rate: Option<NonZeroU64>,
    pub(crate) duration: Duration,
    /// How long one more subscriber is stopped; zero starts none.
    pub(crate) stopped_for: Duration,
    /// Maximum of cookies kept for a subscriber.
    pub(crate) keep: NonZeroU64,
    pub(crate) bin_dir: &'a Path,
}

impl Run<'_> {
    /// Runs it on a server that has its state in `dir`.
    ///
    /// # Errors
    /// When the server, its load or its subscribers break off.
    pub(crate) async fn measure(&self, dir: &Path) -> Result<Step> {
        let keep = self.keep.get();
        let mut server = self.peer.start(self.bin_dir, dir, keep).await?;
        let mut readers = vec![
            self.readers("readers", &server, self.subscribers, dir)
                .await?,
        ];
        if !self.stopped_for.is_zero() {
            readers.push(self.readers("stopped", &server, 1, dir).await?);
        }
        let mut watch = Watch::new(&mut server)?;
        let to = server.publish_at.clone();
        let mut publishing = pin!(self.publish(&to, dir));
        let published = loop {
            tokio::select! {
                published = &mut publishing => break published?,
                () = sleep(LOOK_INTERVAL) => {
                    watch.look(&mut server, &readers)?;
                    if let Some(stopped) = readers.get_mut(1) {
                        watch.stop_and_continue(stopped, self.stopped_for)?;
                    }
                }
            }
        };
        let expected = published.cookies * self.subscribers as u64;
        let counts = watch
            .settle(&mut server, &readers, &[expected, published.cookies])
            .await?;
        let counted_lost = server.counted_lost().await?;
        let cpu_seconds = server.usage()?.cpu_seconds - watch.cpu_seconds_before;
        server.stop().await;
        let all = counts[0];
        let seconds = watch.moved_at.duration_since(watch.began).as_secs_f64();
        let stopped = counts.get(1).map(|counts| Stopped {
            seconds: self.stopped_for.as_secs_f64(),
            lost: published.cookies.saturating_sub(counts.delivered()),
            told_lost: counts.told_lost,
            disconnects: counts.disconnects,
            memory_before_bytes: watch.memory_before_bytes,
        });
        let delivered = all.delivered();
        Ok(Step {
            peer: self.peer,
            subscribers: self.subscribers,
            batch: self.batch,
            published: published.cookies,
            refused: published.refused,
            publish_seconds: published.seconds,
            delivered,
            deliver_seconds: seconds.max(published.seconds),
            lost: expected.saturating_sub(delivered),
            surplus: delivered.saturating_sub(expected),
            told_lost: all.told_lost.max(counted_lost),
            repeated: all.repeated,
            unreadable: all.unreadable,
            disconnects: all.disconnects,
            server_cpu_seconds: cpu_seconds,
            server_peak_bytes: watch.peak_bytes,
            stopped,
        })
    }

    /// Starts a process of `count` subscribers and waits until all are open.
    async fn readers(
        &self,
        name: &str,
        server: &Server,
        count: usize,
        dir: &Path,
    ) -> Result<Process> {
        let args = [
            "reader".to_owned(),
            format!("--peer={}", self.peer),
            format!("--at={}", server.subscribe_at),
            format!("--subscribers={count}"),
            format!("--batch={}", self.batch),
        ];
        let log = dir.join(format!("{name}.log"));
        let mut process = Process::start(name, &env::current_exe()?, &args, &log)?;
        let began = Instant::now();
        while newest(&process).is_err() {
            process.check()?;
            if began.elapsed() > READY_TIMEOUT {
                bail!("the {name} are not ready after {READY_TIMEOUT:?}");
            }
            sleep(LOOK_INTERVAL).await;
        }
        Ok(process)
    }

    async fn publish(&self, to: &str, dir: &Path) -> Result<Published> {
        let load = Load {
            batch: self.batch,
            rate: self.rate,
            duration: self.duration,
        };
        match self.peer {
            Peer::Ours => ours::publish(self.bin_dir, to, load, dir).await,
            Peer::Nats => publish(load, || nats::Publisher::connect(to)).await,
            Peer::RedisPubsub => publish(load, || redis::channel_publisher(to)).await,
            Peer::RedisStreams => {
                let connect = || redis::stream_publisher(to, self.keep.get(), self.batch);
                publish(load, connect).await
            }
        }
    }
}

/// The newest counts that a process of subscribers wrote.
fn newest(reader: &Process) -> Result<Counts> {
    let lines = reader.last_lines(2);
    // The last line may not be complete.
    let counts = lines
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok());
    counts.with_context(|| format!("{}: {lines}", reader.name()))
}

/// What is observed during a run.
struct Watch {
    began: Instant,
    cpu_seconds_before: f64,
    /// Memory as the subscriber was stopped.
    memory_before_bytes: u64,
    peak_bytes: u64,
    resident_bytes: u64,
    received: u64,
    /// When cookies last arrived.
    moved_at: Instant,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    Stopped,
    After,
}

impl Watch {
    fn new(server: &mut Server) -> Result<Self> {
        let usage = server.usage()?;
        Ok(Self {
            began: Instant::now(),
            cpu_seconds_before: usage.cpu_seconds,
            memory_before_bytes: 0,
            peak_bytes: usage.peak_bytes,
            resident_bytes: usage.resident_bytes,
            received: 0,
            moved_at: Instant::now(),
            phase: Phase::Before,
        })
    }

    /// Looks at the server and its subscribers, and returns what these had so far.
    fn look(&mut self, server: &mut Server, readers: &[Process]) -> Result<Vec<Counts>> {
        let usage = server.usage()?;
        (self.resident_bytes, self.peak_bytes) = (usage.resident_bytes, usage.peak_bytes);
        let counts = readers.iter().map(newest).collect::<Result<Vec<_>>>()?;
        let received = counts.iter().map(|counts| counts.received).sum();
        if received != self.received {
            (self.received, self.moved_at) = (received, Instant::now());
        }
        Ok(counts)
    }

    /// Stops the subscriber and lets it continue when it is time for that.
    fn stop_and_continue(&mut self, subscriber: &mut Process, stopped_for: Duration) -> Result<()> {
        let elapsed = self.began.elapsed();
        if self.phase == Phase::Before && elapsed >= BEFORE_STOP {
            self.memory_before_bytes = self.resident_bytes;
            subscriber.signal(Signal::STOP)?;
            self.phase = Phase::Stopped;
        }
        if self.phase == Phase::Stopped && elapsed >= BEFORE_STOP + stopped_for {
            subscriber.signal(Signal::CONT)?;
            self.phase = Phase::After;
        }
        Ok(())
    }

    /// Waits until each process of subscribers has had or been denied what is `expected` of it, or nothing comes any
    /// more, and returns what each counted.
    async fn settle(
        &mut self,
        server: &mut Server,
        readers: &[Process],
        expected: &[u64],
    ) -> Result<Vec<Counts>> {
        let began = Instant::now();
        while began.elapsed().min(self.moved_at.elapsed()) < QUIET
            && began.elapsed() < SETTLE_TIMEOUT
        {
            let counts = self.look(server, readers)?;
            let has_all = |(counts, expected): (&Counts, &u64)| {
                counts.delivered() + counts.told_lost >= *expected
            };
            if counts.iter().zip(expected).all(has_all) {
                break;
            }
            sleep(LOOK_INTERVAL).await;
        }
        // Whatever came more than was expected is in the next lines.
        sleep(2 * LINE_INTERVAL).await;
        self.look(server, readers)
    }
}
