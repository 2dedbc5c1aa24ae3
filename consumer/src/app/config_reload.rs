//! The runtime config: applies a reload. The one place where settings marked as reloaded take effect.

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::watch;

use crate::{config::Config, maintenance::Schedule};

/// The settings in effect that a reload may change; clones share them.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    pub(super) maintenance: watch::Sender<Schedule>,
    pub(super) drain_timeout: watch::Sender<Duration>,
    pub(super) rejected_dsps: watch::Sender<BTreeSet<u32>>,
}

impl RuntimeConfig {
    /// What `config` says.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            maintenance: watch::Sender::new(schedule(config)),
            drain_timeout: watch::Sender::new(config.process.drain_timeout),
            rejected_dsps: watch::Sender::new(config.storage.rejected_dsps()),
        }
    }

    /// Takes into use what of `config` may change.
    pub fn apply(&self, config: &Config) {
        self.maintenance.send_if_modified(|maintenance| {
            let new = Schedule {
                // The times to live are not reloaded.
                cursors_kept: maintenance.cursors_kept,
                ..schedule(config)
            };
            let is_new = *maintenance != new;
            *maintenance = new;
            is_new
        });
        self.drain_timeout
            .send_replace(config.process.drain_timeout);
        self.rejected_dsps.send_if_modified(|refused| {
            let before = std::mem::replace(refused, config.storage.rejected_dsps());
            *refused != before
        });
    }
}

fn schedule(config: &Config) -> Schedule {
    Schedule {
        expiry: config.maintenance.expiry_window,
        compaction: config.maintenance.compaction_window,
        time_zone: config.maintenance.time_zone.clone(),
        cursors_kept: config.retention.ttls().longest(),
    }
}

#[cfg(test)]
mod tests {
    use runtime::settings::{ReloadMode, settings_with};

    use super::*;
    use crate::config::Args;

    fn config(flags: &[String]) -> Config {
        let arguments = ["consumer".to_owned()].into_iter().chain(flags.to_vec());
        Config::load(arguments.map(Into::into)).unwrap()
    }

    fn holds(it: &RuntimeConfig) -> String {
        format!(
            "{:?} {:?} {:?}",
            *it.maintenance.borrow(),
            *it.drain_timeout.borrow(),
            *it.rejected_dsps.borrow()
        )
    }

    #[test]
    fn each_setting_marked_as_reloaded_changes_what_holds() {
        for id in settings_with::<Args>(ReloadMode::Live) {
            if id == "log_filter" {
                // Applied by what reads the settings again.
                continue;
            }
            let value = match &*id {
                "time_zone" => "Asia/Tokyo",
                id if id.contains("window") => "04:00-05:00",
                id if id.contains("dsps") => "7",
                _ => "7s",
            };
            let flag = format!("--{}={value}", id.replace('_', "-"));
            let it = RuntimeConfig::new(&config(&[]));
            let before = holds(&it);
            it.apply(&config(&[flag]));
            assert_ne!(holds(&it), before, "{id} changes nothing");
        }
    }

    #[test]
    fn same_settings_do_not_begin_the_night_anew() {
        let it = RuntimeConfig::new(&config(&[]));
        let maintenance = it.maintenance.subscribe();
        it.apply(&config(&["--ttl=1d".to_owned()]));
        assert!(!maintenance.has_changed().unwrap());
    }
}
