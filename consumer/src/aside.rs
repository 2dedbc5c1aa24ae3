//! Cookies of single DSPs that the store cannot take now: kept on disk until it can.
//!
//! One cursor covers all DSPs, so a DSP whose database does not work must either stop all others or let the cursor pass.
//! It may pass, because its cookies are durable here first; they are tried again, by a task of their own, until the store
//! has them. A DSP's later cookies [wait](crate::batch::Batch::is_held) behind its earlier ones here, because of two of one
//! millisecond MongoDB cannot tell which is newer. That some come twice after a restart does no harm.
//!
//! The folder is bounded in bytes. A DSP may fill as much as would be left: one alone half of it, two a third each; and all
//! whose slot is still to be made, and that nobody listed, have half of it together, since anybody can make DSPs up. What has no room becomes a dead
//! letter.

mod log;
mod retry;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use proto::wire::{ChunkHeader, CookieRef, HEADROOM_BYTES, Received, put_cookie, seal};
use tokio::{sync::Notify, task::spawn_blocking};

use crate::{batch::Batch, ledger::Retried, metrics, store::Rejected};
use log::{Frame, Log};
pub use retry::Retries;

/// Most bytes that are tried again at once; a frame larger than that is alone.
const TRIED_BYTES_MAX: u64 = 1 << 20;

/// The set-aside cookies of one consumer; clones share them.
#[derive(Debug, Clone)]
pub struct Aside {
    /// Locked by threads that may wait for the disk.
    log: Arc<Mutex<Log>>,
    /// Cookies by DSP, as they were last.
    kept: Arc<Mutex<BTreeMap<u32, u64>>>,
    /// Told when something was put.
    changed: Arc<Notify>,
    /// DSPs that always get a slot.
    listed: Arc<BTreeSet<u32>>,
    metrics: metrics::Aside,
}

/// Cookies of one DSP that are tried again.
#[derive(Debug)]
pub struct Tried {
    /// These, as a batch without cursors.
    pub batch: Arc<Batch>,
    /// How many they were when they were set aside.
    pub cookies: u64,
    frames: usize,
}

/// A folder that was opened.
#[derive(Debug)]
pub struct Folder {
    log: Log,
    bytes_max: usize,
}

impl Folder {
    /// Opens `folder`, which is made if need be, and finds what was set aside before.
    ///
    /// # Errors
    /// When the folder cannot be used, or is in use by another process.
    pub async fn open(folder: PathBuf, bytes_max: usize) -> anyhow::Result<Self> {
        let shown = folder.display().to_string();
        let opened = spawn_blocking(move || Log::open(&folder, bytes_max as u64)).await?;
        let log = opened.with_context(|| {
            format!("cannot set cookies aside in {shown}; choose another folder with --set-aside")
        })?;
        Ok(Self { log, bytes_max })
    }
}

impl Aside {
    /// What is in `folder`, and what will be.
    #[must_use]
    pub fn new(folder: Folder, listed: BTreeSet<u32>, metrics: metrics::Aside) -> Self {
        let Folder { log, bytes_max } = folder;
        let found: u64 = log.dsps().map(|(_, cookies)| cookies).sum();
        if found > 0 {
            let dsps = log.dsps().count();
            tracing::info!(
                cookies = found,
                dsps,
                "cookies were set aside before: they are tried again"
            );
        }
        metrics.ledger.found(found);
        metrics
            .bytes_max
            .set(metrics::gauge_value(bytes_max as u64));
        let aside = Self {
            log: Arc::new(Mutex::new(log)),
            kept: Arc::default(),
            changed: Arc::default(),
            listed: Arc::new(listed),
            metrics,
        };
        aside.measure(&aside.log());
        aside
    }

    /// Sets cookies of `batch` aside, by DSP; they are durable when this returns. Returns those that are not set aside,
    /// with the reason.
    pub async fn put(
        &self,
        batch: &Arc<Batch>,
        what: Vec<(u32, Vec<u32>)>,
        has_slot: impl Fn(u32) -> bool + Send + 'static,
    ) -> Vec<Rejected> {
        let (this, batch) = (self.clone(), Arc::clone(batch));
        let put = spawn_blocking(move || this.put_now(&batch, what, has_slot)).await;
        self.changed.notify_one();
        put.expect("it does not panic")
    }

