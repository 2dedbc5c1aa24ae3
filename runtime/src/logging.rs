//! The log: one line per event on standard error, as text or JSON, with a filter that can change at runtime.
//!
//! Logging never blocks: see `logging/lines.rs`. Warnings and errors of libraries that use the `log` crate are included.

mod lines;

use std::{fmt, io, str::FromStr, sync::OnceLock, time::Duration};

use parking_lot::Mutex;
use tracing_log::{LogTracer, log::LevelFilter};
use tracing_subscriber::{EnvFilter, Layer as _, Registry, layer::SubscriberExt as _, reload};

use self::lines::Lines;

/// Maximum bytes of a filter from the admin port.
pub const FILTER_BYTES_MAX: usize = 1024;

/// The log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    handle: reload::Handle<EnvFilter, Registry>,
    filters: Mutex<Filters>,
    lines: Lines,
}

struct Filters {
    current: Filter,
    /// The filter that the current one has replaced for some time.
    replaced: Option<Filter>,
}

/// Maximum time to flush the log at exit.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Flushes the log on drop, with a timeout.
#[derive(Debug)]
pub struct Flush(());

impl Drop for Flush {
    fn drop(&mut self) {
        flush();
    }
}

/// Flushes the log, with a timeout in case standard error is not read. Blocks the thread.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.lines.flush(FLUSH_TIMEOUT);
    }
}

/// A log filter: a level, or levels per module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(String);

impl fmt::Display for Filter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Filter {
    type Err = String;

    /// Parses the syntax of `EnvFilter`. A word without `=` must be a level: a misspelt level would count as a module name
    /// and silence everything else.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err(
                "a filter is a level, or levels per module: info,consumer=debug".to_owned(),
            );
        }
        // Span filters in brackets may contain commas.
        let words = text
            .split(',')
            .filter(|word| !text.contains('[') && !word.contains('='));
        for word in words {
            if word
                .trim()
                .parse::<tracing_subscriber::filter::LevelFilter>()
                .is_err()
            {
                return Err(format!(
                    "{word:?} is not a level (error, warn, info, debug, trace, off); for a module, write \
                     {word}=debug"
                ));
            }
        }
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!("{text:?} is not a filter ({error})")),
        }
    }
}

