//! Who has booked how much of the slots to come of limits of every call, so that no token takes them all.
//!
//! Of what such a limit lets go within [`MAX_WAIT`], a token may book as much as it leaves to others: own and new requests together are no more
//! than those that nobody has booked then. So one token gets half, two a third each, and there is always room for one more. One call at
//! a time it may book in any case. What goes at once is not bounded here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::catalog::Named;

/// How far ahead a call may be booked that is under a limit of every call.
pub const MAX_WAIT: Duration = Duration::from_secs(30);

/// Moments are told apart by so many nanoseconds; what is booked counts until the end of its part.
const PART: u64 = 100_000_000;

/// What is booked, by the names of limits of every call.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    limits: HashMap<Arc<str>, Holders>,
}

#[derive(Debug, Default)]
struct Holders {
    all: Held,
    of: HashMap<Arc<str>, Held>,
}

/// Requests that are booked for moments to come, by the number of their part.
#[derive(Debug, Default)]
struct Held {
    parts: BTreeMap<u64, u64>,
    requests: u64,
}

/// Most requests of a limit that are booked ahead.
fn room(limit: &Named) -> u64 {
    let rules = limit.rules.iter();
    let rates = rules.map(|placed| placed.rule.limit.algorithm.mean_rate());
    let nanos = u64::try_from(MAX_WAIT.as_nanos()).unwrap_or(u64::MAX);
    rates.map(|rate| rate.requests_in(nanos)).min().unwrap_or(0)
}

impl Ahead {
    /// Whether `by` may book so many more.
    pub(super) fn may_book(&mut self, limit: &Named, by: &str, requests: u64, now: u64) -> bool {
        let Some(holders) = self.limits.get_mut(&limit.name) else {
            return true;
        };
        let Some(own) = holders.of.get_mut(by) else {
            return true;
        };
        own.pass(now);
        holders.all.pass(now);
        // What is left to others once these are booked.
        let booked = holders.all.requests.saturating_add(requests);
        let others_left = room(limit).saturating_sub(booked);
        own.requests == 0 || own.requests.saturating_add(requests) <= others_left
    }

    /// `by` has booked so many for this moment.
    pub(super) fn book(&mut self, limit: &Arc<str>, by: &str, requests: u64, at: u64) {
        let holders = self.limits.entry(Arc::clone(limit)).or_default();
        holders.all.add(requests, at);
        match holders.of.get_mut(by) {
            Some(own) => own.add(requests, at),
            None => {
                let own = holders.of.entry(Arc::from(by)).or_default();
                own.add(requests, at);
            }
        }
    }

    /// `by` has not booked so many for this moment after all.
    pub(super) fn give_back(&mut self, limit: &str, by: &str, requests: u64, at: u64) {
        let Some(holders) = self.limits.get_mut(limit) else {
            return;
        };
        let own = holders.of.get_mut(by);
        let given = own.map_or(0, |own| own.give_back(requests, at));
        holders.all.give_back(given, at);
    }

    /// Forgets what has passed, and limits that are not `kept`.
    pub(super) fn pass(&mut self, now: u64, kept: impl Fn(&Arc<str>) -> bool) {
        self.limits.retain(|limit, holders| {
            holders.all.pass(now);
            holders.of.retain(|_, own| {
                own.pass(now);
                own.requests > 0
            });
            kept(limit) && holders.all.requests > 0
        });
    }
}

impl Held {
    fn add(&mut self, requests: u64, at: u64) {
        self.requests = self.requests.saturating_add(requests);
        let part = self.parts.entry(at.div_ceil(PART)).or_default();
        *part = part.saturating_add(requests);
    }

    /// How many were given back: what has passed is gone.
    fn give_back(&mut self, requests: u64, at: u64) -> u64 {
        let Some(part) = self.parts.get_mut(&at.div_ceil(PART)) else {
            return 0;
        };
        let given = requests.min(*part);
        *part -= given;
        self.requests = self.requests.saturating_sub(given);
        given
    }

