//! Tests of suppression with examples, and a comparison with a store in which the newest cookie wins.

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Deref, DerefMut},
};

use proto::units::DspId;

use super::*;
use crate::{
    batch::tests::{chunk, empty},
    store::RejectedCookie,
};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const BEGAN: u64 = 1_700_000_000_000_000;

/// A table, and the batch being collected.
struct Table(Suppression, BatchId);

impl Deref for Table {
    type Target = Suppression;

    fn deref(&self) -> &Suppression {
        &self.0
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut Suppression {
        &mut self.0
    }
}

fn table(bytes: usize) -> Table {
    let ttls = [(DspId(9), Duration::from_secs(600))].into();
    let table = Suppression::new(HOUR, bytes, Ttls::new(24 * HOUR, ttls));
    Table(table, BatchId(0))
}

/// A batch of the cookies that pass.
fn filter(table: &mut Table, at: u64, cookies: &[(&str, u32, &str)]) -> Batch {
    let mut batch = empty(table.1);
    let chunk = chunk(1, BEGAN + at, cookies);
    batch.push_filtered(&"p".into(), &chunk, UnixMicros::MAX, &mut table.0);
    table.1 = table.1.next();
    batch
}

fn store(table: &mut Table, at: u64, cookies: &[(&str, u32, &str)], written: &WriteOutcome) {
    let batch = filter(table, at, cookies);
    record(table, &batch, written);
}

fn record(table: &mut Table, batch: &Batch, written: &WriteOutcome) {
    table.record(batch.id(), outcomes(batch, written));
}

/// Decision on a cookie.
#[derive(Debug, PartialEq, Eq)]
enum Passes {
    Not,
    AsNew,
    AsKnown,
}

use Passes::{AsKnown, AsNew, Not};

/// Filters one cookie without changing the table.
fn passes(table: &mut Table, at: u64, cookie: (&str, u32, &str)) -> Passes {
    let (buckets, collected) = (table.buckets.clone(), table.1);
    let batch = filter(table, at, &[cookie]);
    (table.buckets, table.1) = (buckets, collected);
    match batch.cookies().next() {
        None => Not,
        Some(cookie) if cookie.is_known => AsKnown,
        Some(_) => AsNew,
    }
}

#[test]
fn duplicate_is_suppressed_for_the_interval_but_a_change_is_not() {
    let mut table = table(1 << 20);
    assert_eq!(passes(&mut table, 0, ("u", 1, "b")), AsNew);
    store(&mut table, 0, &[("u", 1, "b")], &WriteOutcome::default());
    assert_eq!(passes(&mut table, MINUTE, ("u", 1, "b")), Not);
    assert_eq!(passes(&mut table, 59 * MINUTE, ("u", 1, "b")), Not);
    assert_eq!(passes(&mut table, 60 * MINUTE, ("u", 1, "b")), AsKnown);
    assert_eq!(passes(&mut table, MINUTE, ("u", 1, "c")), AsKnown);
    for other in [("u", 2, "b"), ("v", 1, "b"), ("ub", 1, "x")] {
        assert_eq!(passes(&mut table, MINUTE, other), AsNew, "{other:?}");
    }
    store(
        &mut table,
        MINUTE,
        &[("u", 1, "c")],
        &WriteOutcome::default(),
    );
    assert_eq!(passes(&mut table, 2 * MINUTE, ("u", 1, "b")), AsKnown);
    assert_eq!(passes(&mut table, 2 * MINUTE, ("u", 1, "c")), Not);
}

#[test]
fn interval_is_limited_to_half_of_the_shortest_ttl_that_contracts_may_set() {
    let ttls = Ttls::new(24 * HOUR, BTreeMap::new()).with_floor(Some(HOUR / 6));
    let mut table = Table(Suppression::new(HOUR, 1 << 20, ttls), BatchId(0));
    store(&mut table, 0, &[("u", 1, "b")], &WriteOutcome::default());
    assert_eq!(passes(&mut table, 4 * MINUTE, ("u", 1, "b")), Not);
    // A contract that has ended may have let the store delete the cookie.
    assert_eq!(passes(&mut table, 6 * MINUTE, ("u", 1, "b")), AsKnown);
}

#[test]
fn late_duplicate_of_an_expired_cookie_is_written() {
    let mut table = table(1 << 20);
    store(&mut table, 0, &[("u", 9, "b")], &WriteOutcome::default());
    let expires = BEGAN + 10 * MINUTE;
    for (now, expected) in [(expires, Not), (expires + 1, AsKnown)] {
        table.set_now(UnixMicros(now));
        assert_eq!(passes(&mut table, 4 * MINUTE, ("u", 9, "b")), expected);
    }
}

#[test]
fn value_older_than_a_suppressed_duplicate_is_stale() {
    let mut table = table(1 << 20);
    store(&mut table, 0, &[("u", 1, "b")], &WriteOutcome::default());
    let duplicate = filter(&mut table, MINUTE, &[("u", 1, "b")]);
    assert_eq!(duplicate.counts().suppressed, 1);
    let late = filter(&mut table, 30 * SECOND, &[("u", 1, "c")]);
    assert_eq!((late.len(), late.counts().stale), (0, 1));
    assert_eq!(passes(&mut table, 30 * SECOND, ("u", 1, "b")), Not);
    assert_eq!(passes(&mut table, MINUTE + 1000, ("u", 1, "c")), AsKnown);
}

#[test]
fn pending_cookie_is_confirmed_only_by_its_batch() {
    let mut table = table(1 << 20);
    let one = filter(&mut table, 5_000_000, &[("u", 1, "b")]);
    // The entry is evicted, and the same value arrives again with an older time.
    table
        .buckets
        .iter_mut()
        .for_each(|bucket| *bucket = [0; 3 * WAYS + 1]);
    let two = filter(&mut table, 3_000_000, &[("u", 1, "b")]);
    record(&mut table, &one, &WriteOutcome::default());
    assert_eq!(passes(&mut table, 6_000_000, ("u", 1, "b")), AsKnown);
    record(&mut table, &two, &WriteOutcome::default());
    assert_eq!(passes(&mut table, 6_000_000, ("u", 1, "b")), Not);
}

/// Batches overlap as in the sink: the next is collected before one is written. Cookies arrive out of order.
#[test]
fn store_ends_with_the_newest_of_all_cookies() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut table = table(1 << 20);
    let mut newest: HashMap<String, (u64, String)> = HashMap::new();
    let mut stored: HashMap<String, (u64, String)> = HashMap::new();
    let mut collected: Option<Batch> = None;
    let (mut suppressed, mut stale) = (0, 0);
    for round in 0..2_000_u64 {
        let mut batch = empty(BatchId(round));
        for nth in 0..random.u64(1..6) {
            // No two cookies have the same millisecond.
            let late = random.u64(..40) * 100_000;
            let at = BEGAN + 10_000_000 + round * 100_000 + nth * 1_000 - late;
            let (user, uid) = (
                format!("u{}", random.u8(..8)),
                format!("b{}", random.u8(..2)),
            );
            let chunk = chunk(1, at, &[(&user, 1, &uid)]);
            batch.push_filtered(&"p".into(), &chunk, UnixMicros::MAX, &mut table.0);
            let known = newest.entry(user).or_default();
            *known = known.clone().max((at, uid));
        }
        suppressed += batch.counts().suppressed;
        stale += batch.counts().stale;
        let previous = collected.replace(batch);
        let Some(previous) = previous else { continue };
        let mut written = WriteOutcome::default();
        for (index, cookie) in (0..).zip(previous.cookies()) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let known = stored.entry(text(cookie.user_id)).or_default();
            if known.0 > cookie.accepted.0 {
                written.stale.push(index);
            } else {
                *known = (cookie.accepted.0, text(cookie.buyer_uid));
            }
        }
        record(&mut table, &previous, &written);
    }
    for cookie in collected.unwrap().cookies() {
        let user = String::from_utf8(cookie.user_id.to_vec()).unwrap();
        let uid = String::from_utf8(cookie.buyer_uid.to_vec()).unwrap();
        let known = stored.entry(user).or_default();
        *known = known.clone().max((cookie.accepted.0, uid));
    }
    for (user, (_, uid)) in &newest {
        assert_eq!(&stored[user].1, uid, "{user}");
    }
    assert!(suppressed > 500 && stale > 50, "{suppressed} {stale}");
}

