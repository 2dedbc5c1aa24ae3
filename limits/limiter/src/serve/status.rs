//! What the status page of a limiter shows: one sample a second of its limits, the counters that are used most, and who waits.
//!
//! All types here are the JSON of `/status.json`: names stay, times are in seconds, rates a second and over the last second.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use runtime::{
    ready::{self, Part},
    status::{
        INTERVAL, StatusSource,
        page::Content,
        sample::{self, Head},
        series::{Rate, Series, short},
    },
};
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    engine::{Engine, LimitSurvey, Row, Survey, Taught},
    limit_sources::{LimitSources, Plan},
    saver::Saver,
    sharing::Decider,
};

/// The page.
pub const PAGE: Content = Content {
    name: "limiter",
    style: include_str!("status/page.css"),
    body: include_str!("status/page.html"),
    script: include_str!("status/page.js"),
};

/// Most counters shown: those that are used most.
const COUNTERS_MAX: usize = 50;

/// Most limits shown.
const LIMITS_MAX: usize = 200;

/// One moment of a limiter.
#[derive(Debug, Clone, Serialize)]
struct Status {
    /// What every process says of itself.
    #[serde(flatten)]
    head: Head,
    /// Reservations, questions and reports, of the last second.
    decisions_per_second: f64,
    /// Reservations that are held until their slot.
    waiting: usize,
    /// The counters that most wait for.
    waiting_for: Vec<WaitingFor>,
    counters: usize,
    counters_max: usize,
    /// Counters of which something is learned.
    learned: usize,
    /// Seconds since the newest snapshot on the disk began; none where nothing is kept.
    snapshot_age_seconds: Option<f64>,
    /// Version of the limits in force.
    limits_version: u64,
    /// What is wrong with a newer version of the file or the collection.
    limits_refused: Option<String>,
    limits_total: usize,
    limits: Vec<LimitRow>,
    fullest: Vec<CounterRow>,
    /// Some of what is learned, the strictest first.
    taught: Vec<TaughtRow>,
}

#[derive(Debug, Clone, Serialize)]
struct WaitingFor {
    counter: String,
    count: usize,
}

#[derive(Debug, Clone, Serialize)]
struct LimitRow {
    name: String,
    rules: Vec<String>,
    /// `file` or `collection`.
    source: &'static str,
    now: u64,
    delayed: u64,
    refused: u64,
    granted_per_second: f64,
    refused_per_second: f64,
    asked: u64,
    counted: u64,
    counters: u64,
    used_percent: f64,
    learned: u64,
    outbound_429: u64,
}

#[derive(Debug, Clone, Serialize)]
struct CounterRow {
    limit: String,
    rule: String,
    counter: String,
    used: u64,
    most: u64,
    used_percent: f64,
    /// Seconds until one could go.
    next_seconds: f64,
}

#[derive(Debug, Clone, Serialize)]
struct TaughtRow {
    limit: String,
    counter: String,
    /// Requests that the partner's answer leaves, and for how long.
    left: u64,
    seconds: f64,
}

/// The last five minutes, one value for each sample, the oldest first.
#[derive(Debug, Clone, Serialize)]
struct History<'a> {
    interval_seconds: f64,
    decisions_per_second: &'a Series,
}

/// Where the figures come from.
pub struct Sources {
    /// The limiter.
    pub engine: Arc<Engine>,
    /// Where its limits come from.
    pub limits: LimitSources,
    /// Its clock.
    pub clock: Clock,
    /// Where it listens.
    pub name: String,
    /// Those who wait.
    /// What keeps snapshots, if something does.
    pub saver: Option<Saver>,
    /// Who decides on calls.
    pub decider: Decider,
    /// Whether every counter was charged at the start.
    /// Why the newest limits are not in force.
    pub refused: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Whether it is being stopped.
    pub draining: CancellationToken,
    /// Where the newest survey is put, for metrics.
    pub survey: Arc<Mutex<Arc<Survey>>>,
}

/// How each part of a limiter is.
#[must_use]
pub fn parts(
    draining: &CancellationToken,
    saver: Option<&Saver>,
    decider: &Decider,
    clock: &Clock,
) -> Vec<Part> {
    let mut parts = vec![ready::drain(draining.is_cancelled())];
    let kept = || Ok("nothing is kept over a restart".to_owned());
    parts.push(Part::new("state", saver.map_or_else(kept, Saver::state)));
    parts.push(Part::new("clock", Ok(clock.state())));
    parts.extend(decider.state().map(|state| Part::new("sharing", state)));
    parts
}

