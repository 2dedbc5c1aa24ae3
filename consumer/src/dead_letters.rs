//! The dead-letter file: cookies that the store permanently rejects, as JSON Lines.
//!
//! `FILE` is created with the first dead letter. Before it exceeds half of the size limit, it is renamed to `FILE.1`, replacing
//! the previous one, and a new file is started. So the newest dead letters are kept within the limit. The file is opened for
//! each batch with dead letters, so it can be moved or deleted at any time.
//!
//! Dead letters never block cookies that can be stored. A write failure is counted, and logged once until the next
//! success. A hanging write delays one batch only.
//!
//! A batch counts as stored only after its dead letters were passed to the operating system. They are not synced,
//! because a sync per batch would slow down every store that rejects a few cookies. So a system crash can lose recent
//! dead letters whose cursors are already committed.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use prometheus::IntCounterVec;
use proto::units::DspId;
use serde::Serialize;
use tokio::{
    sync::Mutex,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::{batch::Batch, store::RejectedCookie};

/// Maximum time to wait for a write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes of a reason; the rest is truncated.
const REASON_BYTES_MAX: usize = 1024;

/// Only the owner may read the file, because it contains user ids.
const MODE: u32 = 0o600;

/// Writes the dead letters of one consumer; clones share them.
#[derive(Debug, Clone)]
pub struct DeadLetters(Arc<Mutex<Writer>>);

#[derive(Debug)]
struct Writer {
    files: Arc<Files>,
    /// Dead letters by outcome.
    outcomes: IntCounterVec,
    /// A write that timed out.
    hanging: Option<JoinHandle<Appended>>,
    has_logged_first: bool,
    is_failing: bool,
}

/// The file and its rotated copy.
#[derive(Debug)]
struct Files {
    newest: PathBuf,
    older: PathBuf,
    /// Maximum bytes of each file.
    bytes_max: u64,
}

/// Number of written dead letters, and the error if some were not written.
type Appended = (u64, io::Result<()>);

#[derive(Serialize)]
struct DeadLetter<'a> {
    time: &'a str,
    user_id: &'a str,
    dsp_id: DspId,
    buyer_uid: &'a str,
    accepted: &'a str,
    reason: &'a str,
}

impl DeadLetters {
    /// Writes to `file`. The file and its rotated copy have up to `bytes_max` bytes in total. Does not open it yet.
    pub fn new(file: PathBuf, bytes_max: usize, outcomes: IntCounterVec) -> Self {
        let mut older = file.clone().into_os_string();
        older.push(".1");
        let letters = Writer {
            files: Arc::new(Files {
                newest: file,
                older: older.into(),
                bytes_max: bytes_max as u64 / 2,
            }),
            outcomes,
            hanging: None,
            has_logged_first: false,
            is_failing: false,
        };
        Self(Arc::new(Mutex::new(letters)))
    }

    /// Writes rejected cookies of `batch`. Returns when they are written, or have failed.
    pub async fn write(&self, batch: &Arc<Batch>, rejected: Vec<RejectedCookie>) {
        self.0.lock().await.write(batch, rejected).await;
    }
}

/// The code of a reason, without the text after it, which may contain user ids.
fn kind(reason: &str) -> &str {
    reason.split_once(':').map_or(reason, |(kind, _)| kind)
}

impl Writer {
    async fn write(&mut self, batch: &Arc<Batch>, rejected: Vec<RejectedCookie>) {
        if rejected.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.has_logged_first, true) {
            tracing::warn!(
                file = %self.files.newest.display(),
                reason = kind(&rejected[0].reason),
                "the store rejected cookies permanently; writing them to the dead-letter file"
            );
        }
        let letters = rejected.len() as u64;
        let (written, result) = self.append(batch, rejected).await;
        let count = |outcome, letters| self.outcomes.with_label_values(&[outcome]).inc_by(letters);
        count("written", written);
        count("failed", letters.saturating_sub(written));
        self.log_changes(result);
    }

    async fn append(&mut self, batch: &Arc<Batch>, rejected: Vec<RejectedCookie>) -> Appended {
        if self.hanging.take_if(|task| task.is_finished()).is_none() && self.hanging.is_some() {
            return (0, Err(io::ErrorKind::TimedOut.into()));
        }
        let (files, batch) = (Arc::clone(&self.files), Arc::clone(batch));
        let mut write = spawn_blocking(move || files.append(&batch, &rejected));
        match timeout(TIMEOUT, &mut write).await {
            Ok(Ok(appended)) => appended,
            Ok(Err(error)) => (0, Err(io::Error::other(error))),
            Err(_) => {
                self.hanging = Some(write);
                (0, Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    fn log_changes(&mut self, result: io::Result<()>) {
        let was_failing = std::mem::replace(&mut self.is_failing, result.is_err());
        let file = self.files.newest.display();
        match result {
            Err(error) if !was_failing => {
                tracing::error!(%file, %error, "failed to write dead letters; rejected cookies are only counted");
            }
            Ok(()) if was_failing => tracing::info!(%file, "dead-letter file writable again"),
            _ => {}
        }
    }
}

impl Files {
    /// Appends rejected cookies. Blocks the thread.
    fn append(&self, batch: &Batch, rejected: &[RejectedCookie]) -> Appended {
        let time = Timestamp::now().to_string();
        let mut letters = 0;
        let mut write = || {
            let mut file = open(&self.newest)?;
            let mut bytes = file.metadata()?.len();
            if bytes > 0 && !ends_with_newline(&mut file)? {
                // A full disk has truncated the last dead letter.
                file.write_all(b"\n")?;
                bytes += 1;
            }
            for rejected in rejected {
                let line = line(batch, rejected, &time)?;
                if bytes > 0 && bytes + line.len() as u64 > self.bytes_max {
                    fs::rename(&self.newest, &self.older)?;
                    file = open(&self.newest)?;
                    bytes = 0;
                }
                file.write_all(&line)?;
                bytes += line.len() as u64;
                letters += 1;
            }
            Ok(())
        };
        let result = write();
        (letters, result)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).read(true).append(true).mode(MODE);
    options.open(path)
}

fn ends_with_newline(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

fn line(batch: &Batch, rejected: &RejectedCookie, time: &str) -> io::Result<Vec<u8>> {
    let cookie = batch.cookie(rejected.index as usize);
    let accepted = i64::try_from(cookie.accepted.0)
        .ok()
        .and_then(|micros| Timestamp::from_microsecond(micros).ok());
    let letter = DeadLetter {
        time,
        user_id: &String::from_utf8_lossy(cookie.user_id),
        dsp_id: cookie.dsp_id,
        buyer_uid: &String::from_utf8_lossy(cookie.buyer_uid),
        accepted: &accepted.unwrap_or(Timestamp::MAX).to_string(),
        reason: truncate(&rejected.reason, REASON_BYTES_MAX),
    };
    let mut line = serde_json::to_vec(&letter)?;
    line.push(b'\n');
    Ok(line)
}

/// The first `bytes_max` bytes of `text`, or less to end at a character.
fn truncate(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
