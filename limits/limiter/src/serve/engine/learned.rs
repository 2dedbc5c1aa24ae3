//! What partners' answers taught: not before a moment, or so many until then. Only ever less than the limits allow, and for a while.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::Counter;

/// Most counters of which something is learned at once.
pub(super) const FEEDBACK_TTL_MAX: usize = 100_000;

/// How long a partner that refuses without saying until when is left alone: this, and twice as long each further time in a row.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(1);

/// How often it is looked for what is over: of the most counters this takes some milliseconds, under the lock.
const PASS_INTERVAL: u64 = 10_000_000_000;

/// The longest such pause.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What a partner's answer said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said {
    /// The status of its answer.
    pub status: u16,
    /// Not before so long.
    pub retry_after: Option<Duration>,
    /// So many more within so long.
    pub left: Option<(u64, Duration)>,
}

/// So many requests until a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Lesson {
    until: u64,
    left: u64,
}

/// Most lessons of one counter; of more, the two that end nearest to each other become one, the stricter of both.
const LESSONS_MAX: usize = 4;

/// What is learned of one counter.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Held {
    /// In the order of their ends; one that ends later leaves more.
    lessons: Vec<Lesson>,
    /// How often in a row it was refused without a time.
    refusals: u8,
}

impl Held {
    fn add(&mut self, new: Lesson, now: u64) {
        let covers = |it: &Lesson, other: &Lesson| it.until >= other.until && it.left <= other.left;
        self.lessons
            .retain(|it| it.until > now && !covers(&new, it));
        if self.lessons.iter().any(|it| covers(it, &new)) {
            return;
        }
        let place = self.lessons.partition_point(|it| it.until < new.until);
        self.lessons.insert(place, new);
        if self.lessons.len() > LESSONS_MAX {
            let gaps = self.lessons.windows(2).zip(0..);
            let nearest = gaps.min_by_key(|(two, _)| two[1].until - two[0].until);
            let nearest = nearest.map_or(0, |(_, index)| index);
            let left = self.lessons.remove(nearest).left;
            self.lessons[nearest].left = left;
        }
    }

    /// Has everything end earlier by so much, as the clock is set back.
    pub(super) fn set_back(&mut self, nanos: u64) {
        for lesson in &mut self.lessons {
            lesson.until = lesson.until.saturating_sub(nanos);
        }
    }

    /// Whether it is of use: a lesson holds, or the next refusal would be in a row with its own.
    fn is_kept(&self, now: u64) -> bool {
        let more = if self.refusals > 0 {
            nanos(PAUSE_MAX)
        } else {
            0
        };
        let end = self.lessons.last().map_or(0, |it| it.until);
        end.saturating_add(more) > now
    }
}

/// What is learned of all counters: [`FEEDBACK_TTL_MAX`] at most. Half of these places are shared out to all limits alike, and the other half is for
/// those that come first.
#[derive(Debug)]
pub(super) struct Learned {
    of: HashMap<Counter, Held, foldhash::fast::RandomState>,
    /// When it was looked for what is over.
    passed_at: u64,
    /// How many of them each limit has.
    of_limits: HashMap<Arc<str>, usize>,
    /// How many limits there are.
    limits: usize,
    longest: u64,
    /// Whose lessons changed since somebody asked; `None` where nobody asks.
    changed: Option<HashSet<Counter>>,
}

impl Learned {
    pub(super) fn new(longest: Duration, is_saved: bool) -> Self {
        Self {
            of: HashMap::default(),
            passed_at: 0,
            of_limits: HashMap::new(),
            limits: 0,
            longest: nanos(longest),
            changed: is_saved.then(HashSet::new),
        }
    }

