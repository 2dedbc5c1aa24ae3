//! Checks a batch: sends requests in parallel, determines their outcomes, and applies them to the stored objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::{StreamExt as _, TryFutureExt as _, TryStreamExt as _, stream};
use prometheus::IntCounterVec;
use serde_json::json;
use tokio::time::timeout;

use crate::{
    apps::App,
    concurrency::{BatchTimes, Plan},
    jobs::{SUSPENSION_MIN_MS, THROTTLED, is_removal, judge},
    limiter::Limiter,
    matches::{self, is_first_sighting, is_publishable, is_second_sighting},
    messages::{AllowDelete, Asset, AssetResult, JobBatch, JobStatus, Outcome},
    metrics::Metrics,
    origin::{Origin, has_validators},
    outcome::{Answer, Body, outcome},
    servers::Servers,
};

/// Requests for a throttled asset in one batch, in addition to the first.
const THROTTLED_RETRIES: usize = 3;

/// Minimum pause after a throttled request.
const THROTTLE_MIN: Duration = Duration::from_secs(1);

/// Timeout of a report to the limiter, which delays the suspension of the job.
const FEEDBACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Dependencies of a check.
#[derive(Debug, Clone)]
pub struct Checker<O> {
    /// The origins.
    pub origin: O,
    /// The limiter of applications with a limit.
    pub limiter: Limiter,
    /// Counters of outcomes.
    pub metrics: Metrics,
}

/// Reason to suspend a job, and the pause in milliseconds, if the origin demands one.
pub type Suspension = (String, Option<u64>);

/// Completed checks of a batch, kept when requests are interrupted.
#[derive(Default)]
pub struct Progress {
    /// Results by position in the batch.
    checked: BTreeMap<usize, AssetResult>,
    /// Outcomes with the statuses that were received; 0 without a response.
    statuses: BTreeSet<(Outcome, u16)>,
    /// Position of the asset of each throttled request.
    throttled: Vec<usize>,
}

impl<O: Origin> Checker<O> {
    /// Checks the remaining assets of a batch and stores changed objects, then removes up to the fraction `max_removals` of the objects. Sends
    /// no requests after a throttled one. Returns the results in the order of the batch. `clock` returns Unix milliseconds.
    ///
    /// # Errors
    /// When an object cannot be stored, purged or removed, or the origin throttles or fails. The batch must be checked again.
    pub async fn check(
        &self,
        app: &App,
        job: &JobStatus,
        batch: &JobBatch,
        plan: Plan,
        progress: &mut Progress,
        clock: fn() -> u64,
    ) -> Result<(Vec<AssetResult>, BatchTimes), Suspension> {
        let assets = &batch.assets;
        let allow = job.permitted(app.settings.allow_delete);
        let prunes = app.settings.prune_after.is_some() && allow == AllowDelete::Partial;
        for (index, asset) in assets.iter().enumerate() {
            if allow == AllowDelete::All || (asset.unused && prunes) {
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
                let check = self.check_asset(app, job, &assets[index], &demand, clock);
                check.map_ok(move |result| (index, result))
            };
            let checks: Vec<_> = open.into_iter().map(check).collect();
            let mut checks = stream::iter(checks).buffer_unordered(concurrency.max(1));
            while let Some((index, found)) = checks.try_next().await? {
                let Some((mut found, status)) = found else {
                    continue;
                };
                progress.statuses.insert((found.outcome, status));
                if found.outcome == Outcome::Throttled {
                    progress.throttled.push(index);
                    let count = progress.throttled.iter().filter(|it| **it == index).count();
                    if count > THROTTLED_RETRIES {
                        (found.outcome, found.server_error) = (Outcome::Failed, true);
                        progress.checked.insert(index, found);
                    }
                    // Other workers also stop. Requests in progress will be sent again.
                    let time = demand.load(Ordering::Relaxed);
                    return Err((format!("{THROTTLED} ({status})"), Some(time)));
                }
                progress.checked.insert(index, found);
            }
        }
        // Results are in the order of the batch, so that a repeated batch removes the same objects.
        let mut results: Vec<_> = progress.checked.values().cloned().collect();
        let (cookies, now) = (app.settings.cookies.as_ref(), clock());
        if cookies.is_some() {
            matches::keep_old(&mut results, now);
        }
        let has_failed = results.iter().any(|it| it.server_error);
        let times = BatchTimes {
            probe: mean(&results[..probes]).map(Duration::from_millis),
            mean: mean(&results[probes..]).map(Duration::from_millis),
            has_failures: has_failed || !progress.throttled.is_empty(),
        };
        let outcomes: Vec<_> = results.iter().map(matches::judged).collect();
        results.iter().for_each(|it| self.count(app, it.outcome));
        let judged = judge(&outcomes, batch.attempt, app.settings.max_removals).map_err(
            |(reason, outcome)| {
                let statuses = std::mem::take(progress).statuses;
                (
                    format!("{reason} ({})", statuses_of(&statuses, outcome)),
                    None,
                )
            },
        );
        let mut removals_left = judged?;
        if let Some(cookies) = cookies {
            let published = matches::publish(cookies, assets, &mut results).await;
            published.map_err(|error| not_stored(&error))?;
        }
        for result in &mut results {
            let is_removal = is_removal(result.outcome, allow);
            // For matches, `max_removals` limits new notes of missing matches, but not the later removals.
            let (is_limited, is_due) = match cookies {
                None => (is_removal, is_removal),
                Some(_) if is_first_sighting(result) => (true, false),
                Some(cookies) => (
                    false,
                    is_removal && is_second_sighting(cookies, result, now),
                ),
            };
            if is_limited && removals_left == 0 {
                result.held_back = true;
                continue;
            }
            removals_left -= usize::from(is_limited);
            if is_due && let Some(contents) = &app.settings.contents {
                let removed = contents.remove(result.asset.name()).await;
                removed.map_err(|error| not_stored(&error))?;
            }
            (result.is_deleted, result.was_stale) = (is_due, result.was_stale || is_due);
        }
        if let Some(cookies) = cookies {
            let removed = matches::remove(cookies, &results).await;
            removed.map_err(|error| not_stored(&error))?;
        }
        if let Some(servers) = &app.settings.purge {
            let purged = purge(servers, job, &results).await;
            purged.map_err(|error| not_stored(&error))?;
        }
        let count = |counter: &IntCounterVec, is_counted: fn(&&AssetResult) -> bool| {
            let count = results.iter().filter(is_counted).count() as u64;
            counter.with_label_values(&[&app.name]).inc_by(count);
        };
        count(&self.metrics.removed, |it| it.is_deleted);
        count(&self.metrics.held_back, |it| it.held_back);
        Ok((results, times))
    }

