//! The call budget: bounds the memory of calls until they become streams, over all connections.
//!
//! One half of the budget is for calls that become streams; each is charged a fixed amount. The other half is for requests
//! beyond a small size and for all other calls; each address has a limited share of it. Thus neither large requests nor
//! health checks, which need no token, block ordinary calls. A charge is released when the call ends or becomes a stream;
//! streams are bounded by `--subscribers` and `--in-flight-bytes`.
//!
//! The fuller a half, the shorter a call may hold its bytes: from `HOLD_TIME_MAX` at 50% down to `HOLD_TIME_MIN` at 90%. A
//! new charge ends calls that have held bytes for longer and, if its address has used up its share, calls of that address.
//! Their bytes no longer count against the new charge; the last fifth of each half is reserved for them until they are
//! released. If the capacity is still insufficient, the call is rejected.
//!
//! All connections together begin at most 2,000 streams per second, and those of the minimum hold time fit into their
//! half. Calls that are never finished therefore block others only during their first burst. The other half has no such
//! guarantee: it has capacity for 200 of 1,000 health checks per second, or for 12 reflection calls. At that rate,
//! health checks from many addresses block each other and large requests, but not small requests for streams.
//!
//! Cost: one lock when a call begins, one when it ends, and one per frame of a large request, each with a scan of the
//! unfinished calls.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use prometheus::{IntCounter, IntGauge};
use proto::limits::REQUEST_BYTES_MAX;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::streams::REQUEST_TIMEOUT;

/// Maximum bytes of all calls until they become streams.
pub(crate) const BYTES_MAX: usize = 16 << 20;

/// Maximum bytes of each half.
const HALF_BYTES_MAX: usize = BYTES_MAX / 2;

/// Maximum bytes of active calls in each half, excluding calls that are ending.
const ACTIVE_BYTES_MAX: usize = HALF_BYTES_MAX / 5 * 4;

/// Maximum bytes of one address in the requests' half: the charge of two requests of the maximum size.
const SHARE_BYTES_MAX: usize = 2 * COPIES * REQUEST_BYTES_MAX;

/// Request size that the fixed charge of a call covers: a name and dozens of cursors.
const SMALL_REQUEST_BYTES: usize = 2 * 1024;

/// Request bytes count twice, because the buffer that collects them may be half empty.
const COPIES: usize = 2;

/// How long a call may hold bytes while its half is 50% full, and 90% full.
const HOLD_TIME_MAX: Duration = REQUEST_TIMEOUT;
const HOLD_TIME_MIN: Duration = Duration::from_millis(400);

/// Kind of a call, which determines its charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call that becomes a stream, or a stream that has ended.
    Stream,
    /// A health check, or a watch that lasts for hours.
    Health,
    /// Reflection, or an unknown call.
    Other,
}

impl CallKind {
    /// The kind of the call at this path.
    pub(super) fn of(path: &str) -> Self {
        if path.starts_with("/cookiesync.v1.CookieStreamer/") {
            Self::Stream
        } else if path.starts_with("/grpc.health.v1.Health/") {
            Self::Health
        } else {
            Self::Other
        }
    }

    /// Charge to the calls' half: for HTTP/2, the task with its timers, and a small request.
    fn call_bytes(self) -> usize {
        match self {
            Self::Stream => 8 * 1024,
            Self::Health | Self::Other => 0,
        }
    }

    /// Fixed charge to the requests' half, including the buffers that tonic allocates.
    fn request_bytes(self) -> usize {
        match self {
            Self::Stream => 0,
            Self::Health => 32 * 1024,
            Self::Other => 512 * 1024,
        }
    }
}

/// The budget of one producer; clones share it.
#[derive(Debug, Clone)]
pub(super) struct CallBudget {
    shared: Arc<CallBudgetShared>,
}

#[derive(Debug)]
struct CallBudgetShared {
    state: Mutex<BudgetState>,
    bytes: IntGauge,
    refused: IntCounter,
    ended_early: IntCounter,
}

#[derive(Debug, Default)]
struct BudgetState {
    calls: BudgetHalf,
    requests: BudgetHalf,
    opened: u64,
}

#[derive(Debug, Default)]
struct BudgetHalf {
    used: usize,
    /// Used bytes of calls that are ending.
    ending: usize,
    /// Active calls and their bytes, oldest first.
    holders: BTreeMap<u64, (Holder, usize)>,
}

/// A call.
#[derive(Debug, Clone)]
struct Holder {
    id: u64,
    since: Instant,
    end: CancellationToken,
    network: IpAddr,
}

impl CallBudget {
    /// An unused budget. `bytes` reports its usage, `refused` counts rejected calls, and `ended_early` calls that were ended for
    /// others.
    pub(super) fn new(bytes: IntGauge, refused: IntCounter, ended_early: IntCounter) -> Self {
        Self {
            shared: Arc::new(CallBudgetShared {
                state: Mutex::default(),
                bytes,
                refused,
                ended_early,
            }),
        }
    }

    /// The share of a network, whose addresses count as one.
    pub(super) fn share(&self, network: IpAddr) -> AddressShare {
        AddressShare {
            shared: Arc::clone(&self.shared),
            network,
        }
    }
}

/// The share of one address or network.
#[derive(Debug, Clone)]
pub(super) struct AddressShare {
    shared: Arc<CallBudgetShared>,
    pub(super) network: IpAddr,
}

