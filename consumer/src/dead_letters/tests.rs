//! Tests of dead letters in temporary files.

use std::os::unix::fs::PermissionsExt as _;

use proto::units::UnixMicros;
use runtime::metrics::Registry;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::{batch::tests::chunk, metrics::Metrics};

fn count(letters: &Writer, outcome: &str) -> u64 {
    letters.outcomes.with_label_values(&[outcome]).get()
}

fn letters(dir: &TempDir, bytes_max: usize) -> Writer {
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let file = dir.path().join("letters.jsonl");
    let letters = DeadLetters::new(file, bytes_max, metrics.sink.dead_letters);
    Arc::into_inner(letters.0).unwrap().into_inner()
}

fn batch(users: &[&str]) -> Arc<Batch> {
    let mut batch = Batch::new(1_000, 1 << 20);
    let cookies: Vec<_> = users.iter().map(|user| (*user, 17, "b-\"1\"")).collect();
    let chunk = chunk(1, 1_700_000_000_000_000, &cookies);
    batch.push(&"p".into(), &chunk, UnixMicros::MAX);
    Arc::new(batch)
}

fn rejected(batch: &Batch, reason: &str) -> Vec<RejectedCookie> {
    let index = 0..u32::try_from(batch.len()).unwrap();
    let reason = reason.to_owned();
    let rejected = index.map(|index| RejectedCookie {
        index,
        reason: reason.clone(),
    });
    rejected.collect()
}

async fn write(letters: &mut Writer, users: &[&str], reason: &str) {
    let batch = batch(users);
    letters.write(&batch, rejected(&batch, reason)).await;
}

fn read(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn dead_letter_has_all_fields_of_the_cookie() {
    let dir = TempDir::new().unwrap();
    let mut letters = letters(&dir, 1 << 20);
    let path = dir.path().join("letters.jsonl");
    letters.write(&batch(&["alice"]), Vec::new()).await;
    assert!(!path.exists(), "no dead letter, no file");
    write(&mut letters, &["alice", "bob"], "code 121: \u{1b}no").await;
    let found = read(&path);
    assert_eq!(found.len(), 2);
    let alice = found[0].as_object().unwrap();
    let text = |key: &str| alice[key].as_str().unwrap();
    assert_eq!(
        (text("user_id"), text("buyer_uid"), &alice["dsp_id"]),
        ("alice", "b-\"1\"", &Value::from(17))
    );
    assert_eq!(text("accepted"), "2023-11-14T22:13:20Z");
    assert_eq!(text("reason"), "code 121: \u{1b}no");
    assert!(text("time").parse::<Timestamp>().is_ok());
    assert_eq!(found[1]["user_id"], "bob");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(count(&letters, "written"), 2);
}

#[tokio::test]
async fn newest_dead_letters_are_kept_within_the_size_limit() {
    const BYTES_MAX: usize = 64 << 10;
    let dir = TempDir::new().unwrap();
    let mut letters = letters(&dir, BYTES_MAX);
    let [newest, older] = ["letters.jsonl", "letters.jsonl.1"].map(|name| dir.path().join(name));
    let reason = "é".repeat(5_000);
    for round in 0..100 {
        let users: Vec<_> = (0..7)
            .map(|at| format!("user-{}", round * 7 + at))
            .collect();
        let users: Vec<_> = users.iter().map(String::as_str).collect();
        write(&mut letters, &users, &reason).await;
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        let total = bytes(&newest) + bytes(&older);
        assert!(total <= BYTES_MAX as u64, "{total} bytes");
    }
    let kept: Vec<_> = read(&older).into_iter().chain(read(&newest)).collect();
    assert!(kept.len() > 25, "{}", kept.len());
    let users = (0..700).rev().take(kept.len()).collect::<Vec<_>>();
    for (letter, user) in kept.iter().rev().zip(users) {
        assert_eq!(letter["user_id"], format!("user-{user}"));
        assert_eq!(letter["reason"].as_str().unwrap().len(), REASON_BYTES_MAX);
    }
    assert_eq!(count(&letters, "written"), 700);
    assert_eq!(count(&letters, "failed"), 0);
}

#[tokio::test]
async fn failed_writes_are_counted_and_retried() {
    let dir = TempDir::new().unwrap();
    let mut letters = letters(&dir, 1 << 20);
    let path = dir.path().join("letters.jsonl");
    fs::create_dir(&path).unwrap();
    write(&mut letters, &["alice", "bob"], "no").await;
    write(&mut letters, &["carol"], "no").await;
    assert_eq!(count(&letters, "failed"), 3);
    assert!(letters.is_failing);
    fs::remove_dir(&path).unwrap();
    write(&mut letters, &["dave"], "no").await;
    assert!(!letters.is_failing);
    assert_eq!(read(&path).len(), 1);
    // The file may be moved or deleted at any time.
    fs::remove_file(&path).unwrap();
    write(&mut letters, &["eve"], "no").await;
    assert_eq!(read(&path)[0]["user_id"], "eve");
    assert_eq!(count(&letters, "written"), 2);
}

#[tokio::test]
async fn truncated_dead_letter_does_not_corrupt_the_next() {
    let dir = TempDir::new().unwrap();
    let mut letters = letters(&dir, 1 << 20);
    let path = dir.path().join("letters.jsonl");
    fs::write(&path, "{\"time\":\"20").unwrap();
    write(&mut letters, &["alice"], "no").await;
    let text = fs::read_to_string(&path).unwrap();
    let last = text.lines().last().unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(serde_json::from_str::<Value>(last).is_ok(), "{last}");
}

#[tokio::test(start_paused = true)]
async fn hanging_write_delays_one_batch_only() {
    let dir = TempDir::new().unwrap();
    let mut letters = letters(&dir, 1 << 20);
    let (release, released) = std::sync::mpsc::sync_channel(1);
    letters.hanging = Some(spawn_blocking(move || {
        released.recv().unwrap();
        (0, Err(io::ErrorKind::TimedOut.into()))
    }));
    write(&mut letters, &["alice"], "no").await;
    assert_eq!(count(&letters, "failed"), 1);
    release.send(()).unwrap();
    while !letters.hanging.as_ref().unwrap().is_finished() {
        tokio::task::yield_now().await;
    }
    write(&mut letters, &["bob"], "no").await;
    assert_eq!(count(&letters, "written"), 1);
}
