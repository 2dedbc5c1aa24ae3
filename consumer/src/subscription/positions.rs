//! How far every producer was received, and which addresses have a stream of it.
//!
//! Two addresses may lead to one producer, which lets only the newest stream of a name live. Which one that is,
//! the producer alone knows; the subscription whose stream it ended sees here that a sibling has another, and
//! stands by instead of taking it back. For a moment both may push: repeats change nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use proto::limits::CURSORS_MAX;
use tokio::{sync::Notify, time::Instant};

use super::ended::Watched;
use crate::{batch::Cursor, losses::Loss};

/// How long a producer in whose place another came is waited for: longer than the outages of a network that it comes back from
/// with nothing lost.
pub const GIVEN_UP_AFTER: Duration = Duration::from_secs(90);

/// How long before a producer went its successor may have come.
const SURGE: Duration = Duration::from_secs(300);

/// Shared by all subscriptions of one process. No lock is held over an await.
#[derive(Debug, Default)]
pub struct Positions {
    state: Mutex<State>,
    /// Told when a stream begins or ends.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    producers: HashMap<Arc<str>, Producer>,
    /// By origin, which producer without a cursor was met there last, and when.
    newcomers: HashMap<Arc<str>, (Arc<str>, Instant)>,
    /// Counts changes, to tell which cursors are the newest.
    changes: u64,
    /// Records that no stream has taken along yet.
    losses: Vec<Loss>,
}

#[derive(Debug, Default)]
struct Producer {
    cursor: Option<Cursor>,
    changed: u64,
    /// Streams of this producer that are open.
    streams: usize,
    said_duplicate: bool,
    /// What this process saw of the life that it watches.
    watched: Option<Watched>,
    /// Where its latest stream was.
    origin: Option<Arc<str>>,
    /// Since when it has no stream, unless this process saw none at all.
    gone_since: Option<Instant>,
    /// Its end was told, although nothing is known of it.
    is_given_up: bool,
}

/// An open stream of one producer; it counts until it is dropped.
#[derive(Debug)]
pub struct OpenStream {
    positions: Arc<Positions>,
    producer: Arc<str>,
    has_advanced: bool,
}

/// What [`OpenStream::advance`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advanced {
    /// Nothing out of the ordinary.
    Alone,
    /// Another stream with the same producer id but another epoch is open and advances by turns with this one:
    /// two producers have one id.
    Duplicate {
        /// Whether this was found of this id for the first time.
        is_news: bool,
    },
}

impl Positions {
    /// Starts where the store stands.
    #[must_use]
    pub fn new(cursors: Vec<Cursor>) -> Self {
        let producers = cursors.into_iter().map(|cursor| {
            let producer = Producer {
                cursor: Some(cursor.clone()),
                ..Producer::default()
            };
            (cursor.producer, producer)
        });
        Self {
            state: Mutex::new(State {
                producers: producers.collect(),
                ..State::default()
            }),
            changed: Notify::new(),
        }
    }

    /// All cursors, the most recently moved first, at most as many as a request may carry.
    #[must_use]
    pub fn cursors(&self) -> Vec<Cursor> {
        let state = self.lock();
        let mut known: Vec<_> = state
            .producers
            .values()
            .filter_map(|producer| producer.cursor.as_ref().map(|c| (producer.changed, c)))
            .collect();
        known.sort_by_key(|(changed, _)| std::cmp::Reverse(*changed));
        known.truncate(CURSORS_MAX);
        known
            .into_iter()
            .map(|(_, cursor)| cursor.clone())
            .collect()
    }

    /// Notes a stream of a producer, which one of the addresses of `origin` leads to.
    #[must_use]
    pub fn opened(self: &Arc<Self>, producer: &Arc<str>, origin: &str) -> OpenStream {
        let mut state = self.lock();
        let entry = state.producers.entry(Arc::clone(producer)).or_default();
        entry.streams += 1;
        entry.gone_since = None;
        entry.is_given_up = false;
        if entry.origin.as_deref() != Some(origin) {
            entry.origin = Some(origin.into());
        }
        drop(state);
        self.changed.notify_waiters();
        OpenStream {
            positions: Arc::clone(self),
            producer: Arc::clone(producer),
            has_advanced: false,
        }
    }

    /// How far a producer was received.
    #[must_use]
    pub fn cursor(&self, producer: &str) -> Option<Cursor> {
        self.lock().producers.get(producer)?.cursor.clone()
    }

