//! Connection limits and timeouts of a port.

use std::time::Duration;

use tokio::sync::watch;

/// Connection limits and timeouts of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections; further ones are closed on accept.
    pub connections_max: usize,
    /// Maximum number per client address (IPv6: per /64); `None` for no limit, because a load balancer uses one address for all
    /// clients.
    pub connections_per_address_max: Option<usize>,
    /// Maximum time from the first byte of a request to the end of its headers, or of its body if the port handles requests with
    /// their bodies. If a read contains the end of one request and
    /// the start of the next, the idle timeout applies instead. `None` for protocols that send more than requests.
    pub request_timeout: Option<Duration>,
    /// Maximum time without a request in progress. While more than 80% of the connections are in use, the maximum is 1/16
    /// of it, but at least one second.
    pub idle_timeout: Duration,
    /// Maximum time that a write may block because the client does not read; `None` for protocols with their own flow
    /// control.
    pub write_timeout: Option<Duration>,
}

impl Limits {
    /// These limits with another maximum number of connections, of which one address has at most three quarters.
    #[must_use]
    pub const fn with(mut self, connections_max: usize) -> Self {
        self.connections_max = connections_max;
        let each = connections_max.saturating_sub(connections_max / 4);
        if let Some(max) = self.connections_per_address_max
            && max > each
        {
            self.connections_per_address_max = Some(each);
        }
        self
    }

    /// A receiver of constant limits.
    pub fn fixed(self) -> watch::Receiver<Self> {
        watch::channel(self).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_hold_all_connections() {
        let limits = crate::admin::LIMITS;
        for (connections, of_address) in [(1_000, 192), (256, 192), (24, 18), (3, 3), (0, 0)] {
            let limits = limits.with(connections);
            assert_eq!(limits.connections_per_address_max, Some(of_address));
            assert_eq!(limits.connections_max, connections);
        }
        let unlimited = Limits {
            connections_per_address_max: None,
            ..limits
        };
        assert_eq!(unlimited.with(24).connections_per_address_max, None);
    }
}
