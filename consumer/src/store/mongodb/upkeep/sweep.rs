//! A sweep over every collection deletes expired cookies while the window is open.
//!
//! A step scans thousands of documents in natural order, and deletes expired ones by `_id`. The delete command repeats the
//! condition on the acceptance time, so the server decides. In natural order, neighbors are on the same page, and a document
//! costs mongod 0.5–0.65 µs of CPU. In the order of `_id` it costs 2.1–2.6 µs in memory, and 3.2 µs with a cache for half of
//! the documents. (Measured with 6.0.5 and one and four million documents.)
//!
//! The same pass removes cookies that a deletion covers: a command that the server executed late may have written them after
//! their removal.
//!
//! A pass reads one cursor through a collection. If the cursor is lost by a restart or failover, the next pass starts at the
//! first document. `cookiesync.sweeps` records when the newest pass and the newest complete pass of a collection began (see
//! `record.rs`).
//!
//! The collection whose newest pass began earliest is swept first, so a collection that needs more than a window does not
//! starve the others.

mod pace;
mod pass;
mod record;

use std::{collections::BTreeMap, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, doc},
};
use proto::units::{DspId, UnixMicros};
use tokio::time::{Instant, sleep};

use super::super::{
    COOKIES, MongodbStore,
    connection::{Connection, run},
    databases::namespace,
    deleted_before,
    documents::{DELETES_PER_COMMAND_MAX, Documents, delete, expired},
    error_class::Failure,
    number,
    server::hello,
    time,
};
use crate::{
    store::{Expiry, StoreError, SweepProgress},
    ttl,
};
use pace::{StepTiming, SweepPace};
use pass::Pass;
use record::SweepRecord;

/// The collection of records.
const RECORDS: &str = "sweeps";

/// Interval of lease renewals during a sweep.
const LEASE_INTERVAL: Duration = Duration::from_secs(300);

/// Maximum time for a sweep if the window never closes.
const DAY: Duration = Duration::from_secs(86_400);

/// If the window never closes, a sweep starts no further collection after this time, so that other maintenance can run.
const SWEEP_MAX: Duration = Duration::from_secs(3600);

/// Sweep records by namespace.
type SweepRecords = BTreeMap<String, SweepRecord>;

/// One sweep through all collections.
struct Sweep<'a> {
    store: &'a MongodbStore,
    connection: &'a Connection,
    expiry: &'a Expiry<'a>,
    /// The time at which cookies expire.
    now: UnixMicros,
    pace: SweepPace,
    /// When the window closes, or the next sweep begins.
    deadline: Instant,
    /// When the lease was last renewed.
    leased_at: Option<Instant>,
    scanned: u64,
    deleted: u64,
    /// Number of documents in the collections not swept yet.
    waiting: u64,
}

/// A collection to sweep.
struct DueCollection {
    dsp_id: DspId,
    namespace: String,
    database: Database,
    record: SweepRecord,
    /// Number of documents at the start of the sweep.
    documents: u64,
}

impl MongodbStore {
    pub(super) async fn read_records(&self) -> Result<SweepRecords, StoreError> {
        let found = self.find_own(RECORDS, doc! {}).await?;
        Ok(found.iter().filter_map(SweepRecord::decode).collect())
    }

    /// Deletes the records of all other collections, which were dropped. If they are created again, nothing in them is overdue yet.
    pub(super) async fn keep_records(
        &self,
        databases: &[(DspId, Database)],
    ) -> Result<(), StoreError> {
        let kept: Vec<_> = databases.iter().map(|(_, it)| namespace(it)).collect();
        self.delete_own(RECORDS, doc! { "_id": { "$nin": kept } })
            .await
    }

    async fn save_record(&self, due: &DueCollection) -> Result<(), StoreError> {
        let record = due.record.encode(&due.namespace);
        self.put_own(RECORDS, &due.namespace, record).await
    }

    /// Sweeps the due collections of these databases. Returns whether all are complete. Failures of single DSPs are stored in
    /// `failed`.
    pub(super) async fn sweep(
        &self,
        expiry: &Expiry<'_>,
        databases: &[(DspId, Database)],
        failed: &mut Option<StoreError>,
    ) -> Result<bool, StoreError> {
        let connection = self.connection().await?;
        let due = self.due(expiry, databases, failed).await?;
        if expiry.stop.is_cancelled() {
            return Ok(false);
        }
        if due.is_empty() {
            return Ok(failed.is_none());
        }
        let now = Instant::now();
        let mut sweep = Sweep {
            store: self,
            connection,
            expiry,
            // The earlier of two clocks, in case the clock of this host is ahead.
            now: expiry.now.min(server_time(connection).await?),
            pace: SweepPace::new(self.commit_times.median()),
            deadline: now
                + expiry.time_left.unwrap_or_else(|| {
                    let ttls = due.iter().map(|due| self.options.ttls.of(due.dsp_id));
                    ttls.map(repeat_interval).fold(DAY, Duration::min)
                }),
            leased_at: None,
            scanned: 0,
            deleted: 0,
            waiting: due.iter().map(|due| due.documents).sum(),
        };
        let collections = due.len();
        tracing::info!(collections, documents = sweep.waiting, "sweep started");
        let mut complete = true;
        for due in due {
            let is_over = expiry.time_left.is_none() && now.elapsed() >= SWEEP_MAX;
            if is_over || expiry.stop.is_cancelled() {
                complete = false;
                break;
            }
            sweep.waiting -= due.documents;
            let swept = sweep.sweep_collection(due).await;
            match self.isolate(swept, failed).await? {
                Some(true) => {}
                Some(false) => {
                    complete = false;
                    break;
                }
                None => complete = false,
            }
        }
        let (took, scanned, deleted) = (now.elapsed(), sweep.scanned, sweep.deleted);
        tracing::info!(complete, scanned, deleted, ?took, "sweep ended");
        Ok(complete)
    }

