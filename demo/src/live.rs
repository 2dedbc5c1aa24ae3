//! The live line: what both processes counted since the last look.

use anyhow::Result;
use launcher::{
    admin,
    numbers::{duration, grouped, per_second, rate},
    scrape::{Buckets, names},
};
use tokio::time::Instant;

/// Lines between two headings.
const HEADING_EVERY: u64 = 20;

/// Two admin ports, and what they said last.
pub(crate) struct Live {
    producer: String,
    consumer: String,
    last: Option<Counts>,
    lines: u64,
}

struct Counts {
    at: Instant,
    accepted: u64,
    stored: u64,
    lost: u64,
    accepted_to_stored: Buckets,
}

impl Live {
    pub(crate) fn new(producer: String, consumer: String) -> Self {
        Self {
            producer,
            consumer,
            last: None,
            lines: 0,
        }
    }

    /// What happened since the last call, on one line; `None` the first time.
    pub(crate) async fn line(&mut self) -> Result<Option<String>> {
        let now = self.counts().await?;
        let line = self.last.as_ref().map(|last| {
            let heading = if self.lines.is_multiple_of(HEADING_EVERY) {
                format!(
                    "{:>14} {:>14} {:>10} {:>24}\n",
                    "accepted", "stored", "lost", "p99 accepted → stored"
                )
            } else {
                String::new()
            };
            heading + &now.line_since(last)
        });
        self.lines += u64::from(line.is_some());
        self.last = Some(now);
        Ok(line)
    }

    async fn counts(&self) -> Result<Counts> {
        let producer = admin::metrics(&self.producer).await?;
        let consumer = admin::metrics(&self.consumer).await?;
        Ok(Counts {
            at: Instant::now(),
            accepted: producer.count(names::APPENDED, &[]),
            stored: [names::WRITTEN, names::SUPERSEDED, names::STALE]
                .map(|name| consumer.count(name, &[]))
                .into_iter()
                .sum(),
            lost: consumer.count(names::LOST, &[]),
            accepted_to_stored: consumer.histogram(names::STORED_SECONDS),
        })
    }
}

impl Counts {
    fn line_since(&self, last: &Self) -> String {
        let seconds = (self.at - last.at).as_secs_f64();
        let rate_of = |now: u64, before: u64| rate(per_second(now.saturating_sub(before), seconds));
        let p99 = self
            .accepted_to_stored
            .since(&last.accepted_to_stored)
            .quantile(0.99)
            .map_or_else(|| "-".to_owned(), |seconds| duration(micros(seconds)));
        format!(
            "{:>14} {:>14} {:>10} {:>24}",
            rate_of(self.accepted, last.accepted),
            rate_of(self.stored, last.stored),
            grouped(self.lost),
            p99
        )
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}
