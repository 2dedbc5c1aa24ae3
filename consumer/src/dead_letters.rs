//! Cookies that the store refuses forever, set aside where an operator can read them: one JSON object a line.
//!
//! `FILE` appears with the first dead letter. Before it outgrows half of the bound it becomes `FILE.1`, in place of the
//! one before, and a new one begins: the newest dead letters are kept, and both files together stay within the bound.
//! It is opened anew for each batch with dead letters, so it may be moved or deleted at any time.
//!
//! Dead letters never hold up the cookies that can be stored. When they cannot be written that is said once, until they
//! can again, and they are counted; a file that hangs is waited for once.
//!
//! A dead letter is handed to the system before its batch counts as done. The store has committed the cursors by then, so
//! a crash in that moment costs the dead letters of one batch; a sync for each would cost every batch of a store that
//! refuses a few.

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
use serde::Serialize;
use tokio::{
    sync::Mutex,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::{batch::Batch, store::RejectedCookie};

/// How long the file is waited for.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of a reason; the rest is cut off.
const REASON_BYTES_MAX: usize = 1024;

/// The users' ids are not for everybody.
const MODE: u32 = 0o600;

/// Writes the dead letters of one consumer; clones share them.
#[derive(Debug, Clone)]
pub struct DeadLetters(Arc<Mutex<Writer>>);

#[derive(Debug)]
struct Writer {
    files: Arc<Files>,
    /// By outcome.
    counted: IntCounterVec,
    /// What took longer than it was waited for.
    hangs: Option<JoinHandle<Appended>>,
    has_begun: bool,
    is_failing: bool,
}

/// The file and the one before.
#[derive(Debug)]
struct Files {
    newest: PathBuf,
    older: PathBuf,
    /// Most bytes of each.
    bytes_max: u64,
}

/// How many dead letters are in the file now, and what went wrong with the others.
type Appended = (u64, io::Result<()>);

#[derive(Serialize)]
struct DeadLetter<'a> {
    time: &'a str,
    user_id: &'a str,
    dsp_id: u32,
    buyer_uid: &'a str,
    accepted: &'a str,
    reason: &'a str,
}

impl DeadLetters {
    /// Dead letters in `file` and the one before it, together at most `bytes_max` bytes. Touches no file.
    #[must_use]
    pub fn new(file: PathBuf, bytes_max: usize, counted: IntCounterVec) -> Self {
        let mut older = file.clone().into_os_string();
        older.push(".1");
        let letters = Writer {
            files: Arc::new(Files {
                newest: file,
                older: older.into(),
                bytes_max: bytes_max as u64 / 2,
            }),
            counted,
            hangs: None,
            has_begun: false,
            is_failing: false,
        };
        Self(Arc::new(Mutex::new(letters)))
    }

    /// Sets aside what of `batch` was refused. Returns when that is done, or cannot be.
    pub async fn write(&self, batch: &Arc<Batch>, rejected: Vec<RejectedCookie>) {
        self.0.lock().await.write(batch, rejected).await;
    }
}

/// A reason without what the store says after its code, where users' ids may be.
fn kind(reason: &str) -> &str {
    reason.split_once(':').map_or(reason, |(kind, _)| kind)
}

impl Writer {
    async fn write(&mut self, batch: &Arc<Batch>, rejected: Vec<RejectedCookie>) {
        if rejected.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            tracing::warn!(
                file = %self.files.newest.display(),
                reason = kind(&rejected[0].reason),
                "store permanently rejected cookies; writing them to the dead-letter file"
            );
        }
        let letters = rejected.len() as u64;
        let (written, result) = self.append(batch, rejected).await;
        let count = |outcome, letters| self.counted.with_label_values(&[outcome]).inc_by(letters);
        count("written", written);
        count("failed", letters.saturating_sub(written));
        self.note(result);
    }

    async fn append(&mut self, batch: &Arc<Batch>, rejected: Vec<RejectedCookie>) -> Appended {
        if self.hangs.take_if(|hangs| hangs.is_finished()).is_none() && self.hangs.is_some() {
            return (0, Err(io::ErrorKind::TimedOut.into()));
        }
        let (files, batch) = (Arc::clone(&self.files), Arc::clone(batch));
        let mut work = spawn_blocking(move || files.append(&batch, &rejected));
        match timeout(TIMEOUT, &mut work).await {
            Ok(Ok(appended)) => appended,
            Ok(Err(error)) => (0, Err(io::Error::other(error))),
            Err(_) => {
                self.hangs = Some(work);
                (0, Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    fn note(&mut self, result: io::Result<()>) {
        let was_failing = std::mem::replace(&mut self.is_failing, result.is_err());
        let file = self.files.newest.display();
        match result {
            Err(error) if !was_failing => {
                tracing::error!(%file, %error, "failed to write dead letters; rejected cookies are only counted");
            }
            Ok(()) if was_failing => tracing::info!(%file, "writing dead letters again"),
            _ => {}
        }
    }
}

impl Files {
    /// Blocks.
    fn append(&self, batch: &Batch, rejected: &[RejectedCookie]) -> Appended {
        let time = Timestamp::now().to_string();
        let mut letters = 0;
        let mut write = || {
            let mut file = open(&self.newest)?;
            let mut bytes = file.metadata()?.len();
            if bytes > 0 && !ends_with_newline(&mut file)? {
                // What a full disk left of a dead letter.
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
    let accepted = i64::try_from(cookie.accepted_unix_micros)
        .ok()
        .and_then(|micros| Timestamp::from_microsecond(micros).ok());
    let letter = DeadLetter {
        time,
        user_id: &String::from_utf8_lossy(cookie.user_id),
        dsp_id: cookie.dsp_id,
        buyer_uid: &String::from_utf8_lossy(cookie.buyer_uid),
        accepted: &accepted.unwrap_or(Timestamp::MAX).to_string(),
        reason: cut(&rejected.reason, REASON_BYTES_MAX),
    };
    let mut line = serde_json::to_vec(&letter)?;
    line.push(b'\n');
    Ok(line)
}

/// As much of `text` as `bytes_max` bytes can hold.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
