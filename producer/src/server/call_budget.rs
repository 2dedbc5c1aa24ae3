//! The call budget: bounds the memory of calls until they become streams, over all connections.
//!
//! One half of the budget is for calls that become streams; each is charged a fixed amount. The other half is for requests
//! beyond a small size and for all other calls; each address has a limited share of it. Thus neither large requests nor
//! health checks, which need no token, can block calls that become streams. A charge is released when the call ends or
//! becomes a stream; `--subscribers` and `--in-flight-bytes` bound streams.
//!
//! If a new charge does not fit, calls that have held bytes for at least `HOLD_TIME` are ended, oldest first, until it
//! fits. If the address of the new call has used up its share, only calls of that address are ended. Ended calls may still
//! use memory, but no longer count against new charges: the last fifth of each half is reserved for them. If ending calls
//! is not enough, the new call is rejected.
//!
//! All connections together begin at most 2,000 streams per second, and the streams begun during `HOLD_TIME` fit into
//! their half. Calls that are never finished therefore block others only during their first burst. The other half has no
//! such guarantee: it has capacity for 200 health checks or 12 reflection calls. At 1,000 health checks per second from
//! many addresses, they block each other and large requests, but not small requests for streams.
//!
//! The lock of the budget is taken when a call begins, when it ends, and for each frame of a large request. Each new
//! charge scans the unfinished calls.

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

/// How long a call may hold bytes that other calls need.
const HOLD_TIME: Duration = Duration::from_millis(400);

/// Kind of a call, which determines its charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call that becomes a stream, or a stream that has ended.
    Stream,
    /// A health check, or a health watch, which lasts for hours.
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

/// The budget of one producer.
#[derive(Debug)]
pub(super) struct CallBudget {
    pub(super) state: Mutex<BudgetState>,
    /// Used bytes.
    pub(super) bytes: IntGauge,
    /// Rejected calls.
    pub(super) refused: IntCounter,
    /// Calls that were ended because other calls needed their bytes.
    pub(super) ended_early: IntCounter,
}

#[derive(Debug, Default)]
pub(super) struct BudgetState {
    calls: BudgetHalf,
    requests: BudgetHalf,
    opened: u64,
}

#[derive(Debug, Default)]
struct BudgetHalf {
    /// Bytes of all calls, including calls that are ending.
    used: usize,
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

/// The share of a network, whose addresses count as one.
#[derive(Debug, Clone)]
pub(super) struct AddressShare {
    pub(super) budget: Arc<CallBudget>,
    pub(super) network: IpAddr,
}

impl AddressShare {
    /// Charges a new call; `None` if the budget is exceeded.
    pub(super) fn open(&self, kind: CallKind, now: Instant) -> Option<Grant> {
        let mut state = self.budget.state();
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
            .budget
            .charge(calls, &holder, call_bytes, usize::MAX, now)
        {
            return None;
        }
        self.budget.publish(&state);
        drop(state);
        let grant = Grant {
            budget: Arc::clone(&self.budget),
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
    budget: Arc<CallBudget>,
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
        let mut state = self.budget.state();
        let requests = &mut state.requests;
        let is_granted = self
            .budget
            .charge(requests, &self.holder, bytes, SHARE_BYTES_MAX, now);
        if is_granted {
            self.request_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.budget.publish(&state);
        }
        is_granted
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let request_bytes = *self.request_bytes.get_mut();
        let mut state = self.budget.state();
        state.calls.release(self.holder.id, self.call_bytes);
        state.requests.release(self.holder.id, request_bytes);
        self.budget.publish(&state);
    }
}

impl CallBudget {
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
        let is_own = |held: &Holder| held.network == holder.network;
        let has_share = |half: &BudgetHalf| half.held_by(is_own) <= share_max.saturating_sub(bytes);
        while !has_share(half)
            && let Some(id) = half.oldest(now, is_own)
        {
            self.end(half, id);
        }
        let has_capacity = |half: &BudgetHalf| half.held_by(|_| true) + bytes <= ACTIVE_BYTES_MAX;
        while !has_capacity(half)
            && let Some(id) = half.oldest(now, |_| true)
        {
            self.end(half, id);
        }
        let fits = has_share(half) && has_capacity(half) && half.used + bytes <= HALF_BYTES_MAX;
        if !fits || holder.end.is_cancelled() {
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
        if let Some((holder, _)) = half.holders.remove(&id) {
            self.ended_early
                .inc_by(u64::from(!holder.end.is_cancelled()));
            holder.end.cancel();
        }
    }
}

impl BudgetHalf {
    /// Bytes of the matching active calls.
    fn held_by(&self, matches: impl Fn(&Holder) -> bool) -> usize {
        let held = self.holders.values().filter(|(held, _)| matches(held));
        held.map(|(_, bytes)| bytes).sum()
    }

    /// The oldest matching call that has held its bytes for [`HOLD_TIME`].
    fn oldest(&self, now: Instant, matches: impl Fn(&Holder) -> bool) -> Option<u64> {
        let is_old = |held: &Holder| now.saturating_duration_since(held.since) >= HOLD_TIME;
        let mut calls = self.holders.values().map(|(held, _)| held);
        let oldest = calls.find(|held| matches(held));
        oldest.filter(|held| is_old(held)).map(|held| held.id)
    }

    fn release(&mut self, id: u64, bytes: usize) {
        self.used -= bytes;
        self.holders.remove(&id);
    }
}

#[cfg(test)]
mod tests;
