//! Deletions that browsers request: by the opt-out page, and by `/setuid` without a uid.
//!
//! Any client other than a browser can request them with any user id, also repeatedly. A secret value in the form would not
//! prevent that: such a client can request the form, too. Deletions are therefore limited for each client
//! address, and for all clients together. Their delivery is not checked.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use httparse::Header;
use prometheus::{IntCounter, IntCounterVec};
use runtime::listen::addresses;
use tokio::time::Instant;

use super::head;
use crate::{
    log::{Deletion, Log},
    rate_limits::{Rate, RateLimits},
    shaping::Shaping,
};

/// Rate limits of deletions, and their bursts: of all clients together, and of one address, which many browsers may share.
const RATES: [Rate; 2] = [("20/s", 1_000), ("1/s", 50)];

/// Maximum number of tracked addresses: more than the total rate and its burst allow while an address has less than its burst.
const ADDRESSES_MAX: usize = 4_096;

/// The rate exceeds its limit, or the log is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy;

/// Deletions by browsers of one producer.
#[derive(Debug)]
pub struct BrowserDeletions {
    /// By network of the client; the total has no key.
    limits: RateLimits<Option<IpAddr>, 2>,
    opt_outs: IntCounter,
    pairs: IntCounter,
}

impl BrowserDeletions {
    /// Counts deletions in `deletions`, by scope.
    #[must_use]
    pub fn new(deletions: &IntCounterVec) -> Self {
        Self {
            limits: RateLimits::new(RATES, ADDRESSES_MAX),
            opt_outs: deletions.with_label_values(&["optout"]),
            pairs: deletions.with_label_values(&["pair"]),
        }
    }

    /// Deletes the match of a user at one DSP, or with DSP 0 all matches of the user.
    pub(super) fn delete(
        &self,
        user_id: &str,
        dsp_id: u32,
        client: Option<IpAddr>,
        log: &Log,
        shaping: Option<&Shaping>,
    ) -> Result<(), Busy> {
        let mut rates = vec![(0, None)];
        rates.extend(client.map(|client| (1, Some(addresses::network(client)))));
        let charged = self
            .limits
            .charge(&rates, 1, Instant::now(), Duration::ZERO);
        charged.map_err(|_| Busy)?;
        let deletion = vec![Deletion {
            user_id: user_id.to_owned(),
            dsp_id,
            until_unix_micros: None,
        }];
        if let Some(shaping) = shaping {
            shaping.delete(&deletion);
        }
        log.append_deletions(deletion).map_err(|_| Busy)?;
        match dsp_id {
            0 => self.opt_outs.inc(),
            _ => self.pairs.inc(),
        }
        Ok(())
    }
}

/// The last address of `X-Forwarded-For`: the nearest proxy added it.
pub(super) fn forwarded_for(lines: &[Header<'_>]) -> Option<IpAddr> {
    let last = head::values(lines, "x-forwarded-for").last()?;
    let last = str::from_utf8(last).ok()?.rsplit(',').next()?.trim();
    let address = last.parse::<IpAddr>().ok();
    address.or_else(|| Some(last.parse::<SocketAddr>().ok()?.ip()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Deletions whose counters are not registered.
    pub(in crate::edge) fn unregistered() -> BrowserDeletions {
        let options = prometheus::Opts::new("deletions", "deletions");
        BrowserDeletions::new(&IntCounterVec::new(options, &["scope"]).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_cannot_use_up_the_rate_of_all() {
        let deletions = unregistered();
        let log = Log::new(crate::log::Config {
            epoch: 1,
            bytes_max: 1 << 20,
            chunk_bytes: proto::limits::CHUNK_BYTES_DEFAULT,
            chunk_age: Duration::from_secs(60),
            idle_after: Duration::from_secs(60),
        });
        let deleted = |forwarded: &str| {
            let lines = [
                ("X-Forwarded-For", "203.0.113.9"),
                ("x-forwarded-for", forwarded),
            ];
            let lines = lines.map(|(name, value)| Header {
                name,
                value: value.as_bytes(),
            });
            let client = forwarded_for(&lines);
            let is_deleted = |_: &u64| deletions.delete("alice", 0, client, &log, None).is_ok();
            (0..100).filter(is_deleted).count()
        };
        // The client may send the header, too; the nearest proxy appends the last address.
        assert_eq!(deleted("198.51.100.1"), 50);
        assert_eq!(deleted("192.0.2.1, 198.51.100.1"), 0);
        assert_eq!(deleted("198.51.100.1:567"), 0);
        assert_eq!(deleted("2001:db8::1"), 50);
        assert_eq!(deleted("2001:db8::2"), 0);
        assert_eq!(deleted("198.51.100.2"), 50);
        for address in 0..20 {
            deleted(&format!("192.0.2.{address}"));
        }
        assert_eq!(deleted("198.51.100.3"), 0, "the rate of all is used up");
    }
}
