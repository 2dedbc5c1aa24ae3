//! New settings for a running process: read again when their file changes and on SIGHUP.
//!
//! Flags and environment still win over the file. What [may change](Change) does, at once; of the rest the log says that
//! it needs a restart, and lists exactly the settings that differ from those the process runs with. A file with any
//! error changes nothing, is logged once, as [other files](crate::reload) are, and after that shown by a metric and at
//! `/readyz`. A signal is an order, and what is wrong then is logged at once.

use std::ffi::OsString;

use metric_defs::MetricDef;
use prometheus::{IntCounterVec, IntGauge};
use tokio_util::sync::CancellationToken;

use super::{Effective, Loaded, ReloadMode, Setting, Settings, load};
use crate::{
    logging,
    metrics::Registry,
    ready::Component,
    reload::{self, Looks, NamedFile, News},
    signals::Signals,
};

/// The outcome of a reload that changed nothing.
const FAILED: &str = "failed";

/// Keeps the settings of one process up to date.
#[derive(Debug)]
pub struct LiveConfig {
    arguments: Vec<OsString>,
    file: Option<NamedFile>,
    /// What the process runs with.
    running: Effective,
    looks: Looks,
}

/// Flags of what changed, and of what needs a restart.
#[derive(Debug, PartialEq, Eq)]
struct Renewed {
    changed: Vec<String>,
    needs_restart: Vec<String>,
}

/// Shows how often settings were reloaded, and whether the newest are in use.
#[derive(Debug, Clone)]
pub struct Metrics {
    reloads: IntCounterVec,
    rejected: IntGauge,
}

impl Metrics {
    /// Registers `<process>_config_reloads_total` by outcome, and `<process>_config_rejected`.
    ///
    /// # Errors
    /// When a metric of one of these names is registered already.
    pub fn register(registry: &Registry, process: &str) -> prometheus::Result<Self> {
        let reloads = MetricDef::counter(
            "config_reloads_total",
            "Configuration reloads by outcome: applied, restart needed for some changes, or rejected because of an error, \
             which changes nothing.",
        );
        let rejected = MetricDef::gauge(
            "config_rejected",
            "1 while the newest settings are invalid and the previous ones stay in use.",
        );
        let reloads: IntCounterVec = registry.add(reloads.by(&["outcome"]).of(process))?;
        let rejected = registry.add(rejected.of(process))?;
        for outcome in ["done", "needs_restart", FAILED] {
            reloads.with_label_values(&[outcome]);
        }
        Ok(Self { reloads, rejected })
    }

    /// Whether the newest settings are in use, as a part that is always ready.
    #[must_use]
    pub fn component(&self) -> Component {
        let state = match self.rejected.get() {
            0 => "in use",
            _ => "rejected: the previous settings stay in use, and the log says why",
        };
        Component::new("settings", Ok(state.to_owned()))
    }

    fn count(&self, outcome: &str) {
        self.reloads.with_label_values(&[outcome]).inc();
        self.rejected.set(i64::from(outcome == FAILED));
    }
}

impl LiveConfig {
    /// For a process that runs with these settings.
    #[must_use]
    pub fn of<A: Settings>(loaded: &Loaded<A>) -> Self {
        let file = loaded.file.clone();
        Self {
            arguments: loaded.arguments.clone(),
            looks: Looks::new(&contents(file.as_ref())),
            file,
            running: loaded.effective.clone(),
        }
    }

    /// Reads the settings of `A` again and again until `stop`; `apply` takes those of them that are marked
    /// [`ReloadMode::Live`] into use. The log filter is applied here: it follows its setting when that changes, and on
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
            failed.count(FAILED);
            tracing::error!(
                %error,
                "failed to reload the configuration: a change needs a restart from now on"
            );
        }
    }

    fn look<A: Settings>(&mut self, asked: bool, apply: impl Fn(&A::Config)) -> News<Renewed> {
        let contents = contents(self.file.as_ref());
        let news = self.looks.look(&contents, asked, || {
            load::<A>(self.arguments.iter().cloned()).map_err(|error| one_line(&error.to_string()))
        });
        match news {
            News::Replaced(loaded) => {
                apply(&loaded.config);
                if asked {
                    logging::set_filter(&A::common(&loaded.config).log_filter);
                }
                News::Replaced(self.renewed(&loaded))
            }
            News::Nothing => News::Nothing,
            News::Broken(why) => News::Broken(why),
        }
    }

    fn renewed<A: Settings>(&mut self, loaded: &Loaded<A>) -> Renewed {
        let is_reloaded = |setting: &&Setting| setting.change == ReloadMode::Live;
        let differ = loaded.effective.differences(&self.running);
        let (changed, others): (Vec<_>, Vec<_>) = differ.into_iter().partition(is_reloaded);
        for setting in &changed {
            self.running.take(setting);
            if setting.id == "log_filter" {
                logging::set_filter(&A::common(&loaded.config).log_filter);
            }
        }
        let flags = |settings: Vec<&Setting>| settings.into_iter().map(Setting::flag).collect();
        Renewed {
            changed: flags(changed),
            needs_restart: flags(others),
        }
    }
}

fn say(news: &News<Renewed>, metrics: &Metrics) {
    match news {
        News::Nothing => {}
        News::Replaced(renewed) => {
            let changed = renewed.changed.join(" ");
            if renewed.needs_restart.is_empty() {
                metrics.count("done");
                tracing::info!(changed, "configuration reloaded");
            } else {
                metrics.count("needs_restart");
                let needs_restart = renewed.needs_restart.join(" ");
                tracing::warn!(
                    changed,
                    needs_restart,
                    "configuration reloaded; some changes require a restart"
                );
            }
        }
        News::Broken(why) => {
            metrics.count(FAILED);
            tracing::warn!(
                why,
                "configuration reload failed; keeping the current settings"
            );
        }
    }
}

/// None of a file that cannot be read.
fn contents(file: Option<&NamedFile>) -> Option<Vec<u8>> {
    file.and_then(|file| file.read().ok())
}

/// A list of errors as one line of the log.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<_> = lines
        .filter(|line| !line.ends_with("wrong settings:"))
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests;
