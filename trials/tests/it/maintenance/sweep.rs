//! Tests of expiry by sweep, a scan that deletes expired documents: which documents it deletes if it is killed, or if cookies are renewed
//! or the TTL changes during the scan.

mod handover;

use proto::units::UnixMicros;
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use consumer::{
    deletions::Deletions,
    store::{Expiry, SweepProgress, Upkeep as _},
};
use mongodb::bson::{Document, doc};
use testkit::programs::ServerProcess;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    harness::{TIMEOUT, wait_until},
    maintenance::{ConsumerOptions, DAY, MaintenanceRun, RetryClock, Server, TTL, at},
};

/// Deadline for a sweep on a busy machine.
const SWEEP_TIMEOUT: Duration = TIMEOUT.saturating_mul(10);

const HOUR: Duration = Duration::from_secs(3600);

/// Writes `count` documents of which every other one has expired.
async fn fill(server: &Server, namespace: &str, count: usize) -> Result<()> {
    let times = [server.ago(TTL + HOUR), server.ago(HOUR)];
    let documents = (0..count).map(|number| {
        let time = times[number % 2];
        doc! { "_id": user(number), "b": "b", "t": time }
    });
    let documents: Vec<_> = documents.collect();
    let cookies = server.collection(namespace);
    for some in documents.chunks(10_000) {
        cookies.insert_many(some).ordered(false).await?;
    }
    Ok(())
}

/// The id of a user. The order of the ids differs from the order of the numbers.
fn user(number: usize) -> String {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{mixed:016x}")
}

/// Writes new cookies of these users.
async fn refresh(server: &Server, namespace: &str, users: &[usize]) -> Result<()> {
    let update = |number: &usize| {
        let user = user(*number);
        let cookie = doc! { "$set": { "b": "again", "t": server.ago(HOUR) } };
        doc! { "q": { "_id": user }, "u": cookie, "upsert": true }
    };
    let updates: Vec<Document> = users.iter().map(update).collect();
    let (database, collection) = namespace.split_once('.').unwrap_or((namespace, "cookies"));
    let update = doc! { "update": collection, "ordered": false, "updates": updates };
    let answer = server.database(database).run_command(update).await?;
    ensure!(!answer.contains_key("writeErrors"), "{answer}");
    Ok(())
}

/// Whether the sweep of a collection is complete.
async fn is_swept(server: &Server, namespace: &str) -> Result<bool> {
    let records = server.sweeps().await?;
    let record = records.get(namespace);
    Ok(record.is_some_and(|record| record.contains_key("complete")))
}

/// Waits until `remaining` documents remain.
async fn wait_remaining(
    retry_clock: &RetryClock<'_>,
    server: &Server,
    namespace: &str,
    remaining: u64,
) -> Result<()> {
    let cookies = server.collection(namespace);
    wait_until(
        SWEEP_TIMEOUT,
        "all expired cookies are deleted",
        async || {
            retry_clock.advance();
            Ok(cookies.count_documents(doc! {}).await? == remaining)
        },
    )
    .await
}

#[tokio::test]
async fn cookie_refreshed_during_a_sweep_is_never_lost() -> Result<()> {
    const USERS: usize = 40_000;
    let (mongod, server) = Server::start().await?;
    fill(&server, "17.cookies", USERS).await?;
    let maintenance = MaintenanceRun::start(&mongod, "10T01:10")?;
    let mut random = fastrand::Rng::with_seed(21);
    let mut alive: BTreeSet<String> = (1..USERS).step_by(2).map(user).collect();
    let (mut refreshed, began) = (0, Instant::now());
    // Refreshes anywhere, and close to the position of the sweep, which follows the order of insertion.
    while !is_swept(&server, "17.cookies").await? {
        ensure!(began.elapsed() < SWEEP_TIMEOUT, "the sweep does not end");
        let swept = usize::try_from(maintenance.metrics.swept.get())?;
        let mut users = Vec::new();
        for _ in 0..100 {
            let near = swept.saturating_sub(2_000) + random.usize(..12_000);
            users.extend([near.min(USERS - 1), random.usize(..USERS)]);
        }
        refresh(&server, "17.cookies", &users).await?;
        refreshed += users.len();
        alive.extend(users.into_iter().map(user));
    }
    let remaining: BTreeSet<String> = server.names("17.cookies").await?.into_iter().collect();
    let lost = alive.difference(&remaining).count();
    ensure!(
        lost == 0,
        "{lost} of {} fresh cookies are lost",
        alive.len()
    );
    let old = doc! { "t": { "$lt": server.ago(TTL) } };
    let old = server.collection("17.cookies").count_documents(old).await?;
    ensure!(old == 0, "{old} expired cookies remain");
    println!(
        "{refreshed} refreshes; {} of {USERS} cookies remain",
        remaining.len()
    );
    wait_until(
        TIMEOUT,
        "the metrics report the end of the sweep",
        async || {
            let metrics = &maintenance.metrics;
            Ok(metrics.sweep_remaining.get() == 0 && metrics.expired.get() > 0)
        },
    )
    .await?;
    maintenance.stop().await
}

