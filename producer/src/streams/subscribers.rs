//! Who subscribes: one named queue each, kept for a while after its stream ended.
//!
//! A queue is a position in the log and an account of what became of every cookie since it was made; the log
//! holds the cookies. A stream holds a [`Lease`] on its queue. A second stream of the same name takes the lease away
//! from the first.
//!
//! All of one queue is under one lock, taken once for each delivery, so what is read of it adds up at any time.
//!
//! A superseded stream may have one delivery in hand, which still goes out. Its bytes are counted; its cookies are
//! not, because the newer stream begins where its own client stands, and counts them when it passes them.

mod account;
mod announced;
mod lease;
mod losing;
mod snapshot;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use proto::v1::ResumeOutcome;
use runtime::metrics::Peak;
use tokio_util::sync::CancellationToken;

use self::{account::Account, losing::Losing};
pub use self::{account::Totals, lease::Lease, snapshot::Snapshot};
use super::pinned;
use crate::{
    bucket::{Bucket, Rate},
    log::Sequence,
};

/// Which call a stream came by. A name is its own queue for each call, so that a program that reads
/// `GetCookies` and a consumer on the same host, both named after it, do not end each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// One cookie a message.
    GetCookies,
    /// Chunks and gaps.
    Subscribe,
}

impl Call {
    /// The value of the metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::GetCookies => "get_cookies",
            Self::Subscribe => "subscribe",
        }
    }
}

/// How a stream can be met, in the order in which a [`Snapshot`] counts it.
pub const RESUMES: [ResumeOutcome; 4] = [
    ResumeOutcome::Fresh,
    ResumeOutcome::Resumed,
    ResumeOutcome::ResumedWithGap,
    ResumeOutcome::NewEpoch,
];

/// The value of the metric label.
#[must_use]
pub fn resume_label(outcome: ResumeOutcome) -> &'static str {
    match outcome {
        ResumeOutcome::Unspecified => "unspecified",
        ResumeOutcome::Fresh => "fresh",
        ResumeOutcome::Resumed => "resumed",
        ResumeOutcome::ResumedWithGap => "resumed_with_gap",
        ResumeOutcome::NewEpoch => "new_epoch",
    }
}

/// Names that have series of metrics of their own: this many at once, or as many as there may be subscribers, and then one every so
/// often. A client that opens streams under ever new names would fill the server that collects them.
const NAMES_SHOWN: u32 = 1_024;
const NAME_SHOWN_EACH: Duration = Duration::from_secs(10);

/// Queues that one address may have at least, of [`Subscribers`] with more room than that; and half of them where that is
/// more. Beyond that it makes room at its own cost alone.
const OF_ONE_ADDRESS: usize = 512;

/// The address of tests.
#[cfg(test)]
pub(crate) const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// There is no room for another subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many subscribers")]
pub struct TooManySubscribers;

/// All queues of one producer; clones share them.
#[derive(Debug, Clone)]
pub struct Subscribers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queues: Mutex<HashMap<(Call, String), Arc<Queue>>>,
    terms: Mutex<Terms>,
    announced: Mutex<announced::OfAll>,
    names_shown: Mutex<Bucket>,
}

/// How long queues are remembered, and how many there are.
#[derive(Debug, Clone, Copy)]
struct Terms {
    retention: Duration,
    subscribers_max: usize,
}

#[derive(Debug)]
struct Queue {
    /// Whose it is: where its first stream came from.
    network: IpAddr,
    /// Whether it has series of its own.
    is_shown: bool,
    state: Mutex<State>,
    pinned: Arc<pinned::Account>,
}

/// All of a queue, under its lock.
#[derive(Debug)]
struct State {
    connection: Connection,
    account: Account,
    /// Of the present or latest stream: see [`Start::window_bytes`].
    window_bytes: u32,
    /// Streams by how they were met.
    resumes: [u64; RESUMES.len()],
    /// How far behind it was, in cookies.
    lag: Peak,
    losing: Losing,
    announced: announced::OfName,
}

#[derive(Debug)]
enum Connection {
    Streaming { superseded: CancellationToken },
    Ended { since: Instant },
}

