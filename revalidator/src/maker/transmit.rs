//! Transmission of a job: reads its assets and publishes them in batches. Workers check the first batches while later ones are still
//! being published.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, Result, bail};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

use super::{Maker, selection};
use crate::{
    apps::App,
    engine::{Engine, OPEN_RESULT_BYTES_MAX, RETRY_PAUSE},
    jobs::{WINDOW, candidates},
    messages::{BATCH_ASSETS_MAX, JobStatus, ServerState},
    source::{self, ASSETS_MAX, Lines, Page, Selection, cookies::Matches},
};

/// Batches between two writes of the cursor; the next maker repeats up to this number.
const CURSOR_BATCHES: u64 = 20;

/// Where assets come from.
enum Source<E> {
    File(Lines),
    Nodes(Matches<E>),
}

impl<E: Engine> Source<E> {
    /// The next assets; empty at the end.
    async fn next(self, selection: Selection) -> Result<(Page, Self)> {
        match self {
            Self::File(mut lines) => {
                let read = move || Ok((read(&mut lines, &selection)?, Self::File(lines)));
                spawn_blocking(read).await?
            }
            Self::Nodes(mut matches) => Ok((matches.next().await?, Self::Nodes(matches))),
        }
    }
}

/// Reads the assets of the next batch; empty at the end of the file.
fn read(lines: &mut Lines, selection: &Selection) -> Result<Page> {
    let mut assets = Vec::new();
    while assets.len() < BATCH_ASSETS_MAX
        && let Some(line) = lines.asset()?
    {
        assets.extend(selection.select(line));
    }
    Ok((assets, Some(lines.position.to_string())))
}

impl<E: Engine> Maker<E> {
    /// Transmits a job from its cursor on, up to [`WINDOW`] batches ahead of the `counted` ones, and updates the number of `sent_batches`. Returns its new state. Unless it is an
    /// I/O error, the error is the reason to cancel the job.
    pub(super) async fn transmit(
        &self,
        job: &JobStatus,
        app: &Arc<App>,
        mut counted: watch::Receiver<u64>,
        sent_batches: &AtomicU64,
    ) -> Result<JobStatus> {
        let selection = selection(job, app);
        let mut source = if app.settings.cookies.is_some() {
            Source::Nodes(Matches::new(&self.engine, app, &selection, &job.cursor))
        } else {
            let path = match self.bodies.lock().get(&job.job_id) {
                Some(body) => body.file.to_path_buf(),
                None if job.has_body => bail!("the process that received the assets has ended"),
                None => app.settings.assets.clone().context("`assets` is unset")?,
            };
            source::check_size(&path)?;
            Source::File(Lines::open(&path, job.cursor.parse().unwrap_or(0))?)
        };
        let mut sent = job.clone();
        let mut written = sent.batch_count;
        loop {
            let next = source.next(selection.clone()).await;
            // The error omits the cursor, which can be the id of a user.
            let ((assets, cursor), rest) = next.with_context(|| {
                format!("failed to read assets after {} batches", sent.batch_count)
            })?;
            source = rest;
            let is_resumable = cursor.is_some();
            sent.cursor = cursor.unwrap_or(sent.cursor);
            if assets.is_empty() || sent.asset_count >= ASSETS_MAX {
                break;
            }
            let has_place = |counted: &u64| sent.batch_count < counted + WINDOW;
            counted.wait_for(has_place).await?;
            sent.asset_count += assets.len() as u64;
            self.send(job, sent.batch_count, 1, assets).await?;
            sent.batch_count += 1;
            sent_batches.store(sent.batch_count, Ordering::Relaxed);
            if is_resumable && sent.batch_count - written >= CURSOR_BATCHES {
                written = sent.batch_count;
                self.write_cursor(&sent).await;
                while self.must_wait(&job.job_id).await {
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
        sent.server_state = ServerState::WaitForResults;
        self.write_cursor(&sent).await;
        Ok(sent)
    }

    /// Whether a job waits because the stream of results is almost full. The oldest job does not wait: when it ends, its results can
    /// be removed.
    async fn must_wait(&self, id: &str) -> bool {
        let mut jobs = candidates(self.mirror.jobs(), (self.clock)());
        jobs.retain(|it| it.server_state == ServerState::Transmitting && !it.foreign);
        if jobs.first().is_some_and(|it| it.job_id == id) {
            return false;
        }
        let bytes = self.engine.result_bytes().await;
        bytes.is_ok_and(|bytes| bytes > OPEN_RESULT_BYTES_MAX)
    }

    /// Writes the cursor. Waits while the broker is unavailable. Does not return if the job has ended; the caller then ends the
    /// transmission.
    async fn write_cursor(&self, sent: &JobStatus) {
        let write = |job: &mut JobStatus| {
            if job.is_open() {
                job.asset_count = sent.asset_count;
                job.batch_count = sent.batch_count;
                job.cursor.clone_from(&sent.cursor);
                job.server_state.clone_from(&sent.server_state);
            }
        };
        let is_open = |job: Option<JobStatus>| job.is_some_and(|job| job.is_open());
        while !self
            .change_job(&sent.job_id, write)
            .await
            .is_ok_and(is_open)
        {
            sleep(RETRY_PAUSE).await;
        }
    }
}
