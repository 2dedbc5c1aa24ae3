//! Brings a snapshot to the disk each second, and at once when somebody waits for one.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{clock::Clock, engine::Engine, metrics::Saving, state::Folder};

/// From the begin of one snapshot to the begin of the next, if nobody waits for it.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a snapshot is at least this, and as long as it took: at most half of a core, and of the disk's time, is for snapshots.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The pause after one that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(200);

/// Without a snapshot for so long, a limiter is not ready.
const LATE: Duration = Duration::from_secs(3);

/// Makes snapshots; clones share it.
#[derive(Debug, Clone)]
pub struct Saver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    folder: Folder,
    clock: Clock,
    metrics: Saving,
    /// When the last one that is on the disk began, in nanoseconds by the clock.
    saved_at: AtomicU64,
    is_failing: AtomicBool,
    /// Held by the one that makes a snapshot and writes it.
    saving: Mutex<()>,
}

impl Saver {
    /// For this engine and this folder.
    #[must_use]
    pub fn new(engine: Arc<Engine>, folder: Folder, clock: Clock, metrics: Saving) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                folder,
                saved_at: AtomicU64::new(clock.now()),
                clock,
                metrics,
                is_failing: AtomicBool::new(false),
                saving: Mutex::new(()),
            }),
        }
    }

    /// How long ago the newest snapshot on the disk began.
    #[must_use]
    pub fn age(&self) -> Duration {
        let saved_at = self.shared.saved_at.load(Ordering::Relaxed);
        Duration::from_nanos(self.shared.clock.now().saturating_sub(saved_at))
    }

    /// How it goes, in words.
    ///
    /// # Errors
    /// When nothing was saved for too long.
    pub fn state(&self) -> Result<String, String> {
        let age = self.age();
        if age > LATE {
            let seconds = age.as_secs();
            return Err(format!(
                "no snapshot for {seconds} s: answers wait once a second's worth is granted"
            ));
        }
        Ok("a snapshot each second".to_owned())
    }

    /// Saves again and again until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let engine = Arc::clone(&self.shared.engine);
        let mut due = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(due) => {}
                () = engine.wanted() => {}
            }
            let began = Instant::now();
            // One that hangs ends with the process, or by being saved after all.
            let Some(is_saved) = stop.run_until_cancelled(self.save(false)).await else {
                return;
            };
            let took = began.elapsed();
            let pause = if is_saved {
                took.max(PAUSE_MIN)
            } else {
                FAILED_PAUSE
            };
            due = began + INTERVAL;
            let rested = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
            if rested.is_none() {
                return;
            }
        }
    }

    /// Saves once; true when it is on the disk. `is_clean` when nothing is granted any more.
    pub async fn save(&self, is_clean: bool) -> bool {
        let shared = Arc::clone(&self.shared);
        let saved = spawn_blocking(move || shared.save(is_clean)).await;
        saved.unwrap_or(false)
    }
}

impl Shared {
    fn save(&self, is_clean: bool) -> bool {
        let _one_at_a_time = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let began = std::time::Instant::now();
        let now = self.clock.now();
        let snapshot = self.engine.snapshot(is_clean, now);
        let written = self.folder.write(&snapshot.bytes);
        match written {
            Ok(()) => {
                self.engine.is_saved(&snapshot, self.clock.now());
                self.saved_at.store(now, Ordering::Relaxed);
                let bytes = snapshot.bytes.len();
                self.metrics.saved(began.elapsed(), bytes);
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("snapshots are saved again");
                }
                true
            }
            Err(error) => {
                self.metrics.failed();
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    let folder = self.folder.path().display();
                    tracing::error!(%error, %folder, "a snapshot cannot be saved, trying again: answers wait once a second's worth is granted");
                }
                false
            }
        }
    }
}
