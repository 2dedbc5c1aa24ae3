//! Who subscribes: a named queue for each subscriber, which is kept for a while after its stream has ended.
//!
//! A queue is a position in the log and an account of what became of every cookie since the queue was made; the log
//! holds the cookies. A stream holds a [`Lease`] on its queue. A second stream of the same name takes the lease over
//! from the first.
//!
//! A queue has one lock, taken once for each delivery, so its figures add up whenever they are read.
//!
//! A stream that was superseded may have one delivery in hand, which is still sent. Its bytes are counted. Its cookies
//! are not, because the newer stream begins where its own client stands, and counts them when it passes them.

mod account;
mod lease;
mod retention;
mod snapshot;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use limits::{Algorithm, Decision, Demand, Limits};
use proto::v1::ResumeOutcome;
use runtime::metrics::Peak;
use tokio_util::sync::CancellationToken;

use self::{account::Account, lease::LogGates};
pub use self::{account::Totals, lease::Lease, snapshot::Snapshot};
pub use super::call::Call;
use super::in_flight::QueueInFlight;
use crate::{log::Sequence, log_gate::LogGate};

/// How a stream can begin, in the order in which a [`Snapshot`] counts it.
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

/// How many names get their own metric series: this many at once, or as many as there may be subscribers if that is
/// more, and after that one every ten seconds. Otherwise a client that opens streams under ever new names would fill the
/// metrics server.
const NAMES_SHOWN: usize = 1_024;
const NAMES_SHOWN_LATER: &str = "6/min";

/// At most this many lines of all subscribers together are logged in one interval, and as many of losses: several times
/// as many as there are consumers, so that all that come back after a restart are logged, and a client that opens
/// streams again and again cannot fill a disk.
const LINES_MAX: u32 = 500;
const LINES_INTERVAL: Duration = Duration::from_secs(10);

/// How often the log says that one subscriber loses cookies.
const LOSS_LOG_INTERVAL: Duration = Duration::from_secs(10);

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
    queues: Mutex<Queues>,
    log_gates: Arc<LogGates>,
}

#[derive(Debug)]
struct Queues {
    by_name: HashMap<(Call, String), Arc<Queue>>,
    retention: Duration,
    subscribers_max: usize,
    names_shown: Limits<()>,
    name_shown: Demand<()>,
    began: Instant,
}

#[derive(Debug)]
struct Queue {
    /// The network of its first stream: the queue counts towards the limit of this address.
    network: IpAddr,
    /// Whether it has its own metric series.
    is_shown: bool,
    state: Mutex<State>,
    in_flight: Arc<QueueInFlight>,
}

/// Everything of a queue that is under its lock.
#[derive(Debug)]
struct State {
    connection: Connection,
    account: Account,
    /// Of the current or latest stream: see [`Start::window_bytes`].
    window_bytes: u32,
    /// The same.
    supports_age: bool,
    /// Streams by how they began.
    resumes: [u64; RESUMES.len()],
    /// How far behind it was, in cookies.
    lag: Peak,
    loss_log: LogGate,
}

#[derive(Debug)]
enum Connection {
    Streaming { superseded: CancellationToken },
    Ended { since: Instant },
}

/// Where a stream begins, and how that relates to what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The first sequence of the stream.
    pub first: Sequence,
    /// Whether and how the subscriber resumed.
    pub outcome: ResumeOutcome,
    /// The receive window that its client stated, in bytes; 0 for none.
    pub window_bytes: u32,
    /// Whether its client says that it acts on the age of cookies.
    pub supports_age: bool,
}

