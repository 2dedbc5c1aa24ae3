//! Tests of epochs recorded in a temporary directory, with examples and against a model.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
};

use proptest::prelude::*;
use runtime::file_lock::FileLock;
use tempfile::TempDir;

use super::*;

const NOW: u64 = 1_000_000;

/// A temporary directory in memory.
fn memory() -> TempDir {
    TempDir::new_in(DEFAULT_DIR).unwrap()
}

fn start(dir: &TempDir, now: u64) -> (EpochHistory, CurrentEpoch) {
    let (history, current) = try_start(dir, now);
    (history, current.unwrap())
}

fn try_start(dir: &TempDir, now: u64) -> (EpochHistory, Option<CurrentEpoch>) {
    begin(dir.path(), "p:7676", Epoch(now), &Registry::new()).unwrap()
}

fn path(dir: &TempDir) -> PathBuf {
    dir.path().join(record_name("p:7676"))
}

fn cursor(epoch: u64, sequence: u64) -> Cursor {
    Cursor {
        producer_id: "p:7676".to_owned(),
        epoch,
        sequence,
    }
}

fn tail(cookies_max: u64, exact: bool) -> Option<Tail> {
    Some(Tail { cookies_max, exact })
}

#[test]
fn clean_shutdown_is_exact_and_missed_epochs_are_added() {
    let dir = memory();
    for (now, end) in [(NOW, 500), (NOW + 1, 70)] {
        let (history, mut current) = start(&dir, now);
        assert_eq!(history.epoch(), Epoch(now));
        current.reserve(Sequence(10));
        current.end(Sequence(end));
    }
    let (history, _current) = start(&dir, NOW + 2);
    assert_eq!(history.tail(&cursor(NOW, 450)), tail(120, true));
    assert_eq!(history.tail(&cursor(NOW + 1, 70)), tail(0, true));
    assert_eq!(history.tail(&cursor(NOW + 1, 71)), None, "beyond its end");
    assert_eq!(history.tail(&cursor(NOW + 2, 0)), None, "the current epoch");
    assert_eq!(history.tail(&cursor(7, 1)), None, "an unknown epoch");
}

#[test]
fn killed_epoch_is_bounded_exactly_if_it_was_idle() {
    let dir = memory();
    let (_, mut current) = start(&dir, NOW);
    current.reserve(Sequence(10));
    drop(current);
    let (history, mut current) = start(&dir, NOW + 1);
    assert_eq!(history.tail(&cursor(NOW, 4)), tail(6 + BOUND_STEP, false));
    drop(history);
    current.reserve(Sequence(2_000));
    current.settle(Sequence(2_000));
    drop(current);
    let (history, _current) = start(&dir, NOW + 2);
    assert_eq!(history.tail(&cursor(NOW + 1, 2_000)), tail(0, false));
    let both = tail(6 + BOUND_STEP + 2_000, false);
    assert_eq!(history.tail(&cursor(NOW, 4)), both);
}

#[test]
fn epoch_increases_if_the_clock_does_not() {
    let dir = memory();
    let epochs = [NOW, NOW, 5].map(|now| start(&dir, now).0.epoch().0);
    assert_eq!(epochs, [NOW, NOW + 1, NOW + 2]);
}

#[test]
fn only_the_newest_epochs_are_kept() {
    let dir = memory();
    for now in 0..20 {
        start(&dir, NOW + now).1.end(Sequence(1));
    }
    let (history, _current) = start(&dir, NOW + 20);
    assert_eq!(history.tail(&cursor(NOW + 4, 0)), None);
    assert_eq!(history.tail(&cursor(NOW + 5, 0)), tail(15, true));
    assert!(fs::metadata(path(&dir)).unwrap().len() < 1024);
}

#[test]
fn second_process_with_the_same_id_invalidates_the_record() {
    let dir = memory();
    start(&dir, NOW).1.end(Sequence(5));
    let (first, mut current) = start(&dir, NOW + 1);
    assert_eq!(first.tail(&cursor(NOW, 5)), tail(0, true));
    let (second, unrecorded) = try_start(&dir, NOW + 2);
    assert!(unrecorded.is_none());
    assert_eq!(second.tail(&cursor(NOW, 5)), None);
    assert_eq!(
        first.tail(&cursor(NOW, 5)),
        None,
        "the second process also ran"
    );
    current.end(Sequence(9));
    drop((first, current));
    let (third, _current) = start(&dir, NOW + 3);
    assert_eq!(third.tail(&cursor(NOW + 1, 9)), None);
}

#[test]
fn corrupt_record_is_discarded_and_the_next_epoch_is_recorded() {
    let dir = memory();
    start(&dir, NOW).1.end(Sequence(5));
    for garbage in [&b"nonsense"[..], &[0xff; 784], &[0xff; 5_000]] {
        fs::write(path(&dir), garbage).unwrap();
        let (history, mut current) = start(&dir, NOW + 1);
        assert_eq!(history.tail(&cursor(NOW, 5)), None);
        current.end(Sequence(3));
        drop((history, current));
        let (history, _current) = start(&dir, NOW + 2);
        assert_eq!(history.tail(&cursor(NOW + 1, 1)), tail(2, true));
    }
}

#[test]
fn link_or_shared_file_is_removed_without_changing_its_target() {
    let dir = memory();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&victim, path(&dir)).unwrap();
    drop(try_start(&dir, NOW));
    assert!(!path(&dir).exists());
    fs::hard_link(&victim, path(&dir)).unwrap();
    drop(try_start(&dir, NOW));
    assert!(!path(&dir).exists());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    fs::write(path(&dir), "writable by all").unwrap();
    fs::set_permissions(path(&dir), fs::Permissions::from_mode(0o622)).unwrap();
    drop(try_start(&dir, NOW));
    assert!(!path(&dir).exists());
}

