//! What a bidder feels meanwhile: one document by its `_id`, as an open loop.

use std::{num::NonZeroU32, time::Duration};

use anyhow::{Context, Result};
use consumer::store::mongodb::COOKIES;
use hdrhistogram::Histogram;
use mongodb::{
    Client,
    bson::{RawDocumentBuf, doc},
    options::ClientOptions,
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{threads::OwnThreads, workload::Pairs};
use crate::report::micros_histogram;

/// Lookups under way at once; what is due beyond that waits, and its waiting counts.
const UNDER_WAY_MAX: usize = 1_000;

const CONNECTIONS_MAX: u32 = 32;

/// A client that looks up pairs at random at a rate of its own, whether or not answers come.
pub(super) struct Bidder {
    threads: OwnThreads,
    client: Client,
    /// What the names of the databases begin with.
    prefix: String,
    rate: NonZeroU32,
}

/// What lookups took.
#[derive(Debug)]
pub(super) struct Lookups {
    /// From when each was due until its answer, in microseconds.
    pub(super) micros: Histogram<u64>,
    /// Those that failed, or found nothing where there is something.
    pub(super) failed: u64,
}

/// Lookups that go on until they are stopped.
pub(super) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Lookups>,
}

impl Bidder {
    /// Connects. It looks in databases whose names begin with `prefix`.
    pub(super) async fn start(uri: &str, rate: NonZeroU32, prefix: String) -> Result<Self> {
        let threads = OwnThreads::start("store-bidder")?;
        let uri = uri.to_owned();
        let connected = threads.run(async move {
            let mut options = ClientOptions::parse(&uri).await?;
            options.max_pool_size = Some(CONNECTIONS_MAX);
            Ok(Client::with_options(options)?)
        });
        let client = connected.await.context("cannot prepare the lookups")?;
        Ok(Self {
            threads,
            client,
            prefix,
            rate,
        })
    }

    /// Looks up `pairs` until it is stopped.
    pub(super) fn look_up(&self, pairs: Pairs) -> Running {
        let stop = CancellationToken::new();
        let work = work(
            self.client.clone(),
            self.prefix.clone(),
            pairs,
            self.rate,
            stop.clone(),
        );
        let task = self.threads.handle().spawn(work);
        Running { stop, task }
    }
}

impl Default for Lookups {
    fn default() -> Self {
        Self {
            micros: micros_histogram(),
            failed: 0,
        }
    }
}

impl Lookups {
    /// Counts one that ended; a panic counts as one that failed.
    fn count<E>(&mut self, ended: Result<(Duration, bool), E>) {
        let Ok((took, is_found)) = ended else {
            self.failed += 1;
            return;
        };
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let recorded = self.micros.record(micros);
        recorded.expect("the histogram grows to any value");
        self.failed += u64::from(!is_found);
    }

    /// Adds those of `others`.
    pub(super) fn add(&mut self, others: &Self) -> Result<()> {
        self.micros.add(&others.micros)?;
        self.failed += others.failed;
        Ok(())
    }
}

impl Running {
    /// Waits for the answers that are still to come.
    pub(super) async fn stop(self) -> Result<Lookups> {
        self.stop.cancel();
        self.task.await.context("the lookups")
    }
}

async fn work(
    client: Client,
    prefix: String,
    pairs: Pairs,
    rate: NonZeroU32,
    stop: CancellationToken,
) -> Lookups {
    let mut lookups = Lookups::default();
    let mut under_way = JoinSet::new();
    let began = Instant::now();
    for at in 0_u64.. {
        let due = began + Duration::from_secs_f64(at as f64 / f64::from(rate.get()));
        tokio::select! {
            () = sleep_until(due) => {}
            () = stop.cancelled() => break,
        }
        while let Some(ended) = under_way.try_join_next() {
            lookups.count(ended);
        }
        if under_way.len() >= UNDER_WAY_MAX
            && let Some(ended) = under_way.join_next().await
        {
            lookups.count(ended);
        }
        let pair = pairs.draw();
        let database = client.database(&format!("{prefix}{}", pair.dsp_id));
        let cookies = database.collection::<RawDocumentBuf>(COOKIES);
        under_way.spawn(async move {
            let found = cookies.find_one(doc! {"_id": pair.user_id}).await;
            (due.elapsed(), matches!(found, Ok(Some(_))))
        });
    }
    while let Some(ended) = under_way.join_next().await {
        lookups.count(ended);
    }
    lookups
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn slow_lookup_counts_with_all_that_it_took() {
        let mut lookups = Lookups::default();
        for took in [Duration::from_micros(300), Duration::from_secs(3)] {
            lookups.count::<Infallible>(Ok((took, true)));
        }
        assert!(
            lookups.micros.max() >= 3_000_000,
            "{}",
            lookups.micros.max()
        );
    }
}
