//! Checks of a batch: requests in parallel, outcomes, and the effects on stored objects.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use futures_util::{StreamExt as _, TryFutureExt as _, TryStreamExt as _, stream};

use crate::{
    apps::{App, OnFailure},
    concurrency::{BatchTimes, Plan},
    jobs::{Verdict, is_removal, judge},
    limiter::{Limiter, wait_for_slot},
    messages::{AllowDelete, Asset, AssetResult, JobBatch, JobStatus, Outcome},
    metrics::Metrics,
    origin::{BodyMemory, Origin, has_validators},
    outcome::{Answer, Body, Response, outcome},
};

/// Requests for a throttled asset in one batch, in addition to the first.
const THROTTLED_RETRIES: u32 = 3;

/// Pause after a response that demands fewer requests without a time, and maximum of a demanded pause.
const PAUSE_DEFAULT: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// What a check needs besides its batch.
#[derive(Debug, Clone)]
pub struct Checker<O> {
    /// The origins.
    pub origin: O,
    /// Memory for bodies until their objects are stored.
    pub memory: BodyMemory,
    /// The limiter, if requests are limited.
    pub limiter: Option<Limiter>,
    /// Counters of outcomes.
    pub metrics: Metrics,
}

/// Results of a batch and their mean response time in milliseconds; otherwise the reason to suspend the job.
pub type Checked = Result<(Vec<AssetResult>, u64), &'static str>;

/// A checked asset.
struct CheckedAsset {
    result: AssetResult,
    time: Option<Duration>,
    has_failed: bool,
}

impl<O: Origin> Checker<O> {
    /// Checks the assets of a batch and stores changed objects. Then removes objects, within the brake.
    ///
    /// # Errors
    /// When an object cannot be stored or removed. The batch must be checked again.
    pub async fn check(
        &self,
        app: &App,
        job: &JobStatus,
        batch: &JobBatch,
        plan: Plan,
    ) -> Result<(Checked, BatchTimes)> {
        let allow = job.permitted(app.settings.allow_delete);
        let removes_all = allow == AllowDelete::All;
        let probes = plan.probe_requests.min(batch.assets.len());
        let (probe, rest) = batch.assets.split_at(probes);
        let min = app.settings.concurrency.min;
        let probe = self.check_all(app, job, probe, min, removes_all).await?;
        let rest = self.check_all(app, job, rest, plan.concurrency, removes_all);
        let rest = rest.await?;
        let times = BatchTimes {
            probe: mean(&probe),
            mean: mean(&rest),
            has_failures: probe.iter().chain(&rest).any(|it| it.has_failed),
        };
        let checked: Vec<_> = probe.into_iter().chain(rest).collect();
        let average = mean(&checked).map_or(0, millis);
        let mut results: Vec<_> = checked.into_iter().map(|it| it.result).collect();
        let outcomes: Vec<_> = results.iter().map(|it| it.outcome).collect();
        for outcome in &outcomes {
            let labels = [&app.name, &outcome.name()];
            self.metrics.requests.with_label_values(&labels).inc();
        }
        let removals_max = match judge(&outcomes, batch.attempt, app.settings.brake) {
            Verdict::Suspend(reason) => return Ok((Err(reason), times)),
            Verdict::Report { .. } if removes_all => results.len(),
            Verdict::Report { removals_max } => removals_max,
        };
        let drops_failed = app.settings.on_failure == OnFailure::Drop;
        let removals = results
            .iter_mut()
            .filter(|it| is_removal(it.outcome, batch.attempt, allow, drops_failed));
        for (index, result) in removals.enumerate() {
            if index < removals_max {
                remove(app, result).await?;
                self.metrics.removed.with_label_values(&[&app.name]).inc();
            } else {
                result.held_back = true;
                self.metrics.held_back.with_label_values(&[&app.name]).inc();
            }
        }
        Ok((Ok((results, average)), times))
    }

