//! How many calls are answered: a token bucket for each connection; one for all calls that are to become streams, and one for
//! all others, of which the health service asks nobody for a token; a part of these two for each address; and as many as
//! their budget of bytes allows.
//!
//! A call costs a task and a look at every queue, so whoever opens and ends them as fast as a machine can would take
//! the CPU of the streams that run. A subscriber opens one call for hours; a health check, one a second.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};
use runtime::{listen::addresses, metrics::Registry};
use tokio::time::Instant;
use tonic::Status;

use super::budget::{Budget, Grant, Kind, Share};
use crate::bucket::{Bucket, Rate};

/// Calls a second on one connection, and at once after a while without any.
const CONNECTION: Rate = Rate::per_second(50, 200);

/// The same on all connections together: as many as there are subscribers come back at once after a restart.
const ALL: Rate = Rate::per_second(2_000, 8_000);

/// Questions after the health, and reflection, on all connections together.
const QUESTIONS: Rate = Rate::per_second(1_000, 4_000);

/// What one address has of these: a load balancer's, behind which all subscribers come back at once, or a client's that
/// leaves the rest to others.
const ALL_OF_ADDRESS: Rate = Rate::per_second(500, 4_000);
const QUESTIONS_OF_ADDRESS: Rate = Rate::per_second(200, 1_000);

/// Addresses that are remembered before those are forgotten that have no connection and full buckets.
const ADDRESSES_KEPT: usize = 1_024;

/// A connection whose calls were refused so often is closed: its client does not understand.
pub(super) const REFUSED_MAX: u32 = 1_000;

/// The buckets of calls that are to become streams, and of all others.
#[derive(Debug)]
struct Buckets {
    streams: Mutex<Bucket>,
    questions: Mutex<Bucket>,
}

impl Buckets {
    fn full(streams: Rate, questions: Rate) -> Self {
        let now = Instant::now();
        Self {
            streams: Mutex::new(Bucket::full(streams, now)),
            questions: Mutex::new(Bucket::full(questions, now)),
        }
    }

    fn take(&self, kind: Kind, now: Instant) -> bool {
        let bucket = match kind {
            Kind::Stream => &self.streams,
            Kind::Health | Kind::Other => &self.questions,
        };
        locked(bucket).take(now)
    }

    fn are_full(&self, now: Instant) -> bool {
        locked(&self.streams).is_full(now) && locked(&self.questions).is_full(now)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all connections of one address share.
#[derive(Debug)]
struct OfAddress {
    buckets: Buckets,
    share: Share,
}

/// The rate of all calls, what they may hold, and how many were refused; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    all: Arc<Buckets>,
    addresses: Arc<Mutex<HashMap<IpAddr, Arc<OfAddress>>>>,
    budget: Budget,
    refused_connection: IntCounter,
    refused_address: IntCounter,
    refused_all: IntCounter,
}

impl Calls {
    /// Registers `producer_grpc_calls_refused_total{reason}` and `producer_grpc_calls_bytes`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let refused = IntCounterVec::new(
            Opts::new(
                "producer_grpc_calls_refused_total",
                "Calls refused because there were too many a second or they held too much.",
            ),
            &["reason"],
        )?;
        let bytes = IntGauge::new(
            "producer_grpc_calls_bytes",
            "Bytes charged to calls that are not streams, unfinished requests among them; 16 MiB at most.",
        )?;
        registry.register(Box::new(refused.clone()))?;
        registry.register(Box::new(bytes.clone()))?;
        let of_budget = |reason| refused.with_label_values(&[reason]);
        Ok(Self {
            all: Arc::new(Buckets::full(ALL, QUESTIONS)),
            addresses: Arc::default(),
            budget: Budget::new(bytes, of_budget("bytes"), of_budget("hurried")),
            refused_connection: refused.with_label_values(&["connection"]),
            refused_address: refused.with_label_values(&["address"]),
            refused_all: refused.with_label_values(&["all"]),
        })
    }

    /// The calls of a new connection from `peer`.
    pub(super) fn of_connection(&self, peer: IpAddr) -> ConnectionCalls {
        let now = Instant::now();
        let mut addresses = locked(&self.addresses);
        if addresses.len() >= ADDRESSES_KEPT {
            addresses.retain(|_, it| Arc::strong_count(it) > 1 || !it.buckets.are_full(now));
        }
        let of_address = addresses
            .entry(addresses::network(peer))
            .or_insert_with(|| {
                Arc::new(OfAddress {
                    buckets: Buckets::full(ALL_OF_ADDRESS, QUESTIONS_OF_ADDRESS),
                    share: self.budget.share(),
                })
            });
        ConnectionCalls {
            calls: self.clone(),
            of_address: Arc::clone(of_address),
            own: Bucket::full(CONNECTION, now),
            refused: 0,
        }
    }
}

