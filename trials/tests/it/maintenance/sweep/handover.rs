//! Tests in which, during a sweep (a scan that deletes expired documents), another consumer takes over or another server becomes primary.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use mongodb::bson::{DateTime, doc};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::scrape::names;

use super::{SWEEP_TIMEOUT, fill, is_swept, refresh, user};
use crate::{
    harness::{Consumer, Producer, TIMEOUT, wait_until},
    maintenance::{ConsumerOptions, MaintenanceRun, Server, at},
    mongods::{ReplicaSet, clear_failpoint, command, direct, start_failable},
};

const NAMESPACE: &str = "17.cookies";
const USERS: usize = 40_000;

/// Refreshes per command.
const BATCH: usize = 500;

/// Users whose cookies are fresh after [`fill`].
fn fresh() -> BTreeSet<String> {
    (1..USERS).step_by(2).map(user).collect()
}

/// Refreshes the cookies of users, retrying until the server accepts, and adds the users to `alive`.
async fn sync_again(server: &Server, users: &[usize], alive: &mut BTreeSet<String>) -> Result<()> {
    for some in users.chunks(BATCH) {
        // Fails without a primary. A refresh is idempotent.
        wait_until(TIMEOUT, "the server accepts refreshes", async || {
            Ok(refresh(server, NAMESPACE, some).await.is_ok())
        })
        .await?;
        alive.extend(some.iter().copied().map(user));
    }
    Ok(())
}

/// Checks that exactly these users have cookies.
async fn check_exactly(server: &Server, alive: &BTreeSet<String>) -> Result<()> {
    let remaining: BTreeSet<String> = server.names(NAMESPACE).await?.into_iter().collect();
    let lost = alive.difference(&remaining).count();
    ensure!(
        lost == 0,
        "{lost} of {} fresh cookies are lost",
        alive.len()
    );
    let old = remaining.difference(alive).count();
    ensure!(old == 0, "{old} expired cookies remain");
    Ok(())
}

async fn wait_complete(server: &Server) -> Result<()> {
    wait_until(SWEEP_TIMEOUT, "the pass is complete", async || {
        is_swept(server, NAMESPACE).await
    })
    .await
}

/// Blocks the tenth and each later deletion by this application before its execution.
async fn block_deletions(uri: &str, application: &str) -> Result<()> {
    let block = doc! {
        "configureFailPoint": "failCommand",
        "mode": { "skip": 9 },
        "data": {
            "failCommands": ["delete"],
            "namespace": NAMESPACE,
            "appName": application,
            "blockConnection": true,
            "blockTimeMS": 10_000,
        },
    };
    command(uri, block).await.map(drop)
}

/// Waits until the first deletion is blocked.
async fn wait_blocked(uri: &str) -> Result<()> {
    let blocked =
        doc! { "waitForFailPoint": "failCommand", "timesEntered": 1, "maxTimeMS": 120_000 };
    command(uri, blocked).await.map(drop)
}

/// Connection string with an application name.
fn with_app_name(uri: &str, application: &str) -> String {
    let separator = if uri.contains("/?") { "&" } else { "/?" };
    format!("{uri}{separator}appName={application}")
}

#[tokio::test]
async fn consumer_paused_beyond_its_lease_deletes_no_fresh_cookie() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let uri = mongod.uri();
    let server = Server::connect(&uri, DateTime::now()).await?;
    fill(&server, NAMESPACE, USERS).await?;
    let mut alive = fresh();
    let producer = Producer::start(&dir, &[]).await?;
    let flags = ["--expiry-window", "always"];
    let start = async |name: &str| {
        Consumer::start(&dir, name, &[&producer], &with_app_name(&uri, name), &flags).await
    };
    block_deletions(&uri, "first").await?;
    let mut first = start("first").await?;
    wait_blocked(&uri).await?;
    let scanned = first.metrics().await?.count(names::SWEPT, &[]);
    first.process.signal(Signal::STOP)?;
    ensure!(!is_swept(&server, NAMESPACE).await?);

    // Refreshes cookies that the consumer is about to delete, and other cookies, some of them already deleted.
    let cookies = server.collection(NAMESPACE);
    let existing = cookies.count_documents(doc! {}).await?;
    let deleted = USERS - usize::try_from(existing)?;
    let users: Vec<_> = (deleted..deleted + 8_000).collect();
    sync_again(&server, &users, &mut alive).await?;
    let inserted = cookies.count_documents(doc! {}).await? - existing;
    server.expire_lease().await?;
    let second = start("second").await?;
    wait_complete(&server).await?;
    check_exactly(&server, &alive).await?;
    let metrics = second.metrics().await?;
    let swept = metrics.count(names::SWEPT, &[]);
    ensure!(
        swept <= existing + inserted,
        "scanned {swept}, but {existing} existed and {inserted} were inserted"
    );
    ensure!(metrics.count(names::MAINTENANCE_OWNER, &[]) == 1);

    // The blocked deletion is executed before this returns.
    clear_failpoint(&mongod).await?;
    check_exactly(&server, &alive).await?;
    first.process.signal(Signal::CONT)?;
    wait_until(
        TIMEOUT,
        "the first consumer sweeps, fails or releases the lease",
        async || {
            let now = first.metrics().await?;
            Ok(now.count(names::SWEPT, &[]) > scanned
                || now.count(names::MAINTENANCE_ERRORS, &[]) > 0
                || now.count(names::MAINTENANCE_OWNER, &[]) == 0)
        },
    )
    .await?;
    wait_complete(&server).await?;
    check_exactly(&server, &alive).await
}

#[tokio::test]
async fn election_during_a_sweep_loses_nothing_and_a_later_pass_completes() -> Result<()> {
    let dir = TempDir::new()?;
    let more = ["--setParameter", "enableTestCommands=1"];
    let set = ReplicaSet::start_with(dir.path(), 3, &more).await?;
    let now = DateTime::from_millis(at("10T01:00").as_millisecond());
    let server = Server::connect(&set.uri(), now).await?;
    fill(&server, NAMESPACE, USERS).await?;
    let mut alive = fresh();
    let primary = direct(set.members[set.wait_primary().await?].address);
    block_deletions(&primary, "node").await?;
    let uri = with_app_name(&set.uri(), "node");
    let maintenance = MaintenanceRun::start_on(ConsumerOptions::default(), &uri, "10T01:10")?;
    wait_blocked(&primary).await?;
    ensure!(!is_swept(&server, NAMESPACE).await?);
    let mut random = fastrand::Rng::with_seed(22);
    let users: Vec<_> = (0..4_000).map(|_| random.usize(..USERS)).collect();
    let (stepped, refreshed) =
        tokio::join!(set.step_down(), sync_again(&server, &users, &mut alive));
    stepped?;
    refreshed?;
    set.wait_primary().await?;
    let retry_clock = maintenance.retry_clock();
    wait_until(SWEEP_TIMEOUT, "the pass is complete", async || {
        retry_clock.advance();
        is_swept(&server, NAMESPACE).await
    })
    .await?;
    check_exactly(&server, &alive).await?;
    maintenance.stop().await
}
