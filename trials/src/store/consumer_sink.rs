//! The part of the consumer that writes its buffer to the store. It runs on separate threads, whose CPU time counts as
//! that of the consumer.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use bench::{
    ledger,
    report::duration,
    scrape::{Samples, names},
};
use consumer::{
    Config,
    app::open_store,
    config::StoreConfig,
    deletions::Deletions,
    health::Health,
    ledger::Ledger,
    metrics::Metrics,
    sink::{Failure, Pipeline, StopTokens},
    store::Store,
    subscription::buffer::{BufferWriter, Item},
};
use prometheus::{Encoder as _, TextEncoder};
use runtime::metrics::Registry;
use serde::Serialize;
use tokio::{
    runtime::Runtime,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    threads::{named_runtime, wait_due},
    workload::{Slice, Workload},
};

pub(super) const NAME: &str = "consumer";

/// Names of the threads of the sink and of the embedded store.
pub(super) const THREADS: [&str; 2] = ["store-consumer", "fjall:worker"];

/// Number of pairs whose stored value is verified.
const VERIFIED_PAIRS: u64 = 2_000;

/// Maximum time for the store to accept a cookie; the run then fails.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// A running sink.
pub(super) struct ConsumerSink {
    runtime: &'static Runtime,
    producer: Arc<str>,
    buffer: BufferWriter,
    store: Arc<dyn Store>,
    tasks: JoinSet<Result<(), Failure>>,
    /// Ends the retries of cookies of failing DSP databases.
    stop_retrying: DropGuard,
    registry: Registry,
    ledger: Ledger,
    /// Cookies per second; `None` writes as fast as possible.
    rate: Option<NonZeroU32>,
    discards: bool,
}

/// Statistics of the batches of the consumer.
#[derive(Debug, Clone, Serialize)]
pub struct BatchStats {
    /// Number of batches.
    pub count: u64,
    /// Mean number of cookies.
    pub cookies_mean: f64,
    /// Median time to store a batch.
    pub p50_micros: u64,
    /// The 99th percentile.
    pub p99_micros: u64,
}

impl fmt::Display for BatchStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (duration(self.p50_micros), duration(self.p99_micros));
        let (count, mean) = (self.count, self.cookies_mean);
        write!(f, "{count} batches of {mean:.0}, p50 {p50}, p99 {p99}")
    }
}

impl ConsumerSink {
    /// Opens the store and starts the sink.
    pub(super) async fn start(config: Config, rate: Option<NonZeroU32>) -> Result<Self> {
        let runtime = named_runtime(THREADS[0])?;
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).context("failed to register metrics")?;
        let ledger = metrics.sink.ledger.clone();
        let discards = matches!(config.storage.store, StoreConfig::Discard);
        let stop_retrying = CancellationToken::new();
        let stops = StopTokens {
            retrier: stop_retrying.clone(),
            ..StopTokens::default()
        };
        let opening = async move {
            let store = open_store(&config).await?;
            let sink = Pipeline::open(
                &config,
                Arc::clone(&store),
                Arc::new(Health::default()),
                watch::channel(config.storage.rejected_dsps()).1,
                Deletions::default(),
                &metrics,
                stops,
            );
            let sink = timeout(STORE_TIMEOUT, sink).await;
            anyhow::Ok((store, sink.context("the store does not respond")??))
        };
        let (store, sink) = runtime.spawn(opening).await??;
        runtime.spawn(sink.retrying);
        let mut tasks = JoinSet::new();
        tasks.spawn_on(sink.collecting, runtime.handle());
        tasks.spawn_on(sink.writing, runtime.handle());
        Ok(Self {
            runtime,
            producer: "trials".into(),
            buffer: sink.buffer,
            store,
            tasks,
            stop_retrying: stop_retrying.drop_guard(),
            registry,
            ledger,
            rate,
            discards,
        })
    }

    /// The store, for reading pages.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Pushes a slice, and waits until the outcomes of its cookies are known; returns their number.
    pub(super) async fn write(&mut self, slice: &Slice) -> Result<u64> {
        let began = Instant::now();
        let (buffer, ledger, rate) = (&self.buffer, &self.ledger, self.rate);
        let pushed_and_stored = async {
            let mut pushed = 0;
            for chunk in &slice.chunks {
                wait_due(began, rate, pushed).await;
                pushed += u64::from(chunk.header().count);
                let item = Item::Chunk(Arc::clone(&self.producer), chunk.clone());
                let push = timeout(STORE_TIMEOUT, buffer.push(item)).await;
                push.context("the store accepts no cookies")??;
            }
            wait_due(began, rate, pushed).await;
            let settled = async {
                let waiting = |ledger: &Ledger| {
                    let counts = ledger.counts();
                    counts.waiting + counts.in_retry_queue
                };
                while waiting(ledger) > 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            let settled = timeout(STORE_TIMEOUT, settled).await;
            settled.context("the store accepts no cookies")?;
            anyhow::Ok(pushed)
        };
        tokio::select! {
            pushed = pushed_and_stored => pushed,
            ended = self.tasks.join_next() => match ended {
                Some(Ok(Err(failure))) => Err(failure.into()),
                Some(Err(error)) => Err(error.into()),
                Some(Ok(Ok(()))) | None => bail!("the sink ended before its buffer was empty"),
            },
        }
    }

    /// Drains the sink, verifies the store and closes it; returns failed checks.
    pub(super) async fn finish(self, workload: &Workload) -> Result<(BatchStats, Vec<String>)> {
        let Self {
            runtime,
            buffer,
            store,
            mut tasks,
            stop_retrying,
            registry,
            discards,
            ..
        } = self;
        drop(buffer);
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        drop(stop_retrying);
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text)?;
        let samples = Samples::parse(&String::from_utf8(text)?);
        ledger::check_consumer(&samples)?;

        let mut failures = Vec::new();
        let (received, sent) = (samples.count(names::RECEIVED, &[]), workload.cookies());
        if received != sent {
            failures.push(format!("{received} of {sent} cookies were received"));
        }
        let failed = samples.count(names::FAILED, &[]);
        if failed > 0 {
            failures.push(format!("{failed} cookies were rejected"));
        }
        let mut wrong = 0;
        for pair in workload.expected(VERIFIED_PAIRS).filter(|_| !discards) {
            let known = store
                .lookup(&pair.user_id, &Deletions::default())
                .await?
                .buyer_uids;
            wrong += u64::from(known.get(&pair.dsp_id) != Some(&pair.buyer_uid));
        }
        if wrong > 0 {
            failures.push(format!(
                "{wrong} of the verified pairs do not have their newest value"
            ));
        }
        // Closing may block.
        runtime.spawn_blocking(move || drop(store)).await?;

        let quantile = |quantile| {
            let seconds = samples.histogram(names::FLUSH_SECONDS).quantile(quantile);
            let time = Duration::from_secs_f64(seconds.unwrap_or(0.0));
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
        };
        let count = samples.count(names::BATCHES, &[]);
        let batches = BatchStats {
            count,
            cookies_mean: received as f64 / count.max(1) as f64,
            p50_micros: quantile(0.5),
            p99_micros: quantile(0.99),
        };
        Ok((batches, failures))
    }
}