    /// How many streams of a producer are open.
    #[must_use]
    pub fn streams(&self, producer: &str) -> usize {
        let state = self.lock();
        let producer = state.producers.get(producer);
        producer.map_or(0, |producer| producer.streams)
    }

    /// Forgets a producer, unless a stream of it is open. Returns how far it was received, unless that was told before.
    pub fn forget(&self, producer: &str) -> Option<Cursor> {
        let mut state = self.lock();
        let is_gone = |producer: &Producer| producer.streams == 0;
        if state.producers.get(producer).is_some_and(is_gone) {
            let forgotten = state.producers.remove(producer)?;
            return forgotten.cursor.filter(|_| !forgotten.is_given_up);
        }
        None
    }

    /// Notes that a producer that nothing was known of has come at `origin`.
    pub fn came(&self, origin: &str, producer: &Arc<str>, now: Instant) {
        let newcomer = (Arc::clone(producer), now);
        self.lock().newcomers.insert(origin.into(), newcomer);
    }

    /// How far the producers were received that have been gone for [`GIVEN_UP_AFTER`] without a goodbye, and in whose place
    /// another came that is here, beside the name of that one. Each is returned once, unless it comes back, and each comes
    /// in the place of one.
    pub fn give_up(&self, now: Instant) -> Vec<(Cursor, Arc<str>)> {
        let State {
            producers,
            newcomers,
            ..
        } = &mut *self.lock();
        newcomers.retain(|_, (newcomer, _)| {
            let newcomer = producers.get(newcomer);
            newcomer.is_some_and(|producer| producer.streams > 0)
        });
        let given_up = producers.values_mut().filter_map(|producer| {
            let since = producer.gone_since?;
            let origin = producer.origin.as_ref()?;
            let (successor, came) = newcomers.get(origin)?;
            let is_gone = now.saturating_duration_since(since) >= GIVEN_UP_AFTER;
            let is_replaced = *came + SURGE >= since;
            let cursor = producer.cursor.as_ref().filter(|it| !it.complete)?;
            if !is_gone || !is_replaced || producer.is_given_up {
                return None;
            }
            let given_up = (cursor.clone(), Arc::clone(successor));
            newcomers.remove(origin);
            producer.is_given_up = true;
            Some(given_up)
        });
        given_up.collect()
    }

    /// Leaves a record for whichever stream looks next.
    pub fn leave(&self, loss: Loss) {
        self.lock().losses.push(loss);
    }

    /// Takes the records that were left.
    #[must_use]
    pub fn take_losses(&self) -> Vec<Loss> {
        std::mem::take(&mut self.lock().losses)
    }

    /// Returns when no stream of this producer is open.
    pub async fn wait_released(&self, producer: &str) {
        self.wait_streams(producer, |streams| streams == 0).await;
    }

