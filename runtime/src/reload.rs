//! Reloads files that change while a process runs: certificates, keys, tokens, limits, settings.
//!
//! At startup, invalid files are config errors. Then a task polls their contents every [`POLL_INTERVAL`]. Valid contents
//! replace the current value. Invalid contents change nothing and are reported once.
//!
//! Files that belong together, such as a certificate and its key, do not match while only one is replaced. So contents count as
//! invalid only if two polls find them unchanged. Invalid contents are parsed at every poll, because the error may be in
//! another file that they name.

use std::{
    fmt,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read as _},
    mem,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use metric_defs::MetricDef;
use parking_lot::{Mutex, RwLock};
use prometheus::{IntCounterVec, IntGaugeVec};
use tokio::{
    task::{JoinError, spawn_blocking},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    metrics::{Handle, Registry},
    signals::Signals,
};

/// How often files are polled.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of a file: far larger than any list of certificates, and harmless in memory.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// The byte-order mark that some editors write at the beginning of a UTF-8 file. It is not part of the content.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file with the flag that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// The flag, for messages.
    pub flag: &'static str,
    /// Path of the file.
    pub path: PathBuf,
}

impl NamedFile {
    /// The file named by a flag; `None` if the flag is empty.
    pub fn from_flag(flag: &'static str, path: &str) -> Option<Self> {
        let path = (!path.is_empty()).then(|| PathBuf::from(path));
        path.map(|path| Self { flag, path })
    }

    /// A config error about this file.
    pub fn error(&self, what: impl fmt::Display) -> String {
        format!("{}: {}: {what}", self.flag, self.path.display())
    }

    /// Reads the contents, without a byte-order mark.
    ///
    /// # Errors
    /// A config error, if the file cannot be read.
    pub fn read(&self) -> Result<Vec<u8>, String> {
        let read = || {
            // Opening a pipe would block until a writer opens it.
            if !fs::metadata(&self.path)?.is_file() {
                return Err(io::Error::other("is not a regular file"));
            }
            let mut bytes = Vec::new();
            let file = File::open(&self.path)?;
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let mut bytes = read().map_err(|error| self.error(error))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(self.error("is larger than 4 MiB"));
        }
        if bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(bytes)
    }
}

/// A value that is built from files.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// The value.
    type Value: Send + Sync + 'static;

    /// Name in metrics and the log: `tls`, `token`.
    const NAME: &'static str;

    /// The files, in a fixed order.
    fn files(&self) -> Vec<&NamedFile>;

    /// Builds the value from the contents of the files, in the same order.
    ///
    /// # Errors
    /// All errors, each with its flag; they contain no secrets.
    fn build(&self, contents: &[Vec<u8>]) -> Result<Self::Value, Vec<String>>;

    /// The kinds of certificates in the value, with the earliest expiry of each kind in seconds since the Unix epoch.
    fn expiries(_value: &Self::Value) -> Vec<(&'static str, i64)> {
        Vec::new()
    }
}

/// Holds the newest valid value of a [`Source`].
pub struct Reloader<S: Source> {
    source: S,
    current: RwLock<Arc<S::Value>>,
    detector: Mutex<ChangeDetector>,
}

impl<S: Source> fmt::Debug for Reloader<S> {
    /// Prints the names of the files, never their contents.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(formatter)
    }
}

/// Detects changes of file contents between polls.
#[derive(Debug)]
pub(crate) struct ChangeDetector {
    fingerprint: u64,
    /// Whether the contents were new and invalid at the last poll: the change may be incomplete.
    is_pending: bool,
    /// The error of the contents, if it was reported.
    error: Option<String>,
}

/// The result of a poll.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReloadEvent<T> {
    Unchanged,
    Replaced(T),
    Failed(String),
}

impl ChangeDetector {
    /// Starts with files whose current contents are active.
    pub(crate) fn new(contents: &impl Hash) -> Self {
        Self {
            fingerprint: fingerprint(contents),
            is_pending: false,
            error: None,
        }
    }

    /// Calls `read` if the contents are new or were invalid before, or if `is_forced`. Reports invalid contents immediately if
    /// `is_forced`, otherwise at the second poll.
    pub(crate) fn check<T>(
        &mut self,
        contents: &impl Hash,
        is_forced: bool,
        read: impl FnOnce() -> Result<T, String>,
    ) -> ReloadEvent<T> {
        let fingerprint = fingerprint(contents);
        let is_new = fingerprint != self.fingerprint;
        if !(is_new || is_forced || self.is_pending || self.error.is_some()) {
            return ReloadEvent::Unchanged;
        }
        self.fingerprint = fingerprint;
        let was_pending = mem::take(&mut self.is_pending);
        match read() {
            Ok(value) => {
                self.error = None;
                ReloadEvent::Replaced(value)
            }
            Err(error) if is_forced || (was_pending && !is_new) => {
                self.error = Some(error.clone());
                ReloadEvent::Failed(error)
            }
            Err(_) => {
                self.is_pending = is_new;
                ReloadEvent::Unchanged
            }
        }
    }
}

impl<S: Source> Reloader<S> {
    /// Loads the files.
    ///
    /// # Errors
    /// All errors of the files.
    pub fn load(source: S) -> Result<Self, Vec<String>> {
        let contents = read(&source);
        let detector = Mutex::new(ChangeDetector::new(&contents));
        let value = contents.and_then(|contents| source.build(&contents))?;
        Ok(Self {
            source,
            current: RwLock::new(Arc::new(value)),
            detector,
        })
    }

