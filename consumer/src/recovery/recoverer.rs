//! The task that reads the archive.

use std::{collections::VecDeque, iter, sync::Arc, time::Duration};

use proto::{
    archive::Origin,
    units::{Epoch, Sequence},
    v1::{EpochEnd, event::Event},
    wire::StreamMessage,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    Counts, Hole, HoleId, LossReason, Recovered, Status,
    archive::{Archive, ArchiveError, Info},
    following::{self, Following},
    hole::OpenHole,
    reader::{Reader, events},
};
use crate::{
    backoff::Backoff, batch::Cursor, metrics, producers::Producers, subscription::restarts::Restart,
};

/// Interval of checks of the archive, and maximum delay of an attempt after an error.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Interval of reads while the archive has nothing new of the open holes. The first attempt after an error is not later.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a hole waits for events that are not archived yet.
pub(super) const ARCHIVE_WAIT: Duration = Duration::from_secs(30);

/// Like [`ARCHIVE_WAIT`], if the archive is a copy of another one. After a cut of ten minutes, a copy was up to 2.5 minutes behind.
pub(super) const COPY_WAIT: Duration = Duration::from_secs(5 * 60);

/// How long a hole may be open without any progress.
pub(super) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Time after the opening of a hole in which later gaps of the epoch are added to it. They wait for the archive at least 20 s.
const MERGE_TIME: Duration = Duration::from_secs(10);

/// Maximum number of epochs of which a producer archives the ends.
pub(super) const ENDS_MAX: usize = 16;

/// Minimum time between two log entries about closed holes. Further ones are logged at `debug`; all are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The task that reads the archive.
#[derive(Debug)]
pub struct Recoverer {
    io: Io,
    holes: mpsc::Receiver<(HoleId, Hole)>,
    open: Vec<Recovering>,
    following: Vec<Following>,
    metrics: metrics::Subscription,
    producers: Producers,
    logged: Option<Instant>,
}

/// Where cookies come from and go to.
#[derive(Debug)]
struct Io {
    archive: Box<dyn Archive>,
    recovered: mpsc::Sender<Recovered>,
    status: Status,
}

/// An open hole.
#[derive(Debug)]
struct Recovering {
    id: HoleId,
    hole: Hole,
    opened: Instant,
    /// Later gaps of the epoch that were added.
    added: Vec<HoleId>,
    reader: Reader,
    /// Later epochs that ended before the restart.
    later: VecDeque<OpenHole>,
    /// Whether the ends of earlier epochs must be read from the epoch of the restart.
    needs_ends: bool,
    /// Counts of earlier readers.
    done: Counts,
    /// When it was opened, or when the archive last had something new.
    progressed: Instant,
    /// Since when the archive, which can be read, has had nothing new.
    waiting: Option<Instant>,
}

/// Why a turn ended early.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("the collector has ended")]
    Stopped,
}

impl Recoverer {
    pub(super) fn new(
        archive: Box<dyn Archive>,
        holes: mpsc::Receiver<(HoleId, Hole)>,
        recovered: mpsc::Sender<Recovered>,
        status: Status,
        metrics: metrics::Subscription,
        producers: Producers,
    ) -> Self {
        Self {
            io: Io {
                archive,
                recovered,
                status,
            },
            holes,
            open: Vec::new(),
            following: Vec::new(),
            metrics,
            producers,
            logged: None,
        }
    }

