//! Tests of the follower with an archive in memory: what it passes to the buffer.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::Index};
use proto::{limits::CURSORS_MAX, v1::DspTimeToLive};
use tempfile::TempDir;

use super::*;
use crate::{
    deletions::Deletions,
    store::{Store, Upkeep, embedded::EmbeddedStore},
    subscription::buffer::{self, BufferReader, Item},
    ttl::Ttls,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Long enough for a follower to read everything. The time is paused.
const READ_TIME: Duration = Duration::from_secs(20);

type Numbers = BTreeSet<(String, u64, u64)>;

/// A store for the floor.
async fn store(dir: &TempDir, ttls: &Ttls) -> Arc<dyn Upkeep> {
    let store = EmbeddedStore::open(dir.path().to_owned(), ttls.clone(), 1 << 20);
    Store::from(store.await.unwrap()).upkeep
}

/// A follower, from its start until its process is killed.
struct Life {
    producers: Producers,
    deletions: Deletions,
    ttls: Ttls,
    status: Status,
    metrics: metrics::Subscription,
    buffer: BufferReader,
    cursors: BTreeMap<String, Cursor>,
    _tasks: JoinSet<()>,
}

/// What a follower has passed to the buffer.
#[derive(Debug, Default)]
struct Passed {
    /// Producer, epoch and number of each cookie, in order.
    cookies: Vec<(String, u64, u64)>,
    late: usize,
    holes: Vec<Hole>,
    /// The cursors after each item.
    cursors: Vec<BTreeMap<String, Cursor>>,
}

impl Life {
    fn start(archive: &FakeArchive, cursors: Vec<Cursor>, upkeep: &Arc<dyn Upkeep>) -> Self {
        let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
        let (writer, buffer) = buffer::buffer(64 << 20, &metrics);
        let (producers, deletions) = (Producers::default(), Deletions::default());
        producers.load(cursors.clone());
        let cursors = cursors.into_iter();
        let ttls = Ttls::new(HOUR * 24, [].into()).with_floor(Some(HOUR));
        let status = Status::begin(true);
        let parts = Parts {
            producers: producers.clone(),
            buffer: writer,
            ttls: ttls.clone(),
            status: status.clone(),
            metrics: metrics.clone(),
        };
        let (archive, upkeep) = (Box::new(archive.clone()), Arc::clone(upkeep));
        let follower = Follower::new(archive, parts, upkeep, deletions.clone());
        Self {
            producers,
            deletions,
            ttls,
            status,
            metrics,
            buffer,
            cursors: cursors.map(|it| (it.producer.to_string(), it)).collect(),
            _tasks: JoinSet::from_iter([follower.run()]),
        }
    }

    /// Waits until everything is read.
    async fn passed(&mut self) -> Passed {
        tokio::time::sleep(READ_TIME).await;
        let mut passed = Passed::default();
        while let Some(item) = self.buffer.try_pop() {
            let cursor = match item {
                Item::Chunk(producer, chunk) => {
                    let header = chunk.header();
                    passed.cookies.extend(names(&chunk));
                    Cursor {
                        producer,
                        epoch: header.epoch,
                        sequence: header.last_sequence(),
                        complete: false,
                    }
                }
                Item::Late(_, chunk) => {
                    passed.late += names(&chunk).len();
                    continue;
                }
                Item::Cursor(cursor) => cursor,
                Item::Hole(hole, cursor) => {
                    passed.holes.push(hole);
                    cursor
                }
                Item::Copied(..) => panic!("nothing is copied"),
            };
            let id = cursor.producer.to_string();
            self.cursors.insert(id, cursor);
            passed.cursors.push(self.cursors.clone());
        }
        passed
    }

    fn rejected(&self) -> String {
        let status = format!("{:?}", self.status);
        let (_, rejected) = status.split_once("rejected: ").unwrap();
        rejected.split(',').next().unwrap().to_owned()
    }
}

/// The names of a chunk's cookies, which must be those of its numbers.
fn names(chunk: &ChunkRef) -> Vec<(String, u64, u64)> {
    let header = *chunk.header();
    let batch = batch(std::slice::from_ref(chunk));
    let users = batch.cookies().map(|it| it.user_id.to_vec());
    let names: Vec<_> = users
        .map(|user| {
            let user = String::from_utf8(user).unwrap();
            let parts: Vec<_> = user.split('/').collect();
            let [producer, epoch, number] = parts[..] else {
                panic!("{user}")
            };
            let [epoch, number] = [epoch, number].map(|it| it.parse().unwrap());
            (producer.to_owned(), epoch, number)
        })
        .collect();
    let numbers = names.iter().map(|(_, _, number)| *number);
    assert!(numbers.eq(header.first_sequence.0..=header.last_sequence().0));
    assert!(names.iter().all(|(_, epoch, _)| *epoch == header.epoch.0));
    names
}

/// A chunk with cookies that are named by producer, epoch and number.
fn named(producer: &str, epoch: u64, first: u64, last: u64) -> Bytes {
    let names = (first..=last).map(|number| format!("{producer}/{epoch}/{number}"));
    let names: Vec<_> = names.collect();
    let cookies: Vec<_> = names.iter().map(|name| (&**name, 1, "b")).collect();
    event(&chunk(first, clock::now().0, &cookies), epoch)
}

fn subject(producer: &str, epoch: u64) -> String {
    let (producer_id, epoch) = (producer.to_owned(), Epoch(epoch));
    Origin { producer_id, epoch }.subject()
}

fn publish(archive: &FakeArchive, producer: &str, epoch: u64, events: &[Bytes]) {
    archive.push(&subject(producer, epoch), true, events.concat());
}

fn goodbye(final_sequence: u64) -> Bytes {
    wire::encode_event(Event::Goodbye(Goodbye { final_sequence }))
}

fn ends(ends: &[(u64, u64)]) -> Bytes {
    let ends = ends.iter().map(|(epoch, last_sequence)| EpochEnd {
        epoch: *epoch,
        last_sequence: *last_sequence,
        exact: true,
    });
    let ends = ends.collect();
    wire::encode_event(Event::EpochEnds(EpochEnds { ends }))
}

/// What happens to one of the producers, or to the follower.
#[derive(Debug, Clone)]
enum Step {
    Chunk(usize, u64),
    /// Numbers that are not archived, with a gap event or without.
    Missing(usize, u64, bool),
    Heartbeat(usize),
    /// The last chunk is archived again, with more numbers.
    Repeated(usize, u64),
    Restart(usize, bool),
    Junk(usize),
    /// The archive fails once.
    Error,
    /// The follower is killed when this part of its items was durable.
    Killed(Index),
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..2_usize;
    prop_oneof![
        6 => (at(), 1..20_u64).prop_map(|(at, count)| Step::Chunk(at, count)),
        1 => (at(), 1..9_u64, any::<bool>()).prop_map(|(at, count, gap)| Step::Missing(at, count, gap)),
        2 => at().prop_map(Step::Heartbeat),
        1 => (at(), 0..5_u64).prop_map(|(at, more)| Step::Repeated(at, more)),
        1 => (at(), any::<bool>()).prop_map(|(at, drained)| Step::Restart(at, drained)),
        1 => at().prop_map(Step::Junk),
        1 => Just(Step::Error),
        1 => any::<Index>().prop_map(Step::Killed),
    ]
}

/// A producer of the model.
#[derive(Debug, Clone)]
struct Model {
    id: &'static str,
    epoch: u64,
    last: u64,
    chunk_first: u64,
    ends: Vec<(u64, u64)>,
}

impl Model {
    fn apply(&mut self, step: &Step, archive: &FakeArchive, archived: &mut Numbers) {
        let (id, epoch) = (self.id, self.epoch);
        let publish = |events: &[Bytes]| publish(archive, id, epoch, events);
        let mut chunk = |first: u64, last: u64| {
            archived.extend((first..=last).map(|number| (id.to_owned(), epoch, number)));
            publish(&[named(id, epoch, first, last)]);
        };
        match *step {
            Step::Chunk(_, count) => {
                (self.chunk_first, self.last) = (self.last + 1, self.last + count);
                chunk(self.chunk_first, self.last);
            }
            Step::Repeated(_, more) if self.last > 0 && self.chunk_first > 0 => {
                self.last += more;
                chunk(self.chunk_first, self.last);
            }
            Step::Missing(_, count, has_gap) => {
                let first = self.last + 1;
                (self.chunk_first, self.last) = (0, self.last + count);
                if has_gap {
                    publish(&[gap(first, self.last)]);
                }
            }
            Step::Heartbeat(_) => publish(&[heartbeat(self.last + 1)]),
            Step::Restart(_, is_drained) => {
                if is_drained {
                    publish(&[goodbye(self.last)]);
                }
                self.ends.push((epoch, self.last));
                // Not always a higher one.
                self.epoch = if epoch.is_multiple_of(3) {
                    epoch - 2
                } else {
                    epoch + 10
                };
                (self.last, self.chunk_first) = (0, 0);
                let first = [ends(&self.ends), heartbeat(1)];
                super::follower::publish(archive, id, self.epoch, &first);
            }
            Step::Junk(_) => {
                archive.push(&subject(id, epoch), true, Bytes::from_static(b"junk"));
                archive.push("cookies.x.y.z", true, heartbeat(1));
            }
            Step::Repeated(..) | Step::Error | Step::Killed(_) => {}
        }
    }
}

/// Whether one of these holes has a number.
fn has(holes: &[Hole], (id, epoch, number): &(String, u64, u64)) -> bool {
    let is_of = |it: &Hole| {
        let is_epoch = it.epoch.0 == *epoch && it.range.contains(number);
        *it.producer == **id && is_epoch
    };
    holes.iter().any(is_of)
}

async fn check_steps(steps: &[Step], upkeep: &Arc<dyn Upkeep>) {
    let archive = FakeArchive::default();
    let mut models = ["p", "q.1"].map(|id| Model {
        id,
        epoch: 4,
        last: 0,
        chunk_first: 0,
        ends: Vec::new(),
    });
    let mut archived = Numbers::new();
    let mut life = Life::start(&archive, Vec::new(), upkeep);
    tokio::time::sleep(READ_TIME).await;
    for model in &models {
        publish(&archive, model.id, model.epoch, &[heartbeat(1)]);
    }
    let (mut received, mut holes) = (Numbers::new(), Vec::new());
    let mut take = |passed: &Passed| {
        let distinct: Numbers = passed.cookies.iter().cloned().collect();
        assert_eq!(distinct.len(), passed.cookies.len(), "received twice");
        assert!(!distinct.iter().any(|it| has(&passed.holes, it)));
        assert_eq!(passed.late, 0);
        received.extend(distinct);
        holes.extend(passed.holes.iter().cloned());
    };
    for step in steps {
        match step {
            Step::Chunk(at, _)
            | Step::Missing(at, ..)
            | Step::Heartbeat(at)
            | Step::Repeated(at, _)
            | Step::Restart(at, _)
            | Step::Junk(at) => models[*at].apply(step, &archive, &mut archived),
            Step::Error => {
                archive.0.lock().error = Some(ArchiveError::Unavailable("away".to_owned()));
                tokio::time::sleep(FOLLOW_INTERVAL * 2).await;
                archive.0.lock().error = None;
            }
            Step::Killed(durable) => {
                let passed = life.passed().await;
                take(&passed);
                let cursors = match passed.cursors.len() {
                    0 => life.cursors.clone(),
                    all => passed.cursors[durable.index(all)].clone(),
                };
                // A node without cursors begins at the end.
                if !cursors.is_empty() {
                    life = Life::start(&archive, cursors.into_values().collect(), upkeep);
                }
            }
        }
    }
    for model in &models {
        let next = model.last + 1;
        publish(&archive, model.id, model.epoch, &[heartbeat(next)]);
    }
    take(&life.passed().await);
    assert!(received.is_subset(&archived));
    for number in &archived {
        assert!(
            received.contains(number) || has(&holes, number),
            "{number:?}"
        );
    }
    for model in models {
        let ends = model
            .ends
            .iter()
            .copied()
            .chain([(model.epoch, model.last)]);
        for (epoch, last) in ends {
            for number in (1..=last).map(|number| (model.id.to_owned(), epoch, number)) {
                let is_known = received.contains(&number) || has(&holes, &number);
                assert!(is_known, "{number:?} is neither received nor missing");
            }
        }
        let cursor = life.producers.cursor(model.id).unwrap();
        assert_eq!(
            (cursor.epoch.0, cursor.sequence.0),
            (model.epoch, model.last)
        );
    }
}

#[test]
fn each_number_is_received_once_or_missing_despite_kills() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    };
    let dir = TempDir::new().unwrap();
    let upkeep = runtime().block_on(store(&dir, &Ttls::new(HOUR, [].into())));
    let mut runner = proptest::test_runner::TestRunner::default();
    let steps = prop::collection::vec(step(), 1..60);
    let ran = runner.run(&steps, |steps| {
        runtime().block_on(check_steps(&steps, &upkeep));
        Ok(())
    });
    ran.unwrap();
}

