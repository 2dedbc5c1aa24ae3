//! Which cookies consumers reported as lost, and when these were accepted. Pure.
//!
//! A consumer's log names each gap by its producer, epoch and sequences; and, once a producer's next epoch answers, how
//! many cookies it may lack after a sequence of the epoch before. The looks at that producer, once a second, say when
//! it had accepted how many: so a request that may be one of these was under way between two looks.

use std::time::Duration;

use bench::observe::{Observation, Role};
use serde::Deserialize;
use tokio::time::Instant;

/// The time between a look and what it saw, and between an answer and the count of it.
const MARGIN: Duration = Duration::from_secs(1);

/// How far the start that a producer says may be from its epoch: both are taken as it starts. Two of its epochs
/// begin further apart than twice that, as no fault strikes within three seconds after another.
const START_SECONDS: u64 = 1;

/// Cookies that a consumer will not get, or may not, as it reported them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReportedLoss {
    pub(super) producer: String,
    pub(super) epoch: u64,
    pub(super) first: u64,
    /// `u64::MAX` when the consumer knew no bound.
    pub(super) last: u64,
    /// How many of these at most, if that is known.
    pub(super) cookies: Option<u64>,
    pub(super) what: LossKind,
}

/// What a consumer reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LossKind {
    /// In the midst of an epoch.
    Gap,
    /// At most so many, of the end of an epoch, and of epochs since then up to the one with this epoch.
    End(u64),
}

/// One moment by two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockPair {
    pub(super) at: Instant,
    pub(super) unix_micros: u64,
}

/// The lines of a consumer's log that are of losses, in JSON.
#[derive(Debug, Deserialize)]
struct LogLine {
    producer: String,
    epoch: u64,
    /// Of a gap.
    first: Option<u64>,
    last: Option<u64>,
    /// Of the end of an epoch: what was received of it.
    sequence: Option<u64>,
    new_epoch: Option<u64>,
    /// How many exactly.
    lost: Option<u64>,
    /// How many at most.
    cookies_max: Option<u64>,
    message: String,
}

impl ReportedLoss {
    /// All of a log, those of overlapping sequences as one: a consumer that was killed may report an end again, from where its store
    /// stands.
    pub(super) fn all(log: &str) -> Vec<Self> {
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut all: Vec<_> = lines.filter_map(Self::of).collect();
        all.sort_by(|a, b| (&a.producer, a.epoch, a.first).cmp(&(&b.producer, b.epoch, b.first)));
        let mut merged: Vec<Self> = Vec::new();
        for loss in all {
            match merged.last_mut() {
                Some(last) if last.overlaps(&loss) => last.merge(&loss),
                _ => merged.push(loss),
            }
        }
        merged
    }

    /// Nothing where nothing was lost, and of other lines.
    fn of(line: LogLine) -> Option<Self> {
        let cookies = line.lost.or(line.cookies_max);
        if cookies == Some(0) {
            return None;
        }
        let (first, last, what) = match (line.first, line.last) {
            (Some(first), Some(last)) if line.message.starts_with("gap: ") => {
                (first, last, LossKind::Gap)
            }
            _ if line.message.starts_with("producer restarted")
                || line.message.starts_with("producer disappeared") =>
            {
                let first = line.sequence?.saturating_add(1);
                let plural = |cookies: u64| first.saturating_add(cookies - 1);
                // One that never came back was followed by no epoch.
                let end = LossKind::End(line.new_epoch.unwrap_or(u64::MAX));
                (first, cookies.map_or(u64::MAX, plural), end)
            }
            _ => return None,
        };
        Some(Self {
            producer: line.producer,
            epoch: line.epoch,
            first,
            last,
            cookies,
            what,
        })
    }

    fn overlaps(&self, later: &Self) -> bool {
        (&self.producer, self.epoch) == (&later.producer, later.epoch) && later.first <= self.last
    }

    fn merge(&mut self, later: &Self) {
        let is_same = self.first == later.first && self.what == later.what;
        self.last = self.last.max(later.last);
        self.what = self.what.max(later.what);
        let span = self.last.saturating_add(1) - self.first;
        let both = self.cookies.zip(later.cookies);
        self.cookies = both.map(|(a, b)| if is_same { a.max(b) } else { span.min(a + b) });
    }

    /// Between when and when they were accepted.
    pub(super) fn accepted(
        &self,
        observations: &[Observation],
        now: ClockPair,
    ) -> (Instant, Instant) {
        let began = now.of(self.epoch).checked_sub(MARGIN);
        let began = began.unwrap_or(now.at);
        let (mut from, mut last_look) = (began, began);
        let mut max = 0;
        for (at, count) in self.looks(observations) {
            // A count that stands still may be an old one, of a producer that did not answer.
            if count > max && count < self.first {
                from = at;
            }
            max = count;
            last_look = at;
            if count >= self.last {
                break;
            }
        }
        let until = match self.what {
            // Epochs in between have no looks to be known by, but all were over.
            LossKind::End(next) => now.of(next) + MARGIN,
            LossKind::Gap if max >= self.last => last_look + MARGIN,
            // The rest came after the last look at this epoch.
            LossKind::Gap => last_look + 2 * MARGIN,
        };
        (from, until)
    }

