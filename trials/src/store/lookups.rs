//! Simulates the lookups of a bidder during the writes. Each lookup reads one document by its `_id`, at its due time whether or not
//! earlier responses have arrived. With `--pages`, the cookies are also read in pages during every second slice of the writes.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use bench::report::duration;
use consumer::{
    deletions::Deletions,
    store::{PageQuery, Store, mongodb::COOKIES},
};
use hdrhistogram::Histogram;
use mongodb::{
    Client,
    bson::{RawDocumentBuf, doc},
};
use runtime::unix_micros;
use serde::Serialize;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{server::Server, workload::Pairs};

/// Maximum concurrent lookups. Further lookups wait, and the wait counts as latency.
const IN_FLIGHT_MAX: usize = 1_000;

/// A client that looks up random pairs at a constant rate, independent of the responses.
pub(super) struct Bidder {
    client: Client,
    /// Variant whose databases are read.
    variant: &'static str,
    rate: NonZeroU32,
    /// Lookups of slices without pages, and with pages.
    lookups: [Lookups; 2],
}

/// Latency and failures of lookups.
struct Lookups {
    /// Latency from the due time.
    micros: Histogram<u64>,
    failed: u64,
    /// Pages read at the same time.
    pages: u64,
}

/// Lookups that run until they are stopped.
pub(super) struct RunningLookups {
    stop: CancellationToken,
    task: JoinSet<Result<Lookups>>,
}

/// Latency of lookups from their due times.
#[derive(Debug, Clone, Serialize)]
pub struct LookupStats {
    /// The median.
    pub p50_micros: u64,
    /// The 99th percentile.
    pub p99_micros: u64,
    /// Lookups that failed or did not find their document.
    pub failed: u64,
    /// Pages read during the lookups.
    pub pages: u64,
}

impl fmt::Display for LookupStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (duration(self.p50_micros), duration(self.p99_micros));
        write!(f, "lookups p50 {p50}, p99 {p99}")?;
        match self.pages {
            0 => Ok(()),
            pages => write!(f, " with {pages} pages"),
        }
    }
}

impl Lookups {
    fn none() -> Self {
        let micros = Histogram::new(3).expect("three digits are supported");
        Self {
            micros,
            failed: 0,
            pages: 0,
        }
    }

    /// Counts a finished lookup; a panic counts as a failure.
    fn count<E>(&mut self, ended: Result<(Duration, bool), E>) {
        let (took, is_found) = ended.unwrap_or((Duration::ZERO, false));
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.saturating_record(micros);
        self.failed += u64::from(!is_found);
    }
}

impl Bidder {
    pub(super) fn new(server: &Server, variant: &'static str, rate: NonZeroU32) -> Self {
        Self {
            client: server.client().clone(),
            variant,
            rate,
            lookups: [Lookups::none(), Lookups::none()],
        }
    }

    /// Starts lookups of `pairs`, and reads pages of these DSPs from a store.
    pub(super) fn look_up(
        &self,
        pairs: Pairs,
        paged: Option<(Arc<dyn Store>, NonZeroU32)>,
    ) -> RunningLookups {
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let client = self.client.clone();
        let lookups = look_up(client, self.variant, pairs, self.rate, stop.clone());
        let stopped = stop.clone();
        task.spawn(async move {
            let pages = async {
                match paged {
                    Some((store, dsps)) => read_pages(store, dsps.get(), stopped).await,
                    None => Ok(0),
                }
            };
            let (mut lookups, pages) = tokio::join!(lookups, pages);
            lookups.pages = pages?;
            Ok(lookups)
        });
        RunningLookups { stop, task }
    }

    /// Stops the lookups and waits for outstanding responses.
    pub(super) async fn stop(&mut self, mut running: RunningLookups) -> Result<()> {
        running.stop.cancel();
        let lookups = running
            .task
            .join_next()
            .await
            .context("the lookups ended early")???;
        let all = &mut self.lookups[usize::from(lookups.pages > 0)];
        all.micros.add(&lookups.micros)?;
        all.failed += lookups.failed;
        all.pages += lookups.pages;
        Ok(())
    }

    /// Statistics of the slices without pages, and of the slices with pages if there are any.
    pub(super) fn stats(&self) -> Vec<LookupStats> {
        let measured = self.lookups.iter().filter(|it| !it.micros.is_empty());
        let stats = |it: &Lookups| LookupStats {
            p50_micros: it.micros.value_at_quantile(0.5),
            p99_micros: it.micros.value_at_quantile(0.99),
            failed: it.failed,
            pages: it.pages,
        };
        measured.map(stats).collect()
    }
}

/// Reads the pages of one DSP after the other until `stop`; returns their number.
async fn read_pages(store: Arc<dyn Store>, dsps: u32, stop: CancellationToken) -> Result<u64> {
    let (deletions, mut pages) = (Deletions::default(), 0);
    let reading = async {
        for dsp_id in (1..=dsps).cycle() {
            let mut query = PageQuery {
                dsp_id,
                before: unix_micros(),
                after_user: String::new(),
            };
            while let Some(next) = store.page(&query, &deletions).await?.next {
                query.after_user = next;
                pages += 1;
            }
        }
        anyhow::Ok(())
    };
    stop.run_until_cancelled(reading).await.transpose()?;
    Ok(pages)
}

async fn look_up(
    client: Client,
    variant: &'static str,
    pairs: Pairs,
    rate: NonZeroU32,
    stop: CancellationToken,
) -> Lookups {
    let mut lookups = Lookups::none();
    let mut in_flight = JoinSet::new();
    let began = Instant::now();
    for at in 0_u64.. {
        let due = began + Duration::from_secs_f64(at as f64 / f64::from(rate.get()));
        tokio::select! {
            () = sleep_until(due) => {}
            () = stop.cancelled() => break,
        }
        while let Some(ended) = in_flight.try_join_next() {
            lookups.count(ended);
        }
        if in_flight.len() >= IN_FLIGHT_MAX
            && let Some(ended) = in_flight.join_next().await
        {
            lookups.count(ended);
        }
        let pair = pairs.draw();
        let database = client.database(&Server::database(variant, pair.dsp_id));
        let cookies = database.collection::<RawDocumentBuf>(COOKIES);
        in_flight.spawn(async move {
            let found = cookies.find_one(doc! {"_id": pair.user_id}).await;
            (due.elapsed(), matches!(found, Ok(Some(_))))
        });
    }
    while let Some(ended) = in_flight.join_next().await {
        lookups.count(ended);
    }
    lookups
}
