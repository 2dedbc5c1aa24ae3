//! Checks of deletions. A cookie covered by a durable deletion must never be returned again. A receipt must not claim more than
//! the stores have done. No other cookie may be missing because of a deletion.
//!
//! A deletion covers all cookies that were accepted before it was requested, whatever the clocks of the producers show: the checks
//! compare simulated times. It may also cover later cookies, within the difference of the clocks.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use proto::units::{DspId, UnixMicros};
use serde_json::Value;

use crate::{
    UNPOISONED,
    api_client::{ApiClient, Receipt},
    load::{AcceptanceWindow, History, Pair, SyncRequest},
    store::{Disk, StoredValue},
    world::World,
};

/// Entries of the smallest table: 4 KiB at 40 bytes each.
const SMALL_TABLE: usize = 102;

/// Times up to which durable deletions cover the cookies of a user, by DSP.
pub(crate) fn deleted(disk: &Disk, user: u64) -> BTreeMap<DspId, UnixMicros> {
    let pairs = (1..=3).map(|dsp| Pair {
        user,
        dsp: DspId(dsp),
    });
    let deleted = pairs.map(|pair| (pair.dsp, disk.record.deleted_until(pair)));
    deleted.collect()
}

/// Checks the response to a lookup that was sent when `deleted` was durable.
pub(crate) fn lookup(
    disk: &Disk,
    user: u64,
    deleted: BTreeMap<DspId, UnixMicros>,
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
        let dsp: DspId = dsp.parse()?;
        let number = buyer_uid.as_str().and_then(|uid| uid.strip_prefix('b'));
        let number: u64 = number.context("an invalid buyer uid")?.parse()?;
        let mut received = disk.record.received_values(number);
        ensure!(
            received.any(|value| value.accepted > deleted[&dsp]),
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
    let last = last_accepted(history);
    let clean = client.disks.iter().filter(|disk| {
        let disk = disk.lock().expect(UNPOISONED);
        deletions.clone().all(|deletion| {
            has(&disk, client, deletion) && survivor(&disk, history, &last, deletion).is_none()
        })
    });
    let clean = clean.count() as u64;
    ensure!(
        confirmed <= clean,
        "{clean} nodes have carried out {receipt:?}, not {status}"
    );
    Ok(())
}

/// For each buyer uid, the latest simulated time at which a sync of it may have been accepted.
fn last_accepted(history: &History) -> BTreeMap<u64, u64> {
    let mut last = BTreeMap::new();
    for sync in history.syncs.iter().filter(|it| !it.is_deletion) {
        let latest: &mut u64 = last.entry(sync.value as u64).or_default();
        *latest = history.accepted(sync).latest.max(*latest);
    }
    last
}

/// A value in a store that was certainly accepted before the deletion was requested.
fn survivor(
    disk: &Disk,
    history: &History,
    last: &BTreeMap<u64, u64>,
    deletion: &SyncRequest,
) -> Option<(Pair, StoredValue)> {
    let requested = history.accepted(deletion).earliest;
    let mut values = disk.values().into_iter();
    values.find(|(pair, value)| {
        let is_before = last.get(&value.number).is_some_and(|at| *at <= requested);
        deletion.pair.concerns(*pair) && is_before
    })
}

/// Checks that no value survives a deletion that the node has received: those that the running producers have in their logs.
pub(super) fn none_survives(world: &World, history: &History, disk: &Disk) -> anyhow::Result<()> {
    if world.plan.queue_cookies.is_some() && !world.plan.has_archive {
        return Ok(());
    }
    let last = last_accepted(history);
    let deletions = history.syncs.iter().filter(|it| {
        let incarnation = world.producers[it.producer].incarnation();
        it.is_deletion && it.answered_at.is_some() && it.incarnation == incarnation
    });
    for deletion in deletions {
        let survivor = survivor(disk, history, &last, deletion);
        ensure!(
            survivor.is_none(),
            "{survivor:?} survived the later {deletion:?}"
        );
    }
    Ok(())
}

/// Whether a deletion, or a later one of its scope, is durable.
fn has(disk: &Disk, client: &ApiClient, deletion: &SyncRequest) -> bool {
    let known = disk.record.durable_deletions.get(&deletion.pair);
    let window = deletion.acceptance(client.process.clock_ahead);
    known.is_some_and(|until| until.0 >= window.earliest)
}

/// Checks that a store shows nothing that a durable deletion covers.
pub(super) fn nothing_is_back(disk: &Disk) -> anyhow::Result<()> {
    for (pair, value) in disk.values() {
        let until = disk.record.deleted_until(pair);
        ensure!(
            value.accepted > until,
            "{pair:?} has {value:?}, which was deleted until {until}"
        );
    }
    Ok(())
}

/// Time up to which a node may reject all cookies, because its table evicted deletions. A node keeps at least 7/8 of a full table.
pub(super) fn floor(disk: &Disk, has_small_table: bool) -> u64 {
    let mut times: Vec<u64> = disk.record.deletions.values().map(|it| it.0).collect();
    if !has_small_table || times.len() <= SMALL_TABLE {
        return 0;
    }
    times.sort_unstable();
    times[times.len() - (SMALL_TABLE + 1 - SMALL_TABLE / 8)]
}

/// Maximum time by which a node may overestimate the difference of two clocks: the timeouts of the calls that measure both.
const ESTIMATE_ERROR: Duration = Duration::from_secs(15);

/// Maximum difference that a restarted node assumes until it has measured the clocks of all producers.
pub(super) const UNKNOWN_DIFFERENCE: Duration = Duration::from_secs(300);

/// A deletion, its time by the clock of its producer, and its simulated time.
type IndexedDeletion<'a> = (&'a SyncRequest, AcceptanceWindow, AcceptanceWindow);

