//! Admits calls: checks their token, and bounds the memory of calls that are not streams, over all connections.
//!
//! Health checks need no token. They have their own limits, in total and per address, and a rate per connection, so they block
//! no other call. All other calls come from clients with access, and share two limits: on the number of calls until they become
//! streams, and on the bytes of large requests. Thus large requests cannot block small ones. A call that exceeds a limit is
//! rejected. Time limits end unfinished requests; `--subscribers` and `--in-flight-bytes` bound streams.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::Request;
use metric_defs::producer;
use prometheus::IntCounterVec;
use runtime::{
    listen::addresses::{AddressPermit, Addresses},
    metrics::Registry,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Duration, Instant},
};
use tonic::Status;

use crate::{
    interval_limit::IntervalLimit,
    metrics::counters,
    security::tokens::{HEALTH_CHECK, TokenCheck},
};

/// Maximum bytes of all calls that are not streams.
pub(crate) const BYTES_MAX: usize =
    CALLS_MAX * CALL_BYTES + HEALTH_CHECKS_MAX * WATCH_BYTES + REQUESTS_BYTES_MAX;

/// Maximum number of calls that have not become streams, and their bytes: the task with its timers, and a small request.
const CALLS_MAX: usize = 768;
const CALL_BYTES: usize = 8 * 1024;

/// Maximum number of concurrent health checks, in total and from one address, and per second on one connection.
const HEALTH_CHECKS_MAX: usize = 64;
const HEALTH_CHECKS_PER_ADDRESS_MAX: usize = 16;
const HEALTH_CHECK_RATE: u32 = 50;

/// Maximum bytes of large requests.
const REQUESTS_BYTES_MAX: usize = 8 << 20;

/// Request size that [`CALL_BYTES`] covers: a name and dozens of cursors.
const SMALL_REQUEST_BYTES: usize = 2 * 1024;

/// Request bytes count twice, because the buffer that collects them may be half empty.
const COPIES: usize = 2;

/// Bytes of a health check or watch, and of a reflection call, including the buffers that tonic allocates.
const WATCH_BYTES: usize = 32 * 1024;
const REFLECTION_BYTES: usize = 512 * 1024;

/// A connection is closed after this many rejected calls.
pub(super) const REFUSED_MAX: u32 = 1_000;

/// Whether the call at this path becomes a stream, or confirms one.
pub(super) fn is_stream(path: &str) -> bool {
    path.starts_with("/cookiesync.v1.CookieStreamer/")
}

/// The limits of all calls of one producer; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct CallLimits {
    calls: Arc<Semaphore>,
    health_checks: Arc<Semaphore>,
    addresses: Addresses,
    /// Unused bytes for large requests.
    requests: Arc<Semaphore>,
    refused: IntCounterVec,
}

impl CallLimits {
    /// Registers `producer_grpc_calls_refused_total{reason}`.
    ///
    /// # Errors
    /// When the metric is registered already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let reasons = ["calls", "bytes", "health_checks"];
        Ok(Self {
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            health_checks: Arc::new(Semaphore::new(HEALTH_CHECKS_MAX)),
            addresses: Addresses::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_BYTES_MAX)),
            refused: counters(registry, producer::CALLS_REFUSED, reasons)?,
        })
    }

    /// Limits for a new connection from `peer`. With `tokens`, its calls must present a valid token.
    pub(super) fn of_connection(
        &self,
        peer: IpAddr,
        tokens: Option<Arc<TokenCheck>>,
    ) -> ConnectionLimits {
        ConnectionLimits {
            peer,
            tokens,
            limits: self.clone(),
            health_checks: IntervalLimit::new(HEALTH_CHECK_RATE, Duration::from_secs(1)),
            refused: 0,
        }
    }

    fn refusal(&self, reason: &str) -> Status {
        self.refused.with_label_values(&[reason]).inc();
        let message = format!("the limit of unfinished calls is reached ({reason}); retry later");
        Status::resource_exhausted(message)
    }
}

