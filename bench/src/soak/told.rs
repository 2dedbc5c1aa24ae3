//! Which cookies consumers said they will not get, and when these were accepted. Pure.
//!
//! A consumer's log names each gap by its producer, epoch and sequences; and, once a producer's next life answers, how many
//! cookies it may lack after a sequence of the life before. The looks at that producer, once a second, say when
//! it had accepted how many: so a request that may be one of these was under way between two looks.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::observe::{Observation, Role};

/// What nodes are told to log for this, beside what they log anyway.
pub(super) const LOG_FILTER: &str = "info,consumer::subscription=debug";

/// The time between a look and what it saw, and between an answer and the count of it.
const MARGIN: Duration = Duration::from_secs(1);

/// How far the start that a producer says may be from its epoch: both are taken as it starts. Two of its lives
/// begin further apart than twice that, as no fault strikes within three seconds after another.
const START_SECONDS: u64 = 1;

/// Cookies that a consumer will not get, or may not, as it told of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) producer: String,
    pub(super) epoch: u64,
    pub(super) first: u64,
    /// `u64::MAX` when the consumer knew no bound.
    pub(super) last: u64,
    pub(super) what: What,
}

/// What a consumer told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// All of them, in the midst of a life.
    Gap,
    /// At most so many, of the end of a life, and of lives since then up to the one with this epoch.
    End(u64),
}

/// One moment by two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) unix_micros: u64,
}

impl Told {
    /// All that a log tells of, over all lives of its consumer.
    pub(super) fn all(log: &str) -> Vec<Self> {
        // The life of each producer that answered last: the one that tells of the end of another.
        let mut answered = HashMap::new();
        let mut all = Vec::new();
        for line in log.lines() {
            if let Some(connected) = Fields::after(line, " connected address=") {
                answered.extend(connected.text("producer").zip(connected.number("epoch")));
            }
            all.extend(Self::gap(line));
            all.extend(Self::end(line, &answered));
        }
        all
    }

    /// What is told more than once counts once: a consumer that was killed may tell of an end again, from where its store
    /// stands.
    pub(super) fn merged(mut all: Vec<Self>) -> Vec<Self> {
        all.sort_by(|a, b| (&a.producer, a.epoch, a.first).cmp(&(&b.producer, b.epoch, b.first)));
        let mut merged: Vec<Self> = Vec::new();
        for told in all {
            match merged.last_mut() {
                Some(last)
                    if (&last.producer, last.epoch) == (&told.producer, told.epoch)
                        && told.first <= last.last =>
                {
                    last.last = last.last.max(told.last);
                    last.what = last.what.max(told.what);
                }
                _ => merged.push(told),
            }
        }
        merged
    }

    fn gap(line: &str) -> Option<Self> {
        let fields = Fields::after(line, " gap producer=")?;
        Some(Self {
            producer: fields.text("producer")?.to_owned(),
            epoch: fields.number("epoch")?,
            first: fields.number("first")?,
            last: fields.number("last")?,
            what: What::Gap,
        })
    }

    fn end(line: &str, answered: &HashMap<&str, u64>) -> Option<Self> {
        let bounded = Fields::after(line, " cookies after this sequence are lost producer=");
        let unbounded = || Fields::after(line, " unknown tail: no bound is known producer=");
        let fields = bounded.or_else(unbounded)?;
        let producer = fields.text("producer")?;
        let sequence = fields.number("sequence")?;
        let cookies = fields
            .number("cookies_max")
            .or_else(|| fields.number("lost"))
            .unwrap_or(u64::MAX);
        // One that never came back was followed by no life.
        let next = answered.get(producer).copied().unwrap_or(u64::MAX);
        Some(Self {
            producer: producer.to_owned(),
            epoch: fields.number("epoch")?,
            first: sequence.saturating_add(1),
            last: sequence.saturating_add(cookies),
            what: What::End(next),
        })
    }

    /// How many cookies at most, if that is known.
    pub(super) fn cookies(&self) -> Option<u64> {
        let count = self.last.saturating_add(1).saturating_sub(self.first);
        (self.last < u64::MAX).then_some(count)
    }

