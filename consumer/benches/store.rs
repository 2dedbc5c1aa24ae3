//! Benchmark of a MongoDB store: the consumer's writes of new pairs of user and DSP, compared with plain inserts of the same
//! documents into other databases.
//!
//! `cargo bench -p consumer --bench store -- mongodb://127.0.0.1:27017 [MILLIONS] [split]` writes one million pairs by default. It
//! drops the databases whose names start with `bench-store-` first. CPU is that of mongod, on this machine. With `split`, a third
//! writer inserts the same documents into 256 collections per DSP. The costs of each ten million pairs are reported. Afterwards, the
//! benchmark looks up stored pairs, one after another.
//!
//! The pairs have been accepted in the last 15 days, in order: the next sweep of a consumer with `--mongodb-prefix=bench-store-`
//! and a TTL of 14 days deletes one in fifteen.

use std::{collections::BTreeMap, fs, mem, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use consumer::{
    Config,
    app::open_store,
    batch::Batch,
    clock,
    deletions::Deletions,
    store::{Cookies, mongodb::COOKIES},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mongodb::{
    Client,
    bson::{DateTime, RawArrayBuf, RawDocumentBuf, doc, rawdoc},
};
use proto::{
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::{self, ChunkHeader, ChunkRef, CookieRef, Record, StreamMessage},
};
use tokio::time::Instant;

const PREFIX: &str = "bench-store-";
/// Prefix of the databases with plain inserts.
const PLAIN: &str = "bench-store-plain-";
/// Prefix of the databases with many collections, which are named by the first two hexadecimal digits of the user id.
const SPLIT: &str = "bench-store-split-";

/// The oldest pair has this age.
const OLDEST: Duration = Duration::from_secs(15 * 86_400);

/// Maximum number of pairs that are looked up.
const LOOKUPS: usize = 20_000;

const DSPS: u32 = 20;
const CHUNK_COOKIES: u32 = 1_000;
/// Chunks of a batch, and batches of a slice. The two writers take turns after each slice, so their collections grow alike.
const BATCH_CHUNKS: u32 = 10;
const SLICE_BATCHES: u32 = 10;
const SLICE: u32 = CHUNK_COOKIES * BATCH_CHUNKS * SLICE_BATCHES;

/// The costs are reported after so many slices.
const REPORT_SLICES: u32 = 10_000_000 / SLICE;
/// Concurrent commands of the plain inserts, like those of the store.
const WRITERS: usize = 2;

/// Time, and CPU time of mongod.
#[derive(Default)]
struct Cost(Duration, Duration);

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let uri = args.next().context("missing URL of a MongoDB server")?;
    let millions: u32 = args.next().map_or(Ok(1), |text| text.parse())?;
    let client = Client::with_uri_str(&uri).await?;
    let admin = client.database("admin");
    let status = admin.run_command(doc! {"serverStatus": 1}).await?;
    let mongod = status.get_i64("pid")?;
    for name in client.list_database_names().await? {
        if name.starts_with(PREFIX) {
            client.database(&name).drop().await?;
        }
    }
    let store = prepare(&uri, &client).await?;
    let is_split = std::env::args().any(|arg| arg == "split");
    if is_split {
        let began = Instant::now();
        create_split(&client).await?;
        let seconds = began.elapsed().as_secs_f64();
        println!("created 256 collections per DSP in {seconds:.1} s");
    }
    let [mut of_store, mut of_plain, mut of_split] = [(); 3].map(|()| Cost::default());
    let mut random = fastrand::Rng::with_seed(7);
    let slices = millions * 1_000_000 / SLICE;
    let mut at = 0;
    let mut pairs = Vec::new();
    for number in 0..slices {
        let age = OLDEST * (slices - number) / slices;
        let accepted = UnixMicros(clock::now().0 - u64::try_from(age.as_micros())?);
        let batch = |_| {
            (0..BATCH_CHUNKS)
                .map(|_| chunk(&mut random, &mut at, accepted))
                .collect()
        };
        let slice: Vec<Vec<ChunkRef>> = (0..SLICE_BATCHES).map(batch).collect();
        for chunk in slice.iter().flatten() {
            if let Some(Ok(Record::Set(cookie))) = chunk.records().next() {
                pairs.push((cookie.dsp_id, cookie.user_id.to_owned()));
            }
        }
        of_store.measure(mongod, write(&*store, &slice)).await?;
        of_plain
            .measure(mongod, insert(&client, &slice, false))
            .await?;
        if is_split {
            of_split
                .measure(mongod, insert(&client, &slice, true))
                .await?;
        }
        let written = number + 1;
        if written % REPORT_SLICES == 0 || written == slices {
            println!("{:.1} million pairs:", f64::from(written * SLICE) / 1e6);
            let since = f64::from(((written - 1) % REPORT_SLICES + 1) * SLICE);
            let costs = [
                ("consumer", &mut of_store),
                ("plain inserts", &mut of_plain),
                ("256 collections", &mut of_split),
            ];
            for (name, cost) in costs.into_iter().take(2 + usize::from(is_split)) {
                let Cost(time, cpu) = mem::take(cost);
                let rate = since / time.as_secs_f64();
                let micros = cpu.as_secs_f64() * 1e6 / since;
                println!("{name:15} {rate:8.0}/s, {micros:.2} µs of mongod's CPU per pair");
            }
        }
    }
    random.shuffle(&mut pairs);
    pairs.truncate(LOOKUPS);
    look_up(&client, &pairs).await
}

/// Looks up pairs, one after another.
async fn look_up(client: &Client, pairs: &[(DspId, String)]) -> Result<()> {
    let mut times = Vec::new();
    for (dsp_id, user_id) in pairs {
        let database = client.database(&format!("{PREFIX}{dsp_id}"));
        let collection = database.collection::<RawDocumentBuf>(COOKIES);
        let began = Instant::now();
        let found = collection.find_one(doc! {"_id": user_id}).await?;
        times.push(began.elapsed());
        ensure!(found.is_some(), "a pair is missing");
    }
    times.sort_unstable();
    let [p50, p99] = [50, 99].map(|percent| times[(times.len() - 1) * percent / 100]);
    println!("findOne: p50 {p50:.1?}, p99 {p99:.1?}");
    Ok(())
}

impl Cost {
    async fn measure(&mut self, mongod: i64, work: impl Future<Output = Result<()>>) -> Result<()> {
        let (began, before) = (Instant::now(), cpu(mongod)?);
        work.await?;
        self.0 += began.elapsed();
        self.1 += cpu(mongod)?.saturating_sub(before);
        Ok(())
    }
}

/// CPU time of a process on this machine.
fn cpu(id: i64) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let fields = stat
        .rsplit_once(") ")
        .context("invalid /proc/PID/stat")?
        .1
        .split(' ');
    let ticks: Result<Vec<u64>, _> = fields.skip(11).take(2).map(str::parse).collect();
    Ok(Duration::from_millis(10 * ticks?.iter().sum::<u64>()))
}