    /// Recovers holes until the collector ends, or the future is dropped.
    pub async fn run(mut self) {
        let mut check_at = Instant::now();
        let mut backoff = Backoff::new(POLL_INTERVAL, CHECK_INTERVAL);
        let mut info = None;
        loop {
            if check_at <= Instant::now() {
                let checked = self.io.archive.check().await;
                self.io.status.checked(&checked);
                info = checked.ok();
                check_at =
                    Instant::now() + info.map_or_else(|| backoff.delay(), |_| CHECK_INTERVAL);
                if !self.io.status.is_following() {
                    following::update(&mut self.following, &self.producers);
                }
            }
            let mut has_progress = false;
            if let Some(usable) = info {
                match self.turn(&usable).await {
                    Ok(progress) => {
                        has_progress = progress;
                        backoff.reset();
                    }
                    Err(TurnError::Stopped) => return,
                    Err(TurnError::Archive(error)) => {
                        self.io.status.checked(&Err(error));
                        info = None;
                        check_at = Instant::now() + backoff.delay();
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
                    Some((id, hole)) => {
                        self.open(id, hole);
                        while let Ok((id, hole)) = self.holes.try_recv() {
                            self.open(id, hole);
                        }
                    }
                    None => return,
                },
                () = sleep_until(poll_at) => {}
            }
        }
    }

    /// Opens a hole, or adds it to the one before it: a slow subscriber has many gaps, which are read together.
    fn open(&mut self, id: HoleId, hole: Hole) {
        let earlier = self.open.iter_mut().find(|it| it.may_add(&hole));
        match earlier {
            Some(earlier) => {
                self.io.status.added(id, earlier.id);
                earlier.add(id, &hole);
            }
            None => self.open.push(Recovering::new(id, hole)),
        }
    }

    /// Reads once for each hole and each absent producer. Returns whether the archive had anything new.
    async fn turn(&mut self, info: &Info) -> Result<bool, TurnError> {
        let mut has_progress = false;
        for it in &mut self.open {
            has_progress |= it.turn(&mut self.io, info).await?;
        }
        for it in &mut self.following {
            has_progress |= self.io.follow(it, info).await?;
        }
        Ok(has_progress)
    }

    /// Closes the holes that have nothing more to recover.
    async fn close(&mut self) -> Result<(), TurnError> {
        for it in self.open.extract_if(.., |it| it.is_done()) {
            let (counts, hole) = (it.counts(), &it.hole);
            self.metrics.add_unrecovered(counts.lost_by_reason());
            let recovered = counts.recovered;
            let producers = &self.producers;
            producers.add_recovered(&hole.producer, hole.epoch, recovered);
            log_closed(hole, &counts, &mut self.logged);
            if let Some(restart) = &hole.restart {
                restart.report(&self.metrics, counts.found());
            }
            self.io.status.closed(it.id, &counts);
            for id in iter::once(it.id).chain(it.added) {
                self.io.pass(Recovered::Closed(id)).await?;
            }
        }
        Ok(())
    }
}

impl Recovering {
    fn new(id: HoleId, hole: Hole) -> Self {
        let is_exact = hole.restart.is_none();
        let missing = OpenHole::new(&hole.producer, hole.epoch, hole.range.clone(), is_exact);
        let now = Instant::now();
        Self {
            id,
            needs_ends: !is_exact,
            hole,
            opened: now,
            added: Vec::new(),
            reader: Reader::new(missing),
            later: VecDeque::new(),
            done: Counts::default(),
            progressed: now,
            waiting: None,
        }
    }

    /// Whether a later gap of the same epoch can be added: not after the first message was read.
    fn may_add(&self, later: &Hole) -> bool {
        let Hole {
            producer,
            epoch,
            range,
            restart,
        } = &self.hole;
        (producer, epoch) == (&later.producer, &later.epoch)
            && restart.is_none()
            && later.restart.is_none()
            && range.end() < later.range.start()
            && self.progressed == self.opened
            && self.opened.elapsed() < MERGE_TIME
    }

    fn add(&mut self, id: HoleId, later: &Hole) {
        self.added.push(id);
        self.hole.range = *self.hole.range.start()..=*later.range.end();
        self.reader.hole.append(later.range.clone());
    }

    /// Reads once. Returns whether the archive had anything new.
    async fn turn(&mut self, io: &mut Io, info: &Info) -> Result<bool, TurnError> {
        if let Some(restart) = self.hole.restart.as_ref().filter(|_| self.needs_ends)
            && let Some(ends) = io.ends(restart).await?
        {
            self.needs_ends = false;
            self.set_ends(ends, restart.new_epoch);
        }
        let archive = &mut *io.archive;
        let messages = self.reader.read(archive, info.last_position).await?;
        let now = Instant::now();
        if messages.is_empty() {
            let wait = if info.is_copy {
                COPY_WAIT
            } else {
                ARCHIVE_WAIT
            };
            // The next epoch is archived after the end of the previous one.
            let is_final = self.hole.restart.is_some() && !self.needs_ends;
            if is_final || self.waiting.get_or_insert(now).elapsed() >= wait {
                self.reader.hole.give_up(LossReason::NotArchived);
            }
        } else {
            self.waiting = None;
        }
        for message in &messages {
            let Some(parts) = self.reader.apply(message) else {
                io.status.rejected();
                continue;
            };
            for part in parts {
                let producer = Arc::clone(&self.hole.producer);
                io.pass(Recovered::Chunk(producer, part)).await?;
            }
            self.progressed = Instant::now();
            io.status.progressed(self.id, &self.counts());
        }
        if self.reader.hole.is_read()
            && let Some(next) = self.later.pop_front()
        {
            self.done = self.counts();
            self.reader = Reader::new(next);
            return Ok(true);
        }
        Ok(!messages.is_empty())
    }

