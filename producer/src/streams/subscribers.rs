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

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use self::account::Account;
pub use self::account::Totals;
use super::pinned;
use crate::log::{Delivery, Sequence};

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
    retention: Duration,
    subscribers_max: usize,
}

#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    pinned: Arc<pinned::Account>,
}

/// All of a queue, under its lock.
#[derive(Debug)]
struct State {
    connection: Connection,
    account: Account,
}

#[derive(Debug)]
enum Connection {
    Streaming { superseded: CancellationToken },
    Ended { since: Instant },
}

/// The figures of one queue at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The subscriber's name.
    pub name: String,
    /// The call it uses.
    pub call: Call,
    /// Whether a stream is open.
    pub connected: bool,
    /// The sequence after the last one taken out of the log.
    pub position: Sequence,
    /// The first sequence that is accounted for.
    pub joined: Sequence,
    /// The sequence after the newest one ever delivered or lost.
    pub high_water: Sequence,
    /// What it counts.
    pub totals: Totals,
    /// Bytes handed to its streams that their connections have not let go.
    pub pinned_bytes: u64,
    /// Streams cut off for what their connections held.
    pub cuts: u64,
}

impl Snapshot {
    /// Cookies appended since the queue's account begins, of `appended` in all, read after this snapshot.
    #[must_use]
    pub fn appended(&self, appended: u64) -> u64 {
        appended + 1 - self.joined
    }

    /// Cookies neither delivered nor lost yet, sealed or not, of `appended` in all, read after this snapshot.
    #[must_use]
    pub fn queued(&self, appended: u64) -> u64 {
        appended + 1 - self.high_water
    }
}

/// Where a remembered queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// The sequence after the last one taken out of the log.
    pub position: Sequence,
    /// The first sequence its latest stream spoke of.
    pub stream_began: Sequence,
}

impl Subscribers {
    /// No subscribers yet; at most `subscribers_max`, each remembered for `retention` after its stream ended.
    #[must_use]
    pub fn new(retention: Duration, subscribers_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                queues: Mutex::default(),
                retention,
                subscribers_max,
            }),
        }
    }

    /// Takes the queue of that name, making it if needed and ending the stream that has it.
    ///
    /// `start` is told what is remembered of the queue, and decides where the stream begins.
    ///
    /// # Errors
    /// What `start` returns, and [`TooManySubscribers`]; the stream that has the queue then goes on.
    pub fn join<E: From<TooManySubscribers>>(
        &self,
        call: Call,
        name: &str,
        start: impl FnOnce(Option<Remembered>) -> Result<Sequence, E>,
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
                if queues.len() >= self.shared.subscribers_max {
                    forget_longest_ended(&mut queues)?;
                }
                let queue = Arc::new(Queue::new(
                    pinned::Account::new(call, name),
                    connection,
                    began,
                ));
                queues.insert(key, Arc::clone(&queue));
                queue
            }
        };
        Ok(Lease { queue, superseded })
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

    fn queues(&self) -> MutexGuard<'_, HashMap<(Call, String), Arc<Queue>>> {
        let queues = self.shared.queues.lock();
        queues.unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, queues: &mut HashMap<(Call, String), Arc<Queue>>, now: Instant) {
        queues.retain(|_, queue| match queue.state().connection {
            Connection::Streaming { .. } => true,
            Connection::Ended { since } => now - since < self.shared.retention,
        });
    }
}

