//! What a step and the stopped subscriber have in common: a server of its own, its subscribers, a publisher.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    broker::Broker, child::Child, found::Found, peer::Peer, publisher::PublisherLine,
    seen::ReaderLine,
};

/// How long subscribers may take to be ready, on a busy machine.
const READY_PATIENCE: Duration = Duration::from_secs(60);

/// What is lost when nothing has come for so long: more than any of these servers holds back on purpose.
pub(super) const QUIET: Duration = Duration::from_secs(3);

/// How long a backlog may take to arrive; after a Ctrl-C, only as long as [`QUIET`].
pub(super) const SETTLE_PATIENCE: Duration = Duration::from_secs(120);

/// How often everything is looked at.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A peer, and with what it is run.
pub(super) struct Scene<'a> {
    pub(super) peer: Peer,
    pub(super) found: &'a Found,
    /// New for each scene.
    pub(super) folder: PathBuf,
    /// Cookies a message.
    pub(super) batch: u32,
    /// Most cookies kept for a subscriber.
    pub(super) keep: u64,
    pub(super) seed: u64,
    pub(super) stop: &'a CancellationToken,
}

impl Scene<'_> {
    /// Starts the server.
    pub(super) async fn broker(&self) -> Result<Broker> {
        let started = self.found.start(self.peer, &self.folder, self.keep);
        tokio::select! {
            started = started => started,
            () = self.stop.cancelled() => anyhow::bail!("interrupted"),
        }
    }

    /// Starts a process of `count` subscribers and waits until all are open.
    pub(super) async fn readers(
        &self,
        name: &'static str,
        broker: &Broker,
        count: usize,
    ) -> Result<Child<ReaderLine>> {
        let args = [
            "peers-reader".to_owned(),
            format!("--peer={}", self.peer.name()),
            format!("--at={}", broker.subscribers()),
            format!("--subscribers={count}"),
            format!("--batch={}", self.batch),
            format!("--keep={}", self.keep),
        ];
        let mut readers = Child::start(name, &args, &self.folder)?;
        readers.first(READY_PATIENCE).await?;
        Ok(readers)
    }

    /// Starts to publish.
    pub(super) fn publisher(
        &self,
        broker: &Broker,
        rate: Option<NonZeroU64>,
        duration: Duration,
    ) -> Result<Child<PublisherLine>> {
        let mut args = vec![
            "peers-publisher".to_owned(),
            format!("--peer={}", self.peer.name()),
            format!("--to={}", broker.publishers()),
            format!("--batch={}", self.batch),
            format!("--duration={}", humantime::format_duration(duration)),
            format!("--keep={}", self.keep),
            format!("--seed={}", self.seed),
        ];
        args.extend(rate.map(|rate| format!("--rate={rate}")));
        Child::start("publisher", &args, &self.folder)
    }

    /// Waits until `readers` have had or been denied `expected` cookies each, or nothing comes any more; calls
    /// `look` meanwhile.
    pub(super) async fn settle(
        &self,
        readers: &[(&Child<ReaderLine>, u64)],
        mut look: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let began = Instant::now();
        let (mut moved_at, mut moved) = (began, 0);
        while moved_at.elapsed() < QUIET && began.elapsed() < SETTLE_PATIENCE {
            if self.stop.is_cancelled() && began.elapsed() > QUIET {
                break;
            }
            look()?;
            let (mut sum, mut all_done) = (0, true);
            for (reader, expected) in readers {
                let line = reader.newest().context("they were ready")?;
                sum += line.received;
                all_done &= line.delivered() + line.told_lost >= *expected;
            }
            if all_done {
                break;
            }
            if sum != moved {
                (moved_at, moved) = (Instant::now(), sum);
            }
            sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }
}
