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
//! Cost: one lock when a call begins, one when it ends, and one for each frame of a large request; under it a walk over the
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
    /// The standing calls that hold some, and how much, the oldest first.
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

    /// The share of the addresses of a network.
    pub(super) fn share(&self, network: IpAddr) -> AddressShare {
        AddressShare {
            shared: Arc::clone(&self.shared),
            network,
        }
    }
}

/// The share of one address, or one network that counts as such.
#[derive(Debug, Clone)]
pub(super) struct AddressShare {
    shared: Arc<Shared>,
    pub(super) network: IpAddr,
}

impl AddressShare {
    /// Charges a new call; `None` when there is no room.
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
            .take(calls, &holder, call_bytes, usize::MAX, now)
        {
            return None;
        }
        self.shared.show(&state);
        drop(state);
        let grant = Grant {
            shared: Arc::clone(&self.shared),
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
    shared: Arc<Shared>,
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
        let mut state = self.shared.state();
        let requests = &mut state.requests;
        let is_there = self
            .shared
            .take(requests, &self.holder, bytes, SHARE_BYTES_MAX, now);
        if is_there {
            self.request_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.shared.show(&state);
        }
        is_there
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let request_bytes = *self.request_bytes.get_mut();
        let mut state = self.shared.state();
        state.calls.give_back(self.holder.id, self.call_bytes);
        state.requests.give_back(self.holder.id, request_bytes);
        self.shared.show(&state);
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

    /// Takes `bytes` of `half`, of which one address may hold `share_max`, for `holder`; false when there is no room.
    fn take(
        &self,
        half: &mut Half,
        holder: &Holder,
        bytes: usize,
        share_max: usize,
        now: Instant,
    ) -> bool {
        if bytes == 0 {
            return true;
        }
        let hold_time = hold_time(half.taken - half.ending + bytes);
        while let Some(id) = half.oldest(hold_time, now, |_| true) {
            self.end(half, id);
        }
        // Of its own address, no more calls than needed.
        let is_own = |held: &Holder| held.network == holder.network;
        while !half.has_share(holder, bytes, share_max)
            && let Some(id) = half.oldest(HOLD_TIME_MIN, now, is_own)
        {
            self.end(half, id);
        }
        let is_room = half.has_share(holder, bytes, share_max)
            && half.taken - half.ending + bytes <= STANDING_BYTES_MAX
            && half.taken + bytes <= HALF_BYTES_MAX;
        if !is_room || holder.end.is_cancelled() {
            self.refused.inc();
            return false;
        }
        half.taken += bytes;
        let held = half.holders.entry(holder.id);
        held.or_insert_with(|| (holder.clone(), 0)).1 += bytes;
        true
    }

    /// Tells a call to end.
    fn end(&self, half: &mut Half, id: u64) {
        if let Some((holder, bytes)) = half.holders.remove(&id) {
            half.ending += bytes;
            self.ended_early
                .inc_by(u64::from(!holder.end.is_cancelled()));
            holder.end.cancel();
        }
    }
}

impl Half {
    /// Whether the standing calls of an address may hold so many bytes more.
    fn has_share(&self, of: &Holder, bytes: usize, share_max: usize) -> bool {
        if share_max == usize::MAX {
            return true;
        }
        let own = self.holders.values();
        let own = own.filter(|(held, _)| held.network == of.network);
        let held: usize = own.map(|(_, bytes)| bytes).sum();
        held <= share_max.saturating_sub(bytes)
    }

    /// The oldest call that is as old as `hold_time` and wanted.
    fn oldest(
        &self,
        hold_time: Duration,
        now: Instant,
        is_wanted: impl Fn(&Holder) -> bool,
    ) -> Option<u64> {
        let is_old = |held: &Holder| now.saturating_duration_since(held.since) >= hold_time;
        let mut old = self
            .holders
            .values()
            .map(|(held, _)| held)
            .take_while(|held| is_old(held));
        old.find(|held| is_wanted(held)).map(|held| held.id)
    }

    fn give_back(&mut self, id: u64, bytes: usize) {
        self.taken -= bytes;
        if self.holders.remove(&id).is_none() {
            self.ending -= bytes;
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
