//! Work that takes long, beside the runtime's workers.

use std::{future::pending, panic::resume_unwind};

use tokio::task::spawn_blocking;

/// Does what may take long where it holds up no call.
pub(super) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime ends, and with it who waits here.
        Err(_) => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn long_work_holds_up_nothing() {
        let (goes_on, waits) = mpsc::channel();
        // On the one thread of this runtime both end only if the first is elsewhere.
        let (_, ()) = tokio::join!(aside(move || waits.recv().unwrap()), async move {
            goes_on.send(()).unwrap();
        });
    }
}
