//! Makes sure that no stage of the pipeline ends unnoticed: one that panics, or ends before it was told to, ends the
//! process, because a consumer that only looks alive is worse than one that is started anew.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use tokio_util::sync::CancellationToken;

use crate::sink::Failure;

/// Watches stages.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    failed: Arc<Failed>,
    /// Cancelled when the stages may end.
    draining: CancellationToken,
}

impl Watch {
    /// Reports to `failed` what ends before `draining`.
    pub(super) fn new(failed: Arc<Failed>, draining: CancellationToken) -> Self {
        Self { failed, draining }
    }

    /// Runs one stage to its end.
    pub(super) async fn run(
        self,
        stage: &'static str,
        work: impl Future<Output = Result<(), Failure>>,
    ) {
        let mut watched = Watched {
            failed: &self.failed,
            stage,
            ended: false,
        };
        let ended = work.await;
        watched.ended = match ended {
            Ok(()) => self.draining.is_cancelled(),
            // Anyone who told it to stop, or went before it, says why.
            Err(Failure::Stopped) => true,
            Err(failure) => {
                self.failed.report(failure.to_string());
                true
            }
        };
    }
}

/// Reports a stage that is dropped before it ended as it should.
struct Watched<'a> {
    failed: &'a Failed,
    stage: &'static str,
    ended: bool,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let why = format!("a part of the consumer ended: {} is gone", self.stage);
            self.failed.report(why);
        }
    }
}

/// Why the pipeline cannot go on.
#[derive(Debug, Default)]
pub(super) struct Failed {
    why: OnceLock<String>,
    happened: CancellationToken,
}

impl Failed {
    fn report(&self, why: String) {
        // The first reason is the one that counts.
        self.why.get_or_init(|| why);
        self.happened.cancel();
    }

    /// Waits until there is a reason.
    pub(super) async fn happened(&self) {
        self.happened.cancelled().await;
    }

    /// Whether there is one.
    pub(super) fn has_happened(&self) -> bool {
        self.happened.is_cancelled()
    }

    /// The reason.
    pub(super) fn error(&self) -> anyhow::Error {
        let why = self.why.get().map_or("the consumer failed", String::as_str);
        anyhow::anyhow!("{why}")
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;

    fn watch() -> Watch {
        Watch {
            failed: Arc::default(),
            draining: CancellationToken::new(),
        }
    }

    /// Whether a failure was reported by a stage that ends like `work`.
    async fn reported(
        watch: &Watch,
        work: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Option<String> {
        let tracker = TaskTracker::new();
        let ended = tracker.spawn(watch.clone().run("the stage", work)).await;
        assert!(ended.is_ok() || watch.failed.happened.is_cancelled());
        watch.failed.why.get().cloned()
    }

    #[tokio::test]
    async fn stage_that_panics_or_ends_early_ends_the_process() {
        let panicked = reported(&watch(), async { panic!("on purpose") }).await;
        assert!(
            panicked
                .unwrap()
                .contains("a part of the consumer ended: the stage is gone")
        );
        let early = reported(&watch(), async { Ok(()) }).await;
        assert!(early.unwrap().contains("the stage is gone"));
        let broken = async { Err(Failure::Broken("for good".to_owned())) };
        assert!(
            reported(&watch(), broken)
                .await
                .unwrap()
                .contains("for good")
        );
    }

    #[tokio::test]
    async fn stage_may_end_while_draining_but_not_panic() {
        let watch = watch();
        watch.draining.cancel();
        assert_eq!(reported(&watch, async { Ok(()) }).await, None);
        assert_eq!(
            reported(&watch, async { Err(Failure::Stopped) }).await,
            None
        );
        assert!(
            reported(&watch, async { panic!("on purpose") })
                .await
                .is_some()
        );
    }
}
