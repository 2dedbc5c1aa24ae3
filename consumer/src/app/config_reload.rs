//! Applies changed settings while the consumer runs. No other module applies them.

use std::{collections::BTreeSet, time::Duration};

use proto::units::DspId;
use tokio::sync::watch;

use crate::{config::Config, maintenance::Schedule};

/// Current values of the reloadable settings; clones share them.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    pub(super) maintenance: watch::Sender<Schedule>,
    pub(super) drain_timeout: watch::Sender<Duration>,
    pub(super) rejected_dsps: watch::Sender<BTreeSet<DspId>>,
}

impl RuntimeConfig {
    /// The values of `config`.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            maintenance: watch::Sender::new(schedule(config)),
            drain_timeout: watch::Sender::new(config.args.process.drain_timeout),
            rejected_dsps: watch::Sender::new(config.args.storage.rejected_dsps()),
        }
    }

    /// Applies the reloadable settings of `config`.
    pub fn apply(&self, config: &Config) {
        let schedule = Schedule {
            // TTLs are not reloadable.
            cursor_ttl: self.maintenance.borrow().cursor_ttl,
            ..schedule(config)
        };
        set(&self.maintenance, schedule);
        set(&self.drain_timeout, config.args.process.drain_timeout);
        set(&self.rejected_dsps, config.args.storage.rejected_dsps());
    }
}

/// Sets a value, and notifies its receivers if it has changed.
fn set<T: PartialEq>(current: &watch::Sender<T>, new: T) {
    current.send_if_modified(|current| {
        let is_new = *current != new;
        *current = new;
        is_new
    });
}

fn schedule(config: &Config) -> Schedule {
    let maintenance = &config.args.maintenance;
    Schedule {
        expiry: maintenance.expiry_window,
        compaction: maintenance.compaction_window,
        time_zone: maintenance.time_zone.clone(),
        cursor_ttl: config.ttls.max(),
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

    fn current(it: &RuntimeConfig) -> String {
        format!(
            "{:?} {:?} {:?}",
            *it.maintenance.borrow(),
            *it.drain_timeout.borrow(),
            *it.rejected_dsps.borrow()
        )
    }

    #[test]
    fn reload_applies_every_reloadable_setting() {
        for id in settings_with::<Args>(ReloadMode::Live) {
            if id == "log_filter" {
                // Applied by the runtime.
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
            let before = current(&it);
            it.apply(&config(&[flag]));
            assert_ne!(current(&it), before, "{id} changes nothing");
        }
    }

    #[test]
    fn reload_of_an_unchanged_schedule_does_not_restart_maintenance() {
        let it = RuntimeConfig::new(&config(&[]));
        let maintenance = it.maintenance.subscribe();
        it.apply(&config(&["--ttl=1d".to_owned()]));
        assert!(!maintenance.has_changed().unwrap());
    }
}
