//! One of the compared writers, and its cost.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

use anyhow::Result;
use bench::cpu;

use super::{
    baseline::Baseline,
    consumer_sink::{self, ConsumerSink},
    lookups::Bidder,
    outcome::{StoreOutcome, VariantOutcome},
    server::Server,
    workload::{Pairs, Slice, Workload},
};

/// A writer with its cost so far.
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) writer: Writer,
    pub(super) bidder: Option<Bidder>,
    pub(super) cost: WriteCost,
}

pub(super) enum Writer {
    Sink(Box<ConsumerSink>),
    Baseline(Baseline),
}

/// Cost of writing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WriteCost {
    cookies: u64,
    time: Duration,
    client_cpu: Duration,
    pub(super) mongod_cpu: Option<Duration>,
}

impl WriteCost {
    fn add(&mut self, other: &Self) {
        self.cookies += other.cookies;
        self.time += other.time;
        self.client_cpu += other.client_cpu;
        if let Some(more) = other.mongod_cpu {
            self.mongod_cpu = Some(self.mongod_cpu.unwrap_or_default() + more);
        }
    }

    pub(super) fn per_second(&self) -> f64 {
        self.cookies as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    pub(super) fn micros_per(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.cookies.max(1) as f64
    }
}

impl Variant {
    /// Writes a slice and measures it, during lookups of the pairs `before`. `paged_dsps`: number of DSPs whose pages are also read.
    pub(super) async fn write(
        &mut self,
        slice: &Slice,
        before: Option<&Pairs>,
        server: Option<&Server>,
        paged_dsps: Option<NonZeroU32>,
    ) -> Result<WriteCost> {
        let running = self.bidder.as_ref().zip(before);
        let paged = match &self.writer {
            Writer::Sink(sink) => paged_dsps.map(|dsps| (sink.store(), dsps)),
            Writer::Baseline(_) => None,
        };
        let running = running.map(|(bidder, pairs)| bidder.look_up(pairs.clone(), paged));
        let commands = match &self.writer {
            Writer::Baseline(baseline) => baseline.encode(slice)?,
            Writer::Sink(_) => Vec::new(),
        };
        let client_before = self.client_cpu();
        let mongod_before = server.and_then(Server::cpu);
        let began = Instant::now();
        let cookies = match &mut self.writer {
            Writer::Sink(sink) => sink.write(slice).await?,
            Writer::Baseline(baseline) => baseline.send(commands).await?,
        };
        let mongod = server.and_then(Server::cpu).zip(mongod_before);
        let cost = WriteCost {
            cookies,
            time: began.elapsed(),
            client_cpu: self.client_cpu().saturating_sub(client_before),
            mongod_cpu: mongod.map(|(now, before)| now.saturating_sub(before)),
        };
        self.cost.add(&cost);
        if let (Some(bidder), Some(running)) = (&mut self.bidder, running) {
            bidder.stop(running).await?;
        }
        Ok(cost)
    }

    fn client_cpu(&self) -> Duration {
        match &self.writer {
            Writer::Sink(_) => cpu::of_threads(&consumer_sink::THREADS),
            Writer::Baseline(baseline) => cpu::of_threads(&[baseline.name()]),
        }
    }

    /// Ends the variant, checks its store, and adds its results to `outcome`.
    pub(super) async fn finish(
        self,
        workload: &Workload,
        server: Option<&Server>,
        outcome: &mut StoreOutcome,
    ) -> Result<()> {
        let Self { name, cost, .. } = self;
        let documents = match server {
            Some(server) => Some(server.count(name, workload.dsps()).await?),
            None => None,
        };
        let mut failures = Vec::new();
        let pairs = workload.pairs().count();
        if let Some(documents) = documents.filter(|count| *count != pairs) {
            failures.push(format!("{documents} documents instead of {pairs}"));
        }
        let batches = match self.writer {
            Writer::Sink(consumer_sink) => {
                let (batches, found) = consumer_sink.finish(workload).await?;
                failures.extend(found);
                Some(batches)
            }
            Writer::Baseline(_) => None,
        };
        let lookups = self
            .bidder
            .iter()
            .flat_map(Bidder::stats)
            .collect::<Vec<_>>();
        let failed = lookups.iter().map(|it| it.failed).sum::<u64>();
        if failed > 0 {
            failures.push(format!("{failed} lookups failed or found nothing"));
        }
        let named = failures
            .into_iter()
            .map(|failure| format!("{name}: {failure}"));
        outcome.failures.extend(named);
        outcome.variants.push(VariantOutcome {
            name,
            cookies: cost.cookies,
            seconds: cost.time.as_secs_f64(),
            per_second: cost.per_second(),
            client_cpu_micros: cost.micros_per(cost.client_cpu),
            mongod_cpu_micros: cost.mongod_cpu.map(|cpu| cost.micros_per(cpu)),
            batches,
            lookups,
            documents,
        });
        Ok(())
    }
}
