//! Checks of deletions. A cookie covered by a durable deletion must never be returned again. A receipt must not claim more than
//! the stores have done. No other cookie may be missing because of a deletion.
//!
//! A deletion covers cookies accepted up to its time, according to the clocks of the producers. If clocks differ, it may cover a few more
//! or fewer cookies than the order of the requests suggests, within the difference of the clocks.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::{
    UNPOISONED,
    api_client::{ApiClient, Receipt},
    load::{AcceptanceWindow, History, Pair, SyncRequest},
    store::Disk,
};

/// Entries of the smallest table: 4 KiB at 40 bytes each.
const SMALL_TABLE: usize = 102;

/// Times up to which durable deletions cover the cookies of a user, by DSP.
pub(crate) fn deleted(disk: &Disk, user: u64) -> BTreeMap<u32, u64> {
    let pairs = (1..=3).map(|dsp| Pair { user, dsp });
    let deleted = pairs.map(|pair| (pair.dsp, disk.record.deleted_until(pair)));
    deleted.collect()
}

/// Checks the response to a lookup that was sent when `deleted` was durable.
pub(crate) fn lookup(
    disk: &Disk,
    user: u64,
    deleted: BTreeMap<u32, u64>,
    status: u16,
    body: &str,
) -> anyhow::Result<()> {
    if matches!(status, 404 | 503) {
        return Ok(());
    }
    ensure!(status == 200, "{status} {body} to a lookup of u{user}");
    let body: Value = serde_json::from_str(body)?;
    let found = body["buyer_uids"].as_object().context("no buyer uids")?;
    for (dsp, buyer_uid) in found {
        let dsp: u32 = dsp.parse()?;
        let number = buyer_uid.as_str().and_then(|uid| uid.strip_prefix('b'));
        let number: u64 = number.context("an invalid buyer uid")?.parse()?;
        let mut received = disk.record.received_values(number);
        ensure!(
            received.any(|value| value.accepted_unix_micros > deleted[&dsp]),
            "a lookup of u{user} shows {buyer_uid} of DSP {dsp}, which was deleted until {deleted:?}"
        );
    }
    Ok(())
}

/// Checks that a node has each of these deletions, which the producer reported as not at risk.
pub(crate) fn is_durable(
    client: &ApiClient,
    history: &History,
    deletions: &[usize],
) -> anyhow::Result<()> {
    for number in deletions {
        let deletion = &history.syncs[*number];
        let mut disks = client.disks.iter();
        ensure!(
            disks.any(|disk| has(&disk.lock().expect(UNPOISONED), client, deletion)),
            "no node has the deletion b{number}, which is not at risk: {deletion:?}"
        );
    }
    Ok(())
}

/// Checks that at least the number of nodes that a receipt confirms have removed the cookies from their stores.
pub(crate) fn receipt(
    client: &ApiClient,
    history: &History,
    receipt: &Receipt,
    body: &str,
) -> anyhow::Result<()> {
    let status: Value = serde_json::from_str(body)?;
    let confirmed = status["nodes"]["confirmed"].as_u64();
    let confirmed = confirmed.context("no count")?;
    let deletions = receipt.deletions.iter().map(|it| &history.syncs[*it]);
    let clean = client.disks.iter().filter(|disk| {
        let disk = disk.lock().expect(UNPOISONED);
        deletions.clone().all(|deletion| {
            let until = deletion.acceptance(client.process.clock_ahead).earliest;
            let mut values = disk.values().into_iter().filter(|(pair, value)| {
                deletion.pair.concerns(*pair) && value.accepted_unix_micros <= until
            });
            has(&disk, client, deletion) && values.next().is_none()
        })
    });
    let clean = clean.count() as u64;
    ensure!(
        confirmed <= clean,
        "{clean} nodes have carried out {receipt:?}, not {status}"
    );
    Ok(())
}

