//! Killed again and again under load: no quota is exceeded in any window, and no counter loses anything.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use launcher::http::HttpClient;
use limits::{Algorithm, rules::Rules};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::harness::{Limiter, TIMEOUT, nanos};

const SECOND: u64 = 1_000_000_000;

const CLIENTS: u64 = 8;

const LIMITS: &str = "
[limits.bucket]
rules = [{ id = 'r', rate = '40/s', burst = 10 }]
[limits.short]
rules = [{ id = 'r', rate = '20/2s', algorithm = 'fixed_window' }]
[limits.log]
rules = [{ id = 'r', rate = '15/3s', algorithm = 'sliding_log' }]
[limits.quota]
rules = [{ id = 'r', rate = '100000/30days', algorithm = 'fixed_window', aligned = 'first_call' }]
";

/// Calls of the quota.
const QUOTA: u64 = 100_000;

/// What reached clients: by limit and counter, when, and how many requests.
type Gone = BTreeMap<(&'static str, u64), Vec<(u64, u64)>>;

/// Asks until the limiter is gone; returns what it was granted.
async fn client(address: String, seed: u64, answers: Arc<AtomicU64>) -> Gone {
    let mut random = Rng::with_seed(seed);
    let mut gone = Gone::new();
    let Ok(mut client) = HttpClient::connect(&address).await else {
        return gone;
    };
    loop {
        let limit = ["bucket", "short", "log", "quota"][random.usize(..4)];
        let counter = random.u64(..3);
        let n = random.u64(1..=3);
        let max_wait = [0.0, 0.5, 2.5][random.usize(..3)];
        let body = format!("{{\"n\": {n}, \"max_wait\": {max_wait}}}");
        let path = format!("/v1/limits/{limit}/{counter}/reserve");
        let Ok(answer) = client.post(&path, &[], &body).await else {
            return gone;
        };
        answers.fetch_add(1, Ordering::Relaxed);
        if answer.status == 200 {
            let body: Value = serde_json::from_str(&answer.body).expect("JSON");
            let gone = gone.entry((limit, counter)).or_default();
            gone.push((nanos(&body["at"]), n));
        }
    }
}

async fn killed(times: u64, seed: u64) -> Result<()> {
    let mut random = Rng::with_seed(seed);
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut gone = Gone::new();
    let mut used_before = [0; 3];
    for round in 0..times {
        let answers = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (address, answers) = (limiter.address.clone(), Arc::clone(&answers));
            clients.spawn(client(address, seed + round * CLIENTS + number, answers));
        }
        let enough = random.u64(1..1_500);
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while answers.load(Ordering::Relaxed) < enough {
            ensure!(tokio::time::Instant::now() < deadline, "no answers");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        limiter.process.kill()?;
        let mut granted = [0; 3];
        while let Some(ended) = clients.join_next().await {
            for (of, more) in ended? {
                if of.0 == "quota" {
                    let counter = usize::try_from(of.1)?;
                    granted[counter] += more.iter().map(|(_, n)| n).sum::<u64>();
                }
                gone.entry(of).or_default().extend(more);
            }
        }
        limiter.restart().await?;
        for counter in 0..3 {
            let used = QUOTA - limiter.remaining("quota", &counter.to_string()).await?;
            let least = used_before[counter] + granted[counter];
            // Granted too may be what each client did not hear of any more.
            let most = least + CLIENTS * 3;
            ensure!(
                (least..=most).contains(&used),
                "seed {seed}, round {round}: {used} used, {least} to {most} expected"
            );
            used_before[counter] = used;
        }
    }
    limiter.stop().await?;
    check(&mut gone, seed);
    Ok(())
}

fn check(gone: &mut Gone, seed: u64) {
    let rules = Rules::parse(LIMITS).expect("good limits");
    let mut total = 0;
    for ((name, counter), gone) in gone {
        let limit = rules.limits.iter().find(|it| it.name == *name);
        let algorithm = limit.expect("it is there").rules[0].limit.algorithm;
        gone.sort_unstable();
        total += gone.len();
        for window in [SECOND / 10, SECOND, 2 * SECOND, 3 * SECOND, 30 * SECOND] {
            let promised = algorithm.max_in(window);
            let (mut within, mut first) = (0, 0);
            for (at, n) in &*gone {
                within += n;
                while gone[first].0 + window <= *at {
                    within -= gone[first].1;
                    first += 1;
                }
                assert!(
                    within <= promised,
                    "seed {seed}: {within} of {promised} of {name}/{counter} in {window} ns"
                );
            }
        }
        if *name == "short"
            && let Algorithm::FixedWindow { limit, window, .. } = algorithm
        {
            let mut windows: BTreeMap<u128, u64> = BTreeMap::new();
            for (at, n) in &*gone {
                *windows
                    .entry(u128::from(*at) / window.as_nanos())
                    .or_default() += n;
            }
            let fullest = windows.values().max().copied().unwrap_or(0);
            assert!(fullest <= limit, "seed {seed}: {fullest} of {limit}");
        }
    }
    println!("{total} grants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_quota_is_exceeded_and_no_counter_loses_anything() -> Result<()> {
    killed(4, 1).await
}

#[ignore = "takes half a minute: a hundred kills"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_quota_is_exceeded_in_a_hundred_kills() -> Result<()> {
    killed(100, 2).await
}
