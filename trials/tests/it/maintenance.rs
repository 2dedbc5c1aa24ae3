//! Tests of the consumer's maintenance (expiry and compaction) on a real `mongod`, with a clock that the test sets.

mod expiry;
mod sweep;

use std::{cell::Cell, collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use consumer::{
    clock::{Clock, ManualClock},
    deletions::Deletions,
    maintenance::{self, Schedule},
    metrics::{Maintenance, Metrics},
    producers::Producers,
    store::mongodb::{MongodbStore, Options},
    ttl::Ttls,
};
use jiff::{Timestamp, tz::TimeZone};
use mongodb::{
    Client, Collection, Database,
    bson::{Bson, DateTime, Document, doc},
};
use proto::v1::{DspTimeToLive, TimesToLive};
use runtime::metrics::Registry;
use testkit::programs::ServerProcess;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    harness::{TIMEOUT, wait_until},
    mongods::shared::{self, SharedMongod},
};

pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// TTL of cookies of all DSPs but one.
pub(crate) const TTL: Duration = DAY.saturating_mul(14);

/// The DSP whose TTL a producer shortens to one day.
pub(crate) const SHORT_DSP: u32 = 18;

/// The time `DDTHH:MM` in March 2026, UTC.
pub(crate) fn at(time: &str) -> Timestamp {
    let time = format!("2026-03-{time}:00Z");
    time.parse().expect("the text is a day and a time")
}

/// Options of a consumer that affect its maintenance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerOptions {
    pub(crate) name: &'static str,
    pub(crate) expiry_window: &'static str,
    pub(crate) ttl: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            name: "node",
            expiry_window: "01:00-03:00",
            ttl: TTL,
        }
    }
}

impl ConsumerOptions {
    /// The consumer's store.
    pub(crate) fn store(self, uri: &str) -> MongodbStore {
        let Self { name, ttl, .. } = self;
        let ttls = Ttls::new(ttl, [].into()).with_floor(Some(DAY));
        let dsp = DspTimeToLive {
            dsp_id: SHORT_DSP,
            seconds: DAY.as_secs(),
        };
        let message = TimesToLive {
            dsps: vec![dsp],
            other_seconds: 0,
        };
        ttls.report(([127, 0, 0, 1], 7676).into(), &message);
        MongodbStore::new(Options {
            uri: uri.to_owned(),
            name: name.to_owned(),
            prefix: String::new(),
            ttls,
        })
    }
}

/// The maintenance task of one consumer. It runs until it is stopped or dropped.
pub(crate) struct MaintenanceRun {
    pub(crate) clock: ManualClock,
    pub(crate) metrics: Maintenance,
    stop: CancellationToken,
    task: JoinSet<()>,
}

impl MaintenanceRun {
    /// Starts maintenance with the default windows: expiry 01:00-03:00, compaction 03:00-06:00.
    pub(crate) fn start(mongod: &ServerProcess, now: &str) -> Result<Self> {
        Self::start_as(ConsumerOptions::default(), mongod, now)
    }

    /// Like [`start`](Self::start), with the options of a consumer.
    pub(crate) fn start_as(
        options: ConsumerOptions,
        mongod: &ServerProcess,
        now: &str,
    ) -> Result<Self> {
        Self::start_on(options, &mongod.uri(), now)
    }

    /// Like [`start_as`](Self::start_as), on a server or replica set.
    pub(crate) fn start_on(options: ConsumerOptions, uri: &str, now: &str) -> Result<Self> {
        Self::start_with(options, uri, now, Deletions::default())
    }

    /// Like [`start_on`](Self::start_on), for a consumer with these deletions.
    pub(crate) fn start_with(
        options: ConsumerOptions,
        uri: &str,
        now: &str,
        deletions: Deletions,
    ) -> Result<Self> {
        let store = options.store(uri);
        let schedule = Schedule {
            expiry: options.expiry_window.parse()?,
            compaction: "03:00-06:00".parse()?,
            time_zone: TimeZone::UTC,
            cursor_ttl: TTL,
        };
        let clock = ManualClock::new(at(now));
        let metrics = Metrics::register(&Registry::new())?;
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(maintenance::run(
            Arc::new(store),
            watch::channel(schedule).1,
            Clock::Manual(clock.clone()),
            Producers::default(),
            deletions,
            metrics.clone(),
            stop.clone(),
        ));
        Ok(Self {
            clock,
            metrics: metrics.maintenance,
            stop,
            task,
        })
    }

    pub(crate) fn set(&self, time: &str) {
        self.clock.set(at(time));
    }

    /// Advances the clock by ten minutes, after which all collections are checked again.
    pub(crate) fn pass_ten_minutes(&self) {
        self.clock.advance(Duration::from_secs(600));
    }