    /// The due collections: least recently swept first; if equal, the smallest first.
    async fn due(
        &self,
        expiry: &Expiry<'_>,
        databases: &[(DspId, Database)],
        failed: &mut Option<StoreError>,
    ) -> Result<Vec<DueCollection>, StoreError> {
        let mut records = self.read_records().await?;
        let mut due = Vec::new();
        for (dsp_id, database) in databases {
            if expiry.stop.is_cancelled() {
                break;
            }
            let namespace = namespace(database);
            let record = records.remove(&namespace).unwrap_or_default();
            let ttl = self.options.ttls.of(*dsp_id);
            let since = match expiry.time_left {
                Some(_) => expiry.since,
                None => expiry
                    .since
                    .max(ttl::before(expiry.now, repeat_interval(ttl))),
            };
            if record.is_done(since, expiry.now, ttl) {
                continue;
            }
            let count = run(database.run_command(doc! { "count": COOKIES })).await;
            let Some(count) = self.isolate(count, failed).await? else {
                continue;
            };
            let documents = count.get("n").and_then(number).unwrap_or_default();
            due.push(DueCollection {
                dsp_id: *dsp_id,
                namespace,
                database: database.clone(),
                record,
                documents,
            });
        }
        due.sort_by_key(|due| (due.record.last_pass(expiry.now), due.documents));
        Ok(due)
    }
}

impl Sweep<'_> {
    /// Sweeps one collection; returns whether the pass is complete.
    async fn sweep_collection(&mut self, mut due: DueCollection) -> Result<bool, Failure> {
        let (expiry, dsp_id) = (self.expiry, due.dsp_id);
        // Producers may have changed the TTL since `due`.
        let ttl = self.store.options.ttls.of(dsp_id);
        let ttl_before = ttl::before(self.now, ttl);
        let before = |id: &Bson| {
            let user_id = id.as_str().unwrap_or_default().as_bytes();
            ttl_before.max(deleted_before(
                expiry.deletions.deleted_until(user_id, dsp_id),
            ))
        };
        due.record.begin(self.expiry.now);
        self.store.save_record(&due).await?;
        let mut pass = Pass::new(self.expiry.now, due.documents);
        let mut documents = Documents::begin(self.connection, due.database.clone()).await?;
        loop {
            if self.expiry.stop.is_cancelled() || !self.is_owner().await? {
                return Ok(false);
            }
            let began = Instant::now();
            let found = documents.next(self.pace.documents()).await?;
            let mut timing = StepTiming {
                command: began.elapsed(),
                documents: found.len() as u64,
                ..StepTiming::default()
            };
            let is_complete = pass.scan(&found) || documents.is_at_end();
            for part in expired(found, before).chunks(DELETES_PER_COMMAND_MAX) {
                if self.expiry.stop.is_cancelled() {
                    return Ok(false);
                }
                let began = Instant::now();
                let deleted = delete(self.connection, &due.database, part).await?;
                self.report(0, deleted, None);
                timing.command = timing.command.max(began.elapsed());
            }
            if is_complete {
                due.record.complete(ttl);
                self.store.save_record(&due).await?;
            }
            timing.total = began.elapsed();
            timing.commit = self.store.commit_times.newest();
            let remaining = self.waiting + if is_complete { 0 } else { pass.remaining() };
            self.report(timing.documents, 0, Some(remaining));
            // Pauses also before the next collection, because small collections take only one step.
            let time_left = self.deadline.saturating_duration_since(Instant::now());
            let pause = self.pace.pause(&timing, remaining, time_left);
            tokio::select! {
                () = self.expiry.stop.cancelled() => {}
                () = sleep(pause) => {}
            }
            if is_complete {
                return Ok(true);
            }
        }
    }

    fn report(&mut self, scanned: u64, deleted: u64, remaining: Option<u64>) {
        self.scanned += scanned;
        self.deleted += deleted;
        (self.expiry.report)(&SweepProgress {
            scanned,
            deleted,
            remaining,
        });
    }

    /// Renews the lease periodically; returns whether this consumer still holds it.
    async fn is_owner(&mut self) -> Result<bool, StoreError> {
        if self
            .leased_at
            .is_some_and(|at| at.elapsed() < LEASE_INTERVAL)
        {
            return Ok(true);
        }
        let is_owner = self.store.other_owner().await?.is_none();
        self.leased_at = Some(Instant::now());
        Ok(is_owner)
    }
}

/// Time from the start of a sweep of a collection with this TTL to the next one, if the window never closes. Four scans cost
/// mongod less than the maintenance of an index on `t`.
fn repeat_interval(ttl: Duration) -> Duration {
    ttl / 4
}

/// The server's time.
async fn server_time(connection: &Connection) -> Result<UnixMicros, StoreError> {
    let hello = hello(connection).await?;
    let local = hello.get_datetime("localTime").ok();
    let missing = || StoreError::Unavailable("server did not report its time".to_owned());
    local.and_then(|it| time(*it)).ok_or_else(missing)
}
