//! MongoDB, as bidders read it: database = DSP id in decimal, collection `cookies`, document
//! `{_id: <user id>, b: <buyer uid>, t: <date accepted>}`.
//!
//! Writing: an unordered raw `insert` for each DSP, several DSPs at once; what comes back as duplicate becomes an
//! `update` guarded by `t`. Inserting is three to four times as cheap as upserting (measured: 5–6 µs against
//! 18–20 µs of mongod), so it comes first.
//!
//! Durable before the cursor: cookies are written with the URI's `w`, or without one with the server's default
//! (the cluster's, if set; since 5.0 `majority` on a replica set; 1 on a single mongod), and not waited for in the
//! journal. The cursors come after them, with the same `w` and `j: true`. The journal of a mongod is one
//! sequence, so when the cursors are in it, what was acknowledged before is too: one sync a batch instead of one
//! a command. `w=0` counts as 1: without an acknowledgment nothing could be called stored. With `w=1` on a replica
//! set, a change of the primary may lose what a consumer believes to be stored.
//!
//! Expiry: a TTL index on `t` in each database. Outside the window it expires after 68 years; the switch is a
//! `collMod` of our own index, so other data on the same server is not touched.
//!
//! Every command has a deadline, also those that see to an index: it is then repeated, which changes nothing.
//! Only `compact` may take as long as its window.
//!
//! Cursors: see `mongodb/cursors.rs`.

mod command;
mod connection;
mod cursors;