    /// The value for new connections and calls.
    pub fn current(&self) -> Arc<S::Value> {
        Arc::clone(&self.current.read())
    }

    /// The source that was loaded.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Why the current files are rejected and the previous value stays active.
    pub fn error(&self) -> Option<String> {
        self.detector.lock().error.clone()
    }

    /// A number that differs between different contents of the files, in every process. It is of the newest contents, even if they are
    /// rejected.
    pub fn fingerprint(&self) -> u64 {
        self.detector.lock().fingerprint
    }

    /// Keeps the value up to date until `stop`, and calls `apply` with each new one. A blocked file system does not delay `stop`.
    pub fn watch(
        self: Arc<Self>,
        metrics: Metrics,
        apply: impl Fn(Arc<S::Value>) + Send + 'static,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        metrics.set_expiries::<S>(&self.current());
        let reloads = |outcome| metrics.reloads.with_label_values(&[S::NAME, outcome]);
        let (done, failed) = (reloads("done"), reloads("failed"));
        let check = move |this: &mut Arc<Self>, _| match this.check() {
            ReloadEvent::Unchanged => {}
            ReloadEvent::Replaced(()) => {
                metrics.set_expiries::<S>(&this.current());
                apply(this.current());
                done.inc();
                tracing::info!(kind = S::NAME, "reloaded changed files");
            }
            ReloadEvent::Failed(error) => {
                failed.inc();
                tracing::warn!(
                    kind = S::NAME,
                    error,
                    "failed to reload changed files; keeping the versions already loaded"
                );
            }
        };
        let polling = poll(self, Signals::none(), check, stop);
        async {
            // Fails only on a panic or shutdown of the runtime.
            drop(polling.await);
        }
    }

    /// Reloads the files once without logging, for callers that do not [watch](Self::watch) them.
    pub fn reload_once(&self) {
        self.check();
    }

    fn check(&self) -> ReloadEvent<()> {
        let contents = read(&self.source);
        self.detector.lock().check(&contents, false, || {
            let built = match &contents {
                Ok(contents) => self.source.build(contents),
                Err(errors) => Err(errors.clone()),
            };
            let value = built.map_err(|errors| errors.join("; "))?;
            *self.current.write() = Arc::new(value);
            Ok(())
        })
    }
}

fn read(source: &impl Source) -> Result<Vec<Vec<u8>>, Vec<String>> {
    let files = source.files();
    let mut errors = Vec::new();
    let mut contents = Vec::with_capacity(files.len());
    for file in files {
        match file.read() {
            Ok(bytes) => contents.push(bytes),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        Ok(contents)
    } else {
        Err(errors)
    }
}

/// Calls `check` every [`POLL_INTERVAL`], and with `true` at each signal, until `stop`. Runs on a blocking thread; a blocked
/// file system does not delay `stop`.
///
/// # Errors
/// If `check` panics or the runtime shuts down.
pub(crate) async fn poll<T: Send + 'static>(
    mut state: T,
    mut signals: Signals,
    mut check: impl FnMut(&mut T, bool) + Send + 'static,
    stop: CancellationToken,
) -> Result<(), JoinError> {
    loop {
        let is_signal = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep(POLL_INTERVAL) => false,
            () = signals.next() => true,
        };
        let checking = spawn_blocking(move || {
            check(&mut state, is_signal);
            (state, check)
        });
        match stop.run_until_cancelled(checking).await {
            None => return Ok(()),
            Some(checked) => (state, check) = checked?,
        }
    }
}

/// Hash of the contents, so that no second copy of a key stays in memory.
fn fingerprint(contents: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    hasher.finish()
}

/// Metrics of the reloaded files of a process.
#[derive(Debug, Clone)]
pub struct Metrics {
    reloads: IntCounterVec,
    expiry: IntGaugeVec,
}

impl Metrics {
    /// Registers `<process>_file_reloads_total`, and `<process>_tls_certificate_expiry_unix_seconds` if the process has
    /// certificates.
    ///
    /// # Errors
    /// If a name is already registered.
    pub fn register(
        registry: &Registry,
        process: &str,
        has_certificates: bool,
    ) -> prometheus::Result<Self> {
        let reloads = MetricDef::counter(
            "file_reloads_total",
            "Reloads of changed files, by kind of file and outcome.",
        );
        let expiry = MetricDef::gauge(
            "tls_certificate_expiry_unix_seconds",
            "Earliest Unix time at which a certificate of this kind expires.",
        );
        let expiry = expiry.by(&["kind"]).of(process);
        let metrics = Self {
            reloads: registry.add(reloads.by(&["kind", "outcome"]).of(process))?,
            expiry: Handle::of(expiry)?,
        };
        if has_certificates {
            registry.register(expiry, Box::new(metrics.expiry.clone()))?;
        }
        Ok(metrics)
    }

    fn set_expiries<S: Source>(&self, value: &S::Value) {
        for (kind, expiry) in S::expiries(value) {
            self.expiry.with_label_values(&[kind]).set(expiry);
        }
    }
}

#[cfg(test)]
mod tests;
