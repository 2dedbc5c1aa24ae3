//! Checks of a batch: requests in parallel, outcomes, and the effects on stored objects.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, TryFutureExt as _, TryStreamExt as _, stream};
use runtime::unix_micros;

use crate::{
    apps::{App, OnFailure},
    concurrency::{BatchTimes, Plan},
    jobs::{SUSPENSION_MIN_MS, THROTTLED, is_removal, judge},
    limiter::Limiter,
    matches::{self, is_second_sighting},
    messages::{AllowDelete, Asset, AssetResult, JobBatch, JobStatus, Outcome},
    metrics::Metrics,
    origin::{Origin, has_validators},
    outcome::{Answer, Body, outcome},
};

/// Requests for a throttled asset in one batch, in addition to the first.
const THROTTLED_RETRIES: usize = 3;

/// Minimum time without requests after a throttled one.
const THROTTLE_MIN: Duration = Duration::from_secs(1);

/// What a check needs besides its batch.
#[derive(Debug, Clone)]
pub struct Checker<O> {
    /// The origins.
    pub origin: O,
    /// The limiter, if requests are limited.
    pub limiter: Option<Limiter>,
    /// Counters of outcomes.
    pub metrics: Metrics,
}

/// Reason to suspend a job, and the time that the origin demands, in milliseconds.
pub type Suspension = (String, Option<u64>);

/// Completed checks of a batch, kept when requests are interrupted.
#[derive(Default)]
pub struct Progress {
    /// By the position in the batch.
    checked: BTreeMap<usize, AssetResult>,
    /// Position of the asset of each throttled request.
    throttled: Vec<usize>,
}

impl<O: Origin> Checker<O> {
    /// Checks the remaining assets of a batch and stores changed objects, then removes objects within the brake. After a throttled
    /// request no other is sent. Returns the results in the order of the batch.
    ///
    /// # Errors
    /// When an object cannot be stored or removed, or the origin throttles or fails. The batch must be checked again.
    pub async fn check(
        &self,
        app: &App,
        job: &JobStatus,
        batch: &JobBatch,
        plan: Plan,
        progress: &mut Progress,
    ) -> Result<(Vec<AssetResult>, BatchTimes), Suspension> {
        let assets = &batch.assets;
        let allow = job.permitted(app.settings.allow_delete);
        for (index, asset) in assets.iter().enumerate() {
            if allow == AllowDelete::All || (asset.unused && allow == AllowDelete::Partial) {
                let removed = result(Outcome::Removed, asset.clone(), None);
                progress.checked.insert(index, removed);
            }
        }
        let probes = plan.probe_requests.min(assets.len());
        let min = app.settings.concurrency.min;
        for (part, concurrency) in [(0..probes, min), (probes..assets.len(), plan.concurrency)] {
            let demand = AtomicU64::new(0);
            // Collected, because the closure of a lazy map is not `Send` for every lifetime.
            let open: Vec<_> = part
                .filter(|it| !progress.checked.contains_key(it))
                .collect();
            let check = |index: usize| {
                let check = self.check_asset(app, job, &assets[index], &demand);
                check.map_ok(move |result| (index, result))
            };
            let checks: Vec<_> = open.into_iter().map(check).collect();
            let mut checks = stream::iter(checks).buffer_unordered(concurrency.max(1));
            while let Some((index, found)) = checks.try_next().await? {
                let Some(mut found) = found else {
                    continue;
                };
                if found.outcome == Outcome::Throttled {
                    progress.throttled.push(index);
                    let count = progress.throttled.iter().filter(|it| **it == index).count();
                    if count <= THROTTLED_RETRIES {
                        continue;
                    }
                    (found.outcome, found.server_error) = (Outcome::Failed, true);
                }
                progress.checked.insert(index, found);
            }
            if let time @ 1.. = demand.load(Ordering::Relaxed) {
                return Err((THROTTLED.to_owned(), Some(time)));
            }
        }
        // In the order of the batch, so that a repeated batch removes the same objects.
        let mut results: Vec<_> = progress.checked.values().cloned().collect();
        let has_failed = results.iter().any(|it| it.server_error);
        let times = BatchTimes {
            probe: mean(&results[..probes]).map(Duration::from_millis),
            mean: mean(&results[probes..]).map(Duration::from_millis),
            has_failures: has_failed || !progress.throttled.is_empty(),
        };
        let outcomes: Vec<_> = results.iter().map(matches::judged).collect();
        results.iter().for_each(|it| self.count(app, it.outcome));
        let judged = judge(&outcomes, batch.attempt, app.settings.brake).map_err(|reason| {
            *progress = Progress::default();
            (reason.to_owned(), None)
        });
        let all = usize::from(allow == AllowDelete::All) * results.len();
        let removals_max = judged?.max(all);
        let (cookies, now) = (app.settings.cookies.as_ref(), unix_micros() / 1000);
        if let Some(cookies) = cookies {
            let published = matches::publish(cookies, &results).await;
            published.map_err(|error| not_stored(&error))?;
        }
        let drops_failed = app.settings.on_failure == OnFailure::Drop;
        let removals = results.iter_mut().filter(|it| {
            is_removal(it.outcome, batch.attempt, allow, drops_failed)
                && cookies.is_none_or(|cookies| is_second_sighting(cookies, it, now))
        });
        for (index, result) in removals.enumerate() {
            if index < removals_max {
                if let Some(contents) = &app.contents {
                    let removed = contents.remove(result.asset.name()).await;
                    removed.map_err(|error| not_stored(&error))?;
                }
                (result.is_deleted, result.was_stale) = (true, true);
                self.metrics.removed.with_label_values(&[&app.name]).inc();
            } else {
                result.held_back = true;
                self.metrics.held_back.with_label_values(&[&app.name]).inc();
            }
        }
        if let Some(cookies) = cookies {
            let removed = matches::remove(cookies, &results).await;
            removed.map_err(|error| not_stored(&error))?;
        }
        Ok((results, times))
    }

