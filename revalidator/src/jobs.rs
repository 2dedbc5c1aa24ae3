//! Rules of jobs: which job a worker takes, how results are counted, and when a job is suspended or ends.
//!
//! The functions do no I/O and read no clock. Times are Unix milliseconds.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    ops::Deref,
};

use crate::messages::{
    AllowDelete, AssetResult, BATCH_ASSETS_MAX, Counts, JobResult, JobStatus, Outcome,
    RevalidatorState, ServerState, WORKERS_NEEDED_MAX,
};

/// Duration of the first suspension of a job; each further one takes twice as long, until a batch has a result.
pub const SUSPENSION_MIN_MS: u64 = 60_000;

/// Maximum duration of a suspension.
pub const SUSPENSION_MAX_MS: u64 = 30 * 60_000;

/// Maximum number of open jobs.
pub const OPEN_JOBS_MAX: usize = 1000;

/// A day.
pub const DAY_MS: u64 = 24 * 3_600_000;

/// Maximum time without a result, and maximum pause; the job is then cancelled.
pub const GIVE_UP_MS: u64 = DAY_MS;

/// Maximum number of times that a job begins again.
const RESTARTS_MAX: u32 = 3;

/// Reason of a job that cannot begin again.
const LOST: &str = "NATS has lost batches or results of the job";

/// Maximum duration of a job; messages are kept for seven days.
pub const JOB_MS_MAX: u64 = 6 * DAY_MS;

/// Time for which ended jobs are kept.
pub const ENDED_MS_MAX: u64 = 7 * DAY_MS;

/// Time for which ended single checks are kept.
pub const ENDED_CHECK_MS_MAX: u64 = DAY_MS / 24;

/// Maximum difference between the clocks of two programs.
const CLOCK_MS_MAX: u64 = DAY_MS / 24;

/// A batch suspends its job only if at least this number of its assets failed or are gone.
pub const SUSPENDING_ASSETS_MIN: usize = 5;

/// Reason of a pause by an operator.
pub const PAUSED: &str = "paused by an operator";

/// Reason of a suspension that the origin demands. It stops all jobs of the application.
pub const THROTTLED: &str = "the origin demands fewer requests";

/// The jobs that a worker may process, oldest first. Each is open, not suspended, and the oldest open job of its application. Jobs
/// of a throttled application are excluded, even after the job with the throttled request has ended. Single checks do not wait for
/// older jobs, and no job waits for one whose maker is quiet.
pub fn candidates<J: Deref<Target = JobStatus>>(
    jobs: impl IntoIterator<Item = J>,
    now: u64,
) -> Vec<J> {
    let mut open: Vec<_> = jobs.into_iter().collect();
    let throttled = throttled(open.iter().map(|job| &**job), now);
    open.retain(|job| job.is_open() && job.quiet_since.is_none());
    open.sort_by(|a, b| (a.created_at, &a.job_id).cmp(&(b.created_at, &b.job_id)));
    let mut busy = HashSet::new();
    open.retain(|job| {
        let is_first = job.push || busy.insert(job.app_name.clone());
        is_first && !is_suspended(job, now) && !throttled.contains_key(&job.app_name)
    });
    open
}

/// The applications whose origins demand that no request is sent, and until when.
pub fn throttled<'a>(
    jobs: impl IntoIterator<Item = &'a JobStatus>,
    now: u64,
) -> HashMap<String, u64> {
    let mut throttled = HashMap::new();
    for job in jobs.into_iter().filter(|job| is_throttled(job, now)) {
        let until = throttled.entry(job.app_name.clone()).or_default();
        *until = job.throttled_until.unwrap_or(0).max(*until);
    }
    throttled
}

/// The status to show for a job: if another job of its application was throttled, it states why the job waits.
pub fn explained<'a>(job: &'a JobStatus, throttled: &HashMap<String, u64>) -> Cow<'a, JobStatus> {
    match throttled
        .get(&job.app_name)
        .copied()
        .filter(|_| job.is_open())
    {
        Some(until) => Cow::Owned(JobStatus {
            throttled_until: Some(until),
            reason: job.reason.clone().or_else(|| Some(THROTTLED.to_owned())),
            ..job.clone()
        }),
        None => Cow::Borrowed(job),
    }
}

/// Time without a message of its maker after which a job of another program is quiet.
pub const QUIET_MS: u64 = 60_000;

/// Reason of a quiet job.
pub const QUIET: &str = "the program that created the job has sent nothing for a minute";

/// Notes that the maker of a foreign job is quiet, or no longer quiet.
pub fn set_quiet(job: &mut JobStatus, since: Option<u64>) {
    job.quiet_since = since;
    match since {
        Some(_) => drop(job.reason.get_or_insert_with(|| QUIET.to_owned())),
        None => drop(job.reason.take_if(|it| it == QUIET)),
    }
}

/// Whether the origin of the job has demanded a pause that lasts beyond `now`.
pub fn is_throttled(job: &JobStatus, now: u64) -> bool {
    // Another program may have written an impossible time.
    let times = now + 1..=now + GIVE_UP_MS + CLOCK_MS_MAX;
    job.throttled_until
        .is_some_and(|until| times.contains(&until))
}