    async fn wait_streams(&self, producer: &str, enough: fn(usize) -> bool) {
        loop {
            let changed = self.changed.notified();
            if enough(self.streams(producer)) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenStream {
    /// Returns when there is another stream of the same producer.
    pub async fn wait_sibling(&self) {
        let positions = &self.positions;
        positions
            .wait_streams(&self.producer, |streams| streams > 1)
            .await;
    }

    /// Begins to watch a life from sequence `from` on, unless a sibling watches it already. Returns what was seen of the
    /// life before; of one that this process did not watch, nothing after `before`, the cursor that it began with.
    ///
    /// For each life only one of the streams that come upon it gets an answer, so that its end is told once.
    pub fn watch(&self, epoch: u64, from: u64, before: Option<&Cursor>) -> Option<Watched> {
        let mut state = self.positions.lock();
        let producer = state.producers.get_mut(&self.producer)?;
        if producer
            .watched
            .is_some_and(|watched| watched.epoch == epoch)
        {
            return None;
        }
        let seen = producer.watched.replace(Watched::since(epoch, from));
        let before = before?;
        let seen = seen.filter(|seen| seen.epoch == before.epoch);
        Some(
            seen.unwrap_or_else(|| Watched::since(before.epoch, before.sequence.saturating_add(1))),
        )
    }

    /// Notes cookies of a life that will not come; returns how many there are by now.
    pub fn lost(&self, epoch: u64, cookies: u64) -> u64 {
        let mut state = self.positions.lock();
        let producer = state.producers.get_mut(&self.producer);
        let watched = producer.and_then(|producer| producer.watched.as_mut());
        let Some(watched) = watched.filter(|watched| watched.epoch == epoch) else {
            return cookies;
        };
        watched.lost_in_gaps = watched.lost_in_gaps.saturating_add(cookies);
        watched.lost_in_gaps
    }

    /// Notes what was pushed. To be called after the push: a stream that begins meanwhile then repeats what is
    /// on its way, and misses nothing.
    pub fn advance(&mut self, cursor: &Cursor) -> Advanced {
        let mut state = self.positions.lock();
        state.changes += 1;
        let changes = state.changes;
        let had_advanced = std::mem::replace(&mut self.has_advanced, true);
        let Some(producer) = state.producers.get_mut(&self.producer) else {
            return Advanced::Alone;
        };
        producer.changed = changes;
        let known = producer.cursor.get_or_insert_with(|| cursor.clone());
        // This stream has set its own epoch before, and somebody else another one since.
        let is_duplicate = had_advanced && producer.streams > 1 && known.epoch != cursor.epoch;
        known.advance(cursor);
        if is_duplicate {
            let is_news = !std::mem::replace(&mut producer.said_duplicate, true);
            Advanced::Duplicate { is_news }
        } else {
            Advanced::Alone
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = self.positions.lock();
        if let Some(producer) = state.producers.get_mut(&self.producer) {
            producer.streams -= 1;
            if producer.streams == 0 {
                producer.gone_since = Some(Instant::now());
            }
        }
        drop(state);
        self.positions.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "http://here";

    fn cursor(producer: &str, sequence: u64) -> Cursor {
        Cursor {
            producer: producer.into(),
            epoch: 1,
            sequence,
            complete: false,
        }
    }

    #[test]
    fn newest_position_of_any_stream_counts() {
        let stored = vec![cursor("p", 5), cursor("q", 1)];
        let positions = Arc::new(Positions::new(stored));
        let (mut older, mut newer) = (
            positions.opened(&"p".into(), HERE),
            positions.opened(&"p".into(), HERE),
        );
        newer.advance(&cursor("p", 9));
        assert_eq!(older.advance(&cursor("p", 7)), Advanced::Alone);
        assert_eq!(positions.cursors(), [cursor("p", 9), cursor("q", 1)]);
    }

    #[test]
    fn producers_that_share_an_id_are_found_and_a_restart_is_none() {
        let positions = Arc::new(Positions::default());
        let in_epoch = |epoch| Cursor {
            epoch,
            ..cursor("p", 1)
        };
        let (mut first, mut second) = (
            positions.opened(&"p".into(), HERE),
            positions.opened(&"p".into(), HERE),
        );
        assert_eq!(first.advance(&in_epoch(1)), Advanced::Alone);
        assert_eq!(second.advance(&in_epoch(2)), Advanced::Alone, "a restart");
        let found = |is_news| Advanced::Duplicate { is_news };
        assert_eq!(first.advance(&in_epoch(1)), found(true));
        assert_eq!(second.advance(&in_epoch(2)), found(false));
        drop(first);
        assert_eq!(second.advance(&in_epoch(2)), Advanced::Alone);
    }

    #[test]
    fn forgotten_unless_a_stream_is_open() {
        let positions = Arc::new(Positions::new(vec![cursor("p", 5)]));
        let open = positions.opened(&"p".into(), HERE);
        assert_eq!(positions.forget("p"), None);
        assert_eq!(positions.cursors(), [cursor("p", 5)]);
        drop(open);
        assert_eq!(positions.forget("p"), Some(cursor("p", 5)));
        assert!(positions.cursors().is_empty());
    }

    #[test]
    fn producer_that_is_gone_for_long_is_given_up_once_where_another_came() {
        let stored = vec![cursor("seen", 5), cursor("never seen", 6)];
        let positions = Arc::new(Positions::new(stored));
        let open = |producer: &str, origin| positions.opened(&producer.into(), origin);
        let given_up = |after: Duration| {
            let given_up = positions.give_up(Instant::now() + after);
            let producers = given_up.into_iter();
            let names = producers.map(|(cursor, successor)| (cursor, successor.to_string()));
            names.collect::<Vec<_>>()
        };
        let mut stream = open("seen", HERE);
        stream.advance(&cursor("seen", 8));
        drop(open("elsewhere", "http://there"));
        let mut parted = open("parted", HERE);
        parted.advance(&Cursor {
            complete: true,
            ..cursor("parted", 1)
        });
        drop(parted);
        let mut next = open("next", HERE);
        next.advance(&cursor("next", 1));
        positions.came(HERE, &"next".into(), Instant::now());
        assert_eq!(given_up(GIVEN_UP_AFTER), [], "it is there");
        drop(stream);
        assert_eq!(given_up(GIVEN_UP_AFTER / 2), [], "it may come back");
        let expected = (cursor("seen", 8), "next".to_owned());
        assert_eq!(given_up(GIVEN_UP_AFTER), std::slice::from_ref(&expected));
        assert_eq!(given_up(GIVEN_UP_AFTER), [], "it is told");
        drop(open("seen", HERE));
        assert_eq!(
            given_up(GIVEN_UP_AFTER),
            [],
            "another is in the place of one"
        );
        positions.came(HERE, &"next".into(), Instant::now());
        assert_eq!(given_up(GIVEN_UP_AFTER), [expected]);
        assert_eq!(positions.forget("seen"), None, "it is told");
        positions.came(HERE, &"next".into(), Instant::now());
        drop(next);
        assert_eq!(given_up(GIVEN_UP_AFTER), [], "nobody is in its own place");
        let unseen = cursor("never seen", 6);
        assert_eq!(positions.forget("never seen"), Some(unseen));
    }

    #[tokio::test(start_paused = true)]
    async fn producer_is_not_given_up_for_one_that_came_long_before() {
        let positions = Arc::new(Positions::new(vec![cursor("p", 5)]));
        let stream = positions.opened(&"p".into(), HERE);
        let _added = positions.opened(&"added".into(), HERE);
        positions.came(HERE, &"added".into(), Instant::now());
        tokio::time::advance(SURGE + Duration::from_secs(1)).await;
        drop(stream);
        let given_up = || positions.give_up(Instant::now() + GIVEN_UP_AFTER).len();
        assert_eq!(given_up(), 0);
        let _next = positions.opened(&"next".into(), HERE);
        positions.came(HERE, &"next".into(), Instant::now());
        assert_eq!(given_up(), 1);
    }

    #[test]
    fn end_of_a_life_is_told_once_with_the_gaps_that_were_seen_in_it() {
        let stored = cursor("p", 5);
        let positions = Arc::new(Positions::new(vec![stored.clone()]));
        let (one, other) = (
            positions.opened(&"p".into(), HERE),
            positions.opened(&"p".into(), HERE),
        );
        assert_eq!(one.watch(1, 6, None), None);
        assert_eq!((one.lost(1, 10), other.lost(1, 5)), (10, 15));
        let before = cursor("p", 30);
        let seen = one.watch(2, 1, Some(&before));
        let lost_in_gaps = 15;
        assert_eq!(
            seen.map(|seen| (seen.from, seen.lost_in_gaps)),
            Some((6, lost_in_gaps))
        );
        assert_eq!(
            other.watch(2, 1, Some(&before)),
            None,
            "a sibling has told it"
        );
        assert_eq!(one.lost(2, 1), 1, "another life, another count");
        one.lost(1, 100);
        let before = Cursor { epoch: 2, ..before };
        assert_eq!(
            one.watch(3, 1, Some(&before)).map(|seen| seen.lost_in_gaps),
            Some(1)
        );
    }

    #[test]
    fn life_that_an_earlier_process_watched_was_seen_by_it_alone() {
        let positions = Arc::new(Positions::new(vec![cursor("p", 5)]));
        let open = positions.opened(&"p".into(), HERE);
        let seen = open.watch(2, 1, Some(&cursor("p", 5)));
        assert_eq!(seen, Some(Watched::since(1, 6)));
    }

    #[tokio::test]
    async fn waiting_ends_when_streams_open_and_close() {
        let positions = Arc::new(Positions::new(Vec::new()));
        let first = positions.opened(&"p".into(), HERE);
        let open = async { positions.opened(&"p".into(), HERE) };
        let ((), second) = tokio::join!(first.wait_sibling(), open);
        let close = async { drop((first, second)) };
        tokio::join!(positions.wait_released("p"), close);
        assert_eq!(positions.streams("p"), 0);
    }
}