/// Opens the store, and creates all databases.
async fn prepare(uri: &str, client: &Client) -> Result<Arc<dyn Cookies>> {
    let flags = [
        "consumer",
        "--name=bench",
        "--store",
        uri,
        "--mongodb-prefix=bench-store-",
    ];
    let config = Config::load(flags.map(Into::into));
    let store = open_store(&config.map_err(|error| anyhow::anyhow!("{error}"))?).await?;
    store.cookies.load(&Deletions::default()).await?;
    let backlog = store.backlog.context("the store is not MongoDB")?;
    for dsp_id in 1..=DSPS {
        backlog
            .retry(DspId(dsp_id), Arc::new(Batch::new(usize::MAX, usize::MAX)))
            .await?;
        create(client, &format!("{PLAIN}{dsp_id}"), COOKIES).await?;
    }
    Ok(store.cookies)
}

/// Creates a collection with a TTL index.
async fn create(client: &Client, database: &str, collection: &str) -> Result<()> {
    let index = doc! {"key": {"t": 1}, "name": "t_1", "expireAfterSeconds": i32::MAX};
    let command = doc! {"createIndexes": collection, "indexes": [index]};
    client.database(database).run_command(command).await?;
    Ok(())
}

async fn create_split(client: &Client) -> Result<()> {
    for dsp_id in 1..=DSPS {
        for number in 0..=u8::MAX {
            let database = format!("{SPLIT}{dsp_id}");
            create(client, &database, &format!("{number:02x}")).await?;
        }
    }
    Ok(())
}

