//! How far the sweep of one collection is, and what its next step deletes. Pure.
//!
//! A step looks at the documents after an *anchor*, in the order in which the server holds them, and its last one becomes the
//! next anchor. An anchor must be there for the step after it, so it goes one step late. Who is killed between a step's deletions
//! and the note of its end does the step again; only after the very last one, whose anchor is gone with it, the collection.

use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::super::{date, number};

/// A document as a sweep sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) id: Bson,
    /// What has none is none of ours.
    pub(super) accepted: Option<DateTime>,
}

/// How far the sweep of a collection is; times in microseconds since the Unix epoch.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in super::super) struct Position {
    /// When the newest pass began.
    began: u64,
    /// Its time to live.
    ttl: Duration,
    /// When the newest pass that is complete began, and its time to live.
    complete: Option<(u64, Duration)>,
    /// The member of a replica set whose order it is in.
    member: String,
    /// How many documents there were when the newest pass began.
    documents: u64,
    /// Documents that the newest pass has looked at.
    looked: u64,
    /// When it was worked on last.
    at: u64,
    anchor: Option<Anchor>,
    /// The anchor before, if it had expired.
    left: Option<Bson>,
}

#[derive(Debug, Clone, PartialEq)]
struct Anchor {
    id: Bson,
    is_expired: bool,
}

impl Position {
    /// Whether a pass that began after `since`, with this time to live, is complete. One that began after `now` was noted by
    /// a clock that was ahead.
    pub(super) fn had_turn(&self, since: u64, now: u64, ttl: Duration) -> bool {
        self.complete.is_some_and(|(began, then)| {
            (date(since)..=date(now)).contains(&date(began)) && then == ttl
        })
    }

    /// The pass to work on at `now`: this one, or a new one through so many documents if it is complete, had another time to
    /// live, or was in the order of another member.
    pub(super) fn begin(self, now: u64, ttl: Duration, member: &str, documents: u64) -> Self {
        let pass = if self.anchor.is_some() && self.ttl == ttl && self.member == member {
            self
        } else {
            Self {
                began: now,
                ttl,
                member: member.to_owned(),
                documents,
                complete: self.complete,
                ..Self::default()
            }
        };
        Self { at: now, ..pass }
    }

    /// Whether any pass is complete.
    pub(in super::super) fn is_swept(&self) -> bool {
        self.complete.is_some()
    }

