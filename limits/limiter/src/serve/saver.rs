//! Writes what changes before it is answered, and syncs it each second.
//!
//! One thread does all writes: what gathers during a write goes together with the next one. So a slow disk delays answers, and neither decisions nor the admin
//! port. While a write hangs, nothing may change, so what waits to be written is bounded.

use std::{
    panic::resume_unwind,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{engine::Engine, store::Store};

/// From one sync to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// After so long without a sync, a limiter is not ready; a write that takes longer hangs, and an answer that waits for longer is given up.
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
    progress: Mutex<Progress>,
    /// Wakes the writer.
    wake: Condvar,
    /// How many of the writes asked for are done, or why no more can be.
    done: watch::Sender<Result<u64, String>>,
}

#[derive(Debug)]
struct Progress {
    /// How many writes were asked for.
    asked: u64,
    /// When the write or sync under way began.
    busy_since: Option<Instant>,
    /// Since when all that was answered is on the disk.
    synced_at: Instant,
}

/// What was asked for is not known to be written.
#[derive(Debug, Clone, Copy)]
pub struct NotSaved;

impl Saver {
    /// Saves an engine that was restored from this store; it has saved what the start changed.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn new(engine: Arc<Engine>, store: Store) -> fjall::Result<Self> {
        store.write(engine.take_changes())?;
        store.sync()?;
        let progress = Progress {
            asked: 0,
            busy_since: None,
            synced_at: Instant::now(),
        };
        let shared = Shared {
            engine,
            store,
            progress: Mutex::new(progress),
            wake: Condvar::new(),
            done: watch::Sender::new(Ok(0)),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Whether something may be changed.
    ///
    /// # Errors
    /// When it could not be written, or a write hangs.
    pub fn check(&self) -> Result<(), NotSaved> {
        let busy_since = self.shared.progress().busy_since;
        let hangs = busy_since.is_some_and(|since| since.elapsed() > LATE);
        if hangs || self.shared.done.borrow().is_err() {
            return Err(NotSaved);
        }
        Ok(())
    }

    /// Waits until all that has changed in the engine is written.
    ///
    /// # Errors
    /// When it cannot be, or is not for long.
    pub async fn written(&self) -> Result<(), NotSaved> {
        let mut done = self.shared.done.subscribe();
        let own = {
            let mut progress = self.shared.progress();
            progress.asked += 1;
            progress.asked
        };
        self.shared.wake.notify_one();
        let is_over = |done: &Result<u64, _>| done.as_ref().map_or(true, |done| *done >= own);
        match timeout(LATE, done.wait_for(is_over)).await {
            Ok(Ok(done)) if done.is_ok() => Ok(()),
            _ => Err(NotSaved),
        }
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
        self.shared.progress().synced_at.elapsed()
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

    /// Writes and syncs until `stop`, and then for the last time.
    pub async fn run(self, stop: CancellationToken) {
        let (shared, stopped) = (Arc::clone(&self.shared), stop.clone());
        // One that hangs ends with the process.
        let mut writer = spawn_blocking(move || shared.run(&stopped));
        let mut hung = false;
        let ended = loop {
            tokio::select! {
                ended = &mut writer => break ended,
                () = stop.cancelled() => {
                    // Wakes the writer, which sees that it is to stop.
                    self.written().await.ok();
                    break writer.await;
                }
                () = sleep(INTERVAL) => {
                    let hangs = self.check().is_err();
                    if hangs && !hung {
                        tracing::warn!("a write of the state hangs; rejecting calls that change something");
                    }
                    hung = hangs;
                }
            }
        };
        if let Err(error) = ended.unwrap_or_else(|ended| resume_unwind(ended.into_panic())) {
            let error = match error {
                fjall::Error::Io(error) => error.to_string(),
                error => error.to_string(),
            };
            tracing::error!(error, "failed to write the state; shutting down");
            self.shared.done.send_modify(|done| *done = Err(error));
        }
    }
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was asked for, and syncs each second and at the end.
    fn run(&self, stop: &CancellationToken) -> fjall::Result<()> {
        let (mut asked, mut synced, mut is_last) = (0, Instant::now(), false);
        while !is_last {
            let wait = INTERVAL.saturating_sub(synced.elapsed());
            let is_idle = |progress: &mut Progress| progress.asked == asked;
            let woken = self.wake.wait_timeout_while(self.progress(), wait, is_idle);
            asked = woken.unwrap_or_else(PoisonError::into_inner).0.asked;
            is_last = stop.is_cancelled();
            let syncs = is_last || synced.elapsed() >= INTERVAL;
            let (began, changes) = (Instant::now(), self.engine.take_changes());
            // Until the next sync, the clock's record alone is not written.
            if syncs || changes.len() > 1 {
                self.watched(|| self.store.write(changes))?;
            }
            self.done.send_modify(|done| *done = Ok(asked));
            if syncs {
                self.watched(|| self.store.sync())?;
                synced = Instant::now();
                self.progress().synced_at = began;
            }
        }
        Ok(())
    }

    /// Does what may hang.
    fn watched(&self, work: impl FnOnce() -> fjall::Result<()>) -> fjall::Result<()> {
        let began = Instant::now();
        self.progress().busy_since = Some(began);
        work()?;
        self.progress().busy_since = None;
        let took = began.elapsed();
        if took > LATE {
            tracing::info!(?took, "state written again; accepting calls");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tokio::task::JoinSet;

    use super::*;
    use crate::serve::engine::{Counting, Options};

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_may_change_once_a_write_has_failed() {
        let dir = TempDir::new().unwrap();
        let options = Options {
            counters_max: 1,
            counters_bytes_max: 1,
            feedback_ttl_max: INTERVAL,
            counting: Counting::Here,
            is_saved: true,
        };
        let engine = Arc::new(Engine::new(options, &[]));
        let store = Store::open(dir.path()).unwrap();
        let saver = Saver::new(Arc::clone(&engine), store).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(saver.clone().run(CancellationToken::new()));
        saver.written().await.unwrap();
        assert!(saver.check().is_ok() && saver.state().is_ok());
        // A file of the store can no longer be made; what is open stays so.
        std::fs::remove_dir_all(dir.path().join("keyspaces")).unwrap();
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
