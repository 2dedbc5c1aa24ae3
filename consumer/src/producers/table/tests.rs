//! Each transition of the table, by a clock that is given.

use super::*;

const HERE: &str = "http://here";

fn cursor(producer: &str, epoch: u64, sequence: u64) -> Cursor {
    Cursor {
        producer: producer.into(),
        epoch,
        sequence,
        complete: false,
    }
}

/// A table, and a stream's own steps in it.
struct Setting {
    table: Table,
    now: Instant,
    ports: u16,
}

impl Setting {
    fn new(stored: Vec<Cursor>) -> Self {
        let mut table = Table::default();
        table.loaded(stored);
        Self {
            table,
            now: Instant::now(),
            ports: 0,
        }
    }

    fn listed(&mut self, origin: &str) -> Key {
        self.ports += 1;
        let address = SocketAddr::from(([127, 0, 0, 1], self.ports));
        self.table.listed(address, origin)
    }

    /// A stream at an address of its own.
    fn open(&mut self, origin: &str, at: &Cursor) -> Key {
        let key = self.listed(origin);
        self.open_at(key, at, None);
        key
    }

    fn open_at(&mut self, key: Key, at: &Cursor, before: Option<&Cursor>) -> Option<ObservedRange> {
        let start = StreamStart {
            at,
            newest: at.sequence,
            before,
        };
        self.table.opened(key, start)
    }

    fn advance(&mut self, cursor: &Cursor, had_advanced: bool) -> AdvanceResult {
        self.table.advanced(cursor, None, had_advanced, self.now)
    }

    fn close(&mut self, key: Key, id: &str) {
        self.table.closed(key, id);
    }

    fn status(&self, id: &str) -> Option<ProducerStatus> {
        self.table.snapshot(self.now).producers.get(id).cloned()
    }

    fn lag(&self) -> Option<u64> {
        self.status("p")?.lag_cookies
    }
}

#[test]
fn newest_position_of_any_stream_counts() {
    let mut it = Setting::new(vec![cursor("p", 1, 5), cursor("q", 1, 1)]);
    let [_older, _newer] = [(); 2].map(|()| it.open(HERE, &cursor("p", 1, 5)));
    it.advance(&cursor("p", 1, 9), false);
    let behind = it.advance(&cursor("p", 1, 7), false);
    assert_eq!(behind, AdvanceResult::Normal);
    assert_eq!(
        it.table.cursors(),
        [cursor("p", 1, 9), cursor("q", 1, 1)],
        "the one that moved is first"
    );
}

#[test]
fn producers_that_share_an_id_are_found_and_a_restart_is_none() {
    let mut it = Setting::new(Vec::new());
    let in_epoch = |epoch| cursor("p", epoch, 1);
    let [first, _second] = [1, 2].map(|epoch| it.open(HERE, &in_epoch(epoch)));
    let alone = AdvanceResult::Normal;
    assert_eq!(it.advance(&in_epoch(1), false), alone);
    assert_eq!(it.advance(&in_epoch(2), false), alone, "a restart");
    let found = |is_first| AdvanceResult::Duplicate { is_first };
    assert_eq!(it.advance(&in_epoch(1), true), found(true));
    assert_eq!(it.advance(&in_epoch(2), true), found(false));
    it.close(first, "p");
    assert_eq!(it.advance(&in_epoch(2), true), alone);
}

#[test]
fn forgotten_unless_a_stream_is_open() {
    let stored = cursor("p", 1, 5);
    let mut it = Setting::new(vec![stored.clone()]);
    let key = it.open(HERE, &stored);
    assert_eq!(it.table.forget("p"), None);
    assert_eq!(it.table.cursors(), std::slice::from_ref(&stored));
    assert_eq!(it.status("p").unwrap().durable, None);
    it.close(key, "p");
    assert_eq!(it.table.forget("p"), Some(stored));
    assert!(it.table.cursors().is_empty());
    assert_eq!(it.table.forget("p"), None);
}

#[test]
fn end_of_an_epoch_is_reported_once_with_the_gaps_that_were_seen_in_it() {
    let stored = cursor("p", 1, 5);
    let mut it = Setting::new(vec![stored.clone()]);
    let [one, other] = [(); 2].map(|()| it.listed(HERE));
    assert_eq!(it.open_at(one, &stored, None), None);
    assert_eq!(it.open_at(other, &stored, None), None);
    let id: Arc<str> = "p".into();
    assert_eq!(it.table.lost(&id, 1, 10), 10);
    assert_eq!(it.table.lost(&id, 1, 5), 15);
    let (before, at) = (cursor("p", 1, 30), cursor("p", 2, 0));
    let expected = ObservedRange {
        epoch: 1,
        from: 6,
        lost_in_gaps: 15,
    };
    assert_eq!(it.open_at(one, &at, Some(&before)), Some(expected));
    let sibling = it.open_at(other, &at, Some(&before));
    assert_eq!(sibling, None, "a sibling has reported it");
    assert_eq!(it.table.lost(&id, 2, 1), 1, "another epoch, another count");
    assert_eq!(it.table.lost(&id, 1, 100), 100, "it is over");
    let (before, at) = (cursor("p", 2, 30), cursor("p", 3, 0));
    let seen = it.open_at(one, &at, Some(&before));
    assert_eq!(seen.map(|seen| seen.lost_in_gaps), Some(1));
}

