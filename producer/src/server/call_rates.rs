//! Admits calls within rate limits per connection, per address and in total. The call budget bounds their memory.
//!
//! Streaming calls and all other calls have separate limits per address and in total, because health checks need no token.
//!
//! A call costs a task and a scan of all subscribers. Without limits, a client that opens and ends calls in a tight loop would
//! take CPU time from the streams. Subscribers keep a call open for hours; a health check makes one call per second.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use http::Request;
use metric_defs::producer;
use prometheus::IntCounterVec;
use runtime::{listen::addresses, metrics::Registry};
use tokio::time::{Duration, Instant};
use tonic::Status;

use super::call_budget::{AddressShare, CallBudget, CallKind, Grant};
use crate::{
    rate_limits::{Rate, RateLimits},
    security::tokens::TokenCheck,
};

/// Rates and bursts: calls per connection; streaming calls per address and in total; other calls per address and in total.
///
/// After a restart, all subscribers reconnect at the same time, perhaps behind one load balancer. The rates of an address
/// suffice for that, and leave capacity for other addresses.
const RATES: [Rate; 5] = [
    ("50/s", 200),
    ("500/s", 4_000),
    ("2000/s", 8_000),
    ("200/s", 1_000),
    ("1000/s", 4_000),
];

/// For each rate, the metric label and the message if a call exceeds it.
const REASONS: [(&str, &str); 5] = [
    ("connection", "too many calls on this connection"),
    ("address", "too many calls from this address"),
    ("all", "too many calls"),
    ("address", "too many calls from this address"),
    ("all", "too many calls"),
];

/// Maximum number of tracked connections and addresses. An entry for a single call is kept for milliseconds, so at the
/// total rate only a fraction of the entries is in use.
const KEYS_MAX: usize = 1 << 16;

/// A connection is closed after this many rejected calls.
pub(super) const REFUSED_MAX: u32 = 1_000;

/// Key of a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    Connection(u64),
    Address(IpAddr),
    All,
}

/// Limits of all calls of one producer, and counters of rejected calls; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct CallLimits {
    /// Limits per connection; of streaming calls per address and in total; of other calls per address and in total.
    rates: Arc<RateLimits<Caller, 5>>,
    connections: Arc<AtomicU64>,
    budget: Arc<CallBudget>,
    refused: IntCounterVec,
}

impl CallLimits {
    /// Registers `producer_grpc_calls_refused_total{reason}` and `producer_grpc_calls_bytes`.
    ///
    /// # Errors
    /// When one of the metrics is registered already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let refused: IntCounterVec = registry.add(producer::CALLS_REFUSED)?;
        let bytes = registry.add(producer::CALLS_BYTES)?;
        let counter = |reason| refused.with_label_values(&[reason]);
        for (reason, _) in REASONS {
            counter(reason);
        }
        let (no_bytes, shortened) = (counter("bytes"), counter("deadline_shortened"));
        Ok(Self {
            rates: Arc::new(RateLimits::new(RATES, KEYS_MAX)),
            connections: Arc::default(),
            budget: Arc::new(CallBudget {
                state: Mutex::default(),
                bytes,
                refused: no_bytes,
                ended_early: shortened,
            }),
            refused,
        })
    }

    /// Limits for a new connection from `peer`. With `tokens`, its calls must present a valid token.
    pub(super) fn of_connection(
        &self,
        peer: IpAddr,
        tokens: Option<Arc<TokenCheck>>,
    ) -> ConnectionLimits {
        ConnectionLimits {
            number: self.connections.fetch_add(1, Ordering::Relaxed),
            peer,
            tokens,
            share: AddressShare {
                budget: Arc::clone(&self.budget),
                network: addresses::network(peer),
            },
            calls: self.clone(),
            refused: 0,
        }
    }

    /// Charges a call to all of these limits, or to none of them.
    fn charge(&self, callers: &[(usize, Caller)], now: Instant) -> Result<(), Status> {
        let Err(exceeded) = self.rates.charge(callers, 1, now, Duration::ZERO) else {
            return Ok(());
        };
        let (reason, message) = REASONS[exceeded.rate];
        self.refused.with_label_values(&[reason]).inc();
        Err(Status::resource_exhausted(message))
    }
}

/// Limits of the calls of one connection.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    number: u64,
    pub(super) peer: IpAddr,
    tokens: Option<Arc<TokenCheck>>,
    calls: CallLimits,
    /// Share of its address in the budget.
    pub(super) share: AddressShare,
    /// Rejected calls.
    pub(super) refused: u32,
}

