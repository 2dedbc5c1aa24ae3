//! Expiry without an index: in the window, a sweep through every collection deletes what has expired.
//!
//! A step looks at the next thousands of documents in the order in which the server holds them, and deletes by `_id` those that have
//! expired, if they still have: the deletion says before when they were accepted, and the server decides. In that order neighbours
//! lie on one page, of which it takes 0.5–0.65 µs of mongod's CPU to look at a document; in the order of `_id`, each on another, 2.1–2.6 µs
//! in memory and 3.2 µs with a cache that holds half of them (6.0.5, a million and four million documents).
//!
//! The server finds its place again by `$_resumeAfter` and the `$recordId` of the document that a step ended with: MongoDB's own tools and
//! its replication use that since 4.4, but its manual does not tell of it. Where that document is gone, the collection begins anew.
//! Another member of a replica set holds documents in another order: when one becomes the primary, passes begin anew.
//!
//! How far each collection is, is kept in `cookiesync.sweeps`, `{_id: <namespace>, began, ttl, member, documents, looked, at, anchor,
//! left, complete}` (see `position.rs`), noted after each step, so that it goes on there after whatever ends it: in the same window, or
//! the next.
//!
//! The collection that was worked on the longest ago is first, and one has a pass at a time: what is left of another night's, then, after
//! all others, tonight's. So one that needs more than a window keeps no other from its turn.

pub(super) mod commits;
mod pace;
mod position;

use std::{
    collections::{BTreeMap, VecDeque},
    future::IntoFuture,
    time::Duration,
};

use futures_util::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{Bson, Document, RawDocumentBuf, doc, rawdoc},
};
use tokio::time::{Instant, sleep};

use super::{
    COOKIES, Inner,
    connection::{Connection, answered, in_time, primary, run},
    date, number,
    retry_policy::{Failure, failure, write_errors},
};
use crate::store::{Expiry, StoreError, Swept};
use pace::{Pace, Took};
pub(super) use position::Position;
use position::Seen;

/// The collection of positions.
const RECORDS: &str = "sweeps";

/// Most documents that one command deletes: 5 to 12 µs each.
const DELETED_AT_ONCE: usize = 1_000;

/// How often the lease of the maintenance is prolonged meanwhile.
const LEASE_INTERVAL: Duration = Duration::from_secs(300);

/// What a window that never closes has for a pass.
const DAY: Duration = Duration::from_secs(86_400);

/// After so long a sweep ends where no window ends it, to go on after the rest of the maintenance had its turn.
const SWEEP_MAX: Duration = Duration::from_secs(3600);

/// Positions by namespace.
pub(super) type Positions = BTreeMap<String, Position>;

/// One sweep through all collections.
struct Sweep<'a> {
    store: &'a Inner,
    connection: &'a Connection,
    expiry: &'a Expiry<'a>,
    /// By which cookies expire, in microseconds since the Unix epoch.
    clock: u64,
    pace: Pace,
    began: Instant,
    /// The primary.
    member: String,
    /// When the lease was prolonged.
    leased: Option<Instant>,
    looked: u64,
    deleted: u64,
    /// Documents of the collections that wait.
    waiting: u64,
}

/// A collection that is to be swept.
struct Due {
    dsp_id: u32,
    namespace: String,
    database: Database,
    ttl: Duration,
    position: Position,
    /// When the sweep began.
    documents: u64,
}

/// How the turn of a collection ended.
enum Turn {
    Done,
    /// A pass of another night is complete; one of this night is to follow.
    Again(Box<Due>),
    Stopped,
}

impl Inner {
    pub(super) async fn read_positions(
        &self,
        connection: &Connection,
    ) -> Result<Positions, StoreError> {
        let positions = self.positions(connection);
        let found = positions.find(doc! {}).into_future();
        let found: Vec<Document> = in_time(async { found.await?.try_collect().await }).await?;
        Ok(found.iter().filter_map(Position::decode).collect())
    }

    /// Notes that a collection is not swept any more.
    pub(super) async fn forget_position(
        &self,
        connection: &Connection,
        namespace: &str,
    ) -> Result<(), StoreError> {
        let positions = self.positions(connection);
        let gone = positions.delete_one(doc! { "_id": namespace });
        in_time(gone.into_future()).await.map(|_| ())
    }