    async fn check_all(
        &self,
        app: &App,
        job: &JobStatus,
        assets: &[Asset],
        concurrency: usize,
        removes_all: bool,
    ) -> Result<Vec<CheckedAsset>> {
        if removes_all {
            let removed = |asset: &Asset| CheckedAsset {
                result: result_of(Outcome::Removed, asset.clone(), None),
                time: None,
                has_failed: false,
            };
            return Ok(assets.iter().map(removed).collect());
        }
        let checks = (0..).zip(assets).map(|(index, asset): (usize, _)| {
            let check = self.check_asset(app, job, asset);
            check.map_ok(move |checked| (index, checked))
        });
        // Collected, because the closure of a lazy map is not `Send` for every lifetime.
        let checks: Vec<_> = checks.collect();
        let checks = stream::iter(checks).buffer_unordered(concurrency.max(1));
        let mut checked: Vec<_> = checks.try_collect().await?;
        // In the order of the batch, so that a repeated batch removes the same objects.
        checked.sort_unstable_by_key(|(index, _)| *index);
        Ok(checked.into_iter().map(|(_, it)| it).collect())
    }

    async fn check_asset(&self, app: &App, job: &JobStatus, asset: &Asset) -> Result<CheckedAsset> {
        let is_conditional = !job.force_update && has_validators(asset);
        let _memory = self.memory.reserve(app.settings.max_body).await;
        let (metrics, force) = (&self.metrics, job.force_update);
        let mut retries = 0;
        let (response, outcome, found) = loop {
            wait_for_slot(self.limiter.as_ref(), app).await;
            let answer = self.origin.request(app, asset, is_conditional).await;
            let (outcome, found) = outcome(&app.reading, asset, &answer, is_conditional, force);
            let Answer::Response(response) = answer else {
                break (None, outcome, found);
            };
            let seconds = metrics.response_seconds.with_label_values(&[&app.name]);
            seconds.observe(response.time.as_secs_f64());
            if outcome != Outcome::Throttled {
                break (Some(response), outcome, found);
            }
            self.throttle(app, &response).await;
            if retries == THROTTLED_RETRIES {
                break (Some(response), Outcome::Failed, found);
            }
            retries += 1;
        };
        let has_failed = retries > 0 || outcome == Outcome::Failed;
        let time = response.as_ref().map(|it| it.time);
        if outcome == Outcome::Changed
            && let Some(contents) = &app.contents
            && let Some(Body::Complete(body)) = response.map(|it| it.body)
        {
            contents.write(asset.name(), body).await?;
        }
        Ok(CheckedAsset {
            result: result_of(outcome, found, time),
            time,
            has_failed,
        })
    }

    /// Stops requests for the time that the origin demands: by the limiter for all workers, and in this process.
    async fn throttle(&self, app: &App, response: &Response) {
        if let (Some(limiter), Some(counter)) = (&self.limiter, &app.limit) {
            limiter.feedback(counter, response).await;
        }
        let demanded = response.retry_after.as_deref().and_then(retry_after);
        app.throttle(demanded.unwrap_or(PAUSE_DEFAULT).min(PAUSE_MAX));
    }
}

/// Parses seconds or a date.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text.trim()).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

async fn remove(app: &App, result: &mut AssetResult) -> Result<()> {
    if let Some(contents) = &app.contents {
        contents.remove(result.asset.name()).await?;
    }
    result.is_deleted = true;
    result.was_stale = true;
    Ok(())
}

fn result_of(outcome: Outcome, asset: Asset, time: Option<Duration>) -> AssetResult {
    AssetResult {
        asset,
        is_deleted: false,
        server_response: time.map_or(0, millis),
        server_error: outcome == Outcome::Failed,
        was_stale: matches!(outcome, Outcome::Changed | Outcome::Gone),
        outcome,
        held_back: false,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn mean(checked: &[CheckedAsset]) -> Option<Duration> {
    let times: Vec<Duration> = checked.iter().filter_map(|it| it.time).collect();
    let count = u32::try_from(times.len()).ok().filter(|it| *it > 0)?;
    Some(times.iter().sum::<Duration>() / count)
}
