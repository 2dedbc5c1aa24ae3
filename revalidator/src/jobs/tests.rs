//! Tests of the rules of jobs: selection, suspension, counting of results, and the setting `max_removals`, which bounds the removals of a batch.

use super::*;
use crate::messages::Asset;

fn job(id: &str, app: &str, created_at: u64) -> JobStatus {
    JobStatus {
        app_name: app.to_owned(),
        job_id: id.to_owned(),
        revalidators_needed: 1,
        created_at,
        ..JobStatus::default()
    }
}

#[track_caller]
fn check(jobs: &[JobStatus], now: u64, expected: &[&str]) {
    let found = candidates(jobs, now);
    let found: Vec<_> = found.iter().map(|job| &*job.job_id).collect();
    assert_eq!(found, expected);
}

#[test]
fn oldest_open_job_is_first() {
    let mut jobs = [job("c", "z", 3), job("a", "x", 2), job("b", "y", 1)];
    check(&jobs, 9, &["b", "a", "c"]);
    jobs[2].server_state = ServerState::Finished;
    jobs[1].revalidator_state = RevalidatorState::Cancelled;
    check(&jobs, 9, &["c"]);
    jobs[0].server_state = ServerState::Other("Sleeping".to_owned());
    check(&jobs, 9, &[]);
}

#[test]
fn one_bulk_job_of_an_application_is_processed_at_a_time() {
    let mut jobs = [
        job("a", "x", 1),
        job("b", "x", 2),
        job("c", "x", 3),
        job("d", "y", 4),
    ];
    jobs[2].push = true;
    check(&jobs, 9, &["a", "c", "d"]);
    // A suspended job keeps its position.
    suspend(&mut jobs[0], "down", None, 9);
    check(&jobs, 10, &["c", "d"]);
    cancel(&mut jobs[0], "by an operator", 11);
    check(&jobs, 12, &["b", "c", "d"]);
}

