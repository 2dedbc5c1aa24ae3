//! The consumer's own way into a store: chunks into its buffer, through its collector and writer.
//!
//! It runs on threads of its own, so that their CPU time is the consumer's and nothing else's.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use consumer::{
    Config,
    app::open_store,
    batch::Batch,
    health::Health,
    metrics::Metrics,
    sink::{Failure, Pipeline, Stops},
    store::Store,
    subscription::buffer::{BufferWriter, Item},
};
use prometheus::{Encoder, TextEncoder};
use runtime::metrics::Registry;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{interval, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    pace::Pace,
    threads::OwnThreads,
    timed::{TimedStore, Writes},
    workload::{Expected, Slice},
};
use crate::{ledger, observe::Fates, scrape::Samples};

/// How long a store may fail without a success in between before the run is given up.
const FAILING_MAX: Duration = Duration::from_secs(60);

/// How long the store may take to answer at all at the start.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A consumer's sink at work.
pub(super) struct Consumed {
    threads: OwnThreads,
    producer: Arc<str>,
    buffer: BufferWriter,
    store: Arc<TimedStore>,
    stored: watch::Receiver<u64>,
    tasks: JoinSet<Result<(), Failure>>,
    /// What retries cookies of DSPs whose databases fail ends with this.
    stop_retrying: DropGuard,
    registry: Registry,
    /// Cookies a second, if not as fast as it goes.
    rate: Option<NonZeroU32>,
}

impl Consumed {
    /// Opens the store, with slots for so many DSPs, and starts the sink, as the consumer does, on threads called `name`.
    pub(super) async fn start(
        name: &'static str,
        config: Config,
        dsps: NonZeroU32,
        rate: Option<NonZeroU32>,
    ) -> Result<Self> {
        let threads = OwnThreads::start(name)?;
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).context("metrics")?;
        let opened = threads.run(async move {
            let store = Arc::new(TimedStore::new(open_store(&config).await?));
            let asked = timeout(START_PATIENCE, store.load_cursors()).await;
            asked.map_err(|_| anyhow!("the store does not answer"))??;
            for dsp_id in 1..=dsps.get() {
                store.retry(dsp_id, Arc::new(Batch::new(1, 1))).await?;
            }
            let (buffer, mut pipeline) = Pipeline::new(
                &config,
                Arc::clone(&store) as Arc<dyn Store>,
                Arc::new(Health::default()),
                watch::channel(config.storing.dsps_refused()).1,
                &metrics,
                Stops::default(),
            );
            pipeline.load_cursors().await?;
            anyhow::Ok((store, buffer, pipeline))
        });
        let (store, buffer, pipeline) = opened.await?;
        let stop_retrying = CancellationToken::new();
        let (collecting, writing, retrying) = pipeline.into_tasks(stop_retrying.clone());
        threads.handle().spawn(retrying);
        let mut tasks = JoinSet::new();
        tasks.spawn_on(collecting, threads.handle());
        tasks.spawn_on(writing, threads.handle());
        Ok(Self {
            threads,
            producer: "bench".into(),
            buffer,
            stored: store.stored(),
            store,
            tasks,
            stop_retrying: stop_retrying.drop_guard(),
            registry,
            rate,
        })
    }

    /// The names of the threads it works on: its own, and those of the embedded store.
    pub(super) fn thread_names(&self) -> [&'static str; 2] {
        [self.threads.name(), "fjall:worker"]
    }

    /// Pushes a slice and waits until the store has all of it.
    pub(super) async fn write(&mut self, slice: &Slice) -> Result<()> {
        let Self {
            producer,
            buffer,
            stored,
            store,
            tasks,
            rate,
            ..
        } = self;
        let last = slice.last_sequence();
        let pushed_and_stored = async {
            let (pace, mut pushed) = (Pace::from_now(*rate), 0);
            for chunk in &slice.chunks {
                pace.wait_for(pushed).await;
                pushed += u64::from(chunk.header().count);
                let item = Item::Chunk(Arc::clone(producer), chunk.clone());
                buffer.push(item).await?;
            }
            pace.wait_for(pushed).await;
            stored.wait_for(|sequence| *sequence >= last).await?;
            anyhow::Ok(())
        };
        let mut seconds = interval(Duration::from_secs(1));
        let fails = async {
            loop {
                seconds.tick().await;
                if let Some((since, why)) = store.writes().failing
                    && since.elapsed() > FAILING_MAX
                {
                    return why;
                }
            }
        };
        tokio::select! {
            done = pushed_and_stored => done,
            why = fails => bail!("the store does not work: {why}"),
            ended = tasks.join_next() => match ended {
                Some(Ok(Err(failure))) => Err(failure.into()),
                Some(Err(error)) => Err(error.into()),
                Some(Ok(Ok(()))) | None => bail!("the consumer ended before its buffer"),
            },
        }
    }

    /// The writes since the last [`forget`](Self::forget).
    pub(super) fn writes(&self) -> Writes {
        self.store.writes()
    }

    /// Begins to count writes anew.
    pub(super) fn forget(&self) {
        self.store.forget();
    }

    /// Lets the sink end as in a drain; returns what it counted, and the store.
    pub(super) async fn finish(self) -> Result<(Fates, Finished)> {
        let Self {
            threads,
            buffer,
            store,
            mut tasks,
            stop_retrying,
            registry,
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
        Ok((Fates::read(&samples), Finished { threads, store }))
    }
}

/// A store whose sink has ended.
pub(super) struct Finished {
    threads: OwnThreads,
    store: Arc<TimedStore>,
}

impl Finished {
    /// How many of the pairs have another value, or none, by the store's own lookup.
    pub(super) async fn wrong(&self, expected: &[Expected]) -> Result<u64> {
        let mut wrong = 0;
        for pair in expected {
            let known = self.store.lookup(&pair.user_id).await?.buyer_uids;
            wrong += u64::from(known.get(&pair.dsp_id) != Some(&pair.buyer_uid));
        }
        Ok(wrong)
    }

    /// Closes the store, which may take a moment; returns how long.
    pub(super) async fn close(self) -> Result<Duration> {
        let Self { threads, store } = self;
        let began = Instant::now();
        tokio::task::spawn_blocking(move || drop(store)).await?;
        drop(threads);
        Ok(began.elapsed())
    }
}
