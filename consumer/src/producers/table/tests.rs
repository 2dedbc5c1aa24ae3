//! Tests of the transitions of the table.

use proto::units::Epoch;

use super::*;
use crate::clock_offset::ClockOffset;

const HERE: &str = "http://here";

fn cursor(producer: &str, epoch: u64, sequence: u64) -> Cursor {
    Cursor {
        producer: producer.into(),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        complete: false,
    }
}

/// A table.
struct Setup {
    table: Table,
    ports: u16,
}

impl Setup {
    fn new(stored: Vec<Cursor>) -> Self {
        let mut table = Table::default();
        table.load(stored);
        Self { table, ports: 0 }
    }

    fn register(&mut self, origin: &str) -> SocketAddr {
        self.ports += 1;
        let address = SocketAddr::from(([127, 0, 0, 1], self.ports));
        self.table.register(address, origin);
        address
    }

    /// Opens a stream at a new address.
    fn open(&mut self, origin: &str, at: &Cursor) -> SocketAddr {
        let address = self.register(origin);
        self.open_at(address, at, None);
        address
    }

    fn open_at(
        &mut self,
        address: SocketAddr,
        at: &Cursor,
        previous: Option<&Cursor>,
    ) -> Option<ObservedRange> {
        let start = StreamStart {
            at,
            newest: at.sequence,
            previous,
        };
        self.table.open_stream(address, start)
    }

    fn advance(&mut self, cursor: &Cursor, had_advanced: bool) -> AdvanceResult {
        self.table.advance(cursor, None, had_advanced)
    }

    fn close(&mut self, address: SocketAddr, id: &str) {
        self.table.close_stream(address, id, Instant::now());
    }

    fn status(&self, id: &str) -> Option<ProducerStatus> {
        self.table.snapshot(0).producers.get(id).cloned()
    }

    fn lag(&self) -> Option<u64> {
        self.status("p")?.lag_cookies
    }
}

#[test]
fn received_position_is_the_newest_of_all_streams() {
    let mut it = Setup::new(vec![cursor("p", 1, 5), cursor("q", 1, 1)]);
    let [_older, _newer] = [(); 2].map(|()| it.open(HERE, &cursor("p", 1, 5)));
    it.advance(&cursor("p", 1, 9), false);
    let behind = it.advance(&cursor("p", 1, 7), false);
    assert_eq!(behind, AdvanceResult::Normal);
    assert_eq!(
        it.table.cursors(),
        [cursor("p", 1, 9), cursor("q", 1, 1)],
        "the most recently advanced one is first"
    );
}

#[test]
fn producers_that_share_an_id_are_detected_but_a_restart_is_not() {
    let mut it = Setup::new(Vec::new());
    let in_epoch = |epoch| cursor("p", epoch, 1);
    let [first, _second] = [1, 2].map(|epoch| it.open(HERE, &in_epoch(epoch)));
    let normal = AdvanceResult::Normal;
    assert_eq!(it.advance(&in_epoch(1), false), normal);
    assert_eq!(it.advance(&in_epoch(2), false), normal, "a restart");
    let found = |is_first| AdvanceResult::DuplicateId { is_first };
    assert_eq!(it.advance(&in_epoch(1), true), found(true));
    assert_eq!(it.advance(&in_epoch(2), true), found(false));
    assert!(it.status("p").unwrap().has_duplicate);
    it.close(first, "p");
    assert_eq!(it.advance(&in_epoch(2), true), normal);
    assert!(!it.status("p").unwrap().has_duplicate);
}

#[test]
fn producers_that_share_an_id_are_detected_without_cookies() {
    let mut it = Setup::new(Vec::new());
    let mut opened = |epoch| {
        it.open(HERE, &cursor("p", epoch, 0));
        it.advance(&cursor("p", epoch, 0), false)
    };
    assert_eq!([1, 2].map(&mut opened), [AdvanceResult::Normal; 2]);
    let mut heartbeat = |epoch| {
        it.table
            .producer(&"p".into())
            .caught_up(Epoch(epoch), UnixMicros(9))
    };
    assert_eq!(heartbeat(2), AdvanceResult::Normal);
    let found = AdvanceResult::DuplicateId { is_first: true };
    assert_eq!(heartbeat(1), found);
}

#[test]
fn producer_is_removed_unless_a_stream_is_open() {
    let stored = cursor("p", 1, 5);
    let mut it = Setup::new(vec![stored.clone()]);
    let address = it.open(HERE, &stored);
    assert_eq!(it.table.forget("p"), None);
    assert_eq!(it.table.cursors(), std::slice::from_ref(&stored));
    assert_eq!(it.status("p").unwrap().durable, None);
    it.close(address, "p");
    assert_eq!(it.table.forget("p"), Some(stored));
    assert!(it.table.cursors().is_empty());
    assert_eq!(it.table.forget("p"), None);
}

