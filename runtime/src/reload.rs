//! Files that may be replaced while a process runs: certificates, keys, tokens, limits, settings.
//!
//! They are read at the start, where what is wrong with them is an error of the settings, and looked at again
//! every [`LOOK_INTERVAL`], by content. What is good replaces what was; what is broken changes nothing, and is
//! said once. A certificate and its key are two files, and for a moment of their replacement no pair: only what
//! was found broken at one look and is the same at the next counts as broken. It is then tried again at each look,
//! since the error may be in another file, which this one names.

use std::{
    fmt,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read as _},
    mem,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use metric_defs::MetricDef;
use prometheus::{IntCounterVec, IntGaugeVec};
use tokio::{
    task::{JoinError, spawn_blocking},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    metrics::{Handle, Registry},
    signals::Signals,
    unix_micros,
};

/// How often files are looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Largest file that is read: far beyond any list of certificates, far below what would hurt.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// How long before its end a certificate is said to expire soon.
const SOON_SECONDS: i64 = 7 * 24 * 3600;

/// A file, and the setting that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// The flag, for messages.
    pub flag: &'static str,
    /// Where the file is.
    pub path: PathBuf,
}

impl NamedFile {
    /// The file that a flag names; none when the flag is empty.
    #[must_use]
    pub fn from_flag(flag: &'static str, path: &str) -> Option<Self> {
        let path = (!path.is_empty()).then(|| PathBuf::from(path));
        path.map(|path| Self { flag, path })
    }

    /// What is wrong with this file, as an error of the settings.
    pub fn error(&self, what: impl fmt::Display) -> String {
        format!("{}: {}: {what}", self.flag, self.path.display())
    }

    /// What it holds.
    ///
    /// # Errors
    /// The error, when it cannot be read, now and again.
    pub(crate) fn read(&self) -> Result<Vec<u8>, String> {
        let read = || {
            // Opening a pipe waits for a writer.
            if !fs::metadata(&self.path)?.is_file() {
                return Err(io::Error::other("is not a regular file"));
            }
            let mut bytes = Vec::new();
            let file = File::open(&self.path)?;
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error| self.error(error))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(self.error("is larger than 4 MiB"));
        }
        Ok(bytes)
    }
}

/// Files, and what is made of them.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// What is made of them.
    type Value: Send + Sync + 'static;

    /// What they are, as a label and in the log: `tls`, `token`.
    const NAME: &'static str;

    /// The files, in an order of its own.
    fn files(&self) -> Vec<&NamedFile>;

    /// Makes the value of the files' contents, which are in the same order.
    ///
    /// # Errors
    /// All that is wrong, each with its flag, and nothing that is secret.
    fn build(&self, contents: &[Vec<u8>]) -> Result<Self::Value, Vec<String>>;

    /// Which certificates are in it, and when the first of each kind expires, in seconds since the Unix epoch.
    fn expiries(_value: &Self::Value) -> Vec<(&'static str, i64)> {
        Vec::new()
    }
}

/// The newest good value of a [`Source`].
pub struct Reloader<S: Source> {
    source: S,
    current: RwLock<Arc<S::Value>>,
    looks: Mutex<Looks>,
}

impl<S: Source> fmt::Debug for Reloader<S> {
    /// The files' names; never what is in them.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(formatter)
    }
}

/// What the looks at some files found: decides what is news.
#[derive(Debug)]
pub(crate) struct Looks {
    fingerprint: u64,
    /// Whether the contents are broken, and new: they may be half of a change.
    is_pending: bool,
    /// Why the contents are not in use, once that was said.
    refused: Option<String>,
}

/// What a look found that the one before did not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News<T> {
    Nothing,
    Replaced(T),
    Broken(String),
}

impl Looks {
    /// Of files with these contents, which are in use.
    pub(crate) fn new(contents: &impl Hash) -> Self {
        Self {
            fingerprint: fingerprint(contents),
            is_pending: false,
            refused: None,
        }
    }

    /// Looks at the contents, and reads them if they are new, were broken before, or it was asked for. What is broken is
    /// said at once when it was asked for.
    pub(crate) fn look<T>(
        &mut self,
        contents: &impl Hash,
        is_asked: bool,
        read: impl FnOnce() -> Result<T, String>,
    ) -> News<T> {
        let fingerprint = fingerprint(contents);
        let is_new = fingerprint != self.fingerprint;
        if !(is_new || is_asked || self.is_pending || self.refused.is_some()) {
            return News::Nothing;
        }
        self.fingerprint = fingerprint;
        let was_pending = mem::take(&mut self.is_pending);
        match read() {
            Ok(value) => {
                self.refused = None;
                News::Replaced(value)
            }
            Err(why) if is_asked || (was_pending && !is_new) => {
                self.refused = Some(why.clone());
                News::Broken(why)
            }
            Err(_) => {
                self.is_pending = is_new;
                News::Nothing
            }
        }
    }
}

