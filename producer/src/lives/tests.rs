//! Lives that begin and end in a folder of the test's own.

use std::{fs, os::unix::fs::PermissionsExt};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::log::{Progress as _, Sequence};

const NOW: u64 = 1_000_000;

/// In memory, as most records are.
fn memory() -> TempDir {
    TempDir::new_in(DEFAULT_FOLDER).unwrap()
}

fn start(folder: &TempDir, now: u64) -> (Lives, Life) {
    let state = State::Folder(folder.path().to_owned());
    begin(&state, "p:7676", now, &Registry::new()).unwrap()
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join(record_name("p:7676"))
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
fn orderly_end_is_exact_and_lives_between_are_added() {
    let folder = memory();
    for (now, end) in [(NOW, 500), (NOW + 1, 70)] {
        let (lives, mut life) = start(&folder, now);
        assert_eq!(lives.epoch(), now);
        life.reserve(10);
        life.end(end);
    }
    let (lives, _life) = start(&folder, NOW + 2);
    assert_eq!(lives.tail(&cursor(NOW, 450)), tail(120, true));
    assert_eq!(lives.tail(&cursor(NOW + 1, 70)), tail(0, true));
    assert_eq!(lives.tail(&cursor(NOW + 1, 71)), None, "beyond its end");
    assert_eq!(lives.tail(&cursor(NOW + 2, 0)), None, "the life that runs");
    assert_eq!(lives.tail(&cursor(7, 1)), None, "a life that is not known");
}

#[test]
fn killed_life_is_bounded_and_one_that_was_idle_has_an_end() {
    let folder = memory();
    let (_, mut life) = start(&folder, NOW);
    life.reserve(10);
    drop(life);
    let (lives, mut life) = start(&folder, NOW + 1);
    assert_eq!(lives.tail(&cursor(NOW, 4)), tail(6 + AHEAD_COOKIES, false));
    drop(lives);
    life.reserve(2_000);
    life.settle(2_000);
    drop(life);
    let (lives, _life) = start(&folder, NOW + 2);
    assert_eq!(lives.tail(&cursor(NOW + 1, 2_000)), tail(0, false));
    let both = tail(6 + AHEAD_COOKIES + 2_000, false);
    assert_eq!(lives.tail(&cursor(NOW, 4)), both);
}

#[test]
fn epoch_grows_when_the_clock_does_not() {
    let folder = memory();
    let epochs = [NOW, NOW, 5].map(|now| start(&folder, now).0.epoch());
    assert_eq!(epochs, [NOW, NOW + 1, NOW + 2]);
}

#[test]
fn only_the_last_lives_are_kept() {
    let folder = memory();
    for now in 0..20 {
        start(&folder, NOW + now).1.end(1);
    }
    let (lives, _life) = start(&folder, NOW + 20);
    assert_eq!(lives.tail(&cursor(NOW + 4, 0)), None);
    assert_eq!(lives.tail(&cursor(NOW + 5, 0)), tail(15, true));
    assert!(fs::metadata(path(&folder)).unwrap().len() < 1024);
}

#[test]
fn second_process_of_the_name_goes_without_and_neither_is_vouched_for() {
    let folder = memory();
    start(&folder, NOW).1.end(5);
    let (first, mut life) = start(&folder, NOW + 1);
    assert_eq!(first.tail(&cursor(NOW, 5)), tail(0, true));
    let (second, _unrecorded) = start(&folder, NOW + 2);
    assert_eq!(second.tail(&cursor(NOW, 5)), None);
    assert_eq!(first.tail(&cursor(NOW, 5)), None, "the second ran as well");
    life.end(9);
    drop((first, life));
    let (third, _life) = start(&folder, NOW + 3);
    assert_eq!(third.tail(&cursor(NOW + 1, 9)), None);
}

#[test]
fn life_that_ended_with_the_machine_is_unknown_unless_it_was_final() {
    let folder = memory();
    start(&folder, NOW).1.end(5);
    start(&folder, NOW + 1).1.settle(7);
    start(&folder, NOW + 2).1.end(9);
    let file = RecordFile::open(&path(&folder)).unwrap();
    let mut entries = file.read().unwrap().unwrap();
    for entry in &mut entries {
        entry.boot = [1; 16];
    }
    file.write(&entries).unwrap();
    drop(file);
    let (lives, _life) = start(&folder, NOW + 3);
    assert_eq!(lives.tail(&cursor(NOW, 5)), None, "the next one is unknown");
    assert_eq!(lives.tail(&cursor(NOW + 1, 7)), None);
    assert_eq!(lives.tail(&cursor(NOW + 2, 9)), tail(0, true));
}

#[test]
fn garbage_is_thrown_away_and_the_next_life_is_recorded() {
    let folder = memory();
    start(&folder, NOW).1.end(5);
    for garbage in [&b"nonsense"[..], &[0xff; 784], &[0xff; 5_000]] {
        fs::write(path(&folder), garbage).unwrap();
        let (lives, mut life) = start(&folder, NOW + 1);
        assert_eq!(lives.tail(&cursor(NOW, 5)), None);
        life.end(3);
        drop((lives, life));
        let (lives, _life) = start(&folder, NOW + 2);
        assert_eq!(lives.tail(&cursor(NOW + 1, 1)), tail(2, true));
    }
}

#[test]
fn link_or_file_that_others_may_write_is_removed_and_nothing_behind_it_touched() {
    let folder = memory();
    let victim = folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&victim, path(&folder)).unwrap();
    drop(start(&folder, NOW));
    assert!(!path(&folder).exists());
    fs::hard_link(&victim, path(&folder)).unwrap();
    drop(start(&folder, NOW));
    assert!(!path(&folder).exists());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    fs::write(path(&folder), "anybody's").unwrap();
    fs::set_permissions(path(&folder), fs::Permissions::from_mode(0o622)).unwrap();
    drop(start(&folder, NOW));
    assert!(!path(&folder).exists());
}

