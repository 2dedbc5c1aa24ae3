//! The rows of the subscribers, and how far behind each was lately.

use std::{cmp::Reverse, collections::HashMap, time::Duration};

use runtime::status::series::{Rate, Series, short};
use serde::Serialize;
use tokio::time::Instant;

use super::SUBSCRIBERS_MAX;
use crate::{
    log::Stats,
    streams::subscribers::{Call, Snapshot},
};

/// How old the oldest cookie may be that a stream has not taken: a hundred times what it takes when all is well.
const LAGGING_AFTER: Duration = Duration::from_secs(1);

/// One subscriber's queue. Counts are of cookies since its queue was made.
#[derive(Debug, Clone, Serialize)]
pub struct Subscriber {
    /// The name it gave itself.
    pub name: String,
    /// `subscribe` or `get_cookies`.
    pub call: &'static str,
    /// How it is.
    pub state: State,
    /// Sealed cookies that its stream has not taken yet.
    pub lag_cookies: u64,
    /// For how long the oldest of them has been in the log.
    pub lag_seconds: f64,
    /// Handed to its streams, each counted once.
    pub delivered: u64,
    /// The same, of the last second.
    pub delivered_per_second: f64,
    /// Handed to its streams again.
    pub redelivered: u64,
    /// What it will not get.
    pub lost: Lost,
    /// Bytes in flight to it, beside the log.
    pub pinned_bytes: u64,
    /// How often it came back.
    pub resumes: u64,
    /// How often it was cut off for what its connections held.
    pub cut: u64,
}

/// How a subscriber is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has a stream and keeps up.
    Connected,
    /// It has a stream, and what that has not taken is older than a second.
    Lagging,
    /// It has no stream; its queue is remembered.
    Disconnected,
}

/// Cookies a subscriber will not get, by reason.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Lost {
    /// It was further behind than its bound.
    pub queue_bound: u64,
    /// The log had moved on.
    pub log_moved_on: u64,
}

/// How far behind a subscriber was, the oldest value first.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SubscriberHistory<'a> {
    /// Its name.
    name: &'a str,
    /// Its call.
    call: &'static str,
    /// Seconds, as `lag_seconds`; fewer values than elsewhere where it is new.
    lag_seconds: &'a Series,
}

/// What is kept from one sample to the next.
#[derive(Debug, Default)]
pub(super) struct Rows {
    known: HashMap<(Call, String), Known>,
}

#[derive(Debug, Default)]
struct Known {
    delivered: Rate,
    lag_seconds: Series,
}

impl Rows {
    /// The rows of these queues, whose `ages` are those of their positions.
    pub(super) fn sample(
        &mut self,
        queues: Vec<Snapshot>,
        ages: &[Duration],
        stats: &Stats,
        now: Instant,
    ) -> Vec<Subscriber> {
        let mut before = std::mem::take(&mut self.known);
        let mut rows = Vec::with_capacity(queues.len());
        for (queue, age) in queues.into_iter().zip(ages) {
            // Who is forgotten by the producer is forgotten here.
            let key = (queue.call, queue.name.clone());
            let mut known = before.remove(&key).unwrap_or_default();
            let per_second = known.delivered.look(queue.totals.delivered, now);
            let row = Subscriber::of(queue, *age, stats, per_second);
            known.lag_seconds.push(row.lag_seconds);
            self.known.insert(key, known);
            rows.push(row);
        }
        if rows.len() > SUBSCRIBERS_MAX {
            rows.sort_by_key(|row| Reverse(row.lag_cookies));
            rows.truncate(SUBSCRIBERS_MAX);
            rows.sort_by(|a, b| (a.call, &a.name).cmp(&(b.call, &b.name)));
        }
        rows
    }

    /// The history of these rows.
    pub(super) fn history<'a>(&'a self, rows: &'a [Subscriber]) -> Vec<SubscriberHistory<'a>> {
        let calls = [Call::GetCookies, Call::Subscribe];
        let histories = rows.iter().filter_map(|row| {
            let call = calls.into_iter().find(|call| call.label() == row.call)?;
            let known = self.known.get(&(call, row.name.clone()))?;
            Some(SubscriberHistory {
                name: &row.name,
                call: row.call,
                lag_seconds: &known.lag_seconds,
            })
        });
        histories.collect()
    }
}

