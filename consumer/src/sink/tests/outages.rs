//! Tests of the sink with stores that fail temporarily or permanently, hang, or are read-only.

use super::*;

#[tokio::test(start_paused = true)]
async fn failed_batch_is_repeated_and_all_cookies_are_stored_at_the_end() {
    let failures = AtomicU32::new(5);
    let store = FakeStore {
        failures,
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_millis(300)).await;
    assert!(sink.health.store_down().unwrap().contains("for now"));
    for sequence in 2..=6 {
        push(&sink, sequence).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let batches = sink.store.batches.lock();
    assert_eq!(batches.iter().map(|(cookies, _)| cookies).sum::<usize>(), 6);
    assert_eq!(batches.last().unwrap().1[0].sequence.0, 6);
    assert_eq!(sink.metrics.sink.store_errors.get(), 5);
    assert_eq!(settled(&sink.metrics).written, 6);
    assert_eq!(sink.health.store_down(), None);
}

#[tokio::test(start_paused = true)]
async fn store_that_does_not_respond_is_reported_after_a_timeout() {
    let store = FakeStore {
        slow: Duration::from_secs(60),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_millis(900)).await;
    assert_eq!(sink.health.store_down().as_deref(), Some("not opened yet"));
    sleep(Duration::from_secs(1)).await;
    let why = sink.health.store_down().unwrap();
    assert!(why.contains("no response for 1s; check --store"), "{why}");
    sleep(Duration::from_secs(4)).await;
    let why = sink.health.store_down();
    assert_eq!(why.as_deref(), Some("no response for 5s"));
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    assert_eq!(sink.health.store_down(), None);
    assert_eq!(sink.metrics.sink.store_errors.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn hanging_store_needs_a_restart_until_it_responds() {
    let store = FakeStore {
        slow: Duration::from_secs(60),
        hang_timeout: Some(Duration::from_secs(30)),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_secs(29)).await;
    assert_eq!(sink.health.needs_restart(), None);
    sleep(Duration::from_secs(2)).await;
    let why = "no response for 30s; restart the consumer";
    assert_eq!(sink.health.store_down().as_deref(), Some(why));
    assert_eq!(sink.health.needs_restart(), Some(format!("store: {why}")));
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    assert_eq!(sink.health.needs_restart(), None);
    assert_eq!(settled(&sink.metrics).written, 1);
}

#[tokio::test(start_paused = true)]
async fn broken_store_ends_the_writer() {
    let store = FakeStore {
        broken: true,
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    let ended = sink.ended.await.unwrap();
    assert!(matches!(ended, Err(Failure::Broken(_))), "{ended:?}");
    let restart = sink.health.needs_restart();
    assert_eq!(restart.as_deref(), Some("store: for good"));
}

#[tokio::test(start_paused = true)]
async fn read_only_store_counts_as_down() {
    let read_only = AtomicU32::new(6);
    let store = Arc::new(FakeStore {
        read_only,
        ..FakeStore::default()
    });
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let health = Arc::new(Health::default());
    let (reported, stop) = (Arc::clone(&health), CancellationToken::new());
    let mut writer = writer(
        store,
        None,
        suppression(),
        health,
        &metrics,
        "unused".as_ref(),
        stop,
    );
    let loaded = writer.load();
    tokio::pin!(loaded);
    while metrics.sink.store_errors.get() < 3 {
        assert!(
            timeout(Duration::from_millis(10), &mut loaded)
                .await
                .is_err()
        );
    }
    assert_eq!(reported.store_down().as_deref(), Some("read only"));
    loaded.await.unwrap();
    assert_eq!(reported.store_down(), None);
    assert_eq!(metrics.sink.store_errors.get(), 6);
}