#[tokio::test]
async fn repeatedly_killed_sweep_deletes_all_expired_cookies() -> Result<()> {
    let (mut mongod, server) = Server::start().await?;
    fill(&server, "17.cookies", 40_000).await?;
    fill(&server, "19.cookies", 3_000).await?;
    let cookies = server.collection("17.cookies");
    let mut before = cookies.count_documents(doc! {}).await?;
    for kill in 1..=4 {
        let maintenance = MaintenanceRun::start(&mongod, "10T01:10")?;
        wait_until(SWEEP_TIMEOUT, "the sweep deletes", async || {
            let remaining = cookies.count_documents(doc! {}).await?;
            Ok(remaining < before || remaining == 20_000)
        })
        .await?;
        if kill == 2 {
            mongod.kill()?;
        }
        // Dropping the task aborts it at any step.
        drop(maintenance);
        if kill == 2 {
            mongod.restart().await?;
        }
        before = cookies.count_documents(doc! {}).await?;
    }
    let maintenance = MaintenanceRun::start(&mongod, "10T01:20")?;
    let retry_clock = maintenance.retry_clock();
    wait_remaining(&retry_clock, &server, "17.cookies", 20_000).await?;
    wait_remaining(&retry_clock, &server, "19.cookies", 1_500).await?;
    maintenance.stop().await
}

#[tokio::test]
async fn sweep_that_outlasts_its_window_restarts_in_the_next() -> Result<()> {
    const USERS: u64 = 40_000;
    let (mongod, server) = Server::start().await?;
    fill(&server, "17.cookies", usize::try_from(USERS)?).await?;
    let maintenance = MaintenanceRun::start(&mongod, "10T02:00")?;
    wait_until(TIMEOUT, "some documents are swept", async || {
        Ok(maintenance.metrics.swept.get() > 0)
    })
    .await?;
    maintenance.set("10T03:00");
    maintenance.wait_open(false).await?;
    let scanned = maintenance.metrics.swept.get();
    let is_swept = is_swept(&server, "17.cookies").await?;
    ensure!(
        !is_swept && maintenance.metrics.sweep_remaining.get() > 0,
        "{scanned}"
    );
    let remaining = server
        .collection("17.cookies")
        .count_documents(doc! {})
        .await?;
    maintenance.set("11T01:00");
    let retry_clock = maintenance.retry_clock();
    wait_remaining(&retry_clock, &server, "17.cookies", USERS / 2).await?;
    wait_until(
        SWEEP_TIMEOUT,
        "all remaining documents are swept",
        async || {
            retry_clock.advance();
            Ok(maintenance.metrics.swept.get() == scanned + remaining)
        },
    )
    .await?;
    maintenance.stop().await
}

#[tokio::test]
async fn always_open_window_sweeps_again_after_a_quarter_of_the_ttl() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    let options = ConsumerOptions {
        expiry_window: "always",
        ttl: HOUR * 4,
        ..ConsumerOptions::default()
    };
    server.write("17.cookies", "old", HOUR * 5).await?;
    server.write("17.cookies", "soon", HOUR * 7 / 2).await?;
    let maintenance = MaintenanceRun::start_as(options, &mongod, "10T01:00")?;
    server.wait_names("17.cookies", &["soon"]).await?;
    maintenance.set("10T02:10");
    server.wait_names("17.cookies", &[]).await?;
    maintenance.stop().await
}

#[tokio::test]
async fn changed_ttl_restarts_the_sweep() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    for (name, age) in [("old", TTL + HOUR), ("ten-days", DAY * 10), ("fresh", HOUR)] {
        server.write("17.cookies", name, age).await?;
    }
    let maintenance = MaintenanceRun::start(&mongod, "10T01:10")?;
    server
        .wait_names("17.cookies", &["fresh", "ten-days"])
        .await?;
    maintenance.stop().await?;
    let week = ConsumerOptions {
        ttl: DAY * 7,
        ..ConsumerOptions::default()
    };
    let maintenance = MaintenanceRun::start_as(week, &mongod, "10T01:20")?;
    server.wait_names("17.cookies", &["fresh"]).await?;
    maintenance.stop().await
}

