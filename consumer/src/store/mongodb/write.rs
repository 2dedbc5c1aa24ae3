//! Writes the cookies of one collection, in as few commands as possible.
//!
//! Four kinds of commands ([`Kind`]) are used:
//!
//! 1. Cookies of pairs that this process has stored before are *replaced*.
//! 2. Other cookies are *inserted*. If inserts fail often, existing users are *found* first (see `insert_strategy.rs`).
//! 3. Stored cookies of existing users are replaced if the batch has newer ones. Cookies of missing users are inserted.
//! 4. Remaining cookies are *upserted* independently: their document appeared or vanished in between, or was rejected.
//!
//! [`BatchWrite`](super::batch_write) writes the collections of a batch concurrently. The commands of one collection are
//! sequential.
//!
//! The server decides which cookie is newest: no command replaces a newer `t`, whenever the server executes it. So a
//! command may be executed late, after its timeout, and cookies may be written again. Deleted cookies are an exception:
//! a late insert finds no newer cookie and restores the deleted one. While the table of [deletions](crate::deletions)
//! has the deletion, lookups omit the cookie, and the next sweep removes it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use mongodb::bson::{Bson, Document, doc};
use parking_lot::Mutex;
use proto::newest;
use tokio::time::Instant;

use super::{
    COOKIES, Inner,
    bson::millis,
    command::{self, CollectionId, Kind},
    connection::{Connection, run},
    error_class::{Failure, WriteError, write_errors},
    insert_strategy::InsertStrategy,
    number,
};
use crate::{
    batch::Batch,
    store::{RejectedCookie, StoreError, WriteOutcome},
};

impl Inner {
    /// Writes cookies of one DSP and makes them durable. Ignores the DSP's breaker.
    pub(super) async fn retry_dsp(
        self: Arc<Self>,
        dsp_id: u32,
        batch: Arc<Batch>,
    ) -> Result<WriteOutcome, StoreError> {
        self.breakers.may_try(dsp_id)?;
        let connection = self.connection().await?;
        let receipt = self.server(connection).await?;
        let written = match self.write_retried(connection, dsp_id, &batch).await {
            Ok(written) => written,
            Err(Failure::Server(error)) => return Err(error),
            Err(Failure::Dsp(why)) => {
                self.breakers.trip(dsp_id, &why);
                return Err(StoreError::Unavailable(why));
            }
        };
        self.journal(connection).await?;
        self.check_server(connection, receipt).await?;
        self.breakers.reset(dsp_id);
        Ok(written)
    }

    async fn write_retried(
        self: &Arc<Self>,
        connection: &Connection,
        dsp_id: u32,
        batch: &Arc<Batch>,
    ) -> Result<WriteOutcome, Failure> {
        let mut by_dsp = self.by_dsp(batch).await?;
        for dsp_id in batch.dsps_with_removals(&[dsp_id].into()) {
            by_dsp.entry(dsp_id).or_default();
        }
        if !self.has_slot(dsp_id) {
            self.create_slot(connection, dsp_id).await?;
        }
        if by_dsp.is_empty() {
            return self.probe(connection, dsp_id).await;
        }
        let mut total = WriteOutcome::default();
        for (dsp_id, indices) in by_dsp {
            let writing = CollectionWrite {
                store: Arc::clone(self),
                connection: connection.clone(),
                batch: Arc::clone(batch),
                dsp_id,
                collection: None,
                last_reply: LastReply::now(),
                done: WriteOutcome::default(),
            };
            total.merge(writing.write(indices).await?);
        }
        Ok(total)
    }

    /// Checks that a DSP's collection is writable, without changing it.
    async fn probe(&self, connection: &Connection, dsp_id: u32) -> Result<WriteOutcome, Failure> {
        let no_match = doc! { "q": { "_id": "" }, "u": { "$set": { "b": "" } } };
        let command = doc! { "update": COOKIES, "updates": [no_match] };
        run(self.database(connection, dsp_id).run_command(command)).await?;
        Ok(WriteOutcome::default())
    }