#[test]
fn suspension_takes_one_minute_and_doubles_up_to_thirty() {
    let mut it = job("a", "x", 0);
    let mut now = 1_000;
    let mut minutes = Vec::new();
    for _ in 0..8 {
        suspend(&mut it, "at least half of a batch failed", None, now);
        let resume_at = it.resume_at.unwrap();
        assert!(is_suspended(&it, resume_at - 1) && !is_suspended(&it, resume_at));
        minutes.push((resume_at - now) / 60_000);
        now = resume_at;
        resume(&mut it, now);
    }
    assert_eq!(minutes, [1, 2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(it.failing_since, Some(1_000));
}

#[test]
fn second_suspension_by_another_worker_changes_nothing() {
    let mut it = job("a", "x", 0);
    suspend(&mut it, "at least half of a batch failed", None, 1_000);
    let once = it.clone();
    suspend(&mut it, "at least half of a batch failed", None, 1_500);
    assert_eq!(it, once);
}

#[test]
fn throttled_job_stops_all_jobs_of_its_application_for_the_demanded_time() {
    let mut jobs = [job("a", "x", 1), job("b", "x", 2), job("c", "y", 3)];
    jobs[1].push = true;
    check(&jobs, 9, &["a", "b", "c"]);
    suspend(&mut jobs[1], THROTTLED, Some(30_000), 9);
    suspend(&mut jobs[1], THROTTLED, Some(10_000), 10);
    check(&jobs, 30_008, &["c"]);
    check(&jobs, 30_009, &["a", "b", "c"]);
    suspend(&mut jobs[1], THROTTLED, Some(u64::MAX), 10);
    check(&jobs, 10 + GIVE_UP_MS - 1, &["c"]);
    check(&jobs, 10 + GIVE_UP_MS, &["a", "b", "c"]);
    // A demand of the origin does not end a pause by an operator.
    pause(&mut jobs[0], 13);
    suspend(&mut jobs[0], THROTTLED, Some(1), 14);
    check(&jobs, 10 + GIVE_UP_MS, &["b", "c"]);
}

#[test]
fn end_or_pause_of_a_throttled_job_does_not_end_the_demand() {
    let ends: [fn(&mut JobStatus); 3] = [
        |job| cancel(job, "by an operator", 10),
        |job| pause(job, 10),
        |job| job.server_state = ServerState::Finished,
    ];
    for end in ends {
        let mut jobs = [job("a", "x", 1), job("b", "x", 2), job("c", "y", 3)];
        jobs[0].push = true;
        suspend(&mut jobs[0], "at least half of a batch failed", None, 8);
        suspend(&mut jobs[0], THROTTLED, Some(90_000), 9);
        end(&mut jobs[0]);
        check(&jobs, 90_008, &["c"]);
        check(&jobs, 90_009, &["b", "c"]);
        // An operator can resume the job earlier.
        resume(&mut jobs[0], 11);
        jobs[0].server_state = ServerState::Finished;
        check(&jobs, 12, &["b", "c"]);
    }
    let mut jobs = [job("a", "x", 1), job("b", "x", 2)];
    (jobs[0].push, jobs[0].throttled_until) = (true, Some(u64::MAX));
    check(&jobs, 9, &["a", "b"]);
}

#[test]
fn throttled_application_explains_its_open_jobs() {
    let mut jobs = [job("a", "x", 1), job("b", "x", 2), job("c", "y", 3)];
    suspend(&mut jobs[0], "throttled (429)", Some(90_000), 9);
    cancel(&mut jobs[0], "by an operator", 10);
    let throttled = throttled(&jobs, 11);
    let of = |job| {
        let shown = explained(job, &throttled);
        (shown.throttled_until, shown.reason.clone())
    };
    let [ended, waiting, other] = &jobs;
    let until = Some(90_009);
    assert_eq!(of(ended), (until, Some("by an operator".to_owned())));
    assert_eq!(of(waiting), (until, Some(THROTTLED.to_owned())));
    assert_eq!(of(other), (None, None));
}

#[test]
fn job_without_a_result_for_a_day_is_cancelled() {
    let mut it = job("a", "x", 0);
    let mut now = 5_000;
    while it.is_open() {
        suspend(&mut it, "at least half of a batch failed", None, now);
        now = it.resume_at.unwrap_or(now);
        if it.is_open() {
            resume(&mut it, now);
        }
    }
    assert!((GIVE_UP_MS..GIVE_UP_MS + SUSPENSION_MAX_MS).contains(&(now - 5_000)));
    assert!(it.is_cancelled() && it.ended_at.is_some());
    assert_eq!(
        it.reason.as_deref(),
        Some("at least half of a batch failed")
    );
}

#[test]
fn pause_has_no_end_but_a_maximum() {
    let mut it = job("a", "x", 0);
    pause(&mut it, 1_000);
    assert!(is_suspended(&it, u64::MAX));
    assert_eq!(overdue(&it, 1_000 + GIVE_UP_MS - 1), None);
    assert_eq!(
        overdue(&it, 1_000 + GIVE_UP_MS),
        Some("paused for 24 hours")
    );
    resume(&mut it, 2_000);
    assert!(!is_suspended(&it, 2_000) && it.started_at == Some(2_000));
    assert_eq!(overdue(&it, JOB_MS_MAX - 1), None);
    assert!(overdue(&it, JOB_MS_MAX).is_some());
}

#[test]
fn status_of_another_program_gets_usable_times() {
    let hour = DAY_MS / 24;
    let corrected = |created_at, change: fn(&mut JobStatus)| {
        let mut it = job("a", "x", created_at);
        change(&mut it);
        (correct(&mut it, DAY_MS), it)
    };
    let (is_changed, it) = corrected(DAY_MS + hour, |_| ());
    assert!(!is_changed && !it.foreign);
    let (is_changed, it) = corrected(DAY_MS + hour + 1, |_| ());
    assert!(is_changed && it.created_at == DAY_MS && !it.foreign);
    let (is_changed, it) = corrected(0, |it| it.revalidators_needed = 0);
    assert!(is_changed && it.created_at == DAY_MS && it.foreign);
    assert_eq!(it.revalidators_needed, 1);
    let (is_changed, it) = corrected(1, |it| it.server_state = ServerState::Finished);
    assert!(is_changed && it.ended_at == Some(DAY_MS));
}

fn outcomes(counts: &[(Outcome, usize)]) -> Vec<Outcome> {
    let all = counts.iter().flat_map(|&(it, count)| vec![it; count]);
    all.collect()
}

#[test]
fn half_of_a_batch_failed_suspends() {
    use Outcome::{Failed, Fresh};
    let suspended = Err(("at least half of a batch failed", Failed));
    let judged = |failed, fresh, attempt| {
        judge(&outcomes(&[(Failed, failed), (Fresh, fresh)]), attempt, 0.2)
    };
    assert_eq!(judged(49, 51, 1), Ok(20));
    assert_eq!(judged(50, 50, 1), suspended);
    assert_eq!((judged(4, 0, 1), judged(5, 5, 1)), (Ok(0), suspended));
    // A batch of attempt 2: its assets have failed before.
    assert_eq!(judged(49, 0, 2), Ok(9));
}

#[test]
fn a10_more_than_half_gone_suspends_and_less_is_limited() {
    use Outcome::{Fresh, Gone};
    let suspended = Err(("the origin reports more than half of a batch as gone", Gone));
    let judged = |gone, fresh, max_removals| {
        judge(&outcomes(&[(Gone, gone), (Fresh, fresh)]), 1, max_removals)
    };
    assert_eq!(judged(100, 0, 0.2), suspended);
    assert_eq!(judged(51, 49, 1.0), suspended);
    for (gone, fresh, max_removals, expected) in [
        (50, 50, 0.2, 20),
        (3, 0, 0.2, 0),
        (2, 8, 0.2, 2),
        (1, 99, 1.0, 100),
        (9, 90, 0.0, 0),
    ] {
        let found = judged(gone, fresh, max_removals);
        assert_eq!(found, Ok(expected), "{gone} {fresh}");
    }
}

#[test]
fn half_of_a_batch_refused_suspends() {
    let judged = |refused, fresh| {
        let mixed = outcomes(&[(Outcome::Fresh, fresh), (Outcome::Refused, refused)]);
        judge(&mixed, 1, 0.2).is_err_and(|it| it.1 == Outcome::Refused)
    };
    assert!(judged(100, 0) && judged(50, 50) && judged(1, 0) && judged(1, 1));
    assert!(!judged(49, 51) && !judged(1, 99));
}

#[test]
fn only_permitted_objects_are_removed() {
    use AllowDelete::{All, None, Partial};
    use Outcome::{Failed, Fresh, Gone, Removed, Unexpected};
    for (outcome, allow, expected) in [
        (Gone, None, false),
        (Gone, Partial, true),
        (Failed, Partial, false),
        (Fresh, All, false),
        (Unexpected, All, false),
        (Removed, All, true),
        (Removed, None, false),
        (Removed, Partial, true),
    ] {
        assert_eq!(
            is_removal(outcome, allow),
            expected,
            "{outcome:?} {allow:?}"
        );
    }
}

fn result(batch: u64, attempt: u32, outcomes: &[Outcome]) -> JobResult {
    let one = |outcome: &Outcome| AssetResult {
        asset: Asset::default(),
        is_deleted: *outcome == Outcome::Gone,
        server_response: 1,
        server_error: false,
        was_stale: false,
        outcome: *outcome,
        held_back: false,
    };
    JobResult {
        average_response: 1,
        results: outcomes.iter().map(one).collect(),
        revalidator_id: "w".to_owned(),
        job_id: "a".to_owned(),
        batch,
        attempt,
        restarts: 0,
    }
}

#[test]
fn each_batch_and_each_asset_counts_once() {
    use Outcome::{Changed, Failed, Fresh, Gone};
    let mut tally = Tally::default();
    assert!(tally.count(&result(1, 1, &[Fresh, Failed])));
    assert!(!tally.count(&result(1, 1, &[Changed, Changed])));
    assert!(tally.count(&result(0, 1, &[Gone, Failed])));
    assert_eq!(tally.counts.checked, 2);
    assert!(tally.count(&result(0, 2, &[Fresh, Failed])));
    assert!(!tally.count(&result(0, 2, &[Fresh, Failed])));
    let expected = Counts {
        checked: 4,
        fresh: 2,
        gone: 1,
        deleted: 1,
        failed: 1,
        ..Counts::default()
    };
    assert_eq!(tally.counts, expected);
}

#[test]
fn job_is_complete_when_every_batch_is_counted() {
    let mut it = job("a", "x", 0);
    it.batch_count = 2;
    let mut tally = Tally::default();
    tally.count(&result(0, 1, &[Outcome::Failed]));
    tally.count(&result(7, 1, &[Outcome::Fresh]));
    assert!(!tally.has_all(2));
    tally.count(&result(1, 1, &[Outcome::Fresh]));
    assert!(tally.has_all(2) && !tally.is_complete(&it));
    it.server_state = ServerState::WaitForResults;
    assert!(!tally.is_complete(&it));
    it.retry_batch_count = Some(1);
    assert!(!tally.is_complete(&it));
    tally.count(&result(0, 2, &[Outcome::Failed]));
    assert!(tally.is_complete(&it));
}