/// Of a life without a record the next one must not be told that there was none.
#[test]
fn life_that_cannot_be_recorded_leaves_no_proof_about_itself() {
    let folder = memory();
    let (_, mut life) = start(&folder, NOW);
    life.reserve(10);
    life.end(10);
    drop(life);
    fs::set_permissions(path(&folder), fs::Permissions::from_mode(0o644)).unwrap();
    drop(start(&folder, NOW + 1));
    let (lives, _life) = start(&folder, NOW + 2);
    assert_eq!(lives.tail(&cursor(NOW, 10)), None);
}

#[test]
fn folder_that_is_none_costs_only_the_record() {
    let registry = Registry::new();
    let state = State::Folder("/nonexistent/folder".into());
    let (lives, mut life) = begin(&state, "p", NOW, &registry).unwrap();
    life.reserve(10);
    life.end(10);
    assert_eq!((lives.epoch(), lives.tail(&cursor(1, 1))), (NOW, None));
    let (lives, _life) = begin(&State::Off, "p", NOW, &Registry::new()).unwrap();
    assert_eq!(lives.tail(&cursor(1, 1)), None);
}

#[test]
fn failed_write_leaves_nothing_to_be_believed() {
    let folder = memory();
    let (lives, mut life) = start(&folder, NOW);
    life.reserve(10);
    // The same file, but not open for writing.
    let kept = life.kept.as_mut().unwrap();
    kept.bound.file = Arc::new(RecordFile::read_only(&path(&folder)).unwrap());
    let recorded = kept.recorded.clone();
    assert_eq!(life.reserve(20_000), u64::MAX, "not to be asked again");
    assert_eq!(recorded.get(), 0);
    drop((lives, life));
    let (lives, _life) = start(&folder, NOW + 1);
    assert_eq!(lives.tail(&cursor(NOW, 5)), None);
}

#[test]
fn names_become_file_names() {
    let long = "x".repeat(256);
    for id in ["p:7676", "../../etc/passwd", "ü\n", &long] {
        let name = record_name(id);
        assert!(name.len() < 100 && !name.contains(['/', '.']), "{name}");
    }
    assert_ne!(record_name("a:b"), record_name("a_b"));
    let [one, other] = ["/a", "/b"].map(|folder| bound_name(Path::new(folder), "p"));
    assert_ne!(one, other);
}

/// A producer with a record on a disk.
struct OnDisk {
    folder: TempDir,
    places: Places,
}

impl OnDisk {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let places = Places {
            record: folder.path().join("record"),
            bound: Some(folder.path().join("bound")),
        };
        Self { folder, places }
    }

    fn start(&self) -> (Lives, Life) {
        let recorded = IntGauge::new("recorded", "recorded").unwrap();
        open(&self.places, NOW).unwrap().recorded(recorded)
    }

    fn written(&self) -> Vec<u8> {
        fs::read(&self.places.record).unwrap()
    }
}

