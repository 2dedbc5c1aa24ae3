//! Tests that the newest cookie wins in the MongoDB store: a real `mongod` is compared with a model.
//!
//! For any order of arrival, the newest cookie of each pair stays, and the store reports the stale cookies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use consumer::{
    batch::{Batch, BatchCookie, BatchId, DedupDecision, DedupFilter, Fingerprint},
    store::{
        Backlog as _, Cookies as _, Lookup as _, LookupQuery, WriteOutcome,
        mongodb::{COOKIES, MongodbStore, Options},
    },
    ttl::Ttls,
};
use mongodb::{
    Client,
    bson::{DateTime, Document, doc},
};
use proto::{
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::{self, ChunkHeader, ChunkRef, CookieRef, Record, Scope, StreamMessage},
};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::{http::HttpClient, programs::ServerProcess, scrape::names};

use crate::{
    documents::Documents,
    harness::{Consumer, Producer, StoreContents, TIMEOUT, embedded, sync_request, wait_until},
    mongods::shared,
    tcp_proxy::TcpProxy,
};

/// User id, DSP id, buyer uid (empty for a deletion), and acceptance time in seconds after [`BEGAN_SECONDS`].
pub(super) type Sync = (String, u32, String, u64);

const BEGAN_SECONDS: u64 = 1_700_000_000;

pub(super) fn options(uri: String) -> Options {
    Options {
        uri,
        name: "node".to_owned(),
        prefix: "test-".to_owned(),
        ttls: Ttls::new(Duration::from_secs(u32::MAX.into()), BTreeMap::new()),
    }
}

pub(super) fn chunk(sync: &Sync) -> Result<ChunkRef> {
    let (user_id, dsp_id, buyer_uid, seconds) = sync;
    let mut buffer = vec![0; wire::HEADROOM_BYTES];
    let age_micros = 0;
    let record = match &**buyer_uid {
        "" => Record::Delete {
            scope: Scope::from_ids(&**user_id, DspId(*dsp_id)),
            age_micros,
        },
        _ => Record::Set(CookieRef {
            user_id,
            dsp_id: DspId(*dsp_id),
            buyer_uid,
            age_micros,
        }),
    };
    wire::put_record(&mut buffer, &record);
    let header = ChunkHeader {
        epoch: Epoch(1),
        first_sequence: Sequence(1),
        count: 1,
        accepted: UnixMicros((BEGAN_SECONDS + seconds) * 1_000_000),
    };
    let at = wire::seal(&mut buffer, &header) + wire::FRAME_PREFIX_BYTES;
    match StreamMessage::decode(Bytes::from(buffer).slice(at..))? {
        StreamMessage::Chunk(chunk) => Ok(chunk),
        other => anyhow::bail!("{other:?}"),
    }
}

/// Suppression that writes every cookie; the closure returns whether to mark a cookie as known.
struct Hints<F>(F);

impl<F: FnMut() -> bool> DedupFilter for Hints<F> {
    fn fingerprint(&self, _: &BatchCookie<'_>) -> Fingerprint {
        [0; 2]
    }

    fn prefetch(&mut self, _: &[Fingerprint]) {}

    fn decide(&mut self, _: &mut BatchCookie<'_>, _: Fingerprint, _: BatchId) -> DedupDecision {
        DedupDecision::Write { is_known: self.0() }
    }
}

/// A batch of syncs with distinct pairs.
fn batch(syncs: &[Sync], mut is_known: impl FnMut() -> bool) -> Result<Arc<Batch>> {
    let mut batch = Batch::new(1_000_000, 1 << 30);
    for sync in syncs {
        batch.push_filtered(
            &"p".into(),
            &chunk(sync)?,
            UnixMicros::MAX,
            &mut Hints(&mut is_known),
        );
    }
    Ok(Arc::new(batch))
}

/// The newest buyer uid of each pair, with its time.
#[derive(Default)]
struct Model(BTreeMap<(String, u32), (String, u64)>);

impl Model {
    /// Applies syncs with distinct pairs and returns the pairs that were stale.
    fn write(&mut self, syncs: &[Sync]) -> BTreeSet<(String, u32)> {
        let mut stale = BTreeSet::new();
        for (user, dsp, buyer_uid, seconds) in syncs {
            let pair = (user.clone(), *dsp);
            match self.0.get(&pair) {
                Some((_, newer)) if newer > seconds => {
                    stale.insert(pair);
                }
                _ => {
                    self.0.insert(pair, (buyer_uid.clone(), *seconds));
                }
            }
        }
        stale
    }
}

