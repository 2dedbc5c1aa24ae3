//! The subscribers of a producer, by name. A subscriber is retained for some time after its stream has ended.
//!
//! A subscriber is a position in the log, and an account of the outcome of every cookie since it joined; its cookies are
//! in the log. A stream has a [`Lease`] of its subscriber. A second stream with the same name supersedes the first.
//!
//! Each subscriber has one lock, taken once per delivery, so its counters balance at any time.
//!
//! A superseded stream may still send one delivery. Its bytes are counted, but its cookies are not: the newer stream
//! begins at its client's position, and counts these cookies when it reaches them.

mod account;
mod confirmations;
mod lease;
mod nodes;
mod reports;
mod retention;
mod snapshot;

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use proto::{units::Sequence, v1::ResumeOutcome};
use runtime::metrics::Peak;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{account::Account, confirmations::Confirmations, reports::Unverified};
pub use self::{
    account::Totals,
    confirmations::Confirmed,
    lease::Lease,
    nodes::Forgotten,
    reports::{Report, ReportedPosition, ReportingNodes},
    snapshot::Snapshot,
};
pub use super::call::Call;
use super::{call::CallError, in_flight::SubscriberInFlight};
use crate::{interval_limit::IntervalLimit, rate_limits::RateLimits};

/// Resume outcomes, in the order of the counters in a [`Snapshot`], with the values of their metric label.
pub const RESUMES: [(ResumeOutcome, &str); 4] = [
    (ResumeOutcome::Fresh, "fresh"),
    (ResumeOutcome::Resumed, "resumed"),
    (ResumeOutcome::ResumedWithGap, "resumed_with_gap"),
    (ResumeOutcome::NewEpoch, "new_epoch"),
];

/// Number of names that get their own metric series: this many immediately, or `--subscribers` if that is more, and then one
/// every ten seconds. This protects the metrics server from clients that open streams under many names.
const SERIES_MAX: usize = 1_024;
const SERIES_REFILL: &str = "6/min";

/// Maximum number of log messages per interval about all subscribers, and separately about losses. Enough for all consumers
/// to reconnect after a restart; too few for a client that reopens streams to fill a disk.
const LINES_MAX: u32 = 500;
const LINES_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum time between log messages about losses of one subscriber.
const LOSS_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Address of clients in tests.
#[cfg(test)]
pub(crate) const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// All subscribers of one producer; clones share them.
#[derive(Debug, Clone)]
pub struct Subscribers {
    shared: Arc<SubscribersShared>,
}

#[derive(Debug)]
struct SubscribersShared {
    table: Mutex<SubscriberTable>,
    stream_log: IntervalLimit,
    /// Separate, so that clients that open and close streams do not suppress messages about losses.
    loss_log: IntervalLimit,
    confirmations: Mutex<Confirmations>,
    /// Notified when a node has confirmed a higher position.
    confirmed: Notify,
    unverified: Mutex<Unverified>,
}

#[derive(Debug)]
struct SubscriberTable {
    by_name: HashMap<(Call, String), Arc<Subscriber>>,
    retention: Duration,
    subscribers_max: usize,
    series_limit: RateLimits<(), 1>,
}

#[derive(Debug)]
struct Subscriber {
    /// Whether it has its own metric series.
    has_series: bool,
    state: Mutex<SubscriberState>,
    in_flight: Arc<SubscriberInFlight>,
}

/// The state of a subscriber that its lock protects.
#[derive(Debug)]
struct SubscriberState {
    stream: StreamState,
    account: Account,
    /// Start of the current or latest stream.
    start: StreamStart,
    /// Number of streams by resume outcome.
    resumes: [u64; RESUMES.len()],
    /// Lag in cookies.
    lag: Peak,
    loss_log: IntervalLimit,
}

#[derive(Debug)]
enum StreamState {
    Streaming {
        superseded: CancellationToken,
        network: IpAddr,
    },
    Ended {
        since: Instant,
    },
}

/// Start of a stream, and properties of its client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamStart {
    /// The first sequence number of the stream.
    pub first: Sequence,
    /// Resume outcome.
    pub outcome: ResumeOutcome,
    /// The maximum lag applies from this sequence number on, or once the stream is within it. A stream that resumes may first
    /// catch up from the oldest cookie in the log.
    pub catching_up_until: Sequence,
    /// Receive window of the client in bytes; 0 if not stated.
    pub window_bytes: u32,
    /// Whether the client supports cookie ages.
    pub supports_age: bool,
}

