//! One pass through a collection: when it is at the end, and which documents it deletes. Pure.

use mongodb::bson::{Bson, DateTime};

use super::super::date;

/// A document as a sweep sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SweptDocument {
    pub(super) id: Bson,
    /// What has none is none of ours.
    pub(super) accepted: Option<DateTime>,
}

/// A pass, from the first document that the server holds to the last.
#[derive(Debug)]
pub(super) struct Pass {
    began: DateTime,
    /// How many documents there were when it began.
    documents: u64,
    looked: u64,
}

impl Pass {
    /// A pass that begins at `now`, in microseconds since the Unix epoch, through so many documents.
    pub(super) fn new(now: u64, documents: u64) -> Self {
        Self {
            began: date(now),
            documents,
            looked: 0,
        }
    }

    /// Notes the next documents. Tells whether every document that there was when the pass began has been looked at: newer ones
    /// come after all others.
    pub(super) fn look(&mut self, seen: &[SweptDocument]) -> bool {
        let had_all = self.looked >= self.documents;
        self.looked += seen.len() as u64;
        let is_new =
            |it: &SweptDocument| it.accepted.is_some_and(|accepted| accepted >= self.began);
        had_all && seen.iter().all(is_new)
    }

    /// How many documents are left.
    pub(super) fn left(&self) -> u64 {
        self.documents.saturating_sub(self.looked)
    }
}

/// Those of the documents that were accepted before `due`, in microseconds since the Unix epoch.
pub(super) fn expired(seen: Vec<SweptDocument>, due: u64) -> Vec<Bson> {
    let due = date(due);
    let is_expired = |it: &SweptDocument| it.accepted.is_some_and(|accepted| accepted < due);
    let expired = seen.into_iter().filter(is_expired);
    expired.map(|it| it.id).collect()
}

#[cfg(test)]
mod tests;