#[test]
fn end_of_an_epoch_is_reported_once_with_its_gaps() {
    let stored = cursor("p", 1, 5);
    let mut it = Setup::new(vec![stored.clone()]);
    let [one, other] = [(); 2].map(|()| it.register(HERE));
    assert_eq!(it.open_at(one, &stored, None), None);
    assert_eq!(it.open_at(other, &stored, None), None);
    let id: Arc<str> = "p".into();
    assert_eq!(
        it.table.producer(&id).add_lost(Epoch(1), 10, Sequence(15)),
        10
    );
    assert_eq!(
        it.table.producer(&id).add_lost(Epoch(1), 5, Sequence(20)),
        15
    );
    let (before, at) = (cursor("p", 1, 30), cursor("p", 2, 0));
    let expected = ObservedRange {
        epoch: Epoch(1),
        from: Sequence(6),
        lost_in_gaps: 15,
        lost_until: Sequence(20),
    };
    assert_eq!(it.open_at(one, &at, Some(&before)), Some(expected));
    let sibling = it.open_at(other, &at, Some(&before));
    assert_eq!(sibling, None, "the sibling reports it");
    assert_eq!(
        it.table.producer(&id).add_lost(Epoch(2), 1, Sequence(0)),
        1,
        "counted per epoch"
    );
    assert_eq!(
        it.table.producer(&id).add_lost(Epoch(1), 100, Sequence(0)),
        100,
        "that epoch has ended"
    );
    let (before, at) = (cursor("p", 2, 30), cursor("p", 3, 0));
    let observed = it.open_at(one, &at, Some(&before));
    assert_eq!(observed.map(|it| it.lost_in_gaps), Some(1));
}

#[test]
fn epoch_observed_by_an_earlier_process_has_an_empty_range() {
    let stored = cursor("p", 1, 5);
    let mut it = Setup::new(vec![stored.clone()]);
    let address = it.register(HERE);
    let observed = it.open_at(address, &cursor("p", 2, 0), Some(&stored));
    assert_eq!(observed, Some(ObservedRange::after(&stored)));
}

#[test]
fn lag_is_the_number_of_known_cookies_that_are_not_durable() {
    let mut it = Setup::new(Vec::new());
    let (address, at) = (it.register(HERE), cursor("p", 1, 100));
    let start = StreamStart {
        at: &at,
        newest: Sequence(500),
        previous: None,
    };
    it.table.open_stream(address, start);
    assert_eq!(it.lag(), Some(400));
    it.table.record_commit(&[cursor("p", 1, 300)]);
    assert_eq!(it.lag(), Some(200));
    it.advance(&cursor("p", 1, 600), false);
    assert_eq!(it.lag(), Some(300));
    it.table.record_commit(&[cursor("p", 1, 600)]);
    assert_eq!(it.lag(), Some(0));
}

#[test]
fn lag_of_a_new_epoch_ignores_the_cursor_of_the_previous_epoch() {
    let mut it = Setup::new(vec![cursor("p", 1, 1_000)]);
    it.open(HERE, &cursor("p", 2, 0));
    it.advance(&cursor("p", 2, 50), false);
    assert_eq!(it.lag(), Some(50));
    it.table.record_commit(&[cursor("p", 2, 20)]);
    assert_eq!(it.lag(), Some(30));
    assert_eq!(
        it.status("p").unwrap().durable,
        Some(cursor("p", 2, 20).position())
    );
}

#[test]
fn producer_is_kept_while_it_has_an_address_or_a_cursor() {
    let mut it = Setup::new(Vec::new());
    let at = cursor("p", 1, 0);
    let [one, other] = [(); 2].map(|()| it.open(HERE, &at));
    it.table.record_commit(&[cursor("p", 1, 7)]);
    it.close(one, "p");
    it.table.unregister(one);
    it.close(other, "p");
    let status = it.status("p").unwrap();
    assert!(status.has_address && status.streams == 0, "{status:?}");
    it.open_at(other, &cursor("next", 1, 0), None);
    let status = it.status("p").unwrap();
    assert!(
        !status.has_address,
        "another producer has the address: {status:?}"
    );
    assert_eq!(status.durable, Some(cursor("p", 1, 7).position()));
    it.table.forget("p");
    assert_eq!(it.status("p"), None);
    it.close(other, "next");
    it.table.unregister(other);
    assert_eq!(it.table.snapshot(0), Snapshot::default());
}

#[test]
fn address_keeps_the_producer_of_its_last_stream() {
    let mut it = Setup::new(Vec::new());
    let address = it.register(HERE);
    it.table.set_error(address, "Connection refused");
    let address_of = |it: &Setup| it.table.snapshot(0).addresses[&address].clone();
    assert_eq!(address_of(&it).error.as_deref(), Some("Connection refused"));
    let at = cursor("p", 7, 41);
    it.open_at(address, &at, None);
    assert!(address_of(&it).is_connected);
    let offset = ClockOffset {
        min: 11_000,
        max: 12_000,
    };
    it.table.get_mut("p").unwrap().offset = Some(offset);
    it.advance(&cursor("p", 7, 50), false);
    it.advance(&cursor("p", 7, 60), true);
    it.close(address, "p");
    let expected = Address {
        origin: HERE.into(),
        producer: Some("p".into()),
        is_connected: false,
        error: None,
        unconfirmed: None,
    };
    assert_eq!(address_of(&it), expected);
    let status = it.status("p").unwrap();
    assert_eq!(status.skew_micros, Some(12_000));
}
