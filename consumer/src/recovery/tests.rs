//! Tests of the recoverer with an archive in memory. The time is paused.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use proto::{
    archive::Origin,
    units::{Epoch, Sequence, UnixMicros},
    v1::{EpochEnd, EpochEnds, Gap, Goodbye, Heartbeat, Tail, TimesToLive, event::Event},
    wire,
};
use runtime::metrics::Registry;
use tokio::{task::JoinSet, time::Instant};

use super::{
    archive::ArchiveError,
    hole::REASONS,
    recoverer::{ARCHIVE_WAIT, CHECK_INTERVAL, COPY_WAIT, POLL_INTERVAL, PROGRESS_TIMEOUT},
    *,
};
use crate::{
    batch::tests::{batch, chunk},
    clock,
    metrics::Metrics,
    producers::ObservedRange,
    subscription::restarts::Restart,
};

mod fake_archive;
mod follower;

use fake_archive::{FOLLOW_INTERVAL, FakeArchive, READ_MAX};

fn origin() -> Origin {
    Origin {
        producer_id: "p".to_owned(),
        epoch: Epoch(1),
    }
}

fn hole(first: u64, last: u64) -> Hole {
    Hole {
        producer: "p".into(),
        epoch: Epoch(1),
        range: first..=last,
        restart: None,
    }
}

/// The framed event of a chunk, with another epoch.
fn event(chunk: &ChunkRef, epoch: u64) -> Bytes {
    let mut buffer = vec![0; wire::HEADROOM_BYTES];
    for record in chunk.records() {
        wire::put_record(&mut buffer, &record.unwrap());
    }
    let header = wire::ChunkHeader {
        epoch: Epoch(epoch),
        ..*chunk.header()
    };
    let at = wire::seal(&mut buffer, &header);
    Bytes::from(buffer).slice(at..)
}

/// The event of a chunk whose cookies are named by their sequence numbers.
fn cookies(first: u64, last: u64) -> Bytes {
    let names: Vec<_> = (first..=last).map(|number| number.to_string()).collect();
    let cookies: Vec<_> = names.iter().map(|name| (&**name, 1, "b")).collect();
    event(&chunk(first, clock::now().0, &cookies), 1)
}

fn gap(first_sequence: u64, last_sequence: u64) -> Bytes {
    wire::encode_event(Event::Gap(Gap {
        first_sequence,
        last_sequence,
        reason: 0,
    }))
}

fn heartbeat(next_sequence: u64) -> Bytes {
    wire::encode_event(Event::Heartbeat(Heartbeat { next_sequence }))
}

/// Publishes numbers of an epoch, ten in each message, after the ends of earlier epochs.
fn publish_epoch(archive: &FakeArchive, epoch: u64, last: u64, ends: &[(u64, u64)]) {
    let ends = ends.iter().map(|(epoch, last)| EpochEnd {
        epoch: *epoch,
        last_sequence: *last,
        exact: false,
    });
    let ends = EpochEnds {
        ends: ends.collect(),
    };
    let origin = Origin {
        epoch: Epoch(epoch),
        ..origin()
    };
    let subject = origin.subject();
    archive.push(&subject, true, wire::encode_event(Event::EpochEnds(ends)));
    for at in (1..=last).step_by(10) {
        let names: Vec<_> = (at..at + 10)
            .map(|it| (epoch * 1000 + it).to_string())
            .collect();
        let cookies: Vec<_> = names.iter().map(|name| (&**name, 1, "b")).collect();
        archive.push(
            &subject,
            true,
            event(&chunk(at, clock::now().0, &cookies), epoch),
        );
    }
}

/// A restart after number 90 of epoch 1.
fn restart(new_epoch: u64, tail: Option<(u64, bool)>) -> Hole {
    let previous = Cursor {
        producer: "p".into(),
        epoch: Epoch(1),
        sequence: Sequence(90),
        complete: false,
    };
    Hole::restart(Restart {
        observed: ObservedRange::after(&previous),
        previous,
        tail: tail.map(|(cookies_max, exact)| Tail { cookies_max, exact }),
        new_epoch: Epoch(new_epoch),
    })
}

