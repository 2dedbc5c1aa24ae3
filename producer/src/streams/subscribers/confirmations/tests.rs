//! Tests of confirmations with examples, and against a model with the sequence numbers sent to a node.

use std::{collections::BTreeSet, iter};

use proptest::prelude::*;

use super::*;
use crate::log::GapReason;

/// The account of a subscriber whose first stream began at `joined`.
fn account(joined: u64) -> Account {
    let joined = Sequence(joined);
    let mut account = Account::new(joined);
    account.begin(joined);
    account
}

/// The state of the node `n`, which is not a subscriber now.
fn state(confirmations: &Confirmations, sequence: u64) -> Confirmed {
    let sequence = Sequence(sequence);
    confirmations.states(iter::empty(), sequence, sequence)["n"]
}

#[test]
fn thousands_of_confirmations_keep_the_lost_ranges_of_earlier_subscribers() {
    let mut confirmations = Confirmations::default();
    let mut earlier = account(1);
    earlier.lose(Sequence(1), Sequence(10), GapReason::Evicted);
    earlier.deliver(Sequence(11), Sequence(1_000));
    confirmations.confirm("n", Sequence(1_000), Sequence(1_000), &earlier);
    let mut later = account(1_001);
    later.lose(Sequence(1_001), Sequence(4_999), GapReason::Evicted);
    for sequence in 5_000..8_000 {
        later.deliver(Sequence(sequence), Sequence(sequence));
        confirmations.confirm("n", Sequence(sequence), Sequence(sequence), &later);
    }
    for (sequence, expected) in [
        (1, Confirmed::Unknown),
        (10, Confirmed::Unknown),
        (11, Confirmed::Yes),
        (1_000, Confirmed::Yes),
        (1_001, Confirmed::Unknown),
        (4_999, Confirmed::Unknown),
        (5_000, Confirmed::Yes),
        (7_999, Confirmed::Yes),
        (8_000, Confirmed::Unknown),
    ] {
        assert_eq!(state(&confirmations, sequence), expected, "{sequence}");
    }
    let lost = &confirmations.nodes["n"].received.lost;
    assert_eq!(
        lost,
        &[
            (Sequence(1), Sequence(10)),
            (Sequence(1_001), Sequence(4_999))
        ]
    );
}

#[test]
fn sequences_before_a_dropped_range_are_unknown() {
    let mut confirmations = Confirmations::default();
    let mut next = 1;
    for _ in 0..4 {
        let mut account = account(next);
        for _ in 0..LOST_RANGES_MAX {
            account.lose(Sequence(next), Sequence(next), GapReason::Evicted);
            account.deliver(Sequence(next + 1), Sequence(next + 1));
            next += 2;
        }
        confirmations.confirm("n", Sequence(next - 1), Sequence(next - 1), &account);
    }
    let range = |number: usize| 2 * number as u64 + 1;
    let first_kept = range(4 * LOST_RANGES_MAX - RANGES_MAX);
    assert_eq!(state(&confirmations, first_kept - 1), Confirmed::Yes);
    assert_eq!(state(&confirmations, first_kept - 3), Confirmed::Unknown);
    assert_eq!(state(&confirmations, next - 2), Confirmed::Unknown);
    assert_eq!(state(&confirmations, next - 1), Confirmed::Yes);
}

#[test]
fn subscriber_without_confirmations_counts_only_while_it_is_a_subscriber() {
    let mut confirmations = Confirmations::default();
    let mut account = account(5);
    confirmations.joined("n", &account);
    account.deliver(Sequence(5), Sequence(9));
    let state_of_subscriber = |confirmations: &Confirmations, sequence| {
        let sequence = Sequence(sequence);
        let subscribers = iter::once(("n", account.received()));
        confirmations.states(subscribers, sequence, sequence)["n"]
    };
    let state_4 = state_of_subscriber(&confirmations, 4);
    assert_eq!(state_4, Confirmed::NotConcerned);
    assert_eq!(state_of_subscriber(&confirmations, 9), Confirmed::NotYet);
    assert!(
        confirmations
            .states(iter::empty(), Sequence(9), Sequence(9))
            .is_empty()
    );
    assert_eq!(confirmations.positions("n"), None);

    assert!(confirmations.confirm("n", Sequence(9), Sequence(8), &account));
    assert_eq!(state_of_subscriber(&confirmations, 8), Confirmed::Yes);
    assert_eq!(state_of_subscriber(&confirmations, 9), Confirmed::NotYet);
    assert_eq!(state(&confirmations, 9), Confirmed::Unknown);
    assert_eq!(confirmations.positions("n"), Some([9, 8].map(Sequence)));
}

