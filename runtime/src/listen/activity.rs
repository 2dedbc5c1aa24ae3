//! Activity of a connection, and the timeouts that close it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::Limits;

/// Maximum interval between checks of a connection.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// How often a draining connection polls for pending requests.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why the process closes a connection, on accept or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    TooMany,
    TooManyPerAddress,
    InvalidProxyHeader,
    SlowRequest,
    Idle,
    SlowReader,
    Drained,
}

impl CloseReason {
    pub(super) const ALL: [Self; 7] = [
        Self::TooMany,
        Self::TooManyPerAddress,
        Self::InvalidProxyHeader,
        Self::SlowRequest,
        Self::Idle,
        Self::SlowReader,
        Self::Drained,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::TooMany => "too_many",
            Self::TooManyPerAddress => "too_many_per_address",
            Self::InvalidProxyHeader => "invalid_proxy_header",
            Self::SlowRequest => "slow_request",
            Self::Idle => "idle",
            Self::SlowReader => "slow_reader",
            Self::Drained => "drained",
        }
    }
}

/// Activity counters of a connection, read by its watcher.
#[derive(Debug, Default)]
pub struct Activity {
    pub(super) requests: AtomicU64,
    pub(super) in_progress: AtomicUsize,
    pub(super) bytes_read: AtomicU64,
    pub(super) bytes_read_at_request: AtomicU64,
    pub(super) bytes_written: AtomicU64,
    pub(super) write_blocked: AtomicBool,
    is_multiplexed: AtomicBool,
}

impl Activity {
    /// Records that the headers of a request were received, or data before the first request: a PROXY header or a TLS
    /// handshake. Later bytes count toward the next request.
    pub fn request(&self) {
        // Only one task writes these counters, so separate loads and stores suffice.
        let requests = self.requests.load(Ordering::Relaxed);
        self.requests.store(requests + 1, Ordering::Relaxed);
        let bytes_read = self.bytes_read.load(Ordering::Relaxed);
        self.bytes_read_at_request
            .store(bytes_read, Ordering::Relaxed);
    }

    /// Records that the bytes after the last request are the beginning of another one.
    pub fn partial_request(&self) {
        let bytes_read = self.bytes_read.load(Ordering::Relaxed);
        self.bytes_read_at_request
            .store(bytes_read.saturating_sub(1), Ordering::Relaxed);
    }

    /// Excludes the connection from the request timeout, because its protocol also sends bytes between requests.
    pub fn set_multiplexed(&self) {
        self.is_multiplexed.store(true, Ordering::Relaxed);
    }

    /// Records a request with a slow response. The connection is not idle until the guard is dropped.
    pub fn long_request(self: &Arc<Self>) -> InProgress {
        self.request();
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    /// Number of long requests in progress.
    pub fn in_progress(&self) -> usize {
        self.in_progress.load(Ordering::Relaxed)
    }

    /// Waits until no long request is in progress.
    pub async fn wait_idle(&self) {
        while self.in_progress() > 0 {
            sleep(DRAIN_POLL_INTERVAL).await;
        }
    }

    /// Waits until the connection exceeds the `current` limits; returns the reason.
    pub(super) async fn watch(&self, current: impl Fn() -> Limits) -> CloseReason {
        let mut watcher = Watcher::new(Instant::now());
        loop {
            let limits = current();
            let shortest = [limits.request_timeout, limits.write_timeout]
                .into_iter()
                .flatten()
                .fold(limits.idle_timeout, Duration::min);
            sleep((shortest / 2).min(CHECK_INTERVAL_MAX)).await;
            if let Some(reason) = watcher.check(self, Instant::now(), &current()) {
                return reason;
            }
        }
    }
}

/// A request in progress; see [`Activity::long_request`].
#[derive(Debug)]
pub struct InProgress(Arc<Activity>);

impl Drop for InProgress {
    fn drop(&mut self) {
        // Body bytes received so far do not count toward the next request.
        let bytes_read = self.0.bytes_read.load(Ordering::Relaxed);
        let at_request = &self.0.bytes_read_at_request;
        at_request.store(bytes_read, Ordering::Relaxed);
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Compares the activity with that of the previous check.
pub(super) struct Watcher {
    checked: Instant,
    requests: u64,
    idle_since: Instant,
    partial_since: Option<Instant>,
    bytes_written: u64,
    blocked_since: Option<Instant>,
}

impl Watcher {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            checked: now,
            requests: 0,
            idle_since: now,
            partial_since: None,
            bytes_written: 0,
            blocked_since: None,
        }
    }

    pub(super) fn check(
        &mut self,
        activity: &Activity,
        now: Instant,
        limits: &Limits,
    ) -> Option<CloseReason> {
        let requests = activity.requests.load(Ordering::Relaxed);
        if requests != self.requests || activity.in_progress.load(Ordering::Relaxed) > 0 {
            self.requests = requests;
            self.idle_since = now;
            self.partial_since = None;
        } else if activity.bytes_read.load(Ordering::Relaxed)
            > activity.bytes_read_at_request.load(Ordering::Relaxed)
        {
            // The request began after the previous check.
            let since = *self.partial_since.get_or_insert(self.checked);
            let request_timeout = limits.request_timeout;
            let request_timeout =
                request_timeout.filter(|_| !activity.is_multiplexed.load(Ordering::Relaxed));
            if request_timeout.is_some_and(|limit| now - since >= limit) {
                return Some(CloseReason::SlowRequest);
            }
        }
        self.checked = now;
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
                return Some(CloseReason::SlowReader);
            }
        }
        (now - self.idle_since >= limits.idle_timeout).then_some(CloseReason::Idle)
    }
}
