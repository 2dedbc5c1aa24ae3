//! Tests in which revalidators are killed and added, and brokers are killed.

use std::{fs, time::Duration};

use anyhow::{Context as _, Error, Result};
use futures_util::{StreamExt as _, stream};
use revalidator::contents::Contents;
use tokio::task::JoinSet;

use super::{
    harness::{Cluster, Origin, answer},
    number,
};

const ASSETS: usize = 4_000;

/// Parallel requests of each worker.
const PARALLEL: usize = 10;

/// Kills and restarts processes and the broker at times that `seed` selects, while a job runs.
async fn run_with_kills(seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let origin = Origin::start(Duration::from_millis(20), |path, _| {
        match number(path) % 20 {
            0 => answer(404, ""),
            1 => answer(200, "new"),
            _ => answer(304, ""),
        }
    })
    .await?;
    let mut cluster = Cluster::start().await?;
    let place = format!("file:{}", cluster.path("contents").display());
    let more = format!(
        "contents = \"{place}\"\nallow_delete = \"partial\"\nworkers = 2\n\
         concurrency = {{ min = {PARALLEL}, max = {PARALLEL} }}"
    );
    cluster.write_apps(&origin, &more)?;
    cluster.write_assets(&origin, ASSETS, |_| String::new())?;
    let contents = Contents::parse(&place).map_err(Error::msg)?;
    for number in 0..ASSETS {
        let path = contents.path(&format!("key-{number}"));
        fs::create_dir_all(path.parent().context("a directory")?)?;
        fs::write(path, "old")?;
    }
    let api = cluster.revalidator(&["--workers=0", "--no-maker"]).await?;
    // More workers than needed.
    let mut others = [
        cluster.revalidator(&[]).await?,
        cluster.revalidator(&[]).await?,
        cluster.revalidator(&[]).await?,
    ];
    let job = "{\"app\": \"shop\", \"allowDelete\": \"partial\"}";
    let id = api.create(job).await?;
    let mut may_repeat = 0;
    for fault in 0..1 + seed % 3 {
        let after = origin.total() + random.u32(0..1_500);
        while origin.total() < after && !api.job(&id).await?["endedAt"].is_u64() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Each worker can lose the response of the broker to its acknowledgement.
        let (killed, repeats) = match others.get_mut(usize::try_from((seed + fault) % 4)?) {
            Some(other) => (&mut other.process, 1),
            None => (&mut cluster.nats.process, 2),
        };
        killed.kill()?;
        killed.restart()?;
        may_repeat += repeats;
        api.wait_readiness("\"ready\":true").await?;
    }
    let job = api.wait_finished(&id).await?;
    let counts = &job["counts"];
    for (outcome, count) in [
        ("checked", ASSETS),
        ("changed", ASSETS / 20),
        ("gone", ASSETS / 20),
        ("deleted", ASSETS / 20),
    ] {
        assert_eq!(counts[outcome], count, "seed {seed}, {outcome}: {job}");
    }
    let parallel = origin.parallel_max();
    assert!(
        (PARALLEL + 1..=2 * PARALLEL).contains(&parallel),
        "seed {seed}: {parallel} parallel requests"
    );
    let requests = origin.requests();
    assert_eq!(requests.len(), ASSETS, "seed {seed}");
    let repeated: u32 = requests.values().map(|count| count - 1).sum();
    assert!(
        repeated <= 100 * may_repeat,
        "seed {seed}: {repeated} requests repeated, {may_repeat} batches may be"
    );
    let list = fs::read_to_string(cluster.path("assets.ndjson"))?;
    assert_eq!(list.lines().count(), ASSETS - ASSETS / 20, "seed {seed}");
    for number in 0..ASSETS {
        let path = contents.path(&format!("key-{number}"));
        let expected = match number % 20 {
            0 => None,
            1 => Some("new"),
            _ => Some("old"),
        };
        let found = fs::read_to_string(path).ok();
        assert_eq!(found.as_deref(), expected, "seed {seed}, {number}");
    }
    Ok(())
}

#[tokio::test]
async fn a7_a8_killed_processes_and_brokers_lose_nothing_and_workers_are_never_too_many()
-> Result<()> {
    // A worker, then the broker.
    run_with_kills(10).await
}

/// `SIM_SEEDS=0..100` runs these seeds, four at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
#[ignore = "long; .ci/nightly runs it"]
async fn a8_kills_of_a_hundred_seeds_lose_and_remove_nothing() -> Result<()> {
    let seeds = std::env::var("SIM_SEEDS").unwrap_or_else(|_| "0..100".to_owned());
    let (first, end) = seeds.split_once("..").context("seeds like 0..100")?;
    let runs = stream::iter(first.parse::<u64>()?..end.parse()?);
    // Separate tasks, because files are written and removed synchronously.
    let runs = runs.map(|seed| async move {
        let mut task = JoinSet::new();
        task.spawn(run_with_kills(seed));
        let ended = task.join_next().await.context("one task")?;
        let ended = ended.map_err(Error::from).flatten();
        println!("seed {seed}: {ended:?}");
        ended
    });
    let ended: Vec<_> = runs.buffer_unordered(4).collect().await;
    ended.into_iter().collect()
}
