//! The MongoDB store, in the layout that bidders read: database = DSP id in decimal, collection `cookies`, document
//! `{_id: <user id>, b: <buyer uid>, t: <acceptance date>}`.
//!
//! # Durability
//!
//! Cookies are written with the write concern `w` of the URI, or with the server's default, without waiting for the
//! journal. The cursors follow with the same `w` and `j: true`. The journal of a mongod is sequential: once it contains
//! the cursors, it also contains all writes that were acknowledged before them. This needs one sync per batch instead
//! of one per command. It requires that the server process stays the same, so the store checks its id before and after
//! the commit. If the id has changed, the batch is written again. `w=0` is rejected, because unacknowledged writes
//! cannot count as stored. With `w=1` on a replica set, a failover may lose acknowledged cookies.
//!
//! # Expiry
//!
//! Expired cookies are deleted by a sweep in the window (`upkeep/sweep.rs`), not by a TTL index on `t`. With 50 million
//! documents, replacing a stored cookie costs mongod 0.58 to 0.76 times as much without the index as with it.
//! `upkeep/compaction.rs` reclaims disk space.
//!
//! # Failures
//!
//! Every command has a deadline, after which the store repeats it; the repetition changes nothing. Exceptions are `compact`, which may run
//! for its whole window, and the creation of an index. Failures of one DSP's database do not affect other DSPs: see `cookies/batch_write.rs`.
//!
//! No error contains the credentials of the connection string: neither the driver nor the server reports them.

mod backlog;
mod breakers;
mod bson;
mod collection;
mod commit_times;
mod connection;
mod cookies;
mod copies;
mod databases;
mod documents;
mod error_class;
mod error_text;
mod lookup;
mod server;
mod upkeep;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::AtomicI64},
};

use mongodb::bson::{Bson, DateTime, Document};
use parking_lot::Mutex;
use proto::units::{DspId, UnixMicros};
use tokio::{runtime::Handle, sync::OnceCell};
use tokio_util::task::TaskTracker;

use super::{Receipt, StoreError};
use crate::{batch::Cursor, clock, ttl::Ttls};
use breakers::Breakers;
use commit_times::CommitTimes;
use connection::Connection;
pub use connection::check_uri;
pub use cookies::command;
use cookies::insert_strategy::InsertStrategy;
use databases::DspDatabases;

/// The collection of cookies in a DSP's database.
pub const COOKIES: &str = "cookies";

/// The collection of cursors in the own database.
const CURSORS: &str = "cursors";

const NAMESPACE_EXISTS: i32 = 48;

/// A store in the MongoDB server or replica set of a URI.
#[derive(Debug)]
pub struct MongodbStore {
    options: Options,
    connected: OnceCell<Connection>,
    /// Separate connections for lookups.
    lookups: OnceCell<Connection>,
    dsps: Arc<Mutex<DspDatabases>>,
    /// The server process of the latest commit.
    server: Mutex<Option<Receipt>>,
    /// The cursors of that commit.
    committed: Mutex<Vec<Cursor>>,
    /// Start of this process, as microseconds since the Unix epoch. Identifies its commits, together with their number.
    started: i64,
    commits: AtomicI64,
    /// Insert strategies by DSP.
    insert_strategies: Mutex<BTreeMap<DspId, Arc<Mutex<InsertStrategy>>>>,
    breakers: Breakers,
    /// Finds of lookups that were not answered in time.
    late_finds: Arc<lookup::LateFinds>,
    /// Finds of lookups, and tasks that write to DSP databases, at most one per hanging database.
    tasks: TaskTracker,
    commit_times: CommitTimes,
    /// The runtime on which it was created.
    runtime: Handle,
}

/// Options of a [`MongodbStore`].
#[derive(Clone)]
pub struct Options {
    /// The connection string, which may contain credentials.
    pub uri: String,
    /// The name of the consumer, which identifies its cursors.
    pub name: String,
    /// The prefix of database names.
    pub prefix: String,
    /// TTLs of cookies.
    pub ttls: Ttls,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl MongodbStore {
    /// A store that connects on first use.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            connected: OnceCell::new(),
            lookups: OnceCell::new(),
            dsps: Arc::default(),
            server: Mutex::default(),
            committed: Mutex::default(),
            started: int(clock::now().0),
            commits: AtomicI64::new(0),
            insert_strategies: Mutex::default(),
            breakers: Breakers::default(),
            late_finds: Arc::default(),
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            commit_times: CommitTimes::default(),
        }
    }

    async fn connection(&self) -> Result<&Connection, StoreError> {
        self.connected
            // Async, because host names may have to be resolved.
            .get_or_try_init(|| Connection::open(&self.options.uri))
            .await
    }
}

fn date(time: UnixMicros) -> DateTime {
    DateTime::from_millis(bson::millis(time))
}

/// The documents in the first batch of a reply's cursor.
fn first_batch(reply: &Document) -> impl Iterator<Item = &Document> {
    let cursor = reply.get_document("cursor").ok();
    let found = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    found.into_iter().flatten().filter_map(Bson::as_document)
}

/// Stored times before the result are covered by a deletion up to `until`: later by the resolution of `t`. 0 for none.
fn deleted_before(until: UnixMicros) -> UnixMicros {
    until.after(if until > UnixMicros::NONE { 1_000 } else { 0 })
}

/// A date of BSON as a time; `None` before the Unix epoch.
fn time(date: DateTime) -> Option<UnixMicros> {
    let millis = u64::try_from(date.timestamp_millis()).ok()?;
    Some(UnixMicros(millis.saturating_mul(1_000)))
}

/// A count or a time as an integer of BSON, saturating.
fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A count, which servers return in several types.
fn number(value: &Bson) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and doubles beyond 2^53 are not exact"
    )]
    let from_double = |double: f64| (double >= 0.0).then_some(double as u64);
    let whole = value.as_i32().map(i64::from).or(value.as_i64());
    match whole {
        Some(whole) => u64::try_from(whole).ok(),
        None => value.as_f64().and_then(from_double),
    }
}