    /// Limits the epoch to its end, and adds the later epochs before the restart.
    fn set_ends(&mut self, ends: Vec<EpochEnd>, new_epoch: Epoch) {
        let Hole {
            producer, epoch, ..
        } = &self.hole;
        for end in ends.into_iter().take(ENDS_MAX) {
            if end.epoch == epoch.0 {
                self.reader.hole.ends_at(Sequence(end.last_sequence));
            } else if (epoch.0..new_epoch.0).contains(&end.epoch) && end.last_sequence > 0 {
                let all = 1..=end.last_sequence;
                let missing = OpenHole::new(producer, Epoch(end.epoch), all, false);
                self.later.push_back(missing);
            }
        }
    }

    fn counts(&self) -> Counts {
        let mut counts = self.done;
        counts.add(&self.reader.hole.counts);
        counts
    }

    /// Whether nothing more is recovered.
    fn is_done(&mut self) -> bool {
        let hole = &mut self.reader.hole;
        if self.progressed.elapsed() >= PROGRESS_TIMEOUT {
            hole.give_up(LossReason::Unavailable);
            self.later.clear();
        } else if hole.is_read() {
            hole.give_up(LossReason::NotArchived);
        }
        hole.missing() == 0 && self.later.is_empty()
    }
}

impl Io {
    async fn pass(&self, recovered: Recovered) -> Result<(), TurnError> {
        let passed = self.recovered.send(recovered).await;
        passed.map_err(|_| TurnError::Stopped)
    }

    /// The ends of the epochs before a restart; `None` if the new epoch is not archived yet.
    async fn ends(&mut self, restart: &Restart) -> Result<Option<Vec<EpochEnd>>, TurnError> {
        let origin = Origin {
            producer_id: restart.previous.producer.to_string(),
            epoch: restart.new_epoch,
        };
        let first = self.archive.first(&origin.subject(), 0).await?;
        Ok(first.map(|message| {
            let events = events(&message).unwrap_or_default().into_iter();
            let ends = events.filter_map(|event| match event {
                StreamMessage::Event(Event::EpochEnds(ends)) => Some(ends.ends),
                _ => None,
            });
            ends.flatten().collect()
        }))
    }

    /// Reads once for an absent producer.
    async fn follow(&mut self, it: &mut Following, info: &Info) -> Result<bool, TurnError> {
        if it.is_stuck {
            return Ok(false);
        }
        let archive = &mut *self.archive;
        let messages = it.reader.read(archive, info.last_position).await?;
        for message in &messages {
            // If the archive does not begin with the next cookie, this does not match.
            it.is_stuck |= it.reader.hole.first_missing() != Some(it.cursor.sequence.next());
            if it.is_stuck {
                return Ok(false);
            }
            let before = it.reader.hole.counts;
            let Some(parts) = it.reader.apply(message) else {
                self.status.rejected();
                continue;
            };
            for part in parts {
                let producer = Arc::clone(&it.cursor.producer);
                self.pass(Recovered::Chunk(producer, part)).await?;
            }
            self.status.followed(&before, &it.reader.hole.counts);
            it.is_stuck = it.reader.hole.is_split();
            let sequence = it.reader.hole.first_missing().unwrap_or_default() - 1;
            let after = Cursor {
                sequence,
                ..it.cursor.clone()
            };
            if after != it.cursor {
                if before.found() == 0 {
                    let (producer, epoch) = (&*after.producer, after.epoch.0);
                    tracing::info!(
                        producer,
                        epoch,
                        "producer is absent; reading its cookies from the archive"
                    );
                }
                let before = std::mem::replace(&mut it.cursor, after.clone());
                self.pass(Recovered::Advanced(before, after)).await?;
            }
        }
        Ok(!messages.is_empty())
    }
}

fn log_closed(hole: &Hole, counts: &Counts, logged: &mut Option<Instant>) {
    let (producer, epoch) = (&*hole.producer, hole.epoch.0);
    // After a restart, `last` is the maximum.
    let (first, last) = hole.range.clone().into_inner();
    let (recovered, lost) = (counts.recovered, counts.lost());
    let [not_archived, expired, too_old, unavailable] = counts.lost;
    let is_due = logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
    macro_rules! log {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                producer,
                epoch,
                first,
                last,
                recovered,
                lost,
                not_archived,
                expired,
                too_old,
                unavailable,
                $message
            )
        };
    }
    match (is_due, lost) {
        (false, _) => log!(debug, "hole closed"),
        (true, 0) if hole.restart.is_some() => log!(info, "hole closed"),
        (true, 0) => log!(info, "hole closed; all its cookies are recovered"),
        (true, _) => log!(warn, "hole closed; some of its cookies are lost"),
    }
    if is_due {
        *logged = Some(Instant::now());
    }
}
