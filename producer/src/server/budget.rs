//! What calls hold in memory until they are streams: one budget of bytes for all connections.
//!
//! Half of the budget is for calls that are to become streams, each of which is charged for what it costs whatever it sends;
//! the other half is for what comes of their requests beyond a small part, and for all other calls; of it one address has
//! a share. So neither large requests nor the health service, which asks nobody for a token, keep an ordinary call out,
//! which is charged as a call alone. All is given back when the call is over, or has become a stream: streams are bounded
//! by `--subscribers` and `--pinned-bytes`.
//!
//! A half that runs short gives its holders less time, from `PATIENCE` when it is half full down to `HURRY` when nine tenths
//! are taken: a call that asks for bytes ends those that have held some for longer, and where its address has taken its share, those
//! of its address. These no longer count against the one that asks, which
//! is what the last fifth of a half is kept for until they are gone. All connections together make 2,000 calls a second, and as
//! many of them as come within the shortest time fit: so calls that are never finished keep no other out for longer than
//! their first burst. What finds no room even so is refused.
//!
//! Cost: a lock when a call begins and ends, and for each frame of a large request.

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

/// Most bytes of each half that are held by calls that were not told to end.
const ROOM_BYTES_MAX: usize = HALF_BYTES_MAX / 5 * 4;

/// How much of the requests' half one address may hold: what two of the largest requests are charged.
const SHARE_BYTES_MAX: usize = 2 * COPIES * REQUEST_BYTES_MAX;

/// Bytes of a request that its call's charge covers: a name and some dozens of cursors.
const SMALL_REQUEST_BYTES: usize = 2 * 1024;

/// Bytes of a request count twice: what collects them may be half empty.
const COPIES: usize = 2;

/// How long a call may hold bytes of a half that is half full, and of one that is nearly full.
const PATIENCE: Duration = REQUEST_TIMEOUT;
const HURRY: Duration = Duration::from_millis(400);

/// The kinds of calls, which cost differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To become a stream, or what is left of one.
    Stream,
    /// A question after the health, which may be answered for hours.
    Health,
    /// Reflection, whose client may let questions and answers wait; or no call at all.
    Other,
}

impl Kind {
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

    /// What such a call takes of the calls' half: what HTTP/2, its task and timers need, and the small part of its request.
    fn call_bytes(self) -> usize {
        match self {
            Self::Stream => 8 * 1024,
            Self::Health | Self::Other => 0,
        }
    }

    /// What it takes of the requests' half, whatever comes: also what tonic sets aside for questions and answers.
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
pub(super) struct Budget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    bytes: IntGauge,
    refused: IntCounter,
    hurried: IntCounter,
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
    /// How much of it those hold that were told to end.
    ending: usize,
    /// Who holds some and was not told to end, the oldest first.
    holders: BTreeMap<u64, Held>,
}

/// What one call holds of a half.
#[derive(Debug)]
struct Held {
    holder: Holder,
    bytes: usize,
    /// What its address holds, where that is bounded.
    of_address: Option<Arc<OfAddress>>,
}

/// What the calls of one address hold of the requests' half, and how much of it those that were told to end; changed under the lock
/// of the budget alone.
#[derive(Debug, Default)]
struct OfAddress {
    taken: AtomicUsize,
    ending: AtomicUsize,
}

#[derive(Debug, Clone)]
struct Holder {
    since: Instant,
    end: CancellationToken,
}

impl Budget {
    /// An empty one. `bytes` shows what is taken, `refused` counts what found no room, `hurried` the calls that were ended early.
    pub(super) fn new(bytes: IntGauge, refused: IntCounter, hurried: IntCounter) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                bytes,
                refused,
                hurried,
            }),
        }
    }

    /// The budget for the calls of one more address.
    pub(super) fn share(&self) -> Share {
        Share {
            shared: Arc::clone(&self.shared),
            of_address: Arc::default(),
        }
    }
}

/// The budget as one address has it; clones are of the same address.
#[derive(Debug, Clone)]
pub(super) struct Share {
    shared: Arc<Shared>,
    of_address: Arc<OfAddress>,
}

