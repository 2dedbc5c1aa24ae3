//! How many calls are answered: token buckets limit the calls of each connection, of each address and of all together,
//! and the call budget limits the bytes that they hold.
//!
//! Calls that become streams and all other calls have separate buckets for each address and for all together, because
//! health checks need no token.
//!
//! A call costs a task and a look at every queue, so a client that opened and ended calls as fast as it could would
//! take the CPU from the streams. A subscriber opens one call and keeps it for hours; a health check makes one a
//! second.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use figures::producer;
use http::Request;
use prometheus::{IntCounter, IntCounterVec};
use runtime::{listen::addresses, metrics::Registry};
use tokio::time::Instant;
use tonic::Status;

use super::call_budget::{AddressShare, CallBudget, CallKind, Grant};
use crate::{
    security::tokens::TokenCheck,
    token_bucket::{Rate, TokenBucket},
};

/// Calls per second on one connection, and their burst.
const CONNECTION: Rate = Rate::per_second(50, 200);

/// Streaming calls on all connections together. After a restart all subscribers come back at once.
const STREAMS: Rate = Rate::per_second(2_000, 8_000);

/// Health checks and reflection on all connections together.
const OTHERS: Rate = Rate::per_second(1_000, 4_000);

/// The same for one address: enough for a load balancer behind which all subscribers come back at once, and little
/// enough to leave calls to others.
const STREAMS_OF_ADDRESS: Rate = Rate::per_second(500, 4_000);
const OTHERS_OF_ADDRESS: Rate = Rate::per_second(200, 1_000);

/// With more addresses than these, those without a connection and with full buckets are forgotten.
const ADDRESSES_KEPT: usize = 1_024;

/// A connection is closed after this many refusals: its client does not react to them.
pub(super) const REFUSED_MAX: u32 = 1_000;

/// One bucket for streaming calls, one for health checks and reflection.
#[derive(Debug)]
struct Buckets(Mutex<[TokenBucket; 2]>);

impl Buckets {
    fn full(streams: Rate, others: Rate) -> Self {
        let now = Instant::now();
        let buckets = [streams, others].map(|rate| TokenBucket::full(rate, now));
        Self(Mutex::new(buckets))
    }

    fn take(&self, kind: CallKind, now: Instant) -> bool {
        let [streams, others] = &mut *locked(&self.0);
        match kind {
            CallKind::Stream => streams.take(now),
            CallKind::Health | CallKind::Other => others.take(now),
        }
    }

    fn are_full(&self, now: Instant) -> bool {
        locked(&self.0).iter().all(|bucket| bucket.is_full(now))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the connections of one address share.
#[derive(Debug)]
struct Address {
    buckets: Buckets,
    share: AddressShare,
}

/// The limits of all calls of one producer, and counts of what they refused; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct CallLimits {
    all: Arc<Buckets>,
    addresses: Arc<Mutex<HashMap<IpAddr, Arc<Address>>>>,
    budget: CallBudget,
    refused_connection: IntCounter,
    refused_address: IntCounter,
    refused_all: IntCounter,
}

impl CallLimits {
    /// Registers `producer_grpc_calls_refused_total{reason}` and `producer_grpc_calls_bytes`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let refused: IntCounterVec = registry.add(producer::CALLS_REFUSED)?;
        let bytes = registry.add(producer::CALLS_BYTES)?;
        let of_budget = |reason| refused.with_label_values(&[reason]);
        Ok(Self {
            all: Arc::new(Buckets::full(STREAMS, OTHERS)),
            addresses: Arc::default(),
            budget: CallBudget::new(bytes, of_budget("bytes"), of_budget("hurried")),
            refused_connection: refused.with_label_values(&["connection"]),
            refused_address: refused.with_label_values(&["address"]),
            refused_all: refused.with_label_values(&["all"]),
        })
    }

