//! Losses reported by consumers, and the acceptance times of the lost cookies. Does no I/O.
//!
//! The log of a consumer contains the producer, epoch and sequence numbers of each gap. After a producer restart, it contains the
//! maximum loss after a sequence number of the previous epoch. The trial observes once per second how many cookies the producer
//! has accepted. These observations bound the time of each lost request.

use std::time::Duration;

use serde::Deserialize;
use testkit::{
    observe::{Observation, Role},
    scrape::names,
};
use tokio::time::Instant;

/// Maximum delay between an observation and its data, and between a response and its count.
const MARGIN: Duration = Duration::from_secs(1);

/// Maximum difference between the start time of a producer and its epoch, in seconds. Two epochs differ by more than twice
/// this value, because faults of a process are at least three seconds apart.
const START_SECONDS: u64 = 1;

/// Cookies that a consumer reported as lost or possibly lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReportedLoss {
    pub(super) producer: String,
    pub(super) epoch: u64,
    pub(super) first: u64,
    /// `u64::MAX` if no bound was reported.
    pub(super) last: u64,
    /// Maximum number of lost cookies, if known.
    pub(super) cookies: Option<u64>,
    pub(super) kind: LossKind,
}

/// Kind of a reported loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LossKind {
    /// A gap within an epoch.
    Gap,
    /// The end of an epoch, and all later epochs before this one.
    EpochEnd(u64),
}

/// A point in time on two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockPair {
    pub(super) at: Instant,
    pub(super) unix_micros: u64,
}

/// A JSON log message of a consumer about a loss.
#[derive(Debug, Deserialize)]
struct LogLine {
    producer: String,
    epoch: u64,
    /// First sequence number of a gap.
    first: Option<u64>,
    last: Option<u64>,
    /// Last received sequence number of an ended epoch.
    sequence: Option<u64>,
    new_epoch: Option<u64>,
    /// Exact number.
    lost: Option<u64>,
    /// Maximum number.
    cookies_max: Option<u64>,
    message: String,
}

impl ReportedLoss {
    /// All losses in a log. Overlapping losses are merged, because a restarted consumer may report an epoch end again from the
    /// cursor in its store.
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

    /// The loss that a message reports; `None` for other messages, and without loss.
    fn of(line: LogLine) -> Option<Self> {
        let cookies = line.lost.or(line.cookies_max);
        if cookies == Some(0) {
            return None;
        }
        let (first, last, kind) = match (line.first, line.last) {
            // With an archive, only what it does not have is lost.
            (Some(first), Some(last))
                if line.message.starts_with("gap: cookies lost")
                    || line.message.starts_with("hole ") =>
            {
                (first, last, LossKind::Gap)
            }
            _ if line.message.starts_with("producer restarted")
                || line.message.starts_with("producer did not return") =>
            {
                let first = line.sequence?.saturating_add(1);
                let plural = |cookies: u64| first.saturating_add(cookies - 1);
                // A producer that did not return has no next epoch.
                let end = LossKind::EpochEnd(line.new_epoch.unwrap_or(u64::MAX));
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
            kind,
        })
    }

    fn overlaps(&self, later: &Self) -> bool {
        (&self.producer, self.epoch) == (&later.producer, later.epoch) && later.first <= self.last
    }

    fn merge(&mut self, later: &Self) {
        let is_same = self.first == later.first && self.kind == later.kind;
        self.last = self.last.max(later.last);
        self.kind = self.kind.max(later.kind);
        let span = self.last.saturating_add(1) - self.first;
        let both = self.cookies.zip(later.cookies);
        self.cookies = both.map(|(a, b)| if is_same { a.max(b) } else { span.min(a + b) });
    }

    /// Bounds of the acceptance times of the lost cookies.
    pub(super) fn accepted(
        &self,
        observations: &[Observation],
        now: ClockPair,
    ) -> (Instant, Instant) {
        let began = now.of(self.epoch).checked_sub(MARGIN);
        let began = began.unwrap_or(now.at);
        let (mut from, mut last_observation) = (began, began);
        let mut max = 0;
        for (at, count) in self.observations_of_epoch(observations) {
            // A count that does not grow may be outdated, because the producer did not respond.
            if count > max && count < self.first {
                from = at;
            }
            max = count;
            last_observation = at;
            if count >= self.last {
                break;
            }
        }
        let until = match self.kind {
            // Intermediate epochs may have no observations, but all of them have ended.
            LossKind::EpochEnd(next) => now.of(next) + MARGIN,
            LossKind::Gap if max >= self.last => last_observation + MARGIN,
            // The remaining cookies were accepted after the last observation of this epoch.
            LossKind::Gap => last_observation + 2 * MARGIN,
        };
        (from, until)
    }

    /// Times of the observations of this epoch, with the number of accepted cookies. If a producer does not respond, its
    /// previous sample is kept. So the start time in the sample determines the epoch, not the time of the
    /// observation.
    fn observations_of_epoch<'a>(
        &'a self,
        observations: &'a [Observation],
    ) -> impl Iterator<Item = (Instant, u64)> + 'a {
        observations.iter().filter_map(|at| {
            let mut producers = at.of(Role::Producer);
            let observed = producers.find(|observed| observed.name == self.producer)?;
            let epoch = &observed.run;
            let is_it = epoch.of(names::STARTED).abs_diff(self.epoch / 1_000_000) <= START_SECONDS;
            is_it.then_some((at.at, epoch.of(names::APPENDED)))
        })
    }
}

