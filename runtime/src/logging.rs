//! The log: one line for each event on standard error, as text or as JSON, through a filter that may change while the
//! process runs. Nobody waits for its reader: see `logging/lines.rs`. It also has warnings and errors of libraries that use
//! the `log` crate.

mod lines;

use std::{
    fmt, io,
    str::FromStr,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tracing_log::{LogTracer, log::LevelFilter};
use tracing_subscriber::{EnvFilter, Layer as _, Registry, layer::SubscriberExt as _, reload};

use self::lines::Lines;

/// Longest filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 1024;

/// The variable that every Rust program takes for its filter.
pub const FILTER_VARIABLE: &str = "RUST_LOG";

/// The filter of this process's log.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Mutex<Filter>,
    lines: Lines,
}

/// How long the end of a process may wait for its last lines to be read.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Waits for the last lines of a process when it is dropped, but not for a reader that hangs.
#[derive(Debug)]
pub struct Flush(());

impl Drop for Flush {
    fn drop(&mut self) {
        flush();
    }
}

/// Waits until what was logged is written, but not for a reader that hangs. Blocks the thread.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.lines.flush(FLUSH_TIMEOUT);
    }
}

/// What is logged: levels, for all or by part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(String);

impl Default for Filter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Filter {
    type Err = String;

    /// Reads what `RUST_LOG` may hold. A word that stands alone must be a level: taken for a part of the program, a
    /// misspelt level would silence everything else.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("a filter is a level, or levels by part: info,consumer=debug".to_owned());
        }
        if text.len() > FILTER_BYTES_MAX {
            return Err(format!("is longer than {FILTER_BYTES_MAX} bytes"));
        }
        // Spans' fields may hold commas; this program has none.
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
                    "{word:?} is not a level (error, warn, info, debug, trace, off); a part is written with one: \
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
        // h2 warns of what peers send, as often as they send it. A filter that names it has its way.
        EnvFilter::new(format!("h2=error,{}", self.0))
    }
}

/// How a line is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is neither text nor json")),
        }
    }
}

/// The filter of a process that names none: that of [`FILTER_VARIABLE`], or `info`.
///
/// # Errors
/// In words, when the variable holds no filter.
pub fn default_filter() -> Result<Filter, String> {
    match std::env::var(FILTER_VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse(),
        _ => Ok(Filter::default()),
    }
}

/// Sends log lines to standard error, the last of them when what this returns is dropped.
///
/// Call it once, from `main`; a second call does nothing.
///
/// # Errors
/// When the system starts no thread.
pub fn init(filter: &Filter, format: Format) -> io::Result<Flush> {
    let (layer, handle) = reload::Layer::new(filter.layer());
    let lines = Lines::start(io::stderr())?;
    let writer = lines.clone();
    let written = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
    let written = match format {
        Format::Text => written
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            .boxed(),
        Format::Json => written.json().flatten_event(true).boxed(),
    };
    let log = tracing_subscriber::registry().with(layer).with(written);
    // Not `try_init`, which takes in everything that libraries log.
    if tracing::subscriber::set_global_default(log).is_err() {
        tracing::debug!("logging was set up before");
        return Ok(Flush(()));
    }
    // rustls warns of what peers send: anyone who reaches a port could fill the log, and each port counts that anyway.
    let libraries = LogTracer::builder().ignore_crate("rustls");
    let libraries = libraries.with_max_level(LevelFilter::Warn).init();
    if let Err(error) = libraries {
        tracing::debug!(%error, "libraries log elsewhere");
    }
    let current = Mutex::new(filter.clone());
    LOG.get_or_init(|| Log {
        handle,
        current,
        lines,
    });
    Ok(Flush(()))
}

/// Log lines that were dropped so far because standard error was not read.
#[must_use]
pub fn dropped_lines() -> u64 {
    LOG.get().map_or(0, |log| log.lines.dropped())
}

/// The filter that holds now; `None` when this process has set up no log.
#[must_use]
pub fn filter() -> Option<Filter> {
    let current = LOG.get()?.current.lock();
    Some(current.unwrap_or_else(PoisonError::into_inner).clone())
}

/// Changes what is logged from now on. False when this process has set up no log.
pub fn set_filter(filter: &Filter) -> bool {
    let Some(log) = LOG.get() else {
        return false;
    };
    let mut current = log.current.lock().unwrap_or_else(PoisonError::into_inner);
    if log.handle.reload(filter.layer()).is_err() {
        return false;
    }
    current.clone_from(filter);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a process of its own, which has only one log.
    #[test]
    fn warnings_of_libraries_are_logged_but_not_their_noise_nor_what_peers_cause() {
        use tracing_log::log::{error, info, warn};
        const IS_CHILD: &str = "COOKIESYNC_TEST_LIBRARIES";
        if std::env::var_os(IS_CHILD).is_some() {
            let _flush = init(&Filter::default(), Format::Text).unwrap();
            error!(target: "fjall::flush", "Flush error: 28");
            warn!(target: "lsm_tree::tree", "slow");
            info!(target: "fjall::db", "noise");
            warn!(target: "rustls::common_state", "a peer");
            return;
        }
        let name = "warnings_of_libraries_are_logged_but_not_their_noise_nor_what_peers_cause";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("logging::tests::{name}")])
            .arg("--nocapture")
            .env(IS_CHILD, "1")
            .output()
            .unwrap();
        let lines = String::from_utf8_lossy(&child.stderr);
        let words: Vec<_> = lines
            .lines()
            .filter_map(|line| line.split_once("Z "))
            .collect();
        let words: Vec<_> = words.iter().map(|(_, words)| words.trim()).collect();
        let expected = [
            "ERROR fjall::flush: Flush error: 28",
            "WARN lsm_tree::tree: slow",
        ];
        assert_eq!(words, expected, "{lines}");
    }

    #[track_caller]
    fn check_wrong(text: &str, said: &str) {
        let error = text.parse::<Filter>().unwrap_err();
        assert!(error.contains(said), "{said} is missing in {error}");
    }

    #[test]
    fn filter_is_a_level_or_levels_by_part() {
        for good in [
            "info",
            "off",
            "WARN",
            "info,consumer=debug",
            "consumer::sink=trace",
            " debug\n",
        ] {
            let filter: Filter = good.parse().unwrap();
            assert_eq!(filter.to_string(), good.trim());
        }
    }

    #[test]
    fn misspelt_level_and_what_is_no_filter_are_refused() {
        check_wrong("", "a filter is a level");
        check_wrong("inof", "\"inof\" is not a level");
        check_wrong("consumer", "consumer=debug");
        check_wrong("consumer=loud", "is not a filter");
        check_wrong(&"x".repeat(FILTER_BYTES_MAX + 1), "longer than");
    }
}