    /// The limits for a new connection from `peer`, whose calls must bear one of the `tokens`, if there are any.
    pub(super) fn of_connection(
        &self,
        peer: IpAddr,
        tokens: Option<Arc<TokenCheck>>,
    ) -> ConnectionLimits {
        let now = Instant::now();
        let mut addresses = locked(&self.addresses);
        if addresses.len() >= ADDRESSES_KEPT {
            addresses.retain(|_, it| Arc::strong_count(it) > 1 || !it.buckets.are_full(now));
        }
        let address = addresses
            .entry(addresses::network(peer))
            .or_insert_with(|| {
                Arc::new(Address {
                    buckets: Buckets::full(STREAMS_OF_ADDRESS, OTHERS_OF_ADDRESS),
                    share: self.budget.share(),
                })
            });
        ConnectionLimits {
            peer,
            tokens,
            calls: self.clone(),
            address: Arc::clone(address),
            own: TokenBucket::full(CONNECTION, now),
            refused: 0,
        }
    }
}

/// What every call of one connection must pass.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    pub(super) peer: IpAddr,
    tokens: Option<Arc<TokenCheck>>,
    calls: CallLimits,
    address: Arc<Address>,
    own: TokenBucket,
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

    fn check<B>(&mut self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        let exhausted = |message| Err(Status::resource_exhausted(message));
        if !self.own.take(now) {
            self.calls.refused_connection.inc();
            return exhausted("too many calls on this connection");
        }
        if let Some(tokens) = &self.tokens {
            tokens.admit(request, self.peer)?;
        }
        let kind = CallKind::of(request.uri().path());
        if !self.address.buckets.take(kind, now) {
            self.calls.refused_address.inc();
            return exhausted("too many calls of this address");
        }
        if !self.calls.all.take(kind, now) {
            self.calls.refused_all.inc();
            return exhausted("too many calls");
        }
        match self.address.share.open(kind, now) {
            Some(grant) => Ok(grant),
            None => exhausted("all unfinished calls together hold too much"),
        }
    }

    /// Its address's share of the budget.
    pub(super) fn share(&self) -> AddressShare {
        self.address.share.clone()
    }

    /// Whether the client was refused so often that its connection is to be closed.
    pub(super) fn is_abused(&self) -> bool {
        self.refused >= REFUSED_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::Duration;
    use tonic::Code;

    use super::*;
    use crate::security::tokens::tests::token_check;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
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
        let burst = CONNECTION.burst;
        let admitted = (0..burst + REFUSED_MAX).filter(|_| greedy.admit(&stream, now).is_ok());
        assert_eq!(admitted.count(), burst as usize);
        assert!(greedy.is_abused());
        let mut modest = calls.of_connection(address(1), None);
        assert!(modest.admit(&stream, now).is_ok());
        assert_eq!(calls.refused_connection.get(), u64::from(REFUSED_MAX));
        assert_eq!(calls.refused_all.get(), 0);
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
            let all = (0..2 * STREAMS.burst).filter(|it| is_admitted(&calls, it % 16, kind, now));
            u32::try_from(all.count()).unwrap()
        };
        // They leave the streaming calls their own.
        assert_eq!(admitted(CallKind::Health), OTHERS.burst);
        assert_eq!(admitted(CallKind::Other), 0);
        assert_eq!(admitted(CallKind::Stream), STREAMS.burst);
        let refused = 5 * STREAMS.burst - OTHERS.burst;
        assert_eq!(
            calls.refused_all.get() + calls.refused_address.get(),
            u64::from(refused)
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
            let all = (0..2 * STREAMS.burst).filter(|_| is_admitted(&calls, 1, kind, now));
            assert_eq!(all.count(), address.burst as usize);
            assert!(is_admitted(&calls, 2, kind, now));
        }
    }

    #[test]
    fn addresses_without_connection_and_with_full_buckets_are_forgotten() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let later = Instant::now() + Duration::from_secs(3_600);
        let connected = calls.of_connection(address(1), None);
        assert!(is_admitted(&calls, 2, CallKind::Health, later));
        for number in 3..3 * u32::try_from(ADDRESSES_KEPT).unwrap() {
            calls.of_connection(address(number), None);
        }
        let addresses = locked(&calls.addresses);
        assert!(addresses.len() <= ADDRESSES_KEPT + 2, "{}", addresses.len());
        assert!(addresses.contains_key(&address(1)) && addresses.contains_key(&address(2)));
        drop((addresses, connected));
    }
}