    fn put_now(
        &self,
        batch: &Batch,
        what: Vec<(u32, Vec<u32>)>,
        has_slot: impl Fn(u32) -> bool,
    ) -> Vec<Rejected> {
        let is_expected = |dsp_id| self.listed.contains(&dsp_id) || has_slot(dsp_id);
        let mut log = self.log();
        let mut of_newcomers = log.charge_of(|dsp_id| !is_expected(dsp_id));
        let (mut frames, mut entered) = (Vec::new(), Vec::new());
        let (mut refused, mut before) = (Vec::new(), 0);
        let mut refuse = |indices: Vec<u32>, reason: &str| {
            refused.extend(indices.into_iter().map(|index| Rejected {
                index,
                reason: reason.to_owned(),
            }));
        };
        for (dsp_id, indices) in what {
            let frame = frame(batch, dsp_id, &indices);
            let bytes = frame.messages.len() as u64;
            let new_bytes = if is_expected(dsp_id) { 0 } else { bytes };
            let is_welcome =
                new_bytes == 0 || log.has_room_among_newcomers(of_newcomers + new_bytes);
            if is_welcome
                && !log.has_room(dsp_id, bytes, before)
                && let Err(error) = log.make_room()
            {
                tracing::warn!(%error, "no room can be made for cookies to be set aside");
            }
            if is_welcome && log.has_room(dsp_id, bytes, before) {
                before += bytes;
                of_newcomers += new_bytes;
                frames.push(frame);
                entered.extend(indices);
            } else {
                refuse(
                    indices,
                    "the store did not take it, and there is no room to set it aside",
                );
            }
        }
        if !frames.is_empty() {
            match log.append(&frames) {
                Ok(()) => self.metrics.ledger.set_aside(entered.len() as u64),
                Err(error) => {
                    tracing::error!(%error, "cookies cannot be set aside");
                    refuse(entered, &format!("it cannot be set aside: {error}"));
                }
            }
        }
        self.measure(&log);
        refused
    }

    /// The DSPs of which something is set aside.
    #[must_use]
    pub fn dsps(&self) -> BTreeMap<u32, u64> {
        lock(&self.kept).clone()
    }

    /// Returns when something was put since it was last asked.
    async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The oldest cookies of a DSP; none when nothing of it is set aside. What cannot be read any more is given up.
    async fn oldest(&self, dsp_id: u32) -> Option<Tried> {
        let this = self.clone();
        let read = spawn_blocking(move || this.oldest_now(dsp_id)).await;
        read.expect("it does not panic")
    }

    fn oldest_now(&self, dsp_id: u32) -> Option<Tried> {
        let mut log = self.log();
        loop {
            match log.read(dsp_id, TRIED_BYTES_MAX) {
                Ok(read) if read.frames == 0 => return None,
                Ok(read) => {
                    let mut batch = Batch::new(usize::MAX, usize::MAX);
                    for message in read.messages {
                        if let Ok(Received::Chunk(chunk)) = Received::decode(message) {
                            batch.push_chunk(&chunk);
                        }
                    }
                    return Some(Tried {
                        cookies: read.cookies,
                        batch: Arc::new(batch),
                        frames: read.frames,
                    });
                }
                Err(error) => {
                    let cookies = log.done(dsp_id, 1);
                    self.metrics.ledger.retried(&Retried {
                        unreadable: cookies,
                        ..Retried::default()
                    });
                    self.measure(&log);
                    tracing::error!(dsp_id, cookies, %error, "cookies that were set aside cannot be read: they are lost");
                }
            }
        }
    }

    /// Forgets what was tried with success.
    async fn done(&self, dsp_id: u32, frames: usize) {
        let this = self.clone();
        let done = spawn_blocking(move || {
            let mut log = this.log();
            log.done(dsp_id, frames);
            this.measure(&log);
        });
        done.await.expect("it does not panic");
    }

    fn measure(&self, log: &Log) {
        let kept: BTreeMap<_, _> = log.dsps().collect();
        *lock(&self.kept) = kept;
        self.metrics.bytes.set(metrics::gauge_value(log.charge()));
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cookies at these indices as chunks, one for each time of the chunks that they came in.
fn frame(batch: &Batch, dsp_id: u32, indices: &[u32]) -> Frame {
    let released = |index: &u32| batch.released_at(*index as usize);
    let mut indices = indices.to_vec();
    indices.sort_by_key(released);
    let mut messages = Vec::new();
    for run in indices.chunk_by(|a, b| released(a) == released(b)) {
        let mut chunk = vec![0; HEADROOM_BYTES];
        for index in run {
            let cookie = batch.cookie(*index as usize);
            let text = |bytes| std::str::from_utf8(bytes).expect("a batch holds checked cookies");
            put_cookie(
                &mut chunk,
                &CookieRef {
                    user_id: text(cookie.user_id),
                    dsp_id,
                    buyer_uid: text(cookie.buyer_uid),
                    age_micros: released(index) - cookie.accepted_unix_micros,
                },
            );
        }
        let header = ChunkHeader {
            count: u32::try_from(run.len()).expect("a batch is bounded in cookies"),
            accepted_unix_micros: released(&run[0]),
            ..ChunkHeader::default()
        };
        let at = seal(&mut chunk, &header);
        messages.extend_from_slice(&chunk[at..]);
    }
    Frame {
        dsp_id,
        cookies: u32::try_from(indices.len()).expect("a batch is bounded in cookies"),
        messages,
    }
}

#[cfg(test)]
mod tests;
