//! What the producer counted of the limit since the last look, on one line.

use anyhow::Result;
use launcher::{
    admin,
    numbers::{grouped, per_second, rate},
    scrape::{Samples, names},
};
use tokio::time::Instant;

use super::contract::LIMIT;

/// Above the lines, in columns as wide as theirs.
pub(super) const HEADING: &str =
    "   time         in        out    waiting     oldest       dead    revived";

/// A producer's admin port, and what it said last.
pub(super) struct Live {
    producer: String,
    began: Instant,
    last: Option<Counts>,
    version: u64,
}

struct Counts {
    at: Instant,
    accepted: u64,
    released: u64,
}

/// What a look found.
pub(super) struct Looked {
    /// What happened since the last one; `None` the first time.
    pub(super) line: Option<String>,
    /// Another version of the file is in force: its number.
    pub(super) new_version: Option<u64>,
    /// The file as it is now is refused.
    pub(super) is_refused: bool,
}

impl Live {
    pub(super) fn new(producer: &str, began: Instant) -> Self {
        Self {
            producer: producer.to_owned(),
            began,
            last: None,
            version: 1,
        }
    }

    /// Asks the producer.
    ///
    /// # Errors
    /// When it does not answer, or its ledgers do not add up.
    pub(super) async fn look(&mut self) -> Result<Looked> {
        let samples = admin::metrics(&self.producer).await?;
        let count = |figure| samples.count(figure, &[("limit", LIMIT)]);
        let now = Counts {
            at: Instant::now(),
            accepted: count(names::SHAPING_ACCEPTED),
            released: count(names::SHAPING_RELEASED),
        };
        let line = self
            .last
            .as_ref()
            .map(|last| self.line(last, &now, &samples));
        self.last = Some(now);
        let version = samples.count(names::SHAPING_VERSION, &[]);
        let new_version = (version != self.version).then_some(version);
        self.version = version;
        Ok(Looked {
            line,
            new_version,
            is_refused: samples.count(names::SHAPING_REFUSED_VERSION, &[]) > 0,
        })
    }

    fn line(&self, last: &Counts, now: &Counts, samples: &Samples) -> String {
        let seconds = (now.at - last.at).as_secs_f64();
        let rate_of = |now: u64, before: u64| rate(per_second(now.saturating_sub(before), seconds));
        let labels = [("limit", LIMIT)];
        let held = |figure| grouped(samples.count(figure, &labels));
        let oldest = samples.sum(names::SHAPING_OLDEST, &labels).unwrap_or(0.0);
        format!(
            "{:>5} s {:>10} {:>10} {:>10} {:>8.1} s {:>10} {:>10}",
            (now.at - self.began).as_secs(),
            rate_of(now.accepted, last.accepted),
            rate_of(now.released, last.released),
            held(names::SHAPING_WAITING),
            oldest,
            held(names::SHAPING_DEAD),
            held(names::SHAPING_REVIVED),
        )
    }
}
