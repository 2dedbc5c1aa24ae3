//! Many clients at once.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use crate::harness::{Limiter, body, nanos};

/// So many clients each take so many slots of one counter, one after the other.
async fn two_clients_never_get_one_slot(clients: usize, each: usize) -> Result<()> {
    let limits = "[limits.a]\nrules = [{ id = 'r', rate = '1000000/s', burst = 1 }]";
    let mut limiter = Limiter::start(limits, &[]).await?;
    let mut asking = JoinSet::new();
    for _ in 0..clients {
        let mut client = limiter.client().await?;
        asking.spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..each {
                let answer = client.post("/v1/limits/a/k/reserve", &[], "{}").await?;
                mine.push(nanos(&body(&answer, 200)["at"]));
            }
            anyhow::Ok(mine)
        });
    }
    let mut taken = BTreeSet::new();
    while let Some(mine) = asking.join_next().await {
        taken.extend(mine??);
    }
    ensure!(taken.len() == clients * each, "{} slots", taken.len());
    let slots: Vec<u64> = taken.into_iter().collect();
    let too_near = slots.windows(2).find(|two| two[1] - two[0] < 1_000);
    ensure!(too_near.is_none(), "{too_near:?}");
    limiter.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_never_get_one_slot_twice() -> Result<()> {
    two_clients_never_get_one_slot(50, 400).await
}

#[ignore = "takes some minutes"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_never_get_one_of_a_million_slots_twice() -> Result<()> {
    two_clients_never_get_one_slot(50, 20_000).await
}