    /// A clock driver for steps that fail and are retried.
    pub(crate) fn retry_clock(&self) -> RetryClock<'_> {
        RetryClock {
            clock: &self.clock,
            began: Instant::now(),
            minutes: Cell::new(0),
        }
    }

    /// Stops maintenance as a clean shutdown does.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        let ended = self.task.join_next().await;
        Ok(ended.context("the maintenance task is missing")??)
    }

    /// Waits until maintenance has detected that the expiry window is open or closed.
    pub(crate) async fn wait_open(&self, open: bool) -> Result<()> {
        wait_until(TIMEOUT, "the window opens or closes", async || {
            Ok(self.metrics.expiry_open.get() == i64::from(open))
        })
        .await
    }

    /// Waits until at least `count` compactions are complete.
    pub(crate) async fn wait_compactions(&self, count: u64) -> Result<()> {
        let what = format!("{count} compactions are complete");
        wait_until(TIMEOUT, &what, async || {
            Ok(self.metrics.compactions.get() >= count)
        })
        .await
    }

    /// Number of collections compacted so far.
    pub(crate) fn collections_compacted(&self) -> u64 {
        self.metrics.compaction_seconds.get_sample_count()
    }
}

/// Advances the clock minute by minute; maintenance retries a failed step after each minute.
pub(crate) struct RetryClock<'a> {
    clock: &'a ManualClock,
    began: Instant,
    minutes: Cell<u64>,
}

impl RetryClock<'_> {
    /// Advances the clock; call it in a loop.
    ///
    /// The clock advances by a minute per second for 40 s, then by a minute per 40 s. A window of two hours is therefore long enough
    /// for a slow machine: 40 real minutes are 101 minutes of this clock.
    pub(crate) fn advance(&self) {
        let seconds = self.began.elapsed().as_secs();
        let minutes = 1 + seconds.min(40) + seconds / 40;
        let more = minutes - self.minutes.replace(minutes);
        self.clock.advance(Duration::from_secs(60 * more));
    }
}

/// A `mongod` with helpers to write, read and inspect its collections.
pub(crate) struct Server {
    client: Client,
    /// Reference time of document ages.
    now: DateTime,
}

impl Server {
    /// Starts a `mongod` that deletes expired documents of TTL indexes every second. Ages count from 01:00 on the tenth.
    pub(crate) async fn start() -> Result<(SharedMongod, Self)> {
        let often = ["--setParameter", "ttlMonitorSleepSecs=1"];
        let mongod = shared::start_with(&often).await?;
        let now = DateTime::from_millis(at("10T01:00").as_millisecond());
        let server = Self::connect(&mongod.uri(), now).await?;
        Ok((mongod, server))
    }

    /// Connects to a running server; ages count from `now`.
    pub(crate) async fn connect(uri: &str, now: DateTime) -> Result<Self> {
        let client = Client::with_uri_str(uri).await?;
        Ok(Self { client, now })
    }

    pub(crate) fn database(&self, name: &str) -> Database {
        self.client.database(name)
    }

    pub(crate) fn collection(&self, namespace: &str) -> Collection<Document> {
        let (database, collection) = namespace.split_once('.').unwrap_or((namespace, "cookies"));
        self.database(database).collection(collection)
    }

    pub(crate) fn ago(&self, age: Duration) -> DateTime {
        let millis = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        DateTime::from_millis(self.now.timestamp_millis() - millis)
    }

    /// Writes a document `name` of the given age.
    pub(crate) async fn write(&self, namespace: &str, name: &str, age: Duration) -> Result<()> {
        let document = doc! { "_id": name, "b": "buyer", "t": self.ago(age) };
        self.collection(namespace).insert_one(document).await?;
        Ok(())
    }

    /// Sorted ids of all documents.
    pub(crate) async fn names(&self, namespace: &str) -> Result<Vec<String>> {
        let mut found = self.collection(namespace).find(doc! {}).await?;
        let mut names = Vec::new();
        while found.advance().await? {
            names.push(found.deserialize_current()?.get_str("_id")?.to_owned());
        }
        names.sort();
        Ok(names)
    }

    pub(crate) async fn wait_names(&self, namespace: &str, expected: &[&str]) -> Result<()> {
        let what = format!("{namespace} has {expected:?}");
        wait_until(TIMEOUT, &what, async || {
            Ok(self.names(namespace).await? == expected)
        })
        .await
    }

    /// Waits for two complete passes of the TTL monitor. It will not delete documents that exist afterwards.
    pub(crate) async fn wait_monitor(&self) -> Result<()> {
        let began = self.monitor_passes().await?;
        wait_until(TIMEOUT, "the TTL monitor passes twice", async || {
            Ok(self.monitor_passes().await? >= began + 2)
        })
        .await
    }

