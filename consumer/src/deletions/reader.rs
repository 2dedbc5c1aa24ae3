//! Reads of several pairs with one lock of the table.

use parking_lot::MutexGuard;
use proto::units::{DspId, UnixMicros};

use super::{Deletions, Table};

/// The locked table.
#[derive(Debug)]
pub struct Reader<'a> {
    pub(super) deletions: &'a Deletions,
    pub(super) table: MutexGuard<'a, Table>,
}

impl Reader<'_> {
    /// As [`Deletions::deleted_until`].
    pub fn deleted_until(&self, user_id: &[u8], dsp_id: DspId) -> UnixMicros {
        let oldest = self.table.queued.get(&dsp_id).copied().flatten();
        let floor = oldest.map(|_| self.table.floor);
        let job = self.table.jobs.get(&dsp_id).map(|(until, _)| *until);
        let removed = floor.max(job).unwrap_or_default();
        removed.max(self.latest(user_id, dsp_id))
    }

    /// The times of the deletions of the pair, the user, and the DSP.
    pub fn of_scopes(&self, user_id: &[u8], dsp_id: DspId) -> [Option<UnixMicros>; 3] {
        let hashes = self.deletions.hashes(user_id, dsp_id);
        hashes.map(|hash| self.table.until.get(&hash).copied())
    }

    pub(super) fn latest(&self, user_id: &[u8], dsp_id: DspId) -> UnixMicros {
        let times = self.of_scopes(user_id, dsp_id).into_iter().flatten();
        times.max().unwrap_or_default()
    }
}
