use proto::units::{DspId, Epoch, Sequence};

use super::*;
use crate::{batch::Cursor as Position, producers::StreamStart};

fn cursor(epoch: u64, sequence: u64) -> Position {
    Position {
        producer: "p".into(),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        complete: false,
    }
}

/// Epoch, durable and applied position, first number, and end of the lost ones.
fn reported(producers: &Producers, deletions: &Deletions, applied: &mut Applied) -> Vec<[u64; 5]> {
    let positions = positions(producers, deletions, applied).into_iter();
    let numbers = positions.map(|it| {
        let cursor = it.durable.unwrap();
        assert_eq!(cursor.producer_id, "p");
        [
            cursor.epoch,
            cursor.sequence,
            it.applied_sequence,
            it.first_sequence,
            it.lost_until,
        ]
    });
    numbers.collect()
}

#[test]
fn report_has_durable_positions_and_what_this_process_has_lost() {
    let (producers, deletions) = (Producers::default(), Deletions::new(1 << 20));
    let mut applied = Applied::new();
    let mut check = |producers: &Producers, deletions: &Deletions, expected: &[[u64; 5]]| {
        assert_eq!(reported(producers, deletions, &mut applied), expected);
    };
    check(&producers, &deletions, &[]);
    producers.load(vec![cursor(1, 100)]);
    check(&producers, &deletions, &[[1, 100, 100, 101, 0]]);

    let address = producers.register(([127, 0, 0, 1], 1).into(), "http://here");
    let open = |at: &Position, previous: Option<&Position>| {
        let newest = at.sequence;
        let start = StreamStart {
            at,
            newest,
            previous,
        };
        address.open_stream(start).0
    };
    let mut stream = open(&cursor(1, 100), None);
    stream.add_lost(10, Sequence(130));
    stream.advance(&cursor(1, 130), None);
    check(&producers, &deletions, &[[1, 100, 100, 101, 130]]);
    producers.record_commit(&[cursor(1, 130)]);
    check(&producers, &deletions, &[[1, 130, 130, 101, 130]]);
    producers.add_recovered("p", Epoch(1), 9);
    check(&producers, &deletions, &[[1, 130, 130, 101, 130]]);
    producers.add_recovered("p", Epoch(1), 1);
    check(&producers, &deletions, &[[1, 130, 130, 101, 0]]);

    // A deletion that has not taken effect.
    deletions.set_queued([(DspId(1), Some(1))].into(), 1);
    stream.advance(&cursor(1, 140), None);
    producers.record_commit(&[cursor(1, 140)]);
    check(&producers, &deletions, &[[1, 140, 130, 101, 0]]);
    deletions.set_queued([(DspId(1), None)].into(), 1);
    check(&producers, &deletions, &[[1, 140, 140, 101, 0]]);

    // The durable position is of the previous epoch until something of the new one is stored.
    drop(stream);
    let mut stream = open(&cursor(2, 0), Some(&cursor(1, 140)));
    stream.advance(&cursor(2, 7), None);
    check(&producers, &deletions, &[]);
    producers.record_commit(&[cursor(2, 7)]);
    check(&producers, &deletions, &[[2, 7, 7, 1, 0]]);
}