/// Limits of the calls of one connection.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    pub(super) peer: IpAddr,
    tokens: Option<Arc<TokenCheck>>,
    limits: CallLimits,
    health_checks: IntervalLimit,
    /// Rejected calls.
    pub(super) refused: u32,
}

/// The permit of a call, and that of the address of a health check.
type Permits = (OwnedSemaphorePermit, Option<AddressPermit>);

impl ConnectionLimits {
    /// Admits a call with a valid token that exceeds no limit.
    ///
    /// # Errors
    /// The status of the response.
    pub(super) fn admit<B>(&mut self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        let admitted = self.check(request, now);
        self.refused += u32::from(admitted.is_err());
        admitted
    }

    fn check<B>(&self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        if let Some(tokens) = &self.tokens {
            let admitted = tokens.admit(request, self.peer);
            admitted.map_err(|error| Status::unauthenticated(error.to_string()))?;
        }
        let limits = &self.limits;
        let permits = match request.uri().path() {
            HEALTH_CHECK => self.health_check(now).ok_or("health_checks"),
            _ => Arc::clone(&limits.calls)
                .try_acquire_owned()
                .map_or(Err("calls"), |permit| Ok((permit, None))),
        };
        let grant = Grant {
            limits: limits.clone(),
            permits: permits.map_err(|reason| limits.refusal(reason))?,
            received: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
        };
        grant.charge(match request.uri().path() {
            HEALTH_CHECK => 0,
            path if is_stream(path) => 0,
            path if path.starts_with("/grpc.health.v1.Health/") => WATCH_BYTES,
            _ => REFLECTION_BYTES,
        })?;
        Ok(grant)
    }

    fn health_check(&self, now: Instant) -> Option<Permits> {
        self.health_checks.admit(now.into_std())?;
        let limits = &self.limits;
        let address = limits
            .addresses
            .acquire(HEALTH_CHECKS_PER_ADDRESS_MAX, self.peer)?;
        let permit = Arc::clone(&limits.health_checks).try_acquire_owned().ok()?;
        Some((permit, Some(address)))
    }
}

/// Permission for one call, released on drop.
#[derive(Debug)]
pub(super) struct Grant {
    limits: CallLimits,
    permits: Permits,
    received: AtomicUsize,
    /// Bytes charged to `requests`.
    charged: AtomicUsize,
}

impl Grant {
    /// Charges `bytes` more of the request. Requests of health checks must be small.
    ///
    /// # Errors
    /// The status with which the call must end.
    pub(super) fn receive(&self, bytes: usize) -> Result<(), Status> {
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let large = |received: usize| received.saturating_sub(SMALL_REQUEST_BYTES);
        match large(before + bytes) - large(before) {
            0 => Ok(()),
            _ if self.permits.1.is_some() => Err(self.limits.refusal("bytes")),
            large => self.charge(COPIES * large),
        }
    }

    fn charge(&self, bytes: usize) -> Result<(), Status> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let permit = self.limits.requests.try_acquire_many(permits);
        permit.map_err(|_| self.limits.refusal("bytes"))?.forget();
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let charged = *self.charged.get_mut();
        self.limits.requests.add_permits(charged);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proto::limits::REQUEST_BYTES_MAX;
    use tonic::Code;

    use super::*;
    use crate::security::tokens::tests::token_check;

    const STREAM: &str = "/cookiesync.v1.CookieStreamer/Subscribe";

    /// Number of requests of the maximum size that fit.
    const LARGE_MAX: usize =
        REQUESTS_BYTES_MAX / (COPIES * (REQUEST_BYTES_MAX - SMALL_REQUEST_BYTES));

    fn limits() -> CallLimits {
        CallLimits::register(&Registry::new()).unwrap()
    }

    /// Makes a call on a new connection of an address.
    fn call(limits: &CallLimits, address: u32, path: &str) -> Result<Grant, Status> {
        let peer = Ipv4Addr::from_bits(address).into();
        let request = Request::get(path).body(()).unwrap();
        limits
            .of_connection(peer, None)
            .admit(&request, Instant::now())
    }