fn reported_stale(batch: &Batch, written: &WriteOutcome) -> BTreeSet<(String, u32)> {
    let cookies = written
        .stale
        .iter()
        .map(|index| batch.cookie(*index as usize));
    cookies
        .map(|cookie| {
            let user = String::from_utf8_lossy(cookie.user_id).into_owned();
            (user, cookie.dsp_id.0)
        })
        .collect()
}

async fn stored(client: &Client, dsps: u32) -> Result<Model> {
    let mut model = Model::default();
    for dsp in 1..=dsps {
        let database = client.database(&format!("test-{dsp}"));
        for collection in database.list_collection_names().await? {
            let mut found = database
                .collection::<Document>(&collection)
                .find(doc! {})
                .await?;
            while found.advance().await? {
                let document = found.deserialize_current()?;
                let keys: Vec<_> = document.keys().map(String::as_str).collect();
                ensure!(keys == ["_id", "b", "t"], "{document}");
                let seconds = document.get_datetime("t")?.timestamp_millis() / 1000;
                let value = (
                    document.get_str("b")?.to_owned(),
                    u64::try_from(seconds)? - BEGAN_SECONDS,
                );
                let pair = (document.get_str("_id")?.to_owned(), dsp);
                ensure!(
                    model.0.insert(pair, value).is_none(),
                    "duplicate of {document}"
                );
            }
        }
    }
    Ok(model)
}

/// A store with slots for the DSPs 1 to `dsps`.
async fn store(mongod: &ServerProcess, dsps: u32) -> Result<MongodbStore> {
    let store = MongodbStore::new(options(mongod.uri()));
    for dsp in 1..=dsps {
        store.retry(DspId(dsp), Arc::new(Batch::new(1, 1))).await?;
    }
    Ok(store)
}

/// Writes random batches, some of them twice, with correct and incorrect hints, and deletes documents between batches.
async fn check_against_model(dsps: u32, rounds: u64, seed: u64) -> Result<()> {
    let mongod = shared::start().await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    let store = store(&mongod, dsps).await?;
    let mut model = Model::default();
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        // Mostly new users in some rounds and mostly known ones in others, so that the store inserts first or updates first.
        let users = [150, 3_000][usize::from(round % 16 < 8)];
        let mut pairs = BTreeSet::new();
        for _ in 0..random.usize(1..400) {
            pairs.insert((random.u64(..users), 1 + random.u32(..dsps)));
        }
        let syncs: Vec<Sync> = pairs
            .into_iter()
            .map(|(user, dsp)| {
                let buyer_uid = format!("$b{}\u{fc}", random.u8(..));
                let seconds = (round * 10).saturating_sub(random.u64(..60));
                (format!("user-{user:x}"), dsp, buyer_uid, seconds)
            })
            .collect();
        let share = random.u8(..4);
        let batch = batch(&syncs, || random.u8(..4) < share)?;
        let written = store.write(Arc::clone(&batch)).await?;
        let stale = model.write(&syncs);
        ensure!(
            reported_stale(&batch, &written) == stale,
            "round {round}, seed {seed}"
        );
        ensure!(written.rejected.is_empty(), "{:?}", written.rejected);
        if random.u8(..4) == 0 {
            let again = store.write(Arc::clone(&batch)).await?;
            ensure!(
                reported_stale(&batch, &again) == stale,
                "round {round} repeated, seed {seed}"
            );
        }
        if random.u8(..4) == 0 {
            let deleted: Vec<_> = model
                .0
                .keys()
                .filter(|_| random.u8(..8) == 0)
                .cloned()
                .collect();
            for (user, dsp) in deleted {
                let database = client.database(&format!("test-{dsp}"));
                let cookies = database.collection::<Document>(COOKIES);
                cookies.delete_one(doc! { "_id": &user }).await?;
                model.0.remove(&(user, dsp));
            }
        }
        let found = stored(&client, dsps).await?;
        ensure!(found.0 == model.0, "round {round}, seed {seed}");
    }
    Ok(())
}

#[tokio::test]
async fn newest_value_of_each_pair_is_kept() -> Result<()> {
    check_against_model(3, 40, 1).await
}

