//! Which accepted cookies a node may lack: those of which its consumer said that it will not get them, and no more of them than it
//! reported. Pure.
//!
//! A producer keeps cookies in memory only. What it had accepted and a node had not received is gone with it when it is killed,
//! and the node's consumer says how many these are at most, and after which sequence. That, and no other knowledge of a
//! kill, allows what the node lacks: at most so many, accepted after that sequence and before the next epoch. What is said
//! of times that overlap is one loss, since a request under way in both may be of either.

use bench::{
    observe::{Observation, Role},
    report::grouped,
    verify::LostRequest,
};
use tokio::time::Instant;

use super::reported_losses::{ClockPair, LossKind, ReportedLoss};

/// Cookies that a node may lack.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedLoss {
    producer: usize,
    /// Between when and when they were accepted.
    from: Instant,
    until: Instant,
    /// How many at most, if its consumer knew.
    cookies: Option<u64>,
}

/// All that one node may lack.
#[derive(Debug, Default)]
pub(super) struct AllowedLosses {
    allowed: Vec<AllowedLoss>,
    pub(super) reported: ReportedTotals,
}

/// What a consumer reported, in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReportedTotals {
    pub(super) cookies_in_gaps: u64,
    pub(super) ends: u64,
    /// After those ends that have a bound.
    pub(super) cookies_at_ends_max: u64,
    pub(super) ends_without_bound: u64,
}

