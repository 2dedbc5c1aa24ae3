//! Writing a batch: collection by collection, several at once, each in as few commands as possible.
//!
//! Four kinds of commands ([`Kind`]) bring the cookies of one collection in:
//!
//! 1. Those of a pair that this process has seen stored are *replaced* at once.
//! 2. The others are *inserted*; or, where that fails often (see `insert_strategy.rs`), *looked for* first.
//! 3. Of what was found, the newer are replaced; what was not found is inserted.
//! 4. Whatever did not go as expected (a document that vanished or appeared meanwhile, or one that is refused) is
//!    *upserted*, each on its own.
//!
//! Collections are written side by side by a [round](super::round), which keeps one DSP's trouble from the others.
//!
//! Newest wins in the server: no command of ours replaces a newer `t`, whenever it is executed. So a command
//! that was given up (its server was paused, say) does no harm when it runs after all, and the same cookies may be
//! written again. The commands of one collection run one after the other, those of several at once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use mongodb::bson::{Bson, Document, doc};
use proto::newest;
use tokio::time::Instant;

use super::{
    COOKIES, Inner,
    bson::millis,
    command::{self, Kind},
    connection::{Connection, run},
    insert_strategy::InsertStrategy,
    lock, number,
    retry_policy::{Failure, WriteError, write_errors},
};
use crate::{
    batch::Batch,
    store::{RejectedCookie, StoreError, WriteOutcome},
};

impl Inner {
    /// Brings in cookies of one DSP, whatever its breaker says, and makes them durable.
    pub(super) async fn retry_dsp(
        self: Arc<Self>,
        dsp_id: u32,
        batch: Arc<Batch>,
    ) -> Result<WriteOutcome, StoreError> {
        if !self.breakers.may_try(dsp_id) {
            let why = "no answer yet to what was sent before";
            return Err(StoreError::Unavailable(why.to_owned()));
        }
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
        let by_dsp = self.by_dsp(batch).await?;
        if !self.has_slot(dsp_id) {
            self.create_slot(connection, dsp_id).await?;
        }
        if by_dsp.is_empty() {
            return self.probe(connection, dsp_id).await;
        }
        let mut total = WriteOutcome::default();
        for (dsp_id, indices) in by_dsp {
            let writing = CollectionWrite::new(
                Arc::clone(self),
                connection.clone(),
                Arc::clone(batch),
                dsp_id,
                LastReply::now(),
            );
            total.merge(writing.write(indices).await?);
        }
        Ok(total)
    }

    /// Writes into a DSP's collection what changes nothing.
    async fn probe(&self, connection: &Connection, dsp_id: u32) -> Result<WriteOutcome, Failure> {
        let nobody = doc! { "q": { "_id": "" }, "u": { "$set": { "b": "" } } };
        let command = doc! { "update": COOKIES, "updates": [nobody] };
        run(self.database(connection, dsp_id).run_command(command)).await?;
        Ok(WriteOutcome::default())
    }

    /// Where its milliseconds of CPU hold up no other task.
    pub(super) async fn by_dsp(
        &self,
        batch: &Arc<Batch>,
    ) -> Result<BTreeMap<u32, Vec<u32>>, StoreError> {
        let batch = Arc::clone(batch);
        let sorted = tokio::task::spawn_blocking(move || command::by_dsp(&batch)).await;
        sorted.map_err(|error| StoreError::Broken(format!("a task failed: {error}")))
    }

    fn finds_first(&self, dsp_id: u32) -> bool {
        lock(&self.insert_strategies)
            .get(&dsp_id)
            .is_some_and(InsertStrategy::finds_first)
    }

    fn observe(&self, dsp_id: u32, cookies: usize, repeats: usize) {
        let mut insert_strategies = lock(&self.insert_strategies);
        insert_strategies
            .entry(dsp_id)
            .or_default()
            .observe(cookies, repeats);
    }
}

/// When a collection last gave a sign.
#[derive(Debug, Clone)]
pub(super) struct LastReply(Arc<Mutex<Instant>>);

impl LastReply {
    pub(super) fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    pub(super) fn again(&self) {
        *lock(&self.0) = Instant::now();
    }

    pub(super) fn silence(&self) -> Duration {
        lock(&self.0).elapsed()
    }
}

/// Brings the cookies of one batch into one collection.
pub(super) struct CollectionWrite {
    store: Arc<Inner>,
    connection: Connection,
    batch: Arc<Batch>,
    dsp_id: u32,
    answered: LastReply,
    done: WriteOutcome,
}

impl CollectionWrite {
    pub(super) fn new(
        store: Arc<Inner>,
        connection: Connection,
        batch: Arc<Batch>,
        dsp_id: u32,
        answered: LastReply,
    ) -> Self {
        Self {
            store,
            connection,
            batch,
            dsp_id,
            answered,
            done: WriteOutcome::default(),
        }
    }