#[tokio::test]
async fn rejected_cookies_are_reported_and_block_no_other() -> Result<()> {
    let mongod = shared::start().await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    let database = client.database("test-7");
    database
        .run_command(doc! {
            "create": "cookies",
            "validator": { "b": { "$ne": "forbidden" } },
        })
        .await?;
    // An operator's index that forbids equal buyer uids.
    let unique = doc! { "key": { "b": 1 }, "name": "unique", "unique": true };
    database
        .run_command(doc! { "createIndexes": "cookies", "indexes": [unique] })
        .await?;
    let store = store(&mongod, 7).await?;
    let sync =
        |user: &str, buyer_uid: &str, seconds| (user.to_owned(), 7, buyer_uid.to_owned(), seconds);
    for known in [false, true] {
        let seconds = u64::from(known);
        let syncs = [
            sync("a", "a", seconds),
            sync("b", "forbidden", seconds),
            sync("c", "c", seconds),
            sync("d", "a", seconds),
            sync("e", "e", seconds),
        ];
        let batch = batch(&syncs, || known)?;
        let written = store.write(Arc::clone(&batch)).await?;
        let rejected: BTreeMap<_, _> = written
            .rejected
            .iter()
            .map(|rejected| {
                (
                    batch.cookie(rejected.index as usize).user_id,
                    &*rejected.reason,
                )
            })
            .collect();
        ensure!(rejected.keys().eq([&b"b"[..], b"d"].iter()), "{rejected:?}");
        ensure!(rejected[&b"b"[..]].contains("121"), "{rejected:?}");
        ensure!(rejected[&b"d"[..]].contains("11000"), "{rejected:?}");
        ensure!(written.stale.is_empty());
    }
    let users = stored(&client, 7)
        .await?
        .0
        .into_keys()
        .map(|(user, _)| user);
    assert_eq!(users.collect::<Vec<_>>(), ["a", "c", "e"]);
    Ok(())
}

/// A suppressed duplicate counts as well: an older value does not win over it.
#[tokio::test]
async fn late_older_value_from_another_producer_does_not_win() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let (first, second) = (
        Producer::start(&dir, &[]).await?,
        Producer::start(&dir, &[]).await?,
    );
    let mut proxy = TcpProxy::to(second.grpc.trim_start_matches("http://")).await?;
    let urls = [&first.grpc, &proxy.url()].map(String::clone);
    let urls = urls.each_ref().map(String::as_str);
    let mut consumer = Consumer::spawn(&dir, "node", &urls, &mongod.uri(), &[]).await?;
    consumer.wait_ready().await?;
    let wait_connected = async |streams| {
        wait_until(TIMEOUT, "streams are open", async || {
            let metrics = consumer.metrics().await?;
            Ok(metrics.count("consumer_producers_connected", &[]) == streams)
        })
        .await
    };
    wait_connected(2).await?;
    // After this cookie, the DSP has its slot, so later cookies skip the retry queue.
    first.accept("carol", 17, "first").await?;
    consumer.wait_settled(1).await?;
    first.accept("alice", 17, "first").await?;
    first.accept("bob", 17, "first").await?;
    consumer.wait_settled(3).await?;

    proxy.disconnect().await;
    wait_connected(1).await?;
    second.accept("alice", 17, "older").await?;
    second.accept("bob", 17, "older").await?;
    wait_until(TIMEOUT, "both older cookies are appended", async || {
        Ok(second.appended().await? == 2)
    })
    .await?;
    first.accept("alice", 17, "changed").await?;
    first.accept("bob", 17, "first").await?;
    consumer.wait_settled(5).await?;
    proxy.reconnect().await?;
    consumer.wait_settled(7).await?;

    let documents = Documents::connect(&mongod.uri()).await?;
    let contents = [("alice", "changed"), ("bob", "first"), ("carol", "first")]
        .map(|(user, uid)| (user.to_owned(), [(17, uid.to_owned())].into()));
    assert_eq!(documents.contents().await?, StoreContents::from(contents));
    let metrics = consumer.metrics().await?;
    let counts = [names::WRITTEN, names::SUPPRESSED, names::STALE];
    let counts = counts.map(|name| metrics.count(name, &[]));
    assert_eq!(counts, [4, 1, 2]);
    Ok(())
}