fn at(epoch: u64, sequence: u64) -> Cursor {
    Cursor {
        producer: "p".into(),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        complete: false,
    }
}

async fn life(archive: &FakeArchive, cursors: Vec<Cursor>) -> (Life, TempDir) {
    let dir = TempDir::new().unwrap();
    let upkeep = store(&dir, &Ttls::new(HOUR, [].into())).await;
    (Life::start(archive, cursors, &upkeep), dir)
}

#[track_caller]
fn check_numbers(passed: &Passed, numbers: impl IntoIterator<Item = u64>) {
    let found = passed.cookies.iter().map(|(_, _, number)| *number);
    assert_eq!(found.collect::<Vec<_>>(), Vec::from_iter(numbers));
}

#[tokio::test(start_paused = true)]
async fn new_node_reads_new_messages_and_rejects_earlier_cookies() {
    let archive = FakeArchive::default();
    publish(&archive, "p", 1, &[named("p", 1, 1, 9)]);
    let began = clock::now();
    let (mut life, _dir) = life(&archive, Vec::new()).await;
    check_numbers(&life.passed().await, []);
    let floor = life.deletions.floor();
    assert!(floor >= began && floor <= clock::now());
    publish(&archive, "p", 1, &[named("p", 1, 10, 12)]);
    let passed = life.passed().await;
    check_numbers(&passed, 10..=12);
    assert!(passed.holes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn producer_that_no_longer_exists_is_not_read_again() {
    let archive = FakeArchive::default();
    publish(&archive, "p", 1, &[named("p", 1, 1, 9)]);
    for number in 1..=1_000 {
        publish(&archive, "q", 1, &[named("q", 1, number, number)]);
    }
    let known = Cursor {
        producer: "q".into(),
        ..at(1, 995)
    };
    let (mut life, _dir) = life(&archive, vec![at(1, 9), known]).await;
    let passed = life.passed().await;
    check_numbers(&passed, 996..=1_000);
    let bytes = life.metrics.bytes.get();
    assert!(bytes < 10_000, "{bytes} bytes");
    assert_eq!(life.deletions.floor(), UnixMicros::NONE);
    // It returns.
    publish(&archive, "p", 2, &[ends(&[(1, 9)]), named("p", 2, 1, 3)]);
    let passed = life.passed().await;
    check_numbers(&passed, 1..=3);
    assert!(passed.holes.is_empty());
    assert_eq!(life.metrics.restarts.with_label_values(&["none"]).get(), 1);
}

#[tokio::test(start_paused = true)]
async fn restart_with_a_tail_opens_a_hole() {
    let archive = FakeArchive::default();
    publish(&archive, "p", 1, &[named("p", 1, 1, 9)]);
    publish(
        &archive,
        "p",
        5,
        &[ends(&[(1, 12), (3, 4)]), named("p", 5, 1, 3)],
    );
    let (mut life, _dir) = life(&archive, vec![at(1, 7)]).await;
    let passed = life.passed().await;
    check_numbers(&passed, [8, 9, 1, 2, 3]);
    let [
        Hole {
            restart: Some(restart),
            ..
        },
    ] = &passed.holes[..]
    else {
        panic!("{passed:?}")
    };
    assert_eq!(
        (&restart.previous, restart.new_epoch),
        (&at(1, 9), Epoch(5))
    );
    let tail = Tail {
        cookies_max: 7,
        exact: true,
    };
    assert_eq!(restart.tail, Some(tail));
}

#[tokio::test(start_paused = true)]
async fn archive_that_is_created_again_is_searched_by_number() {
    let archive = FakeArchive::default();
    publish(&archive, "p", 1, &[named("p", 1, 1, 9), heartbeat(10)]);
    let (mut life, _dir) = life(&archive, vec![at(1, 4)]).await;
    check_numbers(&life.passed().await, 5..=9);
    {
        let mut contents = archive.0.lock();
        contents.created = 1;
        contents.messages.clear();
    }
    publish(&archive, "p", 1, &[named("p", 1, 8, 15)]);
    check_numbers(&life.passed().await, 10..=15);
    publish(&archive, "p", 1, &[named("p", 1, 18, 20), goodbye(22)]);
    let passed = life.passed().await;
    check_numbers(&passed, 18..=20);
    let holes: Vec<_> = passed.holes.iter().map(|it| it.range.clone()).collect();
    assert_eq!(holes, [16..=17, 21..=22]);
    let complete = Cursor {
        complete: true,
        ..at(1, 22)
    };
    assert_eq!(life.producers.cursor("p"), Some(complete));
    assert_eq!(life.producers.streams("p"), 0);
}

#[tokio::test(start_paused = true)]
async fn cookies_of_two_producers_with_one_id_are_stored() {
    let archive = FakeArchive::default();
    let (mut life, _dir) = life(&archive, Vec::new()).await;
    tokio::time::sleep(READ_TIME).await;
    for round in 0..3 {
        let (first, last) = (round * 5 + 1, round * 5 + 5);
        publish(&archive, "p", 1, &[named("p", 1, first, last)]);
        publish(&archive, "p", 2, &[named("p", 2, first, last)]);
    }
    let passed = life.passed().await;
    assert_eq!((passed.cookies.len(), passed.late), (20, 10));
    assert_eq!(life.metrics.duplicate_producers.get(), 2);
    assert_eq!(life.producers.cursor("p"), Some(at(2, 15)));
}

#[tokio::test(start_paused = true)]
async fn strangers_are_counted_and_use_bounded_memory() {
    let archive = FakeArchive::default();
    let (mut life, _dir) = life(&archive, vec![at(1, 10)]).await;
    tokio::time::sleep(READ_TIME).await;
    let own = subject("p", 1);
    let long = format!("cookies.{}.1", "x".repeat(300));
    let whole = named("p", 1, 11, 20);
    let far = chunk(u64::MAX - 5, 1, &[("x", 1, "b")]);
    let hostile = [
        (&*own, true, named("p", 7, 11, 12)),
        (&own, true, whole.slice(..50)),
        (&own, true, vec![0; 1 << 20].into()),
        (&own, true, Bytes::new()),
        (&own, false, whole.clone()),
        (&own, true, event(&far, 1)),
        (&own, true, heartbeat(u64::MAX)),
        (&own, true, heartbeat(0)),
        (&own, true, gap(30, 20)),
        (&own, true, gap(11, u64::MAX)),
        (&long, true, heartbeat(1)),
        ("cookies.p", true, whole.clone()),
        ("cookies.p.1.1", true, whole.clone()),
        ("cookies.%70.1", true, whole.clone()),
        ("other.p.1", true, whole.clone()),
    ];
    let hostile_count = hostile.len();
    for (subject, version, payload) in hostile {
        archive.push(subject, version, payload);
    }
    publish(&archive, "p", 1, &[whole]);
    let passed = life.passed().await;
    check_numbers(&passed, 11..=20);
    assert!(passed.holes.is_empty(), "{passed:?}");
    assert_eq!(life.rejected(), hostile_count.to_string());
    for stranger in 0..CURSORS_MAX + 10 {
        publish(
            &archive,
            &format!("stranger-{stranger}"),
            1,
            &[heartbeat(1)],
        );
    }
    publish(&archive, "p", 1, &[named("p", 1, 21, 22)]);
    check_numbers(&life.passed().await, 21..=22);
    assert_eq!(life.rejected(), (hostile_count + 11).to_string());
    // Later, they no longer exist.
    tokio::time::sleep(HOUR).await;
    publish(&archive, "new", 1, &[named("new", 1, 1, 2)]);
    check_numbers(&life.passed().await, 1..=2);
}

#[tokio::test(start_paused = true)]
async fn times_to_live_apply_until_the_producer_no_longer_exists() {
    let archive = FakeArchive::default();
    let (life, _dir) = life(&archive, vec![at(1, 10)]).await;
    let dsps = vec![DspTimeToLive {
        dsp_id: 7,
        seconds: 7_200,
    }];
    let other_seconds = 0;
    let ttls = TimesToLive {
        dsps,
        other_seconds,
    };
    publish(
        &archive,
        "p",
        1,
        &[wire::encode_event(Event::TimesToLive(ttls))],
    );
    tokio::time::sleep(READ_TIME).await;
    assert_eq!(life.ttls.reported_dsps(), 1);
    tokio::time::sleep(HOUR).await;
    publish(&archive, "q", 1, &[heartbeat(1)]);
    tokio::time::sleep(READ_TIME).await;
    assert_eq!(life.ttls.reported_dsps(), 0);
}

#[tokio::test(start_paused = true)]
async fn follower_shows_its_state_and_how_far_it_is_behind() {
    let archive = FakeArchive::default();
    archive.0.lock().error = Some(ArchiveError::Unavailable("away".to_owned()));
    let (life, _dir) = life(&archive, vec![at(1, 10)]).await;
    tokio::time::sleep(READ_TIME).await;
    let described = life.status.describe().unwrap();
    assert_eq!(described.unwrap_err(), "unavailable: away");
    archive.0.lock().error = None;
    publish(&archive, "p", 1, &[heartbeat(11)]);
    tokio::time::sleep(READ_TIME).await;
    let described = life.status.describe().unwrap().unwrap();
    assert!(described.starts_with("current; following, newest message "));
}
