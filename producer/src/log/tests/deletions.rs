//! Tests of deletions, which begin chunks.

use proto::wire::Scope;
use tokio::sync::oneshot;

use super::{super::Deletion, *};

fn deletion(sequence: u64, until: Option<UnixMicros>) -> Vec<Deletion> {
    vec![Deletion {
        scope: Scope::Match(user(sequence), DspId(7)),
        until,
    }]
}

fn delete(log: &Log, sequence: u64) -> oneshot::Receiver<Sequence> {
    log.append_deletions(deletion(sequence, None)).unwrap()
}

/// The records that a reader gets immediately, by chunk: sequence number, time, and whether the record is a deletion.
fn records(reader: &mut Reader) -> Vec<Vec<(u64, UnixMicros, bool)>> {
    let mut chunks = Vec::new();
    while let Some(Delivery::Chunk { chunk, first }) = take(reader) {
        let chunk = chunk.cookies_from(first);
        let time = chunk.header().accepted;
        let records = (chunk.header().first_sequence.0..).zip(chunk.records());
        let records = records.map(|(sequence, record)| {
            let record = record.unwrap();
            let accepted = record.accepted(time);
            (sequence, accepted, record.cookie().is_none())
        });
        chunks.push(records.collect());
    }
    chunks
}

#[test]
fn deletion_begins_the_next_chunk_and_is_not_older_than_earlier_matches() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    append(&log, 1).unwrap();
    let mut deleted = delete(&log, 3);
    append(&log, 2).unwrap();
    assert!(deleted.try_recv().is_err(), "it waits for the next chunk");
    let accepted_before = log.now();
    seal(&log);
    assert_eq!(deleted.try_recv(), Ok(Sequence(3)));
    append(&log, 4).unwrap();
    seal(&log);
    let chunks = records(&mut reader);
    let kinds = chunks.iter().map(|chunk| chunk.iter().map(|it| it.2));
    let kinds: Vec<Vec<bool>> = kinds.map(Iterator::collect).collect();
    assert_eq!(kinds, [vec![false, false], vec![true, false]]);
    assert!(chunks[1][0].1 >= accepted_before);
}

#[test]
fn deletion_is_appended_immediately_when_nothing_is_open() {
    let log = Log::new(CONFIG);
    assert_eq!(delete(&log, 1).try_recv(), Ok(Sequence(1)));
    assert_eq!(log.stats().appended, 1);
}

#[test]
fn many_deletions_do_not_seal_a_chunk_early() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    append(&log, 1).unwrap();
    let mut last = None;
    for sequence in 2..=2_000 {
        last = Some(delete(&log, sequence));
    }
    assert_eq!(log.span().next, Sequence(1), "nothing was sealed");
    seal(&log);
    assert_eq!(last.unwrap().try_recv(), Ok(Sequence(2_000)));
    log.close();
    let chunks = records(&mut reader);
    let deletions: usize = chunks.iter().map(Vec::len).sum::<usize>() - 1;
    assert_eq!(deletions, 1_999);
    let sizes: Vec<usize> = chunks.iter().map(Vec::len).collect();
    let full = &sizes[1..sizes.len() - 1];
    assert!(
        full.len() > 1 && full.iter().all(|records| *records > 100),
        "{sizes:?}"
    );
}

#[test]
fn deletion_of_an_earlier_time_keeps_that_time() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    let until = log.now().before(3_600_000_000);
    append(&log, 1).unwrap();
    log.append_deletions(deletion(2, Some(until))).unwrap();
    log.close();
    let chunks = records(&mut reader);
    assert_eq!(
        chunks[1],
        [(2, until, true)],
        "closing appends pending deletions"
    );
}

#[test]
fn closed_log_rejects_deletions() {
    let log = Log::new(CONFIG);
    log.close();
    assert!(log.append_deletions(deletion(1, None)).is_err());
    assert_eq!(log.stats().appended, 0);
    assert!(
        log.append_deletions(Vec::new())
            .unwrap()
            .try_recv()
            .is_err()
    );
}