    /// Takes in what an answer said; false when there is no room for it, and when it said nothing of use.
    pub(super) fn hear(&mut self, counter: &Counter, said: Said, now: u64) -> bool {
        let mut refusals = 0;
        if let Some(held) = self.of.get_mut(counter) {
            // The row ends with an answer that is not a refusal.
            if !matches!(said.status, 429 | 503) && std::mem::take(&mut held.refusals) > 0 {
                self.has_changed(counter);
            }
            let held = &self.of[counter];
            refusals = if held.is_kept(now) { held.refusals } else { 0 };
        }
        let times = [said.retry_after.map(|wait| (0, wait)), said.left];
        let times = times.into_iter().flatten();
        // A time that is over says nothing.
        let mut told: Vec<_> = times.filter(|(_, wait)| !wait.is_zero()).collect();
        if said.status == 429 && !told.iter().any(|(left, _)| *left == 0) {
            // It refused, and said nothing of when it would not.
            let pause = PAUSE_MIN * 2_u32.pow(u32::from(refusals.min(6)));
            refusals = refusals.saturating_add(1);
            told.push((0, pause.min(PAUSE_MAX)));
        }
        if told.is_empty() {
            return false;
        }
        let longest = self.longest;
        let Some(held) = self.held(counter) else {
            return false;
        };
        held.refusals = refusals;
        for (left, wait) in told {
            let until = now.saturating_add(nanos(wait).min(longest));
            held.add(Lesson { until, left }, now);
        }
        self.has_changed(counter);
        true
    }

    /// Takes in what was known before; false when there is no room for it.
    pub(super) fn put(&mut self, counter: Counter, known: Held) -> bool {
        let held = self.held(&counter);
        held.map(|held| *held = known).is_some()
    }

    /// Calls `each` for what changed since the last time: `None` where nothing is known any more.
    pub(super) fn take_changes(&mut self, mut each: impl FnMut(&Counter, Option<&Held>)) {
        for counter in self.changed.iter_mut().flat_map(std::mem::take) {
            each(&counter, self.of.get(&counter));
        }
    }

    fn has_changed(&mut self, counter: &Counter) {
        if let Some(changed) = &mut self.changed {
            changed.insert(counter.clone());
        }
    }

    /// What is learned of a counter, from now on; `None` when there is no room for it.
    fn held(&mut self, counter: &Counter) -> Option<&mut Held> {
        if !self.of.contains_key(counter) {
            let of_limit = self.of_limits.entry(Arc::clone(&counter.0)).or_default();
            let own = FEEDBACK_TTL_MAX / 2 / self.limits.max(1);
            if self.of.len() >= FEEDBACK_TTL_MAX / 2 && *of_limit >= own {
                return None;
            }
            *of_limit += 1;
        }
        Some(self.of.entry(counter.clone()).or_default())
    }

    /// The moment before which so many may not go.
    pub(super) fn from(&self, of: &[Counter], requests: u64, now: u64) -> u64 {
        if self.of.is_empty() {
            return 0;
        }
        let held = of.iter().filter_map(|counter| self.of.get(counter));
        let lessons = held.flat_map(|held| &held.lessons);
        let forbid = lessons.filter(|it| it.until > now && it.left < requests);
        forbid.map(|it| it.until).max().unwrap_or(0)
    }

    /// The fewest requests that partners' answers leave, and until when.
    pub(super) fn left(&self, of: &[Counter], now: u64) -> Option<(u64, u64)> {
        let held = of.iter().filter_map(|counter| self.of.get(counter));
        let lessons = held.flat_map(|held| &held.lessons);
        let holding = lessons.filter(|it| it.until > now);
        let least = holding.min_by_key(|it| (it.left, u64::MAX - it.until))?;
        Some((least.left, least.until))
    }

    /// So many go at `at`.
    pub(super) fn take(&mut self, of: &[Counter], requests: u64, at: u64) {
        if self.of.is_empty() {
            return;
        }
        for counter in of {
            let Some(held) = self.of.get_mut(counter) else {
                continue;
            };
            for lesson in held.lessons.iter_mut().filter(|it| it.until > at) {
                lesson.left = lesson.left.saturating_sub(requests);
            }
            self.has_changed(counter);
        }
    }

    /// The same while it is asked whether they may go at all; returns the ends of the lessons that it is taken from, each of which has to
    /// leave so many.
    pub(super) fn hold(&mut self, of: &[Counter], requests: u64, at: u64) -> Vec<u64> {
        let held = of.iter().filter_map(|counter| self.of.get(counter));
        let lessons = held.flat_map(|held| &held.lessons);
        let untils = lessons.filter(|it| it.until > at).map(|it| it.until);
        let untils = untils.collect();
        self.take(of, requests, at);
        untils
    }

