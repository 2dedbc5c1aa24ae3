//! Reloads the settings of a running process when their file changes and on SIGHUP.
//!
//! Flags and environment still override the file. Settings of [`ReloadMode::Live`] change immediately. The log lists other
//! changed settings, which need a restart. An invalid file changes nothing. Its errors are logged once, and at each SIGHUP.
//! Until the file is corrected, a metric and `/readyz` report it.

use std::{collections::BTreeMap, ffi::OsString, sync::Arc};

use metric_defs::MetricDef;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge};
use tokio_util::sync::CancellationToken;

use super::{EffectiveSettings, Loaded, ReloadMode, Setting, Settings, load};
use crate::{
    logging,
    metrics::Registry,
    ready::Component,
    reload::{self, ChangeDetector, NamedFile, ReloadEvent},
    signals::Signals,
};

/// Outcome of a failed reload, after which the settings are unchanged.
const FAILED: &str = "failed";

/// Keeps the settings of a process up to date.
#[derive(Debug)]
pub struct LiveConfig {
    arguments: Vec<OsString>,
    file: Option<NamedFile>,
    /// The active settings.
    running: EffectiveSettings,
    detector: ChangeDetector,
}

/// Flags that changed, and flags whose change needs a restart.
#[derive(Debug, PartialEq, Eq)]
struct ConfigChange {
    changed: Vec<String>,
    needs_restart: Vec<String>,
}

/// Metrics of configuration reloads.
#[derive(Debug, Clone)]
pub struct Metrics {
    reloads: IntCounterVec,
    rejected: IntGauge,
    waiting: IntGauge,
    /// The flags counted by `waiting`.
    needs_restart: Arc<Mutex<Vec<String>>>,
    /// The active settings.
    running: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Metrics {
    /// Registers `<process>_config_reloads_total` by outcome, `<process>_config_rejected`, and
    /// `<process>_config_restart_settings`.
    ///
    /// # Errors
    /// If a name is already registered.
    pub fn register(registry: &Registry, process: &str) -> prometheus::Result<Self> {
        let reloads = MetricDef::counter(
            "config_reloads_total",
            "Configuration reloads by outcome: applied (done), applied in part (needs_restart), or rejected because of an \
             error (failed).",
        );
        let rejected = MetricDef::gauge(
            "config_rejected",
            "1 while the newest configuration is rejected because it is invalid.",
        );
        let waiting = MetricDef::gauge(
            "config_restart_settings",
            "Number of changed settings that take effect only after a restart.",
        );
        let reloads: IntCounterVec = registry.add(reloads.by(&["outcome"]).of(process))?;
        let rejected = registry.add(rejected.of(process))?;
        for outcome in ["done", "needs_restart", FAILED] {
            reloads.with_label_values(&[outcome]);
        }
        Ok(Self {
            reloads,
            rejected,
            waiting: registry.add(waiting.of(process))?,
            needs_restart: Arc::default(),
            running: Arc::default(),
        })
    }

    /// Whether the newest settings are active, and which need a restart, as a component that is always ready.
    pub fn component(&self) -> Component {
        let state = match self.rejected.get() {
            0 => "active",
            _ => "rejected; the previous settings stay active; see the log for the errors",
        };
        let state = match self.needs_restart.lock().join(" ") {
            flags if flags.is_empty() => state.to_owned(),
            flags => format!("{state}; a restart is needed to apply {flags}"),
        };
        Component::new("settings", Ok(state))
    }

    /// The values of the active settings by key, without secrets; empty until the settings are watched.
    pub fn running(&self) -> BTreeMap<String, String> {
        self.running.lock().clone()
    }

    fn count(&self, outcome: &str) {
        self.reloads.with_label_values(&[outcome]).inc();
        self.rejected.set(i64::from(outcome == FAILED));
    }
}

impl LiveConfig {
    /// Watches the settings of a process that runs with `loaded`.
    pub fn of<A: Settings>(loaded: &Loaded<A>) -> Self {
        let file = loaded.file.clone();
        Self {
            arguments: loaded.arguments.clone(),
            detector: ChangeDetector::new(&contents(file.as_ref())),
            file,
            running: loaded.effective.clone(),
        }
    }

