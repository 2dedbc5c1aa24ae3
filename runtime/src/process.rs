//! Lifecycle of a server: settings, log, start, signals, drain, exit code.

use std::{ffi::OsString, marker::PhantomData, process::ExitCode};

use rustix::{fs::Mode, process::umask};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::{
    VERSION, logging, open_files,
    settings::{
        Loaded, Settings, info_commands,
        live_config::{LiveConfig, Metrics},
    },
    signals::{Signals, drain_on_signals},
};

/// Runs a server with these arguments, program name first. `serve` must serve until a shutdown signal, then drain. Returns the
/// exit code.
pub fn main<A: Settings>(
    arguments: impl IntoIterator<Item = OsString>,
    serve: impl AsyncFnOnce(A::Config, ProcessSignals<A>) -> anyhow::Result<()>,
) -> ExitCode {
    let settings = match info_commands::load_or_exit::<A>(arguments) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let common = A::common(&settings.config);
    // Only the owner may read new files: many contain user ids, and libraries create some of them.
    umask(Mode::RWXG | Mode::RWXO);
    let _flush = match logging::init(&common.log_filter, common.log_format) {
        Ok(flush) => flush,
        Err(error) => {
            eprintln!("error: failed to start the log thread: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let result = runtime.block_on(run(settings, serve));
            // Pending blocking I/O must not delay the exit.
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run<A: Settings>(
    settings: Loaded<A>,
    serve: impl AsyncFnOnce(A::Config, ProcessSignals<A>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let hangups = Signals::hangup()?;
    let (drain, stopped) = (CancellationToken::new(), CancellationToken::new());
    let draining = drain_on_signals(drain.clone(), stopped.clone())?;
    let signals = ProcessSignals {
        drain,
        hangups,
        live_config: LiveConfig::of(&settings),
        settings: PhantomData,
    };
    let open_files = open_files::raise()?;
    let changed = settings.effective.non_defaults();
    tracing::info!(
        version = VERSION,
        open_files,
        settings = changed,
        "starting"
    );
    let serving = async {
        let result = serve(settings.config, signals).await;
        stopped.cancel();
        result
    };
    let (result, ()) = tokio::join!(serving, draining);
    result
}

/// Signals to a running server: to reload its settings, and to drain.
#[derive(Debug)]
pub struct ProcessSignals<A> {
    /// Cancelled by a shutdown signal.
    pub drain: CancellationToken,
    hangups: Signals,
    live_config: LiveConfig,
    settings: PhantomData<fn() -> A>,
}

impl<A: Settings> ProcessSignals<A> {
    /// Reloads the settings, applying them with `apply`, until a shutdown signal.
    pub async fn reload_until_drain(
        self,
        metrics: Metrics,
        apply: impl Fn(&A::Config) + Send + 'static,
    ) {
        let stop = self.drain.clone();
        let reloading = self
            .live_config
            .run::<A>(self.hangups, metrics, apply, stop);
        tokio::join!(reloading, self.drain.cancelled());
    }
}
