//! Writes what changes before it is answered, and syncs it each second.
//!
//! Whoever answers writes what has changed, unless another is writing: then it waits, and what has gathered goes together. So a disk that is slow holds up
//! answers, and neither decisions nor the admin port.

use std::{
    panic::resume_unwind,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::{block_in_place, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{clock::Clock, engine::Engine, store::Store};

/// From one sync to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// Without a sync for so long, a limiter is not ready; without a write, an answer is given up.
const LATE: Duration = Duration::from_secs(3);

/// Writes and syncs; clones share it.
#[derive(Debug, Clone)]
pub struct Saver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    store: Store,
    clock: Clock,
    /// Since when all that was answered is on the disk, in nanoseconds by the clock.
    synced_at: AtomicU64,
    /// How many writes were asked for.
    asked: AtomicU64,
    /// How many of these are done, or why no more can be.
    done: watch::Sender<Result<u64, String>>,
    /// Held by the one that writes.
    writing: Mutex<()>,
}

/// What was asked for cannot be written.
#[derive(Debug, Clone, Copy)]
pub struct NotSaved;

impl Saver {
    /// Saves an engine that was restored from this store; it has saved what the start changed.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn new(engine: Arc<Engine>, store: Store, clock: Clock) -> fjall::Result<Self> {
        store.write(engine.take_changes())?;
        store.sync()?;
        let shared = Shared {
            engine,
            store,
            synced_at: AtomicU64::new(clock.now()),
            clock,
            asked: AtomicU64::new(0),
            done: watch::Sender::new(Ok(0)),
            writing: Mutex::new(()),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Whether something may be changed.
    ///
    /// # Errors
    /// When it could not be written.
    pub fn check(&self) -> Result<(), NotSaved> {
        let done = self.shared.done.borrow();
        done.as_ref().map_or(Err(NotSaved), |_| Ok(()))
    }

    /// Waits until all that has changed in the engine is written.
    ///
    /// # Errors
    /// When it cannot be, or is not for long.
    pub async fn written(&self) -> Result<(), NotSaved> {
        let shared = &self.shared;
        let mut done = shared.done.subscribe();
        let own = shared.asked.fetch_add(1, Ordering::Relaxed) + 1;
        while *done.borrow_and_update().as_ref().map_err(|_| NotSaved)? < own {
            if let Ok(writing) = shared.writing.try_lock() {
                block_in_place(|| shared.write(writing));
            } else if !matches!(timeout(LATE, done.changed()).await, Ok(Ok(()))) {
                return Err(NotSaved);
            }
        }
        Ok(())
    }

    /// Waits until nothing can be written any more.
    pub async fn failed(&self) {
        let mut done = self.shared.done.subscribe();
        // The sender is in `self`.
        done.wait_for(Result::is_err).await.ok();
    }

    /// For how long what was answered may not be on the disk.
    #[must_use]
    pub fn age(&self) -> Duration {
        let synced_at = self.shared.synced_at.load(Ordering::Relaxed);
        Duration::from_nanos(self.shared.clock.now().saturating_sub(synced_at))
    }

    /// How it goes, in words.
    ///
    /// # Errors
    /// When nothing can be written, or nothing was synced for too long.
    pub fn state(&self) -> Result<String, String> {
        if let Err(error) = &*self.shared.done.borrow() {
            return Err(format!("cannot be written: {error}"));
        }
        let age = self.age();
        if age > LATE {
            let seconds = age.as_secs();
            return Err(format!(
                "not synced to the disk for {seconds} s: a failure of the machine would forget what was used since"
            ));
        }
        Ok("synced to the disk each second".to_owned())
    }

    /// Writes and syncs each second until `stop`, and then for the last time.
    pub async fn run(self, stop: CancellationToken) {
        let mut is_last = false;
        while !is_last && self.check().is_ok() {
            is_last = stop.run_until_cancelled(sleep(INTERVAL)).await.is_none();
            let shared = Arc::clone(&self.shared);
            // One that hangs ends with the process.
            if let Err(ended) = spawn_blocking(move || shared.sync()).await {
                resume_unwind(ended.into_panic());
            }
        }
    }
}

impl Shared {
    fn write(&self, writing: MutexGuard<'_, ()>) {
        let asked = self.asked.load(Ordering::Relaxed);
        let written = self.store.write(self.engine.take_changes());
        // Whoever is told that this is done may write next.
        drop(writing);
        match written {
            Ok(()) => self.done.send_modify(|done| {
                *done = done.clone().map(|done| done.max(asked));
            }),
            Err(error) => self.fail(&error),
        }
    }

    fn sync(&self) {
        let now = self.clock.now();
        self.write(self.writing.lock().unwrap_or_else(PoisonError::into_inner));
        match self.store.sync() {
            Ok(()) => self.synced_at.store(now, Ordering::Relaxed),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&self, error: &fjall::Error) {
        let error = error.to_string();
        self.done.send_if_modified(|done| {
            let is_first = done.is_ok();
            if is_first {
                tracing::error!(error, "failed to write the state; shutting down");
                *done = Err(error);
            }
            is_first
        });
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::serve::engine::{Counting, Options};

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_may_change_once_a_write_has_failed() {
        let folder = TempDir::new().unwrap();
        let options = Options {
            counters_max: 1,
            counters_bytes_max: 1,
            feedback_ttl_max: INTERVAL,
            counting: Counting::Here,
            is_saved: true,
        };
        let engine = Arc::new(Engine::new(options, &[]));
        let store = Store::open(folder.path()).unwrap();
        let saver = Saver::new(Arc::clone(&engine), store, Clock::start()).unwrap();
        saver.written().await.unwrap();
        assert!(saver.check().is_ok() && saver.state().is_ok());
        // A file of the store can no longer be made; what is open stays so.
        std::fs::remove_dir_all(folder.path().join("keyspaces")).unwrap();
        let failed = async {
            loop {
                engine.keep(vec![0; 1 << 20]);
                if saver.written().await.is_err() {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(60), failed).await.unwrap();
        assert!(saver.check().is_err());
        let why = saver.state().unwrap_err();
        assert!(why.starts_with("cannot be written"), "{why}");
        timeout(LATE, saver.failed()).await.unwrap();
    }
}
