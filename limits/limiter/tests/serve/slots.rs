//! Many clients at once, in one process and in many.

use std::{collections::BTreeSet, env, fs, process::Stdio};

use anyhow::{Result, ensure};
use launcher::http::HttpClient;
use tempfile::TempDir;
use tokio::{process::Command, task::JoinSet};

use crate::harness::{Limiter, body, nanos};

const LIMITS: &str = "[limits.a]\nrules = [{ id = 'r', rate = '1000000/s', burst = 1 }]";

/// What a process is told that takes slots: where, how many, and the file that it writes them to.
const TOLD: [&str; 3] = ["SLOTS_ADDRESS", "SLOTS_EACH", "SLOTS_FILE"];

/// Takes so many slots of one counter, one after the other.
async fn take(client: &mut HttpClient, count: usize) -> Result<Vec<u64>> {
    let mut mine = Vec::new();
    for _ in 0..count {
        let answer = client.post("/v1/limits/a/k/reserve", &[], "{}").await?;
        mine.push(nanos(&body(&answer, 200)["at"]));
    }
    Ok(mine)
}

/// Fails unless there are so many, each a microsecond at least after the one before.
fn check(taken: &BTreeSet<u64>, count: usize) -> Result<()> {
    ensure!(taken.len() == count, "{} slots", taken.len());
    let pairs = taken.iter().zip(taken.iter().skip(1));
    let too_near = pairs.clone().find(|(one, next)| *next - *one < 1_000);
    ensure!(too_near.is_none(), "{too_near:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_never_get_one_slot_twice() -> Result<()> {
    const CLIENTS: usize = 50;
    const EACH: usize = 400;
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut pending = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut client = limiter.client().await?;
        pending.spawn(async move { take(&mut client, EACH).await });
    }
    let mut taken = BTreeSet::new();
    while let Some(mine) = pending.join_next().await {
        taken.extend(mine??);
    }
    check(&taken, CLIENTS * EACH)?;
    limiter.stop().await
}

/// Not a test by itself, but what each of many processes does.
#[tokio::test]
async fn process_that_takes_slots() -> Result<()> {
    let [address, each, file] = TOLD.map(env::var);
    let Ok(address) = address else { return Ok(()) };
    let mut client = HttpClient::connect(&address).await?;
    let mine = take(&mut client, each?.parse()?).await?;
    Ok(fs::write(file?, serde_json::to_vec(&mine)?)?)
}

/// So many processes each take so many slots of one counter.
async fn processes_never_get_one_slot_twice(processes: usize, each: usize) -> Result<()> {
    let dir = TempDir::new()?;
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut pending = JoinSet::new();
    for number in 0..processes {
        let file = dir.path().join(number.to_string());
        let told = [
            limiter.address.clone(),
            each.to_string(),
            file.display().to_string(),
        ];
        let process = Command::new(env::current_exe()?)
            .args(["--exact", "slots::process_that_takes_slots"])
            .envs(TOLD.into_iter().zip(told))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        pending.spawn(async move {
            let ended = process.wait_with_output().await?;
            let words = String::from_utf8_lossy(&ended.stdout);
            ensure!(ended.status.success(), "{words}");
            let mine: Vec<u64> = serde_json::from_slice(&fs::read(file)?)?;
            Ok(mine)
        });
    }
    let mut taken = BTreeSet::new();
    while let Some(mine) = pending.join_next().await {
        taken.extend(mine??);
    }
    check(&taken, processes * each)?;
    limiter.stop().await
}

#[tokio::test]
async fn eight_processes_never_get_one_slot_twice() -> Result<()> {
    processes_never_get_one_slot_twice(8, 500).await
}

#[ignore = "takes three minutes"]
#[tokio::test]
async fn fifty_processes_never_get_one_of_a_million_slots_twice() -> Result<()> {
    processes_never_get_one_slot_twice(50, 20_000).await
}