/// Takes the samples of one limiter.
pub struct LimiterStatus {
    sources: Sources,
    started: Instant,
    decisions: Rate,
    granted: HashMap<Arc<str>, (Rate, Rate)>,
    decisions_per_second: Series,
    newest: Option<Status>,
}

impl LimiterStatus {
    /// Nothing sampled yet; the uptime counts from now.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            started: Instant::now(),
            decisions: Rate::default(),
            granted: HashMap::new(),
            decisions_per_second: Series::default(),
            newest: None,
        }
    }

    fn limit(&mut self, survey: &LimitSurvey, plan: &Plan, now: Instant) -> LimitRow {
        let counts = survey.counts;
        let rates = self.granted.entry(Arc::clone(&survey.name)).or_default();
        let granted = counts.now + counts.delayed;
        let rules = survey.rules.iter();
        LimitRow {
            name: survey.name.to_string(),
            rules: rules
                .map(|(name, words)| format!("{name}: {words}"))
                .collect(),
            source: plan.source(&survey.name).name(),
            now: counts.now,
            delayed: counts.delayed,
            refused: counts.refused,
            granted_per_second: rates.0.look(granted, now),
            refused_per_second: rates.1.look(counts.refused, now),
            asked: counts.asked,
            counted: counts.counted,
            counters: survey.counters,
            used_percent: percent(survey.used_permille),
            learned: survey.learned,
            outbound_429: counts.outbound_429,
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a part of a whole is not a large number"
)]
fn percent(permille: u64) -> f64 {
    permille as f64 / 10.0
}

impl CounterRow {
    fn of(row: &Row, now: u64) -> Self {
        let wait = std::time::Duration::from_nanos(row.next.saturating_sub(now));
        Self {
            limit: row.limit.to_string(),
            rule: row.rule.to_string(),
            counter: row.counter.to_string(),
            used: row.used,
            most: row.most,
            used_percent: percent(row.used_permille),
            next_seconds: short(wait.as_secs_f64()),
        }
    }
}

impl TaughtRow {
    fn of(taught: &Taught, now: u64) -> Self {
        let lasts = std::time::Duration::from_nanos(taught.until.saturating_sub(now));
        Self {
            limit: taught.limit.to_string(),
            counter: taught.counter.to_string(),
            left: taught.left,
            seconds: short(lasts.as_secs_f64()),
        }
    }
}

impl StatusSource for LimiterStatus {
    fn sample(&mut self, now: Instant) {
        let moment = self.sources.clock.now();
        let survey = Arc::new(self.sources.engine.survey(COUNTERS_MAX, moment));
        {
            let newest = &self.sources.survey;
            *newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&survey);
        }
        let limits = survey.limits.iter().take(LIMITS_MAX);
        let plan = self.sources.limits.plan();
        let limits = limits.map(|it| self.limit(it, &plan, now)).collect();
        let all = survey.limits.iter().map(|it| it.counts);
        let all =
            all.map(|it| it.now + it.delayed + it.refused + it.asked + it.counted + it.too_old);
        let decisions_per_second = self.decisions.look(all.sum(), now);
        self.granted
            .retain(|name, _| survey.limits.iter().any(|it| it.name == *name));
        self.decisions_per_second.push(decisions_per_second);
        let sources = &self.sources;
        self.newest = Some(Status {
            head: Head::now(
                "limiter",
                &sources.name,
                now - self.started,
                &parts(
                    &sources.draining,
                    sources.saver.as_ref(),
                    &sources.decider,
                    &sources.clock,
                ),
                sources.draining.is_cancelled(),
            ),
            decisions_per_second,
            waiting: 0,
            waiting_for: Vec::new(),
            counters: survey.counters,
            counters_max: sources.engine.options().counters_max,
            learned: survey.learned,
            snapshot_age_seconds: sources
                .saver
                .as_ref()
                .map(|saver| short(saver.age().as_secs_f64())),
            limits_version: survey.version,
            limits_refused: (sources.refused)(),
            limits_total: survey.limits.len(),
            limits,
            fullest: survey
                .fullest
                .iter()
                .map(|row| CounterRow::of(row, moment))
                .collect(),
            taught: survey
                .taught
                .iter()
                .map(|taught| TaughtRow::of(taught, moment))
                .collect(),
        });
    }

    fn json(&self, with_history: bool) -> serde_json::Result<Vec<u8>> {
        let history = with_history.then_some(History {
            interval_seconds: INTERVAL.as_secs_f64(),
            decisions_per_second: &self.decisions_per_second,
        });
        sample::json(self.newest.as_ref(), history)
    }
}
