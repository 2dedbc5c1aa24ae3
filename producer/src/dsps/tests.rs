//! Tests of the series of DSPs during reloads of the list and concurrent counting.

use std::collections::BTreeMap;

use super::*;
use crate::contracts::{file, rejection::Cause};

fn contracts(listed: &[u32], rejects_unlisted: bool) -> Arc<Contracts> {
    let policy = ["accept", "refuse"][usize::from(rejects_unlisted)];
    let tables: String = listed.iter().map(|dsp| format!("[dsp.{dsp}]\n")).collect();
    let text = format!("unknown_dsps = '{policy}'\n{tables}");
    Arc::new(file::parse(&text).unwrap())
}

fn dsps(listed: &[u32]) -> Dsps {
    Dsps::register(&Registry::new(), None, contracts(listed, false)).unwrap()
}

fn accept(dsps: &Dsps, dsp_ids: impl IntoIterator<Item = u32>) {
    let (mut tally, mut known) = (Tally::default(), KnownDsps::default());
    dsps.refresh(&mut known);
    for dsp_id in dsp_ids {
        if tally.is_full() {
            dsps.add(&mut tally, &mut known);
        }
        tally.note(DspId(dsp_id), Verdict::Record([None; 2]));
    }
    dsps.add(&mut tally, &mut known);
}

/// All series, as `dsp outcome`.
fn series(dsps: &Dsps) -> BTreeMap<String, u64> {
    let families = dsps.families();
    let metrics = families[0].get_metric().iter().map(|metric| {
        let labels: Vec<_> = metric.get_label().iter().map(|it| it.value()).collect();
        #[expect(clippy::cast_possible_truncation, reason = "small counts")]
        let value = metric.get_counter().get_value() as u64;
        (labels.join(" "), value)
    });
    metrics.collect()
}

#[track_caller]
fn check(dsps: &Dsps, expected: &[(&str, u64)]) {
    let expected = expected
        .iter()
        .map(|&(series, count)| (series.to_owned(), count))
        .collect();
    assert_eq!(series(dsps), expected);
}

#[test]
fn rejections_of_the_buyer_uid_and_of_privacy_may_be_observed() {
    let is_observed = |it: &&Rejection| matches!(it.cause(), Cause::Uid | Cause::Privacy);
    assert!(Rejection::ALL.iter().filter(is_observed).eq(&OBSERVED));
}

#[test]
fn first_dsps_get_a_series_and_the_rest_is_other() {
    let dsps = dsps(&[]);
    accept(&dsps, (1..=64).chain([17, 99, 1_000_000, 17, 42]));
    let mut expected = series(&dsps);
    assert_eq!(expected.len(), 65);
    for (dsp, count) in [("17", 3), ("42", 2), ("other", 2)] {
        assert_eq!(expected.remove(&format!("{dsp} accepted")), Some(count));
    }
    assert!(expected.values().all(|count| *count == 1));
}

#[test]
fn only_listed_dsps_have_a_series() {
    let dsps = dsps(&[5, 6]);
    accept(&dsps, 100..200);
    accept(&dsps, [6]);
    let expected = [
        ("5 accepted", 0),
        ("6 accepted", 1),
        ("other accepted", 100),
    ];
    check(&dsps, &expected);
}

#[test]
fn listed_dsps_have_series_even_beyond_the_maximum() {
    let listed = Vec::from_iter(1..=100);
    let dsps = dsps(&listed);
    accept(&dsps, 1..=101);
    let series = series(&dsps);
    assert_eq!(series.len(), 101);
    assert!(series.values().all(|count| *count == 1));
}

#[test]
fn rejections_are_counted_by_dsp_and_reason() {
    let dsps = dsps(&[]);
    let (mut tally, mut known) = (Tally::default(), KnownDsps::default());
    dsps.refresh(&mut known);
    tally.note_rejected(Some(DspId(17)), Rejection::UserMissing);
    tally.note_rejected(Some(DspId(17)), Rejection::UserMissing);
    tally.note_rejected(None, Rejection::DspMissing);
    dsps.add(&mut tally, &mut known);
    assert!(!tally.is_full() && tally.len == 0);
    check(
        &dsps,
        &[
            ("17 accepted", 0),
            ("17 uid_missing", 2),
            ("none d_missing", 1),
            ("other accepted", 0),
        ],
    );
}

