//! The commands that write cookies, from a batch's bytes straight to BSON. Pure.
//!
//! A command here is one BSON document, so it stays below the server's 16 MiB for a document: a thousand of the largest
//! cookies take a twentieth of that.
//!
//! Public for the micro-benchmarks; what writes cookies is [`MongodbStore`](super::MongodbStore).
//!
//! What each costs mongod 6.0 for a cookie, in 20 collections of 20,000, measured on two cores: insert 3.5 µs; insert
//! of one that is there 27 µs; look 2.7 µs; replace 13–14 µs; upsert 21 µs, or 25 µs when it inserts.

use std::collections::BTreeMap;

use mongodb::bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::{COOKIES, WriteConcern, date};
use crate::batch::{Batch, BatchCookie};

/// Most cookies of one command: more made none cheaper, and with so few even a slow server often gives a sign.
const COOKIES_MAX: usize = 1_000;

/// The same of a [`Kind::Upsert`]: one that another unique index refuses takes the server some milliseconds.
const UPSERTS_MAX: usize = 100;

/// The indices of a batch's cookies by DSP, ordered by user within each: neighbours in a collection's index are then
/// written together. Costs a sort.
#[must_use]
pub fn by_dsp(batch: &Batch) -> BTreeMap<u32, Vec<u32>> {
    let mut by_dsp: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for index in batch.by_user() {
        let cookie = batch.cookie(index as usize);
        by_dsp.entry(cookie.dsp_id).or_default().push(index);
    }
    by_dsp
}

/// What a command does with its cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Inserts them, each on its own: those whose user is there already come back as duplicates.
    Insert,
    /// Asks which users are there, and with which time.
    Look,
    /// Replaces those that are there by newer ones; neither inserts one nor replaces a newer one. Says how many
    /// were there and how many were replaced.
    ///
    /// As few update operations as are cheapest, each for a few dozen users: one for each user costs
    /// half as much again. The new values lie in arrays; the pipeline finds a document's place in them.
    Replace,
    /// Replaces by newer ones or inserts, each on its own. One that is older than what is there matches nothing,
    /// fails to insert, and comes back as a duplicate.
    Upsert,
}

/// Users of one operation of a [`Kind::Replace`]. The pipeline compares a document's id with half of them on average:
/// of 16 to 512, 32 to 64 were the cheapest.
const REPLACE_GROUP: usize = 48;

impl Kind {
    /// Most cookies of one command.
    pub(super) fn cookies_max(self) -> usize {
        if self == Self::Upsert {
            UPSERTS_MAX
        } else {
            COOKIES_MAX
        }
    }

    /// The command for the cookies at these indices of `batch`.
    #[must_use]
    pub fn encode(
        self,
        batch: &Batch,
        indices: &[u32],
        concern: Option<&WriteConcern>,
    ) -> RawDocumentBuf {
        let cookies = indices.iter().map(|index| batch.cookie(*index as usize));
        let mut command = match self {
            Self::Look => return look(cookies),
            Self::Insert => {
                let documents: RawArrayBuf = cookies.map(|cookie| document(&cookie)).collect();
                rawdoc! { "insert": COOKIES, "ordered": false, "documents": documents }
            }
            Self::Upsert => update(cookies.map(|cookie| upsert(&cookie)).collect()),
            Self::Replace => {
                let groups = indices.chunks(REPLACE_GROUP);
                update(groups.map(|group| replace(batch, group)).collect())
            }
        };
        if let Some(concern) = concern {
            let concern = match concern {
                WriteConcern::Nodes(nodes) => rawdoc! { "w": *nodes },
                WriteConcern::Tag(tag) => rawdoc! { "w": &**tag },
            };
            command.append(cstr!("writeConcern"), concern);
        }
        command
    }
}

fn update(updates: RawArrayBuf) -> RawDocumentBuf {
    rawdoc! { "update": COOKIES, "ordered": false, "updates": updates }
}

/// `{_id: …, b: …, t: …}`
fn document(cookie: &BatchCookie<'_>) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), text(cookie.user_id));
    document.append(cstr!("b"), text(cookie.buyer_uid));
    document.append(cstr!("t"), date(cookie.accepted_unix_micros));
    document
}

fn upsert(cookie: &BatchCookie<'_>) -> RawDocumentBuf {
    let time = date(cookie.accepted_unix_micros);
    rawdoc! {
        "q": { "_id": text(cookie.user_id), "t": { "$lte": time } },
        "u": { "$set": { "b": text(cookie.buyer_uid), "t": time } },
        "upsert": true,
    }
}

/// All in one answer: it is smaller than an insert of the same.
fn look<'a>(cookies: impl ExactSizeIterator<Item = BatchCookie<'a>>) -> RawDocumentBuf {
    let count = i64::try_from(cookies.len()).expect("commands are split");
    let users: RawArrayBuf = cookies.map(|cookie| text(cookie.user_id)).collect();
    rawdoc! {
        "find": COOKIES,
        "filter": { "_id": { "$in": users } },
        "projection": { "t": 1 },
        "batchSize": count,
        "singleBatch": true,
    }
}

/// One operation for many users. Nothing in a `$literal` is taken for a field or a variable.
fn replace(batch: &Batch, group: &[u32]) -> RawDocumentBuf {
    let cookies = || group.iter().map(|index| batch.cookie(*index as usize));
    let users: RawArrayBuf = cookies().map(|cookie| text(cookie.user_id)).collect();
    let buyer_uids: RawArrayBuf = cookies().map(|cookie| text(cookie.buyer_uid)).collect();
    let times = cookies().map(|cookie| date(cookie.accepted_unix_micros));
    let times: RawArrayBuf = times.collect();
    let place = rawdoc! { "$indexOfArray": [{ "$literal": users.clone() }, "$_id"] };
    let element = |of: RawArrayBuf| rawdoc! { "$arrayElemAt": [{ "$literal": of }, "$$i"] };
    let replaced = rawdoc! { "$cond": [
        { "$lte": ["$t", "$$t"] },
        { "_id": "$_id", "b": element(buyer_uids), "t": "$$t" },
        "$$ROOT",
    ] };
    let with_time = rawdoc! { "$let": { "vars": { "t": element(times) }, "in": replaced } };
    rawdoc! {
        "q": { "_id": { "$in": users } },
        "multi": true,
        "u": [{ "$replaceWith": { "$let": { "vars": { "i": place }, "in": with_time } } }],
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("a batch holds checked cookies")
}

#[cfg(test)]
mod tests;
