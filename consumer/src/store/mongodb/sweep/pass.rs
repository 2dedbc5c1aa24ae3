//! One pass over a collection: detects its end, and selects the documents to delete. Does no I/O.

use mongodb::bson::{Bson, DateTime};

use super::super::date;

/// The fields of a document that a sweep reads.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct SweptDocument {
    pub(super) id: Bson,
    /// `None` if the document is not a cookie.
    pub(super) accepted: Option<DateTime>,
}

/// A pass over all documents in natural order.
#[derive(Debug)]
pub(super) struct Pass {
    began: DateTime,
    /// Number of documents when it began.
    documents: u64,
    scanned: u64,
}

impl Pass {
    /// A pass over `documents` that begins at `now`, in microseconds since the Unix epoch.
    pub(super) fn new(now: u64, documents: u64) -> Self {
        Self {
            began: date(now),
            documents,
            scanned: 0,
        }
    }

    /// Scans the next documents. Returns whether all documents that existed at the beginning are scanned: later ones
    /// are newer.
    pub(super) fn scan(&mut self, found: &[SweptDocument]) -> bool {
        let had_all = self.scanned >= self.documents;
        self.scanned += found.len() as u64;
        let is_new =
            |it: &SweptDocument| it.accepted.is_some_and(|accepted| accepted >= self.began);
        had_all && found.iter().all(is_new)
    }

    /// Number of documents left to scan.
    pub(super) fn remaining(&self) -> u64 {
        self.documents.saturating_sub(self.scanned)
    }
}

/// Ids of the documents accepted before the time that `before` returns for them, in microseconds since the Unix epoch. Paired
/// with this time and ordered by it.
pub(in super::super) fn expired(
    found: Vec<SweptDocument>,
    before: impl Fn(&Bson) -> u64,
) -> Vec<(u64, Bson)> {
    let expired = found
        .into_iter()
        .filter_map(|SweptDocument { id, accepted }| {
            let before = before(&id);
            (accepted? < date(before)).then_some((before, id))
        });
    let mut expired: Vec<_> = expired.collect();
    expired.sort_by_key(|(before, _)| *before);
    expired
}

#[cfg(test)]
mod tests;