/// The rate of one connection's calls.
#[derive(Debug)]
pub(super) struct ConnectionCalls {
    calls: Calls,
    of_address: Arc<OfAddress>,
    own: Bucket,
    refused: u32,
}

impl ConnectionCalls {
    /// Whether its connection may make one more call.
    ///
    /// # Errors
    /// What to answer instead.
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

    /// Whether its address, and all connections together, may make another of this kind.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn admit_among_all(&mut self, kind: Kind, now: Instant) -> Result<(), Status> {
        let (refused, message) = if !self.of_address.buckets.take(kind, now) {
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

    /// What a call of this kind holds.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn admit_bytes(&mut self, kind: Kind, now: Instant) -> Result<Grant, Status> {
        self.of_address.share.open(kind, now).ok_or_else(|| {
            self.refused += 1;
            Status::resource_exhausted("all unfinished calls together hold too much")
        })
    }

    /// Notes that a call was refused for another reason.
    pub(super) fn refused(&mut self) {
        self.refused += 1;
    }

    /// What of the budget is for its calls.
    pub(super) fn share(&self) -> Share {
        self.of_address.share.clone()
    }

    /// Whether the client goes on whatever it is told.
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
        let calls = Calls::register(&Registry::new()).unwrap();
        let mut greedy = calls.of_connection(address(1));
        let now = Instant::now();
        let burst = CONNECTION.at_once;
        let admitted = (0..burst + REFUSED_MAX).filter(|_| greedy.admit_own(now).is_ok());
        assert_eq!(admitted.count(), burst as usize);
        assert!(greedy.is_abused());
        let mut modest = calls.of_connection(address(1));
        assert!(modest.admit_own(now).is_ok() && modest.admit_among_all(Kind::Stream, now).is_ok());
        assert_eq!(calls.refused_connection.get(), u64::from(REFUSED_MAX));
        assert_eq!(calls.refused_all.get(), 0);
    }

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    /// Whether a new connection of an address may make a call.
    fn is_admitted(calls: &Calls, number: u32, kind: Kind, now: Instant) -> bool {
        let mut connection = calls.of_connection(address(number));
        connection.admit_among_all(kind, now).is_ok()
    }

    #[test]
    fn many_addresses_together_are_bounded_too() {
        let calls = Calls::register(&Registry::new()).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        let admitted = |kind| {
            let all = (0..2 * ALL.at_once).filter(|it| is_admitted(&calls, it % 16, kind, now));
            u32::try_from(all.count()).unwrap()
        };
        // Questions leave streams alone.
        assert_eq!(admitted(Kind::Health), QUESTIONS.at_once);
        assert_eq!(admitted(Kind::Other), 0);
        assert_eq!(admitted(Kind::Stream), ALL.at_once);
        let refused = 5 * ALL.at_once - QUESTIONS.at_once;
        assert_eq!(
            calls.refused_all.get() + calls.refused_address.get(),
            u64::from(refused)
        );
    }

    #[test]
    fn connections_of_one_address_leave_calls_to_others() {
        let calls = Calls::register(&Registry::new()).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        for (kind, of_address) in [
            (Kind::Stream, ALL_OF_ADDRESS),
            (Kind::Health, QUESTIONS_OF_ADDRESS),
        ] {
            let all = (0..2 * ALL.at_once).filter(|_| is_admitted(&calls, 1, kind, now));
            assert_eq!(all.count(), of_address.at_once as usize);
            assert!(is_admitted(&calls, 2, kind, now));
        }
    }

    #[test]
    fn addresses_that_have_nothing_to_be_remembered_for_are_forgotten() {
        let calls = Calls::register(&Registry::new()).unwrap();
        let later = Instant::now() + Duration::from_secs(3_600);
        let connected = calls.of_connection(address(1));
        assert!(is_admitted(&calls, 2, Kind::Health, later));
        for number in 3..3 * u32::try_from(ADDRESSES_KEPT).unwrap() {
            calls.of_connection(address(number));
        }
        let addresses = locked(&calls.addresses);
        assert!(addresses.len() <= ADDRESSES_KEPT + 2, "{}", addresses.len());
        assert!(addresses.contains_key(&address(1)) && addresses.contains_key(&address(2)));
        drop((addresses, connected));
    }
}