    /// The looks at this epoch, and how many cookies it had accepted. A producer that does not answer is shown as the epoch before
    /// until its next one does, so it is not the time of a look that says which epoch it is of.
    fn looks<'a>(
        &'a self,
        observations: &'a [Observation],
    ) -> impl Iterator<Item = (Instant, u64)> + 'a {
        observations.iter().filter_map(|at| {
            let mut producers = at.of(Role::Producer);
            let observed = producers.find(|observed| observed.name == self.producer)?;
            let epoch = &observed.run;
            let is_it = epoch.started.abs_diff(self.epoch / 1_000_000) <= START_SECONDS;
            is_it.then_some((at.at, epoch.appended))
        })
    }
}

impl ClockPair {
    /// When it was so many microseconds since the Unix epoch.
    fn of(&self, unix_micros: u64) -> Instant {
        let age = Duration::from_micros(self.unix_micros.saturating_sub(unix_micros));
        self.at.checked_sub(age).unwrap_or(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::samples, *};

    /// Looks at a producer, one a second from the second on; of each, when its epoch started and how many it had accepted.
    fn looks(start: Instant, epochs: &[(u64, u64)]) -> Vec<Observation> {
        let look = |(second, &(started, appended)): (u64, &(u64, u64))| {
            samples::look(start + Duration::from_secs(second), started, appended)
        };
        (2..).zip(epochs).map(look).collect()
    }

    /// Seconds between which a gap was accepted, told by the clock whose 50 is the start.
    #[track_caller]
    fn check(epochs: &[(u64, u64)], (epoch, first, last): (u64, u64, u64), expected: (u64, u64)) {
        check_what(epochs, LossKind::Gap, (epoch, first, last), expected);
    }

    #[track_caller]
    fn check_what(
        epochs: &[(u64, u64)],
        what: LossKind,
        (epoch, first, last): (u64, u64, u64),
        expected: (u64, u64),
    ) {
        let start = Instant::now();
        let now = ClockPair {
            at: start + Duration::from_secs(20),
            unix_micros: 70_000_000,
        };
        let lost = ReportedLoss {
            producer: "p".to_owned(),
            epoch: epoch * 1_000_000,
            first,
            last,
            cookies: None,
            what,
        };
        let (from, until) = lost.accepted(&looks(start, epochs), now);
        let seconds = |at: Instant| at.saturating_duration_since(start).as_secs();
        assert_eq!((seconds(from), seconds(until)), expected);
    }

    /// An epoch of 600 cookies, of which one look saw nothing new; and another that began after eight seconds.
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
    fn look_that_still_shows_the_epoch_before_says_nothing_of_the_next() {
        let epochs = [(50, 5_000), (50, 6_000), (50, 6_000), (54, 40), (54, 80)];
        check(&epochs, (54, 10, 20), (3, 6));
        check(&epochs, (54, 50, 60), (5, 7));
        // One that has not answered yet shows no epoch at all.
        let unanswered = [(50, 5_000), (0, 0), (0, 0), (54, 40), (54, 80)];
        check(&unanswered, (54, 50, 60), (5, 7));
    }

    #[test]
    fn end_of_an_epoch_was_accepted_after_the_last_sequence_and_before_the_next_epoch() {
        let end = LossKind::End(57_500_000);
        check_what(&TWO_LIVES, end, (52, 351, 1_500), (4, 8));
        check_what(&TWO_LIVES, end, (52, 1, u64::MAX), (1, 8));
        // A cursor that no look knows of says only that it is of this epoch.
        check_what(&TWO_LIVES, end, (52, 9, 20), (1, 8));
        check_what(&TWO_LIVES, LossKind::End(u64::MAX), (52, 601, 700), (7, 21));
    }

    #[track_caller]
    fn check_all(log: &[String], expected: &[(u64, u64, Option<u64>, LossKind)]) {
        let all = ReportedLoss::all(&log.join("\n"));
        let all: Vec<_> = all
            .iter()
            .map(|it| (it.first, it.last, it.cookies, it.what))
            .collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn lines_of_overlapping_sequences_are_one() {
        let (gap, end) = (samples::gap, samples::end);
        check_all(
            &[gap(70, 5, 15), gap(70, 30, 31)],
            &[
                (5, 15, Some(11), LossKind::Gap),
                (30, 31, Some(2), LossKind::Gap),
            ],
        );
        check_all(
            &[end(70, 100, Some(50), 90), end(70, 80, Some(70), 95)],
            &[(81, 150, Some(70), LossKind::End(95))],
        );
        check_all(&[end(70, 100, Some(0), 90)], &[]);
        let no_bound = (8, u64::MAX, None, LossKind::End(96));
        check_all(&[end(95, 7, None, 96)], &[no_bound]);
    }
}
