//! Ends the process when a stage panics or ends before the drain.
//!
//! A supervisor restarts a process that exits, but not one that runs without working.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use crate::sink::Failure;

/// Runs stages and reports their failures.
#[derive(Debug, Clone)]
pub(super) struct StageMonitor {
    /// The first failure.
    pub(super) failed: Arc<SetOnce<String>>,
    /// Cancelled when stages may end; a stage that ends before is a failure.
    pub(super) draining: CancellationToken,
}

impl StageMonitor {
    /// Runs one stage to its end.
    pub(super) async fn run(
        self,
        stage: &'static str,
        work: impl Future<Output = Result<(), Failure>>,
    ) {
        let why = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(Ok(())) if self.draining.is_cancelled() => return,
            // The cause is reported by another stage or by the caller.
            Ok(Err(Failure::Stopped)) => return,
            Ok(Err(failure)) => failure.to_string(),
            Ok(Ok(())) | Err(_) => format!("the {stage} task of the consumer ended unexpectedly"),
        };
        drop(self.failed.set(why));
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;

    fn monitor() -> StageMonitor {
        StageMonitor {
            failed: Arc::default(),
            draining: CancellationToken::new(),
        }
    }

    /// The failure reported for a stage that runs `work`, if any.
    async fn reported(
        monitor: &StageMonitor,
        work: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Option<String> {
        let tracker = TaskTracker::new();
        let stage = monitor.clone().run("test", work);
        tracker.spawn(stage).await.unwrap();
        monitor.failed.get().cloned()
    }

    #[tokio::test]
    async fn stage_that_panics_or_ends_early_ends_the_process() {
        let panicked = reported(&monitor(), async { panic!("on purpose") }).await;
        assert!(
            panicked
                .unwrap()
                .contains("the test task of the consumer ended unexpectedly")
        );
        let early = reported(&monitor(), async { Ok(()) }).await;
        assert!(early.unwrap().contains("ended unexpectedly"));
        let broken = async { Err(Failure::Broken("for good".to_owned())) };
        assert!(
            reported(&monitor(), broken)
                .await
                .unwrap()
                .contains("for good")
        );
    }

    #[tokio::test]
    async fn stage_may_end_while_draining_but_not_panic() {
        let monitor = monitor();
        monitor.draining.cancel();
        assert_eq!(reported(&monitor, async { Ok(()) }).await, None);
        assert_eq!(
            reported(&monitor, async { Err(Failure::Stopped) }).await,
            None
        );
        assert!(
            reported(&monitor, async { panic!("on purpose") })
                .await
                .is_some()
        );
    }
}
