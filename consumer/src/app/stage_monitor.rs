//! Makes sure that no stage of the pipeline ends unnoticed: one that panics, or ends before it was told to, ends the
//! process, because a consumer that only looks alive is worse than one that is started anew.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use crate::sink::Failure;

/// Watches stages.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// Why the pipeline cannot go on: the first reason there was.
    failed: Arc<SetOnce<String>>,
    /// Cancelled when the stages may end.
    draining: CancellationToken,
}

impl Watch {
    /// Reports to `failed` what ends before `draining`.
    pub(super) fn new(failed: Arc<SetOnce<String>>, draining: CancellationToken) -> Self {
        Self { failed, draining }
    }

    /// Runs one stage to its end.
    pub(super) async fn run(
        self,
        stage: &'static str,
        work: impl Future<Output = Result<(), Failure>>,
    ) {
        let why = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(Ok(())) if self.draining.is_cancelled() => return,
            // Anyone who told it to stop, or went before it, says why.
            Ok(Err(Failure::Stopped)) => return,
            Ok(Err(failure)) => failure.to_string(),
            Ok(Ok(())) | Err(_) => format!("a part of the consumer ended: {stage} is gone"),
        };
        drop(self.failed.set(why));
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
        let watched = watch.clone().run("the stage", work);
        tracker.spawn(watched).await.unwrap();
        watch.failed.get().cloned()
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
