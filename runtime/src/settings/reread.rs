//! New settings for a running process: read again when their file changes and on SIGHUP.
//!
//! Flags and environment still win over the file. What [may change](Change) does, at once; of the rest the log says that
//! it needs a restart, and lists exactly the settings that differ from those the process runs with. A file with any
//! mistake changes nothing and is said once. As with certificates, a file may be found half written: what is broken at one
//! look is read again at the next before it is said; a signal is an order, and what is wrong then is said at once. What
//! is broken is tried again at each look, since the mistake may be in another file, which the settings name. What is no
//! regular file, such as a pipe, can be read once only: a signal then changes nothing, and that is said.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use prometheus::{IntCounterVec, Opts};
use tokio_util::sync::CancellationToken;

use super::{Change, Effective, Loaded, Setting, Settings, file, load};
use crate::{
    logging,
    metrics::Registry,
    reload::{self, fingerprint},
    signals::Signals,
};

/// Keeps the settings of one process up to date.
#[derive(Debug)]
pub struct ConfigReload {
    arguments: Vec<OsString>,
    file: Option<PathBuf>,
    /// What the process runs with.
    running: Effective,
    fingerprint: u64,
    broken: Broken,
}

/// What is wrong with the newest settings.
#[derive(Debug, PartialEq, Eq)]
enum Broken {
    Not,
    /// It may be half of a change.
    Perhaps,
    Said,
}

/// What an attempt to take new settings came to.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Nothing,
    /// Flags of what changed, and of what needs a restart.
    Renewed {
        changed: Vec<String>,
        needs_restart: Vec<String>,
    },
    Broken(String),
}

/// `<process>_config_reloads_total` by outcome.
#[derive(Debug, Clone)]
pub struct Metrics {
    reloads: IntCounterVec,
}

impl Metrics {
    /// Registers the counter.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn register(registry: &Registry, process: &str) -> prometheus::Result<Self> {
        let reloads = IntCounterVec::new(
            Opts::new(
                format!("{process}_config_reloads_total"),
                "Times that settings were read again: all that differs is in use, some needs a restart, or a mistake \
                 left everything as it was.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(reloads.clone()))?;
        for outcome in ["done", "needs_restart", "failed"] {
            reloads.with_label_values(&[outcome]);
        }
        Ok(Self { reloads })
    }

    fn count(&self, outcome: &str) {
        self.reloads.with_label_values(&[outcome]).inc();
    }
}

impl ConfigReload {
    /// For a process that runs with these settings.
    #[must_use]
    pub fn of<A: Settings>(loaded: &Loaded<A>) -> Self {
        let file = loaded.file.clone();
        Self {
            arguments: loaded.arguments.clone(),
            fingerprint: fingerprint(&contents(file.as_deref())),
            file,
            running: loaded.effective.clone(),
            broken: Broken::Not,
        }
    }

    /// Reads the settings of `A` again and again until `stop`; `apply` takes those of them that are marked
    /// [`Change::Reloaded`] into use. The log filter is applied here: it follows its setting when that changes, and on
    /// a signal goes back to it from whatever the admin port was told.
    pub async fn run<A: Settings>(
        self,
        hangups: Signals,
        metrics: Metrics,
        apply: impl Fn(&A::Config) + Send + 'static,
        stop: CancellationToken,
    ) {
        let failed = metrics.clone();
        let look = move |reload: &mut Self, asked| {
            let news = reload.look::<A>(asked, &apply);
            say(&news, &metrics);
        };
        // A panic, or the end of the runtime.
        if let Err(error) = reload::look_again(self, hangups, look, stop).await {
            failed.count("failed");
            tracing::error!(
                %error,
                "reading the settings again went wrong: a change needs a restart from now on"
            );
        }
    }

    fn look<A: Settings>(&mut self, asked: bool, apply: impl Fn(&A::Config)) -> News {
        let fingerprint = fingerprint(&contents(self.file.as_deref()));
        let is_new = asked || fingerprint != self.fingerprint;
        if !is_new && self.broken == Broken::Not {
            return News::Nothing;
        }
        self.fingerprint = fingerprint;
        match self.read::<A>() {
            Ok(loaded) => {
                self.broken = Broken::Not;
                apply(&loaded.config);
                if asked {
                    logging::set_filter(&A::common(&loaded.config).log_filter);
                }
                self.renewed(&loaded)
            }
            Err(_) if is_new && !asked => {
                self.broken = Broken::Perhaps;
                News::Nothing
            }
            Err(_) if !asked && self.broken == Broken::Said => News::Nothing,
            Err(why) => {
                self.broken = Broken::Said;
                News::Broken(why)
            }
        }
    }

    /// The newest settings, or why they cannot be used.
    fn read<A: Settings>(&self) -> Result<Loaded<A>, String> {
        if let Some(file) = self.file.as_deref().filter(|file| is_read_once(file)) {
            let file = file.display();
            return Err(format!(
                "--config: {file} is not a regular file, and cannot be read again"
            ));
        }
        load::<A>(self.arguments.iter().cloned()).map_err(|error| one_line(&error.to_string()))
    }

    fn renewed<A: Settings>(&mut self, loaded: &Loaded<A>) -> News {
        let is_reloaded = |setting: &&Setting| setting.change == Change::Reloaded;
        let differ = loaded.effective.differences(&self.running);
        let (changed, others): (Vec<_>, Vec<_>) = differ.into_iter().partition(is_reloaded);
        for setting in &changed {
            self.running.take(setting);
            if setting.id == "log_filter" {
                logging::set_filter(&A::common(&loaded.config).log_filter);
            }
        }
        let flags = |settings: Vec<&Setting>| settings.into_iter().map(Setting::flag).collect();
        News::Renewed {
            changed: flags(changed),
            needs_restart: flags(others),
        }
    }
}

fn say(news: &News, metrics: &Metrics) {
    match news {
        News::Nothing => {}
        News::Renewed {
            changed,
            needs_restart,
        } if needs_restart.is_empty() => {
            metrics.count("done");
            tracing::info!(
                changed = changed.join(" "),
                "settings were read again and are in use"
            );
        }
        News::Renewed {
            changed,
            needs_restart,
        } => {
            metrics.count("needs_restart");
            tracing::warn!(
                changed = changed.join(" "),
                needs_restart = needs_restart.join(" "),
                "settings were read again, and some need a restart"
            );
        }
        News::Broken(why) => {
            metrics.count("failed");
            tracing::warn!(
                why,
                "new settings cannot be used: the ones before stay in use"
            );
        }
    }
}

/// None of every file that cannot be read, or not again.
fn contents(file: Option<&Path>) -> Option<String> {
    let file = file.filter(|file| !is_read_once(file));
    file.and_then(|file| file::read(file).ok())
}

/// Whether this is something like a pipe: empty when it is read again, or never at its end.
fn is_read_once(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| !found.is_file())
}

/// A list of mistakes as one line of the log.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<_> = lines
        .filter(|line| !line.ends_with("wrong settings:"))
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests;
