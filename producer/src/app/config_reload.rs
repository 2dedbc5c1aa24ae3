//! The runtime config: applies a reload. The one place where settings marked as reloaded take effect.

use runtime::listen::Limits;
use tokio::sync::watch;

use super::open_files::Affordable;
use crate::{
    config::{Config, Stopping},
    edge::dsps::Dsps,
    server,
    streams::subscribers::Subscribers,
};

/// The settings in effect that a reload may change; clones share them.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    pub(super) http: watch::Sender<Limits>,
    pub(super) grpc: watch::Sender<Limits>,
    pub(super) stopping: watch::Sender<Stopping>,
    subscribers: Subscribers,
    dsps: Dsps,
}

impl RuntimeConfig {
    /// The settings of `config`.
    pub(super) fn new(config: &Config, subscribers: Subscribers, dsps: Dsps) -> Self {
        let affordable = Affordable::now(config);
        Self {
            http: watch::Sender::new(http_limits(config, affordable)),
            grpc: watch::Sender::new(grpc_limits(config, affordable)),
            stopping: watch::Sender::new(config.stopping),
            subscribers,
            dsps,
        }
    }

    /// Applies those settings of `config` that may change.
    pub fn apply(&self, config: &Config) {
        let affordable = Affordable::now(config);
        self.http.send_replace(http_limits(config, affordable));
        self.grpc.send_replace(grpc_limits(config, affordable));
        self.stopping.send_replace(config.stopping);
        self.subscribers.set_limits(
            config.keeping.subscriber_retention,
            config.limits.subscribers,
        );
        self.dsps.show(&config.dsps);
    }
}

/// The limits of the edge, as far as the system allows enough open files.
fn http_limits(config: &Config, affordable: Affordable) -> Limits {
    Limits {
        connections_max: affordable.http,
        ..config.limits.http()
    }
}

/// The limits of the streams, likewise.
fn grpc_limits(config: &Config, affordable: Affordable) -> Limits {
    server::limits(affordable.grpc, config.limits.grpc_connections_per_address)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::{
        metrics::Registry,
        settings::{ReloadMode, settings_with},
    };

    use super::*;
    use crate::config::Args;

    fn config(flag: Option<String>) -> Config {
        // Refusing unknown DSPs needs a list.
        let always = ["producer", "--dsps=5"].map(ToOwned::to_owned);
        let arguments = always.into_iter().chain(flag);
        Config::load(arguments.map(Into::into)).unwrap()
    }

    fn runtime_config() -> RuntimeConfig {
        let config = config(None);
        let subscribers = Subscribers::new(Duration::from_secs(60), 1024);
        let dsps = Dsps::register(&Registry::new(), &config.dsps).unwrap();
        RuntimeConfig::new(&config, subscribers, dsps)
    }

    fn in_effect(runtime: &RuntimeConfig) -> String {
        let limits = (*runtime.http.borrow(), *runtime.grpc.borrow());
        let stopping = *runtime.stopping.borrow();
        format!(
            "{limits:?} {stopping:?} {:?} {:?}",
            runtime.subscribers, runtime.dsps
        )
    }

    #[test]
    fn each_setting_marked_as_reloaded_takes_effect() {
        for id in settings_with::<Args>(ReloadMode::Live) {
            if id == "log_filter" {
                // Applied by what reads the settings again.
                continue;
            }
            let is_time = ["timeout", "delay", "retention"]
                .into_iter()
                .any(|part| id.contains(part));
            let value = match &*id {
                "unknown_dsps" => "refuse",
                _ if is_time => "7s",
                _ => "7",
            };
            let flag = format!("--{}={value}", id.replace('_', "-"));
            let runtime = runtime_config();
            let before = in_effect(&runtime);
            runtime.apply(&config(Some(flag)));
            assert_ne!(in_effect(&runtime), before, "{id} changes nothing");
        }
    }

    #[test]
    fn same_settings_change_nothing() {
        let runtime = runtime_config();
        let before = in_effect(&runtime);
        runtime.apply(&config(None));
        assert_eq!(in_effect(&runtime), before);
    }
}