/// The next run must not compute losses without the unrecorded epoch.
#[test]
fn unrecorded_epoch_makes_the_history_unknown() {
    let dir = memory();
    let (_, mut current) = start(&dir, NOW);
    current.reserve(Sequence(10));
    current.end(Sequence(10));
    drop(current);
    fs::set_permissions(path(&dir), fs::Permissions::from_mode(0o644)).unwrap();
    drop(try_start(&dir, NOW + 1));
    let (history, _current) = start(&dir, NOW + 2);
    assert_eq!(history.tail(&cursor(NOW, 10)), None);
}

#[test]
fn missing_directory_disables_only_the_record() {
    let dir = Path::new("/nonexistent/directory");
    let (history, current) = begin(dir, "p", Epoch(NOW), &Registry::new()).unwrap();
    assert!(current.is_none());
    assert_eq!(
        (history.epoch().0, history.tail(&cursor(1, 1))),
        (NOW, None)
    );
}

#[test]
fn failed_write_removes_the_record() {
    let dir = memory();
    let (history, mut current) = start(&dir, NOW);
    current.reserve(Sequence(10));
    // The same file, but not open for writing.
    current.file = Some(Arc::new(RecordFile {
        file: File::open(path(&dir)).unwrap(),
        path: path(&dir),
        _lock: FileLock::acquire(tempfile::tempfile().unwrap()).unwrap(),
    }));
    let recorded = current.recorded.clone();
    assert_eq!(
        current.reserve(Sequence(20_000)),
        Sequence::MAX,
        "reserves nothing more"
    );
    assert_eq!(recorded.get(), 0);
    drop((history, current));
    let (history, _current) = start(&dir, NOW + 1);
    assert_eq!(history.tail(&cursor(NOW, 5)), None);
}

#[test]
fn ids_are_encoded_as_file_names() {
    let long = "x".repeat(256);
    for id in ["p:7676", "../../etc/passwd", "ü\n", &long] {
        let name = record_name(id);
        assert!(name.len() < 100 && !name.contains(['/', '.']), "{name}");
    }
    assert_ne!(record_name("a:b"), record_name("a_b"));
}

#[test]
fn directory_on_a_disk_is_rejected() {
    let dir = TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (_, current) = try_start(&dir, NOW);
    assert!(current.is_none());
    assert!(!path(&dir).exists());
}

#[test]
fn runs_that_start_at_the_same_time_have_different_epochs() {
    let now = 1_767_225_600_000_000;
    assert_ne!(epoch_at(now, 1), epoch_at(now, 2));
    for random in [0, 1, u64::MAX] {
        assert!(epoch_at(now, random).0.abs_diff(now) < 1 << EPOCH_RANDOM_BITS);
    }
    assert_eq!(epoch_at(0, 0), Epoch(1));
}

/// An event of a simulated producer.
#[derive(Debug, Clone)]
enum Step {
    Append(u64),
    Idle,
    Kill,
    /// Clean shutdown.
    Stop,
    /// Killed together with its memory file system, like a container.
    KillWithMemory,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..3_000_u64).prop_map(Step::Append),
        2 => Just(Step::Idle),
        1 => Just(Step::Kill),
        1 => Just(Step::Stop),
        1 => Just(Step::KillWithMemory),
    ];
    prop::collection::vec(step, 1..40)
}

/// An ended epoch of the model.
#[derive(Debug)]
struct EndedEpoch {
    epoch: u64,
    last: u64,
    is_known: bool,
    is_exact: bool,
}

/// Checks the tail of a subscriber from each epoch so far.
fn check_tails(history: &EpochHistory, ended: &[EndedEpoch]) {
    for (at, first) in ended.iter().enumerate() {
        let rest = &ended[at..];
        let lost: u64 = rest.iter().map(|ended| ended.last).sum();
        let is_recorded = rest.len() < EPOCHS_MAX;
        let is_known = is_recorded && rest.iter().all(|ended| ended.is_known);
        let tail = history.tail(&cursor(first.epoch, 0));
        assert_eq!(tail.is_some(), is_known, "{rest:?}");
        let Some(tail) = tail else { continue };
        let max = lost + BOUND_STEP * rest.len() as u64;
        assert!(
            (lost..=max).contains(&tail.cookies_max),
            "{tail:?} {rest:?}"
        );
        assert_eq!(tail.exact, rest.iter().all(|ended| ended.is_exact));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random runs against a model.
    #[test]
    fn bound_is_never_below_the_actual_loss(steps in steps()) {
        let dir = memory();
        let mut ended: Vec<EndedEpoch> = Vec::new();
        let (mut history, mut current) = start(&dir, NOW);
        let (mut last, mut reserved) = (0, 0);
        for step in steps {
            let (is_known, is_exact) = match step {
                Step::Append(count) => {
                    last += count;
                    if last > reserved {
                        reserved = current.reserve(Sequence(last)).0;
                    }
                    continue;
                }
                Step::Idle => {
                    reserved = current.settle(Sequence(last)).0;
                    continue;
                }
                Step::Kill => (true, false),
                Step::KillWithMemory => {
                    fs::remove_file(path(&dir)).unwrap();
                    for earlier in &mut ended {
                        earlier.is_known = false;
                    }
                    (false, false)
                }
                Step::Stop => {
                    current.end(Sequence(last));
                    (true, true)
                }
            };
            ended.push(EndedEpoch { epoch: history.epoch().0, last, is_known, is_exact });
            drop((history, current));
            (history, current) = start(&dir, NOW + 1_000 * ended.len() as u64);
            (last, reserved) = (0, 0);
            check_tails(&history, &ended);
        }
    }
}
