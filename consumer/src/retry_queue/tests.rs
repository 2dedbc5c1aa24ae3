use runtime::metrics::Registry;

use super::*;
use crate::{
    batch::tests::{aged_chunk, batch, chunk},
    metrics::Metrics,
};

/// A queue of 1 MiB in which DSP 7 is listed.
fn queue(metrics: &Metrics) -> RetryQueue {
    RetryQueue {
        bytes_max: 1 << 20,
        ..RetryQueue::new([7].into(), metrics.retry_queue.clone())
    }
}

fn metrics() -> Metrics {
    Metrics::register(&Registry::new()).unwrap()
}

fn deferred(dsp_id: u32, indices: Vec<u32>) -> DeferredCookies {
    DeferredCookies {
        dsp_id,
        why: None,
        indices,
    }
}

#[test]
fn cookies_come_back_as_they_were_also_after_a_restart() {
    let cookies = [("u1", 7, "a"), ("u2", 9, "b"), ("u3", 7, "ü\"c")];
    let later = [(("u4", 7, "d"), 1_500), (("u5", 7, "e"), 0)];
    let later = aged_chunk(4, 2_000, &later);
    let batch = batch(&[chunk(1, 1_000, &cookies), later]);
    let (of_first, of_second) = (metrics(), metrics());
    let first = queue(&of_first);
    of_first.sink.ledger.received(5);
    let indices = vec![3, 0, 4, 2];
    let (full, overflow) = first.pack(&batch, &[deferred(7, indices)], |_| true);
    assert!(overflow.is_empty() && first.dsps().is_empty());
    first.put(&full);
    assert_eq!(of_first.sink.ledger.counts().waiting, 1);
    assert_eq!(first.dsps(), [7].into());

    let second = queue(&of_second);
    let entries: Vec<_> = full.iter().map(|full| full.entry).collect();
    second.load(&entries);
    assert_eq!(of_second.sink.ledger.counts().recovered, 4);
    assert!(second.oldest(9).is_empty());
    assert_eq!(second.oldest(7), entries);
    let chunks = full.iter().map(|full| full.chunk.clone());
    let again = unpack(chunks.collect());
    assert_eq!(again.cursors(), []);
    let mut found: Vec<_> = again.cookies().collect();
    found.sort_unstable_by_key(|cookie| cookie.user_id);
    let times = found.iter().map(|cookie| cookie.accepted_unix_micros);
    assert_eq!(times.collect::<Vec<_>>(), [1_000, 1_000, 500, 2_000]);
    assert_eq!(found, [0, 2, 3, 4].map(|index| batch.cookie(index)));
    second.done(7, entries.len());
    assert!(second.dsps().is_empty() && second.oldest(7).is_empty());
    assert_eq!(of_second.retry_queue.bytes.get(), 0);
}

/// So many cookies of one DSP, with long buyer uids.
#[test]
fn cookies_of_very_different_times_keep_them() {
    let times = [10 * AGE_MICROS_MAX, AGE_MICROS_MAX + 5, 8 * AGE_MICROS_MAX];
    let chunks = times.map(|time| chunk(1, time, &[(&*format!("u{time}"), 7, "a")]));
    let batch = batch(&chunks);
    let full = pack_dsp(&batch, 7, &[0, 1, 2]);
    let again = unpack(full.into_iter().map(|full| full.chunk).collect());
    let mut found: Vec<u64> = again.cookies().map(|it| it.accepted_unix_micros).collect();
    found.sort_unstable();
    assert_eq!(found, [times[1], times[2], times[0]]);
}

fn long(dsp_id: u32, count: u32) -> (Batch, DeferredCookies) {
    let buyer_uid = "b".repeat(250);
    let users: Vec<_> = (0..count).map(|user| format!("user-{user}")).collect();
    let cookies = users.iter().map(|user| (&**user, dsp_id, &*buyer_uid));
    let cookies: Vec<_> = cookies.collect();
    let batch = batch(&[chunk(1, 1_000, &cookies)]);
    (batch, deferred(dsp_id, (0..count).collect()))
}

#[test]
fn entries_are_bounded_and_numbers_grow_whatever_the_clock() {
    let metrics = metrics();
    let retry_queue = queue(&metrics);
    let ahead = Entry {
        number: u64::MAX / 2,
        dsp_id: 9,
        cookies: 1,
        bytes: 200,
    };
    retry_queue.load(&[ahead]);
    let (batch, what) = long(7, 1_500);
    let (full, _) = retry_queue.pack(&batch, &[what], |_| true);
    let cookies: Vec<_> = full.iter().map(|full| full.entry.cookies).collect();
    assert_eq!(cookies, [1_000, 500]);
    let numbers: Vec<_> = full.iter().map(|full| full.entry.number).collect();
    assert_eq!(numbers, [ahead.number + 1, ahead.number + 2]);
}

#[test]
fn cookies_without_room_come_back_with_the_reason() {
    let metrics = metrics();
    let retry_queue = queue(&metrics);
    let (batch, what) = long(7, 3_000);
    let (full, overflow) = retry_queue.pack(&batch, &[what], |_| true);
    assert!(full.is_empty());
    assert_eq!(overflow.len(), 3_000);
    let reason = &overflow[0].reason;
    assert!(reason.contains("queue is full"), "{reason}");
}

#[test]
fn unlisted_dsps_without_a_slot_leave_half_of_the_room() {
    let metrics = metrics();
    let retry_queue = queue(&metrics);
    let put = |dsp_id: u32, count: u32| {
        let (batch, what) = long(dsp_id, count);
        metrics.sink.ledger.received(u64::from(count));
        let (full, overflow) = retry_queue.pack(&batch, &[what], |_| false);
        retry_queue.put(&full);
        overflow.is_empty()
    };
    // Each by itself would have room; a twentieth of all is one's.
    let taken = (100..140).filter(|dsp_id| put(*dsp_id, 200)).count();
    assert!((8..10).contains(&taken), "{taken}");
    assert!(put(7, 900), "the one that is listed");
}