#[test]
fn only_stored_cookies_are_recorded() {
    let mut table = table(1 << 20);
    let cookies = [("a", 1, "x"), ("b", 1, "x"), ("c", 1, "x"), ("d", 1, "x")];
    let rejected = RejectedCookie {
        index: 0,
        reason: "rejected".to_owned(),
    };
    let written = WriteOutcome {
        stale: vec![2],
        rejected: vec![rejected],
        ..WriteOutcome::default()
    };
    store(&mut table, 0, &cookies, &written);
    let passing = cookies.map(|cookie| passes(&mut table, 1, cookie));
    assert_eq!(passing, [AsNew, Not, AsKnown, Not]);
    // The second cookie is suppressed now, so the third has another index.
    let written = WriteOutcome {
        stale: vec![1],
        ..WriteOutcome::default()
    };
    store(&mut table, 2, &cookies, &written);
    let passing = cookies.map(|cookie| passes(&mut table, 3, cookie));
    assert_eq!(passing, [Not, Not, AsKnown, Not]);
}

/// The cost of recording a batch does not grow with the number of its parts.
#[test]
fn batch_recorded_in_parts_is_traversed_once() {
    const COOKIES: usize = 1_000;
    let users: Vec<_> = (0..COOKIES).map(|nth| format!("user-{nth}")).collect();
    let cookies: Vec<_> = users.iter().map(|user| (&**user, 1, "b")).collect();
    let rejected = |index| RejectedCookie {
        index,
        reason: "rejected".to_owned(),
    };
    let written = WriteOutcome {
        stale: (0..300).rev().collect(),
        rejected: (300..600).rev().map(rejected).collect(),
        ..WriteOutcome::default()
    };
    for part in [1, 7, COOKIES - 1, COOKIES, 2 * COOKIES] {
        let mut table = table(1 << 20);
        let batch = filter(&mut table, 0, &cookies);
        let mut visited = 0;
        let mut all = outcomes(&batch, &written).inspect(|_| visited += 1);
        let parts = COOKIES.div_ceil(part);
        for _ in 0..parts {
            table.record(batch.id(), all.by_ref().take(part));
        }
        assert_eq!(all.next(), None);
        drop(all);
        assert_eq!(visited, COOKIES, "in parts of {part}");
        for (nth, expected) in [(0, AsKnown), (299, AsKnown), (300, AsNew), (599, AsNew)] {
            assert_eq!(passes(&mut table, 1, cookies[nth]), expected, "{nth}");
        }
        assert_eq!(passes(&mut table, 1, cookies[600]), Not);
        assert_eq!(passes(&mut table, 1, cookies[999]), Not);
    }
}

