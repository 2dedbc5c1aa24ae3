//! The commands that write cookies, encoded from a batch directly to BSON. Does no I/O.
//!
//! A command is one BSON document and stays below the server's limit of 16 MiB: a thousand of the largest cookies take a
//! twentieth of it.
//!
//! Public for the micro-benchmarks. [`MongodbStore`](super::super::MongodbStore) sends these commands.
//!
//! CPU of mongod 6.0 per cookie, measured on two cores with 20 collections of 20,000 documents: insert 3.5 µs; failed
//! insert of an existing user 27 µs; find 2.7 µs; replace 13–14 µs; upsert 21 µs, or 25 µs if it inserts.

use std::collections::BTreeMap;

use mongodb::bson::{Document, RawDocumentBuf};
use proto::units::DspId;

use super::super::{
    COOKIES,
    bson::{ARRAY, Bson, DOCUMENT},
};
use crate::batch::{Batch, BatchCookie};

/// Maximum number of cookies per command. Larger commands are not more efficient, and smaller ones show progress on a slow
/// server.
const COOKIES_MAX: usize = 1_000;

/// Maximum number of cookies per [`Kind::Upsert`], because a cookie rejected by another unique index takes the server some
/// milliseconds.
const UPSERTS_MAX: usize = 100;

/// Reserved bytes per cookie of a command; enough for most cookies.
const COOKIE_BYTES: usize = 256;

/// The indices of a batch's cookies by DSP. Those of a DSP are sorted by user, so that neighbors in a collection's index are
/// written together.
pub fn by_dsp(batch: &Batch) -> BTreeMap<DspId, Vec<u32>> {
    let mut by_dsp: BTreeMap<DspId, Vec<u32>> = BTreeMap::new();
    for index in batch.by_user() {
        let cookie = batch.cookie(index as usize);
        by_dsp.entry(cookie.dsp_id).or_default().push(index);
    }
    by_dsp
}

/// The UUID of a collection. A dropped collection comes back with another one.
pub type CollectionId = [u8; 16];

/// The operation of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Inserts cookies independently. Existing users are returned as duplicate key errors.
    Insert,
    /// Finds existing users and their times.
    Find,
    /// Replaces existing cookies that are not newer; inserts nothing. Returns the numbers of matched and modified
    /// documents.
    ///
    /// Each update operation covers some dozen users; one per user costs 1.5 times as much. The new values are in arrays, and
    /// the pipeline finds the array index of a document.
    Replace,
    /// Replaces or inserts cookies independently. A cookie older than the stored one matches nothing, fails to insert, and is
    /// returned as a duplicate key error.
    Upsert,
}

/// Users per operation of a [`Kind::Replace`]. The pipeline compares an id with half of them on average. Of the values from
/// 16 to 512, 32 to 64 were the most efficient.
const REPLACE_GROUP: usize = 48;

impl Kind {
    /// Maximum number of cookies per command.
    pub(super) fn cookies_max(self) -> usize {
        if self == Self::Upsert {
            UPSERTS_MAX
        } else {
            COOKIES_MAX
        }
    }

    /// The command for the cookies at these indices of `batch`. With `collection`, it fails instead of creating the collection.
    ///
    /// # Panics
    /// When the command is too large.
    pub fn encode(
        self,
        batch: &Batch,
        indices: &[u32],
        concern: &Document,
        collection: Option<CollectionId>,
    ) -> RawDocumentBuf {
        let cookies = indices.iter().map(|index| batch.cookie(*index as usize));
        let cookies: Vec<BatchCookie<'_>> = cookies.collect();
        let mut bson = Bson::with_capacity((indices.len() + 1) * COOKIE_BYTES);
        let command = bson.begin();
        let (name, items) = self.fields();
        bson.string(name, COOKIES.as_bytes());
        if self == Self::Find {
            find(&mut bson, &cookies);
        } else {
            head(&mut bson, concern);
            if let Some(id) = collection {
                bson.uuid("collectionUUID", id);
            }
            let items = bson.begin_field(ARRAY, items);
            let each = cookies.iter().enumerate();
            match self {
                Self::Insert => each.for_each(|(at, cookie)| insert(&mut bson, at, cookie)),
                Self::Upsert => each.for_each(|(at, cookie)| upsert(&mut bson, at, cookie)),
                Self::Replace | Self::Find => {
                    let groups = cookies.chunks(REPLACE_GROUP).enumerate();
                    groups.for_each(|(at, group)| replace(&mut bson, at, group));
                }
            }
            bson.end(items);
        }
        bson.finish(command)
    }

    /// The names of the command and of its array.
    fn fields(self) -> (&'static str, &'static str) {
        match self {
            Self::Insert => ("insert", "documents"),
            Self::Find => ("find", ""),
            Self::Replace | Self::Upsert => ("update", "updates"),
        }
    }
}

fn head(bson: &mut Bson, concern: &Document) {
    bson.boolean("ordered", false);
    if !concern.is_empty() {
        bson.document("writeConcern", concern);
    }
}

/// `{_id: …, b: …, t: …}`
fn insert(bson: &mut Bson, at: usize, cookie: &BatchCookie<'_>) {
    let document = bson.begin_field(DOCUMENT, at);
    bson.string("_id", cookie.user_id);
    value(bson, cookie);
    bson.end(document);
}