use std::{
    collections::BTreeSet,
    future::IntoFuture,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cookiesync::process::unix_micros;
use futures_util::{
    FutureExt, TryStreamExt,
    future::try_join_all,
    stream::{self, StreamExt},
};
use mongodb::{
    Database,
    bson::{DateTime, Document, RawDocumentBuf, doc},
    error::Error,
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{Answer, BuyerUids, Compacted, Expired, Store, StoreError, Written, expired_before};
use crate::batch::{Batch, Cursor};
use command::COLLECTION;
pub use connection::check_uri;
use connection::{
    Connection, WriteConcern, WriteError, answered, code, in_time, run, unavailable, write_errors,
};

/// DSPs that are written at once.
const PARALLEL: usize = 4;

/// How long the list of DSPs is believed when it is only for a lookup.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

/// "Never" of a TTL index: the most it takes, 68 years.
const NEVER_SECONDS: i64 = i32::MAX as i64;

const DUPLICATE: i32 = 11_000;
const NAMESPACE_NOT_FOUND: i32 = 26;
const INDEX_NOT_FOUND: i32 = 27;
const INDEX_OPTIONS_CONFLICT: i32 = 85;
const ILLEGAL_OPERATION: i32 = 20;

/// Write errors that say something about the one document and would come again: bad value, failed to parse,
/// type mismatch, failed validation, too large, key too long.
const REJECTED: [i32; 7] = [2, 9, 14, 121, 10_334, 17_280, 17_282];

/// Cookies in a mongod, or whatever the URI leads to.
#[derive(Debug)]
pub struct MongodbStore {
    uri: Secret,
    name: String,
    ttl: Duration,
    connected: OnceCell<Connection>,
    dsps: Mutex<Dsps>,
    expiry_open: AtomicBool,
    said_rejected: AtomicBool,
    /// The last DSP that was compacted, when not all are.
    compacted: Mutex<Option<u32>>,
}

struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[derive(Debug, Default)]
struct Dsps {
    /// Those whose index this process has seen to.
    prepared: BTreeSet<u32>,
    listed: BTreeSet<u32>,
    listed_at: Option<Instant>,
}

impl MongodbStore {
    /// A store that connects when it is first used. Cursors are kept under `name`.
    #[must_use]
    pub fn new(uri: String, name: String, ttl: Duration) -> Self {
        Self {
            uri: Secret(uri),
            name,
            ttl,
            connected: OnceCell::new(),
            dsps: Mutex::default(),
            expiry_open: AtomicBool::new(false),
            said_rejected: AtomicBool::new(false),
            compacted: Mutex::default(),
        }
    }

    async fn connection(&self) -> Result<&Connection, StoreError> {
        self.connected
            .get_or_try_init(|| Connection::new(&self.uri.0))
            .await
            .map_err(|error| unavailable(&error))
    }

    async fn write_batch(&self, batch: Arc<Batch>) -> Result<Written, StoreError> {
        let connection = self.connection().await?;
        let sorted = Arc::clone(&batch);
        let writes: Vec<_> = computed(move || command::by_dsp(&sorted))
            .await?
            .into_iter()
            .map(|(dsp_id, indices)| self.write_dsp(connection, &batch, dsp_id, indices).boxed())
            .collect();
        let mut writes = stream::iter(writes).buffer_unordered(PARALLEL);
        let mut total = Written::default();
        while let Some(written) = writes.try_next().await? {
            total.written += written.written;
            total.stale += written.stale;
            total.rejected += written.rejected;
        }
        drop(writes);
        if !batch.cursors().is_empty() {
            self.commit(connection, batch.cursors()).await?;
        }
        Ok(total)
    }

    /// Writes the cookies of one DSP, one command after the other.
    async fn write_dsp(
        &self,
        connection: &Connection,
        batch: &Arc<Batch>,
        dsp_id: u32,
        indices: Vec<u32>,
    ) -> Result<Written, StoreError> {
        let database = connection.database(dsp_id);
        self.prepare(&database, dsp_id).await?;
        let mut total = Written::default();
        let mut repeats = Vec::new();
        let mut rest = indices;
        while !rest.is_empty() {
            let (now, insert) = encoded(
                batch,
                &mut rest,
                command::INSERT_OVERHEAD,
                command::insert,
                connection,
            )
            .await?;
            let inserted = run(&database, insert).await?;
            for error in write_errors(&inserted)? {
                match now.get(error.index) {
                    Some(index) if error.code == DUPLICATE => repeats.push(*index),
                    _ => self.reject(&error, dsp_id, &mut total)?,
                }
            }
            total.written += now.len() as u64;
        }
        while !repeats.is_empty() {
            let (_, update) = encoded(
                batch,
                &mut repeats,
                command::UPDATE_OVERHEAD,
                command::update,
                connection,
            )
            .await?;
            let updated = run(&database, update).await?;
            for error in write_errors(&updated)? {
                if error.code == DUPLICATE {
                    total.stale += 1;
                } else {
                    self.reject(&error, dsp_id, &mut total)?;
                }
            }
        }
        total.written -= total.stale + total.rejected;
        Ok(total)
    }

    /// Counts a document that can never be stored; any other error fails the batch, to be repeated.
    fn reject(
        &self,
        error: &WriteError,
        dsp_id: u32,
        total: &mut Written,
    ) -> Result<(), StoreError> {
        if !REJECTED.contains(&error.code) {
            return Err(StoreError::Unavailable(format!(
                "write refused with code {}: {}",
                error.code, error.message
            )));
        }
        total.rejected += 1;
        if !self.said_rejected.swap(true, Ordering::Relaxed) {
            let (code, message) = (error.code, &error.message);
            tracing::error!(
                dsp_id,
                code,
                message,
                "MongoDB rejects a document; said once"
            );
        }
        Ok(())
    }

    /// Sees to the index of a DSP before the first write of this process.
    async fn prepare(&self, database: &Database, dsp_id: u32) -> Result<(), StoreError> {
        if self.dsps().prepared.contains(&dsp_id) {
            return Ok(());
        }
        match answered(self.create_index(database)).await? {
            // With other options; the next call of `expire` repairs it.
            Ok(()) => {}
            Err(error) if code(&error) == Some(INDEX_OPTIONS_CONFLICT) => {}
            Err(error) => return Err(unavailable(&error)),
        }
        let mut dsps = self.dsps();
        dsps.prepared.insert(dsp_id);
        dsps.listed.insert(dsp_id);
        Ok(())
    }

    fn expire_after_seconds(&self) -> i64 {
        if self.expiry_open.load(Ordering::Relaxed) {
            i64::try_from(self.ttl.as_secs()).map_or(NEVER_SECONDS, |ttl| ttl.min(NEVER_SECONDS))
        } else {
            NEVER_SECONDS
        }
    }

    async fn create_index(&self, database: &Database) -> Result<(), Error> {
        let seconds = self.expire_after_seconds();
        let command = doc! {
            "createIndexes": COLLECTION,
            "indexes": [{ "key": { "t": 1 }, "name": "t_1", "expireAfterSeconds": seconds }],
        };
        database.run_command(command).await.map(|_| ())
    }

    async fn find_user(&self, user_id: &str) -> Result<BuyerUids, StoreError> {
        let connection = self.connection().await?;
        let before = date(expired_before(unix_micros(), self.ttl));
        let finds = self
            .list(connection, LIST_AGE_MAX)
            .await?
            .into_iter()
            .map(|dsp_id| {
                let collection = connection
                    .database(dsp_id)
                    .collection::<RawDocumentBuf>(COLLECTION);
                async move {
                    let alive = doc! { "_id": user_id, "t": { "$gte": before } };
                    let find = collection.find_one(alive).into_future();
                    let found = in_time(find).await?;
                    let buyer_uid =
                        found.and_then(|document| Some(document.get_str("b").ok()?.to_owned()));
                    Ok::<_, StoreError>(buyer_uid.map(|buyer_uid| (dsp_id, buyer_uid)))
                }
            });
        Ok(try_join_all(finds).await?.into_iter().flatten().collect())
    }

    /// The DSPs that have a database, from a list that is at most so old.
    async fn list(
        &self,
        connection: &Connection,
        age_max: Duration,
    ) -> Result<BTreeSet<u32>, StoreError> {
        {
            let dsps = self.dsps();
            if dsps.listed_at.is_some_and(|at| at.elapsed() <= age_max) {
                return Ok(dsps.listed.clone());
            }
        }
        let names = in_time(connection.client.list_database_names().into_future()).await?;
        // Only the decimal form we write ourselves: "7", not "07".
        let found = names
            .iter()
            .filter_map(|name| name.parse().ok().filter(|id: &u32| id.to_string() == *name));
        let mut dsps = self.dsps();
        dsps.listed = found.collect();
        let prepared: Vec<u32> = dsps.prepared.iter().copied().collect();
        dsps.listed.extend(prepared);
        dsps.listed_at = Some(Instant::now());
        Ok(dsps.listed.clone())
    }

    /// Gives every DSP's index the state of the window; also those that appeared meanwhile.
    async fn set_expiry(&self, open: bool, stop: &CancellationToken) -> Result<(), StoreError> {
        self.expiry_open.store(open, Ordering::Relaxed);
        let connection = self.connection().await?;
        let seconds = self.expire_after_seconds();
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            if stop.is_cancelled() {
                break;
            }
            let database = connection.database(dsp_id);
            let change = doc! {
                "collMod": COLLECTION,
                "index": { "keyPattern": { "t": 1 }, "expireAfterSeconds": seconds },
            };
            let changed = match answered(database.run_command(change).into_future()).await? {
                Err(error) if code(&error) == Some(INDEX_NOT_FOUND) => {
                    answered(self.create_index(&database)).await?
                }
                // A database with a number for a name that is not ours.
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(()),
                Err(error) => Err(error),
                Ok(_) => Ok(()),
            };
            changed.map_err(|error| unavailable(&error))?;
        }
        Ok(())
    }

    /// Goes on after the DSP that was compacted last, if the call before did not get to the end.
    async fn compact_all(&self, stop: &CancellationToken) -> Result<Compacted, StoreError> {
        let connection = self.connection().await?;
        let mut compacted = Compacted::default();
        let dsps = self.list(connection, Duration::ZERO).await?;
        let last = *lock(&self.compacted);
        let rest = dsps.into_iter().filter(|dsp_id| Some(*dsp_id) > last);
        for dsp_id in rest {
            // What the server has begun it may bring to an end by itself.
            let done = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(compacted),
                done = compact(connection.database(dsp_id)) => done,
            };
            match done {
                Ok(_) => compacted.collections += 1,
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => {}
                Err(error) => return Err(unavailable(&error)),
            }
            *lock(&self.compacted) = Some(dsp_id);
        }
        *lock(&self.compacted) = None;
        compacted.complete = true;
        Ok(compacted)
    }

    fn dsps(&self) -> MutexGuard<'_, Dsps> {
        lock(&self.dsps)
    }
}

