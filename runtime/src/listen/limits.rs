//! What a port grants its clients, and how that changes while it serves.

use std::time::Duration;

use tokio::sync::watch;

/// What a port grants its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at once; further ones are closed as soon as they are accepted.
    pub connections_max: usize,
    /// Most of them from one address; IPv6 addresses count by their first 64 bits. `None` for no bound but the
    /// one above: behind a load balancer, all come from one address.
    pub connections_per_address_max: Option<usize>,
    /// Longest time from the first byte of a request to its last header byte. A request that begins in the same
    /// read as the end of another has the idle timeout instead. `None` for protocols that say more than requests.
    pub request_timeout: Option<Duration>,
    /// Longest time without any request in progress; a sixteenth of it, or a second, where more than four fifths of the
    /// connections are taken.
    pub idle_timeout: Duration,
    /// Longest time that written bytes may wait for the client to read; `None` for ports whose protocol has
    /// its own flow control.
    pub write_timeout: Option<Duration>,
}

/// The limits that hold now. Anyone who made them of a channel may change them: numbers of connections hold for the next
/// one, and close none; times hold from the next look at a connection, which is due after half the shortest time that
/// held before, or five seconds.
#[derive(Debug, Clone)]
pub struct LiveLimits(watch::Receiver<Limits>);

impl LiveLimits {
    pub(super) fn now(&self) -> Limits {
        *self.0.borrow()
    }
}

impl From<Limits> for LiveLimits {
    /// Limits that never change.
    fn from(limits: Limits) -> Self {
        Self(watch::channel(limits).1)
    }
}

impl From<watch::Receiver<Limits>> for LiveLimits {
    fn from(limits: watch::Receiver<Limits>) -> Self {
        Self(limits)
    }
}
