//! What connections hold of what they were handed: counted for each stream and in all, and bounded.
//!
//! Bytes that a stream has taken out of the log are pinned until HTTP/2 has written them to the connection, or has let
//! them go. A stream whose client has stopped reading keeps them for as long as it likes, also when the log has
//! moved on: so they are counted, and where all streams together hold more than the bound, the worst are cut off until
//! they do not. The worst is one that has let nothing go for `STALLED_AFTER`; among those the one that holds most; and
//! among equals, which differ by less than `EQUAL_BYTES`, the one that has stood still for longest. A stream that
//! is cut off ends with `RESOURCE_EXHAUSTED`, and its queue stays: the subscriber comes back by its cursor or its name.
//!
//! Each stream counts in full for what it holds, although chunks are shared with the log and with other streams: the
//! sum is an upper bound of the memory, and telling apart what is shared would cost more than it tells.
//!
//! Cost: three relaxed atomic operations for a chunk that is handed out and a look at the clock when it is let go. The
//! streams are walked only when the sum exceeds the bound, and what those hold who were cut off already.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use prometheus::IntGauge;
use runtime::metrics::Registry;
use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::subscribers::Call;

/// A stream that has let nothing go for so long is cut off before one that moves.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Streams that hold about the same are told apart by how long they have stood still; a chunk of the default size.
const EQUAL_BYTES: u64 = 64 * 1024;

/// What one queue's streams hold, and how often they were cut off for it.
#[derive(Debug)]
pub struct Account {
    subscriber: String,
    call: Call,
    bytes: AtomicU64,
    cuts: AtomicU64,
}

impl Account {
    /// Nothing held so far by the queue of that name.
    #[must_use]
    pub fn new(call: Call, subscriber: &str) -> Self {
        Self {
            subscriber: subscriber.to_owned(),
            call,
            bytes: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
        }
    }

    /// Whose it is: the name and the call of its queue, for the log.
    #[must_use]
    pub(crate) fn name(&self) -> (&str, &'static str) {
        (&self.subscriber, self.call.label())
    }

    /// Bytes handed to its streams that their connections have not let go.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How often one of its streams was cut off because all together held too much.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// What all streams of one producer hold; clones share it.
#[derive(Debug, Clone)]
pub struct Pinned {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes: IntGauge,
    bytes_max: u64,
    /// Up to what sum the latest walk was enough: the bound, and what those hold who were cut off.
    enough: AtomicI64,
    began: Instant,
    holds: Mutex<Vec<Weak<Hold>>>,
}

impl Pinned {
    /// Bounds what all streams hold to `bytes_max`; registers `producer_pinned_bytes` and its bound.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn register(registry: &Registry, bytes_max: u64) -> prometheus::Result<Self> {
        let bytes = IntGauge::new(
            "producer_pinned_bytes",
            "Bytes handed to streams that their connections have not let go, each stream counted in full.",
        )?;
        let limit = IntGauge::new(
            "producer_pinned_limit_bytes",
            "Where subscribers are cut off for what their connections hold.",
        )?;
        limit.set(i64::try_from(bytes_max).unwrap_or(i64::MAX));
        registry.register(Box::new(bytes.clone()))?;
        registry.register(Box::new(limit))?;
        Ok(Self {
            shared: Arc::new(Shared {
                bytes,
                bytes_max,
                enough: AtomicI64::new(0),
                began: Instant::now(),
                holds: Mutex::default(),
            }),
        })
    }

    /// Counts for a new stream of `account`'s queue, which the log names from a certain time on, if it must be cut off.
    pub(crate) fn open(&self, account: &Arc<Account>, told_from: Instant) -> Arc<Hold> {
        let hold = Arc::new(Hold {
            shared: Arc::clone(&self.shared),
            account: Arc::clone(account),
            told_from,
            bytes: AtomicU64::new(0),
            moved_millis: AtomicU64::new(self.shared.millis()),
            cut: CancellationToken::new(),
            released: Notify::new(),
        });
        let mut holds = self.shared.holds();
        holds.retain(|hold| hold.strong_count() > 0);
        holds.push(Arc::downgrade(&hold));
        hold
    }
}

