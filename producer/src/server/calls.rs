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

use crate::security::tokens::{HEALTH_CHECK, TokenCheck};

/// Maximum bytes of all calls that are not streams.
pub(crate) const BYTES_MAX: usize = CALLS_MAX * CALL_BYTES
    + ENDED_MAX * CALL_BYTES
    + HEALTH_CHECKS_MAX * WATCH_BYTES
    + REQUESTS_BYTES_MAX;

/// Bytes of a call until it becomes a stream: its task with timers, and a small request.
const CALL_BYTES: usize = 8 * 1024;

/// Maximum number of calls that have not become streams, and of ended streams that HTTP/2 is still sending.
const CALLS_MAX: usize = 512;
const ENDED_MAX: usize = 256;

/// Maximum number of concurrent health checks, in total and from one address.
const HEALTH_CHECKS_MAX: usize = 64;
const HEALTH_CHECKS_PER_ADDRESS_MAX: usize = 16;

/// Maximum number of health checks per second on one connection.
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

/// Kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call that becomes a stream, or a confirmation.
    Stream,
    /// A health check.
    HealthCheck,
    /// A health watch, which lasts for hours.
    HealthWatch,
    /// Reflection, or an unknown call.
    Other,
}

impl CallKind {
    /// The kind of the call at this path.
    pub(super) fn of(path: &str) -> Self {
        match path {
            HEALTH_CHECK => Self::HealthCheck,
            _ if path.starts_with("/cookiesync.v1.CookieStreamer/") => Self::Stream,
            _ if path.starts_with("/grpc.health.v1.Health/") => Self::HealthWatch,
            _ => Self::Other,
        }
    }
}

/// The limits of all calls of one producer; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct CallLimits {
    calls: Arc<Semaphore>,
    ended: Arc<Semaphore>,
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
        let refused: IntCounterVec = registry.add(producer::CALLS_REFUSED)?;
        for reason in ["calls", "bytes", "health_checks"] {
            refused.with_label_values(&[reason]);
        }
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Ok(Self {
            calls: semaphore(CALLS_MAX),
            ended: semaphore(ENDED_MAX),
            health_checks: semaphore(HEALTH_CHECKS_MAX),
            addresses: Addresses::default(),
            requests: semaphore(REQUESTS_BYTES_MAX),
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
            peer,
            tokens,
            limits: self.clone(),
            health_checks: (Instant::now(), 0),
            refused: 0,
        }
    }

    /// A permit for an ended stream that HTTP/2 is still sending; `None` if there are too many.
    pub(super) fn ended_stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.ended).try_acquire_owned().ok()
    }

    fn refusal(&self, reason: &str, message: &str) -> Status {
        self.refused.with_label_values(&[reason]).inc();
        Status::resource_exhausted(message)
    }
}

/// Limits of the calls of one connection.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    pub(super) peer: IpAddr,
    tokens: Option<Arc<TokenCheck>>,
    pub(super) limits: CallLimits,
    /// Health checks since a time, at most a second ago.
    health_checks: (Instant, u32),
    /// Rejected calls.
    pub(super) refused: u32,
}

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

    fn check<B>(&mut self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        if let Some(tokens) = &self.tokens {
            tokens.admit(request, self.peer)?;
        }
        let kind = CallKind::of(request.uri().path());
        let permits = match kind {
            CallKind::HealthCheck => {
                let permits = self.health_check(now);
                permits.ok_or(("health_checks", "too many health checks"))
            }
            _ => {
                let permit = Arc::clone(&self.limits.calls).try_acquire_owned().ok();
                let permits = permit.map(|permit| (permit, None));
                permits.ok_or(("calls", "too many unfinished calls"))
            }
        };
        let permits = permits.map_err(|(reason, message)| self.limits.refusal(reason, message))?;
        let grant = Grant {
            limits: self.limits.clone(),
            kind,
            _permits: permits,
            received: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
        };
        grant.charge(match kind {
            CallKind::Stream | CallKind::HealthCheck => 0,
            CallKind::HealthWatch => WATCH_BYTES,
            CallKind::Other => REFLECTION_BYTES,
        })?;
        Ok(grant)
    }

    fn health_check(
        &mut self,
        now: Instant,
    ) -> Option<(OwnedSemaphorePermit, Option<AddressPermit>)> {
        let (since, count) = &mut self.health_checks;
        if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count > HEALTH_CHECK_RATE {
            return None;
        }
        let limits = &self.limits;
        let of_address = limits
            .addresses
            .acquire(HEALTH_CHECKS_PER_ADDRESS_MAX, self.peer)?;
        let permit = Arc::clone(&limits.health_checks).try_acquire_owned().ok()?;
        Some((permit, Some(of_address)))
    }
}

/// Permission for one call, released on drop.
#[derive(Debug)]
pub(super) struct Grant {
    limits: CallLimits,
    kind: CallKind,
    _permits: (OwnedSemaphorePermit, Option<AddressPermit>),
    received: AtomicUsize,
    /// Bytes charged to `requests`.
    charged: AtomicUsize,
}

impl Grant {
    /// Charges `bytes` more of the request.
    ///
    /// # Errors
    /// The status with which the call must end.
    pub(super) fn receive(&self, bytes: usize) -> Result<(), Status> {
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let beyond = |received: usize| received.saturating_sub(SMALL_REQUEST_BYTES);
        let large = beyond(before + bytes) - beyond(before);
        if large > 0 && self.kind == CallKind::HealthCheck {
            return Err(Status::out_of_range(
                "the request of a health check is too large",
            ));
        }
        self.charge(COPIES * large)
    }

    fn charge(&self, bytes: usize) -> Result<(), Status> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(permit) = self.limits.requests.try_acquire_many(permits) else {
            let message = "all unfinished requests together use too much memory";
            return Err(self.limits.refusal("bytes", message));
        };
        permit.forget();
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.limits.requests.add_permits(*self.charged.get_mut());
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