    /// Whether the newest pass is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.complete == Some((self.began, self.ttl))
    }

    /// When it was worked on last, by a clock that shows `now`: never, if that clock was ahead then.
    pub(super) fn worked_on(&self, now: u64) -> u64 {
        if self.at > now { 0 } else { self.at }
    }

    /// How many of `documents` a sweep of since then, with this time to live, has yet to look at: after what is left of
    /// an earlier pass, all of them again.
    pub(super) fn left(&self, since: u64, ttl: Duration, documents: u64) -> u64 {
        let left = self.documents.saturating_sub(self.looked);
        match (self.is_complete(), date(self.began) >= date(since)) {
            _ if self.ttl != ttl => documents,
            (false, true) => left.min(documents),
            (false, false) => left.min(documents) + documents,
            (true, true) => 0,
            (true, false) => documents,
        }
    }

    /// The same pass from the first document on, because its anchor is gone.
    pub(super) fn anew(self) -> Self {
        Self {
            anchor: None,
            left: None,
            looked: 0,
            ..self
        }
    }

    /// After which document the next step looks on.
    pub(super) fn anchor(&self) -> Option<&Bson> {
        self.anchor.as_ref().map(|anchor| &anchor.id)
    }

    /// Whether every document that there was when the pass began has been looked at by the time these are: newer ones come
    /// after all others.
    pub(super) fn is_past(&self, seen: &[Seen]) -> bool {
        let began = date(self.began);
        let is_new = |it: &Seen| it.accepted.is_some_and(|accepted| accepted >= began);
        self.looked >= self.documents && seen.iter().all(is_new)
    }

    /// The documents to be deleted after those `seen`, if they were accepted before `due` still, and then the position.
    pub(super) fn step(
        mut self,
        mut seen: Vec<Seen>,
        is_last: bool,
        due: u64,
    ) -> (Vec<Bson>, Self) {
        let due = date(due);
        let is_expired = |it: &Seen| it.accepted.is_some_and(|accepted| accepted < due);
        self.looked += seen.len() as u64;
        let last = if is_last { None } else { seen.pop() };
        let mut expired: Vec<Bson> = self.left.take().into_iter().collect();
        let anchor = self.anchor.take().filter(|anchor| anchor.is_expired);
        expired.extend(seen.into_iter().filter(is_expired).map(|it| it.id));
        match last {
            Some(last) => {
                self.left = anchor.map(|anchor| anchor.id);
                let is_expired = is_expired(&last);
                let id = last.id;
                self.anchor = Some(Anchor { id, is_expired });
            }
            None => {
                expired.extend(anchor.map(|anchor| anchor.id));
                self.complete = Some((self.began, self.ttl));
            }
        }
        (expired, self)
    }

    /// How far the oldest cookie of the collection may be beyond this time to live at `now`.
    pub(in super::super) fn overdue(&self, now: u64, ttl: Duration) -> Duration {
        let (began, then) = self.complete.unwrap_or((self.began, ttl));
        let since = Duration::from_micros(now.saturating_sub(began));
        (since + then).saturating_sub(ttl)
    }

    pub(super) fn encode(&self, namespace: &str) -> Document {
        let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut record = doc! {
            "_id": namespace,
            "began": date(self.began),
            "ttl": micros_of(self.ttl),
            "member": &self.member,
            "documents": int(self.documents),
            "looked": int(self.looked),
            "at": date(self.at),
        };
        if let Some((began, ttl)) = self.complete {
            record.insert(
                "complete",
                doc! { "began": date(began), "ttl": micros_of(ttl) },
            );
        }
        if let Some(Anchor { id, is_expired }) = &self.anchor {
            record.insert("anchor", doc! { "id": id, "expired": is_expired });
        }
        if let Some(left) = &self.left {
            record.insert("left", left);
        }
        record
    }

    /// The namespace of a record, and its position: at the beginning where it makes no sense.
    pub(super) fn decode(record: &Document) -> Option<(String, Self)> {
        let anchor = record.get_document("anchor").ok();
        let position = Self {
            began: micros(record, "began").unwrap_or_default(),
            ttl: ttl(record).unwrap_or_default(),
            complete: record
                .get_document("complete")
                .ok()
                .and_then(|complete| Some((micros(complete, "began")?, ttl(complete)?))),
            member: record.get_str("member").unwrap_or_default().to_owned(),
            // Without it nothing tells that the end is near but the end.
            documents: record.get("documents").and_then(number).unwrap_or(u64::MAX),
            looked: record.get("looked").and_then(number).unwrap_or_default(),
            at: micros(record, "at").unwrap_or_default(),
            anchor: anchor.and_then(|anchor| {
                let id = anchor.get("id")?.clone();
                let is_expired = anchor.get_bool("expired").ok()?;
                Some(Anchor { id, is_expired })
            }),
            left: record.get("left").cloned(),
        };
        Some((record.get_str("_id").ok()?.to_owned(), position))
    }
}

fn micros_of(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn micros(document: &Document, key: &str) -> Option<u64> {
    let millis = document.get_datetime(key).ok()?.timestamp_millis();
    Some(u64::try_from(millis).ok()?.saturating_mul(1_000))
}

fn ttl(document: &Document) -> Option<Duration> {
    document
        .get("ttl")
        .and_then(number)
        .map(Duration::from_micros)
}

#[cfg(test)]
mod tests;