#[test]
fn reconnected_node_keeps_what_it_has_carried_out_unless_it_is_sent_again() {
    let mut confirmations = Confirmations::default();
    let mut account = account(1);
    account.deliver(Sequence(1), Sequence(9));
    confirmations.confirm("n", Sequence(9), Sequence(9), &account);
    account.begin(Sequence(10));
    confirmations.joined("n", &account);
    account.deliver(Sequence(10), Sequence(12));
    assert!(confirmations.confirm("n", Sequence(12), Sequence(0), &account));
    assert_eq!(confirmations.positions("n"), Some([12, 9].map(Sequence)));
    // The node has lost its store or a fraction of it.
    account.begin(Sequence(5));
    confirmations.joined("n", &account);
    assert_eq!(confirmations.positions("n"), Some([4, 4].map(Sequence)));
    confirmations.confirm("n", Sequence(2), Sequence(0), &account);
    assert_eq!(confirmations.positions("n"), Some([2, 2].map(Sequence)));
}

#[test]
fn node_absent_for_its_retention_is_forgotten() {
    let mut confirmations = Confirmations::default();
    confirmations.confirm("n", Sequence(0), Sequence(0), &account(1));
    let later = Instant::now() + RETENTION;
    confirmations.sweep(later, |_| true);
    confirmations.sweep(later + RETENTION - Duration::from_secs(1), |_| false);
    assert_eq!(confirmations.nodes.len(), 1);
    confirmations.sweep(later + RETENTION, |_| false);
    assert_eq!((confirmations.nodes.len(), confirmations.evicted), (0, 0));
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Sent(u64),
    Lost(u64),
    /// The node is removed, and joins again this far after its last position, or before it.
    JoinedAgain {
        skipped: u64,
        repeated: u64,
    },
    /// The stream begins this far before its position.
    Resumed(u64),
    /// The node confirms positions this far before the position of the stream.
    Confirmed {
        durable: u64,
        applied: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1..9_u64).prop_map(Event::Sent),
        (1..9_u64).prop_map(Event::Lost),
        (0..5_u64, 0..5_u64)
            .prop_map(|(skipped, repeated)| Event::JoinedAgain { skipped, repeated }),
        (0..9_u64).prop_map(Event::Resumed),
        (0..3_u64, 0..3_u64).prop_map(|(durable, applied)| Event::Confirmed { durable, applied }),
    ]
}

proptest! {
    #[test]
    fn nothing_is_confirmed_that_was_not_sent_and_carried_out(
        events in prop::collection::vec(event(), 1..40),
    ) {
        let mut confirmations = Confirmations::default();
        let mut account = account(1);
        let (mut next, mut has_applied) = (1, 0);
        // Sent to the current or an earlier subscriber of the node, and not lost since.
        let mut sent = BTreeSet::new();
        for event in events {
            match event {
                Event::Sent(count) => {
                    account.deliver(Sequence(next), Sequence(next + count - 1));
                    sent.extend(next..next + count);
                    next += count;
                }
                Event::Lost(count) => {
                    account.lose(Sequence(next), Sequence(next + count - 1), GapReason::Evicted);
                    sent.retain(|it| *it < next || *it >= next + count);
                    next += count;
                }
                Event::JoinedAgain { skipped, repeated } => {
                    next = (next + skipped).saturating_sub(repeated).max(1);
                    account = self::account(next);
                    confirmations.joined("n", &account);
                    has_applied = has_applied.min(next - 1);
                }
                Event::Resumed(count) => {
                    next = next.saturating_sub(count).max(1);
                    account.begin(Sequence(next));
                    confirmations.joined("n", &account);
                    has_applied = has_applied.min(next - 1);
                }
                Event::Confirmed { durable, applied } => {
                    let durable = (next - 1).saturating_sub(durable);
                    let applied = durable.saturating_sub(applied);
                    has_applied = has_applied.max(applied);
                    confirmations.confirm("n", Sequence(durable), Sequence(applied), &account);
                }
            }
            let subscribers = || iter::once(("n", account.received()));
            for sequence in 1..next + 9 {
                let states = confirmations.states(subscribers(), Sequence(sequence), Sequence(sequence));
                if states["n"] == Confirmed::Yes {
                    prop_assert!(sequence <= has_applied && sent.contains(&sequence), "{sequence}");
                }
            }
        }
    }
}
