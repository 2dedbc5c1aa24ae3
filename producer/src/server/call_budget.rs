//! The call budget: bounds what calls hold in memory until they are streams, over all connections.
//!
//! One half of the budget is for calls that become streams; each is charged a fixed amount, whatever it sends. The
//! other half is for requests beyond a small size, and for all other calls; each address has a limited share of it. So
//! neither large requests nor the health service, which needs no token, keep ordinary calls out. A charge is returned
//! when the call is over or has become a stream; streams are bounded by `--subscribers` and `--in-flight-bytes`.
//!
//! The fuller a half, the shorter its bytes may be held: from `HOLD_TIME_MAX` when it is half full down to
//! `HOLD_TIME_MIN` when it is nine tenths full. A call that asks for bytes ends the calls that have held some for
//! longer and, if its address has used up its share, calls of that address. What these hold no longer counts against
//! the call that asks; the last fifth of each half is reserved for that, until they are gone. A call that finds no room
//! even so is refused.
//!
//! All connections together begin at most 2,000 streams a second, and as many as arrive within the shortest hold time fit
//! into their half: streams that are never finished keep others out no longer than their first burst lasts. This does not
//! hold for the other half: of 1,000 health checks a second 200 fit, of reflection calls 12. At that rate, from many
//! addresses, they keep one another out, and requests beyond a small size; small requests for streams they do not.
//!
//! Cost: one lock when a call begins, one when it ends, and one for each frame of a large request.

use std::{
    collections::BTreeMap,
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

/// Most bytes that all calls hold until they are streams.
pub(crate) const BYTES_MAX: usize = 16 << 20;

/// Most bytes of each half.
const HALF_BYTES_MAX: usize = BYTES_MAX / 2;

/// Most bytes of each half held by standing calls, those that were not told to end.
const STANDING_BYTES_MAX: usize = HALF_BYTES_MAX / 5 * 4;

/// Most bytes of the requests' half that one address may hold: the charge of two of the largest requests.
const SHARE_BYTES_MAX: usize = 2 * COPIES * REQUEST_BYTES_MAX;

/// Bytes of a request that the fixed charge of its call covers: a name and some dozens of cursors.
const SMALL_REQUEST_BYTES: usize = 2 * 1024;

/// Bytes of a request count twice: the buffer that collects them may be half empty.
const COPIES: usize = 2;

/// How long a call may hold bytes of a half that is half full, and of one that is nearly full.
const HOLD_TIME_MAX: Duration = REQUEST_TIMEOUT;
const HOLD_TIME_MIN: Duration = Duration::from_millis(400);

/// The kinds of calls, which cost differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call that becomes a stream, or what is left of one.
    Stream,
    /// A health check, which may be a watch that lasts for hours.
    Health,
    /// Reflection, whose client may delay requests and responses; or an unknown call.
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

    /// The charge to the calls' half: what HTTP/2, the task and its timers need, and the small part of the request.
    fn call_bytes(self) -> usize {
        match self {
            Self::Stream => 8 * 1024,
            Self::Health | Self::Other => 0,
        }
    }

    /// The fixed charge to the requests' half, including the buffers that tonic allocates for requests and responses.
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
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    bytes: IntGauge,
    refused: IntCounter,
    ended_early: IntCounter,
}

#[derive(Debug, Default)]
struct State {
    calls: Half,
    requests: Half,
    opened: u64,
}

#[derive(Debug, Default)]
struct Half {
    taken: usize,
    /// The part of it held by calls that were told to end.
    ending: usize,
    /// The standing calls that hold some, the oldest first.
    holders: BTreeMap<u64, Held>,
}

/// What one call holds of a half.
#[derive(Debug)]
struct Held {
    holder: Holder,
    bytes: usize,
    /// What its address holds, if that is bounded.
    address: Option<Arc<AddressBytes>>,
}

/// What the calls of one address hold of the requests' half, and the part of it held by calls that were told to end;
/// changed only under the lock of the budget.
#[derive(Debug, Default)]
struct AddressBytes {
    taken: AtomicUsize,
    ending: AtomicUsize,
}

#[derive(Debug, Clone)]
struct Holder {
    since: Instant,
    end: CancellationToken,
}

impl CallBudget {
    /// An empty budget. `bytes` shows what is taken; `refused` counts calls that found no room, and `ended_early` those
    /// that were ended for others.
    pub(super) fn new(bytes: IntGauge, refused: IntCounter, ended_early: IntCounter) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                bytes,
                refused,
                ended_early,
            }),
        }
    }

    /// The share of one more address.
    pub(super) fn share(&self) -> AddressShare {
        AddressShare {
            shared: Arc::clone(&self.shared),
            address: Arc::default(),
        }
    }
}

/// The share of one address; clones belong to the same address.
#[derive(Debug, Clone)]
pub(super) struct AddressShare {
    shared: Arc<Shared>,
    address: Arc<AddressBytes>,
}

impl AddressShare {
    /// Charges a new call; `None` when there is no room.
    pub(super) fn open(&self, kind: CallKind, now: Instant) -> Option<Grant> {
        let mut state = self.shared.state();
        let id = state.opened;
        state.opened += 1;
        let holder = Holder {
            since: now,
            end: CancellationToken::new(),
        };
        let call_bytes = kind.call_bytes();
        let calls = &mut state.calls;
        if !self.shared.take(calls, id, &holder, call_bytes, None, now) {
            return None;
        }
        self.shared.show(&state);
        drop(state);
        let grant = Grant {
            share: self.clone(),
            id,
            holder,
            call_bytes,
            received: AtomicUsize::new(0),
            request_bytes: AtomicUsize::new(0),
        };
        grant.take(kind.request_bytes(), now).then_some(grant)
    }
}

