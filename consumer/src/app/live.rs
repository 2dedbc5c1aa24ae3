//! What may change while a consumer runs: the one place where settings marked as reloaded come into use.

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::watch;

use crate::{config::Config, maintenance::Schedule};

/// What holds now; clones change the same.
#[derive(Debug, Clone)]
pub struct Live {
    pub(super) night: watch::Sender<Schedule>,
    pub(super) drain_timeout: watch::Sender<Duration>,
    pub(super) dsps_refused: watch::Sender<BTreeSet<u32>>,
}

impl Live {
    /// What `config` says.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            night: watch::Sender::new(schedule(config)),
            drain_timeout: watch::Sender::new(config.running.drain_timeout),
            dsps_refused: watch::Sender::new(config.storing.dsps_refused()),
        }
    }

    /// Takes into use what of `config` may change.
    pub fn apply(&self, config: &Config) {
        self.night.send_if_modified(|night| {
            let new = Schedule {
                // The times to live are not reloaded.
                cursors_kept: night.cursors_kept,
                ..schedule(config)
            };
            let is_new = *night != new;
            *night = new;
            is_new
        });
        self.drain_timeout
            .send_replace(config.running.drain_timeout);
        self.dsps_refused.send_if_modified(|refused| {
            let before = std::mem::replace(refused, config.storing.dsps_refused());
            *refused != before
        });
    }
}

fn schedule(config: &Config) -> Schedule {
    Schedule {
        expiry: config.night.expiry_window,
        compaction: config.night.compaction_window,
        time_zone: config.night.time_zone.clone(),
        cursors_kept: config.keeping.ttls().longest(),
    }
}

#[cfg(test)]
mod tests {
    use runtime::settings::{Change, settings_with};

    use super::*;
    use crate::config::Args;

    fn config(flags: &[String]) -> Config {
        let arguments = ["consumer".to_owned()].into_iter().chain(flags.to_vec());
        Config::load(arguments.map(Into::into)).unwrap()
    }

    fn holds(live: &Live) -> String {
        format!(
            "{:?} {:?} {:?}",
            *live.night.borrow(),
            *live.drain_timeout.borrow(),
            *live.dsps_refused.borrow()
        )
    }

    #[test]
    fn each_setting_marked_as_reloaded_changes_what_holds() {
        for id in settings_with::<Args>(Change::Reloaded) {
            if id == "log_filter" {
                // Seen to by what reads the settings again.
                continue;
            }
            let value = match &*id {
                "time_zone" => "Asia/Tokyo",
                id if id.contains("window") => "04:00-05:00",
                id if id.contains("dsps") => "7",
                _ => "7s",
            };
            let flag = format!("--{}={value}", id.replace('_', "-"));
            let live = Live::new(&config(&[]));
            let before = holds(&live);
            live.apply(&config(&[flag]));
            assert_ne!(holds(&live), before, "{id} changes nothing");
        }
    }

    #[test]
    fn same_settings_do_not_begin_the_night_anew() {
        let live = Live::new(&config(&[]));
        let night = live.night.subscribe();
        live.apply(&config(&["--ttl=1d".to_owned()]));
        assert!(!night.has_changed().unwrap());
    }
}
