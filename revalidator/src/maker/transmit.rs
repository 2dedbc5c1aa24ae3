//! Transmission of the assets of a job: reading the source, and publishing batches, while workers begin.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{Maker, selection};
use crate::{
    apps::App,
    engine::Engine,
    messages::{Asset, BATCH_ASSETS_MAX, JobBatch, JobStatus, ServerState},
    mirror::change_job,
    source::{self, Selected},
};

/// Batches that are read in advance.
const READ_AHEAD: usize = 16;

/// Batches between two writes of the cursor; the next maker repeats up to as many.
const CURSOR_BATCHES: u64 = 20;

/// Part of a source.
struct Page {
    assets: Vec<Asset>,
    pruned: u64,
    /// Position in the source after the page.
    cursor: u64,
}

impl<E: Engine> Maker<E> {
    /// Transmits a job from its cursor on. The error is the reason to cancel it.
    pub(super) async fn transmit(&self, job: &JobStatus, app: &Arc<App>) -> Result<()> {
        let Some(path) = app.settings.assets.clone() else {
            bail!("the application has no assets");
        };
        let (sender, mut pages) = mpsc::channel(READ_AHEAD);
        let selection = selection(job, app);
        let (start, contents) = (job.cursor, app.contents.clone());
        let reading = spawn_blocking(move || -> Result<()> {
            let runtime = tokio::runtime::Handle::current();
            let empty = |cursor| Page {
                assets: Vec::new(),
                pruned: 0,
                cursor,
            };
            let mut page = empty(start);
            let mut failed = Ok(());
            source::read(&path, start, &selection, |selected, cursor| {
                page.cursor = cursor;
                match selected {
                    Selected::Skip => {}
                    Selected::Check(asset) => page.assets.push(asset),
                    Selected::Prune(asset) => {
                        if let Some(contents) = &contents {
                            failed = runtime.block_on(contents.remove(asset.name()));
                        }
                        page.pruned += 1;
                    }
                }
                if failed.is_ok() && page.assets.len() < BATCH_ASSETS_MAX {
                    return true;
                }
                let full = std::mem::replace(&mut page, empty(cursor));
                failed.is_ok() && sender.blocking_send(full).is_ok()
            })?;
            failed?;
            // The receiver is gone only if the transmission has failed.
            drop(sender.blocking_send(page));
            Ok(())
        });
        let mut sent = job.clone();
        while let Some(page) = pages.recv().await {
            sent.cursor = page.cursor;
            sent.pruned += page.pruned;
            if page.assets.is_empty() {
                continue;
            }
            let batch = JobBatch {
                assets: page.assets,
                job_id: job.job_id.clone(),
                batch: sent.batch_count,
                attempt: 1,
            };
            self.send(&batch).await;
            sent.batch_count += 1;
            sent.asset_count += batch.assets.len() as u64;
            if sent.batch_count.is_multiple_of(CURSOR_BATCHES)
                && !self.write_cursor(&sent, false).await?
            {
                return Ok(());
            }
        }
        reading.await.context("reader")??;
        self.write_cursor(&sent, true).await?;
        Ok(())
    }

    /// Writes the cursor; false if the job has ended.
    async fn write_cursor(&self, sent: &JobStatus, is_last: bool) -> Result<bool> {
        let write = |job: &mut JobStatus| {
            if !job.is_open() {
                return false;
            }
            job.asset_count = sent.asset_count;
            job.batch_count = sent.batch_count;
            job.pruned = sent.pruned;
            job.cursor = sent.cursor;
            if is_last {
                job.server_state = ServerState::WaitForResults;
            }
            true
        };
        // The broker may be away for long; the transmission then waits.
        loop {
            match change_job(&self.engine, &sent.job_id, write).await {
                Ok(job) => return Ok(job.is_some_and(|job| job.is_open())),
                Err(error) => tracing::debug!(error = format!("{error:#}"), "cursor not written"),
            }
            tokio::time::sleep(super::RETRY_PAUSE).await;
        }
    }
}
