//! Writes the changes of a call to the store before the response to the call is sent, and syncs the store every second.
//!
//! One task at a time writes: it is spawned by the first call that waits, and writes for all calls that wait after the ready
//! requests were handled. A thread for the writes would have to be woken for each of them. A slow write thus occupies one
//! thread of several, and delays responses, but decisions and the admin port by no more than a second. While a write or sync
//! hangs, all calls except delay queries are rejected, so that pending and unsynced changes stay bounded.

use std::{
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::{JoinError, spawn_blocking, yield_now},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{engine::Engine, store::Store};

/// Time between two syncs.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which a write counts as hanging and its responses fail, up to a second later. A limiter without a sync for this time is
/// not ready.
const HANG_TIMEOUT: Duration = Duration::from_secs(3);

/// Writes and syncs changes.
pub struct Saver {
    engine: Arc<Engine>,
    store: Store,
    progress: Mutex<Progress>,
    /// The task that writes.
    writers: TaskTracker,
    /// The error after which no write is possible. Every change wakes the main thread.
    failure: watch::Sender<Option<String>>,
}

#[derive(Debug)]
struct Progress {
    /// Responses that wait for the next write.
    waiting: Vec<oneshot::Sender<()>>,
    /// Responses that wait for the current write.
    writing: Vec<oneshot::Sender<()>>,
    /// Whether a task writes.
    has_writer: bool,
    /// Whether the next write includes the clock although nothing else has changed.
    clock_is_due: bool,
    /// Start of the current write.
    writing_since: Option<Instant>,
    /// Start of the current sync.
    syncing_since: Option<Instant>,
    /// All changes before this time are synced.
    synced_at: Instant,
}

impl Progress {
    /// Fails all responses that wait.
    fn fail(&mut self) {
        self.waiting.clear();
        self.writing.clear();
    }
}

/// Whether an operation that began at this time hangs.
fn hangs(since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() > HANG_TIMEOUT)
}