impl AddressShare {
    /// Charges a new call; `None` if the budget is exceeded.
    pub(super) fn open(&self, kind: CallKind, now: Instant) -> Option<Grant> {
        let mut state = self.shared.state();
        let holder = Holder {
            id: state.opened,
            since: now,
            end: CancellationToken::new(),
            network: self.network,
        };
        state.opened += 1;
        let call_bytes = kind.call_bytes();
        let calls = &mut state.calls;
        if !self
            .shared
            .charge(calls, &holder, call_bytes, usize::MAX, now)
        {
            return None;
        }
        self.shared.publish(&state);
        drop(state);
        let grant = Grant {
            shared: Arc::clone(&self.shared),
            holder,
            call_bytes,
            received: AtomicUsize::new(0),
            request_bytes: AtomicUsize::new(0),
        };
        grant.charge(kind.request_bytes(), now).then_some(grant)
    }
}

/// The charge of one call, released on drop.
#[derive(Debug)]
pub(super) struct Grant {
    shared: Arc<CallBudgetShared>,
    holder: Holder,
    call_bytes: usize,
    received: AtomicUsize,
    request_bytes: AtomicUsize,
}

impl Grant {
    /// Charges `bytes` more of the request; false if the budget is exceeded and the call must end.
    pub(super) fn receive(&self, bytes: usize, now: Instant) -> bool {
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let beyond = |received: usize| received.saturating_sub(SMALL_REQUEST_BYTES);
        self.charge(COPIES * (beyond(before + bytes) - beyond(before)), now)
    }

    /// Cancelled when the call must end because other calls need its bytes.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.holder.end
    }

    /// Charges `bytes` to the requests' half.
    fn charge(&self, bytes: usize, now: Instant) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut state = self.shared.state();
        let requests = &mut state.requests;
        let is_granted = self
            .shared
            .charge(requests, &self.holder, bytes, SHARE_BYTES_MAX, now);
        if is_granted {
            self.request_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.shared.publish(&state);
        }
        is_granted
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let request_bytes = *self.request_bytes.get_mut();
        let mut state = self.shared.state();
        state.calls.release(self.holder.id, self.call_bytes);
        state.requests.release(self.holder.id, request_bytes);
        self.shared.publish(&state);
    }
}

impl CallBudgetShared {
    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: &BudgetState) {
        let bytes = i64::try_from(state.calls.used + state.requests.used);
        self.bytes.set(bytes.expect("within the budget"));
    }

    /// Charges `bytes` in `half` to the call `holder`, whose address may use up to `share_max`. Returns false if the
    /// budget is exceeded.
    fn charge(
        &self,
        half: &mut BudgetHalf,
        holder: &Holder,
        bytes: usize,
        share_max: usize,
        now: Instant,
    ) -> bool {
        if bytes == 0 {
            return true;
        }
        let hold_time = hold_time(half.used - half.ending + bytes);
        while let Some(id) = half.oldest(hold_time, now, |_| true) {
            self.end(half, id);
        }
        // Ends no more calls of its own address than needed.
        let is_own = |held: &Holder| held.network == holder.network;
        while !half.has_share(holder, bytes, share_max)
            && let Some(id) = half.oldest(HOLD_TIME_MIN, now, is_own)
        {
            self.end(half, id);
        }
        let has_capacity = half.has_share(holder, bytes, share_max)
            && half.used - half.ending + bytes <= ACTIVE_BYTES_MAX
            && half.used + bytes <= HALF_BYTES_MAX;
        if !has_capacity || holder.end.is_cancelled() {
            self.refused.inc();
            return false;
        }
        half.used += bytes;
        let held = half.holders.entry(holder.id);
        held.or_insert_with(|| (holder.clone(), 0)).1 += bytes;
        true
    }

    /// Ends a call early.
    fn end(&self, half: &mut BudgetHalf, id: u64) {
        if let Some((holder, bytes)) = half.holders.remove(&id) {
            half.ending += bytes;
            self.ended_early
                .inc_by(u64::from(!holder.end.is_cancelled()));
            holder.end.cancel();
        }
    }
}

impl BudgetHalf {
    /// Whether the active calls of an address may use `bytes` more.
    fn has_share(&self, holder: &Holder, bytes: usize, share_max: usize) -> bool {
        if share_max == usize::MAX {
            return true;
        }
        let own = self.holders.values();
        let own = own.filter(|(held, _)| held.network == holder.network);
        let held: usize = own.map(|(_, bytes)| bytes).sum();
        held <= share_max.saturating_sub(bytes)
    }

    /// The oldest matching call that is at least `hold_time` old.
    fn oldest(
        &self,
        hold_time: Duration,
        now: Instant,
        matches: impl Fn(&Holder) -> bool,
    ) -> Option<u64> {
        let is_old = |held: &Holder| now.saturating_duration_since(held.since) >= hold_time;
        let mut old = self
            .holders
            .values()
            .map(|(held, _)| held)
            .take_while(|held| is_old(held));
        old.find(|held| matches(held)).map(|held| held.id)
    }

    fn release(&mut self, id: u64, bytes: usize) {
        self.used -= bytes;
        if self.holders.remove(&id).is_none() {
            self.ending -= bytes;
        }
    }
}

/// How long a call may hold bytes of a half in which active calls hold `used` bytes.
fn hold_time(used: usize) -> Duration {
    let percent = used * 100 / ACTIVE_BYTES_MAX;
    match u32::try_from(percent.clamp(50, 90) - 50) {
        // Sufficient capacity: only the deadlines of the calls apply.
        Ok(0) | Err(_) => Duration::MAX,
        Ok(short) => HOLD_TIME_MAX - (HOLD_TIME_MAX - HOLD_TIME_MIN) * short / 40,
    }
}

#[cfg(test)]
mod tests;