    /// Between when and when they were accepted.
    pub(super) fn accepted(&self, observations: &[Observation], now: Moment) -> (Instant, Instant) {
        let began = now.of(self.epoch).checked_sub(MARGIN);
        let began = began.unwrap_or(now.at);
        let (mut from, mut last_look) = (began, began);
        let mut most = 0;
        for (at, count) in self.looks(observations) {
            // A count that stands still may be an old one, of a producer that did not answer.
            if count > most && count < self.first {
                from = at;
            }
            most = count;
            last_look = at;
            if count >= self.last {
                break;
            }
        }
        let until = match self.what {
            // Lives in between have no looks to be known by, but all were over.
            What::End(next) => now.of(next) + MARGIN,
            What::Gap if most >= self.last => last_look + MARGIN,
            // The rest came after the last look at this life.
            What::Gap => last_look + 2 * MARGIN,
        };
        (from, until)
    }

    /// The looks at this life, and how many cookies it had accepted. A producer that does not answer is shown as the life before
    /// until its next one does, so it is not the time of a look that says which life it is of.
    fn looks<'a>(
        &'a self,
        observations: &'a [Observation],
    ) -> impl Iterator<Item = (Instant, u64)> + 'a {
        observations.iter().filter_map(|at| {
            let mut producers = at.of(Role::Producer);
            let seen = producers.find(|seen| seen.name == self.producer)?;
            let life = &seen.life.producer;
            let is_it = life.started.abs_diff(self.epoch / 1_000_000) <= START_SECONDS;
            is_it.then_some((at.at, life.appended))
        })
    }
}

impl Moment {
    /// When it was so many microseconds since the Unix epoch.
    fn of(&self, unix_micros: u64) -> Instant {
        let age = Duration::from_micros(self.unix_micros.saturating_sub(unix_micros));
        self.at.checked_sub(age).unwrap_or(self.at)
    }
}

