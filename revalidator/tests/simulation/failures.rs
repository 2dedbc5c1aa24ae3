//! Tests in which an origin, a worker, the broker, or a maker (which sends the batches of jobs) fails.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use revalidator::messages::{AllowDelete, Asset, Outcome, RevalidatorState, ServerState};

use super::{
    APPS, fresh,
    harness::{START, Simulation},
};

pub(crate) const MINUTE: u64 = 60_000;
pub(crate) const TIME: Duration = Duration::from_millis(200);

/// Number of an asset within its job.
fn number(asset: &Asset) -> usize {
    asset.key.rsplit('/').next().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a9_half_minus_one_failed_is_retried_in_one_marked_batch_at_the_end() {
    let mut simulation = Simulation::new(APPS, |asset, _| {
        (
            if number(asset) % 100 < 49 && number(asset) < 100 {
                503
            } else {
                304
            },
            TIME,
        )
    });
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 300, |_| ()).await;
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.server_state, ServerState::Finished);
    assert_eq!(
        (
            ended.counts.checked,
            ended.counts.failed,
            ended.counts.fresh
        ),
        (300, 49, 251)
    );
    assert_eq!(ended.retry_batch_count, Some(1));
    let results = simulation.results("a");
    let last = results.last().unwrap();
    assert_eq!(
        (results.len(), last.attempt, last.results.len()),
        (4, 2, 49)
    );
    assert!(
        last.results
            .iter()
            .all(|it| it.outcome == Outcome::Failed && it.server_error && !it.is_deleted)
    );
    assert_eq!(
        (
            simulation.requests_for("a/0"),
            simulation.requests_for("a/50")
        ),
        (2, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a9_half_failed_suspends_and_the_worker_takes_another_job() {
    let is_down = |now: u64| now < START + 2 * MINUTE;
    let mut simulation = Simulation::new(APPS, move |asset, now| {
        let fails = asset.key.starts_with("a/") && number(asset).is_multiple_of(2) && is_down(now);
        (if fails { 500 } else { 304 }, TIME)
    });
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 300, |_| ()).await;
    simulation.job("two", "b", 300, |_| ()).await;
    let suspended = simulation
        .wait("a", |job| {
            job.revalidator_state == RevalidatorState::Suspended
        })
        .await;
    assert_eq!(
        suspended.reason.as_deref(),
        Some("at least half of a batch failed (500)")
    );
    assert_eq!(
        suspended.resume_at,
        suspended.suspended_at.map(|at| at + MINUTE)
    );
    let other = simulation.wait_ended("b").await;
    assert!(other.ended_at < suspended.resume_at);
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.server_state, ServerState::Finished);
    // One minute, then two.
    assert_eq!(
        (ended.counts.fresh, ended.suspensions, ended.failing_since),
        (300, 0, None)
    );
    assert!((START + 3 * MINUTE..START + 4 * MINUTE).contains(&ended.ended_at.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a9_half_failed_lowers_the_number_of_parallel_requests() {
    let starts = Arc::new(Mutex::new(BTreeMap::<u64, usize>::new()));
    let of_origin = Arc::clone(&starts);
    let mut simulation = Simulation::new(APPS, move |asset, now| {
        let is_last = number(asset) >= 500;
        if is_last {
            *of_origin.lock().unwrap().entry(now).or_default() += 1;
        }
        (
            if is_last && now < START + MINUTE {
                500
            } else {
                304
            },
            TIME,
        )
    });
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 600, |_| ()).await;
    simulation.wait_ended("a").await;
    let starts = starts.lock().unwrap();
    let max = |times: std::ops::Range<u64>| starts.range(times).map(|it| *it.1).max();
    assert_eq!(max(START..START + MINUTE), Some(16));
    assert_eq!(max(START + MINUTE..START + 10 * MINUTE), Some(14));
}

#[tokio::test(start_paused = true)]
async fn a9_origin_that_is_down_for_a_day_cancels_the_job() {
    let mut simulation = Simulation::new(APPS, |_, _| (0, TIME));
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 300, |_| ()).await;
    let ended = simulation
        .wait("a", |job| job.server_state == ServerState::Cancelled)
        .await;
    let day = 24 * 60 * MINUTE;
    assert!((START + day..START + day + 35 * MINUTE).contains(&ended.ended_at.unwrap()));
    assert_eq!(
        ended.reason.as_deref(),
        Some("at least half of a batch failed (no response)")
    );
    assert!(!ended.acknowledged && simulation.results("a").is_empty());
    // About one batch every half hour.
    assert!(
        simulation.requests() < 60 * 100,
        "{}",
        simulation.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn a10_origin_without_any_object_or_permission_removes_nothing() {
    for (status, reason) in [
        (
            404,
            "the origin reports more than half of a batch as gone (404)",
        ),
        (403, "the origin refused at least half of a batch (403)"),
    ] {
        let mut simulation = Simulation::new(APPS, move |_, _| (status, TIME));
        simulation.maker();
        simulation.worker();
        simulation
            .job("one", "a", 300, |new| {
                new.allow_delete = AllowDelete::Partial
            })
            .await;
        let suspended = simulation
            .wait("a", |job| {
                job.revalidator_state == RevalidatorState::Suspended
            })
            .await;
        assert_eq!(suspended.reason.as_deref(), Some(reason));
        assert_eq!(simulation.requests(), 100);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let later = simulation.status("a").await;
        assert!(later.suspensions > 3, "{later:?}");
        assert_eq!(
            (later.counts.deleted, simulation.results("a").len()),
            (0, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn max_removals_permits_a_fifth_of_each_batch_and_reports_the_others() {
    let mut simulation = Simulation::new(APPS, |asset, _| {
        (if number(asset) % 10 < 3 { 410 } else { 304 }, TIME)
    });
    simulation.maker();
    simulation.worker();
    simulation
        .job("one", "a", 250, |new| {
            new.allow_delete = AllowDelete::Partial
        })
        .await;
    let counts = simulation.wait_ended("a").await.counts;
    assert_eq!(
        (counts.gone, counts.deleted, counts.held_back),
        (75, 50, 25)
    );
    // The application does not permit removals.
    simulation
        .job("two", "b", 100, |new| new.allow_delete = AllowDelete::All)
        .await;
    let counts = simulation.wait_ended("b").await.counts;
    assert_eq!((counts.gone, counts.deleted, counts.held_back), (30, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn crashed_worker_repeats_at_most_one_batch() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    let first = simulation.worker();
    simulation.job("one", "a", 2_000, |_| ()).await;
    simulation.wait("a", |job| job.counts.checked >= 500).await;
    first.abort();
    simulation.worker();
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.counts.checked, 2_000);
    assert!(simulation.repeated("a") <= 1);
    assert!(
        (2_000..=2_100).contains(&simulation.requests()),
        "{}",
        simulation.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn job_of_a_crashed_maker_is_ended_by_another() {
    let mut simulation = Simulation::new(APPS, |asset, _| {
        (
            if number(asset).is_multiple_of(10) {
                500
            } else {
                304
            },
            TIME,
        )
    });
    let first = simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 3_000, |_| ()).await;
    simulation.wait("a", |job| job.counts.checked >= 500).await;
    first.abort();
    simulation.maker();
    let ended = simulation.wait_ended("a").await;
    assert_eq!((ended.counts.checked, ended.counts.failed), (3_000, 300));
    assert_eq!(ended.retry_batch_count, Some(3));
    assert_eq!(simulation.requests(), 3_300);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "on purpose")]
async fn panic_in_the_maker_of_a_job_ends_the_whole_maker() {
    let mut simulation = Simulation::new(APPS, fresh);
    let maker = simulation.maker();
    simulation.model.panic_in_results();
    simulation.job("one", "a", 100, |_| ()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(maker.is_finished());
}

#[tokio::test(start_paused = true)]
async fn broker_outage_delays_results_and_loses_none() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 3_000, |_| ()).await;
    simulation.wait("a", |job| job.counts.checked >= 500).await;
    simulation.model.set_down(true);
    tokio::time::sleep(Duration::from_secs(120)).await;
    let requests = simulation.requests();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(simulation.requests(), requests);
    simulation.model.set_down(false);
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.counts.checked, 3_000);
    assert!(simulation.repeated("a") <= 1);
}