    async fn monitor_passes(&self) -> Result<i64> {
        let status = doc! { "serverStatus": 1 };
        let status = self.database("admin").run_command(status).await?;
        let monitor = status.get_document("metrics")?.get_document("ttl")?;
        Ok(monitor.get_i64("passes")?)
    }

    /// Creates an index on `t` with these options.
    pub(crate) async fn create_index(
        &self,
        namespace: &str,
        name: &str,
        options: Document,
    ) -> Result<()> {
        let collection = self.collection(namespace);
        let mut index = doc! { "key": { "t": 1 }, "name": name };
        index.extend(options);
        let command = doc! { "createIndexes": collection.name(), "indexes": [index] };
        let database = self.database(&collection.namespace().db);
        database.run_command(command).await?;
        Ok(())
    }

    /// All indexes except the one on `_id`.
    pub(crate) async fn indexes(&self, namespace: &str) -> Result<Vec<Document>> {
        let collection = self.collection(namespace);
        let command = doc! { "listIndexes": collection.name() };
        let database = self.database(&collection.namespace().db);
        let answer = database.run_command(command).await?;
        let found = answer.get_document("cursor")?.get_array("firstBatch")?;
        let mut indexes: Vec<_> = found
            .iter()
            .filter_map(Bson::as_document)
            .cloned()
            .collect();
        indexes.retain(|index| index.get_str("name").is_ok_and(|name| name != "_id_"));
        Ok(indexes)
    }

    /// Waits until the only index is the one on `_id`.
    pub(crate) async fn wait_no_index(&self, namespace: &str) -> Result<()> {
        let what = format!("{namespace} has no index");
        wait_until(TIMEOUT, &what, async || {
            Ok(self.indexes(namespace).await?.is_empty())
        })
        .await
    }

    /// The sweep records, by namespace.
    pub(crate) async fn sweeps(&self) -> Result<BTreeMap<String, Document>> {
        let mut found = self.collection("cookiesync.sweeps").find(doc! {}).await?;
        let mut records = BTreeMap::new();
        while found.advance().await? {
            let record = found.deserialize_current()?;
            records.insert(record.get_str("_id")?.to_owned(), record);
        }
        Ok(records)
    }

    /// Size of all files of a collection, in bytes.
    pub(crate) async fn bytes(&self, namespace: &str) -> Result<i64> {
        let collection = self.collection(namespace);
        let database = self.database(&collection.namespace().db);
        let stats = doc! { "collStats": collection.name() };
        let stats = database.run_command(stats).await?;
        let bytes = |key| {
            let value = stats.get(key);
            value.and_then(|value| value.as_i32().map(i64::from).or(value.as_i64()))
        };
        bytes("totalSize").context("totalSize is missing")
    }

    /// Writes `count` documents. Every fourth is new, the others have the given age. Returns the number of old ones.
    pub(crate) async fn fill(&self, namespace: &str, count: u64, age: Duration) -> Result<u64> {
        let (old, new) = (self.ago(age), self.now);
        let mut random = fastrand::Rng::new();
        let mut documents = (0..count).map(|number| {
            let t = if number % 4 == 0 { new } else { old };
            let user = format!("{:016x}{number}", random.u64(..));
            let buyer: String = (0..160).map(|_| random.alphanumeric()).collect();
            doc! { "_id": user, "b": buyer, "t": t }
        });
        let collection = self.collection(namespace);
        loop {
            let some: Vec<_> = documents.by_ref().take(10_000).collect();
            if some.is_empty() {
                break;
            }
            collection.insert_many(some).ordered(false).await?;
        }
        Ok(count - count.div_ceil(4))
    }

    /// Flushes all data to the files, so that deleted documents count as reusable space.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        let admin = self.database("admin");
        admin.run_command(doc! { "fsync": 1 }).await?;
        Ok(())
    }

    /// Expires the lease of the maintenance owner.
    pub(crate) async fn expire_lease(&self) -> Result<()> {
        let expired = doc! { "$set": { "until": DateTime::MIN } };
        let maintenance = self.collection("cookiesync.maintenance");
        maintenance
            .update_one(doc! { "_id": "owner" }, expired)
            .await?;
        Ok(())
    }

    /// The compaction records, sorted by namespace.
    pub(crate) async fn compactions(&self) -> Result<Vec<Document>> {
        let mut found = self
            .collection("cookiesync.maintenance")
            .find(doc! { "_id": { "$ne": "owner" } })
            .sort(doc! { "_id": 1 })
            .await?;
        let mut records = Vec::new();
        while found.advance().await? {
            records.push(found.deserialize_current()?);
        }
        Ok(records)
    }
}
