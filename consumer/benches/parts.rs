//! Benchmark of each consumer stage that a cookie passes through, without sockets or a store.
//!
//! The measured functions are in [`counted`]: `cargo bench --bench parts` measures their time, and `.ci/instructions`
//! counts their instructions. Each function processes [`ITEMS`] items per call.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use consumer::{
    batch::Batch,
    store::{WriteOutcome, mongodb::command::Kind},
    suppression::{Suppression, outcomes},
    ttl::Ttls,
};
use divan::{Bencher, counter::ItemsCount};
use proto::{
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::{self, ChunkHeader, ChunkRef, CookieRef, StreamMessage},
};

/// Cookies per call of a measured function; `.ci/instructions` divides by it. This is the size of a batch after 200 ms
/// at 50,000 cookies per second.
const ITEMS: usize = 10_000;

/// Cookies per chunk. Such a chunk has 55 KiB; the maximum is 64 KiB.
const CHUNK_COOKIES: usize = 1_000;

/// Acceptance time of the first cookies. Any time is suitable.
const BEGIN: UnixMicros = UnixMicros(1_700_000_000_000_000);

/// Longer than any measurement.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Size of the suppression table: four times as many entries as cookies.
const TABLE_BYTES: usize = 1 << 20;

fn main() {
    divan::main();
}

/// The measured functions. They are not inlined and not generic, so that each function is one symbol. Each is called
/// only by the benchmark of the same name, because `.ci/instructions` counts every call.
mod counted {
    use std::{hint::black_box, sync::Arc};

    use bytes::Bytes;
    use consumer::{
        batch::{AcceptAll, Batch},
        store::{
            WriteOutcome,
            mongodb::command::{self, Kind},
        },
        suppression::{Suppression, outcomes},
    };
    use proto::{
        units::UnixMicros,
        wire::{ChunkRef, StreamMessage},
    };

    /// Decodes messages into borrowed cookies.
    #[inline(never)]
    pub(super) fn decode(messages: &[Bytes]) {
        for message in messages {
            let Ok(StreamMessage::Chunk(chunk)) = StreamMessage::decode(message.clone()) else {
                unreachable!("every message is a chunk");
            };
            for record in chunk.records() {
                black_box(record.expect("every cookie is complete"));
            }
        }
    }

    /// Collects the newest cookie of each pair from chunks.
    #[inline(never)]
    pub(super) fn batch(batch: &mut Batch, producer: &Arc<str>, chunks: &[ChunkRef]) {
        for chunk in chunks {
            batch.push_filtered(producer, chunk, UnixMicros::MAX, &mut AcceptAll);
        }
    }

    /// Like [`batch`], and suppresses duplicates.
    #[inline(never)]
    pub(super) fn suppress(
        batch: &mut Batch,
        producer: &Arc<str>,
        chunks: &[ChunkRef],
        suppression: &mut Suppression,
    ) {
        for chunk in chunks {
            batch.push_filtered(producer, chunk, UnixMicros::MAX, suppression);
        }
    }

    /// Records that a batch was stored.
    #[inline(never)]
    pub(super) fn record(suppression: &mut Suppression, batch: &Batch, written: &WriteOutcome) {
        suppression.record(batch.id(), outcomes(batch, written));
    }

    /// Sorts a batch for MongoDB.
    #[inline(never)]
    pub(super) fn sort(batch: &Batch) {
        black_box(command::by_dsp(batch));
    }

    /// Encodes one command for all cookies of a batch.
    #[inline(never)]
    pub(super) fn encode(kind: Kind, batch: &Batch, indices: &[u32]) {
        black_box(kind.encode(batch, indices, &mongodb::bson::Document::new(), None));
    }
}

/// Messages of a stream with realistic cookies: a user id of 20 digits, one of `dsps` DSPs, and a buyer uid of 16 to 36
/// characters. A seed always gives the same messages. Each of the `users` occurs equally often.
fn messages(seed: u64, users: usize, dsps: u32) -> Vec<Bytes> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cookie = |number: usize| {
        let mut user = fastrand::Rng::with_seed(seed << 32 | (number % users) as u64);
        let user_id: String = (0..20).map(|_| user.digit(16)).collect();
        let dsp_id = user.u32(1..=dsps);
        let length = random.usize(16..=36);
        let buyer_uid: String = (0..length).map(|_| random.alphanumeric()).collect();
        (user_id, dsp_id, buyer_uid)
    };
    let mut message = |first: usize| {
        let mut buffer = vec![0; wire::HEADROOM_BYTES];
        for number in first..first + CHUNK_COOKIES {
            let (user_id, dsp_id, buyer_uid) = cookie(number);
            let cookie = CookieRef {
                user_id: &user_id,
                dsp_id: DspId(dsp_id),
                buyer_uid: &buyer_uid,
                age_micros: 0,
            };
            wire::put_cookie(&mut buffer, &cookie);
        }
        let header = ChunkHeader {
            epoch: Epoch(1),
            first_sequence: Sequence(first as u64 + 1),
            count: u32::try_from(CHUNK_COOKIES).expect("a chunk has few cookies"),
            accepted: BEGIN.after(first as u64),
        };
        let at = wire::seal(&mut buffer, &header) + wire::FRAME_PREFIX_BYTES;
        Bytes::from(buffer).slice(at..)
    };
    (0..ITEMS)
        .step_by(CHUNK_COOKIES)
        .map(&mut message)
        .collect()
}

