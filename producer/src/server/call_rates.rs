//! How many calls are answered: rates limit the calls of each connection, of each address and of all together, and the
//! call budget limits the bytes that they hold.
//!
//! Calls that become streams and all other calls have separate rates for each address and for all together, because
//! health checks need no token.
//!
//! A call costs a task and a look at every queue, so a client that opened and ended calls as fast as it could would
//! take the CPU from the streams. A subscriber opens one call and keeps it for hours; a health check makes one a
//! second.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use http::Request;
use limits::{Algorithm, Decision, Demand, LimitId, Limits};
use metric_defs::producer;
use prometheus::IntCounterVec;
use runtime::{listen::addresses, metrics::Registry};
use tokio::time::{Duration, Instant};
use tonic::Status;

use super::call_budget::{AddressShare, CallBudget, CallKind, Grant};
use crate::security::tokens::TokenCheck;

/// A rate, and how many calls may come at once.
type Rate = (&'static str, u64);

/// Calls on one connection.
const CONNECTION: Rate = ("50/s", 200);

/// Streaming calls on all connections together. After a restart all subscribers come back at once.
const STREAMS: Rate = ("2000/s", 8_000);

/// Health checks and reflection on all connections together.
const OTHERS: Rate = ("1000/s", 4_000);

/// The same for one address: enough for a load balancer behind which all subscribers come back at once, and little
/// enough to leave calls to others.
const STREAMS_OF_ADDRESS: Rate = ("500/s", 4_000);
const OTHERS_OF_ADDRESS: Rate = ("200/s", 1_000);

/// Most connections and addresses whose calls are remembered. One that made a single call is forgotten after milliseconds, so at the
/// rate of all together a fraction of this is in use.
const KEYS_MAX: usize = 1 << 16;

/// A connection is closed after this many refusals: its client does not react to them.
pub(super) const REFUSED_MAX: u32 = 1_000;

/// Whose calls a rate limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    Connection(u64),
    Address(IpAddr),
    Anybody,
}

/// The limits of all calls of one producer, and counts of what they refused; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct CallLimits {
    began: Instant,
    rates: Arc<Mutex<Limits<Caller>>>,
    /// Of a connection; of streaming calls of an address, and of all; of others likewise.
    ids: [LimitId; 5],
    connections: Arc<AtomicU64>,
    budget: CallBudget,
    refused: IntCounterVec,
}

impl CallLimits {
    /// Registers `producer_grpc_calls_refused_total{reason}` and `producer_grpc_calls_bytes`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let refused: IntCounterVec = registry.add(producer::CALLS_REFUSED)?;
        let bytes = registry.add(producer::CALLS_BYTES)?;
        let [_, _, _, no_room, shortened] = [
            "connection",
            "address",
            "all",
            "bytes",
            "deadline_shortened",
        ]
        .map(|reason| refused.with_label_values(&[reason]));
        let mut rates = Limits::new(KEYS_MAX);
        let all = [
            CONNECTION,
            STREAMS_OF_ADDRESS,
            STREAMS,
            OTHERS_OF_ADDRESS,
            OTHERS,
        ];
        let ids = all.map(|(rate, burst)| {
            let limit = Algorithm::token_bucket(rate, burst).and_then(|it| rates.add(it));
            limit.expect("these rates can be kept to")
        });
        Ok(Self {
            began: Instant::now(),
            rates: Arc::new(Mutex::new(rates)),
            ids,
            connections: Arc::default(),
            budget: CallBudget::new(bytes, no_room, shortened),
            refused,
        })
    }

    /// The limits for a new connection from `peer`, whose calls must bear one of the `tokens`, if there are any.
    pub(super) fn of_connection(
        &self,
        peer: IpAddr,
        tokens: Option<Arc<TokenCheck>>,
    ) -> ConnectionLimits {
        ConnectionLimits {
            number: self.connections.fetch_add(1, Ordering::Relaxed),
            peer,
            tokens,
            share: self.budget.share(addresses::network(peer)),
            calls: self.clone(),
            refused: 0,
        }
    }

    /// Takes a call of each of these callers, or of none.
    fn take(&self, callers: &[(LimitId, Caller)], now: Instant) -> Result<(), Status> {
        let demand = |&(limit, key)| Demand {
            limit,
            key,
            requests: 1,
        };
        let demands: Vec<_> = callers.iter().map(demand).collect();
        let nanos = now.saturating_duration_since(self.began).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let rule = match rates.reserve(&demands, nanos, Duration::ZERO) {
            Decision::Now => return Ok(()),
            Decision::At { limit, .. } | Decision::Refused { limit, .. } => limit,
        };
        let refusing = callers.iter().find(|(limit, _)| *limit == rule);
        let (reason, message) = match refusing {
            Some((_, Caller::Connection(_))) => ("connection", "too many calls on this connection"),
            Some((_, Caller::Address(_))) => ("address", "too many calls of this address"),
            _ => ("all", "too many calls"),
        };
        self.refused.with_label_values(&[reason]).inc();
        Err(Status::resource_exhausted(message))
    }
}