/// Whether no worker may process the job at `now`.
pub fn is_suspended(job: &JobStatus, now: u64) -> bool {
    job.revalidator_state == RevalidatorState::Suspended
        && job.resume_at.is_none_or(|resume| resume > now)
}

/// Suspends a job. `time` is the pause in milliseconds that the origin demands. Without it, each suspension takes twice as long
/// as the previous one. Cancels a job that has had no result for [`GIVE_UP_MS`].
pub fn suspend(job: &mut JobStatus, reason: &str, time: Option<u64>, now: u64) {
    let until = time.map(|time| now + time.min(GIVE_UP_MS));
    job.throttled_until = job.throttled_until.max(until);
    if !job.is_open() || is_suspended(job, now) {
        job.resume_at = job.resume_at.max(until.filter(|_| job.resume_at.is_some()));
        return;
    }
    let since = *job.failing_since.get_or_insert(now);
    job.reason = Some(reason.to_owned());
    if now.saturating_sub(since) >= GIVE_UP_MS {
        job.revalidator_state = RevalidatorState::Cancelled;
        job.ended_at = Some(now);
        return;
    }
    let time = SUSPENSION_MIN_MS << job.suspensions.min(5);
    job.suspensions = job.suspensions.saturating_add(1);
    job.revalidator_state = RevalidatorState::Suspended;
    job.suspended_at = Some(now);
    job.resume_at = until.or(Some(now + time.min(SUSPENSION_MAX_MS)));
}

/// Pauses a job until an operator resumes it.
pub fn pause(job: &mut JobStatus, now: u64) {
    job.revalidator_state = RevalidatorState::Suspended;
    job.reason = Some(PAUSED.to_owned());
    job.suspended_at = Some(now);
    job.resume_at = None;
}

/// Ends a suspension or a pause. A worker calls it when it starts the job. An operator may call it before the origin permits requests.
pub fn resume(job: &mut JobStatus, now: u64) {
    job.throttled_until = None;
    job.revalidator_state = RevalidatorState::Revalidating;
    job.started_at.get_or_insert(now);
    job.suspended_at = None;
    job.resume_at = None;
    job.reason = None;
}

/// Cancels an open job.
pub fn cancel(job: &mut JobStatus, reason: &str, now: u64) {
    if job.is_open() {
        job.server_state = ServerState::Cancelled;
        job.revalidator_state = RevalidatorState::Cancelled;
        job.reason = Some(reason.to_owned());
        job.ended_at = Some(now);
    }
}

/// Begins a job whose batches or results are lost again, from the position `start` of its source. Cancels it if there is no such
/// position, because the broker had the only copy of the assets.
pub fn begin_again(job: &mut JobStatus, start: Option<String>, now: u64) {
    match start {
        Some(start) if job.restarts < RESTARTS_MAX => {
            job.restarts += 1;
            job.server_state = ServerState::Transmitting;
            (job.cursor, job.retry_batch_count) = (start, None);
            (job.asset_count, job.batch_count) = (0, 0);
            let other = std::mem::take(&mut job.counts.other);
            job.counts = Counts {
                other,
                ..Counts::default()
            };
        }
        _ => cancel(job, LOST, now),
    }
}

/// Reason to cancel an open job at `now`, if any.
pub fn overdue(job: &JobStatus, now: u64) -> Option<&'static str> {
    let since = |time: u64| now.saturating_sub(time);
    let is_paused = job.resume_at.is_none();
    if since(job.created_at) >= JOB_MS_MAX {
        Some("not finished within 6 days")
    } else if is_paused && job.suspended_at.is_some_and(|at| since(at) >= GIVE_UP_MS) {
        Some("paused for 24 hours")
    } else {
        None
    }
}

/// Adds times that another program omitted, and corrects impossible values; true if it changed the job. A job without a time of
/// creation has a foreign maker.
pub fn correct(job: &mut JobStatus, now: u64) -> bool {
    let before = job.clone();
    if job.created_at == 0 || job.created_at > now + CLOCK_MS_MAX {
        job.foreign |= job.created_at == 0;
        job.created_at = now;
    }
    job.revalidators_needed = job.revalidators_needed.clamp(1, WORKERS_NEEDED_MAX);
    if job.is_cancelled() || job.server_state == ServerState::Finished {
        job.ended_at.get_or_insert(now);
    }
    *job != before
}

