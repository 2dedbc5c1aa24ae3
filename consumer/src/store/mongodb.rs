//! MongoDB, as bidders read it: database = DSP id in decimal, collection `cookies`, document
//! `{_id: <user id>, b: <buyer uid>, t: <date accepted>}`.
//!
//! How cookies get in, with which commands and in which order: `mongodb/write.rs`.
//!
//! Durable before the cursor: cookies are written with the URI's `w`, or without one with the server's default
//! (the cluster's, if set; since 5.0 `majority` on a replica set; 1 on a single mongod), and not waited for in the
//! journal. The cursors come after them, with the same `w` and `j: true`. The journal of a mongod is one
//! sequence, so when the cursors are in it, what was acknowledged before is too: one sync a batch instead of one
//! a command. That holds as long as the server is the same process; so its id is asked before and after, and where it is
//! another the batch is written again. `w=0` is refused: without an acknowledgment nothing could be called stored.
//! With `w=1` on a replica set, a change of the primary may lose what a consumer believes to be stored.
//!
//! Expiry: a sweep in the window, since with 50 million documents a refresh costs mongod 0.58 to 0.76 of what it does with an index.
//! Or a TTL index on `t` in each of our collections: outside the window it expires after 68 years,
//! and the switch is a `collMod` of our own index, so other data on the same server is not touched. See `mongodb/sweep.rs`,
//! `mongodb/expiry.rs`, and `mongodb/compaction.rs` for what gives the space back.
//!
//! Every command has a deadline: it is then repeated, which changes nothing. Only `compact` may take as long as its window,
//! and the making of an index as long as it takes.
//!
//! A DSP's trouble is its own: see `mongodb/round.rs`.
//!
//! No error of this store contains the credentials of its connection string: neither the driver nor the server repeats them.
//!
//! Cursors: see `mongodb/cursors.rs`.

mod batch_write;
mod breakers;
mod bson;
mod collection;
pub mod command;
mod compaction;
mod connection;
mod cursors;
mod duplicate_key;
mod error_text;
mod expiry;
mod insert_strategy;
mod lookup;
mod owner;
mod retry_policy;
mod retry_queue;
mod sweep;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicI64},
    time::Instant,
};

use bytes::Bytes;
use futures_util::FutureExt;
use mongodb::{
    Database,
    bson::{Bson, DateTime},
};
use runtime::unix_micros;
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::{
    Answer, Compaction, Expired, Expiry, FullRetryEntry, LookupResult, Receipt, Store, StoreError,
    StoredState, WriteOutcome,
};
use crate::{batch::Batch, ttl::Ttls};
use breakers::Breakers;
pub use connection::check_uri;
use connection::{Connection, in_time};
use cursors::CommittedCursors;
use insert_strategy::InsertStrategy;
use sweep::commit_times::CommitTimes;

/// The collection of a DSP's database that holds its cookies.
pub const COOKIES: &str = "cookies";

/// "Never" of a TTL index: the most it takes, 68 years.
const NEVER_SECONDS: i64 = i32::MAX as i64;

const NAMESPACE_EXISTS: i32 = 48;
const INVALID_OPTIONS: i32 = 72;

/// Cookies in a mongod, or whatever the URI leads to.
#[derive(Debug)]
pub struct MongodbStore {
    inner: Arc<Inner>,
}

/// Shared with tasks that wait for a database of one DSP.
#[derive(Debug)]
struct Inner {
    options: Options,
    connected: OnceCell<Connection>,
    /// For lookups alone.
    lookups: OnceCell<Connection>,
    dsps: Mutex<DspDatabases>,
    /// Which run of which server took the latest commit.
    server: Mutex<Option<Receipt>>,
    /// What that commit was.
    committed: Mutex<CommittedCursors>,
    /// When this process began, by which its commits are known, in microseconds since the Unix epoch; and how many there were.
    started: i64,
    commits: AtomicI64,
    /// By DSP.
    insert_strategies: Mutex<BTreeMap<u32, InsertStrategy>>,
    breakers: Breakers,
    /// What waits for an answer of one database: at most one command of each.
    tasks: TaskTracker,
    /// The collection whose index on `t` is being made; at most one.
    building: Arc<Mutex<Option<String>>>,
    commit_times: CommitTimes,
}

/// How expired cookies are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExpiryMode {
    /// By an index on `t`, of whose cookies mongod deletes those that have expired.
    Index,
    /// By a sweep through all cookies.
    #[default]
    Sweep,
}

impl FromStr for ExpiryMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "index" => Ok(Self::Index),
            "sweep" => Ok(Self::Sweep),
            _ => Err("expected `index` or `sweep`"),
        }
    }
}

impl fmt::Display for ExpiryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Index => "index",
            Self::Sweep => "sweep",
        })
    }
}

