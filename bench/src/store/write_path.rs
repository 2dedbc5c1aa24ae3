//! The write paths into a store that are compared, and what each has taken so far.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use super::{
    bare::Bare,
    consumed::Consumed,
    lookups::{Bidder, Lookups},
    outcome::{SliceFigures, WritePathOutcome},
    server::Server,
    workload::{Expected, Pairs, Slice},
};
use crate::{
    cpu::CpuTime,
    observe::Fates,
    report::{Percentiles, micros_each, per_second},
};

/// One path by which the same cookies are written.
pub(super) struct WritePath {
    pub(super) name: &'static str,
    work: Work,
    /// Who looks up pairs while it writes.
    pub(super) bidder: Option<Bidder>,
    tally: Tally,
}

enum Work {
    Consumed(Box<Consumed>),
    Bare(Box<Bare>),
}

/// What was measured.
#[derive(Debug, Default)]
struct Tally {
    cookies: u64,
    time: Duration,
    client: CpuTime,
    server: Option<CpuTime>,
    slices: Vec<SliceFigures>,
    lookups: Lookups,
    warm_up: Duration,
}

/// The marks at the beginning of a measurement.
struct Began {
    at: Instant,
    client: CpuTime,
    server: Option<CpuTime>,
}

impl WritePath {
    pub(super) fn consumed(name: &'static str, consumed: Consumed) -> Self {
        Self::new(name, Work::Consumed(Box::new(consumed)))
    }

    pub(super) fn bare(name: &'static str, bare: Bare) -> Self {
        Self::new(name, Work::Bare(Box::new(bare)))
    }

    fn new(name: &'static str, work: Work) -> Self {
        Self {
            name,
            work,
            bidder: None,
            tally: Tally::default(),
        }
    }

    /// Writes a slice that counts for nothing: collections and connections are made, caches filled.
    pub(super) async fn warm_up(&mut self, slice: &Slice) -> Result<()> {
        let began = Instant::now();
        self.write(slice, None).await?;
        if let Work::Consumed(consumed) = &self.work {
            consumed.forget();
        }
        self.tally = Tally {
            warm_up: began.elapsed(),
            ..Tally::default()
        };
        Ok(())
    }

    /// Writes a slice after `pairs`, under the clock, while they are looked up; returns the figures.
    pub(super) async fn measure(
        &mut self,
        slice: &Slice,
        pairs: &Pairs,
        server: Option<&Server>,
    ) -> Result<SliceFigures> {
        let bidder = self.bidder.as_ref();
        let lookups = bidder.map(|bidder| bidder.look_up(pairs.clone()));
        let (cookies, began) = self.write(slice, server).await?;
        let time = began.at.elapsed();
        let cpu = server.and_then(Server::cpu);
        let cpu = cpu
            .zip(began.server)
            .map(|(now, before)| now.since(&before));
        let client = self.client_cpu().since(&began.client);
        let tally = &mut self.tally;
        tally.cookies += cookies;
        tally.time += time;
        tally.client = tally.client.plus(&client);
        if let Some(cpu) = cpu {
            tally.server = Some(tally.server.unwrap_or_default().plus(&cpu));
        }
        let seconds = time.as_secs_f64();
        let figures = SliceFigures {
            documents: pairs.count(),
            cookies,
            seconds,
            per_second: per_second(cookies, seconds),
            client_cpu_micros_per_cookie: micros_each(client.total().as_secs_f64(), cookies),
            mongod_cpu_micros_per_cookie: cpu
                .map(|cpu| micros_each(cpu.total().as_secs_f64(), cookies)),
        };
        tally.slices.push(figures);
        if let Some(lookups) = lookups {
            tally.lookups.add(&lookups.stop().await?)?;
        }
        Ok(figures)
    }

    /// Prepares, takes the marks, and writes; returns how many cookies that were.
    async fn write(&mut self, slice: &Slice, server: Option<&Server>) -> Result<(u64, Began)> {
        let client = self.client_cpu();
        let began = |client| Began {
            at: Instant::now(),
            client,
            server: server.and_then(Server::cpu),
        };
        match &mut self.work {
            Work::Consumed(consumed) => {
                let began = began(client);
                consumed.write(slice).await?;
                Ok((slice.cookies(), began))
            }
            Work::Bare(bare) => {
                let commands = bare.encode(slice)?;
                let cookies = commands.cookies;
                let began = began(client);
                bare.send(commands).await?;
                Ok((cookies, began))
            }
        }
    }

    fn client_cpu(&self) -> CpuTime {
        match &self.work {
            Work::Consumed(consumed) => CpuTime::of_threads(&consumed.thread_names()),
            Work::Bare(bare) => CpuTime::of_threads(&[bare.thread_name()]),
        }
    }

    /// Ends the way, checks what it left behind, and reports.
    pub(super) async fn finish(
        self,
        expected: &[Expected],
        server: Option<&Server>,
        dsps: u32,
    ) -> Result<WritePathOutcome> {
        let (mut counts, mut batches, mut embedded_wrong) = (None, None, None);
        let mut has_all_values = true;
        match self.work {
            Work::Consumed(consumed) => {
                let writes = consumed.writes();
                batches = Some((writes.micros, writes.batches, writes.cookies));
                let (counted, finished) = consumed.finish().await?;
                counts = Some(counted);
                if server.is_none() && self.name != super::DISCARD {
                    embedded_wrong = Some(finished.wrong(expected).await?);
                }
                finished.close().await?;
            }
            // It inserts only what is new, so it has the first values.
            Work::Bare(bare) => has_all_values = bare.writes_all(),
        }
        let (mut wrong, mut documents) = (embedded_wrong, None);
        if let Some(server) = server {
            documents = Some(server.count(self.name, dsps).await?);
            if has_all_values {
                wrong = Some(server.wrong(self.name, expected).await?);
            }
        }
        Ok(outcome(
            self.name, self.tally, counts, batches, documents, wrong,
        ))
    }
}

/// Durations, number and cookies of batches.
type Batches = (Histogram<u64>, u64, u64);

fn outcome(
    name: &'static str,
    tally: Tally,
    counts: Option<Fates>,
    batches: Option<Batches>,
    documents: Option<u64>,
    wrong: Option<u64>,
) -> WritePathOutcome {
    let each = |cpu: CpuTime| micros_each(cpu.total().as_secs_f64(), tally.cookies);
    let seconds = tally.time.as_secs_f64();
    WritePathOutcome {
        name,
        warm_up_seconds: tally.warm_up.as_secs_f64(),
        cookies: tally.cookies,
        seconds,
        per_second: per_second(tally.cookies, seconds),
        client_cpu_seconds: tally.client.seconds(),
        client_cpu_micros_per_cookie: each(tally.client),
        mongod_cpu_seconds: tally.server.map(|cpu| cpu.seconds()),
        mongod_cpu_micros_per_cookie: tally.server.map(each),
        batches: batches.as_ref().map(|(_, batches, _)| *batches),
        cookies_per_batch: batches
            .as_ref()
            .map(|(_, batches, cookies)| *cookies as f64 / (*batches).max(1) as f64),
        batch_micros: batches.and_then(|(micros, ..)| Percentiles::of(&micros)),
        counts,
        documents,
        wrong,
        lookup_micros: Percentiles::of(&tally.lookups.micros),
        lookups_failed: tally.lookups.failed,
        slices: tally.slices,
    }
}
