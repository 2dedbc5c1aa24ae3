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
            drain_timeout: watch::Sender::new(config.drain_timeout),
            dsps_refused: watch::Sender::new(config.dsps_refused.clone()),
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
        self.drain_timeout.send_replace(config.drain_timeout);
        self.dsps_refused.send_if_modified(|refused| {
            let is_new = *refused != config.dsps_refused;
            refused.clone_from(&config.dsps_refused);
            is_new
        });
    }
}

fn schedule(config: &Config) -> Schedule {
    Schedule {
        expiry: config.expiry_window,
        compaction: config.compaction_window,
        time_zone: config.time_zone.clone(),
        cursors_kept: config.ttls.longest(),
    }
}

#[cfg(test)]
mod tests {
    use runtime::settings::{Change, Settings as _};

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
        let reloaded = Args::CHANGES
            .iter()
            .filter(|(_, change)| *change == Change::Reloaded);
        for (id, _) in reloaded {
            let value = match *id {
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
