//! Lookups while the store changes.

use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::{
    deletions::DspDeletion,
    lookup::{Lookups, tests::buyer_uids},
};

/// The last write of each pair: its number, and whether it is a deletion. Encoded as twice the number, plus one for a deletion.
#[derive(Default)]
struct LastWrites([AtomicU64; 8]);

impl LastWrites {
    fn get(&self, pair: usize) -> (u64, bool) {
        let encoded = self.0[pair].load(SeqCst);
        (encoded / 2, encoded % 2 == 1)
    }

    fn set(&self, pair: usize, number: u64, is_deletion: bool) {
        self.0[pair].store(2 * number + u64::from(is_deletion), SeqCst);
    }
}

/// What the writer does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Match,
    DeleteMatch,
    DeleteUser,
    DeleteDsp,
}

fn dsp_of_pair(pair: usize) -> DspId {
    DspId(if pair.is_multiple_of(2) { 1 } else { 2 })
}

/// Reads random pairs until `stop`, and compares them with what was written before and after. Returns the number of reads.
async fn read_pairs(
    lookups: Lookups,
    (begun, done): (Arc<LastWrites>, Arc<LastWrites>),
    stop: CancellationToken,
    seed: u64,
) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut reads = 0;
    while !stop.is_cancelled() {
        let pair = random.usize(0..8);
        let (number, was_deleted) = done.get(pair);
        let found = buyer_uids(&lookups, &format!("u{}", pair / 2)).await;
        let found = found
            .get(&dsp_of_pair(pair))
            .map(|uid| uid.parse::<u64>().unwrap());
        let (latest, _) = begun.get(pair);
        let is_correct = match found {
            Some(found) if was_deleted => found > number && found <= latest,
            Some(found) => found >= number && found <= latest,
            None => number == 0 || was_deleted || latest > number,
        };
        assert!(
            is_correct,
            "{found:?} of pair {pair}, written {number}, latest {latest}"
        );
        reads += 1;
        tokio::task::yield_now().await;
    }
    reads
}

/// In random interleavings of lookups with writes and deletions, a lookup never returns a match older than a finished write, or one
/// that a finished deletion covers: even without the table of deletions, as after their retention. The cache has space for some of the
/// users only.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lookup_never_returns_a_replaced_or_deleted_match() {
    let dir = TempDir::new().unwrap();
    let tuning = Tuning {
        user_cache_bytes: 500,
        now: || UnixMicros(NOW),
        ..TUNING
    };
    let store = EmbeddedStore::open_with(dir.path().to_path_buf(), ttls(), tuning).await;
    let store = store.unwrap();
    let last_writes = <(Arc<_>, Arc<LastWrites>)>::default();
    let (begun, done) = last_writes.clone();
    let (stop, mut readers) = (CancellationToken::new(), tokio::task::JoinSet::new());
    for seed in 0..3 {
        let inner = Arc::clone(&store.inner);
        let lookups = lookups(EmbeddedStore { inner }, Deletions::default());
        readers.spawn(read_pairs(lookups, last_writes.clone(), stop.clone(), seed));
    }
    let mut random = fastrand::Rng::with_seed(9);
    for number in 1..=1_000 {
        let (user, dsp) = (random.usize(0..4), random.usize(0..2));
        let change = match random.u8(0..30) {
            0..20 => Change::Match,
            20..24 => Change::DeleteMatch,
            24..28 => Change::DeleteUser,
            _ => Change::DeleteDsp,
        };
        let pairs: Vec<_> = match change {
            Change::Match | Change::DeleteMatch => vec![2 * user + dsp],
            Change::DeleteUser => vec![2 * user, 2 * user + 1],
            Change::DeleteDsp => (0..4).map(|user| 2 * user + dsp).collect(),
        };
        let is_deletion = change != Change::Match;
        for pair in &pairs {
            begun.set(*pair, number, is_deletion);
        }
        let (user_id, uid, dsp_id) = (format!("u{user}"), number.to_string(), dsp_of_pair(dsp));
        let accepted = NOW - 1000 + number;
        let entry = match change {
            Change::Match => (&*user_id, dsp_id.0, &*uid),
            Change::DeleteMatch => (&*user_id, dsp_id.0, ""),
            Change::DeleteUser => (&*user_id, 0, ""),
            Change::DeleteDsp => ("", dsp_id.0, ""),
        };
        let batch = batch(&[chunk(number, accepted, &[entry])]);
        store.write(Arc::new(batch)).await.unwrap();
        if change == Change::DeleteDsp {
            let until = UnixMicros(accepted);
            let removing = DspDeletion { dsp_id, until };
            store.remove_dsp(&removing, &stop).await.unwrap();
        }
        for pair in &pairs {
            done.set(*pair, number, is_deletion);
        }
    }
    stop.cancel();
    while let Some(reads) = readers.join_next().await {
        assert!(reads.unwrap() > 100);
    }
}
