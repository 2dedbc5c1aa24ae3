//! Future slots of global limits booked by each token, bounded so that no token books them all.
//!
//! A global limit allows a number of requests during [`MAX_WAIT`]. A token can book at most as many of them as remain free for
//! other tokens. One token can thus book half of the requests, or two tokens a third each, and another token always finds free
//! slots. Every token may book at least one call. Calls that proceed immediately are not bounded here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::catalog::CatalogLimit;

/// Maximum time that a call under a global limit is booked ahead.
pub const MAX_WAIT: Duration = Duration::from_secs(30);

/// Resolution in nanoseconds: a booking expires at the end of its interval.
const INTERVAL: u64 = 100_000_000;

/// Bookings by token. They count under every global limit.
#[derive(Debug, Default)]
pub(super) struct Bookings {
    tokens: HashMap<Arc<str>, BookedRequests>,
}

/// Booked requests, by the number of their interval.
#[derive(Debug, Default)]
struct BookedRequests {
    intervals: BTreeMap<u64, u64>,
    requests: u64,
}

/// Requests that a limit allows during [`MAX_WAIT`].
fn capacity(limit: &CatalogLimit) -> u64 {
    let rules = limit.rules.iter();
    let rates = rules.map(|it| it.rule.limit.algorithm.mean_rate());
    let nanos = u64::try_from(MAX_WAIT.as_nanos()).unwrap_or(u64::MAX);
    rates.map(|rate| rate.requests_in(nanos)).min().unwrap_or(0)
}

impl Bookings {
    /// Whether the token may book `requests` more under a global limit. Visits all tokens of the token file.
    pub(super) fn may_book(
        &mut self,
        limit: &CatalogLimit,
        token: &str,
        requests: u64,
        now: u64,
    ) -> bool {
        let mut booked = requests;
        for of_token in self.tokens.values_mut() {
            of_token.expire(now);
            booked = booked.saturating_add(of_token.requests);
        }
        let own = self.tokens.get(token).map_or(0, |own| own.requests);
        let free = capacity(limit).saturating_sub(booked);
        own == 0 || own.saturating_add(requests) <= free
    }

    /// Books `requests` at `at`.
    pub(super) fn book(&mut self, token: &str, requests: u64, at: u64) {
        match self.tokens.get_mut(token) {
            Some(own) => own.add(requests, at),
            None => {
                let own = self.tokens.entry(Arc::from(token)).or_default();
                own.add(requests, at);
            }
        }
    }

    /// Releases a booking of `requests` at `at`, unless it has expired.
    pub(super) fn release(&mut self, token: &str, requests: u64, at: u64) {
        if let Some(own) = self.tokens.get_mut(token) {
            own.release(requests, at);
        }
    }

    /// Removes expired bookings.
    pub(super) fn expire(&mut self, now: u64) {
        self.tokens.retain(|_, own| {
            own.expire(now);
            own.requests > 0
        });
    }
}

impl BookedRequests {
    fn add(&mut self, requests: u64, at: u64) {
        self.requests = self.requests.saturating_add(requests);
        let interval = self.intervals.entry(at.div_ceil(INTERVAL)).or_default();
        *interval = interval.saturating_add(requests);
    }

    fn release(&mut self, requests: u64, at: u64) {
        if let Some(interval) = self.intervals.get_mut(&at.div_ceil(INTERVAL)) {
            let released = requests.min(*interval);
            *interval -= released;
            self.requests = self.requests.saturating_sub(released);
        }
    }

    fn expire(&mut self, now: u64) {
        while let Some(first) = self.intervals.first_entry()
            && *first.key() <= now / INTERVAL
        {
            self.requests = self.requests.saturating_sub(first.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use limits::rules::Rules;

    use super::{
        super::{CallError, Engine, Options, Target},
        *,
    };

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn booking_expires_at_the_end_of_its_interval() {
        let mut booked = BookedRequests::default();
        for at in [1, INTERVAL, INTERVAL + 1, 5 * INTERVAL] {
            booked.add(2, at);
        }
        for (now, expected) in [
            (0, 8),
            (INTERVAL - 1, 8),
            (INTERVAL, 4),
            (2 * INTERVAL, 2),
            (5 * INTERVAL, 0),
        ] {
            booked.expire(now);
            assert_eq!(booked.requests, expected, "{now}");
        }
        assert!(booked.intervals.is_empty());
    }

    #[test]
    fn released_booking_does_not_count() {
        let mut bookings = Bookings::default();
        for token in ["one", "two"] {
            bookings.book(token, 3, INTERVAL);
        }
        let booked =
            |bookings: &Bookings| ["one", "two"].map(|token| bookings.tokens[token].requests);
        bookings.release("one", 2, INTERVAL);
        assert_eq!(booked(&bookings), [1, 3]);
        // The interval or token has no bookings.
        bookings.release("one", 2, 2 * INTERVAL);
        bookings.release("three", 2, INTERVAL);
        assert_eq!(booked(&bookings), [1, 3]);
        bookings.release("one", 2, INTERVAL);
        assert_eq!(booked(&bookings), [0, 3]);
    }

    #[test]
    fn large_calls_leave_half_of_the_slots_to_others() {
        let text = "
            [limits.a]
            rules = [{ id = 'peak', rate = '1000/s', burst = 1000 }]
            [limits.whole]
            global = true
            rules = [{ id = 'all', rate = '10/s', burst = 100 }]
        ";
        let start = 1_700_000_000 * SECOND;
        let engine = Engine::new(options(), &Rules::parse(text).unwrap().limits);
        let reserve = |token: &str| {
            let targets = [Target {
                limit: "a".to_owned(),
                counter: token.to_owned(),
            }];
            let slot = engine.reserve(Some(token), &targets, 100, MAX_WAIT, start);
            slot.map(|it| (it.at - start) / SECOND)
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
            counted_by_server: false,
        }
    }

    #[test]
    fn token_cannot_book_all_slots_of_a_global_limit() {
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
        let reserve = |token: &str, limit: &str, now: u64| {
            let targets = [Target {
                limit: limit.to_owned(),
                counter: token.to_owned(),
            }];
            let slot = engine.reserve(Some(token), &targets, 1, 2_880 * MAX_WAIT, now);
            slot.map(|it| it.at)
        };
        let reserve_all = |token: &str, now: u64| {
            let slots = (0..1_000).map_while(|_| reserve(token, "a", now).ok());
            slots.count()
        };
        // 300 slots in 30 s: the first token gets the immediate one and half of the others, the next token half of the rest.
        assert_eq!(reserve_all("one", start), 151);
        assert_eq!(reserve_all("two", start), 75);
        let third = reserve("three", "a", start).unwrap();
        assert!(Duration::from_nanos(third - start) < MAX_WAIT);
        // Expired bookings free capacity.
        assert!(reserve("one", "a", start + SECOND).is_err());
        assert!(reserve("one", "a", start + 12 * SECOND).is_ok());
        // The bound on the wait applies to every limit of the call.
        let now = start + 60 * SECOND;
        assert_eq!(reserve("one", "slow", now), Ok(now));
        let Err(CallError::OverMaxWait(slot)) = reserve("one", "slow", now) else {
            panic!("it is booked an hour ahead");
        };
        assert_eq!(slot.binding.unwrap().to_string(), "slow/hour");
        engine.tidy(now);
        assert!(engine.state().bookings.tokens.is_empty());
        assert_eq!(reserve_all("one", now + 61 * SECOND), 151);
    }
}