/// Makes room for a subscriber that is here at the cost of one that is not.
fn forget_longest_ended(
    queues: &mut HashMap<(Call, String), Arc<Queue>>,
) -> Result<(), TooManySubscribers> {
    let longest_ended = queues
        .iter()
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
    fn new(pinned: pinned::Account, connection: Connection, began: Sequence) -> Self {
        let mut account = Account::new(began);
        account.begin(began);
        Self {
            state: Mutex::new(State {
                connection,
                account,
            }),
            pinned: Arc::new(pinned),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered(&self) -> Remembered {
        self.state().account.remembered()
    }

    /// Gives the queue to another stream, which begins at `began`; the one that had it learns so before the lock is
    /// released, so that its [`Lease`] does not end the new one's, nor counts what that one will.
    fn supersede(&self, by: Connection, began: Sequence) {
        let mut state = self.state();
        if let Connection::Streaming { superseded } = &state.connection {
            superseded.cancel();
        }
        state.connection = by;
        state.account.begin(began);
    }

    fn snapshot(&self, call: Call, name: &str) -> Snapshot {
        let state = self.state();
        Snapshot {
            name: name.to_owned(),
            call,
            connected: matches!(state.connection, Connection::Streaming { .. }),
            position: state.account.position(),
            joined: state.account.joined(),
            high_water: state.account.high_water(),
            totals: state.account.totals,
            pinned_bytes: self.pinned.bytes(),
            cuts: self.pinned.cuts(),
        }
    }
}

/// The right to stream one queue; dropping it starts the queue's retention.
#[derive(Debug)]
pub struct Lease {
    queue: Arc<Queue>,
    superseded: CancellationToken,
}

impl Lease {
    /// Waits until another stream of the same name has taken the queue.
    pub async fn superseded(&self) {
        self.superseded.cancelled().await;
    }

    /// Where what the queue's streams hold is counted.
    pub(super) fn pinned(&self) -> &Arc<pinned::Account> {
        &self.queue.pinned
    }

    /// Notes what was taken out of the log, and how many `bytes` it is on the wire.
    pub fn record(&self, delivery: &Delivery, bytes: usize) {
        let mut state = self.queue.state();
        let account = &mut state.account;
        account.totals.bytes += bytes as u64;
        if self.superseded.is_cancelled() {
            return;
        }
        match delivery {
            Delivery::Chunk { chunk, first } => account.deliver(*first, chunk.last()),
            Delivery::Gap {
                first,
                last,
                reason,
            } => account.lose(*first, *last, *reason),
            Delivery::Idle { .. } | Delivery::End { .. } => {}
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if !self.superseded.is_cancelled() {
            state.connection = Connection::Ended {
                since: Instant::now(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::GapReason;

    const HOUR: Duration = Duration::from_secs(3600);

    fn join(
        subscribers: &Subscribers,
        name: &str,
        first: Sequence,
    ) -> Result<Lease, TooManySubscribers> {
        subscribers.join(Call::Subscribe, name, |_| Ok(first))
    }

    fn gap(first: Sequence, last: Sequence) -> Delivery {
        Delivery::Gap {
            first,
            last,
            reason: GapReason::LogMovedOn,
        }
    }

    fn only(subscribers: &Subscribers) -> Snapshot {
        let mut all = subscribers.snapshot();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn what_is_passed_again_counts_once() {
        let subscribers = Subscribers::new(HOUR, 10);
        let lease = join(&subscribers, "a", 5).unwrap();
        lease.record(&gap(5, 14), 0);
        drop(lease);
        let lease = join(&subscribers, "a", 10).unwrap();
        lease.record(&gap(10, 19), 0);
        lease.record(&gap(20, 20), 0);
        let snapshot = only(&subscribers);
        let totals = snapshot.totals;
        assert_eq!((totals.lost_log_moved_on, snapshot.position), (16, 21));
        assert_eq!(totals.streams, 2);
    }

    #[test]
    fn newest_stream_has_the_queue_and_the_older_one_cannot_touch_it() {
        let subscribers = Subscribers::new(HOUR, 10);
        let older = join(&subscribers, "a", 1).unwrap();
        let newer = join(&subscribers, "a", 1).unwrap();
        assert!(older.superseded.is_cancelled());
        older.record(&gap(1, 5), 7);
        assert_eq!(only(&subscribers).position, 1);
        assert_eq!(only(&subscribers).totals.bytes, 7, "they still go out");
        drop(older);
        assert!(only(&subscribers).connected);
        drop(newer);
        assert!(!only(&subscribers).connected);
    }

    #[test]
    fn refused_stream_leaves_the_one_that_runs() {
        let subscribers = Subscribers::new(HOUR, 10);
        let lease = join(&subscribers, "a", 1).unwrap();
        let refused = subscribers.join(Call::Subscribe, "a", |_| Err(TooManySubscribers));
        assert_eq!(refused.err(), Some(TooManySubscribers));
        assert!(!lease.superseded.is_cancelled());
    }

    #[test]
    fn same_name_is_another_queue_for_the_other_call() {
        let subscribers = Subscribers::new(HOUR, 10);
        let lease = join(&subscribers, "a", 1).unwrap();
        let other = subscribers.join(Call::GetCookies, "a", |remembered| {
            assert_eq!(remembered, None);
            Ok::<_, TooManySubscribers>(1)
        });
        assert!(other.is_ok());
        assert!(!lease.superseded.is_cancelled());
    }

    #[test]
    fn departed_subscriber_is_remembered_and_then_forgotten() {
        let subscribers = Subscribers::new(HOUR, 10);
        drop(join(&subscribers, "a", 7).unwrap());
        subscribers.sweep();
        let mut found = None;
        let lease = subscribers.join(Call::Subscribe, "a", |remembered| {
            found = remembered;
            Ok::<_, TooManySubscribers>(7)
        });
        assert_eq!(found.map(|queue| queue.position), Some(7));
        drop(lease);

        let forgetful = Subscribers::new(Duration::ZERO, 10);
        drop(join(&forgetful, "a", 7).unwrap());
        forgetful.sweep();
        assert!(forgetful.snapshot().is_empty());
    }

    #[test]
    fn full_house_makes_room_at_the_cost_of_the_longest_gone() {
        let subscribers = Subscribers::new(HOUR, 2);
        drop(join(&subscribers, "gone", 1).unwrap());
        let _here = join(&subscribers, "here", 1).unwrap();
        let _new = join(&subscribers, "new", 1).unwrap();
        let names: Vec<_> = subscribers.snapshot().into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["here", "new"]);
        assert!(join(&subscribers, "more", 1).is_err());
    }
}
