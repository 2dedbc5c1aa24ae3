//! Writing a batch: collection by collection, several at once, each in as few commands as possible.
//!
//! Four kinds of commands ([`Kind`]) bring the cookies of one collection in:
//!
//! 1. Those of a pair that this process has seen stored are *replaced* at once.
//! 2. The others are *inserted*; or, where that fails often (see `order.rs`), *looked for* first.
//! 3. Of what was found, the newer are replaced; what was not found is inserted.
//! 4. Whatever did not go as expected (a document that vanished or appeared meanwhile, or one that is refused) is
//!    *upserted*, each on its own.
//!
//! Newest wins in the server: no command of ours replaces a newer `t`, whenever it is executed. So a command
//! that was given up (its server was paused, say) does no harm when it runs after all, and the same cookies may be
//! written again. The commands of one collection run one after the other, those of several at once.

use std::{collections::HashMap, sync::Arc};

use futures_util::{
    FutureExt, TryStreamExt,
    stream::{self, StreamExt},
};
use mongodb::bson::{Bson, Document, RawDocumentBuf};

use super::{
    MongodbStore,
    bson::millis,
    command::{self, Kind, Place},
    connection::{Connection, WriteError, run, write_errors},
    lock, number,
    order::Order,
};
use crate::{
    batch::Batch,
    store::{Rejected, StoreError, Written},
};

/// Cookies from which on encoding them would hold up other tasks for too long.
const ENCODED_HERE_MAX: usize = 2_000;

impl MongodbStore {
    pub(super) async fn write_batch(&self, batch: Arc<Batch>) -> Result<Written, StoreError> {
        let connection = self.connection().await?;
        let receipt = self.server(connection).await?;
        let (sorted, layout) = (Arc::clone(&batch), self.options.layout);
        let writes: Vec<_> = computed(move || command::by_place(&sorted, layout))
            .await?
            .into_iter()
            .map(|(place, indices)| {
                let writing = Writing {
                    store: self,
                    connection,
                    batch: &batch,
                    place,
                    done: Written::default(),
                };
                writing.write(indices).boxed()
            })
            .collect();
        let mut writes = stream::iter(writes).buffer_unordered(self.options.writers);
        let mut total = Written {
            receipt,
            ..Written::default()
        };
        while let Some(written) = writes.try_next().await? {
            total.merge(written);
        }
        Ok(total)
    }

    fn looks_first(&self, (dsp_id, _): Place) -> bool {
        lock(&self.orders)
            .get(&dsp_id)
            .is_some_and(Order::looks_first)
    }

    fn observe(&self, (dsp_id, _): Place, cookies: usize, repeats: usize) {
        let mut orders = lock(&self.orders);
        orders.entry(dsp_id).or_default().observe(cookies, repeats);
    }
}

/// Brings the cookies of one batch into one collection.
struct Writing<'a> {
    store: &'a MongodbStore,
    connection: &'a Connection,
    batch: &'a Arc<Batch>,
    place: Place,
    done: Written,
}

impl Writing<'_> {
    async fn write(mut self, indices: Vec<u32>) -> Result<Written, StoreError> {
        self.store.prepare(self.connection, self.place).await?;
        let is_known = |index: &u32| self.batch.cookie(*index as usize).is_known;
        let (mut to_replace, new): (Vec<_>, Vec<_>) = indices.into_iter().partition(is_known);
        let mut rest = Vec::new();
        if !new.is_empty() {
            let count = new.len();
            let to_look_for = if self.store.looks_first(self.place) {
                new
            } else {
                self.insert(new).await?
            };
            let looked_for = to_look_for.len();
            let (found, missing) = self.look(to_look_for).await?;
            let repeats = looked_for - missing.len();
            self.store.observe(self.place, count, repeats);
            to_replace.extend(found);
            rest = self.insert(missing).await?;
        }
        rest.extend(self.replace(to_replace).await?);
        self.upsert(rest).await?;
        Ok(self.done)
    }

    /// Inserts cookies; returns those whose user is there already.
    async fn insert(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, StoreError> {
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
    async fn look(&mut self, mut cookies: Vec<u32>) -> Result<(Vec<u32>, Vec<u32>), StoreError> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        while !cookies.is_empty() {
            let (now, answer) = self.run(Kind::Look, &mut cookies).await?;
            let times = times(&answer);
            for index in now {
                let cookie = self.batch.cookie(index as usize);
                match times.get(cookie.user_id) {
                    None => missing.push(index),
                    Some(time) if *time > millis(cookie.accepted_unix_micros) => {
                        self.done.stale.push(index);
                    }
                    Some(_) => found.push(index),
                }
            }
        }
        Ok((found, missing))
    }

    /// Replaces cookies that should be there; returns those that may not have been, or could not be replaced.
    async fn replace(&mut self, mut cookies: Vec<u32>) -> Result<Vec<u32>, StoreError> {
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
    async fn upsert(&mut self, mut cookies: Vec<u32>) -> Result<(), StoreError> {
        while !cookies.is_empty() {
            let (now, answer) = self.run(Kind::Upsert, &mut cookies).await?;
            for error in write_errors(&answer)? {
                match now.get(error.index) {
                    Some(index) if error.is_duplicate_id => self.done.stale.push(*index),
                    index => self.reject(&error, index)?,
                }
            }
        }
        Ok(())
    }

    /// Notes a cookie that can never be stored; any other error fails the batch, to be repeated.
    fn reject(&mut self, error: &WriteError, index: Option<&u32>) -> Result<(), StoreError> {
        let reason = format!("code {}: {}", error.code, error.message);
        match index {
            Some(index) if error.is_final() => {
                let index = *index;
                self.done.rejected.push(Rejected { index, reason });
                Ok(())
            }
            _ => Err(StoreError::Unavailable(format!(
                "write refused with {reason}"
            ))),
        }
    }

    /// Runs a command for as many of `cookies`, from the first on, as fit one; takes them out and returns them with
    /// the answer.
    async fn run(
        &self,
        kind: Kind,
        cookies: &mut Vec<u32>,
    ) -> Result<(Vec<u32>, Document), StoreError> {
        let mut now = std::mem::take(cookies);
        let (batch, concern) = (Arc::clone(self.batch), self.connection.concern.clone());
        let (dsp_id, part) = self.place;
        let collection = self.store.options.layout.collection(part);
        let many = now.len() > ENCODED_HERE_MAX;
        let encode = move || {
            let later = now.split_off(kind.fitting(&batch, &now));
            let command = kind.encode(&batch, &now, &collection, concern.as_ref());
            (now, later, command)
        };
        let (now, later, command): (_, _, RawDocumentBuf) = if many {
            computed(encode).await?
        } else {
            encode()
        };
        *cookies = later;
        let database = self.store.database(self.connection, dsp_id);
        Ok((now, run(&database, command).await?))
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

/// Does what takes milliseconds of CPU where it holds up no other task.
async fn computed<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| StoreError::Broken(format!("a task failed: {error}")))
}
