//! How many calls are answered: a token bucket for each connection, one for all calls that are to become streams, and one for
//! all others, of which the health service asks nobody for a token; and as many as their budget of bytes allows.
//!
//! A call costs a task and a look at every queue, so whoever opens and ends them as fast as a machine can would take
//! the CPU of the streams that run. A subscriber opens one call for hours; a health check, one a second.

use std::sync::{Arc, Mutex, PoisonError};

use cookiesync::process::metrics::Registry;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};
use tokio::time::{Duration, Instant};
use tonic::Status;

use super::budget::{Budget, Grant, Kind, Share};

/// Calls a second on one connection, and at once after a while without any.
const CONNECTION: Rate = Rate {
    per_second: 50,
    at_once: 200,
};

/// The same on all connections together: as many as there are subscribers come back at once after a restart.
const ALL: Rate = Rate {
    per_second: 2_000,
    at_once: 8_000,
};

/// Questions after the health, and reflection, on all connections together.
const QUESTIONS: Rate = Rate {
    per_second: 1_000,
    at_once: 4_000,
};

/// A connection whose calls were refused so often is closed: its client does not understand.
pub(super) const REFUSED_MAX: u32 = 1_000;

/// How many calls there may be.
#[derive(Debug, Clone, Copy)]
struct Rate {
    per_second: u32,
    at_once: u32,
}

impl Rate {
    fn each(self) -> Duration {
        Duration::from_secs(1) / self.per_second
    }
}

/// Tokens, kept as the time at which the bucket will be full again.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    full_at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.rate.each();
        let is_there = full_at - now <= self.rate.each() * self.rate.at_once;
        if is_there {
            self.full_at = full_at;
        }
        is_there
    }
}

/// The rate of all calls, what they may hold, and how many were refused; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    all: Arc<Mutex<Bucket>>,
    questions: Arc<Mutex<Bucket>>,
    budget: Budget,
    refused_connection: IntCounter,
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
            all: Arc::new(Mutex::new(Bucket::full(ALL, Instant::now()))),
            questions: Arc::new(Mutex::new(Bucket::full(QUESTIONS, Instant::now()))),
            budget: Budget::new(bytes, of_budget("bytes"), of_budget("hurried")),
            refused_connection: refused.with_label_values(&["connection"]),
            refused_all: refused.with_label_values(&["all"]),
        })
    }

    /// The calls of a new connection.
    pub(super) fn of_connection(&self) -> ConnectionCalls {
        ConnectionCalls {
            calls: self.clone(),
            share: self.budget.share(),
            own: Bucket::full(CONNECTION, Instant::now()),
            refused: 0,
        }
    }
}

/// The rate of one connection's calls.
#[derive(Debug)]
pub(super) struct ConnectionCalls {
    calls: Calls,
    share: Share,
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

    /// Whether all connections together may make another of this kind.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn admit_among_all(&mut self, kind: Kind, now: Instant) -> Result<(), Status> {
        let all = match kind {
            Kind::Stream => &self.calls.all,
            Kind::Health | Kind::Other => &self.calls.questions,
        };
        if all.lock().unwrap_or_else(PoisonError::into_inner).take(now) {
            return Ok(());
        }
        self.refused += 1;
        self.calls.refused_all.inc();
        Err(Status::resource_exhausted("too many calls"))
    }

    /// What a call of this kind holds.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn admit_bytes(&mut self, kind: Kind, now: Instant) -> Result<Grant, Status> {
        self.share.open(kind, now).ok_or_else(|| {
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
        self.share.clone()
    }

    /// Whether the client goes on whatever it is told.
    pub(super) fn is_abused(&self) -> bool {
        self.refused >= REFUSED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rate: Rate, seconds: &[f64], expected: &[bool]) {
        let began = Instant::now();
        let mut bucket = Bucket::full(rate, began);
        let taken: Vec<_> = seconds
            .iter()
            .map(|at| bucket.take(began + Duration::from_secs_f64(*at)))
            .collect();
        assert_eq!(taken, expected, "{rate:?} at {seconds:?}");
    }

    #[test]
    fn bucket_gives_a_burst_and_then_its_rate() {
        let rate = Rate {
            per_second: 10,
            at_once: 3,
        };
        let yes_yes_yes_no = [true, true, true, false];
        check(rate, &[0.0; 4], &yes_yes_yes_no);
        // What is refused costs nothing.
        check(
            rate,
            &[0.0, 0.0, 0.0, 0.05, 0.05, 0.11, 0.11],
            &[true, true, true, false, false, true, false],
        );
        // No more is saved than is given at once.
        check(rate, &[100.0; 4], &yes_yes_yes_no);
    }

    #[test]
    fn one_connection_cannot_take_the_calls_of_all() {
        let calls = Calls::register(&Registry::new()).unwrap();
        let mut greedy = calls.of_connection();
        let now = Instant::now();
        let burst = CONNECTION.at_once;
        let admitted = (0..burst + REFUSED_MAX).filter(|_| greedy.admit_own(now).is_ok());
        assert_eq!(admitted.count(), burst as usize);
        assert!(greedy.is_abused());
        let mut modest = calls.of_connection();
        assert!(modest.admit_own(now).is_ok() && modest.admit_among_all(Kind::Stream, now).is_ok());
        assert_eq!(calls.refused_connection.get(), u64::from(REFUSED_MAX));
        assert_eq!(calls.refused_all.get(), 0);
    }

    #[test]
    fn many_connections_together_are_bounded_too() {
        let calls = Calls::register(&Registry::new()).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        let admitted = |kind| {
            let all = (0..2 * ALL.at_once)
                .filter(|_| calls.of_connection().admit_among_all(kind, now).is_ok());
            u32::try_from(all.count()).unwrap()
        };
        // Questions leave streams alone.
        assert_eq!(admitted(Kind::Health), QUESTIONS.at_once);
        assert_eq!(admitted(Kind::Other), 0);
        assert_eq!(admitted(Kind::Stream), ALL.at_once);
        let refused = 5 * ALL.at_once - QUESTIONS.at_once;
        assert_eq!(calls.refused_all.get(), u64::from(refused));
    }
}
