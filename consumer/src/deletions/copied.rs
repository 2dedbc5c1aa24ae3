//! Deletions of another node, while its cookies are copied.

use std::sync::atomic::Ordering;

use proto::units::UnixMicros;

use super::{Deletion, Deletions};

impl Deletions {
    /// Begins to copy the cookies of another node, and of its deletions. Until these are known, all delayed cookies of streams
    /// count as deleted. Deletions stay in the table until the copy is complete.
    pub fn begin_copy(&self) {
        self.shared.table.lock().copied_floor = Some(UnixMicros::MAX);
        self.shared.covers_any.store(true, Ordering::Relaxed);
    }

    /// Raises the floor to that of another node, whose deletions are now in this table.
    pub fn raise_copied_floor(&self, floor: UnixMicros) {
        let mut table = self.shared.table.lock();
        let known = table.copied_floor.filter(|known| *known < UnixMicros::MAX);
        table.copied_floor = known.max(Some(floor));
    }

    /// Ends the copy: its floor becomes that of this table.
    pub fn end_copy(&self) {
        let mut table = self.shared.table.lock();
        table.floor = table
            .floor
            .max(table.copied_floor.take().unwrap_or_default());
    }

    /// Whether cookies of another node are being copied.
    pub fn is_copying(&self) -> bool {
        self.shared.table.lock().copied_floor.is_some()
    }

    /// Adds a deletion of another node, unless an equal or later one is known: this node may know its request.
    pub fn add_copied(&self, deletion: &Deletion) {
        let (user_id, dsp_id) = deletion.ids();
        let hash = self.hash(user_id, dsp_id);
        let known = self.shared.table.lock().until.get(&hash).copied();
        if known < Some(deletion.until) {
            self.add(deletion);
        }
    }
}