/// `{q: {_id: …, t: {$lte: …}}, u: {$set: {b: …, t: …}}, upsert: true}`
fn upsert(bson: &mut Bson, at: usize, cookie: &BatchCookie<'_>) {
    let item = bson.begin_field(DOCUMENT, at);
    let query = bson.begin_field(DOCUMENT, "q");
    bson.string("_id", cookie.user_id);
    let not_newer = bson.begin_field(DOCUMENT, "t");
    bson.date("$lte", cookie.accepted);
    bson.end(not_newer);
    bson.end(query);
    let change = bson.begin_field(DOCUMENT, "u");
    let set = bson.begin_field(DOCUMENT, "$set");
    value(bson, cookie);
    bson.end(set);
    bson.end(change);
    bson.boolean("upsert", true);
    bson.end(item);
}

fn value(bson: &mut Bson, cookie: &BatchCookie<'_>) {
    bson.string("b", cookie.buyer_uid);
    bson.date("t", cookie.accepted);
}

/// `filter: {_id: {$in: […]}}, projection: {t: 1}`. All results are in one reply, which is smaller than an insert of the same users.
fn find(bson: &mut Bson, cookies: &[BatchCookie<'_>]) {
    let count = i32::try_from(cookies.len()).expect("commands are split");
    let filter = bson.begin_field(DOCUMENT, "filter");
    id_in(bson, cookies);
    bson.end(filter);
    let projection = bson.begin_field(DOCUMENT, "projection");
    bson.int("t", 1);
    bson.end(projection);
    bson.int("batchSize", count);
    bson.boolean("singleBatch", true);
}

/// `_id: {$in: […]}`
fn id_in(bson: &mut Bson, cookies: &[BatchCookie<'_>]) {
    let id = bson.begin_field(DOCUMENT, "_id");
    let users = bson.begin_field(ARRAY, "$in");
    for (at, cookie) in cookies.iter().enumerate() {
        bson.string(at, cookie.user_id);
    }
    bson.end(users);
    bson.end(id);
}

/// One operation for many users:
///
/// ```json
/// {q: {_id: {$in: [users]}}, multi: true, u: [{$replaceWith: {$let: {
///     vars: {i: {$indexOfArray: [{$literal: [users]}, "$_id"]}},
///     in: {$let: {vars: {t: {$arrayElemAt: [{$literal: [times]}, "$$i"]}},
///         in: {$cond: [{$lte: ["$t", "$$t"]},
///             {_id: "$_id", b: {$arrayElemAt: [{$literal: [buyer uids]}, "$$i"]}, t: "$$t"},
///             "$$ROOT"]}}}}}}]}
/// ```
fn replace(bson: &mut Bson, at: usize, group: &[BatchCookie<'_>]) {
    let cookies = || group.iter().enumerate();
    let item = bson.begin_field(DOCUMENT, at);
    let query = bson.begin_field(DOCUMENT, "q");
    id_in(bson, group);
    bson.end(query);
    bson.boolean("multi", true);
    let pipeline = bson.begin_field(ARRAY, "u");
    let stage = bson.begin_field(DOCUMENT, 0);
    let replacement = bson.begin_field(DOCUMENT, "$replaceWith");
    let_in(
        bson,
        "i",
        |bson| {
            let place = bson.begin_field(ARRAY, "$indexOfArray");
            literal(bson, |bson| {
                cookies().for_each(|(at, cookie)| bson.string(at, cookie.user_id))
            });
            bson.string(1, b"$_id");
            bson.end(place);
        },
        |bson| {
            let_in(
                bson,
                "t",
                |bson| {
                    element(bson, |bson| {
                        cookies().for_each(|(at, cookie)| bson.date(at, cookie.accepted));
                    });
                },
                |bson| {
                    let cond = bson.begin_field(ARRAY, "$cond");
                    let test = bson.begin_field(DOCUMENT, 0);
                    let not_newer = bson.begin_field(ARRAY, "$lte");
                    bson.string(0, b"$t");
                    bson.string(1, b"$$t");
                    bson.end(not_newer);
                    bson.end(test);
                    let document = bson.begin_field(DOCUMENT, 1);
                    bson.string("_id", b"$_id");
                    let buyer_uid = bson.begin_field(DOCUMENT, "b");
                    element(bson, |bson| {
                        cookies().for_each(|(at, cookie)| bson.string(at, cookie.buyer_uid))
                    });
                    bson.end(buyer_uid);
                    bson.string("t", b"$$t");
                    bson.end(document);
                    bson.string(2, b"$$ROOT");
                    bson.end(cond);
                },
            );
        },
    );
    bson.end(replacement);
    bson.end(stage);
    bson.end(pipeline);
    bson.end(item);
}

/// `$let: {vars: {<name>: {…}}, in: {…}}`
fn let_in(
    bson: &mut Bson,
    name: &str,
    value: impl FnOnce(&mut Bson),
    body: impl FnOnce(&mut Bson),
) {
    let field = bson.begin_field(DOCUMENT, "$let");
    let vars = bson.begin_field(DOCUMENT, "vars");
    let var = bson.begin_field(DOCUMENT, name);
    value(bson);
    bson.end(var);
    bson.end(vars);
    let result = bson.begin_field(DOCUMENT, "in");
    body(bson);
    bson.end(result);
    bson.end(field);
}

/// `$arrayElemAt: [{$literal: […]}, "$$i"]`
fn element(bson: &mut Bson, items: impl FnOnce(&mut Bson)) {
    let field = bson.begin_field(ARRAY, "$arrayElemAt");
    literal(bson, items);
    bson.string(1, b"$$i");
    bson.end(field);
}

/// `0: {$literal: […]}`: prevents the evaluation of strings as fields or variables.
fn literal(bson: &mut Bson, items: impl FnOnce(&mut Bson)) {
    let field = bson.begin_field(DOCUMENT, 0);
    let array = bson.begin_field(ARRAY, "$literal");
    items(bson);
    bson.end(array);
    bson.end(field);
}

#[cfg(test)]
mod tests;