    /// Sorts on a blocking thread, because sorting takes milliseconds of CPU.
    pub(super) async fn by_dsp(
        &self,
        batch: &Arc<Batch>,
    ) -> Result<BTreeMap<u32, Vec<u32>>, StoreError> {
        let batch = Arc::clone(batch);
        let sorted = tokio::task::spawn_blocking(move || command::by_dsp(&batch)).await;
        sorted.map_err(|error| StoreError::Broken(format!("batch sort failed: {error}")))
    }

    fn finds_first(&self, dsp_id: u32) -> bool {
        self.insert_strategies
            .lock()
            .get(&dsp_id)
            .is_some_and(InsertStrategy::finds_first)
    }

    fn observe(&self, dsp_id: u32, cookies: usize, existing: usize) {
        let mut insert_strategies = self.insert_strategies.lock();
        insert_strategies
            .entry(dsp_id)
            .or_default()
            .observe(cookies, existing);
    }
}

/// Time of the last reply of a collection; clones share it.
#[derive(Debug, Clone)]
pub(super) struct LastReply(Arc<Mutex<Instant>>);

impl LastReply {
    pub(super) fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    pub(super) fn update(&self) {
        *self.0.lock() = Instant::now();
    }

    pub(super) fn silence(&self) -> Duration {
        self.0.lock().elapsed()
    }
}

/// The write of a batch's cookies to one collection.
pub(super) struct CollectionWrite {
    pub(super) store: Arc<Inner>,
    pub(super) connection: Connection,
    pub(super) batch: Arc<Batch>,
    pub(super) dsp_id: u32,
    /// The collection, if the server can check its id.
    pub(super) collection: Option<CollectionId>,
    pub(super) last_reply: LastReply,
    pub(super) done: WriteOutcome,
}

impl CollectionWrite {
    /// Writes the cookies at these indices, which all have this DSP.
    pub(super) async fn write(mut self, indices: Vec<u32>) -> Result<WriteOutcome, Failure> {
        self.collection = self
            .store
            .collection_id(&self.connection, self.dsp_id)
            .await?;
        self.last_reply.update();
        let replied = || self.last_reply.update();
        let removal =
            self.store
                .remove_deleted(&self.connection, self.dsp_id, &self.batch, replied);
        removal.await?;
        let is_known = |index: &u32| self.batch.cookie(*index as usize).is_known;
        let (mut to_replace, new): (Vec<_>, Vec<_>) = indices.into_iter().partition(is_known);
        let mut rest = Vec::new();
        if !new.is_empty() {
            let count = new.len();
            let to_find = if self.store.finds_first(self.dsp_id) {
                new
            } else {
                self.insert(new).await?
            };
            let searched = to_find.len();
            let (found, missing) = self.find(to_find).await?;
            let existing = searched - missing.len();
            self.store.observe(self.dsp_id, count, existing);
            to_replace.extend(found);
            rest = self.insert(missing).await?;
        }
        rest.extend(self.replace(to_replace).await?);
        self.upsert(rest).await?;
        Ok(self.done)
    }

    /// Inserts cookies; returns those of existing users.
    async fn insert(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let mut existing = Vec::new();
        while !cookies.is_empty() {
            let (now, reply) = self.run(Kind::Insert, &mut cookies).await?;
            for error in write_errors(&reply)? {
                match now.get(error.index) {
                    Some(index) if error.is_duplicate_id => existing.push(*index),
                    index => self.reject(&error, index)?,
                }
            }
        }
        Ok(existing)
    }

