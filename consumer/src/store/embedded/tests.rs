//! Tests of the store in a temporary directory.

mod interleaving;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use proto::{
    limits::USER_ID_BYTES_MAX,
    units::{DspId, UnixMicros},
    v1::{DspTimeToLive, TimesToLive},
};
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{super::Upkeep as _, *};
use crate::batch::tests::{batch, chunk};
use crate::deletions::Deletions;
use crate::lookup::tests::lookups;
use crate::store::{Expiry, Lookup as _, SweepProgress};

/// A TTL of a day. A producer's report shortens it to a minute for all DSPs except one.
fn ttls() -> Ttls {
    let day = Duration::from_secs(86_400);
    let ttls = Ttls::new(day, [].into()).with_floor(Some(Duration::from_secs(1)));
    let kept = DspTimeToLive {
        dsp_id: KEPT_DSP,
        seconds: 86_400,
    };
    let message = TimesToLive {
        dsps: vec![kept],
        other_seconds: 60,
    };
    assert!(ttls.report(([127, 0, 0, 1], 7676).into(), &message));
    ttls
}

/// The DSP with a TTL of a day.
const KEPT_DSP: u32 = 3;
const SECOND: u64 = 1_000_000;
const NOW: u64 = 1_700_000_000 * SECOND;
const TUNING: Tuning = Tuning {
    memtable_bytes: 1 << 20,
    table_bytes: 1 << 20,
    now: || UnixMicros(NOW),
    user_cache_bytes: 1 << 20,
};

async fn open(dir: &TempDir) -> EmbeddedStore {
    let dir = dir.path().to_path_buf();
    EmbeddedStore::open_with(dir, ttls(), TUNING).await.unwrap()
}

async fn write(store: &EmbeddedStore, at: u64, cookies: &[(&str, u32, &str)]) -> WriteOutcome {
    let batch = Arc::new(batch(&[chunk(1, at, cookies)]));
    store.write(batch).await.unwrap()
}

/// The buyer uids of a user.
async fn buyer_uids(store: &EmbeddedStore, user_id: &str) -> BTreeMap<DspId, String> {
    let store = EmbeddedStore {
        inner: Arc::clone(&store.inner),
    };
    let found = lookups(store, Deletions::default());
    crate::lookup::tests::buyer_uids(&found, user_id).await
}

#[track_caller]
fn check(found: &BTreeMap<DspId, String>, expected: &[(u32, &str)]) {
    let found: Vec<_> = found.iter().map(|(dsp, uid)| (dsp.0, &**uid)).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn cookies_are_not_stored_once_the_directory_is_removed() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    write(&store, NOW, &[("u", 1, "a")]).await;
    std::fs::remove_dir_all(dir.path()).unwrap();
    let batch = Arc::new(batch(&[chunk(1, NOW, &[("v", 1, "b")])]));
    let error = store.write(batch).await.unwrap_err().to_string();
    assert!(error.contains("was removed or replaced"), "{error}");
}

#[tokio::test]
async fn store_opens_after_a_kill_during_its_creation() {
    let dir = TempDir::new().unwrap();
    drop(open(&dir).await);
    // The state just before the store is complete.
    std::fs::remove_file(dir.path().join("version")).unwrap();
    std::fs::remove_dir_all(dir.path().join("keyspaces")).unwrap();
    std::fs::create_dir(dir.path().join("keyspaces")).unwrap();
    std::fs::write(dir.path().join("0.jnl"), [0; 1000]).unwrap();
    let store = open(&dir).await;
    write(&store, NOW, &[("u", 1, "a")]).await;
}

