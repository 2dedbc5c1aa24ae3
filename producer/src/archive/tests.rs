//! The archiver against an archive that fails at random.

use std::{collections::HashMap, sync::Arc};

use fastrand::Rng;
use parking_lot::Mutex;
use proto::{
    archive::{Events, GROUP_BYTES_MAX},
    units::{DspId, Epoch, Sequence},
    v1::{self, event::Event},
    wire::{CookieRef, StreamMessage},
};

use tokio::task::JoinSet;

use super::*;
use crate::log::{self, AppendBatch, tests::seal};

const CHUNK_BYTES: usize = 4096;

/// What the archive has stored, and the payload of each id that was ever sent.
#[derive(Debug, Default)]
struct Stored {
    messages: Vec<Message>,
    sent: HashMap<String, Bytes>,
    attempts: u64,
}

/// Fails as the generator decides, before or after it has stored a message.
struct Archive {
    stored: Arc<Mutex<Stored>>,
    rng: Rng,
    failures: f64,
}

impl Publisher for Archive {
    async fn publish(&mut self, message: &Message) -> Result<(), ArchiveError> {
        sleep(Duration::from_millis(self.rng.u64(1..20))).await;
        let mut stored = self.stored.lock();
        stored.attempts += 1;
        let first = stored.sent.entry(message.id.clone());
        let first = first.or_insert_with(|| message.payload.clone());
        assert_eq!(*first, message.payload, "a message is repeated unchanged");
        let has_failed = self.rng.f64() < self.failures;
        let is_stored = !has_failed || self.rng.bool();
        if is_stored && stored.messages.iter().all(|it| it.id != message.id) {
            stored.messages.push(message.clone());
        }
        match (has_failed, self.rng.u8(..5)) {
            (false, _) => Ok(()),
            (true, 0) => Err(ArchiveError::Refused("full".to_owned())),
            (true, _) => Err(ArchiveError::Unavailable("away".to_owned())),
        }
    }
}

fn new_log(bytes_max: usize) -> Log {
    Log::new(log::Config {
        epoch: Epoch(9),
        bytes_max,
        chunk_bytes: CHUNK_BYTES,
        chunk_age: Duration::from_secs(60),
        idle_after: Duration::from_secs(1),
    })
}

fn append(log: &Log, count: u32) {
    for _ in 0..count {
        let mut batch = AppendBatch::default();
        batch.push(&CookieRef {
            user_id: "user",
            dsp_id: DspId(7),
            buyer_uid: &"b".repeat(40),
            age_micros: 0,
        });
        log.append(&mut batch).unwrap();
    }
}

fn archiver(log: &Log, status: &Status) -> Archiver {
    archiver_with(log, status, Vec::new(), &TimesToLive::default())
}

fn archiver_with(
    log: &Log,
    status: &Status,
    epoch_ends: Vec<EpochEnd>,
    times_to_live: &TimesToLive,
) -> Archiver {
    let config = Config {
        log: log.clone(),
        chunk_bytes: CHUNK_BYTES,
        producer_id: "edge.1".to_owned(),
        epoch_ends,
        times_to_live: times_to_live.clone(),
        bytes_per_second: 1 << 30,
    };
    Archiver::new(config, status.clone(), &Registry::new()).unwrap()
}

/// Checks that the events are without holes. Returns the number of cookies in chunks, and in gaps.
#[track_caller]
fn check(messages: &[Message], appended: u64) -> (u64, u64) {
    let (mut next, mut cookies, mut lost) = (1, 0, 0);
    let mut goodbye = None;
    for message in messages {
        assert_eq!(message.subject, "cookies.edge%2E1.9");
        for event in Events::new(message.payload.clone()) {
            assert_eq!(goodbye, None, "nothing follows the end");
            match event.unwrap() {
                StreamMessage::Chunk(chunk) => {
                    assert_eq!(chunk.header().first_sequence, Sequence(next));
                    assert_eq!(chunk.header().count as usize, chunk.records().count());
                    next += u64::from(chunk.header().count);
                    cookies += u64::from(chunk.header().count);
                }
                StreamMessage::Event(Event::Gap(gap)) => {
                    assert_eq!(gap.first_sequence, next);
                    lost += gap.last_sequence + 1 - next;
                    next = gap.last_sequence + 1;
                }
                StreamMessage::Event(Event::Goodbye(end)) => goodbye = Some(end.final_sequence),
                _ => {}
            }
        }
    }
    assert_eq!(goodbye, Some(appended));
    assert_eq!(cookies + lost, appended);
    (cookies, lost)
}