/// What one stream holds.
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
    account: Arc<Account>,
    told_from: Instant,
    bytes: AtomicU64,
    /// When it last let something go, or began to hold something.
    moved_millis: AtomicU64,
    cut: CancellationToken,
    released: Notify,
}

impl Hold {
    /// Bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` until what it returns is dropped; cuts off whom that makes too much.
    pub fn pin(self: &Arc<Self>, bytes: usize) -> Pin {
        let bytes = bytes as u64;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.moved();
        }
        self.account.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.bytes.add(signed(bytes));
        let total = self.shared.total();
        if total > self.shared.bytes_max
            && signed(total) > self.shared.enough.load(Ordering::Relaxed)
        {
            self.shared
                .enforce(self.shared.bytes_max, self.shared.millis());
        }
        Pin {
            hold: Arc::clone(self),
            bytes,
        }
    }

    /// Cancelled when the stream is to end for what all together hold.
    #[must_use]
    pub fn cut(&self) -> &CancellationToken {
        &self.cut
    }

    /// Waits until the stream, which is over, holds nothing.
    pub async fn released(&self) {
        while self.bytes() > 0 {
            self.released.notified().await;
        }
    }

    fn moved(&self) {
        let now = self.shared.millis();
        self.moved_millis.store(now, Ordering::Relaxed);
    }

    /// The greater, the worse; `None` for a stream that holds nothing.
    fn badness(&self, now: u64) -> Option<(bool, u64, u64)> {
        let bytes = self.bytes();
        let stood = now.saturating_sub(self.moved_millis.load(Ordering::Relaxed));
        let stalled = u128::from(stood) >= STALLED_AFTER.as_millis();
        (bytes > 0).then_some((stalled, bytes / EQUAL_BYTES, stood))
    }
}

/// Bytes in the hands of a connection; lets them go when dropped.
#[derive(Debug)]
pub struct Pin {
    hold: Arc<Hold>,
    bytes: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let hold = &self.hold;
        hold.shared.bytes.sub(signed(self.bytes));
        if hold.cut.is_cancelled() {
            hold.shared
                .enough
                .fetch_sub(signed(self.bytes), Ordering::Relaxed);
        }
        hold.account.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let rest = hold.bytes.fetch_sub(self.bytes, Ordering::Relaxed) - self.bytes;
        hold.moved();
        if rest == 0 {
            hold.released.notify_one();
        }
    }
}

impl Shared {
    fn holds(&self) -> MutexGuard<'_, Vec<Weak<Hold>>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn total(&self) -> u64 {
        u64::try_from(self.bytes.get()).unwrap_or(0)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Cuts off the worst until what the others hold is within the bound; `now` is in this clock's milliseconds.
    fn enforce(&self, bytes_max: u64, now: u64) {
        let holds = self.holds();
        let (cut, mut rest): (Vec<_>, Vec<_>) = holds
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|hold| hold.badness(now).map(|badness| (badness, hold)))
            .partition(|(_, hold)| hold.cut.is_cancelled());
        let going: u64 = cut.iter().map(|(_, hold)| hold.bytes()).sum();
        let total = self.total();
        let mut held = total.saturating_sub(going);
        rest.sort_unstable_by_key(|&(badness, _)| badness);
        while held > bytes_max {
            let Some(((_, _, stood_millis), worst)) = rest.pop() else {
                return;
            };
            let bytes = worst.bytes();
            // Short streams could fill the log with what they make up.
            if Instant::now() >= worst.told_from {
                tracing::warn!(
                    subscriber = worst.account.subscriber,
                    call = worst.account.call.label(),
                    pinned_bytes = bytes,
                    stood_millis,
                    all_pinned_bytes = held,
                    pinned_bytes_max = bytes_max,
                    "cut off a subscriber for what its connection holds"
                );
            }
            worst.account.cuts.fetch_add(1, Ordering::Relaxed);
            worst.cut.cancel();
            held = held.saturating_sub(bytes);
        }
        let enough = signed(bytes_max) + signed(total) - signed(held);
        self.enough.store(enough, Ordering::Relaxed);
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).expect("a message is shorter than 2^63 bytes")
}

#[cfg(test)]
mod tests;
