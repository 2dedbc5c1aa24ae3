//! Signals to a process: to shut down, or to reload its settings.

use std::{
    future::{Future, poll_fn},
    io,
    task::Poll,
};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::logging;

/// Exit code after a second shutdown signal, before the drain is complete.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Signals with a handler instead of their default action.
#[derive(Debug)]
pub struct Signals(Vec<Signal>);

impl Signals {
    /// SIGTERM and SIGINT, the shutdown signals.
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn terminate() -> io::Result<Self> {
        Self::install(&[SignalKind::terminate(), SignalKind::interrupt()])
    }

    /// SIGHUP, which reloads the settings. Install it right after loading them: an earlier SIGHUP kills the process.
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn hangup() -> io::Result<Self> {
        Self::install(&[SignalKind::hangup()])
    }

    /// No signals; [`next`](Self::next) never returns.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    fn install(kinds: &[SignalKind]) -> io::Result<Self> {
        kinds
            .iter()
            .map(|kind| signal(*kind))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        poll_fn(|context| {
            let mut signals = self.0.iter_mut();
            if signals.any(|signal| signal.poll_recv(context).is_ready()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// Cancels `drain` at the first SIGTERM or SIGINT, and exits the process at the second.
///
/// The future completes when `stopped` is cancelled; run it concurrently with the server.
///
/// # Errors
/// If the handler cannot be installed.
pub fn drain_on_signals(
    drain: CancellationToken,
    stopped: CancellationToken,
) -> io::Result<impl Future<Output = ()> + Send> {
    let mut signals = Signals::terminate()?;
    Ok(async move {
        if stopped.run_until_cancelled(signals.next()).await.is_none() {
            return;
        }
        tracing::info!("draining; a second signal stops the process immediately");
        drain.cancel();
        if stopped.run_until_cancelled(signals.next()).await.is_some() {
            tracing::warn!("second signal; stopping the process immediately");
            logging::flush();
            std::process::exit(EXIT_INTERRUPTED.into());
        }
    })
}