/// Whether a deletion, or a later one of its scope, is durable.
fn has(disk: &Disk, client: &ApiClient, deletion: &SyncRequest) -> bool {
    let known = disk.record.durable_deletions.get(&deletion.pair);
    let window = deletion.acceptance(client.process.clock_ahead);
    known.is_some_and(|until| *until >= window.earliest)
}

/// Checks that a store shows nothing that a durable deletion covers.
pub(super) fn nothing_is_back(disk: &Disk) -> anyhow::Result<()> {
    for (pair, value) in disk.values() {
        let until = disk.record.deleted_until(pair);
        ensure!(
            value.accepted_unix_micros > until,
            "{pair:?} has {value:?}, which was deleted until {until}"
        );
    }
    Ok(())
}

/// Time up to which a node may reject all cookies, because its table evicted deletions. A node keeps at least 7/8 of a full table.
pub(super) fn floor(disk: &Disk, has_small_table: bool) -> u64 {
    let mut times: Vec<u64> = disk.record.deletions.values().copied().collect();
    if !has_small_table || times.len() <= SMALL_TABLE {
        return 0;
    }
    times.sort_unstable();
    times[times.len() - (SMALL_TABLE + 1 - SMALL_TABLE / 8)]
}

/// The deletions of a history by scope, for finding the syncs that they may cover.
pub(super) struct DeletionIndex<'a> {
    by_scope: BTreeMap<Pair, Vec<(&'a SyncRequest, AcceptanceWindow)>>,
}

impl<'a> DeletionIndex<'a> {
    pub(super) fn new(
        history: &'a History,
        window: impl Fn(&SyncRequest) -> AcceptanceWindow,
    ) -> Self {
        let mut by_scope: BTreeMap<Pair, Vec<_>> = BTreeMap::new();
        for deletion in history.syncs.iter().filter(|it| it.is_deletion) {
            let window = window(deletion);
            by_scope
                .entry(deletion.pair)
                .or_default()
                .push((deletion, window));
        }
        Self { by_scope }
    }

    fn of(&self, pair: Pair) -> impl Iterator<Item = &(&'a SyncRequest, AcceptanceWindow)> {
        let scopes = pair.scopes().into_iter();
        scopes
            .filter_map(|scope| self.by_scope.get(&scope))
            .flatten()
    }

    /// Whether a deletion may cover a sync that was accepted in `window`.
    pub(super) fn may_cover(&self, pair: Pair, window: AcceptanceWindow) -> bool {
        let mut deletions = self.of(pair);
        deletions.any(|(_, until)| until.latest >= window.earliest)
    }

    /// Whether a node certainly stores `sync` again, although it repeats the buyer uid of earlier syncs. One deletion must certainly cover
    /// all of these and be durable on the node. Every deletion that may cover one of them must be earlier than `sync` in the same log.
    pub(super) fn is_stored_again(
        &self,
        disk: &Disk,
        sync: &SyncRequest,
        earlier: &[AcceptanceWindow],
    ) -> bool {
        let may_cover = |until: &AcceptanceWindow| {
            let mut earlier = earlier.iter();
            earlier.any(|window| until.latest >= window.earliest)
        };
        let covers_all = |until: &AcceptanceWindow| {
            let mut earlier = earlier.iter();
            earlier.all(|window| until.earliest >= window.latest)
        };
        let is_before = |deletion: &SyncRequest| {
            let log = |it: &SyncRequest| (it.producer, it.incarnation);
            let answered = deletion.answered_at;
            log(deletion) == log(sync) && answered.is_some_and(|at| at <= sync.sent_at)
        };
        let is_durable = |deletion: &SyncRequest, window: &AcceptanceWindow| {
            let known = disk.record.durable_deletions.get(&deletion.pair);
            known.is_some_and(|until| *until >= window.earliest)
        };
        let covering = || self.of(sync.pair).filter(|(_, until)| may_cover(until));
        covering().all(|(deletion, _)| is_before(deletion))
            && covering().any(|(it, until)| covers_all(until) && is_durable(it, until))
    }
}