#[test]
fn epoch_that_an_earlier_process_watched_was_seen_by_it_alone() {
    let stored = cursor("p", 1, 5);
    let mut it = Setting::new(vec![stored.clone()]);
    let key = it.listed(HERE);
    let seen = it.open_at(key, &cursor("p", 2, 0), Some(&stored));
    assert_eq!(seen, Some(ObservedRange::after(&stored)));
}

#[test]
fn lag_is_what_is_known_and_not_durable() {
    let mut it = Setting::new(Vec::new());
    let (key, at) = (it.listed(HERE), cursor("p", 1, 100));
    let start = StreamStart {
        at: &at,
        newest: 500,
        before: None,
    };
    it.table.opened(key, start);
    assert_eq!(it.lag(), Some(400));
    it.table.committed(&[cursor("p", 1, 300)]);
    assert_eq!(it.lag(), Some(200));
    it.advance(&cursor("p", 1, 600), false);
    assert_eq!(it.lag(), Some(300));
    it.table.committed(&[cursor("p", 1, 600)]);
    assert_eq!(it.lag(), Some(0));
}

#[test]
fn lag_in_a_new_epoch_does_not_count_from_the_cursor_of_the_old() {
    let mut it = Setting::new(vec![cursor("p", 1, 1_000)]);
    it.open(HERE, &cursor("p", 2, 0));
    it.advance(&cursor("p", 2, 50), false);
    assert_eq!(it.lag(), Some(50));
    it.table.committed(&[cursor("p", 2, 20)]);
    assert_eq!(it.lag(), Some(30));
    assert_eq!(it.status("p").unwrap().durable, Some((2, 20)));
}

#[test]
fn producer_is_known_while_an_address_reads_from_it_or_it_has_a_cursor() {
    let mut it = Setting::new(Vec::new());
    let at = cursor("p", 1, 0);
    let [one, other] = [(); 2].map(|()| it.open(HERE, &at));
    it.table.committed(&[cursor("p", 1, 7)]);
    it.close(one, "p");
    it.table.unlisted(one);
    it.close(other, "p");
    let status = it.status("p").unwrap();
    assert!(status.is_read && status.streams == 0, "{status:?}");
    it.open_at(other, &cursor("next", 1, 0), None);
    let status = it.status("p").unwrap();
    assert!(!status.is_read, "another is there now: {status:?}");
    assert_eq!(status.durable, Some((1, 7)));
    it.table.forget("p");
    assert_eq!(it.status("p"), None);
    it.close(other, "next");
    it.table.unlisted(other);
    assert_eq!(it.table.snapshot(it.now), Snapshot::default());
}

#[test]
fn address_shows_its_last_stream() {
    let mut it = Setting::new(Vec::new());
    let key = it.listed(HERE);
    it.table.down(key, "Connection refused");
    let shown = |it: &Setting| it.table.snapshot(it.now).addresses[&key.address].clone();
    assert_eq!(shown(&it).why_not.as_deref(), Some("Connection refused"));
    let at = cursor("p", 7, 41);
    it.open_at(key, &at, None);
    assert_eq!(it.table.connected_and_total(), (1, 1));
    let arrival = Arrival {
        accepted_unix_micros: 1_000_000,
        received_unix_micros: 1_012_000,
    };
    let (now, cookies) = (it.now, cursor("p", 7, 50));
    it.table.advanced(&cookies, Some(arrival), false, now);
    it.advance(&cursor("p", 7, 60), true);
    it.close(key, "p");
    let expected = Address {
        listing: key.listing,
        origin: HERE.into(),
        producer: Some("p".into()),
        is_connected: false,
        why_not: None,
    };
    assert_eq!(shown(&it), expected);
    assert_eq!(it.table.connected_and_total(), (0, 1));
    let status = it.status("p").unwrap();
    assert_eq!(status.skew_micros, Some(12_000));
}

#[test]
fn address_that_was_listed_again_is_not_unlisted_by_the_end_of_the_one_before() {
    let mut it = Setting::new(Vec::new());
    let before = it.open(HERE, &cursor("p", 1, 0));
    let again = it.table.listed(before.address, "http://again");
    it.close(before, "p");
    it.table.unlisted(before);
    assert_eq!(it.table.connected_and_total(), (0, 1));
    assert_eq!(it.table.streams("p"), 0);
    it.table.unlisted(again);
    assert_eq!(it.table.connected_and_total(), (0, 0));
}
