//! Tests that many concurrent clients, in one process or in several, get distinct slots.

use std::{collections::BTreeSet, env, fs, process::Stdio};

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::http::HttpClient;
use tokio::{process::Command, task::JoinSet};

use crate::serve::harness::{Limiter, body, nanos};

const LIMITS: &str = "[limits.a]\nrules = [{ id = 'r', rate = '1000000/s', burst = 1 }]";

/// Variables of a process that reserves slots: address of the limiter, number of slots, and output file.
const VARIABLES: [&str; 3] = ["SLOTS_ADDRESS", "SLOTS_EACH", "SLOTS_FILE"];

/// Reserves `count` slots of one counter, one after the other.
async fn reserve(client: &mut HttpClient, count: usize) -> Result<Vec<u64>> {
    let mut slots = Vec::new();
    for _ in 0..count {
        let response = client.post("/v1/limits/a/k/reserve", &[], "{}").await?;
        slots.push(nanos(&body(&response, 200)["at"]));
    }
    Ok(slots)
}

/// Checks that there are `count` slots, at least a microsecond apart.
fn check(slots: &BTreeSet<u64>, count: usize) -> Result<()> {
    ensure!(slots.len() == count, "{} slots", slots.len());
    let pairs = slots.iter().zip(slots.iter().skip(1));
    let too_close = pairs.clone().find(|(one, next)| *next - *one < 1_000);
    ensure!(too_close.is_none(), "{too_close:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_get_distinct_slots() -> Result<()> {
    const CLIENTS: usize = 50;
    const EACH: usize = 400;
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut client = limiter.client().await?;
        clients.spawn(async move { reserve(&mut client, EACH).await });
    }
    let mut slots = BTreeSet::new();
    while let Some(mine) = clients.join_next().await {
        slots.extend(mine??);
    }
    check(&slots, CLIENTS * EACH)?;
    limiter.stop().await
}

/// Not a test by itself, but one process of the tests below.
#[tokio::test]
async fn process_that_reserves_slots() -> Result<()> {
    let [address, each, file] = VARIABLES.map(env::var);
    let Ok(address) = address else { return Ok(()) };
    let mut client = HttpClient::connect(&address).await?;
    let mine = reserve(&mut client, each?.parse()?).await?;
    Ok(fs::write(file?, serde_json::to_vec(&mine)?)?)
}

/// Each process reserves `each` slots of one counter.
async fn check_processes(processes: usize, each: usize) -> Result<()> {
    let dir = TempDir::new()?;
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut clients = JoinSet::new();
    for number in 0..processes {
        let file = dir.path().join(number.to_string());
        let values = [
            limiter.address.clone(),
            each.to_string(),
            file.display().to_string(),
        ];
        let process = Command::new(env::current_exe()?)
            .args(["--exact", "serve::slots::process_that_reserves_slots"])
            .envs(VARIABLES.into_iter().zip(values))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        clients.spawn(async move {
            let ended = process.wait_with_output().await?;
            let output = String::from_utf8_lossy(&ended.stdout);
            ensure!(ended.status.success(), "{output}");
            let mine: Vec<u64> = serde_json::from_slice(&fs::read(file)?)?;
            Ok(mine)
        });
    }
    let mut slots = BTreeSet::new();
    while let Some(mine) = clients.join_next().await {
        slots.extend(mine??);
    }
    check(&slots, processes * each)?;
    limiter.stop().await
}

#[tokio::test]
async fn eight_processes_get_distinct_slots() -> Result<()> {
    check_processes(8, 500).await
}

#[ignore = "takes three minutes"]
#[tokio::test]
async fn fifty_processes_get_a_million_distinct_slots() -> Result<()> {
    check_processes(50, 20_000).await
}
