//! Every metric of a limiter that serves.

use std::sync::Arc;

use http::StatusCode;
use metric_defs::limiter::{
    CLOCK_BEHIND, CLOCK_STEPS, COLLECTION_AGE, COUNTERS, COUNTERS_MAX, DECISIONS, DELAYS,
    INCREMENTS, LEARNED, LEARNED_COUNTERS, LIMIT_COUNTERS, LIMITS, OUTBOUND_429, PROBLEMS,
    QUOTA_USED, REQUEST_SECONDS, REQUESTS, SHARED_DECISIONS, SHARING_SERVER, STATE_AGE,
    TOKEN_REFUSALS, VERSION, VERSION_REFUSED, WAITING,
};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Result, proto::MetricFamily};
use runtime::metrics::{Latency, Registry, family};
use tokio::sync::watch;

use super::{
    ask::Call,
    clock::Clock,
    engine::{Counts, Engine, LimitSurvey, Survey},
    limit_sources::{LimitSources, Source},
    problem::{KINDS, Problem},
    saver::Saver,
    sharing::Decider,
};

/// What is asked, as [`Call`] has it, and other paths.
const CALLS: [&str; 5] = ["delay", "reserve", "increment", "feedback", "other"];

/// What the server counts.
#[derive(Debug, Clone)]
pub struct Serving {
    requests: IntCounterVec,
    problems: IntCounterVec,
    pub(super) seconds: Latency,
    /// Reservations whose answer is held until their slot.
    pub(super) waiting: IntGauge,
    pub(super) token_refusals: IntCounterVec,
}

/// What the app tells of all.
pub(super) struct Overview {
    pub(super) engine: Arc<Engine>,
    pub(super) sources: LimitSources,
    /// The newest look at all counters.
    pub(super) survey: watch::Receiver<Arc<Survey>>,
    pub(super) counters_max: usize,
    /// Why the newest limits are not in force.
    pub(super) refused: Box<dyn Fn() -> Option<String> + Send + Sync>,
    pub(super) saver: Option<Saver>,
    pub(super) decider: Decider,
    pub(super) clock: Clock,
}

impl Serving {
    /// Registers what it counts.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> Result<Self> {
        let requests: IntCounterVec = registry.add(REQUESTS)?;
        let problems: IntCounterVec = registry.add(PROBLEMS)?;
        let token_refusals: IntCounterVec = registry.add(TOKEN_REFUSALS)?;
        for reason in ["missing", "wrong", "limit"] {
            token_refusals.with_label_values(&[reason]);
        }
        for call in CALLS {
            for class in ["2xx", "4xx", "5xx"] {
                requests.with_label_values(&[call, class]);
            }
        }
        for kind in KINDS {
            problems.with_label_values(&[kind.name]);
        }
        Ok(Self {
            requests,
            problems,
            seconds: registry.add(REQUEST_SECONDS)?,
            waiting: registry.add(WAITING)?,
            token_refusals,
        })
    }

    pub(super) fn answered(&self, call: Option<Call>, status: StatusCode) {
        let call = call.map_or("other", |call| CALLS[call as usize]);
        let class = match status.as_u16() {
            ..400 => "2xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        self.requests.with_label_values(&[call, class]).inc();
    }

    pub(super) fn problem(&self, problem: &Problem) {
        let kind = problem.kind.name;
        self.problems.with_label_values(&[kind]).inc();
    }
}

impl Overview {
    /// Registers what is read of the engine when somebody asks.
    pub(super) fn register(self: &Arc<Self>, registry: &Registry) -> Result<()> {
        let figures = [
            DECISIONS,
            DELAYS,
            INCREMENTS,
            OUTBOUND_429,
            LEARNED,
            LEARNED_COUNTERS,
            QUOTA_USED,
            LIMIT_COUNTERS,
            COUNTERS,
            COUNTERS_MAX,
            LIMITS,
            COLLECTION_AGE,
            VERSION,
            VERSION_REFUSED,
            STATE_AGE,
            CLOCK_BEHIND,
            SHARED_DECISIONS,
            SHARING_SERVER,
        ];
        let overview = Arc::clone(self);
        registry.read(figures, move || overview.families())
    }