impl<S: Source> Reloader<S> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// All that is wrong with them.
    pub fn load(source: S) -> Result<Self, Vec<String>> {
        let contents = read(&source);
        let looks = Mutex::new(Looks::new(&contents));
        let value = contents.and_then(|contents| source.build(&contents))?;
        Ok(Self {
            source,
            current: RwLock::new(Arc::new(value)),
            looks,
        })
    }

    /// What holds for a new connection or call.
    #[must_use]
    pub fn current(&self) -> Arc<S::Value> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// The source that was loaded.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Why the files as they are now are not in use, and those before still are.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.looks().refused.clone()
    }

    /// Keeps the value up to date until `stop`, which does not wait for a file system that hangs.
    pub fn watch(
        self: Arc<Self>,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        let mut said = Said::default();
        said.expiries::<S>(&self.current(), &metrics);
        let reloads = |outcome| metrics.reloads.with_label_values(&[S::NAME, outcome]);
        let (done, failed) = (reloads("done"), reloads("failed"));
        let look = move |this: &mut Arc<Self>, _| {
            match this.look() {
                News::Nothing => {}
                News::Replaced(()) => {
                    done.inc();
                    tracing::info!(kind = S::NAME, "reloaded changed files");
                }
                News::Broken(why) => {
                    failed.inc();
                    tracing::warn!(
                        kind = S::NAME,
                        why,
                        "failed to reload changed files; keeping the current ones"
                    );
                }
            }
            said.expiries::<S>(&this.current(), &metrics);
        };
        let looking = look_again(self, Signals::none(), look, stop);
        async {
            // Only a panic or the end of the runtime is an error here.
            drop(looking.await);
        }
    }

    /// Looks at the files once, and says nothing: for who does not [watch](Self::watch) them.
    pub fn reload_once(&self) {
        self.look();
    }

    fn look(&self) -> News<()> {
        let contents = read(&self.source);
        self.looks().look(&contents, false, || {
            let built = match &contents {
                Ok(contents) => self.source.build(contents),
                Err(errors) => Err(errors.clone()),
            };
            let value = built.map_err(|errors| errors.join("; "))?;
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            *current = Arc::new(value);
            Ok(())
        })
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Looks at files every [`LOOK_INTERVAL`], and at each of `signals`, which `look` is told, until `stop`. It does so where it
/// holds up nobody else; a file system that hangs is not waited for.
///
/// # Errors
/// When `look` panics, or the runtime ends.
pub(crate) async fn look_again<T: Send + 'static>(
    mut looked_at: T,
    mut signals: Signals,
    mut look: impl FnMut(&mut T, bool) + Send + 'static,
    stop: CancellationToken,
) -> Result<(), JoinError> {
    loop {
        let asked = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep(LOOK_INTERVAL) => false,
            () = signals.next() => true,
        };
        let looking = spawn_blocking(move || {
            look(&mut looked_at, asked);
            (looked_at, look)
        });
        match stop.run_until_cancelled(looking).await {
            None => return Ok(()),
            Some(looked) => (looked_at, look) = looked?,
        }
    }
}

/// Tells one content from another, so that no second copy of a key has to be kept.
fn fingerprint(contents: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    hasher.finish()
}

/// What is counted of all files of a process.
#[derive(Debug, Clone)]
pub struct Metrics {
    reloads: IntCounterVec,
    expiry: IntGaugeVec,
}

impl Metrics {
    /// Registers `<process>_credential_reloads_total`, and for a process that has certificates
    /// `<process>_tls_certificate_expiry_unix_seconds`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn register(
        registry: &Registry,
        process: &str,
        has_certificates: bool,
    ) -> prometheus::Result<Self> {
        let reloads = MetricDef::counter(
            "credential_reloads_total",
            "Reloads of changed files, by kind of file and outcome.",
        );
        let expiry = MetricDef::gauge(
            "tls_certificate_expiry_unix_seconds",
            "Unix time in seconds at which the first certificate of each kind expires.",
        );
        let metrics = Self {
            reloads: registry.add(reloads.by(&["kind", "outcome"]).of(process))?,
            expiry: Handle::of(expiry.by(&["kind"]).of(process))?,
        };
        if has_certificates {
            registry.register(Box::new(metrics.expiry.clone()))?;
        }
        Ok(metrics)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Validity {
    Good,
    Soon,
    Expired,
}

impl Validity {
    fn at(now: i64, expiry: i64) -> Self {
        if expiry <= now {
            Self::Expired
        } else if expiry - now <= SOON_SECONDS {
            Self::Soon
        } else {
            Self::Good
        }
    }
}

/// What the log says last of each kind of certificate.
#[derive(Default)]
struct Said(Vec<(&'static str, Validity)>);

impl Said {
    fn expiries<S: Source>(&mut self, value: &S::Value, metrics: &Metrics) {
        let now = i64::try_from(unix_micros() / 1_000_000).unwrap_or(i64::MAX);
        let found = S::expiries(value).into_iter().map(|(kind, expiry)| {
            metrics.expiry.with_label_values(&[kind]).set(expiry);
            let validity = Validity::at(now, expiry);
            if !self.0.contains(&(kind, validity)) {
                let days = (expiry - now) / (24 * 3600);
                match validity {
                    Validity::Good => {}
                    Validity::Soon => tracing::warn!(kind, days, "certificate expires soon"),
                    Validity::Expired => {
                        tracing::error!(
                            kind,
                            "certificate has expired: others will refuse connections"
                        );
                    }
                }
            }
            (kind, validity)
        });
        let found = found.collect();
        self.0 = found;
    }
}

#[cfg(test)]
mod tests;