impl Saver {
    /// Creates a saver for an engine restored from this store, and saves the changes made by the restore.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn new(engine: Arc<Engine>, store: Store) -> fjall::Result<Self> {
        store.write(engine.take_changes())?;
        store.sync()?;
        let progress = Progress {
            waiting: Vec::new(),
            writing: Vec::new(),
            has_writer: false,
            clock_is_due: false,
            writing_since: None,
            syncing_since: None,
            synced_at: Instant::now(),
        };
        Ok(Self {
            engine,
            store,
            progress: Mutex::new(progress),
            writers: TaskTracker::new(),
            failure: watch::Sender::new(None),
        })
    }

    /// Whether changes are allowed: no write or sync failed or hangs.
    pub fn is_writable(&self) -> bool {
        let busy_since = {
            let progress = self.progress.lock();
            [progress.writing_since, progress.syncing_since]
        };
        !busy_since.into_iter().any(hangs) && self.failure.borrow().is_none()
    }

    /// Waits until all current changes of the engine are written; returns false if a write failed or hangs.
    pub async fn wait_written(self: &Arc<Self>) -> bool {
        let (response, written) = oneshot::channel();
        let has_writer = {
            let mut progress = self.progress.lock();
            // Responses that wait when the failure becomes known are failed then.
            if self.failure.borrow().is_some() {
                return false;
            }
            progress.waiting.push(response);
            mem::replace(&mut progress.has_writer, true)
        };
        if !has_writer {
            self.writers.spawn(Arc::clone(self).write_all());
        }
        written.await.is_ok()
    }

    /// Waits until a write fails. No further write is possible then.
    pub async fn wait_failed(&self) {
        let mut failure = self.failure.subscribe();
        // The sender lives as long as `self`.
        failure.wait_for(Option::is_some).await.ok();
    }

    /// Time since the last sync.
    pub fn age(&self) -> Duration {
        self.progress.lock().synced_at.elapsed()
    }

    /// Describes the state for `/readyz`.
    ///
    /// # Errors
    /// When a write failed, or the last sync was too long ago.
    pub fn state(&self) -> Result<String, String> {
        if let Some(error) = &*self.failure.borrow() {
            return Err(format!("write failed: {error}"));
        }
        let age = self.age();
        if age > HANG_TIMEOUT {
            let seconds = age.as_secs();
            return Err(format!(
                "not synced to disk for {seconds} s; a machine failure would lose the usage of that period"
            ));
        }
        Ok("synced to disk every second".to_owned())
    }

    /// Writes and syncs until `stop`, and then once more.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let syncs = async {
            while stop
                .run_until_cancelled(sleep(SYNC_INTERVAL))
                .await
                .is_some()
            {
                self.write_and_sync().await;
            }
            // After a hang, everything is written and synced nevertheless.
            while !self.write_and_sync().await && self.failure.borrow().is_none() {}
        };
        tokio::pin!(syncs);
        let mut hung = false;
        loop {
            // A thread outside of the runtime wakes it: the thread that a write occupies may be the one that waits for all
            // timers and sockets.
            let tick = spawn_blocking(|| thread::sleep(SYNC_INTERVAL));
            tokio::select! {
                biased;
                () = self.wait_failed() => return,
                () = &mut syncs => return,
                _ = tick => {}
            }
            let is_hung = !self.is_writable();
            if is_hung && !hung {
                tracing::warn!(
                    "a write of the state hangs; rejecting all calls except delay queries"
                );
            }
            hung = is_hung;
            let mut progress = self.progress.lock();
            if hangs(progress.writing_since) {
                progress.fail();
            }
        }
    }

    /// Writes all changes and the clock, and syncs them; returns false if that failed or hangs.
    async fn write_and_sync(self: &Arc<Self>) -> bool {
        self.progress.lock().clock_is_due = true;
        if !self.wait_written().await {
            return false;
        }
        let synced = self.sync().await;
        synced.map_err(|error| self.fail(error)).is_ok()
    }

    /// Writes while calls wait, each time after the ready requests were handled.
    async fn write_all(self: Arc<Self>) {
        loop {
            yield_now().await;
            let saver = Arc::clone(&self);
            let write = move || saver.write();
            let written = if Handle::current().metrics().num_workers() == 1 {
                // A slow write must not occupy the only thread.
                joined(spawn_blocking(write).await)
            } else {
                catch_unwind(AssertUnwindSafe(write))
                    .unwrap_or_else(|_| Err(io::Error::other("a write panicked").into()))
            };
            if let Err(error) = written {
                self.fail(error);
            }
            let mut progress = self.progress.lock();
            progress.has_writer = !progress.waiting.is_empty();
            if !progress.has_writer {
                return;
            }
        }
    }

    /// Writes the changes of all calls that wait.
    fn write(&self) -> fjall::Result<()> {
        let clock_is_due = {
            let mut progress = self.progress.lock();
            progress.writing = mem::take(&mut progress.waiting);
            mem::take(&mut progress.clock_is_due)
        };
        let changes = self.engine.take_changes();
        if self.failure.borrow().is_some() {
            self.progress.lock().fail();
            return Ok(());
        }
        // If only the clock changed, it is written once a second.
        if clock_is_due || changes.len() > 1 {
            self.timed(|it| &mut it.writing_since, || self.store.write(changes))?;
        }
        let written = mem::take(&mut self.progress.lock().writing);
        for response in written {
            // The client may have disconnected.
            response.send(()).ok();
        }
        Ok(())
    }

    /// No further write is possible.
    fn fail(&self, error: fjall::Error) {
        let error = match error {
            fjall::Error::Io(error) => error.to_string(),
            error => error.to_string(),
        };
        tracing::error!(error, "failed to write the state; shutting down");
        self.failure.send_replace(Some(error));
        self.progress.lock().fail();
    }

    /// Syncs all written changes.
    async fn sync(self: &Arc<Self>) -> fjall::Result<()> {
        let saver = Arc::clone(self);
        let sync = spawn_blocking(move || {
            // A write under way is not synced.
            let writing_since = saver.progress.lock().writing_since;
            let until = writing_since.unwrap_or_else(Instant::now);
            saver.timed(|it| &mut it.syncing_since, || saver.store.sync())?;
            saver.progress.lock().synced_at = until;
            Ok(())
        });
        joined(sync.await)
    }

    /// Runs an operation. While it runs, a field of [`Progress`] has its start.
    fn timed(
        &self,
        since: fn(&mut Progress) -> &mut Option<Instant>,
        operation: impl FnOnce() -> fjall::Result<()>,
    ) -> fjall::Result<()> {
        let started = Instant::now();
        *since(&mut self.progress.lock()) = Some(started);
        operation()?;
        *since(&mut self.progress.lock()) = None;
        let took = started.elapsed();
        if took > HANG_TIMEOUT && self.is_writable() {
            tracing::info!(?took, "state is writable again; accepting calls");
        }
        Ok(())
    }
}