impl Share {
    /// Charges a new call; `None` when there is no room.
    pub(super) fn open(&self, kind: Kind, now: Instant) -> Option<Grant> {
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
    share: Share,
    id: u64,
    holder: Holder,
    call_bytes: usize,
    received: AtomicUsize,
    request_bytes: AtomicUsize,
}

impl Grant {
    /// Charges so many more bytes of the request; false when there is no room, and the call is to end.
    pub(super) fn receive(&self, bytes: usize, now: Instant) -> bool {
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let beyond = |received: usize| received.saturating_sub(SMALL_REQUEST_BYTES);
        self.take(COPIES * (beyond(before + bytes) - beyond(before)), now)
    }

    /// Cancelled when the call is to end, since others need what it has held for long enough.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.holder.end
    }

    /// Takes so much of the requests' half.
    fn take(&self, bytes: usize, now: Instant) -> bool {
        if bytes == 0 {
            return true;
        }
        let Share { shared, of_address } = &self.share;
        let mut state = shared.state();
        let (requests, of_address) = (&mut state.requests, Some(of_address));
        let is_there = shared.take(requests, self.id, &self.holder, bytes, of_address, now);
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
        let of_address = Some(&self.share.of_address);
        state.requests.give_back(self.id, request_bytes, of_address);
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
        of_address: Option<&Arc<OfAddress>>,
        now: Instant,
    ) -> bool {
        if bytes == 0 {
            return true;
        }
        let has_share = || of_address.is_none_or(|it| it.standing() + bytes <= SHARE_BYTES_MAX);
        let patience = patience(half.taken - half.ending + bytes);
        self.hurried.inc_by(half.end_older(patience, now, |_| true));
        // Of its own address no more than it needs.
        if let Some(asking) = of_address {
            let is_wanted = |held: &Held| {
                let is_own = |of: &Arc<OfAddress>| Arc::ptr_eq(of, asking);
                !has_share() && held.of_address.as_ref().is_some_and(is_own)
            };
            self.hurried.inc_by(half.end_older(HURRY, now, is_wanted));
        }
        let is_room = has_share()
            && half.taken - half.ending + bytes <= ROOM_BYTES_MAX
            && half.taken + bytes <= HALF_BYTES_MAX;
        if !is_room || holder.end.is_cancelled() {
            self.refused.inc();
            return false;
        }
        half.taken += bytes;
        if let Some(of_address) = of_address {
            of_address.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        let held = half.holders.entry(id).or_insert_with(|| Held {
            holder: holder.clone(),
            bytes: 0,
            of_address: of_address.map(Arc::clone),
        });
        held.bytes += bytes;
        true
    }
}

impl OfAddress {
    /// What those hold that were not told to end.
    fn standing(&self) -> usize {
        self.taken.load(Ordering::Relaxed) - self.ending.load(Ordering::Relaxed)
    }
}

impl Half {
    /// Ends those that are as old as `patience` and wanted, the oldest first; returns how many were not told before.
    fn end_older(
        &mut self,
        patience: Duration,
        now: Instant,
        is_wanted: impl Fn(&Held) -> bool,
    ) -> u64 {
        let is_old = |held: &Held| now.saturating_duration_since(held.holder.since) >= patience;
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
            if let Some(of_address) = &held.of_address {
                of_address.ending.fetch_add(held.bytes, Ordering::Relaxed);
            }
            ended += u64::from(!held.holder.end.is_cancelled());
            held.holder.end.cancel();
        }
        ended
    }

    fn give_back(&mut self, id: u64, bytes: usize, of_address: Option<&Arc<OfAddress>>) {
        let was_ending = self.holders.remove(&id).is_none();
        self.taken -= bytes;
        self.ending -= if was_ending { bytes } else { 0 };
        if let Some(of_address) = of_address {
            of_address.taken.fetch_sub(bytes, Ordering::Relaxed);
            let ending = if was_ending { bytes } else { 0 };
            of_address.ending.fetch_sub(ending, Ordering::Relaxed);
        }
    }
}

/// How long a call may hold bytes of a half of which so many are taken by calls that were not told to end.
fn patience(taken: usize) -> Duration {
    let percent = taken * 100 / ROOM_BYTES_MAX;
    match u32::try_from(percent.clamp(50, 90) - 50) {
        // Nobody is in anybody's way: the calls' own deadlines hold.
        Ok(0) | Err(_) => Duration::MAX,
        Ok(short) => PATIENCE - (PATIENCE - HURRY) * short / 40,
    }
}

#[cfg(test)]
mod tests;