impl Subscriber {
    fn of(queue: Snapshot, age: Duration, stats: &Stats, delivered_per_second: f64) -> Self {
        let state = if !queue.connected {
            State::Disconnected
        } else if age > LAGGING_AFTER {
            State::Lagging
        } else {
            State::Connected
        };
        let totals = queue.totals;
        Self {
            name: queue.name,
            call: queue.call.label(),
            state,
            lag_cookies: stats.span.next.saturating_sub(queue.position),
            lag_seconds: short(age.as_secs_f64()),
            delivered: totals.delivered,
            delivered_per_second,
            redelivered: totals.redelivered,
            lost: Lost {
                queue_bound: totals.lost_queue_bound,
                log_moved_on: totals.lost_log_moved_on,
            },
            pinned_bytes: queue.in_flight_bytes,
            resumes: totals.streams.saturating_sub(1),
            cut: queue.cuts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        log::{Config, Delivery, GapReason, Log},
        streams::subscribers::{HERE, Lease, Start, Subscribers, TooManySubscribers},
    };

    fn stats(next: u64) -> Stats {
        let log = Log::new(Config {
            epoch: 1,
            bytes_max: 1 << 20,
            chunk_bytes: 4096,
            chunk_age: Duration::from_secs(1),
            idle_after: Duration::from_secs(1),
        });
        let mut stats = log.stats();
        stats.span.next = next;
        stats
    }

    fn join(subscribers: &Subscribers, name: &str) -> Lease {
        let joined = subscribers.join(Call::Subscribe, name, HERE, |_| {
            Start::fresh::<TooManySubscribers>(1)
        });
        joined.unwrap()
    }

    fn skip_seven(lease: &Lease) {
        let gap = Delivery::Gap {
            first: 1,
            last: 7,
            reason: GapReason::QueueBound,
        };
        lease.record(&gap, 0, 7);
    }

    #[test]
    fn row_says_how_its_subscriber_is() {
        let subscribers = Subscribers::new(Duration::from_secs(3600), 10);
        let fine = join(&subscribers, "a fine one");
        skip_seven(&fine);
        let _slow = join(&subscribers, "slow");
        drop(join(&subscribers, "gone"));
        let (mut rows, now) = (Rows::default(), Instant::now());
        let ages = [0.01, 3.0, 2.0].map(Duration::from_secs_f64);
        let shown = rows.sample(subscribers.snapshot(), &ages, &stats(8), now);
        let states: Vec<_> = shown.iter().map(|row| (&*row.name, row.state)).collect();
        let expected = [
            ("a fine one", State::Connected),
            ("gone", State::Disconnected),
            ("slow", State::Lagging),
        ];
        assert_eq!(states, expected);
        assert_eq!((shown[0].lag_cookies, shown[0].lost.queue_bound), (0, 7));
        assert_eq!(shown[1].lag_cookies, 7);
        assert_eq!(rows.history(&shown)[2].lag_seconds.len(), 1);
    }

    #[test]
    fn rows_are_bounded_by_those_furthest_behind_and_the_forgotten_leave_no_history() {
        let subscribers = Subscribers::new(Duration::ZERO, SUBSCRIBERS_MAX + 2);
        let numbers = 0..SUBSCRIBERS_MAX + 2;
        let leases: Vec<_> = numbers
            .map(|number| join(&subscribers, &format!("{number:03}")))
            .collect();
        leases[..2].iter().for_each(skip_seven);
        let sample = |rows: &mut Rows| {
            let queues = subscribers.snapshot();
            let ages = vec![Duration::ZERO; queues.len()];
            rows.sample(queues, &ages, &stats(8), Instant::now())
        };
        let mut rows = Rows::default();
        let shown = sample(&mut rows);
        assert_eq!(shown.len(), SUBSCRIBERS_MAX);
        assert_eq!(shown[0].name, "002");
        drop(leases);
        subscribers.sweep();
        assert!(sample(&mut rows).is_empty());
        assert!(rows.known.is_empty());
    }
}
