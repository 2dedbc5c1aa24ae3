//! Which cookies consumers said they will not get, and when these were accepted. Pure.
//!
//! A consumer's log names each gap by its producer, epoch and sequences. The looks at that producer, once a second, say when
//! it had accepted how many: so a request that may be one of these was under way between two looks.

use std::time::Duration;

use tokio::time::Instant;

use crate::observe::{Observation, Role};

/// What nodes are told to log for this, beside what they log anyway.
pub(super) const LOG_FILTER: &str = "info,consumer::subscription=debug";

/// The time between a look and what it saw, and between an answer and the count of it.
const MARGIN: Duration = Duration::from_secs(1);

/// A gap as its consumer told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) producer: String,
    epoch: u64,
    first: u64,
    last: u64,
}

/// One moment by two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) unix_micros: u64,
}

impl Told {
    /// All that a log tells of.
    pub(super) fn all(log: &str) -> Vec<Self> {
        log.lines().filter_map(Self::read).collect()
    }

    fn read(line: &str) -> Option<Self> {
        let (_, fields) = line.split_once(" gap producer=")?;
        let (producer, fields) = fields.split_once(' ')?;
        let field = |name: &str| -> Option<u64> {
            let mut fields = fields.split(' ').filter_map(|field| field.split_once('='));
            fields.find(|(key, _)| *key == name)?.1.parse().ok()
        };
        Some(Self {
            producer: producer.trim_matches('"').to_owned(),
            epoch: field("epoch")?,
            first: field("first")?,
            last: field("last")?,
        })
    }

    /// How many cookies.
    pub(super) fn cookies(&self) -> u64 {
        (self.last + 1).saturating_sub(self.first)
    }

    /// Between when and when they were accepted.
    pub(super) fn accepted(&self, observations: &[Observation], now: Moment) -> (Instant, Instant) {
        let age = Duration::from_micros(now.unix_micros.saturating_sub(self.epoch)) + MARGIN;
        let began = now.at.checked_sub(age).unwrap_or(now.at);
        let (mut from, mut last_look) = (began, began);
        let mut most = 0;
        for at in observations.iter().filter(|at| at.at >= began) {
            let mut producers = at.of(Role::Producer);
            let producer = producers.find(|seen| seen.name == self.producer);
            let count = producer.map_or(0, |seen| seen.life.producer.appended);
            if count < most {
                // Another life.
                break;
            }
            // A count that stands still may be an old one, of a producer that did not answer.
            if count > most && count < self.first {
                from = at.at;
            }
            most = count;
            last_look = at.at;
            if count >= self.last {
                return (from, at.at + MARGIN);
            }
        }
        // The rest came after the last look at this life.
        (from, last_look + 2 * MARGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cpu::CpuTime,
        memory::Memory,
        observe::{Counts, Seen},
    };

    #[test]
    fn gap_is_read_from_a_line_of_the_log_and_nothing_else_is() {
        let line = "2026-11-21T16:00:00.000001Z DEBUG consumer::subscription: gap producer=\"producer-2\" \
                    epoch=1795276800000000 lost=11 first=5 last=15 reason=QueueBound";
        let told = Told::all(&format!("something else\n{line}\n"));
        let expected = Told {
            producer: "producer-2".to_owned(),
            epoch: 1_795_276_800_000_000,
            first: 5,
            last: 15,
        };
        assert_eq!(told, [expected]);
        assert_eq!(told[0].cookies(), 11);
        let warning = line.replace(": gap ", ": gap: cookies are lost ");
        assert!(Told::all(&warning).is_empty());
    }

    #[test]
    fn gap_was_accepted_between_the_looks_around_it() {
        let start = Instant::now();
        let second = |count: u64| start + Duration::from_secs(count);
        let look = |at: u64, appended: u64| {
            let mut life = Counts::default();
            life.producer.appended = appended;
            let seen = Seen {
                role: Role::Producer,
                name: "p".to_owned(),
                cpu: CpuTime::default(),
                memory: Memory::default(),
                counts: life.clone(),
                life,
            };
            Observation {
                at: second(at),
                processes: vec![seen],
            }
        };
        // A life of 600 cookies, of which one look saw nothing new; and another that began after eight seconds.
        let counts = [100, 200, 300, 300, 500, 600, 50, 900];
        let observations: Vec<_> = (2..).zip(counts).map(|(at, n)| look(at, n)).collect();
        let now = Moment {
            at: second(10),
            unix_micros: 60_000_000,
        };
        let accepted = |epoch: u64, first: u64, last: u64| {
            let told = Told {
                producer: "p".to_owned(),
                epoch,
                first,
                last,
            };
            let (from, until) = told.accepted(&observations, now);
            let seconds = |at: Instant| at.saturating_duration_since(start).as_secs();
            (seconds(from), seconds(until))
        };
        let epoch = 52_000_000;
        assert_eq!(accepted(epoch, 150, 180), (2, 4));
        assert_eq!(accepted(epoch, 310, 590), (4, 8));
        assert_eq!(accepted(epoch, 350, 700), (4, 9), "its end was not seen");
    }
}