    /// So many that were held do not go, of the lessons with these ends.
    pub(super) fn let_go(&mut self, of: &[Counter], requests: u64, untils: &[u64]) {
        for counter in of.iter().filter(|_| !untils.is_empty()) {
            let Some(held) = self.of.get_mut(counter) else {
                continue;
            };
            for lesson in held.lessons.iter_mut() {
                if untils.contains(&lesson.until) {
                    lesson.left = lesson.left.saturating_add(requests);
                }
            }
            self.has_changed(counter);
        }
    }

    /// Forgets what is over, once in a while.
    pub(super) fn pass(&mut self, now: u64) {
        if now.saturating_sub(self.passed_at) >= PASS_INTERVAL {
            self.forget(now);
        }
    }

    /// Forgets what is over.
    pub(super) fn forget(&mut self, now: u64) {
        if now > self.passed_at {
            self.passed_at = now;
            self.keep(|_, held| held.is_kept(now));
        }
    }

    /// Forgets what was learned of limits that are gone; there are so many now.
    pub(super) fn change(&mut self, limits: usize, is_gone: impl Fn(&str) -> bool) {
        self.limits = limits;
        self.keep(|limit, _| !is_gone(limit));
    }

    fn keep(&mut self, is_kept: impl Fn(&str, &Held) -> bool) {
        let gone = self.of.extract_if(|(limit, _), held| !is_kept(limit, held));
        for (counter, _) in gone {
            if let Some(of_limit) = self.of_limits.get_mut(&counter.0) {
                *of_limit -= 1;
            }
            if let Some(changed) = &mut self.changed {
                changed.insert(counter);
            }
        }
    }

    /// Of how many counters something is learned.
    #[cfg(test)]
    pub(super) fn counters(&self) -> usize {
        self.of.len()
    }