async fn compact(database: Database) -> Result<Document, Error> {
    let mut compact = doc! { "compact": COLLECTION };
    match database.run_command(compact.clone()).await {
        // The primary of a replica set wants to be forced.
        Err(error) if code(&error) == Some(ILLEGAL_OPERATION) => {
            compact.insert("force", true);
            database.run_command(compact).await
        }
        done => done,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes as many of `indices`, from the first on, as fit one command, and encodes it. Returns them, too.
async fn encoded(
    batch: &Arc<Batch>,
    indices: &mut Vec<u32>,
    overhead: usize,
    encode: fn(&Batch, &[u32], Option<&WriteConcern>) -> RawDocumentBuf,
    connection: &Connection,
) -> Result<(Vec<u32>, RawDocumentBuf), StoreError> {
    let (batch, concern) = (Arc::clone(batch), connection.concern.clone());
    let mut now = std::mem::take(indices);
    let (now, later, command) = computed(move || {
        let later = now.split_off(command::fitting(&batch, &now, overhead));
        let command = encode(&batch, &now, concern.as_ref());
        (now, later, command)
    })
    .await?;
    *indices = later;
    Ok((now, command))
}

/// Does what takes milliseconds of CPU where it holds up no other task.
async fn computed<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| StoreError::Broken(format!("a task failed: {error}")))
}

fn date(unix_micros: u64) -> DateTime {
    DateTime::from_millis(i64::try_from(unix_micros / 1000).unwrap_or(i64::MAX))
}

impl Store for MongodbStore {
    fn load_cursors(&self) -> Answer<'_, Vec<Cursor>> {
        self.read_cursors().boxed()
    }

    fn write(&self, batch: Arc<Batch>) -> Answer<'_, Written> {
        self.write_batch(batch).boxed()
    }

    fn lookup<'a>(&'a self, user_id: &'a str) -> Answer<'a, BuyerUids> {
        self.find_user(user_id).boxed()
    }

    fn ping(&self) -> Answer<'_, ()> {
        async {
            let admin = self.connection().await?.client.database("admin");
            in_time(admin.run_command(doc! { "ping": 1 }).into_future()).await?;
            Ok(())
        }
        .boxed()
    }

    fn expire<'a>(
        &'a self,
        open: bool,
        _now: u64,
        stop: &'a CancellationToken,
    ) -> Answer<'a, Expired> {
        async move {
            self.set_expiry(open, stop).await?;
            Ok(Expired::default())
        }
        .boxed()
    }

    fn forget_cursors(&self, before: u64) -> Answer<'_, Vec<Arc<str>>> {
        self.delete_cursors(before).boxed()
    }

    fn compact<'a>(&'a self, stop: &'a CancellationToken) -> Answer<'a, Compacted> {
        self.compact_all(stop).boxed()
    }
}
