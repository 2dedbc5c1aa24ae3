//! Threads of one name, so that their CPU time can be told apart from all others'.

use std::{future::Future, time::Duration};

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that wait for blocking work are kept this long: the CPU time of one that ended would be lost.
const KEEP_ALIVE: Duration = Duration::from_secs(24 * 3600);

/// Most bytes of a thread's name that the system keeps.
const NAME_BYTES_MAX: usize = 15;

/// A runtime whose threads all have one name.
#[derive(Debug)]
pub(super) struct OwnThreads {
    name: &'static str,
    /// Taken when this is dropped.
    runtime: Option<Runtime>,
}

impl OwnThreads {
    /// As many threads as a process of its own would have.
    pub(super) fn start(name: &'static str) -> Result<Self> {
        assert!(name.len() <= NAME_BYTES_MAX, "the system would cut {name}");
        let runtime = Builder::new_multi_thread()
            .thread_name(name)
            .thread_keep_alive(KEEP_ALIVE)
            .enable_all()
            .build()
            .context("cannot start threads")?;
        Ok(Self {
            name,
            runtime: Some(runtime),
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn handle(&self) -> &Handle {
        let runtime = self.runtime.as_ref();
        runtime.expect("it is there until the drop").handle()
    }

    /// Runs `work` there, and waits for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.handle().spawn(work).await?
    }
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        // Waiting for them is not allowed where futures run.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
