//! Syncs the journal each second, and makes a snapshot when one is wanted.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{clock::Clock, engine::Engine, metrics::Saving, state::Folder};

/// From one sync of the journal to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a snapshot, or a sync, that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// Without a sync for so long, a limiter is not ready.
const LATE: Duration = Duration::from_secs(3);

/// Makes snapshots and syncs; clones share it.
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
    /// Since when all that was answered is on the disk, in nanoseconds by the clock.
    synced_at: AtomicU64,
    /// Held by the one that makes a snapshot or syncs.
    saving: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    /// The number of the newest journal that was tried.
    number: u64,
    /// The one that goes on, with its number.
    journal: Option<(u64, File)>,
    is_failing: bool,
}

impl Saver {
    /// For this engine and this folder, whose newest journal has this number.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        folder: Folder,
        number: u64,
        clock: Clock,
        metrics: Saving,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                folder,
                synced_at: AtomicU64::new(clock.now()),
                clock,
                metrics,
                saving: Mutex::new(Progress {
                    number,
                    journal: None,
                    is_failing: false,
                }),
            }),
        }
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
    /// When nothing was synced for too long.
    pub fn state(&self) -> Result<String, String> {
        let age = self.age();
        if age > LATE {
            let seconds = age.as_secs();
            return Err(format!(
                "not synced to the disk for {seconds} s: a failure of the machine would forget what was used since"
            ));
        }
        Ok("synced to the disk each second".to_owned())
    }

    /// Syncs and makes snapshots until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let engine = Arc::clone(&self.shared.engine);
        let mut is_wanted = false;
        loop {
            let work = async {
                is_wanted |= timeout(INTERVAL, engine.snapshot_wanted()).await.is_ok();
                // One that hangs ends with the process, or by being saved after all.
                let is_saved = match is_wanted {
                    true => self.save().await,
                    false => self.sync().await,
                };
                is_wanted = !is_saved;
                if !is_saved {
                    sleep(FAILED_PAUSE).await;
                    engine.want_snapshot();
                }
            };
            if stop.run_until_cancelled(work).await.is_none() {
                return;
            }
        }
    }

    /// Makes a snapshot; true when it is on the disk.
    pub async fn save(&self) -> bool {
        self.try_to("make a snapshot", Shared::save).await
    }

    async fn sync(&self) -> bool {
        self.try_to("sync the journal", Shared::sync).await
    }

    async fn try_to(
        &self,
        what: &'static str,
        work: fn(&Shared, &mut Progress) -> io::Result<()>,
    ) -> bool {
        let shared = Arc::clone(&self.shared);
        let done = spawn_blocking(move || {
            let mut progress = shared.saving.lock().unwrap_or_else(PoisonError::into_inner);
            let now = shared.clock.now();
            let done = work(&shared, &mut progress);
            let was_failing = std::mem::replace(&mut progress.is_failing, done.is_err());
            match &done {
                Ok(()) => {
                    shared.synced_at.store(now, Ordering::Relaxed);
                    if was_failing {
                        tracing::info!("the state can be written again");
                    }
                }
                Err(error) if !was_failing => {
                    let folder = shared.folder.path().display();
                    tracing::error!(%error, %folder, what, "cannot write the state, retrying");
                }
                Err(_) => {}
            }
            done.is_ok()
        });
        done.await.unwrap_or(false)
    }
}

impl Shared {
    fn save(&self, progress: &mut Progress) -> io::Result<()> {
        let began = std::time::Instant::now();
        progress.number += 1;
        let number = progress.number;
        if let Some(error) = self.engine.journal_error().filter(|_| !progress.is_failing) {
            tracing::error!(
                error,
                "cannot write the journal: nothing is granted until a snapshot is made"
            );
        }
        let live = progress.journal.as_ref().map_or(0, |(live, _)| *live);
        let saved = self.folder.begin_journal(number, live).and_then(|journal| {
            progress.journal = Some((number, journal.try_clone()?));
            let snapshot = self.engine.snapshot(number, journal);
            self.folder.write(&snapshot, number)?;
            Ok(snapshot.len())
        });
        match &saved {
            Ok(bytes) => self.metrics.saved(began.elapsed(), *bytes),
            Err(_) => self.metrics.failed(),
        }
        saved.map(|_| ())
    }

    fn sync(&self, progress: &mut Progress) -> io::Result<()> {
        let journal = progress.journal.as_ref();
        journal.map_or(Ok(()), |(_, file)| file.sync_data())
    }
}