/// Sweeps as the consumer does in its window, until `is_enough` accepts the reports so far, and returns the reports.
async fn sweep_until(
    mongod: &ServerProcess,
    options: ConsumerOptions,
    start: &str,
    is_enough: impl Fn(&[SweepProgress]) -> bool + Send + Sync,
) -> Result<Vec<SweepProgress>> {
    let store = options.store(&mongod.uri());
    let (stop, reports) = (CancellationToken::new(), Mutex::new(Vec::new()));
    let report = |swept: &SweepProgress| {
        let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.push(*swept);
        if is_enough(&reports) {
            stop.cancel();
        }
    };
    let now = UnixMicros(u64::try_from(at(start).as_microsecond())?);
    let expiry = Expiry {
        open: true,
        now,
        since: now,
        time_left: None,
        stop: &stop,
        deletions: &Deletions::default(),
        report: &report,
    };
    let expired = store.expire(expiry).await?;
    ensure!(expired.failed.is_none(), "{expired:?}");
    Ok(reports.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Number of documents scanned in each step.
fn steps(reports: &[SweepProgress]) -> Vec<u64> {
    let scanned = reports.iter().map(|swept| swept.scanned);
    scanned.filter(|scanned| *scanned > 0).collect()
}

#[tokio::test]
async fn collection_that_fills_every_window_does_not_block_the_sweep_of_others() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    let sweep = async |start: &str, count: usize| {
        let is_enough = |reports: &[SweepProgress]| steps(reports).len() >= count;
        sweep_until(&mongod, ConsumerOptions::default(), start, is_enough).await
    };
    fill(&server, "17.cookies", 8_000).await?;
    ensure!(steps(&sweep("10T01:00", 1).await?) == [5_000]);
    fill(&server, "19.cookies", 1_000).await?;
    // The collection that was never swept comes first.
    ensure!(steps(&sweep("11T01:00", 1).await?) == [1_000]);
    // The rest of the first collection, then the rest of the second.
    let third = sweep("12T01:00", usize::MAX).await?;
    let (first, last) = (third.iter().find(|it| it.scanned > 0), third.last());
    let scanned = steps(&third);
    ensure!(scanned == [5_000, 500, 500], "{scanned:?}");
    let remaining = |swept: Option<&SweepProgress>| swept?.remaining;
    ensure!(remaining(first) == Some(500 + 500), "{third:?}");
    ensure!(remaining(last) == Some(0), "{third:?}");
    for (namespace, alive) in [("17.cookies", 4_000), ("19.cookies", 500)] {
        let cookies = server.collection(namespace);
        ensure!(cookies.count_documents(doc! {}).await? == alive);
    }
    Ok(())
}

#[tokio::test]
async fn cancelled_sweep_stops_within_one_step() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    fill(&server, "17.cookies", 4_500).await?;
    let has_deleted = |reports: &[SweepProgress]| reports.iter().any(|swept| swept.deleted > 0);
    let reports = sweep_until(&mongod, ConsumerOptions::default(), "10T01:00", has_deleted).await?;
    let deleted: Vec<_> = reports.iter().map(|swept| swept.deleted).collect();
    ensure!(deleted == [1_000], "{reports:?}");
    ensure!(!is_swept(&server, "17.cookies").await?);
    sweep_until(&mongod, ConsumerOptions::default(), "10T01:10", |_| false).await?;
    let cookies = server.collection("17.cookies");
    ensure!(cookies.count_documents(doc! {}).await? == 2_250);
    Ok(())
}

#[tokio::test]
async fn sweep_covers_documents_that_exceed_one_reply() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    // 40 MiB of foreign documents; a reply is limited to 16 MiB.
    let large = (0..1_000).map(|number| doc! { "_id": number, "t": "t".repeat(40 << 10) });
    let large: Vec<_> = large.collect();
    server.collection("17.cookies").insert_many(large).await?;
    fill(&server, "17.cookies", 1_000).await?;
    sweep_until(&mongod, ConsumerOptions::default(), "10T01:00", |_| false).await?;
    let cookies = server.collection("17.cookies");
    ensure!(cookies.count_documents(doc! {}).await? == 1_500);
    Ok(())
}

#[tokio::test]
async fn record_of_a_dropped_collection_is_deleted() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    let sweep = async |start: &str| {
        sweep_until(&mongod, ConsumerOptions::default(), start, |_| false).await?;
        anyhow::Ok(server.sweeps().await?.into_keys().collect::<Vec<_>>())
    };
    for namespace in ["17.cookies", "19.cookies"] {
        server.write(namespace, "fresh", HOUR).await?;
    }
    assert_eq!(sweep("10T01:00").await?, ["17.cookies", "19.cookies"]);
    server.database("17").drop().await?;
    assert_eq!(sweep("11T01:00").await?, ["19.cookies"]);
    Ok(())
}

#[tokio::test]
async fn ttl_raised_during_a_sweep_applies_immediately() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    fill(&server, "17.cookies", 6_000).await?;
    server.write("17.cookies", "ten-days", DAY * 10).await?;
    let week = ConsumerOptions {
        ttl: DAY * 7,
        ..ConsumerOptions::default()
    };
    let one_step = |reports: &[SweepProgress]| steps(reports).len() == 1;
    sweep_until(&mongod, week, "10T01:00", one_step).await?;
    ensure!(!is_swept(&server, "17.cookies").await?);
    sweep_until(&mongod, ConsumerOptions::default(), "10T01:10", |_| false).await?;
    let names = server.names("17.cookies").await?;
    ensure!(names.len() == 3_001 && names.iter().any(|name| name == "ten-days"));
    Ok(())
}