/// The fields of a line in a log, each `name=value`, in whatever order.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    /// Those of a line with this in it, which ends in the first of them.
    fn after(line: &'a str, message: &str) -> Option<Self> {
        let name = message.rsplit(' ').next()?;
        let fields = line.find(message)? + message.len() - name.len();
        Some(Self(&line[fields..]))
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        let mut fields = self.0.split(' ').filter_map(|field| field.split_once('='));
        let (_, value) = fields.find(|(key, _)| *key == name)?;
        Some(value.trim_matches('"'))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
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
            what: What::Gap,
        };
        assert_eq!(told, [expected]);
        assert_eq!(told[0].cookies(), Some(11));
        let warning = line.replace(": gap ", ": gap: cookies are lost ");
        assert!(Told::all(&warning).is_empty());
    }

    /// Looks at a producer, one a second from the second on; of each, when its life started and how many it had accepted.
    fn looks(start: Instant, lives: &[(u64, u64)]) -> Vec<Observation> {
        let look = |(at, &(started, appended)): (u64, &(u64, u64))| {
            let mut life = Counts::default();
            (life.producer.started, life.producer.appended) = (started, appended);
            let seen = Seen {
                role: Role::Producer,
                name: "p".to_owned(),
                cpu: CpuTime::default(),
                memory: Memory::default(),
                counts: life.clone(),
                life,
            };
            Observation {
                at: start + Duration::from_secs(at),
                processes: vec![seen],
            }
        };
        (2..).zip(lives).map(look).collect()
    }

    /// Seconds between which a gap was accepted, told by the clock whose 50 is the start.
    #[track_caller]
    fn check(lives: &[(u64, u64)], (epoch, first, last): (u64, u64, u64), expected: (u64, u64)) {
        check_what(lives, What::Gap, (epoch, first, last), expected);
    }

    #[track_caller]
    fn check_what(
        lives: &[(u64, u64)],
        what: What,
        (epoch, first, last): (u64, u64, u64),
        expected: (u64, u64),
    ) {
        let start = Instant::now();
        let now = Moment {
            at: start + Duration::from_secs(20),
            unix_micros: 70_000_000,
        };
        let told = Told {
            producer: "p".to_owned(),
            epoch: epoch * 1_000_000,
            first,
            last,
            what,
        };
        let (from, until) = told.accepted(&looks(start, lives), now);
        let seconds = |at: Instant| at.saturating_duration_since(start).as_secs();
        assert_eq!((seconds(from), seconds(until)), expected);
    }

    /// A life of 600 cookies, of which one look saw nothing new; and another that began after eight seconds.
    const TWO_LIVES: [(u64, u64); 8] = [
        (52, 100),
        (52, 200),
        (52, 300),
        (52, 300),
        (52, 500),
        (52, 600),
        (58, 50),
        (58, 900),
    ];

    #[test]
    fn gap_was_accepted_between_the_looks_around_it() {
        check(&TWO_LIVES, (52, 150, 180), (2, 4));
        check(&TWO_LIVES, (52, 310, 590), (4, 8));
        // Its end was not seen.
        check(&TWO_LIVES, (52, 350, 700), (4, 9));
        check(&TWO_LIVES, (58, 60, 70), (8, 10));
    }

    #[test]
    fn look_that_still_shows_the_life_before_says_nothing_of_the_next() {
        let lives = [(50, 5_000), (50, 6_000), (50, 6_000), (54, 40), (54, 80)];
        check(&lives, (54, 10, 20), (3, 6));
        check(&lives, (54, 50, 60), (5, 7));
        // One that has not answered yet shows no life at all.
        let unanswered = [(50, 5_000), (0, 0), (0, 0), (54, 40), (54, 80)];
        check(&unanswered, (54, 50, 60), (5, 7));
    }

    #[test]
    fn end_of_a_life_was_accepted_after_the_last_sequence_and_before_the_next_life() {
        let end = What::End(57_500_000);
        check_what(&TWO_LIVES, end, (52, 351, 1_500), (4, 8));
        check_what(&TWO_LIVES, end, (52, 1, u64::MAX), (1, 8));
        // A cursor that no look knows of says only that it is of this life.
        check_what(&TWO_LIVES, end, (52, 9, 20), (1, 8));
        check_what(&TWO_LIVES, What::End(u64::MAX), (52, 601, 700), (7, 21));
    }

    #[test]
    fn end_is_told_with_its_bound_and_the_life_that_told_it() {
        let log = "\
2026-11-21T16:00:00.000001Z  INFO consumer::subscription: connected address=127.0.0.1:4 producer=p epoch=70 from=1 outcome=Fresh
2026-11-21T16:00:01.000001Z  INFO consumer::subscription: connected address=127.0.0.1:4 producer=p epoch=90 from=1 outcome=NewEpoch
2026-11-21T16:00:01.000002Z  WARN consumer::subscription::ended: producer was restarted without a goodbye, unknown tail: at most so many \
cookies after this sequence are lost producer=\"p\" epoch=70 sequence=100 watched_from=1 lost_in_gaps=0 cookies_max=50
2026-11-21T16:00:02.000002Z  WARN consumer::subscription::ended: producer was restarted: exactly so many cookies after this sequence \
are lost producer=\"p\" epoch=90 sequence=10 watched_from=1 lost_in_gaps=0 lost=5
2026-11-21T16:00:03.000002Z  WARN consumer::subscription::ended: producer was restarted without a goodbye, unknown tail: no bound is \
known producer=\"p\" epoch=95 sequence=7 watched_from=1 lost_in_gaps=0
2026-11-21T16:00:04.000002Z  INFO consumer::subscription::ended: producer was restarted, nothing was lost producer=\"p\" epoch=96 sequence=7";
        let end = |epoch, first, last| Told {
            producer: "p".to_owned(),
            epoch,
            first,
            last,
            what: What::End(90),
        };
        let expected = [end(70, 101, 150), end(90, 11, 15), end(95, 8, u64::MAX)];
        assert_eq!(Told::all(log), expected);
        let bounds = expected.map(|told| told.cookies());
        assert_eq!(bounds, [Some(50), Some(5), None]);
    }

    #[test]
    fn what_is_told_twice_counts_once() {
        let told = |epoch, first, last, what| Told {
            producer: "p".to_owned(),
            epoch,
            first,
            last,
            what,
        };
        let merged = Told::merged(vec![
            told(1, 151, 200, What::End(5)),
            told(1, 40, 49, What::Gap),
            told(1, 101, 200, What::End(7)),
            told(1, 40, 49, What::Gap),
            told(2, 101, 200, What::End(7)),
        ]);
        let expected = [
            told(1, 40, 49, What::Gap),
            told(1, 101, 200, What::End(7)),
            told(2, 101, 200, What::End(7)),
        ];
        assert_eq!(merged, expected);
    }
}