/// What a [`MongodbStore`] is told.
#[derive(Clone)]
pub struct Options {
    /// The connection string; may hold credentials.
    pub uri: String,
    /// The name of the consumer, under which its cursors are kept.
    pub name: String,
    /// What every database's name begins with.
    pub prefix: String,
    /// Most collections written at once.
    pub writers: usize,
    /// How long cookies live.
    pub ttls: Ttls,
    /// How cookies expire, if this consumer maintains the server.
    pub expiry: ExpiryMode,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct DspDatabases {
    /// Those that were there at the start, and those that this process made a slot for.
    slots: BTreeSet<u32>,
    listed: BTreeSet<u32>,
    listed_at: Option<Instant>,
}

impl DspDatabases {
    /// Notes that there is a database of this DSP.
    fn add_slot(&mut self, dsp_id: u32) {
        self.slots.insert(dsp_id);
        self.listed.insert(dsp_id);
    }
}

impl MongodbStore {
    /// A store that connects when it is first used.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let inner = Inner {
            options,
            connected: OnceCell::new(),
            lookups: OnceCell::new(),
            dsps: Mutex::default(),
            server: Mutex::default(),
            committed: Mutex::default(),
            started: i64::try_from(unix_micros()).unwrap_or(i64::MAX),
            commits: AtomicI64::new(0),
            insert_strategies: Mutex::default(),
            breakers: Breakers::default(),
            tasks: TaskTracker::new(),
            building: Arc::default(),
            commit_times: CommitTimes::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }
}

impl Inner {
    async fn connection(&self) -> Result<&Connection, StoreError> {
        self.connected
            // The names in it may have to be looked up.
            .get_or_try_init(|| in_time(Connection::new(&self.options.uri)))
            .await
    }

    /// The database of a DSP.
    fn database(&self, connection: &Connection, dsp_id: u32) -> Database {
        let name = format!("{}{dsp_id}", self.options.prefix);
        connection.client.database(&name)
    }

    /// Whether a DSP has a database.
    fn has_slot(&self, dsp_id: u32) -> bool {
        self.dsps().slots.contains(&dsp_id)
    }

    fn dsps(&self) -> MutexGuard<'_, DspDatabases> {
        lock(&self.dsps)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn date(micros: u64) -> DateTime {
    DateTime::from_millis(bson::millis(micros))
}

/// A count, in whatever type the server gives it.
fn number(value: &Bson) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts beyond 2^53 are not exact as doubles anyway, and the cast saturates"
    )]
    let of_double = |double: f64| (double >= 0.0).then_some(double as u64);
    let whole = value.as_i32().map(i64::from).or(value.as_i64());
    match whole {
        Some(whole) => u64::try_from(whole).ok(),
        None => value.as_f64().and_then(of_double),
    }
}

impl Store for MongodbStore {
    fn load(&self) -> Answer<'_, StoredState> {
        let inner = &self.inner;
        async move {
            Ok(StoredState {
                cursors: inner.load_committed().await?,
                slots: inner.read_slots().await?,
                retry_queue: inner.read_retry_index().await?,
            })
        }
        .boxed()
    }

    fn write(&self, batch: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        Arc::clone(&self.inner).write_batch(batch).boxed()
    }

    fn retry(&self, dsp_id: u32, batch: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        Arc::clone(&self.inner).retry_dsp(dsp_id, batch).boxed()
    }

    fn has_slot(&self, dsp_id: u32) -> bool {
        self.inner.has_slot(dsp_id)
    }

    fn put_retry_entries(&self, entries: Arc<[FullRetryEntry]>) -> Answer<'_, ()> {
        async move { self.inner.insert_retry_entries(&entries).await }.boxed()
    }

    fn read_retry_entries<'a>(&'a self, numbers: &'a [u64]) -> Answer<'a, Vec<Bytes>> {
        self.inner.read_retry_entries(numbers).boxed()
    }

    fn remove_retry_entries<'a>(&'a self, numbers: &'a [u64]) -> Answer<'a, ()> {
        self.inner.delete_retry_entries(numbers).boxed()
    }

    fn commit<'a>(&'a self, batch: &'a Batch, receipt: Receipt) -> Answer<'a, ()> {
        self.inner.commit_batch(batch, receipt).boxed()
    }

    fn lookup<'a>(&'a self, user_id: &'a str) -> Answer<'a, LookupResult> {
        self.inner.find_user(user_id).boxed()
    }

    fn ping(&self) -> Answer<'_, ()> {
        self.inner.check_writable().boxed()
    }

    fn maintenance_owner(&self) -> Answer<'_, Option<String>> {
        self.inner.other_owner().boxed()
    }

    fn expire<'a>(&'a self, expiry: Expiry<'a>) -> Answer<'a, Expired> {
        async move { self.inner.run_expiry(&expiry).await }.boxed()
    }

    fn delete_cursors_before(&self, before: u64) -> Answer<'_, Vec<Arc<str>>> {
        self.inner.delete_cursors(before).boxed()
    }

    fn compact<'a>(&'a self, compaction: Compaction<'a>) -> Answer<'a, bool> {
        self.inner.compact_all(compaction).boxed()
    }
}