#[cfg(test)]
impl Start {
    /// The start of an unknown subscriber at `first`.
    pub(crate) fn fresh<E>(first: Sequence) -> Result<Self, E> {
        Ok(Self {
            first,
            outcome: ResumeOutcome::Fresh,
            window_bytes: 0,
            supports_age: true,
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
    /// The first sequence of its latest stream.
    pub stream_began: Sequence,
    /// The receive window that the client of that stream stated, in bytes; 0 for none.
    pub window_bytes: u32,
}

impl Subscribers {
    /// No subscribers yet; at most `subscribers_max`, each remembered for `retention` after its stream ended.
    #[must_use]
    pub fn new(retention: Duration, subscribers_max: usize) -> Self {
        let burst = subscribers_max.max(NAMES_SHOWN) as u64;
        let mut names_shown = Limits::new(1);
        let limit = Algorithm::token_bucket(NAMES_SHOWN_LATER, burst)
            .and_then(|rate| names_shown.add(rate))
            .expect("this rate can be kept to");
        Self {
            shared: Arc::new(Shared {
                queues: Mutex::new(Queues {
                    by_name: HashMap::new(),
                    retention,
                    subscribers_max,
                    names_shown,
                    name_shown: Demand {
                        limit,
                        key: (),
                        requests: 1,
                    },
                    began: Instant::now(),
                }),
                log_gates: Arc::new(LogGates::new(LINES_MAX, LINES_INTERVAL)),
            }),
        }
    }

    /// Takes the queue of that name. The queue is made if there is none, and the stream that has it is superseded.
    ///
    /// `network` is where the stream comes from. `start` decides where the stream begins, given what is remembered of
    /// the queue.
    ///
    /// # Errors
    /// The error of `start`, and [`TooManySubscribers`]; the stream that has the queue then continues.
    pub fn join<E: From<TooManySubscribers>>(
        &self,
        call: Call,
        name: &str,
        network: IpAddr,
        start: impl FnOnce(Option<Remembered>) -> Result<Start, E>,
    ) -> Result<Lease, E> {
        let mut queues = self.queues();
        let now = Instant::now();
        queues.forget_expired(now);
        let key = (call, name.to_owned());
        let known = queues.by_name.get(&key).map(Arc::clone);
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
                queues.make_room(network)?;
                let queue = Arc::new(Queue::new(
                    (network, queues.shows_another(now)),
                    QueueInFlight::new(call, name),
                    connection,
                    began,
                ));
                queues.by_name.insert(key, Arc::clone(&queue));
                queue
            }
        };
        Ok(Lease {
            queue,
            superseded,
            log_gates: Arc::clone(&self.shared.log_gates),
        })
    }

    /// The figures of all queues, by call and name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Snapshot> {
        let mut all: Vec<_> = self
            .queues()
            .by_name
            .iter()
            .map(|((call, name), queue)| queue.snapshot(*call, name))
            .collect();
        all.sort_by(|a, b| (a.call, &a.name).cmp(&(b.call, &b.name)));
        all
    }

    /// Begins a new interval for the greatest lags, at a scrape; the log's next sealed sequence is at least `next`.
    pub fn end_interval(&self, next: Sequence) {
        for queue in self.queues().by_name.values() {
            let mut state = queue.state();
            let lag = next.saturating_sub(state.account.position());
            state.lag.end_interval(lag);
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        let queues = self.shared.queues.lock();
        queues.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    /// Whether one more name gets its own metric series.
    fn shows_another(&mut self, now: Instant) -> bool {
        let nanos = u64::try_from((now - self.began).as_nanos()).unwrap_or(u64::MAX);
        let shown = &mut self.names_shown;
        shown.reserve(&[self.name_shown], nanos, Duration::ZERO) == Decision::Now
    }
}

impl Queue {
    fn new(
        (network, is_shown): (IpAddr, bool),
        in_flight: QueueInFlight,
        connection: Connection,
        began: Start,
    ) -> Self {
        let mut state = State {
            connection,
            account: Account::new(began.first),
            window_bytes: began.window_bytes,
            supports_age: began.supports_age,
            resumes: [0; RESUMES.len()],
            lag: Peak::default(),
            loss_log: LogGate::new(1, LOSS_LOG_INTERVAL),
        };
        state.begin(began);
        Self {
            network,
            is_shown,
            state: Mutex::new(state),
            in_flight: Arc::new(in_flight),
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

    /// Gives the queue to another stream, which begins at `began`. The stream that had it is told before the lock is
    /// released, so that its [`Lease`] neither ends the new one's nor counts what the new one will.
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
            supports_age: state.supports_age,
            position: state.account.position(),
            joined: state.account.joined(),
            high_water: state.account.high_water(),
            totals: state.account.totals,
            resumes: state.resumes,
            lag_max: state.lag.get(),
            in_flight_bytes: self.in_flight.bytes(),
            cuts: self.in_flight.cuts(),
        }
    }
}

impl State {
    /// A stream begins.
    fn begin(&mut self, began: Start) {
        self.account.begin(began.first);
        self.window_bytes = began.window_bytes;
        self.supports_age = began.supports_age;
        let outcome = RESUMES.iter().position(|it| *it == began.outcome);
        if let Some(outcome) = outcome {
            self.resumes[outcome] += 1;
        }
    }
}

#[cfg(test)]
mod tests;
