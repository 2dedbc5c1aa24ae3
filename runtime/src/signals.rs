//! What the system tells a process: to end, or to read its settings again.

use std::{
    future::{Future, poll_fn},
    io,
    task::Poll,
};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::logging;

/// Exit code after a second signal: the work was not finished.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Signals that no longer do to this process what they do by default.
#[derive(Debug)]
pub struct Signals(Vec<Signal>);

impl Signals {
    /// SIGTERM and SIGINT, which ask a process to end.
    ///
    /// # Errors
    /// When the system refuses to install a signal handler; as those below.
    pub fn end() -> io::Result<Self> {
        Self::install(&[SignalKind::terminate(), SignalKind::interrupt()])
    }

    /// SIGHUP, which asks a process to read its settings again. A process installs it before all else that it does with its
    /// settings, such as opening a store: only one that comes earlier, while these are read, ends it.
    ///
    /// # Errors
    /// As above.
    pub fn hangup() -> io::Result<Self> {
        Self::install(&[SignalKind::hangup()])
    }

    /// All three, for a process that ends with its terminal.
    ///
    /// # Errors
    /// As above.
    pub fn terminate_or_hangup() -> io::Result<Self> {
        let (mut all, hangup) = (Self::end()?, Self::hangup()?);
        all.0.extend(hangup.0);
        Ok(all)
    }

    /// None, which never comes.
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

    /// Waits for the next one.
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

/// Runs until the first SIGTERM or SIGINT, which cancels `drain`; a second one ends the process at once.
///
/// Returns only when `stopped` is cancelled, so run it beside the work.
///
/// # Errors
/// When the system refuses to install a signal handler.
pub fn drain_on_signals(
    drain: CancellationToken,
    stopped: CancellationToken,
) -> io::Result<impl Future<Output = ()> + Send> {
    let mut signals = Signals::end()?;
    Ok(async move {
        if stopped.run_until_cancelled(signals.next()).await.is_none() {
            return;
        }
        tracing::info!("draining; a second signal stops at once");
        drain.cancel();
        if stopped.run_until_cancelled(signals.next()).await.is_some() {
            tracing::warn!("second signal, stopping at once");
            logging::flush();
            std::process::exit(EXIT_INTERRUPTED.into());
        }
    })
}