/// Where a stream begins, and how that meets what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The first sequence it speaks of.
    pub first: Sequence,
    /// How the subscriber was met.
    pub outcome: ResumeOutcome,
    /// The window that its client told of, in bytes; 0 for none.
    pub window_bytes: u32,
}

#[cfg(test)]
impl Start {
    /// At `first`, of a subscriber that nothing was known of.
    pub(crate) fn fresh<E>(first: Sequence) -> Result<Self, E> {
        Ok(Self {
            first,
            outcome: ResumeOutcome::Fresh,
            window_bytes: 0,
        })
    }
}

/// Where a remembered queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// The sequence after the last one taken out of the log.
    pub position: Sequence,
    /// The sequence after the newest one ever delivered or lost.
    pub high_water: Sequence,
    /// The first sequence its latest stream spoke of.
    pub stream_began: Sequence,
    /// The window of that stream, as its client told, in bytes; 0 for none.
    pub window_bytes: u32,
}

impl Subscribers {
    /// No subscribers yet; at most `subscribers_max`, each remembered for `retention` after its stream ended.
    #[must_use]
    pub fn new(retention: Duration, subscribers_max: usize) -> Self {
        let at_once = u32::try_from(subscribers_max).unwrap_or(u32::MAX);
        let names_shown = Rate {
            each: NAME_SHOWN_EACH,
            at_once: at_once.max(NAMES_SHOWN),
        };
        Self {
            shared: Arc::new(Shared {
                queues: Mutex::default(),
                terms: Mutex::new(Terms {
                    retention,
                    subscribers_max,
                }),
                announced: Mutex::default(),
                names_shown: Mutex::new(Bucket::full(names_shown, Instant::now().into())),
            }),
        }
    }

    /// Changes how many there may be, and how long each is remembered, from now on; no stream ends for it.
    pub fn keep(&self, retention: Duration, subscribers_max: usize) {
        let terms = self.shared.terms.lock();
        *terms.unwrap_or_else(PoisonError::into_inner) = Terms {
            retention,
            subscribers_max,
        };
    }

    fn terms(&self) -> Terms {
        let terms = self.shared.terms.lock();
        *terms.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the queue of that name, making it if needed and ending the stream that has it.
    ///
    /// `network` is where the stream comes from. `start` is told what is remembered of the queue, and decides where the
    /// stream begins.
    ///
    /// # Errors
    /// What `start` returns, and [`TooManySubscribers`]; the stream that has the queue then goes on.
    pub fn join<E: From<TooManySubscribers>>(
        &self,
        call: Call,
        name: &str,
        network: IpAddr,
        start: impl FnOnce(Option<Remembered>) -> Result<Start, E>,
    ) -> Result<Lease, E> {
        let mut queues = self.queues();
        let now = Instant::now();
        self.forget(&mut queues, now);
        let key = (call, name.to_owned());
        let known = queues.get(&key).map(Arc::clone);
        let began = start(known.as_ref().map(|queue| queue.remembered()))?;
        let superseded = CancellationToken::new();
        let connection = Connection::Streaming {
            superseded: superseded.clone(),
        };
        let queue = match known {
            Some(queue) => {
                queue.supersede(connection, began);
                queue
            }
            None => {
                let most = self.terms().subscribers_max;
                let is_own = |queue: &Queue| queue.network == network;
                let own = queues.values().filter(|queue| is_own(queue)).count();
                if own >= OF_ONE_ADDRESS.max(most / 2) {
                    forget_longest_ended(&mut queues, is_own)?;
                } else if queues.len() >= most {
                    forget_longest_ended(&mut queues, |_| true)?;
                }
                let names_shown = self.shared.names_shown.lock();
                let mut names_shown = names_shown.unwrap_or_else(PoisonError::into_inner);
                let queue = Arc::new(Queue::new(
                    (network, names_shown.take(now.into())),
                    pinned::Account::new(call, name),
                    connection,
                    began,
                ));
                queues.insert(key, Arc::clone(&queue));
                queue
            }
        };
        let is_announced = self.announce(&queue, now);
        Ok(Lease::new(queue, superseded, is_announced, now))
    }

    /// Whether the stream that has just taken this queue is named in the log.
    fn announce(&self, queue: &Queue, now: Instant) -> bool {
        let all = self.shared.announced.lock();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        let admitted = all.admit(&mut queue.state().announced, now);
        if let Some(streams) = admitted.filter(|left_out| *left_out > 0) {
            tracing::info!(streams, "more streams were opened than are named here");
        }
        admitted.is_some()
    }

    /// Forgets the queues whose streams ended too long ago.
    pub fn sweep(&self) {
        self.forget(&mut self.queues(), Instant::now());
    }

    /// The figures of all queues, by call and name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Snapshot> {
        let mut all: Vec<_> = self
            .queues()
            .iter()
            .map(|((call, name), queue)| queue.snapshot(*call, name))
            .collect();
        all.sort_by(|a, b| (a.call, &a.name).cmp(&(b.call, &b.name)));
        all
    }