impl ConnectionLimits {
    /// Admits a call and returns its grant of the call budget.
    ///
    /// Checks, in this order: the rate of the connection, the token, the rates of the address and of all calls, and the budget.
    /// Calls without a valid token thus do not use up the limits of other clients.
    ///
    /// # Errors
    /// The status of the response.
    pub(super) fn admit<B>(&mut self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        let admitted = self.check(request, now);
        self.refused += u32::from(admitted.is_err());
        admitted
    }

    fn check<B>(&self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        let own = Caller::Connection(self.number);
        self.calls.charge(&[(0, own)], now)?;
        if let Some(tokens) = &self.tokens {
            tokens.admit(request, self.peer)?;
        }
        let kind = CallKind::of(request.uri().path());
        let (of_address, of_all) = match kind {
            CallKind::Stream => (1, 2),
            CallKind::Health | CallKind::Other => (3, 4),
        };
        let address = Caller::Address(self.share.network);
        self.calls
            .charge(&[(of_address, address), (of_all, Caller::All)], now)?;
        let grant = self.share.open(kind, now);
        grant.ok_or_else(|| {
            Status::resource_exhausted("all unfinished calls together use too much memory")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tonic::Code;

    use super::*;
    use crate::security::tokens::tests::token_check;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    fn refused(calls: &CallLimits, reason: &str) -> u64 {
        calls.refused.with_label_values(&[reason]).get()
    }

    fn call(kind: CallKind) -> Request<()> {
        let path = match kind {
            CallKind::Stream => "/cookiesync.v1.CookieStreamer/Subscribe",
            CallKind::Health => "/grpc.health.v1.Health/Check",
            CallKind::Other => "/",
        };
        Request::get(path).body(()).unwrap()
    }

    #[test]
    fn one_connection_cannot_use_up_the_total_rate() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let mut greedy = calls.of_connection(address(1), None);
        let (now, stream) = (Instant::now(), call(CallKind::Stream));
        let (_, burst) = RATES[0];
        let admitted =
            (0..burst + u64::from(REFUSED_MAX)).filter(|_| greedy.admit(&stream, now).is_ok());
        assert_eq!(admitted.count() as u64, burst);
        assert!(greedy.refused >= REFUSED_MAX);
        let mut modest = calls.of_connection(address(1), None);
        assert!(modest.admit(&stream, now).is_ok());
        assert_eq!(refused(&calls, "connection"), u64::from(REFUSED_MAX));
        assert_eq!(refused(&calls, "all"), 0);
    }

    #[test]
    fn calls_without_a_token_do_not_use_up_the_total_rate() {
        let limits = CallLimits::register(&Registry::new()).unwrap();
        let tokens = Arc::new(token_check("the-only-good-token\n"));
        // All buckets are full by then.
        let now = Instant::now() + Duration::from_secs(1);
        let of_a_connection = || limits.of_connection(address(1), Some(Arc::clone(&tokens)));
        let refusal = |untrusted: &mut ConnectionLimits| {
            let refused = untrusted.admit(&call(CallKind::Other), now);
            refused.unwrap_err().code()
        };
        // More simultaneous calls than the total rate allows.
        for _ in 0..100 {
            let mut untrusted = of_a_connection();
            assert!((0..200).all(|_| refusal(&mut untrusted) == Code::Unauthenticated));
            assert_eq!(refusal(&mut untrusted), Code::ResourceExhausted);
        }
        let mut known = call(CallKind::Other);
        let token = "Bearer the-only-good-token".parse().unwrap();
        known.headers_mut().insert("authorization", token);
        assert!(of_a_connection().admit(&known, now).is_ok());
    }

    /// Whether a call on a new connection of an address is admitted.
    fn is_admitted(calls: &CallLimits, number: u32, kind: CallKind, now: Instant) -> bool {
        let mut connection = calls.of_connection(address(number), None);
        connection.admit(&call(kind), now).is_ok()
    }

    #[test]
    fn many_addresses_together_are_limited() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        let admitted = |kind| {
            let all = (0..12_000).filter(|it| is_admitted(&calls, it % 16, kind, now));
            all.count() as u64
        };
        // Streaming calls have a separate limit.
        assert_eq!(admitted(CallKind::Health), RATES[4].1);
        assert_eq!(admitted(CallKind::Other), 0);
        assert_eq!(admitted(CallKind::Stream), RATES[2].1);
        let expected = 3 * 12_000 - RATES[4].1 - RATES[2].1;
        assert_eq!(
            refused(&calls, "all") + refused(&calls, "address"),
            expected
        );
    }

    #[test]
    fn one_address_cannot_use_up_the_total_rate() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        for (kind, address) in [(CallKind::Stream, RATES[1]), (CallKind::Health, RATES[3])] {
            let all = (0..16_000).filter(|_| is_admitted(&calls, 1, kind, now));
            assert_eq!(all.count() as u64, address.1);
            assert!(is_admitted(&calls, 2, kind, now));
        }
    }
}