#[tokio::test]
async fn newer_cookie_wins_and_an_older_one_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    write(&store, NOW + 100, &[("u", 1, "a"), ("u", 300, "b")]).await;
    write(&store, NOW + 200, &[("u", 1, "newer")]).await;
    let replayed = write(
        &store,
        NOW + 100,
        &[("u", 1, "a"), ("u", 300, "b"), ("v", 1, "c")],
    )
    .await;
    assert_eq!(replayed.stale.len(), 1);
    check(&buyer_uids(&store, "u").await, &[(1, "newer"), (300, "b")]);
    check(&buyer_uids(&store, "v").await, &[(1, "c")]);
    write(&store, NOW + 200, &[("u", 1, "same time, later")]).await;
    let found = buyer_uids(&store, "u").await;
    check(&found, &[(1, "same time, later"), (300, "b")]);
}

#[tokio::test]
async fn cookies_cursors_and_the_newest_time_survive_reopening() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    let written = Arc::new(batch(&[chunk(
        7,
        NOW + 200,
        &[("u", 1, "kept"), ("v", 1, "x")],
    )]));
    store.write(Arc::clone(&written)).await.unwrap();
    drop(store);
    let store = open(&dir).await;
    let loaded = store.load(&Deletions::default()).await.unwrap();
    assert_eq!(loaded.cursors, written.cursors());
    assert_eq!(loaded.slots, [DspId(1)]);
    let late = write(&store, NOW + 199, &[("u", 1, "late")]).await;
    assert_eq!(late.stale, [0]);
    check(&buyer_uids(&store, "u").await, &[(1, "kept")]);
}

#[tokio::test]
async fn failed_background_thread_breaks_pings_and_blocked_writes() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    store.ping().await.unwrap();
    // No file of the tree can be created; open files stay open.
    std::fs::remove_dir_all(dir.path().join("keyspaces")).unwrap();
    let user = "u".repeat(USER_ID_BYTES_MAX);
    let buyer = "b".repeat(BUYER_UID_BYTES_MAX);
    let cookies: Vec<_> = (1..6_000).map(|dsp| (&*user, dsp, &*buyer)).collect();
    write(&store, NOW, &cookies).await;
    let broken = async {
        loop {
            if let Err(error) = store.ping().await {
                return error;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let broken = timeout(Duration::from_secs(60), broken).await.unwrap();
    assert!(matches!(&broken, StoreError::Broken(why) if why.contains("restart the consumer")));
    let blocked = std::future::pending::<Result<(), StoreError>>();
    let ended = timeout(Duration::from_secs(60), store.unless_broken(blocked)).await;
    assert_eq!(ended.unwrap(), Err(broken));
}

#[tokio::test]
async fn lookup_matches_only_complete_user_ids() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    let cookies = [
        ("ab", 1, "ab"),
        ("abc", 1, "abc"),
        ("ab!", 1, "ab!"),
        ("a", 1, "a"),
    ];
    write(&store, NOW + 1, &cookies).await;
    for (user_id, _, buyer_uid) in cookies {
        check(&buyer_uids(&store, user_id).await, &[(1, buyer_uid)]);
    }
    check(&buyer_uids(&store, "abcd").await, &[]);
}

#[tokio::test]
async fn expired_cookie_is_not_returned_before_its_deletion() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    let (expired, alive) = (NOW - 61 * SECOND, NOW - 59 * SECOND);
    write(&store, expired, &[("u", 1, "expired")]).await;
    write(&store, alive, &[("u", 2, "alive")]).await;
    check(&buyer_uids(&store, "u").await, &[(2, "alive")]);
}

const GENERATION: usize = 5_000;

/// Writes a generation of cookies with random users; returns the size of the store.
async fn generation(store: &EmbeddedStore, random: &mut fastrand::Rng, at: u64) -> u64 {
    for _ in 0..2 {
        let users: Vec<_> = (0..GENERATION / 2)
            .map(|_| format!("{:020}", random.u64(..)))
            .collect();
        let mut cookies: Vec<_> = users.iter().map(|user| (&**user, 1, "buyer-uid")).collect();
        cookies.push((&*users[0], KEPT_DSP, "kept"));
        write(store, at, &cookies).await;
    }
    store.inner.cookies.disk_space()
}