#[test]
fn disk_says_no_bound_from_the_first_cookie_on_until_all_is_over() {
    let disk = OnDisk::new();
    let (lives, mut life) = disk.start();
    let begun = disk.written();
    assert_eq!(record::decode(&begun).unwrap()[0].end, End::Unknown);
    life.reserve(10);
    life.settle(10);
    life.reserve(5_000);
    life.end(5_000);
    assert_eq!(disk.written(), begun);
    Box::new(life).close();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(lives.over());
    let entries = record::decode(&disk.written()).unwrap();
    assert_eq!(entries[0].end, End::Exact(5_000));
    let left: Vec<_> = fs::read_dir(&disk.folder).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn second_process_finds_a_record_on_a_disk_taken_and_the_first_sees_its_mark() {
    let disk = OnDisk::new();
    let (_, mut life) = disk.start();
    life.end(5);
    life.write_record();
    drop(life);
    let (first, _life) = disk.start();
    assert_eq!(first.tail(&cursor(NOW, 5)), tail(0, true));
    let refused = open(&disk.places, NOW + 9).unwrap_err();
    assert!(matches!(refused, Unusable::Locked), "{refused}");
    assert_eq!(first.tail(&cursor(NOW, 5)), None);
}

/// What happens to a producer whose record is on a disk.
#[derive(Debug, Clone)]
enum Step {
    Append(u64),
    Idle,
    Kill,
    /// An orderly end, after which the disk takes the last write, or never does.
    Stop {
        lands: bool,
    },
    /// Killed, and what was in memory is gone, as with a container.
    KillWithMemory,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..3_000_u64).prop_map(Step::Append),
        2 => Just(Step::Idle),
        1 => Just(Step::Kill),
        1 => any::<bool>().prop_map(|lands| Step::Stop { lands }),
        1 => Just(Step::KillWithMemory),
    ];
    prop::collection::vec(step, 1..40)
}

/// A life of the model: what was appended, and what the next may know of it.
#[derive(Debug)]
struct Ended {
    epoch: u64,
    last: Sequence,
    is_known: bool,
    is_exact: bool,
}

/// The same questions that returning subscribers ask, of every life that there was.
fn check_tails(lives: &Lives, ended: &[Ended]) {
    for (at, first) in ended.iter().enumerate() {
        let rest = &ended[at..];
        let lost: u64 = rest.iter().map(|life| life.last).sum();
        let is_kept = rest.len() < LIVES_MAX;
        let is_known = is_kept && rest.iter().all(|life| life.is_known);
        let told = lives.tail(&cursor(first.epoch, 0));
        assert_eq!(told.is_some(), is_known, "{rest:?}");
        let Some(told) = told else { continue };
        let most = lost + AHEAD_COOKIES * rest.len() as u64;
        assert!(
            (lost..=most).contains(&told.cookies_max),
            "{told:?} {rest:?}"
        );
        assert_eq!(told.exact, rest.iter().all(|life| life.is_exact));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No append waits for the disk, whenever it takes a write, if ever; and what it tells the next life is true.
    #[test]
    fn bound_is_never_below_what_was_appended(steps in steps()) {
        let disk = OnDisk::new();
        let mut ended: Vec<Ended> = Vec::new();
        let (mut lives, mut life) = disk.start();
        let (mut last, mut reserved) = (0, 0);
        for step in steps {
            let (is_known, is_exact) = match step {
                Step::Append(count) => {
                    last += count;
                    if last > reserved {
                        reserved = life.reserve(last);
                    }
                    continue;
                }
                Step::Idle => {
                    reserved = life.settle(last);
                    continue;
                }
                Step::Kill => (true, false),
                Step::KillWithMemory => {
                    fs::remove_file(disk.folder.path().join("bound")).unwrap();
                    (false, false)
                }
                Step::Stop { lands } => {
                    life.end(last);
                    if lands {
                        life.write_record();
                    }
                    (true, true)
                }
            };
            ended.push(Ended { epoch: lives.epoch(), last, is_known, is_exact });
            drop((lives, life));
            (lives, life) = disk.start();
            (last, reserved) = (0, 0);
            check_tails(&lives, &ended);
        }
    }
}