async fn write(store: &dyn Cookies, slice: &[Vec<ChunkRef>]) -> Result<()> {
    let producer: Arc<str> = "producer".into();
    for chunks in slice {
        let mut batch = Batch::new(usize::MAX, usize::MAX);
        for chunk in chunks {
            batch.push(&producer, chunk, UnixMicros::MAX);
        }
        let batch = Arc::new(batch);
        let written = store.write(Arc::clone(&batch)).await?;
        ensure!(
            written.not_stored().next().is_none(),
            "cookies were not stored"
        );
        store.commit(&batch, written.receipt).await?;
    }
    Ok(())
}

/// Inserts into one collection per DSP or, if `is_split`, into 256.
async fn insert(client: &Client, slice: &[Vec<ChunkRef>], is_split: bool) -> Result<()> {
    let prefix = if is_split { SPLIT } else { PLAIN };
    for chunks in slice {
        let mut by_collection: BTreeMap<(DspId, &str), Vec<_>> = BTreeMap::new();
        for chunk in chunks {
            let millis = chunk.header().accepted.0 / 1000;
            let t = DateTime::from_millis(i64::try_from(millis)?);
            for record in chunk.records() {
                let Record::Set(CookieRef {
                    user_id,
                    dsp_id,
                    buyer_uid,
                    ..
                }) = record?
                else {
                    continue;
                };
                let document = rawdoc! {"_id": user_id, "b": buyer_uid, "t": t};
                let collection = if is_split { &user_id[..2] } else { COOKIES };
                let documents = by_collection.entry((dsp_id, collection)).or_default();
                documents.push((user_id, document));
            }
        }
        let commands = by_collection
            .into_iter()
            .map(|((dsp_id, collection), mut documents)| {
                documents.sort_unstable_by_key(|(user_id, _)| *user_id);
                let documents: RawArrayBuf = documents.into_iter().map(|(_, it)| it).collect();
                let command =
                    rawdoc! {"insert": collection, "ordered": false, "documents": documents};
                let database = client.database(&format!("{prefix}{dsp_id}"));
                async move {
                    let response = database.run_raw_command(command).await?;
                    ensure!(response.get_array("writeErrors").is_err(), "{response}");
                    Ok(())
                }
            });
        let commands = stream::iter(commands.collect::<Vec<_>>());
        commands
            .buffer_unordered(WRITERS)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}

/// The next chunk, with new users; `at` is the sequence number before it.
fn chunk(random: &mut fastrand::Rng, at: &mut u64, accepted: UnixMicros) -> ChunkRef {
    let mut buffer = vec![0; wire::HEADROOM_BYTES];
    for _ in 0..CHUNK_COOKIES {
        let user_id: String = (0..20).map(|_| random.digit(16)).collect();
        let buyer_uid: String = (0..26).map(|_| random.alphanumeric()).collect();
        let cookie = CookieRef {
            user_id: &user_id,
            dsp_id: DspId(random.u32(1..=DSPS)),
            buyer_uid: &buyer_uid,
            age_micros: 0,
        };
        wire::put_cookie(&mut buffer, &cookie);
    }
    let header = ChunkHeader {
        epoch: Epoch(1),
        first_sequence: Sequence(*at + 1),
        count: CHUNK_COOKIES,
        accepted,
    };
    *at += u64::from(CHUNK_COOKIES);
    let start = wire::seal(&mut buffer, &header) + wire::FRAME_PREFIX_BYTES;
    match StreamMessage::decode(Bytes::from(buffer).slice(start..)) {
        Ok(StreamMessage::Chunk(chunk)) => chunk,
        other => unreachable!("expected a chunk, not {other:?}"),
    }
}
