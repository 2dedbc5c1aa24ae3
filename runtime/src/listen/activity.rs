//! What a connection has been doing, and when that is reason to cut it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::Limits;

/// How often a connection is looked at, at least.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// How often a draining connection looks whether its requests are done.
const QUIET_LOOK: Duration = Duration::from_millis(10);

/// Why a connection is cut, as early as it is accepted or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    TooMany,
    TooManyOfAddress,
    SlowRequest,
    Idle,
    SlowReader,
    Drained,
}

impl Cut {
    pub(super) const ALL: [Self; 6] = [
        Self::TooMany,
        Self::TooManyOfAddress,
        Self::SlowRequest,
        Self::Idle,
        Self::SlowReader,
        Self::Drained,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::TooMany => "too_many",
            Self::TooManyOfAddress => "too_many_per_address",
            Self::SlowRequest => "slow_request",
            Self::Idle => "idle",
            Self::SlowReader => "slow_reader",
            Self::Drained => "drained",
        }
    }
}

/// What a connection has been doing, for its watcher.
#[derive(Debug, Default)]
pub struct Activity {
    pub(super) requests: AtomicU64,
    pub(super) in_progress: AtomicUsize,
    pub(super) bytes_read: AtomicU64,
    pub(super) bytes_read_at_request: AtomicU64,
    pub(super) bytes_written: AtomicU64,
    pub(super) write_blocked: AtomicBool,
}

impl Activity {
    /// Notes that a request's head was read whole.
    pub fn request(&self) {
        // One task drives the connection, so plain loads and stores suffice; the watcher only compares.
        let requests = self.requests.load(Ordering::Relaxed);
        self.requests.store(requests + 1, Ordering::Relaxed);
        let bytes_read = self.bytes_read.load(Ordering::Relaxed);
        self.bytes_read_at_request
            .store(bytes_read, Ordering::Relaxed);
    }

    /// Notes a request whose answer takes time; the connection is not idle until the guard is dropped.
    #[must_use]
    pub fn long_request(self: &Arc<Self>) -> InProgress {
        self.request();
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    /// Long requests in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.in_progress.load(Ordering::Relaxed)
    }

    /// Waits until no long request is in progress.
    pub async fn quiet(&self) {
        while self.in_progress() > 0 {
            sleep(QUIET_LOOK).await;
        }
    }

    /// Waits until the connection is to be cut by what is `granted` then, and says why.
    pub(super) async fn watch(&self, granted: impl Fn() -> Limits) -> Cut {
        let mut watcher = Watcher::new(Instant::now());
        loop {
            let now = granted();
            let shortest = [now.request_timeout, now.write_timeout]
                .into_iter()
                .flatten()
                .fold(now.idle_timeout, Duration::min);
            sleep((shortest / 2).min(LOOK_MAX)).await;
            if let Some(cut) = watcher.look(self, Instant::now(), &granted()) {
                return cut;
            }
        }
    }
}

/// A request in progress; see [`Activity::long_request`].
#[derive(Debug)]
pub struct InProgress(Arc<Activity>);

impl Drop for InProgress {
    fn drop(&mut self) {
        // A body that came after its head is no part of the next request.
        let bytes_read = self.0.bytes_read.load(Ordering::Relaxed);
        let at_request = &self.0.bytes_read_at_request;
        at_request.store(bytes_read, Ordering::Relaxed);
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Compares what it saw last with what there is now.
pub(super) struct Watcher {
    looked: Instant,
    requests: u64,
    idle_since: Instant,
    partial_since: Option<Instant>,
    bytes_written: u64,
    blocked_since: Option<Instant>,
}

impl Watcher {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            looked: now,
            requests: 0,
            idle_since: now,
            partial_since: None,
            bytes_written: 0,
            blocked_since: None,
        }
    }

    pub(super) fn look(
        &mut self,
        activity: &Activity,
        now: Instant,
        limits: &Limits,
    ) -> Option<Cut> {
        let requests = activity.requests.load(Ordering::Relaxed);
        if requests != self.requests || activity.in_progress.load(Ordering::Relaxed) > 0 {
            self.requests = requests;
            self.idle_since = now;
            self.partial_since = None;
        } else if activity.bytes_read.load(Ordering::Relaxed)
            > activity.bytes_read_at_request.load(Ordering::Relaxed)
        {
            // It began after the look before this one.
            let since = *self.partial_since.get_or_insert(self.looked);
            if limits
                .request_timeout
                .is_some_and(|limit| now - since >= limit)
            {
                return Some(Cut::SlowRequest);
            }
        }
        self.looked = now;
        let bytes_written = activity.bytes_written.load(Ordering::Relaxed);
        if !activity.write_blocked.load(Ordering::Relaxed) || bytes_written != self.bytes_written {
            self.bytes_written = bytes_written;
            self.blocked_since = None;
        } else {
            let since = *self.blocked_since.get_or_insert(now);
            if limits
                .write_timeout
                .is_some_and(|limit| now - since >= limit)
            {
                return Some(Cut::SlowReader);
            }
        }
        (now - self.idle_since >= limits.idle_timeout).then_some(Cut::Idle)
    }
}