    /// Polls the settings of `A` until `stop`. `apply` must apply those of [`ReloadMode::Live`], except the log filter,
    /// which this function applies.
    pub async fn run<A: Settings>(
        self,
        hangups: Signals,
        metrics: Metrics,
        apply: impl Fn(&A::Config) + Send + 'static,
        stop: CancellationToken,
    ) {
        let failed = metrics.clone();
        *metrics.running.lock() = self.running.values_by_key();
        let check = move |config: &mut Self, is_forced| {
            let event = config.check::<A>(is_forced, &apply);
            if event != ReloadEvent::Unchanged {
                *metrics.running.lock() = config.running.values_by_key();
            }
            report(&event, &metrics);
        };
        // Fails on a panic, or on shutdown of the runtime.
        if let Err(error) = reload::poll(self, hangups, check, stop).await {
            failed.count(FAILED);
            tracing::error!(
                %error,
                "configuration reload stopped; changes need a restart from now on"
            );
        }
    }

    fn check<A: Settings>(
        &mut self,
        is_forced: bool,
        apply: impl Fn(&A::Config),
    ) -> ReloadEvent<ConfigChange> {
        let contents = contents(self.file.as_ref());
        self.detector.check(&contents, is_forced, || {
            let loaded = load::<A>(self.arguments.iter().cloned());
            let loaded = loaded.map_err(|error| one_line(&error.to_string()))?;
            apply(&loaded.config);
            Ok(update(&mut self.running, &loaded))
        })
    }
}

/// Applies the changes to the settings that are `running`.
fn update<A: Settings>(running: &mut EffectiveSettings, loaded: &Loaded<A>) -> ConfigChange {
    let is_live = |setting: &&Setting| setting.reload_mode == ReloadMode::Live;
    let differ = loaded.effective.differences(running);
    let (changed, others): (Vec<_>, Vec<_>) = differ.into_iter().partition(is_live);
    for setting in &changed {
        running.replace(setting);
        if setting.id == "log_filter" {
            logging::set_filter(&A::common(&loaded.config).log_filter);
        }
    }
    let flags = |settings: Vec<&Setting>| settings.into_iter().map(Setting::flag).collect();
    ConfigChange {
        changed: flags(changed),
        needs_restart: flags(others),
    }
}

fn report(event: &ReloadEvent<ConfigChange>, metrics: &Metrics) {
    match event {
        ReloadEvent::Unchanged => {}
        ReloadEvent::Replaced(change) => {
            let count = i64::try_from(change.needs_restart.len());
            metrics.waiting.set(count.unwrap_or(i64::MAX));
            metrics
                .needs_restart
                .lock()
                .clone_from(&change.needs_restart);
            let changed = change.changed.join(" ");
            if change.needs_restart.is_empty() {
                metrics.count("done");
                tracing::info!(changed, "configuration reloaded");
            } else {
                metrics.count("needs_restart");
                let needs_restart = change.needs_restart.join(" ");
                tracing::warn!(
                    changed,
                    needs_restart,
                    "configuration reloaded; some changes require a restart"
                );
            }
        }
        ReloadEvent::Failed(error) => {
            metrics.count(FAILED);
            tracing::warn!(
                error,
                "configuration reload failed; keeping the current settings"
            );
        }
    }
}

/// The contents of the file; `None` if it cannot be read.
fn contents(file: Option<&NamedFile>) -> Option<Vec<u8>> {
    file.and_then(|file| file.read().ok())
}

/// Joins a list of errors into one line for the log.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<_> = lines
        .filter(|line| !line.ends_with("invalid settings:"))
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests;