    fn count(&self, app: &App, outcome: Outcome) {
        let labels = [&app.name, &outcome.name()];
        self.metrics.requests.with_label_values(&labels).inc();
    }

    /// Checks an asset; returns the result and the status. `None` if the origin has throttled the application. Only as many requests wait for the limiter as may be sent
    /// in parallel. Each is therefore sent in its slot, and a job that ends loses few slots. All requests of a batch use one counter,
    /// so a slow limiter does not delay other batches. The response time excludes the wait for a slot, and memory is reserved only for
    /// a body.
    async fn check_asset(
        &self,
        app: &App,
        job: &JobStatus,
        asset: &Asset,
        demand: &AtomicU64,
        clock: fn() -> u64,
    ) -> Result<Option<(AssetResult, u16)>, Suspension> {
        let (limiter, limit) = (&self.limiter, app.settings.limit.as_deref());
        let is_throttled = || demand.load(Ordering::Relaxed) > 0;
        if let Some(counter) = limit.filter(|_| !is_throttled()) {
            limiter.reserve(counter).await;
        }
        if is_throttled() {
            return Ok(None);
        }
        let has_object = match &app.settings.contents {
            Some(contents) => contents.has(asset.name()).await,
            None => true,
        };
        let is_conditional = !job.force_update && has_object && has_validators(asset);
        let answer = match &app.settings.cookies {
            Some(_) if !is_publishable(asset, clock()) => Answer::Forbidden,
            _ => self.origin.request(app, asset, is_conditional).await,
        };
        let rewrite = match app.settings.cookies {
            Some(_) => job.force_update,
            None => !has_object,
        };
        let (outcome, found) = outcome(&app.settings, asset, &answer, is_conditional, rewrite);
        let Answer::Response(response) = answer else {
            return Ok(Some((result(outcome, found, None), 0)));
        };
        let result = result(outcome, found, Some(response.time));
        let seconds = &self.metrics.response_seconds;
        let seconds = seconds.with_label_values(&[&app.name]);
        seconds.observe(response.time.as_secs_f64());
        if outcome == Outcome::Throttled {
            self.count(app, outcome);
            let now = Duration::from_micros(runtime::unix_micros());
            let time = response.limits.demand(response.status, now).pause();
            let time = time.map_or(SUSPENSION_MIN_MS, |it| millis(it.max(THROTTLE_MIN)));
            let time = time.min(millis(app.settings.retry_after_max));
            demand.fetch_max(time, Ordering::Relaxed);
            if let Some(counter) = limit {
                drop(
                    timeout(
                        FEEDBACK_TIMEOUT,
                        limiter.feedback(counter, response.status, time),
                    )
                    .await,
                );
            }
        } else if outcome == Outcome::Changed
            && let Some(contents) = &app.settings.contents
            && let Body::Complete(body) = response.body
        {
            let written = contents.write(asset.name(), body).await;
            written.map_err(|error| not_stored(&error))?;
        }
        Ok(Some((result, response.status)))
    }
}

/// The statuses of an outcome, for the reason of a suspension.
fn statuses_of(statuses: &BTreeSet<(Outcome, u16)>, outcome: Outcome) -> String {
    let of_outcome = statuses.iter().filter(|it| it.0 == outcome);
    let names = of_outcome.map(|(_, status)| match status {
        0 => "no response".to_owned(),
        status => status.to_string(),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Sends a row for each object that was replaced or removed. After an error, the job is suspended, and the batch is checked again.
async fn purge(servers: &Servers, job: &JobStatus, results: &[AssetResult]) -> anyhow::Result<()> {
    let mut rows = String::new();
    for result in results {
        if result.is_deleted || result.outcome == Outcome::Changed {
            let Asset { key, url, .. } = &result.asset;
            let row = json!({ "app": job.app_name, "job": job.job_id, "key": key, "url": url, "removed": result.is_deleted });
            rows.push_str(&format!("{row}\n"));
        }
    }
    if !rows.is_empty() {
        servers.call("", Some(rows)).await?;
    }
    Ok(())
}

fn not_stored(error: &anyhow::Error) -> Suspension {
    let error = format!("{error:#}");
    // The text of another server may be long.
    let reason = format!("objects cannot be stored, published, purged or removed: {error:.500}");
    (reason, None)
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