    /// Ends an interval of the greatest lags, at a scrape, while the log's next sealed sequence is at least `next`.
    pub fn end_interval(&self, next: Sequence) {
        for queue in self.queues().values() {
            let mut state = queue.state();
            let lag = next.saturating_sub(state.account.position());
            state.lag.end(lag);
        }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<(Call, String), Arc<Queue>>> {
        let queues = self.shared.queues.lock();
        queues.unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, queues: &mut HashMap<(Call, String), Arc<Queue>>, now: Instant) {
        let retention = self.terms().retention;
        queues.retain(|_, queue| match queue.state().connection {
            Connection::Streaming { .. } => true,
            Connection::Ended { since } => now - since < retention,
        });
    }
}

/// Makes room for a subscriber that is here at the cost of one of `these` that is not.
fn forget_longest_ended(
    queues: &mut HashMap<(Call, String), Arc<Queue>>,
    these: impl Fn(&Queue) -> bool,
) -> Result<(), TooManySubscribers> {
    let longest_ended = queues
        .iter()
        .filter(|(_, queue)| these(queue))
        .filter_map(|(key, queue)| match queue.state().connection {
            Connection::Streaming { .. } => None,
            Connection::Ended { since } => Some((since, key)),
        })
        .min_by_key(|&(since, _)| since)
        .map(|(_, key)| key.clone());
    queues.remove(&longest_ended.ok_or(TooManySubscribers)?);
    Ok(())
}

impl Queue {
    fn new(
        (network, is_shown): (IpAddr, bool),
        pinned: pinned::Account,
        connection: Connection,
        began: Start,
    ) -> Self {
        let mut state = State {
            connection,
            account: Account::new(began.first),
            window_bytes: began.window_bytes,
            resumes: [0; RESUMES.len()],
            lag: Peak::default(),
            losing: Losing::default(),
            announced: announced::OfName::default(),
        };
        state.begin(began);
        Self {
            network,
            is_shown,
            state: Mutex::new(state),
            pinned: Arc::new(pinned),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered(&self) -> Remembered {
        let state = self.state();
        Remembered {
            position: state.account.position(),
            high_water: state.account.high_water(),
            stream_began: state.account.stream_began(),
            window_bytes: state.window_bytes,
        }
    }

    /// Gives the queue to another stream, which begins at `began`; the one that had it learns so before the lock is
    /// released, so that its [`Lease`] does not end the new one's, nor counts what that one will.
    fn supersede(&self, by: Connection, began: Start) {
        let mut state = self.state();
        if let Connection::Streaming { superseded } = &state.connection {
            superseded.cancel();
        }
        state.connection = by;
        state.begin(began);
    }

    fn snapshot(&self, call: Call, name: &str) -> Snapshot {
        let state = self.state();
        Snapshot {
            name: name.to_owned(),
            call,
            is_shown: self.is_shown,
            connected: matches!(state.connection, Connection::Streaming { .. }),
            position: state.account.position(),
            joined: state.account.joined(),
            high_water: state.account.high_water(),
            totals: state.account.totals,
            resumes: state.resumes,
            lag_max: state.lag.get(),
            pinned_bytes: self.pinned.bytes(),
            cuts: self.pinned.cuts(),
        }
    }
}

impl State {
    /// A stream begins.
    fn begin(&mut self, began: Start) {
        self.account.begin(began.first);
        self.window_bytes = began.window_bytes;
        let outcome = RESUMES.iter().position(|it| *it == began.outcome);
        if let Some(outcome) = outcome {
            self.resumes[outcome] += 1;
        }
    }
}

#[cfg(test)]
mod tests;