fn count(store: &EmbeddedStore, dsp_id: u32, accepted: std::ops::Range<u64>) -> usize {
    let cookies = store.inner.cookies.iter();
    cookies
        .map(|pair| pair.into_inner().unwrap())
        .filter(|(key, _)| dsp_of(key) == Some(DspId(dsp_id)))
        .filter(|(_, value)| accepted.contains(&time(value).unwrap().0))
        .count()
}

#[tokio::test]
async fn expired_cookies_are_deleted_as_others_are_written() {
    let dir = TempDir::new().unwrap();
    let tuning = Tuning {
        memtable_bytes: 128 << 10,
        table_bytes: 64 << 10,
        ..TUNING
    };
    let store = EmbeddedStore::open_with(dir.path().to_path_buf(), ttls(), tuning);
    let store = store.await.unwrap();
    let (stop, mut random) = (CancellationToken::new(), fastrand::Rng::with_seed(1));
    let deletions = Deletions::default();
    let mut largest = 0;
    let counted = AtomicU64::new(0);
    let count_deleted = |progress: &SweepProgress| {
        counted.fetch_add(progress.deleted, Relaxed);
    };
    // The generations are a third of the TTL apart.
    for step in 1..=20 {
        let now = NOW + step * 20 * SECOND;
        let bytes = generation(&store, &mut random, now).await;
        let expiry = Expiry {
            report: &count_deleted,
            ..expiry(step >= 8, now, &stop, &deletions)
        };
        store.expire(expiry).await.unwrap();
        if step == 8 {
            assert_eq!(counted.load(Relaxed), 0, "while the window was closed");
            assert_eq!(count(&store, 1, 0..u64::MAX), 8 * GENERATION);
            largest = bytes;
        }
    }
    let now = NOW + 20 * 20 * SECOND;
    let alive = count(&store, 1, now - 60 * SECOND..u64::MAX);
    assert_eq!(alive, 4 * GENERATION);
    // After the last compactions, most of the sixteen expired generations are deleted.
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        let remaining = count(&store, 1, 0..now - 60 * SECOND);
        let expiry = Expiry {
            report: &count_deleted,
            ..expiry(true, now, &stop, &deletions)
        };
        store.expire(expiry).await.unwrap();
        let deleted = counted.load(Relaxed);
        if remaining < 5 * GENERATION && deleted >= 10 * GENERATION as u64 {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{remaining} expired cookies remain, {deleted} were deleted"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let bytes = store.inner.cookies.disk_space();
    assert!(bytes < 2 * largest, "{bytes} bytes, were {largest}");
    assert_eq!(count(&store, KEPT_DSP, 0..u64::MAX), 2 * 20);
}

#[tokio::test]
async fn old_cursors_are_deleted() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    write(&store, NOW, &[("u", 1, "x")]).await;
    assert!(
        store
            .delete_cursors_before(UnixMicros(NOW))
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        store
            .load(&Deletions::default())
            .await
            .unwrap()
            .cursors
            .len(),
        1
    );
    assert_eq!(
        store
            .delete_cursors_before(UnixMicros(NOW + 1))
            .await
            .unwrap(),
        ["p".into()]
    );
    assert!(
        store
            .load(&Deletions::default())
            .await
            .unwrap()
            .cursors
            .is_empty()
    );
}

#[tokio::test]
async fn late_cookie_of_a_recently_written_pair_is_stale() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    write(&store, NOW, &[("a", 1, "newest")]).await;
    // A late cookie, so pairs are kept from here on.
    write(&store, NOW - 10, &[("u", 1, "first")]).await;
    write(&store, NOW + 10, &[("b", 1, "newest")]).await;
    write(&store, NOW + 5, &[("u", 1, "newer")]).await;
    let late = write(&store, NOW + 4, &[("u", 1, "late"), ("v", 1, "x")]).await;
    assert_eq!(late.stale.len(), 1);
    check(&buyer_uids(&store, "u").await, &[(1, "newer")]);
    check(&buyer_uids(&store, "v").await, &[(1, "x")]);
}

