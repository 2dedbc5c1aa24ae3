//! Recovery of cookies that the streams did not deliver, from an archive.
//!
//! A subscription finds a [hole](Hole) in its stream: a gap, or the end of an epoch that it has not received. The collector opens it, and from then on holds the [cursors](HeldCursors) of the
//! producer before it, so that a restarted consumer finds it again. The recoverer reads the archive and passes the missing cookies to the
//! collector, and then closes the hole. Cookies that the archive does not have become lost only then.
//!
//! Live cookies have priority: the collector takes recovered ones only while its buffer is empty and its batch is smaller than what the
//! store writes in 50 ms. A live cookie thus waits for at most two such writes, and a store that is busy with live cookies gets no
//! others.
//!
//! Cookies of a producer that has been absent for a minute are also read from the archive. They advance its cursor, as if the
//! stream had delivered them.
//!
//! With `--archive-mode follow`, a [`Follower`] reads everything from the archive, in place of subscriptions.
//!
//! The recoverer holds one read of the archive (about 2 MiB) in memory. It takes turns between the open holes, with one read each, so that
//! a hole that the archive does not have yet delays no other.

pub mod archive;
mod cursors;
mod cut;
mod follower;
mod following;
mod hole;
mod intervals;
#[cfg(feature = "archive")]
mod nats;
#[cfg(not(feature = "archive"))]
#[path = "recovery/no_nats.rs"]
mod nats;
mod reader;
mod recoverer;
mod status;

use std::sync::Arc;

use proto::wire::ChunkRef;
use tokio::sync::mpsc;

use self::archive::Archive;
pub use self::{
    cursors::{HeldCursors, HoleId},
    follower::{Follower, Parts},
    hole::{Counts, Hole, LossReason},
    nats::{Nats, NodeReports},
    recoverer::Recoverer,
    status::Status,
};
use crate::{
    batch::{Batch, Cursor},
    metrics,
    producers::Producers,
};

/// Maximum number of open holes. A subscriber that is too slow has a gap in almost every message.
const HOLES_MAX: usize = 1024;

/// Maximum number of chunks between the recoverer and the collector.
const CHUNKS_MAX: usize = 4;

/// What the recoverer passes to the collector, in the order of the archive.
#[derive(Debug)]
pub enum Recovered {
    /// Cookies of a hole of this producer.
    Chunk(Arc<str>, ChunkRef),
    /// All recovered cookies of this hole were passed.
    Closed(HoleId),
    /// The positions of an absent producer before and after the cookies that were passed.
    Advanced(Cursor, Cursor),
}

/// The end of the collector. Idle without an archive.
#[derive(Debug)]
pub struct Intake {
    holes: mpsc::Sender<(HoleId, Hole)>,
    recovered: mpsc::Receiver<Recovered>,
    held: HeldCursors,
    /// Number of holes so far.
    found: u64,
    status: Status,
    metrics: metrics::Subscription,
}

/// Creates the task, if there is an archive, and the end of the collector. `is_following` if a [`Follower`] reads the archive, too.
pub fn recovery(
    archive: Option<Box<dyn Archive>>,
    is_following: bool,
    metrics: &metrics::Subscription,
    producers: &Producers,
) -> (Option<Recoverer>, Intake) {
    let (opening, holes) = mpsc::channel(HOLES_MAX);
    let (passing, recovered) = mpsc::channel(CHUNKS_MAX);
    let status = archive.as_ref().map(|_| Status::begin(is_following));
    let status = status.unwrap_or_default();
    let intake = Intake {
        holes: opening,
        recovered,
        held: HeldCursors::default(),
        found: 0,
        status: status.clone(),
        metrics: metrics.clone(),
    };
    let recoverer = archive.map(|archive| {
        let (metrics, producers) = (metrics.clone(), producers.clone());
        Recoverer::new(archive, holes, passing, status, metrics, producers)
    });
    (recoverer, intake)
}

impl Intake {
    /// The status, for subscriptions, metrics and pages.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Opens a hole; from now on, [`hold`](Self::hold) holds the cursors of its producer.
    pub fn open(&mut self, hole: Hole) {
        self.found += 1;
        let (id, cookies) = (HoleId(self.found), hole.cookies());
        if self.held.open_holes() >= HOLES_MAX {
            let lost = Counts::unavailable(cookies);
            self.status.refused(cookies, &lost);
            self.metrics.add_unrecovered(lost.lost_by_reason());
            let (producer, epoch, (first, last)) = (
                &*hole.producer,
                hole.epoch.0,
                hole.range.clone().into_inner(),
            );
            tracing::debug!(
                producer,
                epoch,
                first,
                last,
                lost = cookies,
                "hole not recovered, because too many others are open"
            );
            if let Some(restart) = &hole.restart {
                restart.report(&self.metrics, 0);
            }
            return;
        }
        self.status.open(id, &hole);
        self.held.open(id, &hole);
        // The number of open holes is limited to the capacity. If the task has ended, so will this process.
        drop(self.holes.try_send((id, hole)));
    }

    /// Sets the cursors of a batch back to the first open hole of each producer.
    pub fn hold(&mut self, batch: &mut Batch) {
        self.held.hold(batch);
    }

    /// Closes a hole, whose recovered cookies are in this batch or in earlier ones.
    pub fn close(&mut self, id: HoleId, batch: &mut Batch) {
        self.held.close(id, batch);
    }

    /// The next item; `None` if there is no archive, or the recoverer has ended.
    pub async fn next(&mut self) -> Option<Recovered> {
        self.recovered.recv().await
    }
}

#[cfg(test)]
mod tests;
