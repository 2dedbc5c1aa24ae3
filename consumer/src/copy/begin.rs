//! Decides at the start of the process whether to fill its store.

use std::collections::VecDeque;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::{Copier, Copying, progress::Progress};
use crate::{backoff::Backoff, health::CopyStatus, store::StoreError};

impl Copier {
    /// Decides whether to fill this store. Must complete before the first cookie arrives: afterwards, a store without progress was
    /// not empty at its first start.
    pub async fn begin(self, is_new: bool) -> Option<Copying> {
        let stored = retry(|| self.copies.copy_state()).await;
        let stored: Option<Progress> = stored.and_then(|it| serde_json::from_str(&it).ok());
        let is_unfinished = stored.as_ref().is_some_and(|it| it.finished.is_none());
        if self.nodes.is_empty() {
            if is_unfinished {
                tracing::warn!(
                    "the store is only partly filled from another node; set --copy-from to continue"
                );
            }
            return None;
        }
        let skip = |state: String| {
            tracing::info!(state, "--copy-from has no effect");
            let ratio = 1.0;
            let status = CopyStatus {
                state,
                records: 0,
                ratio,
            };
            self.health.set_copy(status);
            None
        };
        let progress = match stored {
            Some(Progress {
                finished: Some(result),
                ..
            }) => return skip(format!("finished earlier: {result}")),
            Some(progress) => progress,
            None if !is_new => {
                let why = "not started, because the store is not empty; to fill this node, stop it and delete its store";
                return skip(why.to_owned());
            }
            None => {
                let progress = Progress {
                    next: Some(String::new()),
                    ..Progress::default()
                };
                let text = progress.to_json();
                retry(|| self.copies.put_copy_state(&text)).await;
                progress
            }
        };
        self.deletions.begin_copy();
        let now = Instant::now();
        Some(Copying {
            copier: self,
            progress,
            pushed: 0,
            unsaved: VecDeque::new(),
            saved: now,
            next_push: now,
            total: 0,
            logged: (now, 0, 0),
            error: String::new(),
        })
    }
}

/// Repeats an operation on the store until it succeeds.
async fn retry<'a, T>(operation: impl Fn() -> BoxFuture<'a, Result<T, StoreError>>) -> T {
    let mut backoff = Backoff::default();
    loop {
        match operation().await {
            Ok(done) => return done,
            Err(error) => {
                tracing::warn!(%error, "the progress of filling this node is unavailable, retrying")
            }
        }
        sleep(backoff.delay()).await;
    }
}