impl ClockPair {
    /// Converts microseconds since the Unix epoch to a time.
    fn of(&self, unix_micros: u64) -> Instant {
        let age = Duration::from_micros(self.unix_micros.saturating_sub(unix_micros));
        self.at.checked_sub(age).unwrap_or(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests as fixtures, *};

    /// Observations of a producer, one per second from second 2: start of its epoch and accepted cookies.
    fn observations(start: Instant, epochs: &[(u64, u64)]) -> Vec<Observation> {
        let observation = |(second, &(started, appended)): (u64, &(u64, u64))| {
            fixtures::observation(start + Duration::from_secs(second), started, appended)
        };
        (2..).zip(epochs).map(observation).collect()
    }

    /// Checks the acceptance times of a gap in seconds; the run starts at Unix second 50.
    #[track_caller]
    fn check(epochs: &[(u64, u64)], (epoch, first, last): (u64, u64, u64), expected: (u64, u64)) {
        check_kind(epochs, LossKind::Gap, (epoch, first, last), expected);
    }

    #[track_caller]
    fn check_kind(
        epochs: &[(u64, u64)],
        kind: LossKind,
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
            kind,
        };
        let (from, until) = lost.accepted(&observations(start, epochs), now);
        let seconds = |at: Instant| at.saturating_duration_since(start).as_secs();
        assert_eq!((seconds(from), seconds(until)), expected);
    }

    /// An epoch of 600 cookies with one idle second, and another epoch from second 8.
    const TWO_EPOCHS: [(u64, u64); 8] = [
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
    fn gap_was_accepted_between_the_surrounding_observations() {
        check(&TWO_EPOCHS, (52, 150, 180), (2, 4));
        check(&TWO_EPOCHS, (52, 310, 590), (4, 8));
        // The end of the gap was not observed.
        check(&TWO_EPOCHS, (52, 350, 700), (4, 9));
        check(&TWO_EPOCHS, (58, 60, 70), (8, 10));
    }

    #[test]
    fn observations_of_the_previous_epoch_are_ignored() {
        let epochs = [(50, 5_000), (50, 6_000), (50, 6_000), (54, 40), (54, 80)];
        check(&epochs, (54, 10, 20), (3, 6));
        check(&epochs, (54, 50, 60), (5, 7));
        // Observations before the first response have no epoch.
        let unanswered = [(50, 5_000), (0, 0), (0, 0), (54, 40), (54, 80)];
        check(&unanswered, (54, 50, 60), (5, 7));
    }

    #[test]
    fn cookies_lost_at_an_epoch_end_were_accepted_before_the_next_epoch() {
        let end = LossKind::EpochEnd(57_500_000);
        check_kind(&TWO_EPOCHS, end, (52, 351, 1_500), (4, 8));
        check_kind(&TWO_EPOCHS, end, (52, 1, u64::MAX), (1, 8));
        // A cursor before every observation only bounds the time to this epoch.
        check_kind(&TWO_EPOCHS, end, (52, 9, 20), (1, 8));
        check_kind(
            &TWO_EPOCHS,
            LossKind::EpochEnd(u64::MAX),
            (52, 601, 700),
            (7, 21),
        );
    }

    #[track_caller]
    fn check_all(log: &[String], expected: &[(u64, u64, Option<u64>, LossKind)]) {
        let all = ReportedLoss::all(&log.join("\n"));
        let all: Vec<_> = all
            .iter()
            .map(|it| (it.first, it.last, it.cookies, it.kind))
            .collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn with_an_archive_only_what_it_does_not_have_is_lost() {
        let line = |message: &str, lost: u64| {
            let line = serde_json::json!({
                "message": message, "producer": "p", "epoch": 70, "first": 5, "last": 15, "lost": lost,
            });
            line.to_string()
        };
        let log = [
            line("gap: reading its cookies from the archive", 11),
            line("hole closed; all its cookies are recovered", 0),
        ];
        check_all(&log, &[]);
        let log = [
            line("gap: reading its cookies from the archive", 11),
            line("hole closed; some of its cookies are lost", 4),
        ];
        check_all(&log, &[(5, 15, Some(4), LossKind::Gap)]);
    }

    #[test]
    fn overlapping_reports_are_merged() {
        let (gap, end) = (fixtures::gap, fixtures::end);
        check_all(
            &[gap(70, 5, 15), gap(70, 30, 31)],
            &[
                (5, 15, Some(11), LossKind::Gap),
                (30, 31, Some(2), LossKind::Gap),
            ],
        );
        check_all(
            &[end(70, 100, Some(50), 90), end(70, 80, Some(70), 95)],
            &[(81, 150, Some(70), LossKind::EpochEnd(95))],
        );
        check_all(&[end(70, 100, Some(0), 90)], &[]);
        let no_bound = (8, u64::MAX, None, LossKind::EpochEnd(96));
        check_all(&[end(95, 7, None, 96)], &[no_bound]);
    }
}
