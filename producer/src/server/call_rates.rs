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
use prometheus::{IntCounter, IntCounterVec};
use runtime::{listen::addresses, metrics::Registry};
use tokio::time::Instant;
use tonic::Status;

use super::call_budget::{AddressShare, CallBudget, CallKind, Grant};
use crate::token_bucket::{Rate, TokenBucket};

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
struct Buckets {
    streams: Mutex<TokenBucket>,
    others: Mutex<TokenBucket>,
}

impl Buckets {
    fn full(streams: Rate, others: Rate) -> Self {
        let now = Instant::now();
        Self {
            streams: Mutex::new(TokenBucket::full(streams, now)),
            others: Mutex::new(TokenBucket::full(others, now)),
        }
    }

    fn take(&self, kind: CallKind, now: Instant) -> bool {
        let bucket = match kind {
            CallKind::Stream => &self.streams,
            CallKind::Health | CallKind::Other => &self.others,
        };
        locked(bucket).take(now)
    }

    fn are_full(&self, now: Instant) -> bool {
        locked(&self.streams).is_full(now) && locked(&self.others).is_full(now)
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

    /// The limits for a new connection from `peer`.
    pub(super) fn of_connection(&self, peer: IpAddr) -> ConnectionLimits {
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
            calls: self.clone(),
            address: Arc::clone(address),
            own: TokenBucket::full(CONNECTION, now),
            refused: 0,
        }
    }
}

/// The limits of one connection.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    calls: CallLimits,
    address: Arc<Address>,
    own: TokenBucket,
    refused: u32,
}

impl ConnectionLimits {
    /// Takes a token of this connection.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn admit_own(&mut self, now: Instant) -> Result<(), Status> {
        if self.own.take(now) {
            return Ok(());
        }
        self.refused += 1;
        self.calls.refused_connection.inc();
        Err(Status::resource_exhausted(
            "too many calls on this connection",
        ))
    }

    /// Takes a token of its address and one of all connections, for a call of this kind.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn admit_among_all(&mut self, kind: CallKind, now: Instant) -> Result<(), Status> {
        let (refused, message) = if !self.address.buckets.take(kind, now) {
            (
                &self.calls.refused_address,
                "too many calls of this address",
            )
        } else if !self.calls.all.take(kind, now) {
            (&self.calls.refused_all, "too many calls")
        } else {
            return Ok(());
        };
        self.refused += 1;
        refused.inc();
        Err(Status::resource_exhausted(message))
    }

    /// Charges a call of this kind to the budget.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn admit_bytes(&mut self, kind: CallKind, now: Instant) -> Result<Grant, Status> {
        self.address.share.open(kind, now).ok_or_else(|| {
            self.refused += 1;
            Status::resource_exhausted("all unfinished calls together hold too much")
        })
    }

    /// Counts a call that was refused for another reason.
    pub(super) fn refused(&mut self) {
        self.refused += 1;
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
    use tokio::time::Duration;

    use super::*;

    #[test]
    fn one_connection_cannot_take_the_calls_of_all() {
        let calls = CallLimits::register(&Registry::new()).unwrap();
        let mut greedy = calls.of_connection(address(1));
        let now = Instant::now();
        let burst = CONNECTION.burst;
        let admitted = (0..burst + REFUSED_MAX).filter(|_| greedy.admit_own(now).is_ok());
        assert_eq!(admitted.count(), burst as usize);
        assert!(greedy.is_abused());
        let mut modest = calls.of_connection(address(1));
        assert!(
            modest.admit_own(now).is_ok() && modest.admit_among_all(CallKind::Stream, now).is_ok()
        );
        assert_eq!(calls.refused_connection.get(), u64::from(REFUSED_MAX));
        assert_eq!(calls.refused_all.get(), 0);
    }

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    /// Whether a new connection of an address may make one more call.
    fn is_admitted(calls: &CallLimits, number: u32, kind: CallKind, now: Instant) -> bool {
        let mut connection = calls.of_connection(address(number));
        connection.admit_among_all(kind, now).is_ok()
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
        let connected = calls.of_connection(address(1));
        assert!(is_admitted(&calls, 2, CallKind::Health, later));
        for number in 3..3 * u32::try_from(ADDRESSES_KEPT).unwrap() {
            calls.of_connection(address(number));
        }
        let addresses = locked(&calls.addresses);
        assert!(addresses.len() <= ADDRESSES_KEPT + 2, "{}", addresses.len());
        assert!(addresses.contains_key(&address(1)) && addresses.contains_key(&address(2)));
        drop((addresses, connected));
    }
}
