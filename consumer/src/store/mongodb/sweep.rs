//! Expiry without an index: in the window, a sweep through every collection deletes what has expired.
//!
//! A step looks at the next thousands of documents in the order in which the server holds them, and deletes by `_id` those that have
//! expired, if they still have: the deletion says before when they were accepted, and the server decides. In that order neighbours
//! lie on one page, of which it takes 0.5–0.65 µs of mongod's CPU to look at a document; in the order of `_id`, each on another, 2.1–2.6 µs
//! in memory and 3.2 µs with a cache that holds half of them (6.0.5, a million and four million documents).
//!
//! One cursor goes through a collection, and is read a step at a time; where it is lost, by a restart or a new primary, the next
//! pass begins at the first document. When the newest pass of each collection began, and the newest that is complete, is noted in
//! `cookiesync.sweeps` (see `record.rs`).
//!
//! The collection whose newest pass began the longest ago is first: one that needs more than a window keeps no other from its
//! turn.

pub(super) mod commit_times;
mod pace;
mod pass;
mod record;

use std::{collections::BTreeMap, future::IntoFuture, time::Duration};

use mongodb::{
    ClientSession, Database,
    bson::{Bson, doc},
};
use tokio::time::{Instant, sleep};

use super::{
    COOKIES, Inner,
    connection::{Connection, in_time, primary, run},
    date, number,
    retry_policy::{Failure, write_errors},
};
use crate::store::{Expiry, StoreError, SweepProgress};
use pace::{Pace, StepTiming};
use pass::{Pass, SweptDocument, expired};
pub(super) use record::SweepRecord;

/// The collection of records.
const RECORDS: &str = "sweeps";

/// Most documents that one command deletes: 5 to 12 µs each.
const DELETES_PER_COMMAND_MAX: usize = 1_000;

/// How often the lease of the maintenance is prolonged meanwhile.
const LEASE_INTERVAL: Duration = Duration::from_secs(300);

/// What a window that never closes has for a pass.
const DAY: Duration = Duration::from_secs(86_400);

/// After so long a sweep begins no further collection where no window ends it, to go on after the rest of the maintenance had
/// its turn.
const SWEEP_MAX: Duration = Duration::from_secs(3600);

/// What is noted of the sweeps of each collection, by namespace.
pub(super) type SweepRecords = BTreeMap<String, SweepRecord>;

/// One sweep through all collections.
struct Sweep<'a> {
    store: &'a Inner,
    connection: &'a Connection,
    expiry: &'a Expiry<'a>,
    /// By which cookies expire, in microseconds since the Unix epoch.
    clock: u64,
    pace: Pace,
    began: Instant,
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
    record: SweepRecord,
    /// When the sweep began.
    documents: u64,
}

/// The documents of a collection, in the order in which the server holds them.
struct Documents<'a> {
    database: &'a Database,
    session: ClientSession,
    /// The server's cursor, once there is one; 0 at the end.
    cursor: Option<i64>,
}

impl Inner {
    pub(super) async fn read_records(&self) -> Result<SweepRecords, StoreError> {
        let found = self.find_own(RECORDS, doc! {}).await?;
        Ok(found.iter().filter_map(SweepRecord::decode).collect())
    }

    /// Notes that a collection is not swept any more.
    pub(super) async fn forget_record(&self, namespace: &str) -> Result<(), StoreError> {
        self.delete_own(RECORDS, doc! { "_id": namespace }).await
    }

    async fn note(&self, due: &Due) -> Result<(), StoreError> {
        let records = self.own_collection(RECORDS).await?;
        let noted = records
            .replace_one(
                doc! { "_id": &due.namespace },
                due.record.encode(&due.namespace),
            )
            .upsert(true);
        in_time(noted.into_future()).await.map(|_| ())
    }