fn chunks(seed: u64, users: usize, dsps: u32) -> Vec<ChunkRef> {
    let received = messages(seed, users, dsps)
        .into_iter()
        .map(StreamMessage::decode);
    let chunk = |received| match received {
        Ok(StreamMessage::Chunk(chunk)) => chunk,
        other => unreachable!("expected a chunk, not {other:?}"),
    };
    received.map(chunk).collect()
}

/// A batch of these chunks. The [`next`](Batch::next) batch has capacity for the same number of cookies, as in a
/// running consumer.
fn batched(chunks: &[ChunkRef]) -> Batch {
    let mut batch = Batch::new(usize::MAX, usize::MAX);
    for chunk in chunks {
        batch.push(&producer(), chunk, UnixMicros::MAX);
    }
    batch
}

/// A batch of the cookies in `chunks` that pass `suppression`.
fn filtered(chunks: &[ChunkRef], suppression: &mut Suppression) -> Batch {
    let mut batch = batched(&[]);
    for chunk in chunks {
        batch.push_filtered(&producer(), chunk, UnixMicros::MAX, suppression);
    }
    batch
}

/// A suppression table that records the cookies of `chunks` as stored.
fn recorded(chunks: &[ChunkRef]) -> Suppression {
    let ttls = Ttls::new(2 * INTERVAL, BTreeMap::new());
    let mut suppression = Suppression::new(INTERVAL, TABLE_BYTES, ttls);
    let batch = filtered(chunks, &mut suppression);
    suppression.record(batch.id(), outcomes(&batch, &WriteOutcome::default()));
    suppression
}

fn producer() -> Arc<str> {
    "producer".into()
}

#[divan::bench]
fn decode(bencher: Bencher<'_, '_>) {
    let messages = messages(1, ITEMS, 20);
    bencher
        .counter(ItemsCount::new(ITEMS))
        .bench_local(|| counted::decode(&messages));
}

/// `users` is the number of users. With 2,500, three of four cookies replace another one of the batch.
#[divan::bench(args = [ITEMS, ITEMS / 4])]
fn batch(bencher: Bencher<'_, '_>, users: usize) {
    let (producer, chunks) = (producer(), chunks(1, users, 20));
    let before = batched(&chunks);
    bencher
        .counter(ItemsCount::new(ITEMS))
        .with_inputs(|| before.next())
        .bench_local_refs(|batch| counted::batch(batch, &producer, &chunks));
}

/// Which of the filtered cookies the table contains.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// No cookie is stored: all pass.
    New,
    /// All cookies are stored: all are suppressed.
    Stored,
}

#[divan::bench(args = [Known::New, Known::Stored])]
fn suppress(bencher: Bencher<'_, '_>, known: Known) {
    let (producer, chunks) = (producer(), chunks(1, ITEMS, 20));
    let before = batched(&chunks);
    let stored = match known {
        // Records other cookies to touch the memory of the table.
        Known::New => self::chunks(2, ITEMS, 20),
        Known::Stored => chunks.clone(),
    };
    bencher
        .counter(ItemsCount::new(ITEMS))
        .with_inputs(|| (before.next(), recorded(&stored)))
        .bench_local_refs(|(batch, suppression)| {
            counted::suppress(batch, &producer, &chunks, suppression);
        });
}

#[divan::bench]
fn record(bencher: Bencher<'_, '_>) {
    let (chunks, others) = (chunks(1, ITEMS, 20), chunks(2, ITEMS, 20));
    let written = WriteOutcome::default();
    bencher
        .counter(ItemsCount::new(ITEMS))
        .with_inputs(|| {
            let mut suppression = recorded(&others);
            let batch = filtered(&chunks, &mut suppression);
            (suppression, batch)
        })
        .bench_local_refs(|(suppression, batch)| counted::record(suppression, batch, &written));
}

#[divan::bench]
fn sort(bencher: Bencher<'_, '_>) {
    let batch = batched(&chunks(1, ITEMS, 20));
    bencher
        .counter(ItemsCount::new(ITEMS))
        .bench_local(|| counted::sort(&batch));
}

/// All cookies are of one DSP, and therefore in one collection.
#[divan::bench(args = [Kind::Insert, Kind::Find, Kind::Replace, Kind::Upsert])]
fn encode(bencher: Bencher<'_, '_>, kind: Kind) {
    let batch = batched(&chunks(1, ITEMS, 1));
    let indices: Vec<u32> = batch.by_user().collect();
    bencher
        .counter(ItemsCount::new(ITEMS))
        .bench_local(|| counted::encode(kind, &batch, &indices));
}
