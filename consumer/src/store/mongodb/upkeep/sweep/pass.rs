//! One pass over a collection: detects its end. Does no I/O.

use mongodb::bson::DateTime;
use proto::units::UnixMicros;

use super::super::super::{date, documents::ScannedDocument};

/// A pass over all documents in natural order.
#[derive(Debug)]
pub(super) struct Pass {
    began: DateTime,
    /// Number of documents when it began.
    documents: u64,
    scanned: u64,
}

impl Pass {
    /// A pass over `documents` that begins at `now`.
    pub(super) fn new(now: UnixMicros, documents: u64) -> Self {
        Self {
            began: date(now),
            documents,
            scanned: 0,
        }
    }

    /// Scans the next documents. Returns whether all documents that existed at the beginning are scanned: later ones
    /// are newer.
    pub(super) fn scan(&mut self, found: &[ScannedDocument]) -> bool {
        let had_all = self.scanned >= self.documents;
        self.scanned += found.len() as u64;
        let is_new =
            |it: &ScannedDocument| it.accepted.is_some_and(|accepted| accepted >= self.began);
        had_all && found.iter().all(is_new)
    }

    /// Number of documents left to scan.
    pub(super) fn remaining(&self) -> u64 {
        self.documents.saturating_sub(self.scanned)
    }
}

#[cfg(test)]
mod tests;
