//! Tests of the retry queue without a store.

use runtime::metrics::Registry;

use super::*;
use crate::deletions::Deletions;
use crate::{
    batch::tests::{aged_chunk, batch, chunk},
    metrics::Metrics,
};

/// A queue of 1 MiB; DSP 7 is listed.
fn queue(metrics: &Metrics) -> RetryQueue {
    RetryQueue {
        bytes_max: 1 << 20,
        ..RetryQueue::new(
            [DspId(7)].into(),
            Deletions::default(),
            metrics.sink.clone(),
        )
    }
}

fn metrics() -> Metrics {
    Metrics::register(&Registry::new()).unwrap()
}

fn deferred(dsp_id: u32, indices: Vec<u32>) -> DeferredCookies {
    DeferredCookies {
        dsp_id: DspId(dsp_id),
        why: None,
        indices,
    }
}

#[test]
fn cookies_are_read_back_unchanged_after_a_restart() {
    let cookies = [("u1", 7, "a"), ("u2", 9, "b"), ("u3", 7, "ü\"c")];
    let later = [(("u4", 7, "d"), 1_500), (("u5", 7, "e"), 0)];
    let later = aged_chunk(4, 2_000, &later);
    let batch = batch(&[chunk(1, 1_000, &cookies), later]);
    let (first_metrics, second_metrics) = (metrics(), metrics());
    let first = queue(&first_metrics);
    first_metrics.sink.ledger.received(5);
    let indices = vec![3, 0, 4, 2];
    let (full, overflow) = first.pack(&batch, &[deferred(7, indices)], |_| true);
    assert!(overflow.is_empty() && first.dsps().is_empty());
    first.add_durable(&full);
    assert_eq!(first_metrics.sink.ledger.counts().waiting, 1);
    assert_eq!(first.dsps(), [DspId(7)].into());

    let second = queue(&second_metrics);
    let entries: Vec<_> = full.iter().map(|full| full.entry).collect();
    second.load(&entries);
    assert_eq!(second_metrics.sink.ledger.counts().recovered, 4);
    assert!(second.oldest(DspId(9)).is_empty());
    assert_eq!(second.oldest(DspId(7)), entries);
    let chunks = full.iter().map(|full| full.chunk.clone());
    let again = unpack(chunks.collect());
    assert_eq!(again.cursors(), []);
    let mut found: Vec<_> = again.cookies().collect();
    found.sort_unstable_by_key(|cookie| cookie.user_id);
    let times = found.iter().map(|cookie| cookie.accepted);
    assert_eq!(
        times.collect::<Vec<_>>(),
        [1_000, 1_000, 500, 2_000].map(UnixMicros)
    );
    assert_eq!(found, [0, 2, 3, 4].map(|index| batch.cookie(index)));
    second.remove_oldest(DspId(7), entries.len());
    assert!(second.dsps().is_empty() && second.oldest(DspId(7)).is_empty());
    assert_eq!(second_metrics.sink.retry_queue_bytes.get(), 0);
}

#[test]
fn cookies_keep_times_that_are_far_apart() {
    let times = [10 * AGE_MICROS_MAX, AGE_MICROS_MAX + 5, 8 * AGE_MICROS_MAX];
    let chunks = times.map(|time| chunk(1, time, &[(&*format!("u{time}"), 7, "a")]));
    let batch = batch(&chunks);
    let full = pack_dsp(&batch, DspId(7), &[0, 1, 2]);
    let again = unpack(full.into_iter().map(|full| full.chunk).collect());
    let mut found: Vec<u64> = again.cookies().map(|it| it.accepted.0).collect();
    found.sort_unstable();
    assert_eq!(found, [times[1], times[2], times[0]]);
}

/// `count` cookies of one DSP with long buyer uids.
fn long(dsp_id: u32, count: u32) -> (Batch, DeferredCookies) {
    let buyer_uid = "b".repeat(250);
    let users: Vec<_> = (0..count).map(|user| format!("user-{user}")).collect();
    let cookies = users.iter().map(|user| (&**user, dsp_id, &*buyer_uid));
    let cookies: Vec<_> = cookies.collect();
    let batch = batch(&[chunk(1, 1_000, &cookies)]);
    (batch, deferred(dsp_id, (0..count).collect()))
}

#[test]
fn entries_are_bounded_and_their_numbers_increase_despite_the_clock() {
    let metrics = metrics();
    let retry_queue = queue(&metrics);
    let ahead = RetryEntry {
        number: u64::MAX / 2,
        dsp_id: DspId(9),
        cookies: 1,
        deletions: 0,
        bytes: 200,
    };
    retry_queue.load(&[ahead]);
    let (batch, deferred) = long(7, 1_500);
    let (full, _) = retry_queue.pack(&batch, &[deferred], |_| true);
    let cookies: Vec<_> = full.iter().map(|full| full.entry.cookies).collect();
    assert_eq!(cookies, [1_000, 500]);
    let numbers: Vec<_> = full.iter().map(|full| full.entry.number).collect();
    assert_eq!(numbers, [ahead.number + 1, ahead.number + 2]);
}

#[test]
fn cookies_that_do_not_fit_are_rejected_with_the_reason() {
    let metrics = metrics();
    let retry_queue = queue(&metrics);
    let (batch, deferred) = long(7, 3_000);
    let (full, overflow) = retry_queue.pack(&batch, &[deferred], |_| true);
    assert!(full.is_empty());
    assert_eq!(overflow.len(), 3_000);
    let reason = &overflow[0].reason;
    assert!(reason.contains("queue is full"), "{reason}");
}

#[test]
fn unlisted_dsps_without_a_slot_share_half_of_the_queue() {
    let metrics = metrics();
    let retry_queue = queue(&metrics);
    let put = |dsp_id: u32, count: u32| {
        let (batch, deferred) = long(dsp_id, count);
        metrics.sink.ledger.received(u64::from(count));
        let (full, overflow) = retry_queue.pack(&batch, &[deferred], |_| false);
        retry_queue.add_durable(&full);
        overflow.is_empty()
    };
    // Each DSP uses a twentieth of the queue and would fit by itself.
    let accepted = (100..140).filter(|dsp_id| put(*dsp_id, 200)).count();
    assert!((8..10).contains(&accepted), "{accepted}");
    assert!(put(7, 900), "the listed DSP");
}
