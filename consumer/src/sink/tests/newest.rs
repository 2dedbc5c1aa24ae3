//! Tests of the whole sink with a real store: for any order, ages and batches, the store has the newest cookie of each
//! pair in the end.

use std::{collections::HashMap, ops::ControlFlow};

use proptest::prelude::*;

use super::*;
use crate::store::embedded::EmbeddedStore;
use crate::{clock, deletions::Deletions, producers::Producers};

/// One cookie, in a chunk of its own.
#[derive(Debug, Clone)]
struct Sent {
    producer: u8,
    user: u8,
    dsp_id: u32,
    buyer: u8,
    /// Acceptance time in milliseconds; `None` for a clock that is far ahead.
    accepted: Option<u64>,
    /// Time until its release, in milliseconds.
    queued: u64,
    /// Whether the next cookie is sent only after this one is stored.
    flushed: bool,
}

fn sent() -> impl Strategy<Value = Sent> {
    let accepted = prop_oneof![12 => (0..12_u64).prop_map(Some), 1 => Just(None)];
    let queued = prop_oneof![2 => Just(0), 1 => 0..12_u64, 1 => 0..30_000_u64];
    let times = (accepted, queued, prop::bool::weighted(0.1));
    (0..3_u8, 0..4_u8, 1..3_u32, 0..3_u8, times).prop_map(
        |(producer, user, dsp_id, buyer, (accepted, queued, flushed))| Sent {
            producer,
            user,
            dsp_id,
            buyer,
            accepted,
            queued,
            flushed,
        },
    )
}

/// By user and DSP.
type Stored = HashMap<(Vec<u8>, u32), Vec<u8>>;

/// The newest cookie of each pair. At equal times, the later arrival wins. Times ahead of the clock are clamped to
/// increasing times that are later than all others.
fn newest(sent: &[Sent]) -> Stored {
    let mut newest: HashMap<_, (u64, u8)> = HashMap::new();
    for cookie in sent {
        let accepted = cookie.accepted.unwrap_or(u64::MAX);
        let pair = (user(cookie).into_bytes(), cookie.dsp_id);
        let known = newest.entry(pair).or_default();
        if known.0 <= accepted {
            *known = (accepted, cookie.buyer);
        }
    }
    newest
        .into_iter()
        .map(|(pair, (_, buyer))| (pair, format!("buyer-{buyer}").into_bytes()))
        .collect()
}

fn user(cookie: &Sent) -> String {
    format!("user-{}", cookie.user)
}

async fn stored(sent: Vec<Sent>, refresh_interval: Duration) -> Stored {
    let dir = TempDir::new().unwrap();
    let ttls = Ttls::new(24 * HOUR, BTreeMap::new());
    let store = EmbeddedStore::open(dir.path().join("store"), ttls.clone(), 1 << 20).await;
    let store = Arc::new(store.unwrap());
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let (buffer, reader) = buffer::buffer(1 << 20, &metrics.subscription);
    let (batch_sender, batches) = batch_channel();
    let suppression = Suppression::new(refresh_interval, 1 << 16, ttls);
    let suppression = Arc::new(Mutex::new(suppression));
    let writer = writer(
        Arc::clone(&store) as _,
        None,
        Arc::clone(&suppression),
        Arc::new(Health::default()),
        &metrics,
        dir.path(),
        CancellationToken::new(),
    );
    let limits = BatchLimits {
        flush_interval: Duration::from_millis(1),
        cookies_max: 3,
        bytes_max: 1 << 20,
    };
    let fast_drain = CancellationToken::new();
    let collector = Collector {
        write_rate: WriteRate::default(),
        limits,
        suppression,
        metrics: metrics.sink.clone(),
        fast_drain,
        clock: ClockJumps::new(clock::now(), Instant::now()),
        slots: slots(),
        ttls: no_expiry(),
        deletions: Deletions::default(),
        producers: Producers::default(),
        rejected_dsps: no_rejected_dsps(),
        recovery: no_recovery(&metrics),
    };
    let tasks = TaskTracker::new();
    let collecting = tasks.spawn(collector.run(reader, batch_sender));
    let writing = tasks.spawn(writer.run(batches));

    let began = clock::now().before(60_000_000).0;
    for (sequence, cookie) in (1..).zip(&sent) {
        let (released, age) = cookie.accepted.map_or((u64::MAX, 0), |millis| {
            (
                began + (millis + cookie.queued) * 1000,
                cookie.queued * 1000,
            )
        });
        let (user, buyer) = (user(cookie), format!("buyer-{}", cookie.buyer));
        let cookie_sent = ((&*user, cookie.dsp_id, &*buyer), age);
        let chunk = aged_chunk(sequence, released, &[cookie_sent]);
        let producer: Arc<str> = cookie.producer.to_string().into();
        let item = Item::Chunk(Arc::clone(&producer), chunk);
        buffer.push(item).await.unwrap();
        if cookie.flushed {
            until_stored(&store, &producer, sequence).await;
        }
    }
    drop(buffer);
    collecting.await.unwrap().unwrap();
    writing.await.unwrap().unwrap();

    let mut found = Stored::new();
    let visited = store.for_each(|cookie| {
        let pair = (cookie.user_id.to_vec(), cookie.dsp_id.0);
        assert_eq!(found.insert(pair, cookie.buyer_uid.to_vec()), None);
        ControlFlow::Continue(())
    });
    visited.unwrap();
    found
}

/// Waits until the cursor of `producer` is at `sequence` or later.
async fn until_stored(store: &EmbeddedStore, producer: &str, sequence: u64) {
    let is_stored = async || {
        let cursors = store.load(&Deletions::default()).await.unwrap().cursors;
        let mut own = cursors
            .iter()
            .filter(|cursor| *cursor.producer == *producer);
        own.any(|cursor| cursor.sequence.0 >= sequence)
    };
    let until = async {
        while !is_stored().await {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), until).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn store_ends_with_the_newest_of_each_pair_for_any_order_and_batches(
        sent in prop::collection::vec(sent(), 1..60),
        suppressed in any::<bool>(),
    ) {
        let interval = if suppressed { HOUR } else { Duration::ZERO };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        let expected = newest(&sent);
        let found = runtime.unwrap().block_on(stored(sent, interval));
        prop_assert_eq!(found, expected);
    }
}
