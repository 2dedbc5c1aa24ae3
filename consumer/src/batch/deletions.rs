//! Deletions of a batch, and the DSPs whose cookies must be added to the retry queue.

use std::collections::BTreeSet;

use proto::units::DspId;

use super::Batch;
use crate::deletions::{Deletion, Deletions};

impl Batch {
    /// The deletions, which must be carried out before the cookies are written.
    pub fn deletions(&self) -> &[Deletion] {
        &self.deletions
    }

    /// Removes cookies that a deletion covers, and all deletions except the latest of each scope. Must be called once,
    /// after the last push.
    pub fn remove_deleted(&mut self, deletions: &Deletions) {
        let by_scope = |a: &Deletion, b: &Deletion| {
            let scopes = a.scope.cmp(&b.scope);
            scopes.then(b.until.cmp(&a.until))
        };
        self.deletions.sort_by(by_scope);
        self.deletions.dedup_by(|a, b| a.scope == b.scope);
        let chunks = &self.chunks;
        let before = self.entries.len();
        self.entries
            .retain(|entry| entry.accepted > deletions.until(entry.user_id(chunks), entry.dsp_id));
        self.counts.deleted_on_arrival += (before - self.entries.len()) as u64;
        self.index.clear();
    }

    /// A batch with only the deletions.
    pub fn only_deletions(&self) -> Self {
        let mut batch = Self::new(1, 1);
        batch.deletions.clone_from(&self.deletions);
        batch
    }

    /// Whether a DSP's cookies must be added to the retry queue behind its earlier ones: a store cannot order two
    /// cookies of the same millisecond.
    pub fn is_deferred(&self, dsp_id: DspId) -> bool {
        self.deferred.contains(&dsp_id)
    }

    /// Sets the DSPs whose cookies must be added to the retry queue.
    pub fn defer_dsps(&mut self, dsps: BTreeSet<DspId>) {
        self.deferred = dsps;
    }

    /// The DSPs from which the batch's deletions remove cookies: those in `slots`, which have a database, and those in
    /// the retry queue, whose database a retry may be creating.
    pub fn dsps_with_removals(&self, slots: &BTreeSet<DspId>) -> BTreeSet<DspId> {
        let mut dsps = slots | &self.deferred;
        dsps.retain(|dsp_id| self.deletions.iter().any(|it| it.removes_from(*dsp_id)));
        dsps
    }
}