    /// Makes calls of different addresses until one is rejected.
    fn calls(limits: &CallLimits, path: &str) -> Vec<Grant> {
        (0..)
            .map_while(|address| call(limits, address, path).ok())
            .collect()
    }

    #[test]
    fn all_connections_together_stay_within_the_limits() {
        let limits = limits();
        let open = calls(&limits, STREAM);
        assert_eq!(open.len(), CALLS_MAX);
        let received = |call: &&Grant| call.receive(REQUEST_BYTES_MAX).is_ok();
        assert_eq!(open.iter().filter(received).count(), LARGE_MAX);
        let refused = |reason| limits.refused.with_label_values(&[reason]).get();
        assert_eq!(refused("calls"), 1);
        assert_eq!(refused("bytes"), (CALLS_MAX - LARGE_MAX) as u64);
        drop(open);
        assert_eq!(limits.requests.available_permits(), REQUESTS_BYTES_MAX);
        assert_eq!(calls(&limits, STREAM).len(), CALLS_MAX);
    }

    #[test]
    fn large_requests_watches_and_reflection_do_not_block_small_requests() {
        let limits = limits();
        let other =
            ["/grpc.health.v1.Health/Watch", "/grpc.reflection"].map(|it| calls(&limits, it));
        let [watches, reflection] = other.each_ref().map(Vec::len);
        assert_eq!(watches, REQUESTS_BYTES_MAX / WATCH_BYTES);
        assert_eq!(reflection, 0, "watches use up the bytes");
        let small = call(&limits, 1, STREAM).unwrap();
        // In frames.
        assert!((0..4).all(|_| small.receive(SMALL_REQUEST_BYTES / 4).is_ok()));
        assert!(small.receive(1).is_err());
    }

    #[test]
    fn health_checks_are_limited_and_block_no_other_calls() {
        let limits = limits();
        let check = |address| call(&limits, address, HEALTH_CHECK);
        let of_one: Vec<_> = (0..).map_while(|_| check(1).ok()).collect();
        assert_eq!(of_one.len(), HEALTH_CHECKS_PER_ADDRESS_MAX);
        let of_others: Vec<_> = (2..).map_while(|address| check(address).ok()).collect();
        assert_eq!(of_one.len() + of_others.len(), HEALTH_CHECKS_MAX);
        assert!(of_one[0].receive(SMALL_REQUEST_BYTES).is_ok());
        assert!(of_one[0].receive(1).is_err());
        assert_eq!(calls(&limits, STREAM).len(), CALLS_MAX);
        drop((of_one, of_others));
        assert!(check(1).is_ok());
    }

    #[test]
    fn health_checks_on_one_connection_have_a_rate() {
        let mut connection = limits().of_connection(Ipv4Addr::LOCALHOST.into(), None);
        let request = Request::get(HEALTH_CHECK).body(()).unwrap();
        let mut admitted = |now| {
            (0..200)
                .filter(|_| connection.admit(&request, now).is_ok())
                .count()
        };
        let now = Instant::now();
        for second in 0..3 {
            let now = now + Duration::from_secs(second);
            assert_eq!(admitted(now), HEALTH_CHECK_RATE as usize);
        }
    }

    #[test]
    fn calls_without_a_token_use_no_limit() {
        let limits = limits();
        let tokens = Arc::new(token_check("the-only-good-token\n"));
        let mut untrusted = limits.of_connection(Ipv4Addr::LOCALHOST.into(), Some(tokens));
        for path in [STREAM, "/grpc.health.v1.Health/Watch", "/"] {
            let request = Request::get(path).body(()).unwrap();
            let refused = untrusted.admit(&request, Instant::now());
            assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated, "{path}");
        }
        assert_eq!(untrusted.refused, 3);
        assert_eq!(limits.calls.available_permits(), CALLS_MAX);
        assert_eq!(limits.requests.available_permits(), REQUESTS_BYTES_MAX);
    }
}
