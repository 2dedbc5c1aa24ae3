//! What may change while a producer runs: the one place where settings marked as reloaded come into use.

use cookiesync::process::listen::Limits;
use tokio::sync::watch;

use super::files::Affordable;
use crate::{
    config::{Config, Drain},
    server,
    streams::subscribers::Subscribers,
};

/// What holds now; clones change the same.
#[derive(Debug, Clone)]
pub struct Live {
    pub(super) http: watch::Sender<Limits>,
    pub(super) grpc: watch::Sender<Limits>,
    pub(super) drain: watch::Sender<Drain>,
    subscribers: Subscribers,
}

impl Live {
    /// What `config` says.
    pub(super) fn new(config: &Config, subscribers: Subscribers) -> Self {
        let affordable = Affordable::now(config);
        Self {
            http: watch::Sender::new(http_limits(config, affordable)),
            grpc: watch::Sender::new(grpc_limits(config, affordable)),
            drain: watch::Sender::new(config.drain),
            subscribers,
        }
    }

    /// Takes into use what of `config` may change.
    pub fn apply(&self, config: &Config) {
        let affordable = Affordable::now(config);
        self.http.send_replace(http_limits(config, affordable));
        self.grpc.send_replace(grpc_limits(config, affordable));
        self.drain.send_replace(config.drain);
        self.subscribers
            .keep(config.subscriber_retention, config.subscribers_max);
    }
}

/// What the edge grants, as far as the system leaves files for it.
fn http_limits(config: &Config, affordable: Affordable) -> Limits {
    Limits {
        connections_max: affordable.http,
        ..config.http_limits
    }
}

/// The same for streams.
fn grpc_limits(config: &Config, affordable: Affordable) -> Limits {
    server::limits(affordable.grpc, config.grpc_connections_per_address_max)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cookiesync::process::settings::{Change, Settings as _};

    use super::*;
    use crate::config::Args;

    fn config(flag: Option<String>) -> Config {
        let arguments = ["producer".to_owned()].into_iter().chain(flag);
        Config::load(arguments.map(Into::into)).unwrap()
    }

    fn live() -> Live {
        let subscribers = Subscribers::new(Duration::from_secs(60), 1024);
        Live::new(&config(None), subscribers)
    }

    fn holds(live: &Live) -> String {
        let limits = (*live.http.borrow(), *live.grpc.borrow());
        format!(
            "{limits:?} {:?} {:?}",
            *live.drain.borrow(),
            live.subscribers
        )
    }

    #[test]
    fn each_setting_marked_as_reloaded_changes_what_holds() {
        let reloaded = Args::CHANGES
            .iter()
            .filter(|(_, change)| *change == Change::Reloaded);
        for (id, _) in reloaded {
            let is_time = ["timeout", "delay", "retention"]
                .into_iter()
                .any(|part| id.contains(part));
            let value = if is_time { "7s" } else { "7" };
            let flag = format!("--{}={value}", id.replace('_', "-"));
            let live = live();
            let before = holds(&live);
            live.apply(&config(Some(flag)));
            assert_ne!(holds(&live), before, "{id} changes nothing");
        }
    }

    #[test]
    fn same_settings_change_nothing() {
        let live = live();
        let before = holds(&live);
        live.apply(&config(None));
        assert_eq!(holds(&live), before);
    }
}
