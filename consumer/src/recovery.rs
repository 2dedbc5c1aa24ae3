//! Recovery of cookies that the streams did not deliver, from an archive.
//!
//! A subscription finds a [hole](Hole) in its stream. The collector opens it, and from then on holds the [cursors](HeldCursors) of the
//! producer before it, so that a restarted consumer finds it again. The recoverer reads the archive and passes the missing cookies to the
//! collector, and then closes the hole. Cookies that the archive does not have become lost only then.
//!
//! Live cookies have priority: the collector takes recovered ones only while its buffer is empty and its batch is not large enough to be
//! written. Recovered cookies thus never enlarge the batch that live cookies wait for beyond that size, and a store that is busy
//! with live cookies gets no others.
//!
//! The recoverer holds one read of the archive (about 2 MiB) in memory. It takes turns between the open holes, with one read each, so that
//! a hole that the archive does not have yet delays no other.

pub mod archive;
mod cursors;
mod cut;
mod hole;
mod intervals;
#[cfg(feature = "archive")]
mod nats;
#[cfg(not(feature = "archive"))]
#[path = "recovery/no_nats.rs"]
mod nats;
mod status;

use std::{sync::Arc, time::Duration};

use proto::{
    archive::Events,
    limits::DELETION_HORIZON_MICROS,
    units::Sequence,
    wire::{ChunkRef, StreamMessage},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

pub(crate) use self::hole::REASONS;
use self::{
    archive::{Archive, ArchiveError, Info, Message},
    hole::{OpenHole, begin},
    status::HOLES_MAX,
};
pub use self::{
    cursors::{HeldCursors, HoleId},
    hole::{Counts, Hole, LossReason},
    nats::Nats,
    status::Status,
};
use crate::{batch::Batch, clock, metrics, producers::Producers};

/// Interval of checks of the archive, and of attempts after an error.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Interval of reads while the archive has nothing new of the open holes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a hole waits for events that are not archived yet.
const ARCHIVE_WAIT: Duration = Duration::from_secs(30);

/// Like [`ARCHIVE_WAIT`], if the archive is a copy of another one. After a cut of ten minutes, a copy was up to 2.5 minutes behind.
const COPY_WAIT: Duration = Duration::from_secs(5 * 60);

/// How long a hole may be open without any progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Minimum time between two log entries about closed holes. Further ones are logged at `debug`; all are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of consecutive messages without a sequence number that a search skips.
const UNNUMBERED_MAX: usize = 16;

/// Maximum number of chunks between the recoverer and the collector.
const CHUNKS_MAX: usize = 4;

/// What the recoverer passes to the collector, in this order for each hole.
#[derive(Debug)]
pub enum Recovered {
    /// Cookies that were missing.
    Chunk(Arc<str>, ChunkRef),
    /// All recovered cookies of this hole were passed.
    Closed(HoleId),
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

/// The task that reads the archive.
#[derive(Debug)]
pub struct Recoverer {
    archive: Box<dyn Archive>,
    holes: mpsc::Receiver<(HoleId, Hole)>,
    recovered: mpsc::Sender<Recovered>,
    open: Vec<Recovering>,
    status: Status,
    metrics: metrics::Subscription,
    producers: Producers,
    logged: Option<Instant>,
}

/// An open hole and its place in the archive.
#[derive(Debug)]
struct Recovering {
    id: HoleId,
    hole: OpenHole,
    /// The next position to read; `None` if it must be searched for.
    position: Option<u64>,
    /// When it was opened, or when the archive last had something new.
    progressed: Instant,
    /// Since when the archive, which can be read, has had nothing new.
    waiting: Option<Instant>,
}

/// The collector has ended.
struct Stopped;

/// Creates the task, if there is an archive, and the end of the collector.
pub fn recovery(
    archive: Option<Box<dyn Archive>>,
    metrics: &metrics::Subscription,
    producers: &Producers,
) -> (Option<Recoverer>, Intake) {
    let (opening, holes) = mpsc::channel(HOLES_MAX);
    let (passing, recovered) = mpsc::channel(CHUNKS_MAX);
    let status = archive.as_ref().map(|_| Status::begin());
    let status = status.unwrap_or_default();
    let intake = Intake {
        holes: opening,
        recovered,
        held: HeldCursors::default(),
        found: 0,
        status: status.clone(),
        metrics: metrics.clone(),
    };
    let recoverer = archive.map(|archive| Recoverer {
        archive,
        holes,
        recovered: passing,
        open: Vec::new(),
        status,
        metrics: metrics.clone(),
        producers: producers.clone(),
        logged: None,
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
        if !self.status.open(id, &hole, cookies) {
            self.metrics.add_unrecovered(&Counts::unavailable(cookies));
            tracing::debug!(%hole, cookies, "cookies lost; too many holes are being recovered");
            return;
        }
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

    /// Whether no hole is open.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// The next item; never if the recoverer has ended.
    pub async fn next(&mut self) -> Recovered {
        match self.recovered.recv().await {
            Some(recovered) => recovered,
            None => std::future::pending().await,
        }
    }
}

impl Recoverer {
    /// Recovers holes until the collector ends, or the future is dropped.
    pub async fn run(mut self) {
        let mut check_at = Instant::now();
        let mut info = None;
        loop {
            if check_at <= Instant::now() {
                info = self.check().await;
                check_at = Instant::now() + CHECK_INTERVAL;
            }
            let mut has_progress = false;
            if let Some(usable) = info {
                match self.turn(&usable).await {
                    Ok(Ok(progress)) => has_progress = progress,
                    Ok(Err(Stopped)) => return,
                    Err(error) => {
                        self.status.checked(&Err(error));
                        info = None;
                        check_at = Instant::now() + CHECK_INTERVAL;
                    }
                }
            }
            if self.close().await.is_err() {
                return;
            }
            let poll_at = match (has_progress, self.open.is_empty()) {
                (true, _) => Instant::now(),
                (false, true) => check_at,
                (false, false) => check_at.min(Instant::now() + POLL_INTERVAL),
            };
            tokio::select! {
                biased;
                opened = self.holes.recv() => match opened {
                    Some((id, hole)) => self.open.push(Recovering::new(id, hole)),
                    None => return,
                },
                () = sleep_until(poll_at) => {}
            }
        }
    }
}

impl Recoverer {
    /// Checks the archive.
    async fn check(&mut self) -> Option<Info> {
        let checked = self.archive.check().await;
        self.status.checked(&checked);
        checked.ok()
    }

    /// Reads once for each hole. Returns whether the archive had anything new.
    async fn turn(&mut self, info: &Info) -> Result<Result<bool, Stopped>, ArchiveError> {
        let mut has_progress = false;
        for at in 0..self.open.len() {
            let messages = match self.read(at, info).await {
                Ok(messages) => messages,
                Err(error) => {
                    // The position may be of a stream that no longer exists.
                    self.open.iter_mut().for_each(|it| it.position = None);
                    return Err(error);
                }
            };
            has_progress |= !messages.is_empty();
            for message in messages {
                if self.apply(at, message).await.is_err() {
                    return Ok(Err(Stopped));
                }
            }
        }
        Ok(Ok(has_progress))
    }

    /// The next messages of a hole.
    async fn read(&mut self, at: usize, info: &Info) -> Result<Vec<Message>, ArchiveError> {
        let subject = self.open[at].hole.origin().subject();
        if self.open[at].position.is_none() {
            self.open[at].position = self.search(at, &subject, info).await?;
        }
        let messages = match self.open[at].position {
            Some(position) => self.archive.read(&subject, position).await?,
            None => Vec::new(),
        };
        let (now, it) = (Instant::now(), &mut self.open[at]);
        if messages.is_empty() {
            let wait = if info.is_copy {
                COPY_WAIT
            } else {
                ARCHIVE_WAIT
            };
            if it.waiting.get_or_insert(now).elapsed() >= wait {
                it.hole.give_up(LossReason::NotArchived);
            }
        } else {
            (it.waiting, it.progressed) = (None, now);
        }
        Ok(messages)
    }

    /// Searches for the last message that begins at or before the first missing number; `None` if the archive has nothing of this epoch.
    async fn search(
        &mut self,
        at: usize,
        subject: &str,
        info: &Info,
    ) -> Result<Option<u64>, ArchiveError> {
        let Some((mut found, first)) = self.numbered(subject, 0).await? else {
            return Ok(None);
        };
        let hole = &mut self.open[at].hole;
        hole.begins_at(first);
        let wanted = hole.first_missing().unwrap_or_default();
        let (mut low, mut high) = (found + 1, info.last_position.saturating_add(1));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.numbered(subject, middle).await? {
                Some((position, number)) if number <= wanted => {
                    (found, low) = (position, position + 1);
                }
                _ => high = middle,
            }
        }
        Ok(Some(found))
    }

    /// The first message from `position` on that has a sequence number.
    async fn numbered(
        &mut self,
        subject: &str,
        mut position: u64,
    ) -> Result<Option<(u64, Sequence)>, ArchiveError> {
        for _ in 0..UNNUMBERED_MAX {
            let Some(message) = self.archive.first(subject, position).await? else {
                return Ok(None);
            };
            let events = events(&message).unwrap_or_default();
            if let Some(number) = events.iter().find_map(begin) {
                return Ok(Some((message.position, number)));
            }
            position = message.position.saturating_add(1);
        }
        Ok(None)
    }

    /// Passes what a hole lacks from a message to the collector.
    async fn apply(&mut self, at: usize, message: Message) -> Result<(), Stopped> {
        let it = &mut self.open[at];
        it.position = Some(message.position.saturating_add(1));
        let accepted_min = clock::now().before(DELETION_HORIZON_MICROS);
        let mut is_rejected = false;
        for event in events(&message).unwrap_or_else(|| {
            is_rejected = true;
            Vec::new()
        }) {
            let Ok(parts) = it.hole.apply(event, accepted_min) else {
                is_rejected = true;
                continue;
            };
            for part in parts {
                let part = Recovered::Chunk(Arc::clone(&it.hole.hole.producer), part);
                self.recovered.send(part).await.map_err(|_| Stopped)?;
            }
        }
        it.progressed = Instant::now();
        self.status.progressed(it.id, &it.hole);
        if is_rejected {
            self.status.rejected();
        }
        Ok(())
    }

    /// Closes the holes that have nothing more to recover.
    async fn close(&mut self) -> Result<(), Stopped> {
        for it in self.open.extract_if(.., |it| {
            if it.progressed.elapsed() >= PROGRESS_TIMEOUT {
                it.hole.give_up(LossReason::Unavailable);
            } else if it.hole.is_read() {
                it.hole.give_up(LossReason::NotArchived);
            }
            it.hole.missing() == 0
        }) {
            let counts = it.hole.counts;
            self.metrics.add_unrecovered(&counts);
            let Hole {
                producer, epoch, ..
            } = &it.hole.hole;
            self.producers
                .add_recovered(producer, *epoch, counts.recovered);
            log_closed(&it.hole.hole, &counts, &mut self.logged);
            self.status.closed(it.id, &counts);
            let closed = Recovered::Closed(it.id);
            self.recovered.send(closed).await.map_err(|_| Stopped)?;
        }
        Ok(())
    }
}

impl Recovering {
    fn new(id: HoleId, hole: Hole) -> Self {
        Self {
            id,
            hole: OpenHole::new(hole),
            position: None,
            progressed: Instant::now(),
            waiting: None,
        }
    }
}

/// The events of a message; `None` if it is invalid, or of another version.
fn events(message: &Message) -> Option<Vec<StreamMessage>> {
    let events = Events::new(message.payload.clone());
    let known = events.filter(|event| !matches!(event, Ok(StreamMessage::Unknown)));
    let known: Vec<_> = known.collect::<Result<_, _>>().ok()?;
    (message.is_known_version && !known.is_empty()).then_some(known)
}

fn log_closed(hole: &Hole, counts: &Counts, logged: &mut Option<Instant>) {
    let (recovered, lost) = (counts.recovered, counts.lost());
    let [not_archived, expired, too_old, unavailable] = counts.lost;
    let is_due = logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
    macro_rules! log {
        ($level:ident, $message:literal) => {
            tracing::$level!(%hole, recovered, lost, not_archived, expired, too_old, unavailable, $message)
        };
    }
    match (is_due, lost) {
        (false, _) => log!(debug, "hole closed"),
        (true, 0) => log!(info, "hole closed; all its cookies are recovered"),
        (true, _) => log!(warn, "hole closed; some of its cookies are lost"),
    }
    if is_due {
        *logged = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests;