#[test]
fn no_duplicate_of_a_pair_is_suppressed_while_a_change_is_pending() {
    let mut table = table(1 << 20);
    store(&mut table, 0, &[("u", 1, "b")], &WriteOutcome::default());
    // While this batch is written, the next one is collected.
    let change = filter(&mut table, 10 * SECOND, &[("u", 1, "c")]);
    assert_eq!(passes(&mut table, 20 * SECOND, ("u", 1, "b")), AsKnown);
    assert_eq!(passes(&mut table, 20 * SECOND, ("u", 1, "c")), AsKnown);
    let back = filter(&mut table, 20 * SECOND, &[("u", 1, "b")]);
    record(&mut table, &change, &WriteOutcome::default());
    assert_eq!(passes(&mut table, 30 * SECOND, ("u", 1, "c")), AsKnown);
    assert_eq!(
        passes(&mut table, 30 * SECOND, ("u", 1, "b")),
        AsKnown,
        "not stored yet"
    );
    record(&mut table, &back, &WriteOutcome::default());
    assert_eq!(passes(&mut table, 30 * SECOND, ("u", 1, "c")), AsKnown);
    assert_eq!(passes(&mut table, 30 * SECOND, ("u", 1, "b")), Not);
}

#[test]
fn changing_a_value_back_within_a_batch_is_written() {
    let mut table = table(1 << 20);
    store(&mut table, 0, &[("u", 1, "b")], &WriteOutcome::default());
    let cookies = [("u", 1, "b"), ("u", 1, "c"), ("u", 1, "b")];
    let batch = filter(&mut table, SECOND, &cookies);
    assert_eq!(batch.counts().suppressed, 1);
    assert_eq!(batch.cookie(0).buyer_uid, b"b");
}