    fn positions(&self, connection: &Connection) -> Collection<Document> {
        self.own_database(connection).collection(RECORDS)
    }

    /// Sweeps what has not had its turn; whether all has, and whether any was swept. What fails for one DSP is noted in `failed`.
    pub(super) async fn sweep(
        &self,
        expiry: &Expiry<'_>,
        positions: Positions,
        failed: &mut Option<StoreError>,
    ) -> Result<(bool, bool), StoreError> {
        let connection = self.connection().await?;
        let due = self.due(connection, expiry, positions, failed).await?;
        if expiry.stop.is_cancelled() {
            return Ok((false, false));
        }
        if due.is_empty() {
            return Ok((failed.is_none(), false));
        }
        let (member, time) = primary_now(connection).await?;
        let now = Instant::now();
        let mut sweep = Sweep {
            store: self,
            connection,
            expiry,
            // What has not expired by the server's clock stays, should this machine's be ahead.
            clock: expiry.now.min(time),
            pace: Pace::new(self.commit_times.usual()),
            began: now,
            member,
            leased: None,
            looked: 0,
            deleted: 0,
            waiting: due.iter().map(|due| due.left(expiry.since)).sum(),
        };
        let collections = due.len();
        tracing::info!(collections, documents = sweep.waiting, "sweep begins");
        let mut complete = true;
        let mut queue = VecDeque::from(due);
        while let Some(due) = queue.pop_front() {
            sweep.waiting -= due.left(expiry.since).min(sweep.waiting);
            let swept = sweep.one(due, queue.is_empty()).await;
            match self.of_one(swept, failed).await? {
                Some(Turn::Done) => {}
                Some(Turn::Again(due)) => {
                    sweep.waiting += due.left(expiry.since);
                    queue.push_back(*due);
                }
                Some(Turn::Stopped) => {
                    complete = false;
                    break;
                }
                None => complete = false,
            }
        }
        let (took, looked, deleted) = (now.elapsed(), sweep.looked, sweep.deleted);
        tracing::info!(complete, looked, deleted, ?took, "sweep ends");
        Ok((complete, true))
    }

    /// The collections whose turn it is: first those that were worked on the longest ago, of these the smallest.
    async fn due(
        &self,
        connection: &Connection,
        expiry: &Expiry<'_>,
        mut positions: Positions,
        failed: &mut Option<StoreError>,
    ) -> Result<Vec<Due>, StoreError> {
        let mut all = Vec::new();
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            if expiry.stop.is_cancelled() {
                break;
            }
            let database = self.database(connection, dsp_id);
            let namespace = format!("{}.{COOKIES}", database.name());
            let position = positions.remove(&namespace).unwrap_or_default();
            let ttl = self.options.ttls.of(dsp_id);
            if position.had_turn(expiry.since, expiry.now, ttl) {
                continue;
            }
            let documents = self.documents(&database).await;
            let Some(Some(documents)) = self.of_one(documents, failed).await? else {
                continue;
            };
            all.push(Due {
                dsp_id,
                namespace,
                database,
                ttl,
                position,
                documents,
            });
        }
        all.sort_by_key(|due| {
            let at = due.position.worked_on(expiry.now);
            (at, due.left(expiry.since))
        });
        Ok(all)
    }

    /// The documents of a collection of ours, by the server's count, if there is one.
    async fn documents(&self, database: &Database) -> Result<Option<u64>, Failure> {
        if !self.has_cookies(database).await? {
            return Ok(None);
        }
        let count = database.run_command(doc! { "count": COOKIES });
        let answer = answered(count.into_future()).await?;
        let answer = answer.map_err(|error| failure(&error))?;
        Ok(Some(answer.get("n").and_then(number).unwrap_or_default()))
    }
}

impl Due {
    /// How many documents a sweep of since then has yet to look at.
    fn left(&self, since: u64) -> u64 {
        self.position.left(since, self.ttl, self.documents)
    }
}