#[track_caller]
fn check_counts(status: &Status, log: &Log, cookies: u64, lost: u64) {
    let stats = log.stats();
    let values: HashMap<_, _> = status.families()(&stats)
        .into_iter()
        .map(|family| (family.name().to_owned(), family))
        .collect();
    let value = |def: metric_defs::MetricDef| {
        let metric = &values[def.name].get_metric()[0];
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    };
    assert_eq!(value(metric_defs::producer::ARCHIVED), cookies as f64);
    assert_eq!(value(metric_defs::producer::ARCHIVE_LOST), lost as f64);
    let queued = stats.appended - cookies - lost;
    assert_eq!(value(metric_defs::producer::ARCHIVE_QUEUED), queued as f64);
}

#[tokio::test(start_paused = true)]
async fn every_cookie_is_stored_in_order_despite_failures() {
    for seed in 0..50 {
        let mut rng = Rng::with_seed(seed);
        let (log, status) = (new_log(1 << 30), Status::begin());
        let stored = Arc::new(Mutex::new(Stored::default()));
        let failures = *rng.choice(&[0.0, 0.3, 0.9]).unwrap();
        let archive = Archive {
            stored: Arc::clone(&stored),
            rng: rng.fork(),
            failures,
        };
        let running = JoinSet::from_iter([archiver(&log, &status).run(archive)]);
        for _ in 0..20 {
            append(&log, rng.u32(1..300));
            seal(&log);
            sleep(Duration::from_millis(rng.u64(0..200))).await;
        }
        let appended = log.stats().appended;
        log.close();
        running.join_all().await;
        let stored = stored.lock();
        assert_eq!(
            check(&stored.messages, appended),
            (appended, 0),
            "seed {seed}"
        );
        check_counts(&status, &log, appended, 0);
        assert_eq!(
            failures > 0.0,
            stored.attempts > stored.messages.len() as u64
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_log_evicts_first_is_a_gap() {
    let (log, status) = (new_log(64 << 10), Status::begin());
    let stored = Arc::new(Mutex::new(Stored::default()));
    let archive = Archive {
        stored: Arc::clone(&stored),
        rng: Rng::with_seed(1),
        failures: 1.0,
    };
    append(&log, 10);
    seal(&log);
    let mut archiver = archiver(&log, &status);
    let group = archiver.groups.next().await.unwrap();
    // The archive is away while the log evicts.
    let mut archive = archive;
    assert!(archive.publish(&group.message).await.is_err());
    append(&log, 20_000);
    seal(&log);
    archive.failures = 0.0;
    archiver.publish(&mut archive, &group).await;
    log.close();
    archiver.run(archive).await;
    let (cookies, lost) = check(&stored.lock().messages, 20_010);
    assert!(
        (1_000..19_000).contains(&lost),
        "{lost} of 20,010 cookies lost"
    );
    check_counts(&status, &log, cookies, lost);
}

#[tokio::test(start_paused = true)]
async fn chunks_share_messages_up_to_the_maximum() {
    let (log, status) = (new_log(1 << 30), Status::begin());
    append(&log, 60_000);
    log.close();
    let mut groups = archiver(&log, &status).groups;
    let mut messages = Vec::new();
    while let Some(group) = groups.next().await {
        messages.push(group.message);
    }
    check(&messages, 60_000);
    let sizes: Vec<_> = messages.iter().map(|it| it.payload.len()).collect();
    let (_, full) = sizes.split_last().unwrap();
    assert!(!full.is_empty());
    assert!(
        full.iter()
            .all(|it| *it > GROUP_BYTES_MAX - 2 * CHUNK_BYTES)
    );
    assert!(
        sizes.iter().all(|it| *it <= GROUP_BYTES_MAX + 1024),
        "{sizes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn run_begins_with_the_ends_of_earlier_epochs_and_repeats_times_to_live() {
    let (log, status) = (new_log(1 << 20), Status::begin());
    let end = EpochEnd {
        epoch: 8,
        last_sequence: 5,
        exact: true,
    };
    append(&log, 1);
    seal(&log);
    let times_to_live = TimesToLive::default();
    times_to_live.set(v1::TimesToLive {
        other_seconds: 60,
        ..v1::TimesToLive::default()
    });
    let mut groups = archiver_with(&log, &status, vec![end], &times_to_live).groups;
    let kinds = |group: Group| {
        let events = Events::new(group.message.payload);
        let name = |event: StreamMessage| match event {
            StreamMessage::Chunk(_) => "chunk",
            StreamMessage::Event(Event::EpochEnds(ends)) => {
                assert_eq!(ends.ends, [end]);
                "ends"
            }
            StreamMessage::Event(Event::TimesToLive(_)) => "times",
            _ => "other",
        };
        events.map(|it| name(it.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(
        kinds(groups.next().await.unwrap()),
        ["ends", "times", "chunk"]
    );
    append(&log, 1);
    seal(&log);
    assert_eq!(kinds(groups.next().await.unwrap()), ["chunk"]);
    sleep(Duration::from_secs(61)).await;
    append(&log, 1);
    seal(&log);
    assert_eq!(kinds(groups.next().await.unwrap()), ["times", "chunk"]);
}