#[test]
fn interval_is_limited_to_half_of_the_ttl() {
    let mut table = table(1 << 20);
    store(&mut table, 0, &[("u", 9, "b")], &WriteOutcome::default());
    assert_eq!(passes(&mut table, 4 * MINUTE, ("u", 9, "b")), Not);
    assert_eq!(passes(&mut table, 5 * MINUTE, ("u", 9, "b")), AsKnown);
}

#[test]
fn zero_interval_suppresses_nothing() {
    let ttls = Ttls::new(HOUR, BTreeMap::new());
    let table = Suppression::new(Duration::ZERO, 1 << 30, ttls);
    let mut table = Table(table, BatchId(0));
    store(&mut table, 0, &[("u", 1, "b")], &WriteOutcome::default());
    assert_eq!(passes(&mut table, 1, ("u", 1, "b")), AsNew);
}

#[test]
fn full_table_evicts_entries_and_never_suppresses_a_change() {
    let mut table = table(64 << 10);
    assert!(table.buckets.len() * size_of::<Bucket>() <= 64 << 10);
    let mut random = fastrand::Rng::with_seed(7);
    let mut model: HashMap<(String, u32), (String, u64)> = HashMap::new();
    let mut suppressed = 0;
    for at in 0..100_000 {
        // A few users sync often, most do not.
        let rank = if random.bool() { 400 } else { 40_000 };
        let (user, dsp) = (format!("user-{}", random.u32(..rank)), 1 + random.u32(..2));
        let uid = format!("uid-{}", random.u32(..3));
        let at = at * 10_000;
        let cookie = (&*user, dsp, &*uid);
        if passes(&mut table, at, cookie) == Not {
            suppressed += 1;
            let (stored, stored_at) = &model[&(user, dsp)];
            assert!(*stored == uid && at - stored_at < 60 * MINUTE + SECOND);
        } else {
            store(&mut table, at, &[cookie], &WriteOutcome::default());
            model.insert((user, dsp), (uid, at));
        }
    }
    assert!(suppressed > 1_000, "{suppressed}");
}

#[test]
fn removing_unstored_cookies_keeps_pending_entries() {
    let mut table = table(1 << 20);
    let cookies = [("u", 1, "b"), ("v", 1, "b"), ("w", 1, "b")];
    let batch = filter(&mut table, 0, &cookies);
    record(&mut table, &batch, &WriteOutcome::default());
    filter(&mut table, MINUTE, &[("v", 1, "c")]);
    table.remove(&batch, &[0, 1].into());
    assert_eq!(passes(&mut table, 2 * MINUTE, ("u", 1, "b")), AsNew);
    assert_eq!(passes(&mut table, 2 * MINUTE, ("v", 1, "c")), AsKnown);
    assert_eq!(passes(&mut table, 2 * MINUTE, ("w", 1, "b")), Not);
}

/// A stale cookie leaves its entry pending. Later batches must not confirm the entry.
#[test]
fn entry_that_stays_pending_is_not_confirmed_by_the_next_two_batches() {
    let mut table = table(1 << 20);
    let stale = WriteOutcome {
        stale: vec![0],
        ..WriteOutcome::default()
    };
    store(&mut table, MINUTE, &[("u", 1, "b")], &stale);
    for _ in 0..2 {
        let late = filter(&mut table, SECOND, &[("u", 1, "b")]);
        assert_eq!(late.len(), 1);
        record(&mut table, &late, &WriteOutcome::default());
        assert_eq!(passes(&mut table, 2 * MINUTE, ("u", 1, "b")), AsKnown);
    }
}
