//! Lives that begin and end in a folder of the test's own.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

const NOW: u64 = 1_000_000;

fn start(folder: &TempDir, now: u64) -> (Lives, Life) {
    let state = State::Folder(folder.path().to_owned());
    begin(&state, "p:7676", now, &Registry::new()).unwrap()
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join(file_name("p:7676"))
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
    let folder = TempDir::new().unwrap();
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
    let folder = TempDir::new().unwrap();
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
    let folder = TempDir::new().unwrap();
    let epochs = [NOW, NOW, 5].map(|now| start(&folder, now).0.epoch());
    assert_eq!(epochs, [NOW, NOW + 1, NOW + 2]);
}

#[test]
fn only_the_last_lives_are_kept() {
    let folder = TempDir::new().unwrap();
    for now in 0..20 {
        start(&folder, NOW + now).1.end(1);
    }
    let (lives, _life) = start(&folder, NOW + 20);
    assert_eq!(lives.tail(&cursor(NOW + 4, 0)), None);
    assert_eq!(lives.tail(&cursor(NOW + 5, 0)), tail(15, true));
    assert!(std::fs::metadata(path(&folder)).unwrap().len() < 1024);
}

#[test]
fn second_process_of_the_name_goes_without_and_neither_is_vouched_for() {
    let folder = TempDir::new().unwrap();
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
    let folder = TempDir::new().unwrap();
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
    let folder = TempDir::new().unwrap();
    start(&folder, NOW).1.end(5);
    for garbage in [&b"nonsense"[..], &[0xff; 784], &[0xff; 5_000]] {
        std::fs::write(path(&folder), garbage).unwrap();
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
    let folder = TempDir::new().unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&victim, path(&folder)).unwrap();
    drop(start(&folder, NOW));
    assert!(!path(&folder).exists());
    std::fs::hard_link(&victim, path(&folder)).unwrap();
    drop(start(&folder, NOW));
    assert!(!path(&folder).exists());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    std::fs::write(path(&folder), "anybody's").unwrap();
    std::fs::set_permissions(path(&folder), std::fs::Permissions::from_mode(0o622)).unwrap();
    drop(start(&folder, NOW));
    assert!(!path(&folder).exists());
}

/// Of a life without a record the next one must not be told that there was none.
#[test]
fn life_that_cannot_be_recorded_leaves_no_proof_about_itself() {
    let folder = TempDir::new().unwrap();
    let (_, mut life) = start(&folder, NOW);
    life.reserve(10);
    life.end(10);
    drop(life);
    std::fs::set_permissions(path(&folder), std::fs::Permissions::from_mode(0o644)).unwrap();
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
    let folder = TempDir::new().unwrap();
    let (lives, mut life) = start(&folder, NOW);
    life.reserve(10);
    // The same file, but not open for writing.
    let kept = life.record.as_mut().unwrap();
    kept.file = Arc::new(RecordFile::read_only(&path(&folder)).unwrap());
    assert_eq!(life.reserve(20_000), u64::MAX, "not to be asked again");
    assert_eq!(lives.shared.recorded.get(), 0);
    drop((lives, life));
    let (lives, _life) = start(&folder, NOW + 1);
    assert_eq!(lives.tail(&cursor(NOW, 5)), None);
}

#[test]
fn names_become_file_names() {
    let long = "x".repeat(256);
    for id in ["p:7676", "../../etc/passwd", "ü\n", &long] {
        let name = file_name(id);
        assert!(name.len() < 100 && !name.contains(['/', '.']), "{name}");
    }
    assert_ne!(file_name("a:b"), file_name("a_b"));
}