    fn pass(&mut self, now: u64) {
        while let Some(first) = self.parts.first_entry()
            && *first.key() <= now / PART
        {
            self.requests = self.requests.saturating_sub(first.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use limits::rules::Rules;

    use super::{
        super::{Counting, Engine, Options, Refused, Target},
        *,
    };

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_booked_counts_until_it_has_passed() {
        let mut held = Held::default();
        for at in [1, PART, PART + 1, 5 * PART] {
            held.add(2, at);
        }
        for (now, expected) in [
            (0, 8),
            (PART - 1, 8),
            (PART, 4),
            (2 * PART, 2),
            (5 * PART, 0),
        ] {
            held.pass(now);
            assert_eq!(held.requests, expected, "{now}");
        }
        assert!(held.parts.is_empty());
    }

    #[test]
    fn what_is_given_back_is_not_booked() {
        let mut ahead = Ahead::default();
        for by in ["one", "two"] {
            ahead.book(&Arc::from("a"), by, 3, PART);
        }
        let booked = |ahead: &Ahead| {
            let of = |by| ahead.limits["a"].of.get(by).map(|own| own.requests);
            (of("one"), of("two"), ahead.limits["a"].all.requests)
        };
        ahead.give_back("a", "one", 2, PART);
        assert_eq!(booked(&ahead), (Some(1), Some(3), 4));
        // What has passed, nobody booked, or is of no limit, changes nothing.
        ahead.give_back("a", "one", 2, 2 * PART);
        ahead.give_back("a", "three", 2, PART);
        ahead.give_back("b", "one", 2, PART);
        assert_eq!(booked(&ahead), (Some(1), Some(3), 4));
        ahead.give_back("a", "one", 2, PART);
        assert_eq!(booked(&ahead), (Some(0), Some(3), 3));
    }

    #[test]
    fn calls_for_many_leave_as_much_to_others_too() {
        let text = "
            [limits.a]
            rules = [{ id = 'peak', rate = '1000/s', burst = 1000 }]
            [limits.whole]
            global = true
            rules = [{ id = 'all', rate = '10/s', burst = 100 }]
        ";
        let start = 1_700_000_000 * SECOND;
        let engine = Engine::new(options(), &Rules::parse(text).unwrap().limits);
        let reserve = |by: &str| {
            let of = [Target {
                limit: "a",
                counter: by,
            }];
            let answered = engine.reserve(Some(by), &of, 100, MAX_WAIT, start);
            answered.map(|it| (it.at - start) / SECOND)
        };
        assert_eq!(reserve("one"), Ok(0));
        assert_eq!(reserve("one"), Ok(10));
        // 200 of 300 would be more than half.
        assert!(reserve("one").is_err());
        assert_eq!(reserve("two"), Ok(20));
    }

    fn options() -> Options {
        Options {
            counters_max: 100,
            counters_bytes_max: usize::MAX,
            feedback_ttl_max: MAX_WAIT,
            counting: Counting::Here,
            is_saved: false,
        }
    }

    #[test]
    fn no_token_books_out_a_limit_of_every_call() {
        let text = "
            [limits.a]
            rules = [{ id = 'peak', rate = '1000/s' }]
            [limits.slow]
            rules = [{ id = 'hour', rate = '1/h' }]
            [limits.whole]
            global = true
            rules = [{ id = 'all', rate = '10/s', burst = 1 }]
        ";
        let start = 1_700_000_000 * SECOND;
        let engine = Engine::new(options(), &Rules::parse(text).unwrap().limits);
        let reserve = |by: &str, limit: &str, now: u64| {
            let of = [Target { limit, counter: by }];
            let answered = engine.reserve(Some(by), &of, 1, 2_880 * MAX_WAIT, now);
            answered.map(|it| it.at)
        };
        let taken = |by: &str, now: u64| {
            let taken = (0..1_000).map_while(|_| reserve(by, "a", now).ok());
            taken.count()
        };
        // Of 300 slots in 30 s one token gets half beside the one of now, the next half of the rest.
        assert_eq!(taken("one", start), 151);
        assert_eq!(taken("two", start), 75);
        let third = reserve("three", "a", start).unwrap();
        assert!(Duration::from_nanos(third - start) < MAX_WAIT);
        // There is room again as slots pass.
        assert!(reserve("one", "a", start + SECOND).is_err());
        assert!(reserve("one", "a", start + 12 * SECOND).is_ok());
        // Nothing is booked farther ahead, whichever limit it would wait for.
        let now = start + 60 * SECOND;
        assert_eq!(reserve("one", "slow", now), Ok(now));
        let Err(Refused::OverMaxWait(slot)) = reserve("one", "slow", now) else {
            panic!("it is booked an hour ahead");
        };
        assert_eq!(slot.binding.unwrap().to_string(), "slow/hour");
        engine.tidy(now);
        assert!(engine.state().ahead.limits.is_empty());
        assert_eq!(taken("one", now + 61 * SECOND), 151);
    }
}
