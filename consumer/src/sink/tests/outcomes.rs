//! Tests of the outcome of each cookie: written, suppressed, expired, queued, or a dead letter.

use proto::units::{DspId, Sequence};

use super::*;
use crate::ttl;

#[tokio::test(start_paused = true)]
async fn expired_cookie_is_rejected_and_uses_no_dsp_slot() {
    let day = Ttls::new(24 * HOUR, [(DspId(9), HOUR)].into());
    let sink = start_with(FakeStore::default(), LIMITS, day);
    let ago = |age: Duration| ttl::before(clock::now(), age).0;
    for (sequence, age, dsp_id) in [(1, 25, 7), (2, 23, 8), (3, 2, 9)] {
        let chunk = chunk(sequence, ago(age * HOUR), &[("u", dsp_id, "b")]);
        let item = Item::Chunk("p".into(), chunk);
        sink.buffer.push(item).await.unwrap();
    }
    let Sink { buffer, ended, .. } = sink;
    drop(buffer);
    ended.await.unwrap().unwrap();
    let counts = settled(&sink.metrics);
    assert_eq!((counts.expired, counts.written), (2, 1));
    assert_eq!(sink.metrics.sink.dsp_slots.get(), 1);
    let batches = sink.store.batches.lock();
    assert_eq!(
        batches.last().unwrap().1[0].sequence,
        Sequence(3),
        "the cursor advances past it"
    );
}

#[tokio::test(start_paused = true)]
async fn commit_waits_until_deferred_cookies_are_in_the_retry_queue() {
    let store = FakeStore {
        failing_dsp: Some(DspId(7)),
        failed_puts: AtomicU32::new(2),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    let chunk = chunk(1, 1, &[("a", 7, "b"), ("a", 8, "b"), ("b", 7, "b")]);
    let item = Item::Chunk("p".into(), chunk);
    sink.buffer.push(item).await.unwrap();
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let events = sink.store.events.lock().join(", ");
    assert_eq!(
        events,
        "write 3, written 3, put 2: false, put 2: false, put 2: true, commit 3, committed 3"
    );
    assert_eq!(
        sink.health.failing_dsps(),
        [(DspId(7), "no right".to_owned())].into()
    );
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.in_retry_queue), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn queued_cookies_are_written_once_if_the_reply_to_their_removal_is_lost() {
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let store = Arc::new(FakeStore {
        lost_removals: AtomicU32::new(2),
        ..FakeStore::default()
    });
    let retry_queue = RetryQueue::new(BTreeSet::new(), Deletions::default(), metrics.sink.clone());
    let batch = batch(&[chunk(1, 1, &[("a", 7, "b"), ("b", 7, "b")])]);
    metrics.sink.ledger.received(2);
    let deferred = DeferredCookies {
        dsp_id: DspId(7),
        why: None,
        indices: vec![0, 1],
    };
    let (full, _) = retry_queue.pack(&batch, &[deferred], |_| true);
    store.put_retry_entries(&full).await.unwrap();
    retry_queue.add_durable(&full);
    let dir = TempDir::new().unwrap();
    let letters = dir.path().join("letters");
    let health = Arc::new(Health::default());
    let retrier = Retrier {
        retry_queue: retry_queue.clone(),
        backlog: store,
        health: Arc::clone(&health),
        dead_letters: DeadLetters::new(letters, 1 << 20, metrics.sink.dead_letters.clone()),
        rejected_dsps: no_rejected_dsps(),
        ttls: no_expiry(),
    };
    let stop = CancellationToken::new();
    let ended = TaskTracker::new().spawn(retrier.run(stop.clone()));
    sleep(Duration::from_secs(60)).await;
    stop.cancel();
    ended.await.unwrap();
    let counts = settled(&metrics);
    assert_eq!((counts.written, counts.unreadable), (2, 0), "{counts:?}");
    assert!(retry_queue.dsps().is_empty() && health.failing_dsps().is_empty());
}

#[tokio::test(start_paused = true)]
async fn time_far_ahead_is_clamped_and_counted() {
    let sink = start(FakeStore::default(), LIMITS);
    for (sequence, accepted) in [(1, u64::MAX), (2, clock::now().0), (3, u64::MAX)] {
        let chunk = chunk(sequence, accepted, &[("u", 1, "b")]);
        let item = Item::Chunk("p".into(), chunk);
        sink.buffer.push(item).await.unwrap();
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    assert_eq!(sink.metrics.sink.clock_clamped.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn duplicate_is_not_written_but_its_cursor_is() {
    let sink = start(FakeStore::default(), LIMITS);
    for (sequence, uid) in [(1, "b"), (2, "b"), (3, "c")] {
        let chunk = chunk(sequence, clock::now().0, &[("u", 1, uid)]);
        let item = Item::Chunk("p".into(), chunk);
        sink.buffer.push(item).await.unwrap();
        sleep(Duration::from_millis(300)).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let batches = sink.store.batches.lock();
    let stored: Vec<_> = batches.iter().map(|(n, c)| (*n, c[0].sequence.0)).collect();
    assert_eq!(stored, [(1, 1), (0, 2), (1, 3)]);
    let counts = settled(&sink.metrics);
    assert_eq!((counts.suppressed, counts.written), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn rejected_cookie_becomes_a_dead_letter_and_blocks_nothing() {
    let store = FakeStore {
        picky: true,
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    for sequence in 1..=8 {
        push(&sink, sequence).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let letters = std::fs::read_to_string(sink.dir.path().join("letters")).unwrap();
    let users: Vec<_> = letters.lines().collect();
    assert_eq!(users.len(), 2, "{letters}");
    assert!(users[0].contains("user-1") && users[1].contains("user-5"));
    assert!(letters.contains("not this one"));
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.rejected), (6, 2));
    assert_eq!(
        sink.metrics
            .sink
            .dead_letters
            .with_label_values(&["written"])
            .get(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn cookies_are_waiting_until_they_are_durable() {
    let store = FakeStore {
        slow: Duration::from_secs(10),
        failed_commits: AtomicU32::new(1),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    for sequence in 1..=3 {
        push(&sink, sequence).await;
    }
    let counts = || sink.metrics.sink.ledger.counts();
    assert_eq!((counts().received, counts().waiting), (3, 3));
    // Written after 10 s, but the commit fails; written again after 20 s and a delay.
    sleep(Duration::from_secs(15)).await;
    assert_eq!((counts().written, counts().waiting), (0, 3));
    assert!(counts().is_balanced());
    push(&sink, 4).await;
    assert_eq!(counts().waiting, 4);
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    settled(&sink.metrics);
}

#[tokio::test(start_paused = true)]
async fn cookie_rejected_only_when_its_batch_is_written_again_becomes_a_dead_letter() {
    let store = FakeStore {
        failed_commits: AtomicU32::new(1),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    for sequence in 1..=4 {
        push(&sink, sequence).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.rejected), (3, 1));
    let letters = std::fs::read_to_string(sink.dir.path().join("letters")).unwrap();
    assert!(letters.contains("user-1"), "{letters}");
}