#[cfg(test)]
impl StreamStart {
    /// Start of a new subscriber at `first`.
    pub(crate) fn fresh(first: Sequence) -> Result<Self, CallError> {
        Ok(Self {
            first,
            outcome: ResumeOutcome::Fresh,
            supports_age: true,
            ..Self::default()
        })
    }
}

/// Retained position of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedPosition {
    /// The sequence number after the last one taken from the log.
    pub position: Sequence,
    /// The sequence number after the newest one ever delivered or lost.
    pub high_water: Sequence,
    /// The first sequence number of its latest stream.
    pub stream_began: Sequence,
    /// Receive window of the client of that stream in bytes; 0 if not stated.
    pub window_bytes: u32,
}

impl Subscribers {
    /// Begins without subscribers. Allows up to `subscribers_max`, each retained for `retention` after its stream ends.
    pub fn new(retention: Duration, subscribers_max: usize) -> Self {
        let burst = subscribers_max.max(SERIES_MAX) as u64;
        Self {
            shared: Arc::new(SubscribersShared {
                table: Mutex::new(SubscriberTable {
                    by_name: HashMap::new(),
                    retention,
                    subscribers_max,
                    series_limit: RateLimits::new([(SERIES_REFILL, burst)], 1),
                }),
                stream_log: IntervalLimit::new(LINES_MAX, LINES_INTERVAL),
                loss_log: IntervalLimit::new(LINES_MAX, LINES_INTERVAL),
                confirmations: Mutex::default(),
                confirmed: Notify::new(),
                unverified: Mutex::default(),
            }),
        }
    }