/// A recoverer that runs, with the end of the collector.
struct Recovery {
    intake: Intake,
    metrics: metrics::Subscription,
    /// Ends with this.
    _tasks: JoinSet<()>,
}

impl Recovery {
    fn start(archive: &FakeArchive) -> Self {
        let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
        let archive: Box<dyn Archive> = Box::new(archive.clone());
        let (recoverer, intake) = recovery(Some(archive), false, &metrics, &Producers::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(recoverer.unwrap().run());
        Self {
            intake,
            metrics,
            _tasks: tasks,
        }
    }

    /// Opens a hole and waits until it is closed. Returns the numbers that were recovered.
    async fn recover(&mut self, hole: Hole) -> Vec<u64> {
        self.intake.open(hole);
        self.closed().await
    }

    /// Waits until a hole is closed.
    async fn closed(&mut self) -> Vec<u64> {
        let mut recovered = Vec::new();
        loop {
            match self.intake.next().await.unwrap() {
                Recovered::Chunk(producer, chunk) => {
                    assert_eq!(&*producer, "p");
                    let batch = batch(&[chunk]);
                    let users = batch.cookies().map(|it| it.user_id.to_vec());
                    let users = users.map(|it| String::from_utf8(it).unwrap().parse().unwrap());
                    recovered.extend(users.collect::<Vec<u64>>());
                }
                Recovered::Closed(id) => {
                    self.intake.close(id, &mut Batch::new(1, 1));
                    return recovered;
                }
                Recovered::Advanced(..) => panic!("no producer is absent"),
            }
        }
    }

    /// Cookies lost so far, by reason.
    fn lost(&self) -> [u64; REASONS.len()] {
        REASONS.map(|reason| self.metrics.lost.with_label_values(&[reason]).get())
    }
}

/// Numbers `first` to `last` are in the archive, ten in each message.
fn archive(first: u64, last: u64) -> FakeArchive {
    let archive = FakeArchive::default();
    for at in (first..=last).step_by(10) {
        archive.push("cookies.other.1", true, cookies(at, at + 5));
        archive.publish(&[cookies(at, at + 4), cookies(at + 5, at + 9)]);
    }
    archive
}

/// Recovers one hole.
#[track_caller]
fn check(
    archive: &FakeArchive,
    missing: Hole,
    recovered: impl IntoIterator<Item = u64>,
    lost: [u64; REASONS.len()],
) -> impl Future<Output = ()> {
    let (archive, recovered) = (archive.clone(), recovered.into_iter().collect::<Vec<_>>());
    let caller = std::panic::Location::caller();
    async move {
        let mut recovery = Recovery::start(&archive);
        let total = missing.cookies();
        assert_eq!(recovery.recover(missing).await, recovered, "{caller}");
        assert_eq!(recovery.lost(), lost, "{caller}");
        let sum = recovered.len() as u64 + lost.iter().sum::<u64>();
        assert_eq!(sum, total, "{caller}");
    }
}

#[tokio::test(start_paused = true)]
async fn hole_is_recovered_exactly() {
    let archive = archive(1, 1000);
    for (first, last) in [(1, 1), (1, 1000), (55, 56), (500, 512), (991, 1000)] {
        check(&archive, hole(first, last), first..=last, [0; 4]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn search_reads_few_messages() {
    let archive = archive(1, 100_000);
    archive.0.lock().calls = 0;
    check(&archive, hole(50_003, 50_020), 50_003..=50_020, [0; 4]).await;
    let calls = archive.0.lock().calls;
    assert!(calls < 45, "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn what_the_archive_lacks_is_lost_with_a_reason() {
    let begins_late = archive(101, 200);
    check(&begins_late, hole(91, 120), 101..=120, [0, 10, 0, 0]).await;
    check(&begins_late, hole(1, 50), [], [0, 50, 0, 0]).await;
    check(&begins_late, hole(191, 230), 191..=200, [30, 0, 0, 0]).await;
    check(&FakeArchive::default(), hole(1, 9), [], [9, 0, 0, 0]).await;

    let with_gap = archive(1, 20);
    with_gap.publish(&[gap(21, 25), heartbeat(26)]);
    with_gap.publish(&[wire::encode_event(Event::TimesToLive(
        TimesToLive::default(),
    ))]);
    with_gap.publish(&[cookies(26, 30)]);
    let expected = (11..=20).chain(26..=28);
    check(&with_gap, hole(11, 28), expected, [5, 0, 0, 0]).await;
    with_gap.publish(&[wire::encode_event(Event::Goodbye(Goodbye {
        final_sequence: 40,
    }))]);
    let began = Instant::now();
    check(&with_gap, hole(31, 40), [], [10, 0, 0, 0]).await;
    assert!(began.elapsed() < ARCHIVE_WAIT, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn message_that_was_stored_again_later_hides_nothing() {
    for repeated in (1..=91).step_by(10) {
        for after in (repeated..=91).step_by(10) {
            let archive = FakeArchive::default();
            for at in (1..=91).step_by(10) {
                archive.publish(&[cookies(at, at + 9)]);
                if at == after {
                    archive.publish(&[cookies(repeated, repeated + 9)]);
                }
            }
            for first in [1, 15, 41, 55, 91] {
                check(&archive, hole(first, 100), first..=100, [0; 4]).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hole_waits_for_events_that_are_archived_later() {
    for (is_copy, wait) in [(false, ARCHIVE_WAIT), (true, COPY_WAIT)] {
        let archive = archive(1, 20);
        archive.0.lock().is_copy = is_copy;
        let mut recovery = Recovery::start(&archive);
        recovery.intake.open(hole(15, 40));
        recovery.intake.open(Hole {
            epoch: Epoch(2),
            ..hole(1, 3)
        });
        tokio::time::sleep(wait - POLL_INTERVAL * 2).await;
        archive.publish(&[cookies(21, 38)]);
        // The other epoch is not archived.
        assert_eq!(recovery.closed().await, (15..=38).collect::<Vec<_>>());
        assert_eq!(recovery.lost(), [3, 0, 0, 0]);
        assert!(recovery.closed().await.is_empty());
        assert_eq!(recovery.lost(), [5, 0, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn hostile_messages_are_counted_and_skipped() {
    let archive = archive(1, 10);
    let subject = origin().subject();
    let foreign = event(&chunk(11, 1, &[("x", 1, "b")]), 7);
    let truncated = cookies(11, 20).slice(..50);
    for (version, payload) in [
        (true, foreign),
        (true, truncated),
        (true, Bytes::from(vec![0; 1 << 20])),
        (true, Bytes::from_static(b"hello")),
        (true, Bytes::new()),
        (false, cookies(11, 12)),
    ] {
        archive.push(&subject, version, payload);
    }
    archive.publish(&[cookies(11, 20)]);
    let mut recovery = Recovery::start(&archive);
    let recovered = recovery.recover(hole(5, 20)).await;
    assert_eq!(recovered, (5..=20).collect::<Vec<_>>());
    let status = format!("{:?}", recovery.intake.status());
    assert!(status.contains("rejected: 6"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn unusable_archive_loses_a_hole_only_after_a_timeout() {
    let archive = archive(1, 100);
    let error = ArchiveError::Refused("stream COOKIES: not found".to_owned());
    archive.0.lock().error = Some(error.clone());
    let mut recovery = Recovery::start(&archive);
    recovery.intake.open(hole(1, 10));
    tokio::time::sleep(PROGRESS_TIMEOUT / 2).await;
    let described = recovery.intake.status().describe().unwrap().unwrap();
    assert!(described.starts_with("refused: stream COOKIES: not found; recovering p"));
    archive.0.lock().error = Some(ArchiveError::Refused("é".repeat(100_000)));
    tokio::time::sleep(2 * CHECK_INTERVAL).await;
    let described = recovery.intake.status().describe().unwrap().unwrap();
    assert!(described.chars().count() < 600, "{described}");
    archive.0.lock().error = None;
    assert_eq!(recovery.closed().await, (1..=10).collect::<Vec<_>>());
    archive.0.lock().error = Some(error);
    let began = Instant::now();
    assert!(recovery.recover(hole(11, 20)).await.is_empty());
    assert!(began.elapsed() >= PROGRESS_TIMEOUT, "{:?}", began.elapsed());
    assert_eq!(recovery.lost(), [0, 0, 0, 10]);
}

#[tokio::test(start_paused = true)]
async fn gaps_of_a_slow_subscriber_are_read_together() {
    let archive = FakeArchive::default();
    let mut recovery = Recovery::start(&archive);
    let hole_at = |at: usize| hole(at as u64 * 10 + 1, at as u64 * 10 + 2);
    for at in 0..HOLES_MAX + 3 {
        recovery.intake.open(hole_at(at));
    }
    assert_eq!(recovery.lost(), [0, 0, 0, 6], "too many");
    let before = archive.0.lock().calls;
    for at in 0..HOLES_MAX as u64 {
        archive.publish(&[cookies(at * 10 + 1, at * 10 + 10)]);
    }
    let mut recovered = BTreeSet::new();
    for _ in 0..HOLES_MAX {
        recovered.extend(recovery.closed().await);
    }
    assert_eq!(recovered.len(), 2 * HOLES_MAX);
    let calls = archive.0.lock().calls - before;
    let reads = HOLES_MAX / READ_MAX;
    assert!(calls < reads + 20, "{calls} calls, {reads} reads");
    let status = format!("{:?}", recovery.intake.status());
    assert!(status.contains("duplicates: 0"), "{status}");
    assert_eq!(recovery.recover(hole(3, 4)).await, [3, 4]);
}

#[tokio::test(start_paused = true)]
async fn gap_after_a_read_is_another_hole() {
    let archive = FakeArchive::default();
    archive.publish(&[cookies(1, 5)]);
    let mut recovery = Recovery::start(&archive);
    recovery.intake.open(hole(1, 10));
    tokio::time::sleep(Duration::from_secs(2)).await;
    recovery.intake.open(hole(21, 30));
    tokio::time::sleep(Duration::from_secs(2)).await;
    archive.publish(&[cookies(21, 30)]);
    let both: Vec<_> = (1..=5).chain(21..=30).collect();
    assert_eq!(recovery.closed().await, both);
    assert!(recovery.closed().await.is_empty());
    assert_eq!(recovery.lost(), [5, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn status_names_each_open_hole() {
    let archive = archive(1, 100);
    let mut recovery = Recovery::start(&archive);
    recovery.intake.open(hole(98, 110));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let described = recovery.intake.status().describe().unwrap().unwrap();
    assert_eq!(
        described,
        "current; recovering p epoch 1: 98 to 110 (3 recovered, 0 lost)"
    );
    assert_eq!(recovery.closed().await, [98, 99, 100]);
    assert_eq!(
        recovery.intake.status().describe().unwrap().unwrap(),
        "current"
    );
}

#[tokio::test(start_paused = true)]
async fn old_cookies_are_not_recovered() {
    let archive = FakeArchive::default();
    let (now, hour) = (clock::now(), 3600 * 1_000_000);
    let old = |first: u64, hours: u64| {
        let name = first.to_string();
        event(
            &chunk(first, now.before(hours * hour).0, &[(&name, 1, "b")]),
            1,
        )
    };
    archive.publish(&[old(1, 30), old(2, 26), old(3, 24), old(4, 1)]);
    check(&archive, hole(1, 4), [3, 4], [0, 0, 2, 0]).await;
}

#[tokio::test(start_paused = true)]
async fn epochs_before_a_restart_are_recovered() {
    let archive = FakeArchive::default();
    publish_epoch(&archive, 1, 100, &[]);
    publish_epoch(&archive, 2, 30, &[(1, 100)]);
    publish_epoch(&archive, 3, 10, &[(1, 100), (2, 40)]);
    let expected: Vec<_> = (1091..=1100).chain(2001..=2030).collect();
    for (tail, loss, bound) in [
        (Some((40, true)), "none", 0),
        (Some((50, true)), "exact", 0),
        (Some((50, false)), "bounded", 10),
        (None, "unknown", 0),
    ] {
        let mut recovery = Recovery::start(&archive);
        let began = Instant::now();
        assert_eq!(recovery.recover(restart(3, tail)).await, expected);
        assert!(began.elapsed() < ARCHIVE_WAIT, "{:?}", began.elapsed());
        let metrics = &recovery.metrics;
        assert_eq!(
            metrics.restarts.with_label_values(&[loss]).get(),
            1,
            "{loss}"
        );
        assert_eq!(metrics.uncertain_loss_cookies.get(), bound);
        assert_eq!(recovery.lost(), [0; 4]);
        let status = recovery.intake.status();
        let samples = format!("{status:?}");
        assert!(samples.contains("missing: 40,"), "{samples}");
    }
}

#[tokio::test(start_paused = true)]
async fn restart_waits_until_the_new_epoch_is_archived() {
    let archive = FakeArchive::default();
    publish_epoch(&archive, 1, 100, &[]);
    let mut recovery = Recovery::start(&archive);
    recovery.intake.open(restart(2, None));
    tokio::time::sleep(ARCHIVE_WAIT / 2).await;
    publish_epoch(&archive, 2, 10, &[(1, 95)]);
    // More than the recorded end, but it was archived.
    let found = recovery.closed().await;
    assert_eq!(found, (1091..=1100).collect::<Vec<_>>());
    // Never archived.
    assert_eq!(recovery.recover(restart(7, None)).await, found);
}

/// Follows producer `p`, which is absent after number 5; returns the numbers and the last position.
async fn follow(archive: &FakeArchive) -> (Vec<u64>, u64) {
    let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
    let producers = Producers::default();
    let cursor = |producer: &str, complete| Cursor {
        producer: producer.into(),
        epoch: Epoch(1),
        sequence: Sequence(5),
        complete,
    };
    producers.load(vec![cursor("p", false), cursor("complete", true)]);
    let archive: Box<dyn Archive> = Box::new(archive.clone());
    let (recoverer, mut intake) = recovery(Some(archive), false, &metrics, &producers);
    let mut tasks = JoinSet::new();
    tasks.spawn(recoverer.unwrap().run());
    let began = Instant::now();
    let (mut recovered, mut position) = (Vec::new(), 5);
    let hour = Duration::from_secs(3600);
    while let Ok(next) = tokio::time::timeout(hour, intake.next()).await {
        assert!(began.elapsed() >= Duration::from_secs(60));
        match next.unwrap() {
            Recovered::Chunk(_, chunk) => {
                let batch = batch(&[chunk]);
                let users = batch.cookies().map(|it| it.user_id.to_vec());
                let users = users.map(|it| String::from_utf8(it).unwrap().parse().unwrap());
                recovered.extend(users.collect::<Vec<u64>>());
            }
            Recovered::Advanced(before, after) => {
                assert_eq!(before.sequence.0, position);
                assert!(producers.advance_absent(&before, &after));
                assert!(!producers.advance_absent(&before, &after));
                position = after.sequence.0;
            }
            Recovered::Closed(_) => panic!("no hole is open"),
        }
    }
    (recovered, position)
}

#[tokio::test(start_paused = true)]
async fn absent_producer_is_read_from_the_archive_up_to_its_first_gap() {
    let expected: Vec<_> = (6..=200).collect();
    assert_eq!(follow(&archive(1, 200)).await, (expected, 200));
    let with_gap = archive(1, 20);
    with_gap.publish(&[gap(21, 22), cookies(23, 30)]);
    let (_, position) = follow(&with_gap).await;
    assert_eq!(position, 20, "the gap is not skipped");
    let begins_late = archive(11, 20);
    assert_eq!(follow(&begins_late).await, (Vec::new(), 5));
    assert_eq!(follow(&FakeArchive::default()).await, (Vec::new(), 5));
}
