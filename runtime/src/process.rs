//! The life of a server: settings, log, start, signals, drain, exit code.

use std::{ffi::OsString, marker::PhantomData, process::ExitCode};

use rustix::{fs::Mode, process::umask};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::{
    logging,
    settings::{
        Loaded, Settings, info_commands,
        live_config::{LiveConfig, Metrics},
    },
    signals::{Signals, drain_on_signals},
};

/// Runs a server that was started with these arguments, its own name first: `work` serves until it is told to drain, and then
/// drains. Returns what the process exits with.
pub fn main<A: Settings>(
    arguments: impl IntoIterator<Item = OsString>,
    work: impl AsyncFnOnce(A::Config, ProcessSignals<A>) -> anyhow::Result<()>,
) -> ExitCode {
    let settings = match info_commands::load_or_exit::<A>(arguments) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let common = A::common(&settings.config);
    // Users' ids are in many files, some of which a library makes: none is for others to read.
    umask(Mode::RWXG | Mode::RWXO);
    let _flush = match logging::init(&common.log_filter, common.log_format) {
        Ok(flush) => flush,
        Err(error) => {
            eprintln!("error: there is no thread for the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let result = runtime.block_on(run(settings, work));
            // What a disk or a store still does in the background must not hold up the end.
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
    work: impl AsyncFnOnce(A::Config, ProcessSignals<A>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let hangups = Signals::hangup()?;
    let (drain, stopped) = (CancellationToken::new(), CancellationToken::new());
    let signals = drain_on_signals(drain.clone(), stopped.clone())?;
    let orders = ProcessSignals {
        drain,
        hangups,
        reload: LiveConfig::of(&settings),
        settings: PhantomData,
    };
    let work = async {
        let worked = work(settings.config, orders).await;
        stopped.cancel();
        worked
    };
    let (worked, ()) = tokio::join!(work, signals);
    worked
}

/// What a server is told while it runs: to read its settings again, and to end.
#[derive(Debug)]
pub struct ProcessSignals<A> {
    /// Cancelled when it is to end.
    pub drain: CancellationToken,
    hangups: Signals,
    reload: LiveConfig,
    settings: PhantomData<fn() -> A>,
}

impl<A: Settings> ProcessSignals<A> {
    /// Reads the settings again and again, and has `apply` take them into use, until the server is to drain.
    pub async fn follow(self, metrics: Metrics, apply: impl Fn(&A::Config) + Send + 'static) {
        let stop = self.drain.clone();
        let reloading = self.reload.run::<A>(self.hangups, metrics, apply, stop);
        tokio::join!(reloading, self.drain.cancelled());
    }
}