    /// Leases the subscriber `name` to a new stream: creates the subscriber if needed, and supersedes its current stream.
    ///
    /// `network` is the client's. `start` returns the start of the stream, given the retained position.
    ///
    /// # Errors
    /// The error of `start`, or `CallError::TooManySubscribers`; the current stream then continues.
    pub fn join(
        &self,
        call: Call,
        name: &str,
        network: IpAddr,
        start: impl FnOnce(Option<RetainedPosition>) -> Result<StreamStart, CallError>,
    ) -> Result<Lease, CallError> {
        let mut table = self.table();
        let now = Instant::now();
        table.remove_expired(now);
        let key = (call, name.to_owned());
        let known = table.by_name.get(&key).map(Arc::clone);
        let start = start(known.as_ref().map(|subscriber| subscriber.retained()))?;
        let superseded = CancellationToken::new();
        let stream = StreamState::Streaming {
            superseded: superseded.clone(),
            network,
        };
        let subscriber = match known {
            Some(subscriber) => subscriber,
            None => {
                table.ensure_capacity()?;
                let has_series = table.grants_series(now);
                let in_flight = SubscriberInFlight::new(call, name);
                let subscriber = Arc::new(Subscriber::new(has_series, in_flight, start, now));
                table.by_name.insert(key, Arc::clone(&subscriber));
                subscriber
            }
        };
        subscriber.supersede(stream, start);
        if call == Call::Subscribe {
            let state = subscriber.state.lock();
            self.confirmations().joined(name, &state.account);
        }
        Ok(Lease {
            subscriber,
            superseded,
            start,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Records the stored position of the node with this name. The node must have an open stream from the same network.
    ///
    /// # Errors
    /// `CallError::NoStream` otherwise.
    pub fn confirm(
        &self,
        name: &str,
        network: IpAddr,
        durable: Sequence,
        applied: Sequence,
    ) -> Result<(), CallError> {
        let key = (Call::Subscribe, name.to_owned());
        let subscriber = self.table().by_name.get(&key).map(Arc::clone);
        let subscriber = subscriber.ok_or(CallError::NoStream)?;
        let state = subscriber.state.lock();
        match state.stream {
            StreamState::Streaming { network: it, .. } if it == network => {}
            _ => return Err(CallError::NoStream),
        }
        let is_news = self
            .confirmations()
            .confirm(name, durable, applied, &state.account);
        if is_news {
            self.shared.confirmed.notify_waiters();
        }
        Ok(())
    }

    /// Whether each node, by name, has carried out the deletions with these numbers, and the number of nodes that were evicted.
    pub fn confirmed(&self, first: Sequence, last: Sequence) -> (BTreeMap<String, Confirmed>, u64) {
        let table = self.table();
        let mut nodes = Vec::new();
        for ((call, name), subscriber) in &table.by_name {
            if *call == Call::Subscribe {
                nodes.push((&**name, subscriber.state.lock().account.received()));
            }
        }
        // A subscriber is never locked after the confirmations.
        let confirmations = self.confirmations();
        nodes.extend(confirmations.reporting(Instant::now(), table.retention));
        let states = confirmations.states(nodes.into_iter(), first, last);
        (states, confirmations.evicted)
    }

    /// Returns when `need` nodes have stored the records with these sequence numbers durably.
    pub async fn wait_durable(&self, first: Sequence, last: Sequence, need: usize) {
        loop {
            let confirmed = self.shared.confirmed.notified();
            if self.confirmations().count_durable(first, last) >= need {
                return;
            }
            confirmed.await;
        }
    }

    /// Counters of all subscribers, sorted by call and name.
    pub fn snapshot(&self) -> Vec<Snapshot> {
        let mut all: Vec<_> = self
            .table()
            .by_name
            .iter()
            .map(|((call, name), subscriber)| subscriber.snapshot(*call, name))
            .collect();
        all.sort_by(|a, b| (a.call, &a.name).cmp(&(b.call, &b.name)));
        let confirmations = self.confirmations();
        for queue in all.iter_mut().filter(|queue| queue.call == Call::Subscribe) {
            queue.confirmed = confirmations.positions(&queue.name);
        }
        all
    }

    /// Begins a new interval for the maximum lags, at a scrape. `next` is the log's next sequence number, or an earlier one.
    pub fn end_interval(&self, next: Sequence) {
        for subscriber in self.table().by_name.values() {
            let mut state = subscriber.state.lock();
            let lag = next.since(state.account.position);
            state.lag.end_interval(lag);
        }
    }

    fn confirmations(&self) -> MutexGuard<'_, Confirmations> {
        self.shared.confirmations.lock()
    }

    fn table(&self) -> MutexGuard<'_, SubscriberTable> {
        self.shared.table.lock()
    }
}

impl SubscriberTable {
    /// Whether a new name gets its own metric series.
    fn grants_series(&self, now: Instant) -> bool {
        let charged = self
            .series_limit
            .charge(&[(0, ())], 1, now.into(), Duration::ZERO);
        charged.is_ok()
    }
}

impl Subscriber {
    /// A subscriber whose first stream is about to start.
    fn new(
        has_series: bool,
        in_flight: SubscriberInFlight,
        start: StreamStart,
        now: Instant,
    ) -> Self {
        let state = SubscriberState {
            stream: StreamState::Ended { since: now },
            account: Account::new(start.first),
            start,
            resumes: [0; RESUMES.len()],
            lag: Peak::default(),
            loss_log: IntervalLimit::new(1, LOSS_LOG_INTERVAL),
        };
        Self {
            has_series,
            state: Mutex::new(state),
            in_flight: Arc::new(in_flight),
        }
    }

    fn retained(&self) -> RetainedPosition {
        let state = self.state.lock();
        RetainedPosition {
            position: state.account.position,
            high_water: state.account.high_water,
            stream_began: state.start.first,
            window_bytes: state.start.window_bytes,
        }
    }

    /// Records the start of a stream, and supersedes the current one. That stream is notified before the lock is released, so that its [`Lease`] no
    /// longer changes the subscriber.
    fn supersede(&self, by: StreamState, start: StreamStart) {
        let mut state = self.state.lock();
        if let StreamState::Streaming { superseded, .. } = &state.stream {
            superseded.cancel();
        }
        state.stream = by;
        state.account.begin(start.first);
        state.start = start;
        let outcome = RESUMES.iter().position(|(it, _)| *it == start.outcome);
        if let Some(outcome) = outcome {
            state.resumes[outcome] += 1;
        }
    }

    fn snapshot(&self, call: Call, name: &str) -> Snapshot {
        let state = self.state.lock();
        Snapshot {
            name: name.to_owned(),
            call,
            has_series: self.has_series,
            connected: matches!(state.stream, StreamState::Streaming { .. }),
            supports_age: state.start.supports_age,
            position: state.account.position,
            joined: state.account.joined,
            high_water: state.account.high_water,
            confirmed: None,
            totals: state.account.totals,
            resumes: state.resumes,
            lag_max: state.lag.get(),
            in_flight_bytes: self.in_flight.bytes(),
            disconnects: self.in_flight.disconnects(),
        }
    }
}

#[cfg(test)]
mod tests;