    fn count(&self, app: &App, outcome: Outcome) {
        let labels = [&app.name, &outcome.name()];
        self.metrics.requests.with_label_values(&labels).inc();
    }

    /// Checks an asset unless the origin has throttled the application. The request first waits for its slot. Its response time does
    /// not include that wait, and memory is reserved only for a body.
    async fn check_asset(
        &self,
        app: &App,
        job: &JobStatus,
        asset: &Asset,
        demand: &AtomicU64,
    ) -> Result<Option<AssetResult>, Suspension> {
        let limit = self.limiter.as_ref().zip(app.settings.limit.as_deref());
        if let Some((limiter, counter)) = limit {
            limiter.reserve(counter).await;
        }
        if demand.load(Ordering::Relaxed) > 0 {
            return Ok(None);
        }
        let force = job.force_update;
        let is_conditional = !force && has_validators(asset);
        let answer = self.origin.request(app, asset, is_conditional).await;
        let (outcome, found) = outcome(&app.reading, asset, &answer, is_conditional, force);
        let Answer::Response(response) = answer else {
            return Ok(Some(result(outcome, found, None)));
        };
        let result = result(outcome, found, Some(response.time));
        let seconds = &self.metrics.response_seconds;
        let seconds = seconds.with_label_values(&[&app.name]);
        seconds.observe(response.time.as_secs_f64());
        if outcome == Outcome::Throttled {
            self.count(app, outcome);
            let time = response.retry_after.as_deref().and_then(retry_after);
            let time = time.map_or(SUSPENSION_MIN_MS, |it| millis(it.max(THROTTLE_MIN)));
            demand.fetch_max(time, Ordering::Relaxed);
            if let Some((limiter, counter)) = limit {
                limiter.feedback(counter, &response).await;
            }
        } else if outcome == Outcome::Changed
            && let Some(contents) = &app.contents
            && let Body::Complete(body) = response.body
        {
            let written = contents.write(asset.name(), body).await;
            written.map_err(|error| not_stored(&error))?;
        }
        Ok(Some(result))
    }
}

fn not_stored(error: &anyhow::Error) -> Suspension {
    (
        format!("objects cannot be stored, published or removed: {error:#}"),
        None,
    )
}

/// Parses seconds or a date.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text.trim()).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

fn result(outcome: Outcome, asset: Asset, time: Option<Duration>) -> AssetResult {
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

/// Milliseconds, rounded up, because 0 means that there was no response.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000).max(1)).unwrap_or(u64::MAX)
}

/// Mean response time in milliseconds.
pub(crate) fn mean(results: &[AssetResult]) -> Option<u64> {
    let times = results.iter().map(|it| it.server_response);
    let times: Vec<_> = times.filter(|it| *it > 0).collect();
    times.iter().sum::<u64>().checked_div(times.len() as u64)
}

#[cfg(test)]
mod tests;