impl Sweep<'_> {
    /// Sweeps one collection, which may be the last of all, to the end of a pass.
    async fn one(&mut self, mut due: Due, is_last: bool) -> Result<Turn, Failure> {
        let (since, now) = (self.expiry.since, self.expiry.now);
        loop {
            let is_over = self.expiry.left.is_none() && self.began.elapsed() >= SWEEP_MAX;
            if is_over || self.expiry.stop.is_cancelled() || !self.is_owner().await? {
                return Ok(Turn::Stopped);
            }
            let mut took = Took::default();
            let began = Instant::now();
            let position = std::mem::take(&mut due.position);
            let position = position.begin(now, due.ttl, &self.member, due.documents);
            let Some(position) = self.step(&due, position, &mut took).await? else {
                return Ok(Turn::Stopped);
            };
            due.position = position;
            took.all = began.elapsed();
            took.commit = self.store.commit_times.newest();
            let is_complete = due.position.is_complete();
            let is_done = is_complete && due.position.had_turn(since, now, due.ttl);
            let left = self.waiting + due.left(since);
            self.report(&took, left);
            if is_done && is_last {
                return Ok(Turn::Done);
            }
            // Also before the next collection: many are done in one step.
            let pause = self.pace.pause(&took, left, self.time_left());
            tokio::select! {
                () = self.expiry.stop.cancelled() => {}
                () = sleep(pause) => {}
            }
            if is_done {
                return Ok(Turn::Done);
            }
            if is_complete {
                return Ok(Turn::Again(Box::new(due)));
            }
        }
    }

    /// Does a step from `position`; returns where it ends, if it does before it has to stop.
    async fn step(
        &mut self,
        due: &Due,
        position: Position,
        took: &mut Took,
    ) -> Result<Option<Position>, Failure> {
        let most = self.pace.documents();
        let record = match position.anchor() {
            None => None,
            Some(anchor) => match find_record(&due.database, anchor).await? {
                None => return Ok(Some(position.anew())),
                record => record,
            },
        };
        let began = Instant::now();
        let seen = look(&due.database, record, most).await?;
        took.command = began.elapsed();
        took.documents = seen.len() as u64;
        let (member, _) = primary_now(self.connection).await?;
        if member != self.member {
            self.member = member;
            return Ok(Some(position));
        }
        let is_last = seen.len() < most || position.is_past(&seen);
        let before = self
            .store
            .options
            .ttls
            .expired_before(due.dsp_id, self.clock);
        let (expired, next) = position.step(seen, is_last, before);
        for ids in expired.chunks(DELETED_AT_ONCE) {
            // Its end is not noted, so it is done again, as after a kill.
            if self.expiry.stop.is_cancelled() {
                return Ok(None);
            }
            let began = Instant::now();
            self.delete(due, ids, before).await?;
            took.command = took.command.max(began.elapsed());
        }
        let record = next.encode(&due.namespace);
        let positions = self.store.positions(self.connection);
        let noted = positions
            .replace_one(doc! { "_id": &due.namespace }, record)
            .upsert(true);
        in_time(noted.into_future()).await?;
        Ok(Some(next))
    }

    /// Deletes of these documents those that were accepted before `before`.
    async fn delete(&mut self, due: &Due, ids: &[Bson], before: u64) -> Result<(), Failure> {
        let expired = doc! { "_id": { "$in": ids }, "t": { "$lt": date(before) } };
        let mut command = doc! {
            "delete": COOKIES,
            "ordered": false,
            // While there is an index on `t`, the server would weigh both for each command.
            "deletes": [{ "q": expired, "limit": 0, "hint": { "_id": 1 } }],
        };
        let concern = self.connection.concern.as_ref();
        command.extend(concern.map(|it| ("writeConcern".to_owned(), it.document().into())));
        let command = RawDocumentBuf::try_from(&command)
            .map_err(|error| StoreError::Broken(error.to_string()))?;
        let answer = run(&due.database, command).await?;
        let deleted = answer.get("n").and_then(number).unwrap_or_default();
        self.deleted += deleted;
        (self.expiry.report)(&Swept {
            deleted,
            ..Swept::default()
        });
        match write_errors(&answer)?.next() {
            None => Ok(()),
            Some(error) => Err(error.failure()),
        }
    }

    fn report(&mut self, took: &Took, documents_left: u64) {
        self.looked += took.documents;
        let seconds = self.began.elapsed().as_secs_f64().max(1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "an estimate for people"
        )]
        let documents_per_hour = (self.looked as f64 / seconds * 3600.0) as u64;
        (self.expiry.report)(&Swept {
            looked: took.documents,
            deleted: 0,
            ahead: Some((documents_left, documents_per_hour)),
        });
    }

    /// Prolongs the lease now and then; whether it is still ours.
    async fn is_owner(&mut self) -> Result<bool, StoreError> {
        if self.leased.is_some_and(|at| at.elapsed() < LEASE_INTERVAL) {
            return Ok(true);
        }
        let is_ours = self.store.other_owner().await?.is_none();
        self.leased = Some(Instant::now());
        Ok(is_ours)
    }

    fn time_left(&self) -> Duration {
        let left = self.expiry.left.unwrap_or(DAY);
        left.saturating_sub(self.began.elapsed())
    }
}