#[tokio::test]
async fn directory_in_use_is_rejected_with_a_fix() {
    let dir = TempDir::new().unwrap();
    let _store = open(&dir).await;
    let second = EmbeddedStore::open(dir.path().to_path_buf(), ttls(), 1 << 20).await;
    let error = second.err().map(|error| error.to_string()).unwrap();
    assert!(
        error.contains("in use") && error.contains("--store"),
        "{error}"
    );
}

#[tokio::test]
async fn for_each_visits_every_pair_with_its_newest_value() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    write(
        &store,
        NOW,
        &[("u", 1, "a"), ("uu", 1, "b"), ("u", 300, "c")],
    )
    .await;
    write(&store, NOW + 1, &[("u", 1, "newer")]).await;
    let mut visited = Vec::new();
    let visit = |cookie: &BatchCookie<'_>| {
        let [user, buyer] =
            [cookie.user_id, cookie.buyer_uid].map(|text| String::from_utf8(text.into()).unwrap());
        visited.push((user, cookie.dsp_id.0, buyer, cookie.accepted.0));
        ControlFlow::Continue(())
    };
    store.for_each(visit).unwrap();
    let mut count = 0;
    let stop = |_: &BatchCookie<'_>| {
        count += 1;
        ControlFlow::Break(())
    };
    store.for_each(stop).unwrap();
    assert_eq!(count, 1);
    let expected = [
        ("u", 1, "newer", NOW + 1),
        ("u", 300, "c", NOW),
        ("uu", 1, "b", NOW),
    ];
    assert_eq!(
        visited,
        expected.map(|(user, dsp, buyer, at)| (user.into(), dsp, buyer.into(), at))
    );
}

#[tokio::test]
async fn deletion_of_an_unfinished_job_is_kept_below_the_floor() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    let records = [("u", 1, ""), ("", 7, ""), ("", 8, "")];
    write(&store, NOW, &records).await;
    let deletions = Deletions::default();
    store.load(&deletions).await.unwrap();
    let [finished, unfinished] = deletions.jobs().try_into().unwrap();
    let stop = CancellationToken::new();
    store.remove_dsp(&finished, &stop).await.unwrap();
    store
        .remove_deletions_until(UnixMicros(NOW + 1))
        .await
        .unwrap();

    let kept = Deletions::default();
    store.load(&kept).await.unwrap();
    assert_eq!((kept.floor().0, kept.size().0), (NOW + 1, 1));
    assert_eq!(kept.jobs(), [unfinished]);
}

fn expiry<'a>(
    open: bool,
    now: u64,
    stop: &'a CancellationToken,
    deletions: &'a Deletions,
) -> Expiry<'a> {
    Expiry {
        open,
        now: UnixMicros(now),
        since: UnixMicros(now),
        time_left: None,
        stop,
        deletions,
        report: &|_| {},
    }
}

#[tokio::test]
async fn estimate_of_a_dsp_is_near_its_number_of_cookies() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir).await;
    assert!(store.stored_cookies().await.unwrap().is_empty());
    let users: Vec<_> = (0..16_384u32)
        .map(|it| format!("{:08x}", it << 18))
        .collect();
    // Users whose id begins with a have two DSPs, and half of the others.
    let mut cookies = Vec::new();
    for (number, user_id) in users.iter().enumerate() {
        cookies.push((&**user_id, 1, "x"));
        if user_id.starts_with('a') || number % 2 == 0 {
            cookies.push((&**user_id, 2, "x"));
        }
    }
    write(&store, NOW, &cookies).await;
    let counts = store.stored_cookies().await.unwrap();
    for dsp_id in [1, 2] {
        let exact = cookies.iter().filter(|(_, it, _)| *it == dsp_id).count() as u64;
        let estimate = counts[&DspId(dsp_id)];
        let range = exact * 4 / 5..=exact * 6 / 5;
        assert!(range.contains(&estimate), "{estimate} of {exact}");
    }
}