/// The result of a blocking task; a panic is a failure.
fn joined<T>(ended: Result<fjall::Result<T>, JoinError>) -> fjall::Result<T> {
    ended.unwrap_or_else(|panic| Err(io::Error::other(panic).into()))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tokio::{task::JoinSet, time::timeout};

    use super::*;
    use crate::serve::engine::Options;

    fn saver(dir: &TempDir) -> Arc<Saver> {
        let options = Options {
            counters_max: 1,
            counters_bytes_max: 1,
            counted_by_server: false,
        };
        let engine = Arc::new(Engine::new(options, &[]));
        let store = Store::open(dir.path()).unwrap();
        Arc::new(Saver::new(engine, store).unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn changes_are_not_allowed_after_a_failed_write() {
        let dir = TempDir::new().unwrap();
        let saver = saver(&dir);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&saver).run(CancellationToken::new()));
        assert!(saver.wait_written().await);
        assert!(saver.is_writable() && saver.state().is_ok());
        // The store can create no more files; open ones stay usable.
        std::fs::remove_dir_all(dir.path().join("keyspaces")).unwrap();
        let failed = async {
            loop {
                saver.engine.save_sources(vec![0; 1 << 20]);
                if !saver.wait_written().await {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(60), failed).await.unwrap();
        assert!(!saver.is_writable());
        let error = saver.state().unwrap_err();
        assert!(error.starts_with("write failed"), "{error}");
        timeout(HANG_TIMEOUT, saver.wait_failed()).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn changes_are_not_allowed_after_a_failed_sync() {
        let dir = TempDir::new().unwrap();
        let saver = saver(&dir);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&saver).run(CancellationToken::new()));
        assert!(saver.wait_written().await);
        // Writes into the removed file succeed.
        std::fs::remove_file(dir.path().join("0.jnl")).unwrap();
        timeout(Duration::from_secs(60), saver.wait_failed())
            .await
            .unwrap();
        assert!(!saver.wait_written().await && !saver.is_writable());
    }

    #[tokio::test]
    async fn changes_are_written_although_the_first_client_disconnects() {
        let dir = TempDir::new().unwrap();
        let saver = saver(&dir);
        saver.engine.save_sources(vec![1]);
        let mut first = Box::pin(saver.wait_written());
        assert!(futures_util::poll!(&mut first).is_pending());
        drop(first);
        let written = timeout(Duration::from_secs(10), saver.wait_written());
        assert!(written.await.unwrap());
        assert_eq!(saved_sources(&saver), [1]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn everything_is_written_whenever_savers_are_stopped() {
        let dirs: Vec<_> = (0..8).map(|_| TempDir::new().unwrap()).collect();
        let savers: Vec<_> = dirs.iter().map(saver).collect();
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        for saver in &savers {
            running.spawn(Arc::clone(saver).run(stop.clone()));
        }
        sleep(SYNC_INTERVAL).await;
        for saver in &savers {
            saver.engine.save_sources(vec![1]);
        }
        stop.cancel();
        let ended = timeout(Duration::from_secs(10), running.join_all());
        ended.await.unwrap();
        for saver in &savers {
            assert!(saver.is_writable());
            assert_eq!(saved_sources(saver), [1]);
        }
    }

    fn saved_sources(saver: &Saver) -> Vec<u8> {
        let records = saver.store.read().unwrap();
        Engine::saved_sources(&records).unwrap().to_vec()
    }
}
