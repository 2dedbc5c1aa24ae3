//! Determines the accepted cookies that a node may be missing: only cookies that its consumer reported as lost. Does no I/O.
//!
//! A killed producer loses the cookies that a node had not received, because a producer keeps cookies only in memory. The
//! consumer of the node reports their maximum number and the last received sequence number. Only this report determines the
//! allowed losses: up to that number of cookies, accepted after that sequence number and before the next epoch. Reports whose
//! times overlap are merged, because a request during the overlap may belong to either report.

use bench::verify::LostRequest;
use testkit::{
    numbers::grouped,
    observe::{Observation, Role},
};
use tokio::time::Instant;

use super::reported_losses::{ClockPair, LossKind, ReportedLoss};

/// Cookies that a node may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedLoss {
    producer: usize,
    /// Bounds of the acceptance times.
    from: Instant,
    until: Instant,
    /// Maximum number, if the consumer reported one.
    cookies: Option<u64>,
}

/// All allowed losses of one node.
#[derive(Debug, Default)]
pub(super) struct AllowedLosses {
    allowed: Vec<AllowedLoss>,
    pub(super) reported: ReportedTotals,
}

/// Totals of the losses reported by a consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReportedTotals {
    pub(super) cookies_in_gaps: u64,
    pub(super) epoch_ends: u64,
    /// Sum of the maximum losses of all epoch ends with a bound.
    pub(super) cookies_at_ends_max: u64,
    pub(super) ends_without_bound: u64,
}

impl AllowedLosses {
    /// Losses allowed by the log of a consumer.
    pub(super) fn new(log: &str, observations: &[Observation], now: ClockPair) -> Self {
        let all = ReportedLoss::all(log);
        let reported = ReportedTotals::of(&all);
        let last = observations.last().into_iter();
        let producers: Vec<_> = last.flat_map(|last| last.of(Role::Producer)).collect();
        let allowed = all.iter().filter_map(|lost| {
            let producer = producers.iter().position(|it| it.name == lost.producer)?;
            let (from, until) = lost.accepted(observations, now);
            Some(AllowedLoss {
                producer,
                from,
                until,
                cookies: lost.cookies,
            })
        });
        let allowed = merged(allowed.collect());
        Self { allowed, reported }
    }

    /// Whether the node may be missing this request.
    pub(super) fn cover(&self, lost: &LostRequest) -> bool {
        self.allowed.iter().any(|loss| loss.covers(lost))
    }

    /// Losses that exceed the consumer's reports: one sentence per loss, with times in seconds since `began`.
    pub(super) fn exceeded(&self, lost: &[LostRequest], began: Instant) -> Vec<String> {
        let mut missing = vec![0; self.allowed.len()];
        let mut ambiguous = Vec::new();
        for lost in lost {
            let allowed = self.allowed.iter().enumerate();
            let covering = allowed.filter(|(_, loss)| loss.covers(lost));
            let covering: Vec<_> = covering.map(|(at, _)| at).collect();
            match covering[..] {
                [at] => missing[at] += 1,
                _ => ambiguous.push(covering),
            }
        }
        for covering in ambiguous {
            let has_capacity = |at: &&usize| {
                let max = self.allowed[**at].cookies;
                max.is_none_or(|max| missing[**at] < max)
            };
            if let Some(&at) = covering.iter().find(has_capacity).or(covering.first()) {
                missing[at] += 1;
            }
        }
        let allowed = self.allowed.iter().zip(missing);
        allowed
            .filter_map(|(loss, missing)| loss.exceeded(missing, began))
            .collect()
    }
}

impl AllowedLoss {
    fn covers(&self, lost: &LostRequest) -> bool {
        lost.producer == self.producer
            && lost.responded_by >= self.from
            && lost.sent_after <= self.until
    }

    fn exceeded(&self, missing: u64, began: Instant) -> Option<String> {
        let max = self.cookies.filter(|max| missing > *max)?;
        let seconds = |at: Instant| at.saturating_duration_since(began).as_secs_f64();
        Some(format!(
            "at least {} cookies accepted by producer {} between {:.1} s and {:.1} s are missing, but the consumer reported a \
             maximum of {}",
            grouped(missing),
            self.producer + 1,
            seconds(self.from),
            seconds(self.until),
            grouped(max)
        ))
    }
}

impl ReportedTotals {
    fn of(all: &[ReportedLoss]) -> Self {
        let mut totals = Self::default();
        for lost in all {
            match (lost.kind, lost.cookies) {
                (LossKind::Gap, cookies) => totals.cookies_in_gaps += cookies.unwrap_or(0),
                (LossKind::EpochEnd(_), cookies) => {
                    totals.epoch_ends += 1;
                    totals.ends_without_bound += u64::from(cookies.is_none());
                    totals.cookies_at_ends_max += cookies.unwrap_or(0);
                }
            }
        }
        totals
    }
}