#[test]
fn concurrent_threads_lose_no_counts_while_series_are_added() {
    const THREADS: u32 = 8;
    let dsps = dsps(&[]);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let dsps = dsps.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    accept(&dsps, (0..50).map(|i| 1 + (i + round + thread) % 100));
                }
            });
        }
    });
    let series = series(&dsps);
    assert_eq!(series.len(), 64 + 1, "{series:?}");
    assert_eq!(series.values().sum::<u64>(), u64::from(THREADS) * 200 * 50);
}

/// Checks which of these DSPs are rejected.
#[track_caller]
fn check_rejected(dsps: &Dsps, dsp_ids: &[u32], expected: &[u32]) {
    let mut known = KnownDsps::default();
    dsps.refresh(&mut known);
    let is_rejected = |&dsp_id: &u32| {
        let contracts = known.contracts();
        let verdict = contracts
            .decide(contracts.of(DspId(dsp_id)), "id", None)
            .verdict;
        let refused = Verdict::Refuse(Rejection::DspUnknown);
        assert!([refused, Verdict::Record([None; 2])].contains(&verdict));
        verdict == refused
    };
    let rejected: Vec<_> = dsp_ids.iter().copied().filter(is_rejected).collect();
    assert_eq!(rejected, expected);
}

#[test]
fn unlisted_dsps_are_rejected_only_if_configured() {
    let all = [1, 2, 3, u32::MAX];
    let dsps = dsps(&[]);
    check_rejected(&dsps, &all, &[]);
    dsps.set_contracts(contracts(&[1, 3], false));
    check_rejected(&dsps, &all, &[]);
    dsps.set_contracts(contracts(&[1, 3], true));
    check_rejected(&dsps, &all, &[2, u32::MAX]);
    dsps.set_contracts(contracts(&[2], true));
    check_rejected(&dsps, &all, &[1, 3, u32::MAX]);
    dsps.set_contracts(contracts(&[], false));
    check_rejected(&dsps, &all, &[]);
}

#[test]
fn dsp_removed_from_the_list_keeps_its_series() {
    let dsps = dsps(&[1, 2]);
    accept(&dsps, [1, 2, 3]);
    dsps.set_contracts(contracts(&[2, 3], false));
    accept(&dsps, [1, 2, 3, 4]);
    let expected = [
        ("1 accepted", 2),
        ("2 accepted", 2),
        ("3 accepted", 1),
        ("other accepted", 2),
    ];
    check(&dsps, &expected);
}

#[test]
fn list_applies_regardless_of_existing_series() {
    let dsps = dsps(&[]);
    accept(&dsps, 1..=64);
    for list in 0..10 {
        let first = 1_000 * (1 + list);
        let listed: Vec<u32> = (first..).take(CONTRACTS_MAX).collect();
        dsps.set_contracts(contracts(&listed, true));
        check_rejected(&dsps, &[1, first - 1], &[1, first - 1]);
        check_rejected(&dsps, &listed, &[]);
    }
}

#[test]
fn series_stay_bounded_and_keep_their_total_through_list_changes() {
    let dsps = dsps(&[]);
    let mut accepted = 0;
    for list in 0..10 {
        let first = 1_000 * (1 + list);
        let listed: Vec<u32> = (first..).take(CONTRACTS_MAX).collect();
        dsps.set_contracts(contracts(&listed, false));
        accept(&dsps, first - 1..first + 50);
        accepted += 51;
        let series = series(&dsps);
        assert!(series.len() <= SERIES_MAX + 1, "{} series", series.len());
        assert_eq!(series.values().sum::<u64>(), accepted);
        assert_eq!(series[&format!("{first} accepted")], 1);
    }
}