#[tokio::test]
async fn document_with_another_schema_is_replaced() -> Result<()> {
    let mongod = shared::start().await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    let cookies = client.database("test-7").collection::<Document>("cookies");
    let foreign = [
        doc! { "_id": "a", "b": 5 },
        doc! { "_id": "b", "b": "old", "t": DateTime::MIN },
    ];
    cookies.insert_many(foreign).await?;
    let store = store(&mongod, 7).await?;
    let syncs = ["a", "b"].map(|user| (user.to_owned(), 7, "new".to_owned(), 1));
    let written = store.write(batch(&syncs, || false)?).await?;
    ensure!(
        written.stale.is_empty() && written.rejected.is_empty(),
        "{written:?}"
    );
    let found = stored(&client, 7).await?;
    ensure!(
        found
            .0
            .values()
            .all(|value| *value == ("new".to_owned(), 1))
    );
    let query = LookupQuery {
        user_ids: vec!["a".into()],
        dsps: None,
        deadline: tokio::time::Instant::now() + Duration::from_secs(1),
        permit: None,
    };
    let found = store.lookup(query).await?;
    let matches = found.users[0].as_ref().context("not read")?;
    let found = matches.iter().find(|it| it.dsp_id == DspId(7));
    assert_eq!(found.context("no match")?.buyer_uid, b"new");
    Ok(())
}

/// A user with its own connection.
struct User {
    name: String,
    connection: HttpClient,
}

const ROUNDS: u32 = 5;

const USERS: u32 = 16;

/// Requests of each user during which the producer is paused.
const REPEATS: u32 = 4;

/// DSPs of each user, without the DSP of the repeats. A connection serves 64 requests before it yields.
const DSPS: u32 = 64 - REPEATS;

impl User {
    /// Connects and sends one sync, so that the connection is established.
    async fn connect(producer: &Producer, number: u32) -> Result<Self> {
        let mut user = Self {
            name: format!("user-{number}"),
            connection: HttpClient::connect(&producer.http).await?,
        };
        user.send_repeats(1).await?;
        user.expect_accepted(1).await?;
        Ok(user)
    }

    async fn send_repeats(&mut self, requests: u32) -> Result<()> {
        let repeat = sync_request(&self.name, DSPS + 1, "repeat");
        let repeats = repeat.repeat(usize::try_from(requests)?);
        self.connection.send(repeats.as_bytes()).await
    }

    /// Sends `buyer_uid` for each DSP.
    async fn send(&mut self, buyer_uid: &str) -> Result<()> {
        let requests = (1..=DSPS).map(|dsp| sync_request(&self.name, dsp, buyer_uid));
        let requests: String = requests.collect();
        self.connection.send(requests.as_bytes()).await
    }

    async fn expect_accepted(&mut self, requests: u32) -> Result<()> {
        for _ in 0..requests {
            let answer = self.connection.response().await?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        Ok(())
    }
}

async fn connect_all(producer: &Producer) -> Result<Vec<User>> {
    let mut users = Vec::new();
    for number in 0..USERS {
        users.push(User::connect(producer, number).await?);
    }
    Ok(users)
}

/// Expected store contents if `buyer_uid` was sent last.
fn contents(users: &[User], buyer_uid: &str) -> StoreContents {
    let of_user = || {
        let buyer_uids = (1..=DSPS).map(|dsp| (dsp, buyer_uid.to_owned()));
        buyer_uids.chain([(DSPS + 1, "repeat".to_owned())])
    };
    let users = users.iter();
    users
        .map(|user| (user.name.clone(), of_user().collect()))
        .collect()
}

#[tokio::test]
async fn cookies_accepted_after_a_pause_win_over_those_accepted_elsewhere_during_it() -> Result<()>
{
    let dir = TempDir::new()?;
    let (mut paused, active) = (
        Producer::start(&dir, &[]).await?,
        Producer::start(&dir, &[]).await?,
    );
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&paused, &active], &store, &[]).await?;
    let (mut waiting, mut served) = (connect_all(&paused).await?, connect_all(&active).await?);
    let mut accepted = 2 * USERS;
    for round in 0..ROUNDS {
        // The producer is paused while it handles these requests, so that a chunk is open. After the pause, it may read sockets
        // before its timers run.
        for user in &mut waiting {
            user.send_repeats(REPEATS).await?;
        }
        paused.process.signal(Signal::STOP)?;
        let (older, newer) = (format!("older-{round}"), format!("newer-{round}"));
        for user in &mut served {
            user.send(&older).await?;
            user.expect_accepted(DSPS).await?;
        }
        // This takes longer than the maximum age of a chunk: one batch takes 200 ms.
        consumer.wait_lookups(&contents(&waiting, &older)).await?;
        for user in &mut waiting {
            user.send(&newer).await?;
        }
        paused.process.signal(Signal::CONT)?;
        for user in &mut waiting {
            user.expect_accepted(REPEATS + DSPS).await?;
        }
        accepted += USERS * (REPEATS + 2 * DSPS);
        consumer.wait_settled(accepted.into()).await?;
        consumer.wait_lookups(&contents(&waiting, &newer)).await?;
    }
    Ok(())
}