impl Filter {
    fn layer(&self) -> EnvFilter {
        // h2 warns about every invalid frame of a peer. async_nats logs passwords at debug, each event at info, and an error for each
        // attempt to connect with wrong credentials, although its callers report them. A filter can override this.
        let libraries = "h2=error,async_nats=warn,async_nats::connector=off";
        EnvFilter::new(format!("{libraries},{}", self.0))
    }
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging to standard error. Dropping the result flushes the log.
///
/// Call it once, from `main`; a second call does nothing.
///
/// # Errors
/// If the log thread cannot be started.
pub fn init(filter: &Filter, format: Format) -> io::Result<Flush> {
    let (layer, handle) = reload::Layer::new(filter.layer());
    let lines = Lines::start(io::stderr())?;
    let writer = lines.clone();
    let output = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
    let output = match format {
        Format::Text => output
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            .boxed(),
        Format::Json => output.json().flatten_event(true).boxed(),
    };
    let log = tracing_subscriber::registry().with(layer).with(output);
    // `try_init` would include all levels of libraries.
    if tracing::subscriber::set_global_default(log).is_err() {
        tracing::debug!("logging is already initialized");
        return Ok(Flush(()));
    }
    // rustls logs warnings about peers, so any client could fill the log. Ports count these errors.
    let libraries = LogTracer::builder().ignore_crate("rustls");
    let libraries = libraries.with_max_level(LevelFilter::Warn).init();
    if let Err(error) = libraries {
        tracing::debug!(%error, "library messages are not logged: another logger is set");
    }
    let filters = Mutex::new(Filters {
        current: filter.clone(),
        replaced: None,
    });
    LOG.get_or_init(|| Log {
        handle,
        filters,
        lines,
    });
    Ok(Flush(()))
}

/// Number of log lines dropped so far because standard error was not read.
pub fn dropped_lines() -> u64 {
    LOG.get().map_or(0, |log| log.lines.dropped())
}

/// The current filter; `off` if logging is not initialized.
pub fn filter() -> Filter {
    let filter = LOG.get().map(|log| log.filters.lock().current.clone());
    filter.unwrap_or_else(|| Filter("off".to_owned()))
}

/// Replaces the filter, if logging is initialized. A temporary filter is not restored any more.
pub fn set_filter(filter: &Filter) {
    if let Some(log) = LOG.get() {
        log.replace(&mut log.filters.lock(), filter.clone(), None);
    }
}

/// Replaces the filter until [`restore_filter`], if logging is initialized.
pub fn set_temporary_filter(filter: &Filter) {
    if let Some(log) = LOG.get() {
        let mut filters = log.filters.lock();
        let replaced = filters.replaced.take();
        let replaced = replaced.unwrap_or_else(|| filters.current.clone());
        log.replace(&mut filters, filter.clone(), Some(replaced));
    }
}

/// Restores the filter that a temporary one has replaced; returns it, or `None` if no temporary filter is active.
pub fn restore_filter() -> Option<Filter> {
    let log = LOG.get()?;
    let mut filters = log.filters.lock();
    let replaced = filters.replaced.take()?;
    log.replace(&mut filters, replaced.clone(), None);
    Some(replaced)
}

impl Log {
    fn replace(&self, filters: &mut Filters, current: Filter, replaced: Option<Filter>) {
        drop(self.handle.reload(current.layer()));
        *filters = Filters { current, replaced };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a separate process, because a process has one log.
    #[test]
    fn library_warnings_are_logged_except_those_caused_by_peers() {
        use tracing_log::log::{error, info, warn};
        const IS_CHILD: &str = "COOKIESYNC_TEST_LIBRARIES";
        if std::env::var_os(IS_CHILD).is_some() {
            let _flush = init(&"info".parse().unwrap(), Format::Text).unwrap();
            error!(target: "fjall::flush", "Flush error: 28");
            warn!(target: "lsm_tree::tree", "slow");
            info!(target: "fjall::db", "noise");
            warn!(target: "rustls::common_state", "a peer");
            return;
        }
        let name = "library_warnings_are_logged_except_those_caused_by_peers";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("logging::tests::{name}")])
            .arg("--nocapture")
            .env(IS_CHILD, "1")
            .output()
            .unwrap();
        let lines = String::from_utf8_lossy(&child.stderr);
        let messages: Vec<_> = lines
            .lines()
            .filter_map(|line| line.split_once("Z "))
            .collect();
        let messages: Vec<_> = messages.iter().map(|(_, it)| it.trim()).collect();
        let expected = [
            "ERROR fjall::flush: Flush error: 28",
            "WARN lsm_tree::tree: slow",
        ];
        assert_eq!(messages, expected, "{lines}");
    }

    #[track_caller]
    fn check_rejected(text: &str, expected: &str) {
        let error = text.parse::<Filter>().unwrap_err();
        assert!(error.contains(expected), "{expected} is missing in {error}");
    }

    #[test]
    fn filter_is_a_level_or_levels_per_module() {
        for valid in [
            "info",
            "off",
            "WARN",
            "info,consumer=debug",
            "consumer::sink=trace",
            " debug\n",
        ] {
            let filter: Filter = valid.parse().unwrap();
            assert_eq!(filter.to_string(), valid.trim());
        }
    }

    #[test]
    fn misspelt_level_and_invalid_filter_are_rejected() {
        check_rejected("", "a filter is a level");
        check_rejected("inof", "\"inof\" is not a level");
        check_rejected("consumer", "consumer=debug");
        check_rejected("consumer=loud", "is not a filter");
    }
}
