//! Tests that a limiter that is killed repeatedly under load exceeds no quota, and that no counter loses usage.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use limits::{Algorithm, rules::Rules};
use serde_json::Value;
use testkit::http::HttpClient;
use tokio::task::JoinSet;

use crate::{
    bounds::max_in,
    serve::harness::{Limiter, TIMEOUT, nanos},
};

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

/// Requests of the limit `quota`.
const QUOTA: u64 = 100_000;

/// Times and sizes of the granted calls, by limit and counter.
type Grants = BTreeMap<(&'static str, u64), Vec<(u64, u64)>>;

/// Reserves slots until the limiter is killed; returns the granted calls.
async fn client(address: String, seed: u64, responses: Arc<AtomicU64>) -> Grants {
    let mut random = Rng::with_seed(seed);
    let mut grants = Grants::new();
    let Ok(mut client) = HttpClient::connect(&address).await else {
        return grants;
    };
    loop {
        let limit = ["bucket", "short", "log", "quota"][random.usize(..4)];
        let counter = random.u64(..3);
        let n = random.u64(1..=3);
        let max_wait = [0.0, 0.5, 2.5][random.usize(..3)];
        let body = format!("{{\"n\": {n}, \"max_wait\": {max_wait}}}");
        let path = format!("/v1/limits/{limit}/{counter}/reserve");
        let Ok(response) = client.post(&path, &[], &body).await else {
            return grants;
        };
        responses.fetch_add(1, Ordering::Relaxed);
        if response.status == 200 {
            let body: Value = serde_json::from_str(&response.body).expect("JSON");
            let grants = grants.entry((limit, counter)).or_default();
            grants.push((nanos(&body["at"]), n));
        }
    }
}

async fn check_kills(kills: u64, seed: u64) -> Result<()> {
    let mut random = Rng::with_seed(seed);
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut grants = Grants::new();
    let mut used_before = [0; 3];
    for round in 0..kills {
        let responses = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (address, responses) = (limiter.address.clone(), Arc::clone(&responses));
            clients.spawn(client(address, seed + round * CLIENTS + number, responses));
        }
        let responses_min = random.u64(1..1_500);
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while responses.load(Ordering::Relaxed) < responses_min {
            ensure!(tokio::time::Instant::now() < deadline, "no responses");
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
                grants.entry(of).or_default().extend(more);
            }
        }
        limiter.restart().await?;
        for counter in 0..3 {
            let used = QUOTA - limiter.remaining("quota", &counter.to_string()).await?;
            let min = used_before[counter] + granted[counter];
            // The kill may have lost one response of each client.
            let max = min + CLIENTS * 3;
            ensure!(
                (min..=max).contains(&used),
                "seed {seed}, round {round}: {used} used, {min} to {max} expected"
            );
            used_before[counter] = used;
        }
    }
    limiter.stop().await?;
    check(&mut grants, seed);
    Ok(())
}

fn check(grants: &mut Grants, seed: u64) {
    let rules = Rules::parse(LIMITS).expect("valid limits");
    let mut total = 0;
    for ((name, counter), grants) in grants {
        let limit = rules.limits.iter().find(|it| it.name == *name);
        let algorithm = limit.expect("a known limit").rules[0].limit.algorithm;
        grants.sort_unstable();
        total += grants.len();
        for window in [SECOND / 10, SECOND, 2 * SECOND, 3 * SECOND, 30 * SECOND] {
            let allowed = max_in(&algorithm, window);
            let (mut within, mut first) = (0, 0);
            for (at, n) in &*grants {
                within += n;
                while grants[first].0 + window <= *at {
                    within -= grants[first].1;
                    first += 1;
                }
                assert!(
                    within <= allowed,
                    "seed {seed}: {within} of {allowed} of {name}/{counter} in {window} ns"
                );
            }
        }
        if *name == "short"
            && let Algorithm::FixedWindow { limit, window, .. } = algorithm
        {
            let mut windows: BTreeMap<u128, u64> = BTreeMap::new();
            for (at, n) in &*grants {
                *windows
                    .entry(u128::from(*at) / window.as_nanos())
                    .or_default() += n;
            }
            let largest = windows.values().max().copied().unwrap_or(0);
            assert!(largest <= limit, "seed {seed}: {largest} of {limit}");
        }
    }
    println!("{total} grants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiter_stays_within_quotas_across_kills() -> Result<()> {
    check_kills(4, 1).await
}

#[ignore = "takes half a minute"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiter_stays_within_quotas_across_a_hundred_kills() -> Result<()> {
    check_kills(100, 2).await
}