/// What every call of one connection must pass.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    number: u64,
    pub(super) peer: IpAddr,
    tokens: Option<Arc<TokenCheck>>,
    calls: CallLimits,
    share: AddressShare,
    refused: u32,
}

impl ConnectionLimits {
    /// Admits a call and returns what it holds of the budget.
    ///
    /// It must be within the rate of its connection, have a token if tokens are required, and be within the rates of its
    /// address and of all calls, and within the call budget. The order matters: a client without a token takes nothing
    /// from clients that have one.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn admit<B>(&mut self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        let admitted = self.check(request, now);
        self.refused += u32::from(admitted.is_err());
        admitted
    }

    fn check<B>(&self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        let [
            connection,
            streams_of_address,
            streams,
            others_of_address,
            others,
        ] = self.calls.ids;
        let own = Caller::Connection(self.number);
        self.calls.take(&[(connection, own)], now)?;
        if let Some(tokens) = &self.tokens {
            tokens.admit(request, self.peer)?;
        }
        let kind = CallKind::of(request.uri().path());
        let (of_address, of_all) = match kind {
            CallKind::Stream => (streams_of_address, streams),
            CallKind::Health | CallKind::Other => (others_of_address, others),
        };
        let address = Caller::Address(self.share.network);
        self.calls
            .take(&[(of_address, address), (of_all, Caller::Anybody)], now)?;
        let grant = self.share.open(kind, now);
        grant.ok_or_else(|| {
            Status::resource_exhausted("all unfinished calls together hold too much")
        })
    }

    /// Its address's share of the budget.
    pub(super) fn share(&self) -> AddressShare {
        self.share.clone()
    }

    /// Whether the client was refused so often that its connection is to be closed.
    pub(super) fn is_abused(&self) -> bool {
        self.refused >= REFUSED_MAX
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
    fn one_connection_cannot_take_the_calls_of_all() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let mut greedy = calls.of_connection(address(1), None);
        let (now, stream) = (Instant::now(), call(CallKind::Stream));
        let (_, burst) = CONNECTION;
        let admitted =
            (0..burst + u64::from(REFUSED_MAX)).filter(|_| greedy.admit(&stream, now).is_ok());
        assert_eq!(admitted.count() as u64, burst);
        assert!(greedy.is_abused());
        let mut modest = calls.of_connection(address(1), None);
        assert!(modest.admit(&stream, now).is_ok());
        assert_eq!(refused(&calls, "connection"), u64::from(REFUSED_MAX));
        assert_eq!(refused(&calls, "all"), 0);
    }

    #[test]
    fn calls_without_a_token_take_nothing_from_those_with_one() {
        let limits = CallLimits::register(&Registry::new()).unwrap();
        let tokens = Arc::new(token_check("the-only-good-token\n"));
        // By then every bucket is full.
        let now = Instant::now() + Duration::from_secs(1);
        let of_a_connection = || limits.of_connection(address(1), Some(Arc::clone(&tokens)));
        let refusal = |stranger: &mut ConnectionLimits| {
            let refused = stranger.admit(&call(CallKind::Other), now);
            refused.unwrap_err().code()
        };
        // All at one moment, and more calls than all connections together may make.
        for _ in 0..100 {
            let mut stranger = of_a_connection();
            assert!((0..200).all(|_| refusal(&mut stranger) == Code::Unauthenticated));
            assert_eq!(refusal(&mut stranger), Code::ResourceExhausted);
        }
        let mut known = call(CallKind::Other);
        let token = "Bearer the-only-good-token".parse().unwrap();
        known.headers_mut().insert("authorization", token);
        assert!(of_a_connection().admit(&known, now).is_ok());
    }

    /// Whether a new connection of an address may make one more call.
    fn is_admitted(calls: &CallLimits, number: u32, kind: CallKind, now: Instant) -> bool {
        let mut connection = calls.of_connection(address(number), None);
        connection.admit(&call(kind), now).is_ok()
    }

    #[test]
    fn many_addresses_together_are_bounded_too() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        let admitted = |kind| {
            let all = (0..12_000).filter(|it| is_admitted(&calls, it % 16, kind, now));
            all.count() as u64
        };
        // They leave the streaming calls their own.
        assert_eq!(admitted(CallKind::Health), OTHERS.1);
        assert_eq!(admitted(CallKind::Other), 0);
        assert_eq!(admitted(CallKind::Stream), STREAMS.1);
        let expected = 3 * 12_000 - OTHERS.1 - STREAMS.1;
        assert_eq!(
            refused(&calls, "all") + refused(&calls, "address"),
            expected
        );
    }

    #[test]
    fn connections_of_one_address_leave_calls_to_others() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        for (kind, address) in [
            (CallKind::Stream, STREAMS_OF_ADDRESS),
            (CallKind::Health, OTHERS_OF_ADDRESS),
        ] {
            let all = (0..16_000).filter(|_| is_admitted(&calls, 1, kind, now));
            assert_eq!(all.count() as u64, address.1);
            assert!(is_admitted(&calls, 2, kind, now));
        }
    }
}