    /// Brings in the cookies at these indices, which are all of this DSP.
    pub(super) async fn write(mut self, indices: Vec<u32>) -> Result<WriteOutcome, Failure> {
        let is_known = |index: &u32| self.batch.cookie(*index as usize).is_known;
        let (mut to_replace, new): (Vec<_>, Vec<_>) = indices.into_iter().partition(is_known);
        let mut rest = Vec::new();
        if !new.is_empty() {
            let count = new.len();
            let to_look_for = if self.store.finds_first(self.dsp_id) {
                new
            } else {
                self.insert(new).await?
            };
            let looked_for = to_look_for.len();
            let (found, missing) = self.look(to_look_for).await?;
            let repeats = looked_for - missing.len();
            self.store.observe(self.dsp_id, count, repeats);
            to_replace.extend(found);
            rest = self.insert(missing).await?;
        }
        rest.extend(self.replace(to_replace).await?);
        self.upsert(rest).await?;
        Ok(self.done)
    }

    /// Inserts cookies; returns those whose user is there already.
    async fn insert(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let mut repeats = Vec::new();
        while !cookies.is_empty() {
            let (now, answer) = self.run(Kind::Insert, &mut cookies).await?;
            for error in write_errors(&answer)? {
                match now.get(error.index) {
                    Some(index) if error.is_duplicate_id => repeats.push(*index),
                    index => self.reject(&error, index)?,
                }
            }
        }
        Ok(repeats)
    }

    /// Looks for cookies; returns those that are there with a time not after theirs, and those that are not there.
    async fn look(&mut self, mut cookies: Vec<u32>) -> Result<(Vec<u32>, Vec<u32>), Failure> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        while !cookies.is_empty() {
            let (now, answer) = self.run(Kind::Find, &mut cookies).await?;
            let times = times(&answer);
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

    /// Replaces cookies that should be there; returns those that may not have been, or could not be replaced.
    async fn replace(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let mut rest = Vec::new();
        while !cookies.is_empty() {
            let (now, answer) = self.run(Kind::Replace, &mut cookies).await?;
            let count = |key| usize::try_from(answer.get(key).and_then(number)?).ok();
            let (matched, replaced) = (count("n"), count("nModified"));
            if write_errors(&answer)?.next().is_some() {
                // It ends an operation for many users amid them.
                rest.extend(now);
            } else if matched != Some(now.len()) || replaced != matched {
                // Some are not there, or newer, or the same.
                let (_, missing) = self.look(now).await?;
                rest.extend(missing);
            }
        }
        Ok(rest)
    }

    /// Replaces or inserts cookies, each on its own.
    async fn upsert(&mut self, cookies: Vec<u32>) -> Result<(), Failure> {
        // Of two upserts of one new pair that meet, one fails, and it may be the newer: the other is a command that was
        // given up and runs late. The second time the document is there, so failing means that it is not older.
        let met = self.upsert_once(cookies).await?;
        let stale = self.upsert_once(met).await?;
        self.done.stale.extend(stale);
        Ok(())
    }

    /// Returns those whose user is there with a time that is not older, or has just been inserted.
    async fn upsert_once(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, Failure> {
        let mut there = Vec::new();
        while !cookies.is_empty() {
            let (now, answer) = self.run(Kind::Upsert, &mut cookies).await?;
            for error in write_errors(&answer)? {
                match now.get(error.index) {
                    Some(index) if error.is_duplicate_id => there.push(*index),
                    index => self.reject(&error, index)?,
                }
            }
        }
        Ok(there)
    }

    /// Notes a cookie that can never be stored; any other error fails the batch, to be repeated.
    fn reject(&mut self, error: &WriteError, index: Option<&u32>) -> Result<(), Failure> {
        match index {
            Some(index) if error.is_final() => {
                let index = *index;
                let reason = format!("code {}: {}", error.code, error.message);
                self.done.rejected.push(RejectedCookie { index, reason });
                Ok(())
            }
            _ => Err(error.failure()),
        }
    }

    /// Runs a command for as many of `cookies`, from the first on, as fit one; takes them out and returns them with
    /// the answer.
    async fn run(
        &self,
        kind: Kind,
        cookies: &mut Vec<u32>,
    ) -> Result<(Vec<u32>, Document), Failure> {
        let mut now = std::mem::take(cookies);
        *cookies = now.split_off(now.len().min(kind.cookies_max()));
        let command = kind.encode(&self.batch, &now, &self.connection.concern);
        let database = self.store.database(&self.connection, self.dsp_id);
        let answer = run(database.run_raw_command(command)).await?;
        self.answered.again();
        Ok((now, answer))
    }
}

/// User id to time of the documents found, in milliseconds; one without a time is older than everything.
fn times(answer: &Document) -> HashMap<&[u8], i64> {
    let cursor = answer.get_document("cursor").ok();
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