/// Judges the outcomes of a batch. Returns how many of its objects may be removed: at most the fraction `max_removals`.
///
/// # Errors
/// The reason to suspend the job, and the outcome that is the cause. Nothing is then reported or removed.
pub fn judge(
    outcomes: &[Outcome],
    attempt: u32,
    max_removals: f64,
) -> Result<usize, (&'static str, Outcome)> {
    let count = |of: Outcome| outcomes.iter().filter(|it| **it == of).count();
    let is_part = |count: usize| count >= SUSPENDING_ASSETS_MIN && 2 * count >= outcomes.len();
    let gone = count(Outcome::Gone);
    // If fewer are refused, the origin may protect only these objects.
    let refused = count(Outcome::Refused);
    if refused > 0 && 2 * refused >= outcomes.len() {
        return Err((
            "the origin refused at least half of a batch",
            Outcome::Refused,
        ));
    }
    // Retried assets have failed before, so their failures do not show that the origin fails.
    if attempt == 1 && is_part(count(Outcome::Failed)) {
        return Err(("at least half of a batch failed", Outcome::Failed));
    }
    if is_part(gone) && 2 * gone > outcomes.len() {
        return Err((
            "the origin reports more than half of a batch as gone",
            Outcome::Gone,
        ));
    }
    // URLs that were not requested must not permit further removals.
    let requested = outcomes.len() - count(Outcome::Unexpected);
    Ok(removals_max(requested, max_removals))
}

/// The maximum number of `objects` that may be removed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a fraction of a small number"
)]
pub fn removals_max(objects: usize, max_removals: f64) -> usize {
    (objects as f64 * max_removals.clamp(0.0, 1.0) + 1e-9).floor() as usize
}

/// Whether the object of a result is to be removed.
pub fn is_removal(outcome: Outcome, allow: AllowDelete) -> bool {
    allow != AllowDelete::None && matches!(outcome, Outcome::Gone | Outcome::Removed)
}

/// Whether an asset is retried in a batch of attempt 2 at the end of the job.
pub fn is_retried(result: &AssetResult, attempt: u32) -> bool {
    attempt == 1 && result.outcome == Outcome::Failed
}

/// Maximum number of transmitted batches without a result, so that no job fills the stream of batches.
pub const WINDOW: u64 = 200;

/// Results of a job, counted in the order of their publication. Each batch counts once; results without a batch do not count.
#[derive(Debug, Default)]
pub struct Tally {
    /// Batches whose first attempt is counted.
    pub first: HashSet<u64>,
    /// Number of the first batch that is not counted.
    next: u64,
    retried: HashSet<u64>,
    /// Number of assets whose first attempt failed.
    failed: u64,
    /// Outcomes so far.
    pub counts: Counts,
}

impl Tally {
    /// Whether a result belongs to a batch of the job.
    pub fn is_expected(&self, result: &JobResult, job: &JobStatus) -> bool {
        let is_transmitted = job.server_state != ServerState::Transmitting;
        let batches = match result.attempt {
            1 if is_transmitted => job.batch_count,
            1 => self.first.len() as u64 + WINDOW,
            2 if is_transmitted && self.has_all(job.batch_count) => {
                self.failed.div_ceil(BATCH_ASSETS_MAX as u64)
            }
            _ => 0,
        };
        // Failed assets are sent again in batches, which have the same bounds.
        let is_short = |it: &AssetResult| it.asset.is_short() || !is_retried(it, result.attempt);
        let is_small =
            result.results.len() <= BATCH_ASSETS_MAX && result.results.iter().all(is_short);
        let is_of_job = result.job_id == job.job_id && result.restarts == job.restarts;
        is_of_job && result.batch < batches && is_small
    }

    /// Counts an expected result; false if its batch was counted before.
    pub fn count(&mut self, result: &JobResult) -> bool {
        let batches = if result.attempt > 1 {
            &mut self.retried
        } else {
            &mut self.first
        };
        if !batches.insert(result.batch) {
            return false;
        }
        while self.first.contains(&self.next) {
            self.next += 1;
        }
        for one in &result.results {
            if is_retried(one, result.attempt) {
                self.failed += 1;
            } else {
                self.count_asset(one);
            }
        }
        true
    }

    fn count_asset(&mut self, result: &AssetResult) {
        let counts = &mut self.counts;
        counts.checked += 1;
        counts.deleted += u64::from(result.is_deleted);
        counts.held_back += u64::from(result.held_back);
        let counter = match result.outcome {
            Outcome::Fresh => &mut counts.fresh,
            Outcome::Changed => &mut counts.changed,
            Outcome::Gone => &mut counts.gone,
            Outcome::Failed | Outcome::Throttled => &mut counts.failed,
            Outcome::Refused | Outcome::Unexpected | Outcome::Malformed => &mut counts.kept,
            Outcome::Removed => return,
        };
        *counter += 1;
    }

    /// Whether the first attempts of all batches are counted.
    pub fn has_all(&self, batch_count: u64) -> bool {
        self.next >= batch_count
    }

    /// Whether a batch has no result: one of the `sent` ones, or of those with failed assets.
    pub fn misses(&self, sent: u64, job: &JobStatus) -> bool {
        let retries = job.retry_batch_count.unwrap_or(0);
        (self.first.len() as u64) < sent || (self.retried.len() as u64) < retries
    }

    /// Whether all batches are counted.
    pub fn is_complete(&self, job: &JobStatus) -> bool {
        let retries = job.retry_batch_count;
        job.server_state != ServerState::Transmitting
            && self.has_all(job.batch_count)
            && retries.is_some_and(|count| self.retried.len() as u64 >= count)
    }
}

#[cfg(test)]
mod tests;