    /// Finds the users of cookies; returns the cookies that replace the stored ones, and those of missing users.
    async fn find(&mut self, mut cookies: Vec<u32>) -> Result<(Vec<u32>, Vec<u32>), Failure> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        while !cookies.is_empty() {
            let (now, reply) = self.run(Kind::Find, &mut cookies).await?;
            let times = times(&reply);
            for index in now {
                let cookie = self.batch.cookie(index as usize);
                match times.get(cookie.user_id) {
                    None => missing.push(index),
                    Some(time) if newest::replaces(millis(cookie.accepted_unix_micros), *time) => {
                        found.push(index);
                    }
                    Some(_) => self.done.stale.push(index),
                }
            }
        }
        Ok((found, missing))
    }

    /// Replaces cookies of existing users; returns those of missing users, and those that could not be replaced.
    async fn replace(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let mut rest = Vec::new();
        while !cookies.is_empty() {
            let (now, reply) = self.run(Kind::Replace, &mut cookies).await?;
            let count = |key| usize::try_from(reply.get(key).and_then(number)?).ok();
            let (matched, replaced) = (count("n"), count("nModified"));
            if write_errors(&reply)?.next().is_some() {
                // The error may have ended an operation for many users early.
                rest.extend(now);
            } else if matched != Some(now.len()) || replaced != matched {
                // Some documents are missing, newer or equal.
                let (_, missing) = self.find(now).await?;
                rest.extend(missing);
            }
        }
        Ok(rest)
    }

    /// Replaces or inserts cookies, each on its own.
    async fn upsert(&mut self, cookies: Vec<u32>) -> Result<(), Failure> {
        // An upsert of a new pair may fail because of a concurrent command, which the server executes late, after its
        // timeout. The second attempt finds the document, so its failure means that the stored cookie is not older.
        let conflicts = self.upsert_once(cookies).await?;
        let stale = self.upsert_once(conflicts).await?;
        self.done.stale.extend(stale);
        Ok(())
    }

    /// Returns cookies for which the stored one is not older, or was inserted concurrently.
    async fn upsert_once(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let mut conflicts = Vec::new();
        while !cookies.is_empty() {
            let (now, reply) = self.run(Kind::Upsert, &mut cookies).await?;
            for error in write_errors(&reply)? {
                match now.get(error.index) {
                    Some(index) if error.is_duplicate_id => conflicts.push(*index),
                    index => self.reject(&error, index)?,
                }
            }
        }
        Ok(conflicts)
    }

    /// Adds a cookie that the server rejected. Any other error fails the write.
    fn reject(&mut self, error: &WriteError, index: Option<&u32>) -> Result<(), Failure> {
        match index {
            Some(index) if error.is_final() => {
                let index = *index;
                let reason = format!("code {}: {}", error.code, error.message);
                self.done.rejected.push(RejectedCookie { index, reason });
                Ok(())
            }
            _ => {
                if error.is_dropped() {
                    self.store.dsps.lock().remove_slot(self.dsp_id);
                }
                Err(error.failure())
            }
        }
    }

    /// Runs a command for the first of `cookies`, as many as fit. Removes them, and returns them with the reply.
    async fn run(
        &self,
        kind: Kind,
        cookies: &mut Vec<u32>,
    ) -> Result<(Vec<u32>, Document), Failure> {
        let mut now = std::mem::take(cookies);
        *cookies = now.split_off(now.len().min(kind.cookies_max()));
        let concern = &self.connection.concern;
        let command = kind.encode(&self.batch, &now, concern, self.collection);
        let database = self.store.database(&self.connection, self.dsp_id);
        let reply = run(database.run_raw_command(command)).await?;
        self.last_reply.update();
        Ok((now, reply))
    }
}

/// Times of the found documents by user id, in milliseconds. A document without a time is older than any cookie.
fn times(reply: &Document) -> HashMap<&[u8], i64> {
    let cursor = reply.get_document("cursor").ok();
    let found = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    let documents = found.into_iter().flatten().filter_map(Bson::as_document);
    documents
        .filter_map(|document| {
            let time = document.get_datetime("t").ok();
            let time = time.map_or(i64::MIN, |time| time.timestamp_millis());
            Some((document.get_str("_id").ok()?.as_bytes(), time))
        })
        .collect()
}