    /// Sweeps what has not had its turn; whether all has, and whether any was swept. What fails for one DSP is noted in `failed`.
    pub(super) async fn sweep(
        &self,
        expiry: &Expiry<'_>,
        records: SweepRecords,
        failed: &mut Option<StoreError>,
    ) -> Result<(bool, bool), StoreError> {
        let connection = self.connection().await?;
        let due = self.due(connection, expiry, records, failed).await?;
        if expiry.stop.is_cancelled() {
            return Ok((false, false));
        }
        if due.is_empty() {
            return Ok((failed.is_none(), false));
        }
        let now = Instant::now();
        let mut sweep = Sweep {
            store: self,
            connection,
            expiry,
            // What has not expired by the server's clock stays, should this machine's be ahead.
            clock: expiry.now.min(server_time(connection).await?),
            pace: Pace::new(self.commit_times.usual()),
            began: now,
            leased: None,
            looked: 0,
            deleted: 0,
            waiting: due.iter().map(|due| due.documents).sum(),
        };
        let collections = due.len();
        tracing::info!(collections, documents = sweep.waiting, "sweep begins");
        let mut complete = true;
        for due in due {
            let is_over = expiry.left.is_none() && now.elapsed() >= SWEEP_MAX;
            if is_over || expiry.stop.is_cancelled() {
                complete = false;
                break;
            }
            sweep.waiting -= due.documents;
            let swept = sweep.one(due).await;
            match self.isolate(swept, failed).await? {
                Some(true) => {}
                Some(false) => {
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
        mut records: SweepRecords,
        failed: &mut Option<StoreError>,
    ) -> Result<Vec<Due>, StoreError> {
        let mut all = Vec::new();
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            if expiry.stop.is_cancelled() {
                break;
            }
            let database = self.database(connection, dsp_id);
            let namespace = format!("{}.{COOKIES}", database.name());
            let record = records.remove(&namespace).unwrap_or_default();
            let ttl = self.options.ttls.of(dsp_id);
            if record.had_turn(expiry.since, expiry.now, ttl) {
                continue;
            }
            let documents = self.documents(&database).await;
            let Some(Some(documents)) = self.isolate(documents, failed).await? else {
                continue;
            };
            all.push(Due {
                dsp_id,
                namespace,
                database,
                ttl,
                record,
                documents,
            });
        }
        all.sort_by_key(|due| (due.record.worked_on(expiry.now), due.documents));
        Ok(all)
    }

    /// The documents of a collection of ours, by the server's count, if there is one.
    async fn documents(&self, database: &Database) -> Result<Option<u64>, Failure> {
        if !self.has_cookies(database).await? {
            return Ok(None);
        }
        let answer = run(database.run_command(doc! { "count": COOKIES })).await?;
        Ok(Some(answer.get("n").and_then(number).unwrap_or_default()))
    }
}

impl Sweep<'_> {
    /// Sweeps one collection; whether it came to the end.
    async fn one(&mut self, mut due: Due) -> Result<bool, Failure> {
        let ttls = &self.store.options.ttls;
        let before = ttls.expired_before(due.dsp_id, self.clock);
        due.record.begin(self.expiry.now);
        self.store.note(&due).await?;
        let mut pass = Pass::new(self.expiry.now, due.documents);
        let mut documents = Documents {
            database: &due.database,
            session: in_time(self.connection.client.start_session().into_future()).await?,
            cursor: None,
        };
        loop {
            if self.expiry.stop.is_cancelled() || !self.is_owner().await? {
                return Ok(false);
            }
            let began = Instant::now();
            let seen = documents.next(self.pace.documents()).await?;
            let mut took = StepTiming {
                command: began.elapsed(),
                documents: seen.len() as u64,
                ..StepTiming::default()
            };
            let is_complete = pass.look(&seen) || documents.cursor == Some(0);
            for ids in expired(seen, before).chunks(DELETES_PER_COMMAND_MAX) {
                if self.expiry.stop.is_cancelled() {
                    return Ok(false);
                }
                let began = Instant::now();
                self.delete(&due.database, ids, before).await?;
                took.command = took.command.max(began.elapsed());
            }
            if is_complete {
                due.record.end(due.ttl);
                self.store.note(&due).await?;
            }
            took.all = began.elapsed();
            took.commit = self.store.commit_times.newest();
            let left = self.waiting + if is_complete { 0 } else { pass.left() };
            self.report(&took, left);
            // Also before the next collection: many are done in one step.
            let pause = self.pace.pause(&took, left, self.time_left());
            tokio::select! {
                () = self.expiry.stop.cancelled() => {}
                () = sleep(pause) => {}
            }
            if is_complete {
                return Ok(true);
            }
        }
    }

    /// Deletes of these documents those that were accepted before `before`.
    async fn delete(
        &mut self,
        database: &Database,
        ids: &[Bson],
        before: u64,
    ) -> Result<(), Failure> {
        let expired = doc! { "_id": { "$in": ids }, "t": { "$lt": date(before) } };
        let command = doc! {
            "delete": COOKIES,
            "ordered": false,
            // While there is an index on `t`, the server would weigh both for each command.
            "deletes": [{ "q": expired, "limit": 0, "hint": { "_id": 1 } }],
            "writeConcern": &self.connection.concern,
        };
        let answer = run(database.run_command(command)).await?;
        let deleted = answer.get("n").and_then(number).unwrap_or_default();
        self.deleted += deleted;
        (self.expiry.report)(&SweepProgress {
            deleted,
            ..SweepProgress::default()
        });
        match write_errors(&answer)?.next() {
            None => Ok(()),
            Some(error) => Err(error.failure()),
        }
    }

    fn report(&mut self, took: &StepTiming, documents_left: u64) {
        self.looked += took.documents;
        (self.expiry.report)(&SweepProgress {
            looked: took.documents,
            deleted: 0,
            left: Some(documents_left),
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

impl Documents<'_> {
    /// The next documents, at most so many.
    async fn next(&mut self, most: usize) -> Result<Vec<SweptDocument>, Failure> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let command = match self.cursor {
            Some(cursor) => doc! { "getMore": cursor, "collection": COOKIES, "batchSize": most },
            None => doc! {
                "find": COOKIES,
                "projection": { "_id": 1, "t": 1 },
                "hint": { "$natural": 1 },
                "batchSize": most,
            },
        };
        let command = self.database.run_command(command);
        let command = command
            .selection_criteria(primary())
            .session(&mut self.session);
        let mut answer = run(command).await?;
        let found = answer.get_document_mut("cursor").ok();
        let (cursor, documents) = found
            .and_then(|found| {
                let documents = found.remove("firstBatch");
                let documents = documents.or_else(|| found.remove("nextBatch"));
                Some((found.get_i64("id").ok()?, documents?))
            })
            .ok_or_else(|| StoreError::Unavailable("an answer without documents".to_owned()))?;
        self.cursor = Some(cursor);
        let Bson::Array(documents) = documents else {
            return Ok(Vec::new());
        };
        let seen = documents.into_iter().filter_map(|document| match document {
            Bson::Document(mut document) => Some(SweptDocument {
                accepted: document.get_datetime("t").ok().copied(),
                id: document.remove("_id").unwrap_or(Bson::Null),
            }),
            _ => None,
        });
        Ok(seen.collect())
    }
}

/// The server's time in microseconds since the Unix epoch.
async fn server_time(connection: &Connection) -> Result<u64, StoreError> {
    let admin = connection.client.database("admin");
    let hello = in_time(admin.run_command(doc! { "hello": 1 }).into_future()).await?;
    let time = hello.get_datetime("localTime").ok();
    let time = time.and_then(|time| u64::try_from(time.timestamp_millis()).ok());
    let untold = || StoreError::Unavailable("the server does not tell its time".to_owned());
    Ok(time.ok_or_else(untold)?.saturating_mul(1_000))
}