/// What one call holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Grant {
    share: AddressShare,
    id: u64,
    holder: Holder,
    call_bytes: usize,
    received: AtomicUsize,
    request_bytes: AtomicUsize,
}

impl Grant {
    /// Charges `bytes` more of the request; false when there is no room and the call must end.
    pub(super) fn receive(&self, bytes: usize, now: Instant) -> bool {
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let beyond = |received: usize| received.saturating_sub(SMALL_REQUEST_BYTES);
        self.take(COPIES * (beyond(before + bytes) - beyond(before)), now)
    }

    /// Cancelled when the call must end because others need the bytes that it has held for long enough.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.holder.end
    }

    /// Takes `bytes` of the requests' half.
    fn take(&self, bytes: usize, now: Instant) -> bool {
        if bytes == 0 {
            return true;
        }
        let AddressShare { shared, address } = &self.share;
        let mut state = shared.state();
        let (requests, address) = (&mut state.requests, Some(address));
        let is_there = shared.take(requests, self.id, &self.holder, bytes, address, now);
        if is_there {
            self.request_bytes.fetch_add(bytes, Ordering::Relaxed);
            shared.show(&state);
        }
        is_there
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let shared = &self.share.shared;
        let request_bytes = *self.request_bytes.get_mut();
        let mut state = shared.state();
        state.calls.give_back(self.id, self.call_bytes, None);
        let address = Some(&self.share.address);
        state.requests.give_back(self.id, request_bytes, address);
        shared.show(&state);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, state: &State) {
        let bytes = i64::try_from(state.calls.taken + state.requests.taken);
        self.bytes.set(bytes.expect("it is within the budget"));
    }

    /// Takes `bytes` of `half` for `holder`; false when there is no room.
    fn take(
        &self,
        half: &mut Half,
        id: u64,
        holder: &Holder,
        bytes: usize,
        address: Option<&Arc<AddressBytes>>,
        now: Instant,
    ) -> bool {
        if bytes == 0 {
            return true;
        }
        let has_share = || address.is_none_or(|it| it.standing() + bytes <= SHARE_BYTES_MAX);
        let hold_time = hold_time(half.taken - half.ending + bytes);
        self.ended_early
            .inc_by(half.end_older(hold_time, now, |_| true));
        // Of its own address, no more calls than needed.
        if let Some(asking) = address {
            let is_wanted = |held: &Held| {
                let is_own = |of: &Arc<AddressBytes>| Arc::ptr_eq(of, asking);
                !has_share() && held.address.as_ref().is_some_and(is_own)
            };
            self.ended_early
                .inc_by(half.end_older(HOLD_TIME_MIN, now, is_wanted));
        }
        let is_room = has_share()
            && half.taken - half.ending + bytes <= STANDING_BYTES_MAX
            && half.taken + bytes <= HALF_BYTES_MAX;
        if !is_room || holder.end.is_cancelled() {
            self.refused.inc();
            return false;
        }
        half.taken += bytes;
        if let Some(address) = address {
            address.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        let held = half.holders.entry(id).or_insert_with(|| Held {
            holder: holder.clone(),
            bytes: 0,
            address: address.map(Arc::clone),
        });
        held.bytes += bytes;
        true
    }
}

impl AddressBytes {
    /// What its standing calls hold.
    fn standing(&self) -> usize {
        self.taken.load(Ordering::Relaxed) - self.ending.load(Ordering::Relaxed)
    }
}

impl Half {
    /// Ends the calls that are as old as `hold_time` and wanted, the oldest first; returns how many were told for the
    /// first time.
    fn end_older(
        &mut self,
        hold_time: Duration,
        now: Instant,
        is_wanted: impl Fn(&Held) -> bool,
    ) -> u64 {
        let is_old = |held: &Held| now.saturating_duration_since(held.holder.since) >= hold_time;
        let old = self.holders.iter().take_while(|(_, held)| is_old(held));
        let old: Vec<_> = old.map(|(id, _)| *id).collect();
        let mut ended = 0;
        for id in old {
            if !self.holders.get(&id).is_some_and(&is_wanted) {
                continue;
            }
            let Some(held) = self.holders.remove(&id) else {
                continue;
            };
            self.ending += held.bytes;
            if let Some(address) = &held.address {
                address.ending.fetch_add(held.bytes, Ordering::Relaxed);
            }
            ended += u64::from(!held.holder.end.is_cancelled());
            held.holder.end.cancel();
        }
        ended
    }

    fn give_back(&mut self, id: u64, bytes: usize, address: Option<&Arc<AddressBytes>>) {
        let was_ending = self.holders.remove(&id).is_none();
        self.taken -= bytes;
        self.ending -= if was_ending { bytes } else { 0 };
        if let Some(address) = address {
            address.taken.fetch_sub(bytes, Ordering::Relaxed);
            let ending = if was_ending { bytes } else { 0 };
            address.ending.fetch_sub(ending, Ordering::Relaxed);
        }
    }
}

/// How long a call may hold bytes of a half in which standing calls hold `taken` bytes.
fn hold_time(taken: usize) -> Duration {
    let percent = taken * 100 / STANDING_BYTES_MAX;
    match u32::try_from(percent.clamp(50, 90) - 50) {
        // There is room for others: only the calls' own deadlines apply.
        Ok(0) | Err(_) => Duration::MAX,
        Ok(short) => HOLD_TIME_MAX - (HOLD_TIME_MAX - HOLD_TIME_MIN) * short / 40,
    }
}

#[cfg(test)]
mod tests;
