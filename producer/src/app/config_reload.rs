//! Applies changed settings while the producer runs. No other module applies them.

use runtime::{listen::Limits, open_files};
use tokio::sync::watch;

use crate::{
    api,
    config::{Config, Shutdown},
    server,
    streams::subscribers::Subscribers,
};

/// The active values of reloadable settings; clones share them.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    pub(super) http: watch::Sender<Limits>,
    pub(super) grpc: watch::Sender<Limits>,
    pub(super) api: Limits,
    pub(super) shutdown: watch::Sender<Shutdown>,
    subscribers: Subscribers,
}

impl RuntimeConfig {
    /// Begins with the settings in `config`.
    pub(super) fn new(config: &Config, subscribers: Subscribers) -> Self {
        let (http, grpc, api) = connection_limits(config);
        Self {
            http: watch::Sender::new(http),
            grpc: watch::Sender::new(grpc),
            api,
            shutdown: watch::Sender::new(config.shutdown),
            subscribers,
        }
    }

    /// Applies the reloadable settings in `config`.
    pub fn apply(&self, config: &Config) {
        let (http, grpc, _) = connection_limits(config);
        self.http.send_replace(http);
        self.grpc.send_replace(grpc);
        self.shutdown.send_replace(config.shutdown);
        self.subscribers.set_limits(
            config.retention.subscriber_retention,
            config.limits.subscribers,
        );
    }
}

/// Limits of the HTTP, gRPC and API ports, reduced if the open-file limit is too low.
fn connection_limits(config: &Config) -> (Limits, Limits, Limits) {
    let limits = &config.limits;
    let api = config
        .api
        .address
        .map_or(0, |_| api::LIMITS.connections_max);
    let [http, grpc, api] = open_files::connections(
        0,
        [
            ("--http-connections", limits.http_connections),
            ("--grpc-connections", limits.grpc_connections),
            ("--api", api),
        ],
    );
    let http = Limits {
        connections_max: http,
        connections_per_address_max: limits.http_connections_per_address,
        request_timeout: Some(limits.request_timeout),
        idle_timeout: limits.idle_timeout,
        write_timeout: Some(limits.request_timeout),
    };
    let per_address = limits.grpc_connections_per_address;
    let grpc = Limits {
        connections_max: grpc,
        connections_per_address_max: per_address.or_else(|| Some(grpc.div_ceil(2))),
        request_timeout: None,
        idle_timeout: server::IDLE_TIMEOUT,
        write_timeout: None,
    };
    (http, grpc, api::LIMITS.with(api))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::settings::{ReloadMode, settings_with};

    use super::*;
    use crate::config::Args;

    fn config(flag: Option<String>) -> Config {
        let arguments = ["producer".to_owned()].into_iter().chain(flag);
        Config::load(arguments.map(Into::into)).unwrap()
    }

    fn runtime_config() -> RuntimeConfig {
        let config = config(None);
        let subscribers = Subscribers::new(Duration::from_secs(60), 1024);
        RuntimeConfig::new(&config, subscribers)
    }

    fn active(runtime: &RuntimeConfig) -> String {
        let limits = (*runtime.http.borrow(), *runtime.grpc.borrow());
        let shutdown = *runtime.shutdown.borrow();
        format!("{limits:?} {shutdown:?} {:?}", runtime.subscribers)
    }

    #[test]
    fn reloadable_settings_take_effect() {
        for id in settings_with::<Args>(ReloadMode::Live) {
            if id == "log_filter" {
                // Applied by `runtime`.
                continue;
            }
            let is_time = ["timeout", "delay", "retention"]
                .into_iter()
                .any(|part| id.contains(part));
            let value = if is_time { "7s" } else { "7" };
            let flag = format!("--{}={value}", id.replace('_', "-"));
            let runtime = runtime_config();
            let before = active(&runtime);
            runtime.apply(&config(Some(flag)));
            assert_ne!(active(&runtime), before, "{id} has no effect");
        }
    }

    #[test]
    fn reload_without_changes_has_no_effect() {
        let runtime = runtime_config();
        let before = active(&runtime);
        runtime.apply(&config(None));
        assert_eq!(active(&runtime), before);
    }
}