/// Which member of a replica set is the primary, if it is one, and its time in microseconds since the Unix epoch.
async fn primary_now(connection: &Connection) -> Result<(String, u64), StoreError> {
    let admin = connection.client.database("admin");
    let hello = in_time(admin.run_command(doc! { "hello": 1 }).into_future()).await?;
    let member = hello.get_str("me").unwrap_or_default().to_owned();
    let time = hello.get_datetime("localTime").ok();
    let time = time.and_then(|time| u64::try_from(time.timestamp_millis()).ok());
    let untold = || StoreError::Unavailable("the server does not tell its time".to_owned());
    Ok((member, time.ok_or_else(untold)?.saturating_mul(1_000)))
}

/// Where the server holds the document of this id, if it is still there.
async fn find_record(database: &Database, id: &Bson) -> Result<Option<i64>, Failure> {
    let command = doc! {
        "find": COOKIES,
        "filter": { "_id": id },
        "projection": { "_id": 1 },
        "showRecordId": true,
        "limit": 1,
        "singleBatch": true,
    };
    let find = database.run_command(command).selection_criteria(primary());
    let answer = answered(find.into_future()).await?;
    let answer = answer.map_err(|error| failure(&error))?;
    let cursor = answer.get_document("cursor").ok();
    let found = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    let document = found.and_then(|found| found.first()?.as_document());
    let record = |document: &Document| match document.get_i64("$recordId") {
        Ok(record) => Ok(record),
        // It would begin anew forever.
        Err(_) => Err(Failure::Dsp(format!(
            "{}.{COOKIES} cannot be swept, since its documents have no numbers (is it clustered?)",
            database.name()
        ))),
    };
    document.map(record).transpose()
}

/// The documents after this record, or from the first on, in the order in which the server holds them.
async fn look(database: &Database, after: Option<i64>, most: usize) -> Result<Vec<Seen>, Failure> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut command = rawdoc! {
        "find": COOKIES,
        "projection": { "_id": 1, "t": 1 },
        "hint": { "$natural": 1 },
        "limit": most,
        // One more, so that the answer is the end; what goes beyond 16 MiB is fetched.
        "batchSize": most + 1,
        "$_requestResumeToken": true,
    };
    if let Some(after) = after {
        command.append(
            mongodb::bson::cstr!("$_resumeAfter"),
            rawdoc! { "$recordId": after },
        );
    }
    let looked = async {
        let find = database
            .run_raw_cursor_command(command)
            .selection_criteria(primary());
        let mut found = find.await?;
        let mut seen = Vec::new();
        while found.advance().await? {
            let document = found.current();
            let id = document.get("_id")?;
            seen.push(Seen {
                id: id.map_or(Ok(Bson::Null), Bson::try_from)?,
                accepted: document.get_datetime("t").ok(),
            });
        }
        Ok(seen)
    };
    let seen = answered(looked).await?;
    seen.map_err(|error: mongodb::error::Error| failure(&error))
}
