//! Who sweeps, or where, changes in the middle of a pass: a consumer that slept beyond its lease, a new primary.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use bench::scrape::names;
use consumer::store::mongodb::ExpiryMode;
use mongodb::bson::{DateTime, doc};
use rustix::process::Signal;
use tempfile::TempDir;

use super::{SWEEP_TIMEOUT, fill, is_swept, refresh, user};
use crate::{
    harness::{Consumer, Producer, TIMEOUT, wait_until},
    maintenance::{MaintenanceRun, Server, at},
    mongods::{ReplicaSet, clear_failpoint, command, direct, start_failable},
};

const NAMESPACE: &str = "17.cookies";
const USERS: usize = 40_000;

/// How many refreshes one command has.
const AT_ONCE: usize = 500;

/// All users whose cookies have not expired when the collection has just been filled.
fn fresh() -> BTreeSet<String> {
    (1..USERS).step_by(2).map(user).collect()
}

/// Has users sync again, those of `alive` and others, until the server has taken it; then they all are alive.
async fn sync_again(server: &Server, users: &[usize], alive: &mut BTreeSet<String>) -> Result<()> {
    for some in users.chunks(AT_ONCE) {
        // Without a primary it fails, and changes nothing that it would not change again.
        wait_until(TIMEOUT, "the server takes refreshes", async || {
            Ok(refresh(server, NAMESPACE, some).await.is_ok())
        })
        .await?;
        alive.extend(some.iter().copied().map(user));
    }
    Ok(())
}

/// Fails unless all of these, and no others, are there.
async fn check_exactly(server: &Server, alive: &BTreeSet<String>) -> Result<()> {
    let left: BTreeSet<String> = server.names(NAMESPACE).await?.into_iter().collect();
    let lost = alive.difference(&left).count();
    ensure!(lost == 0, "{lost} of {} are gone", alive.len());
    let old = left.difference(alive).count();
    ensure!(old == 0, "{old} that have expired are left");
    Ok(())
}

async fn wait_complete(server: &Server) -> Result<()> {
    wait_until(SWEEP_TIMEOUT, "the pass is complete", async || {
        is_swept(server, NAMESPACE).await
    })
    .await
}

/// Holds up each deletion of cookies that this application asks for, from the tenth on, before it is done.
async fn hold_deletions(uri: &str, application: &str) -> Result<()> {
    let hold = doc! {
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
    command(uri, hold).await.map(drop)
}

/// Waits until one is held up, in a server that has held up nothing before.
async fn wait_held(uri: &str) -> Result<()> {
    let held = doc! { "waitForFailPoint": "failCommand", "timesEntered": 1, "maxTimeMS": 120_000 };
    command(uri, held).await.map(drop)
}

/// How an application connects, so that the server knows its commands.
fn named(uri: &str, application: &str) -> String {
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
    let flags = ["--expiry", "sweep", "--expiry-window", "always"];
    let start = async |name: &str| {
        Consumer::start(&dir, name, &[&producer], &named(&uri, name), &flags).await
    };
    hold_deletions(&uri, "first").await?;
    let mut first = start("first").await?;
    wait_held(&uri).await?;
    let looked = first.metrics().await?.count(names::SWEPT, &[]);
    first.process.signal(Signal::STOP)?;
    ensure!(!is_swept(&server, NAMESPACE).await?);

    // Those that it is about to delete, and others: of which some are gone and come anew.
    let cookies = server.collection(NAMESPACE);
    let there = cookies.count_documents(doc! {}).await?;
    let before = USERS - usize::try_from(there)?;
    let users: Vec<_> = (before..before + 8_000).collect();
    sync_again(&server, &users, &mut alive).await?;
    let again = cookies.count_documents(doc! {}).await? - there;
    server.end_lease().await?;
    let second = start("second").await?;
    wait_complete(&server).await?;
    check_exactly(&server, &alive).await?;
    let metrics = second.metrics().await?;
    let swept = metrics.count(names::SWEPT, &[]);
    ensure!(
        swept <= there + again,
        "it looked at {swept} though there were {there}, and {again} came anew"
    );
    ensure!(metrics.count(names::MAINTENANCE_OWNER, &[]) == 1);

    // The deletion that was held up is done when this answers.
    clear_failpoint(&mongod).await?;
    check_exactly(&server, &alive).await?;
    first.process.signal(Signal::CONT)?;
    wait_until(TIMEOUT, "it is awake, and works or gives way", async || {
        let now = first.metrics().await?;
        Ok(now.count(names::SWEPT, &[]) > looked
            || now.count(names::MAINTENANCE_ERRORS, &[]) > 0
            || now.count(names::MAINTENANCE_OWNER, &[]) == 0)
    })
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
    let primary = direct(set.members[set.wait_primary().await?].address());
    hold_deletions(&primary, "node").await?;
    let uri = named(&set.uri(), "node");
    let maintenance = MaintenanceRun::start_on(ExpiryMode::Sweep, &uri, "10T01:10")?;
    wait_held(&primary).await?;
    ensure!(!is_swept(&server, NAMESPACE).await?);
    let mut random = fastrand::Rng::with_seed(22);
    let users: Vec<_> = (0..4_000).map(|_| random.usize(..USERS)).collect();
    let (stepped, refreshed) =
        tokio::join!(set.step_down(), sync_again(&server, &users, &mut alive));
    stepped?;
    refreshed?;
    set.wait_primary().await?;
    let retries = maintenance.retries();
    wait_until(SWEEP_TIMEOUT, "the pass is complete", async || {
        retries.pass();
        is_swept(&server, NAMESPACE).await
    })
    .await?;
    check_exactly(&server, &alive).await?;
    maintenance.end().await
}