/// Merges losses with overlapping times.
fn merged(mut allowed: Vec<AllowedLoss>) -> Vec<AllowedLoss> {
    allowed.sort_by_key(|loss| (loss.producer, loss.from));
    let mut merged: Vec<AllowedLoss> = Vec::new();
    for loss in allowed {
        match merged.last_mut() {
            Some(last) if last.producer == loss.producer && loss.from <= last.until => {
                last.until = last.until.max(loss.until);
                last.cookies = last.cookies.zip(loss.cookies).map(|(a, b)| a + b);
            }
            _ => merged.push(loss),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::tests as fixtures, *};

    /// Start time in Unix seconds, the clock of epochs.
    const START_UNIX: u64 = 1_000;

    struct Run {
        start: Instant,
        observations: Vec<Observation>,
    }

    impl Run {
        /// Observations of one producer, one per second: start of its epoch in seconds since the start, and accepted cookies.
        fn new(samples: impl IntoIterator<Item = (u64, u64)>) -> Self {
            let start = Instant::now();
            let observation = |(second, (began, appended)): (u64, (u64, u64))| {
                let at = start + Duration::from_secs(second);
                fixtures::observation(at, START_UNIX + began, appended)
            };
            Self {
                start,
                observations: (0..).zip(samples).map(observation).collect(),
            }
        }

        fn allowed(&self, losses: &[String]) -> AllowedLosses {
            let now = ClockPair {
                at: self.start + Duration::from_secs(100),
                unix_micros: (START_UNIX + 100) * 1_000_000,
            };
            AllowedLosses::new(&losses.join("\n"), &self.observations, now)
        }

        /// A request that was sent and answered at this time.
        fn lost(&self, millis: u64) -> LostRequest {
            let at = self.start + Duration::from_millis(millis);
            LostRequest {
                producer: 0,
                sent_after: at,
                responded_by: at,
            }
        }

        /// Checks which losses are allowed individually, and the number of sentences about losses that together exceed
        /// the reports.
        #[track_caller]
        fn check(&self, losses: &[String], millis: &[u64], expected: &[bool], sentences: usize) {
            let allowed = self.allowed(losses);
            let lost: Vec<_> = millis.iter().map(|millis| self.lost(*millis)).collect();
            let found: Vec<_> = lost.iter().map(|lost| allowed.cover(lost)).collect();
            assert_eq!(found, expected, "{allowed:?}");
            let reported = allowed.exceeded(&lost, self.start);
            assert_eq!(reported.len(), sentences, "{reported:?}");
        }
    }

    /// The report of an epoch end: after the start of the epoch at second `next`, up to `cookies_max` cookies after `sequence` of
    /// the first epoch are lost.
    fn end(next: u64, sequence: u64, cookies_max: u64) -> String {
        let [epoch, next] = [0, next].map(|second| (START_UNIX + second) * 1_000_000);
        fixtures::end(epoch, sequence, Some(cookies_max), next)
    }

    fn gap(first: u64, last: u64) -> String {
        fixtures::gap(START_UNIX * 1_000_000, first, last)
    }

    /// 100 cookies per second, with a kill at second 20.
    fn killed_at_20() -> Run {
        Run::new((0..40).map(|second| match second {
            0..20 => (0, second * 100),
            _ => (20, (second - 20) * 100),
        }))
    }

    #[test]
    fn killed_epoch_allows_only_its_newest_cookies() {
        let run = killed_at_20();
        let losses = [end(20, 1_850, 3)];
        let lost = [1_000, 17_900, 18_000, 19_500, 22_000];
        run.check(&losses, &lost, &[false, false, true, true, false], 0);
    }

    #[test]
    fn unreported_kill_allows_no_loss() {
        let run = killed_at_20();
        run.check(&[], &[100, 19_900], &[false, false], 0);
        let lossless = [end(20, 1_850, 0)];
        run.check(&lossless, &[100, 19_900], &[false, false], 0);
    }

    #[test]
    fn losses_are_limited_to_the_reported_number() {
        let run = killed_at_20();
        let lost = [18_100, 18_200, 18_300, 18_400];
        run.check(&[end(20, 1_850, 4)], &lost, &[true; 4], 0);
        run.check(&[end(20, 1_850, 3)], &lost, &[true; 4], 1);
    }

    #[test]
    fn losses_of_a_short_epoch_are_limited_to_the_reported_number() {
        let run = Run::new((0..5).map(|second| (0, second * 100)));
        let lost = [500, 2_100, 4_100];
        run.check(&[end(5, 350, 2)], &lost, &[false, false, true], 0);
        // The cursor is older than every observation, so the number is known, but not the time.
        run.check(&[end(5, 0, 2)], &lost, &[true, true, true], 1);
    }

    #[test]
    fn repeated_report_of_an_epoch_end_counts_once() {
        let run = killed_at_20();
        let losses = [end(20, 1_850, 2), end(20, 1_750, 102)];
        assert_eq!(run.allowed(&losses).reported.cookies_at_ends_max, 102);
        run.check(&losses, &[16_900, 17_000, 19_000], &[false, true, true], 0);
    }

    #[test]
    fn overlapping_losses_share_their_numbers() {
        let run = killed_at_20();
        let losses = [gap(1_810, 1_811), end(20, 1_900, 1)];
        let lost = [18_500, 18_600, 19_700];
        run.check(&losses, &lost, &[true; 3], 0);
        run.check(&losses, &[18_500, 18_600, 19_700, 19_800], &[true; 4], 1);
        // Separate losses are counted separately.
        let losses = [gap(510, 511), end(20, 1_900, 1)];
        run.check(&losses, &[5_500, 5_600, 19_700], &[true; 3], 0);
        run.check(&losses, &[5_500, 19_700, 19_800], &[true; 3], 1);
    }

    #[test]
    fn epoch_end_without_a_bound_allows_all_later_cookies() {
        let run = killed_at_20();
        let losses = [fixtures::end(
            START_UNIX * 1_000_000,
            1_850,
            None,
            (START_UNIX + 20) * 1_000_000,
        )];
        assert_eq!(run.allowed(&losses).reported.ends_without_bound, 1);
        run.check(&losses, &[17_900, 18_500, 18_600], &[false, true, true], 0);
    }
}