    fn limits_by_source(&self) -> Vec<([&'static str; 1], f64)> {
        let plan = self.sources.plan();
        let mut counts = Source::ALL.map(|source| ([source.name()], 0.0));
        for limit in &plan.rules.limits {
            counts[plan.source(&limit.name) as usize].1 += 1.0;
        }
        counts.into()
    }

    fn families(&self) -> Vec<MetricFamily> {
        let survey = Arc::clone(&self.survey.borrow());
        let now = self.engine.limits_now();
        let sharing = self.decider.standing();
        let limits = &now.limits;
        let looked_at = |figure, value: fn(&LimitSurvey) -> f64| {
            let samples = survey.limits.iter();
            family(figure, samples.map(|it| ([&*it.name], value(it))))
        };
        let by_limit = |figure, value: fn(&Counts) -> u64| {
            let samples = limits.iter();
            family(
                figure,
                samples.map(|it| ([&*it.name], as_f64(value(&it.counts)))),
            )
        };
        let by_outcome = |figure, values: fn(&Counts) -> [(&'static str, u64); 3]| {
            let samples = limits.iter().flat_map(|it| {
                values(&it.counts).map(|(outcome, count)| ([&*it.name, outcome], as_f64(count)))
            });
            family(figure, samples)
        };
        let one = |figure, value: Option<f64>| {
            family::<[&str; 0]>(figure, value.map(|value| ([], value)))
        };
        let truth = |it: bool| Some(f64::from(u8::from(it)));
        vec![
            by_outcome(DECISIONS, |it| {
                [
                    ("now", it.now),
                    ("delayed", it.delayed),
                    ("refused", it.refused),
                ]
            }),
            by_limit(DELAYS, |it| it.asked),
            by_outcome(INCREMENTS, |it| {
                [
                    ("counted", it.counted),
                    ("too_old", it.too_old),
                    ("too_early", it.too_early),
                ]
            }),
            by_limit(OUTBOUND_429, |it| it.outbound_429),
            by_limit(LEARNED, |it| it.learned),
            family(
                LEARNED_COUNTERS,
                limits.iter().map(|it| ([&*it.name], as_f64(it.learned))),
            ),
            family(
                QUOTA_USED,
                survey.limits.iter().filter_map(|it| {
                    let used = as_f64(it.quota.as_ref()?.used_permille) / 1e3;
                    Some(([&*it.name], used))
                }),
            ),
            looked_at(LIMIT_COUNTERS, |it| as_f64(it.counters)),
            one(COUNTERS, Some(as_f64(now.counters as u64))),
            one(COUNTERS_MAX, Some(as_f64(self.counters_max as u64))),
            family(LIMITS, self.limits_by_source()),
            one(
                COLLECTION_AGE,
                self.sources.collection_age().map(|age| age.as_secs_f64()),
            ),
            one(VERSION, Some(as_f64(now.version))),
            one(VERSION_REFUSED, truth((self.refused)().is_some())),
            one(
                STATE_AGE,
                self.saver.as_ref().map(|saver| saver.age().as_secs_f64()),
            ),
            one(CLOCK_BEHIND, Some(self.clock.behind().as_secs_f64())),
            family(
                SHARED_DECISIONS,
                sharing.iter().flat_map(|it| {
                    [
                        ("server", it.by_server),
                        ("part", it.by_part),
                        ("nobody", it.by_nobody),
                    ]
                    .map(|(by, count)| ([by], as_f64(count)))
                }),
            ),
            one(SHARING_SERVER, sharing.and_then(|it| truth(it.has_server))),
        ]
    }
}

/// Counts how often the clock stepped forward.
pub(super) fn clock_steps(registry: &Registry) -> Result<IntCounter> {
    registry.add(CLOCK_STEPS)
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}
