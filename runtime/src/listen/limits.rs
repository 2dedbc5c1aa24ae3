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

impl Limits {
    /// As limits that never change.
    #[must_use]
    pub fn fixed(self) -> watch::Receiver<Self> {
        watch::channel(self).1
    }
}