    /// Of how many counters of one limit something is learned.
    pub(super) fn counters_of(&self, limit: &str) -> usize {
        self.of_limits.get(limit).copied().unwrap_or(0)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn counter() -> [Counter; 1] {
        [(Arc::from("a"), Arc::from("k"))]
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn only_less_is_learned_and_it_expires() {
        let mut learned = Learned::new(seconds(100), false);
        let of = counter();
        let left = |left, wait| Said {
            status: 200,
            left: Some((left, seconds(wait))),
            ..Said::default()
        };
        assert!(learned.hear(&of[0], left(5, 10), 0));
        assert_eq!(learned.from(&of, 5, 0), 0);
        assert_eq!(learned.from(&of, 6, 0), 10 * SECOND);
        learned.take(&of, 3, SECOND);
        assert_eq!(learned.from(&of, 3, SECOND), 10 * SECOND);
        // More is not believed before the time is over.
        assert!(learned.hear(&of[0], left(50, 5), SECOND));
        assert_eq!(learned.from(&of, 3, SECOND), 10 * SECOND);
        assert_eq!(learned.from(&of, 100, 10 * SECOND), 0);
        assert!(learned.hear(&of[0], left(50, 5), 10 * SECOND));
        assert_eq!(learned.from(&of, 50, 10 * SECOND), 0);
        // No answer closes a counter for longer than is set.
        assert!(learned.hear(&of[0], left(0, 1_000_000), 20 * SECOND));
        assert_eq!(learned.from(&of, 1, 20 * SECOND), 120 * SECOND);
        learned.pass(120 * SECOND);
        assert_eq!(learned.counters(), 0);
    }

    #[test]
    fn refusals_without_a_time_are_waited_for_longer_each_time_in_a_row() {
        let mut learned = Learned::new(seconds(3_600), false);
        let of = counter();
        let said = Said {
            status: 429,
            ..Said::default()
        };
        let mut now = 0;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(learned.hear(&of[0], said, now));
            assert_eq!(learned.from(&of, 1, now), now + wait * SECOND);
            // The next goes when the pause is over, and is refused as well.
            now += wait * SECOND;
        }
        let nothing = Said {
            status: 200,
            ..Said::default()
        };
        assert!(!learned.hear(&of[0], nothing, now));
        assert!(learned.hear(&of[0], said, now));
        assert_eq!(learned.from(&of, 1, now), now + SECOND);
        assert!(!Learned::new(seconds(1), false).hear(&of[0], nothing, 0));
        let told = Said {
            retry_after: Some(seconds(7)),
            ..said
        };
        let mut learned = Learned::new(seconds(3_600), false);
        assert!(learned.hear(&of[0], told, 0));
        assert_eq!(learned.from(&of, 1, 0), 7 * SECOND);
    }

    #[test]
    fn what_is_said_of_a_short_time_does_not_hold_for_a_longer_one() {
        let mut learned = Learned::new(seconds(3_600), false);
        let of = counter();
        let left = |left, wait| Said {
            status: 200,
            left: Some((left, seconds(wait))),
            ..Said::default()
        };
        let refused = Said {
            status: 429,
            ..Said::default()
        };
        assert!(learned.hear(&of[0], left(4_000, 3_500), 0));
        assert!(learned.hear(&of[0], refused, 0));
        assert_eq!(learned.from(&of, 1, 0), SECOND);
        learned.take(&of, 3_990, SECOND);
        assert!(learned.hear(&of[0], left(5, 10), SECOND));
        assert_eq!(learned.from(&of, 5, SECOND), 0);
        assert_eq!(learned.from(&of, 6, SECOND), 11 * SECOND);
        assert_eq!(learned.from(&of, 11, SECOND), 3_500 * SECOND);
        // Both of one answer count.
        let both = Said {
            retry_after: Some(seconds(2)),
            ..left(3, 20)
        };
        assert!(learned.hear(&of[0], both, SECOND));
        assert_eq!(learned.from(&of, 1, SECOND), 3 * SECOND);
        assert_eq!(learned.from(&of, 4, SECOND), 21 * SECOND);
        // Of many the nearest become the stricter of both.
        for wait in 1..100 {
            learned.hear(&of[0], left(1_000 + wait, 100 * wait), SECOND);
        }
        assert_eq!(learned.of[&of[0]].lessons.len(), LESSONS_MAX);
        assert_eq!(learned.from(&of, 4, SECOND), 21 * SECOND);
        assert_eq!(learned.from(&of, 11, SECOND), 3_501 * SECOND);
    }

    #[test]
    fn refusal_whose_time_is_over_is_waited_for_as_one_without() {
        let over = Duration::ZERO;
        for (retry_after, left) in [(Some(over), None), (None, Some((0, over)))] {
            let said = Said {
                status: 429,
                retry_after,
                left,
            };
            let mut learned = Learned::new(seconds(3_600), false);
            assert!(learned.hear(&counter()[0], said, 0));
            assert!(learned.hear(&counter()[0], said, SECOND));
            assert_eq!(learned.from(&counter(), 1, SECOND), 3 * SECOND);
        }
    }

    #[test]
    fn counters_of_one_limit_leave_the_others_their_room() {
        let mut learned = Learned::new(seconds(10), false);
        learned.change(4, |_| false);
        let said = Said {
            status: 429,
            ..Said::default()
        };
        let mut hear = |limit: usize, counter: usize| {
            let [limit, counter] = [limit, counter].map(|it| Arc::from(it.to_string()));
            let counter = (limit, counter);
            learned.hear(&counter, said, 0)
        };
        assert_eq!(
            (0..FEEDBACK_TTL_MAX).filter(|it| hear(0, *it)).count(),
            50_000
        );
        assert_eq!(
            (0..FEEDBACK_TTL_MAX).filter(|it| hear(1, *it)).count(),
            12_500
        );
        // What is known is heard of again.
        assert!(hear(0, 1));
        learned.change(4, |limit| limit == "0");
        assert_eq!(
            (learned.counters_of("0"), learned.counters_of("1")),
            (0, 12_500)
        );
        // Once in a while.
        learned.pass(PASS_INTERVAL);
        assert_eq!(learned.counters(), 12_500);
        learned.pass(100 * SECOND);
        assert_eq!((learned.counters(), learned.counters_of("1")), (0, 0));
        // Their places are taken again.
        let counter = (Arc::from("1"), Arc::from("again"));
        assert!(learned.hear(&counter, said, 100 * SECOND));
        assert_eq!(learned.counters(), 1);
    }
}