impl AllowedLosses {
    /// What the log of a node's consumer allows.
    pub(super) fn new(log: &str, observations: &[Observation], now: ClockPair) -> Self {
        let all = ReportedLoss::all(log);
        let reported = ReportedTotals::of(&all);
        let producers = observations.last();
        let producers: Vec<_> = producers.into_iter().flat_map(producer_names).collect();
        let allowed = all.iter().filter_map(|lost| {
            let producer = producers.iter().position(|name| *name == lost.producer)?;
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

    /// Whether the node may lack this.
    pub(super) fn cover(&self, lost: &LostRequest) -> bool {
        self.allowed.iter().any(|loss| loss.covers(lost))
    }

    /// What the node lacks beyond what its consumer reported: a sentence for each time, in seconds since `began`.
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
            "at least {} cookies are lost of those that producer {} accepted between {:.1} s and {:.1} s, though the consumer reported \
             {} at most",
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
        let mut tally = Self::default();
        for lost in all {
            match (lost.what, lost.cookies) {
                (LossKind::Gap, cookies) => tally.cookies_in_gaps += cookies.unwrap_or(0),
                (LossKind::End(_), cookies) => {
                    tally.ends += 1;
                    tally.ends_without_bound += u64::from(cookies.is_none());
                    tally.cookies_at_ends_max += cookies.unwrap_or(0);
                }
            }
        }
        tally
    }
}

fn producer_names(at: &Observation) -> impl Iterator<Item = &str> {
    at.of(Role::Producer).map(|observed| observed.name.as_str())
}

/// Makes one of those whose times overlap.
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

    use super::{super::samples, *};

    /// The time of the start by the clock that epochs are of.
    const START_UNIX: u64 = 1_000;

    struct Run {
        start: Instant,
        observations: Vec<Observation>,
    }

    impl Run {
        /// Looks at one producer, one a second from the start on; of each, when its epoch began, in seconds since the start, and how many it
        /// had accepted.
        fn new(looks: impl IntoIterator<Item = (u64, u64)>) -> Self {
            let start = Instant::now();
            let look = |(second, (began, appended)): (u64, (u64, u64))| {
                let at = start + Duration::from_secs(second);
                samples::look(at, START_UNIX + began, appended)
            };
            Self {
                start,
                observations: (0..).zip(looks).map(look).collect(),
            }
        }

        fn allowed(&self, losses: &[String]) -> AllowedLosses {
            let now = ClockPair {
                at: self.start + Duration::from_secs(100),
                unix_micros: (START_UNIX + 100) * 1_000_000,
            };
            AllowedLosses::new(&losses.join("\n"), &self.observations, now)
        }

        /// A request of the one producer that was sent and answered at this time.
        fn lost(&self, millis: u64) -> LostRequest {
            let at = self.start + Duration::from_millis(millis);
            LostRequest {
                producer: 0,
                sent_after: at,
                responded_by: at,
            }
        }

        /// Which of these are allowed, by themselves, and how many sentences are said of all of them together.
        #[track_caller]
        fn check(&self, losses: &[String], millis: &[u64], expected: &[bool], sentences: usize) {
            let allowed = self.allowed(losses);
            let lost: Vec<_> = millis.iter().map(|millis| self.lost(*millis)).collect();
            let found: Vec<_> = lost.iter().map(|lost| allowed.cover(lost)).collect();
            assert_eq!(found, expected, "{allowed:?}");
            let said = allowed.exceeded(&lost, self.start);
            assert_eq!(said.len(), sentences, "{said:?}");
        }
    }

    /// The epoch that began at second `next` tells that at most so many cookies are lost after this sequence of the one that began with
    /// the load.
    fn end(next: u64, sequence: u64, cookies_max: u64) -> String {
        let [epoch, next] = [0, next].map(|second| (START_UNIX + second) * 1_000_000);
        samples::end(epoch, sequence, Some(cookies_max), next)
    }

    fn gap(first: u64, last: u64) -> String {
        samples::gap(START_UNIX * 1_000_000, first, last)
    }

    /// A hundred cookies a second of an epoch that is killed at second 20, when the next begins.
    fn killed_at_20() -> Run {
        Run::new((0..40).map(|second| match second {
            0..20 => (0, second * 100),
            _ => (20, (second - 20) * 100),
        }))
    }

    #[test]
    fn killed_epoch_allows_its_newest_cookies_alone() {
        let run = killed_at_20();
        let losses = [end(20, 1_850, 3)];
        let lost = [1_000, 17_900, 18_000, 19_500, 22_000];
        run.check(&losses, &lost, &[false, false, true, true, false], 0);
    }

    #[test]
    fn kill_that_no_consumer_reported_allows_nothing() {
        let run = killed_at_20();
        run.check(&[], &[100, 19_900], &[false, false], 0);
        let proved = [end(20, 1_850, 0)];
        run.check(&proved, &[100, 19_900], &[false, false], 0);
    }

    #[test]
    fn no_more_is_allowed_than_the_consumer_reported() {
        let run = killed_at_20();
        let lost = [18_100, 18_200, 18_300, 18_400];
        run.check(&[end(20, 1_850, 4)], &lost, &[true; 4], 0);
        run.check(&[end(20, 1_850, 3)], &lost, &[true; 4], 1);
    }

    /// Its whole time was allowed, and every cookie of it.
    #[test]
    fn young_epoch_allows_no_more_than_the_consumer_reported() {
        let run = Run::new((0..5).map(|second| (0, second * 100)));
        let lost = [500, 2_100, 4_100];
        run.check(&[end(5, 350, 2)], &lost, &[false, false, true], 0);
        // A cursor that no look was as early as: the time is not known, the number is.
        run.check(&[end(5, 0, 2)], &lost, &[true, true, true], 1);
    }

    #[test]
    fn end_that_is_reported_again_from_where_the_store_stands_counts_once() {
        let run = killed_at_20();
        let losses = [end(20, 1_850, 2), end(20, 1_750, 102)];
        assert_eq!(run.allowed(&losses).reported.cookies_at_ends_max, 102);
        run.check(&losses, &[16_900, 17_000, 19_000], &[false, true, true], 0);
    }

    #[test]
    fn times_that_overlap_share_what_was_reported() {
        let run = killed_at_20();
        let losses = [gap(1_810, 1_811), end(20, 1_900, 1)];
        let lost = [18_500, 18_600, 19_700];
        run.check(&losses, &lost, &[true; 3], 0);
        run.check(&losses, &[18_500, 18_600, 19_700, 19_800], &[true; 4], 1);
        // Far apart, each has its own.
        let losses = [gap(510, 511), end(20, 1_900, 1)];
        run.check(&losses, &[5_500, 5_600, 19_700], &[true; 3], 0);
        run.check(&losses, &[5_500, 19_700, 19_800], &[true; 3], 1);
    }

    #[test]
    fn end_without_a_bound_allows_what_came_after_its_sequence() {
        let run = killed_at_20();
        let losses = [samples::end(
            START_UNIX * 1_000_000,
            1_850,
            None,
            (START_UNIX + 20) * 1_000_000,
        )];
        assert_eq!(run.allowed(&losses).reported.ends_without_bound, 1);
        run.check(&losses, &[17_900, 18_500, 18_600], &[false, true, true], 0);
    }
}
