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

use std::{collections::HashMap, sync::Arc, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, Document},
};
use parking_lot::Mutex;
use proto::{
    newest,
    units::{DspId, UnixMicros},
};
use tokio::time::Instant;

use super::{
    super::{
        MongodbStore,
        bson::millis,
        connection::{Connection, run},
        databases::{DspDatabases, collection_id},
        deleted_before,
        documents::{DELETES_PER_COMMAND_MAX, delete},
        error_class::{COLLECTION_UUID_MISMATCH, Failure, WriteError, write_errors},
        first_batch, number,
    },
    command::{CollectionId, Kind},
    insert_strategy::InsertStrategy,
};
use crate::{
    batch::Batch,
    store::{RejectedCookie, WriteOutcome},
};

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
pub(in super::super) struct CollectionWrite {
    connection: Connection,
    database: Database,
    dsps: Arc<Mutex<DspDatabases>>,
    strategy: Arc<Mutex<InsertStrategy>>,
    batch: Arc<Batch>,
    dsp_id: DspId,
    /// The collection, if the server can check its id.
    collection: Option<CollectionId>,
    pub(super) last_reply: LastReply,
    done: WriteOutcome,
}

impl MongodbStore {
    /// A write to the collection of a DSP.
    pub(in super::super) fn collection_write(
        &self,
        connection: &Connection,
        batch: &Arc<Batch>,
        dsp_id: DspId,
    ) -> CollectionWrite {
        let mut strategies = self.insert_strategies.lock();
        CollectionWrite {
            connection: connection.clone(),
            database: self.database(connection, dsp_id),
            dsps: Arc::clone(&self.dsps),
            strategy: Arc::clone(strategies.entry(dsp_id).or_default()),
            batch: Arc::clone(batch),
            dsp_id,
            collection: None,
            last_reply: LastReply::now(),
            done: WriteOutcome::default(),
        }
    }
}

impl CollectionWrite {
    /// Writes the cookies at these indices, which all have this DSP.
    pub(in super::super) async fn write(
        mut self,
        indices: Vec<u32>,
    ) -> Result<WriteOutcome, Failure> {
        self.collection = collection_id(&self.dsps, &self.database, self.dsp_id).await?;
        self.last_reply.update();
        self.remove_deleted().await?;
        let is_known = |index: &u32| self.batch.cookie(*index as usize).is_known;
        let (mut to_replace, new): (Vec<_>, Vec<_>) = indices.into_iter().partition(is_known);
        let mut rest = Vec::new();
        if !new.is_empty() {
            let count = new.len();
            let finds_first = self.strategy.lock().finds_first();
            let to_find = if finds_first {
                new
            } else {
                self.write_each(Kind::Insert, new).await?
            };
            let searched = to_find.len();
            let (found, missing) = self.find(to_find).await?;
            let existing = searched - missing.len();
            self.strategy.lock().observe(count, existing);
            to_replace.extend(found);
            rest = self.write_each(Kind::Insert, missing).await?;
        }
        rest.extend(self.replace(to_replace).await?);
        self.upsert(rest).await?;
        Ok(self.done)
    }

    /// Removes the cookies that the deletions of the batch cover.
    async fn remove_deleted(&self) -> Result<(), Failure> {
        let deletions = self.batch.deletions().iter();
        let deletions = deletions.filter(|it| it.removes_from(self.dsp_id));
        let users = deletions.map(|it| {
            let user_id = String::from_utf8_lossy(it.ids().0).into_owned();
            (deleted_before(it.until), user_id.into())
        });
        let mut users: Vec<(UnixMicros, Bson)> = users.collect();
        users.sort_by_key(|(before, _)| *before);
        for part in users.chunks(DELETES_PER_COMMAND_MAX) {
            delete(&self.connection, &self.database, part).await?;
            self.last_reply.update();
        }
        Ok(())
    }

    /// Writes cookies independently; returns those with a duplicate `_id`: of an insert, those of existing users; of an upsert,
    /// those for which the stored one is not older, or was inserted concurrently.
    async fn write_each(&mut self, kind: Kind, mut cookies: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let mut duplicates = Vec::new();
        while !cookies.is_empty() {
            let (now, reply) = self.run(kind, &mut cookies).await?;
            for error in write_errors(&reply)? {
                match now.get(error.index) {
                    Some(index) if error.is_duplicate_id => duplicates.push(*index),
                    index => self.reject(&error, index)?,
                }
            }
        }
        Ok(duplicates)
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
                    Some(time) if newest::replaces(millis(cookie.accepted), *time) => {
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
        let conflicts = self.write_each(Kind::Upsert, cookies).await?;
        let stale = self.write_each(Kind::Upsert, conflicts).await?;
        self.done.stale.extend(stale);
        Ok(())
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
                if error.code == COLLECTION_UUID_MISMATCH {
                    self.dsps.lock().remove_slot(self.dsp_id);
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
        let reply = run(self.database.run_raw_command(command)).await?;
        self.last_reply.update();
        Ok((now, reply))
    }
}

/// Times of the found documents by user id, in milliseconds. A document without a time is older than any cookie.
fn times(reply: &Document) -> HashMap<&[u8], i64> {
    first_batch(reply)
        .filter_map(|document| {
            let time = document.get_datetime("t").ok();
            let time = time.map_or(i64::MIN, |time| time.timestamp_millis());
            Some((document.get_str("_id").ok()?.as_bytes(), time))
        })
        .collect()
}
