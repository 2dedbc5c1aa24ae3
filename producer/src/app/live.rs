//! What may change while a producer runs: the one place where settings marked as reloaded come into use.

use runtime::listen::Limits;
use tokio::sync::watch;

use super::files::Affordable;
use crate::{
    config::{Config, Drain},
    edge::dsps::Dsps,
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
    dsps: Dsps,
}

impl Live {
    /// What `config` says.
    pub(super) fn new(config: &Config, subscribers: Subscribers, dsps: Dsps) -> Self {
        let affordable = Affordable::now(config);
        Self {
            http: watch::Sender::new(http_limits(config, affordable)),
            grpc: watch::Sender::new(grpc_limits(config, affordable)),
            drain: watch::Sender::new(config.drain),
            subscribers,
            dsps,
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
        self.dsps.show(&config.dsps);
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

    use runtime::{
        metrics::Registry,
        settings::{Change, Settings as _},
    };

    use super::*;
    use crate::config::Args;

    fn config(flag: Option<String>) -> Config {
        // Without a list nothing can be refused.
        let always = ["producer", "--dsps=5"].map(ToOwned::to_owned);
        let arguments = always.into_iter().chain(flag);
        Config::load(arguments.map(Into::into)).unwrap()
    }

    fn live() -> Live {
        let config = config(None);
        let subscribers = Subscribers::new(Duration::from_secs(60), 1024);
        let dsps = Dsps::register(&Registry::new(), &config.dsps).unwrap();
        Live::new(&config, subscribers, dsps)
    }

    fn holds(live: &Live) -> String {
        let limits = (*live.http.borrow(), *live.grpc.borrow());
        let drain = *live.drain.borrow();
        format!(
            "{limits:?} {drain:?} {:?} {:?}",
            live.subscribers, live.dsps
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
            let value = match *id {
                "unknown_dsps" => "refuse",
                _ if is_time => "7s",
                _ => "7",
            };
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