/// The deletions of a history by scope, for finding the syncs that they may cover.
pub(super) struct DeletionIndex<'a> {
    history: &'a History,
    by_scope: BTreeMap<Pair, Vec<IndexedDeletion<'a>>>,
    /// Time after a deletion at which accepted cookies may still be covered, in microseconds.
    excess: u64,
    was_restarted: bool,
}

impl<'a> DeletionIndex<'a> {
    /// The index for a node that was restarted, or not.
    pub(super) fn new(
        history: &'a History,
        window: impl Fn(&SyncRequest) -> AcceptanceWindow,
        was_restarted: bool,
    ) -> Self {
        let mut by_scope: BTreeMap<Pair, Vec<_>> = BTreeMap::new();
        for deletion in history.syncs.iter().filter(|it| it.is_deletion) {
            by_scope.entry(deletion.pair).or_default().push((
                deletion,
                window(deletion),
                history.accepted(deletion),
            ));
        }
        let clocks = history.clocks_ahead.iter();
        let difference = clocks.clone().max().zip(clocks.min());
        let difference = difference.map_or(Duration::ZERO, |(max, min)| *max - *min);
        let unknown = if was_restarted {
            UNKNOWN_DIFFERENCE
        } else {
            Duration::ZERO
        };
        let excess = difference + ESTIMATE_ERROR + unknown;
        Self {
            history,
            by_scope,
            excess: u64::try_from(excess.as_micros()).expect("minutes"),
            was_restarted,
        }
    }

    fn of(&self, pair: Pair) -> impl Iterator<Item = &IndexedDeletion<'a>> {
        let scopes = pair.scopes().into_iter();
        scopes
            .filter_map(|scope| self.by_scope.get(&scope))
            .flatten()
    }

    /// Whether a deletion may cover a sync that was accepted in `window`.
    pub(super) fn may_cover(&self, sync: &SyncRequest, window: AcceptanceWindow) -> bool {
        let mut deletions = self.of(sync.pair);
        deletions.any(|it| self.covers(it, sync, window))
    }

    /// Whether a deletion may cover a sync. If both are from one producer and the sync arrived later, the times are exact.
    fn covers(
        &self,
        (deletion, until, deleted): &IndexedDeletion<'_>,
        sync: &SyncRequest,
        window: AcceptanceWindow,
    ) -> bool {
        let is_later = deletion.answered_at.is_some_and(|at| at <= sync.sent_at);
        let is_exact = deletion.producer == sync.producer
            && !self.was_restarted
            && (deletion.dated.is_none() || is_later);
        if is_exact {
            until.latest >= window.earliest
        } else {
            let accepted = window.simulated(self.history.clocks_ahead[sync.producer]);
            deleted.latest.saturating_add(self.excess) >= accepted.earliest
        }
    }

    /// Whether a node certainly stores `sync` again, although it repeats the buyer uid of earlier syncs. One deletion must certainly cover
    /// all of these and be durable on the node. Every deletion that may cover one of them must be earlier than `sync` in the same log.
    pub(super) fn is_stored_again(
        &self,
        disk: &Disk,
        sync: &SyncRequest,
        earlier: &[(&SyncRequest, AcceptanceWindow)],
    ) -> bool {
        let may_cover = |deletion: &&IndexedDeletion<'_>| {
            let mut earlier = earlier.iter();
            earlier.any(|(sync, window)| self.covers(deletion, sync, *window))
        };
        let covers_all = |deleted: &AcceptanceWindow| {
            let mut earlier = earlier.iter();
            earlier.all(|(sync, _)| deleted.earliest >= self.history.accepted(sync).latest)
        };
        let is_before = |deletion: &SyncRequest| {
            let log = |it: &SyncRequest| (it.producer, it.incarnation);
            let answered = deletion.answered_at;
            log(deletion) == log(sync) && answered.is_some_and(|at| at <= sync.sent_at)
        };
        let is_durable = |deletion: &SyncRequest, window: &AcceptanceWindow| {
            let known = disk.record.durable_deletions.get(&deletion.pair);
            known.is_some_and(|until| until.0 >= window.earliest)
        };
        let covering = || self.of(sync.pair).filter(may_cover);
        covering().all(|(deletion, ..)| is_before(deletion))
            && covering().any(|(it, until, at)| covers_all(at) && is_durable(it, until))
    }
}
