//! The producer's part of the admin port: readiness, by component, status, and the page of refusals.

use std::{collections::BTreeSet, future, net::SocketAddr, pin::Pin, sync::Arc};

use http::{HeaderMap, Uri};
use runtime::{
    admin::{Pages, status::Progress},
    ready::{self, Component},
    reply::Reply,
};
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    archive, dsps::Dsps, edge::refusals::Refusals, inlet::Inlet, log::Log,
    streams::subscribers::Subscribers,
};

/// The components that readiness depends on.
#[derive(Debug)]
pub struct Readiness {
    /// Cancelled when the producer begins to drain.
    pub draining: CancellationToken,
    /// The port for sync requests.
    pub http: AcceptTask,
    /// The port for subscribers.
    pub grpc: AcceptTask,
    /// The contracts, reported but always ready: an invalid version of the file stops neither requests nor streams.
    pub dsps: Dsps,
    /// The DSP rate limits, reported but always ready.
    pub inlet: Inlet,
    /// The archive, reported but always ready.
    pub archive: archive::Status,
    /// The streams of rejected requests, which do not affect readiness.
    pub refusals: Arc<Refusals>,
    /// The id of the producer.
    pub producer_id: String,
    /// The log.
    pub log: Log,
    /// The subscribers and nodes.
    pub subscribers: Subscribers,
}

/// A port and the task that accepts its connections.
#[derive(Debug)]
pub struct AcceptTask {
    /// Bound address.
    pub address: SocketAddr,
    /// Who can use the port unintendedly.
    pub exposure: Option<&'static str>,
    /// Finished when the port is closed.
    pub task: AbortHandle,
}

impl Pages for Readiness {
    fn components(&self) -> Vec<Component> {
        let contracts = self.dsps.describe_contracts();
        let contracts = contracts.map(|it| Component::new("contracts", Ok(it)));
        let limits = self.inlet.describe();
        let limits = limits.map(|it| Component::new("limits", Ok(it)));
        let archive = self.archive.describe();
        let archive = archive.map(|it| Component::new("archive", Ok(it)));
        let ports = [self.http.component("http"), self.grpc.component("grpc")];
        [ready::drain(self.draining.is_cancelled())]
            .into_iter()
            .chain(ports)
            .chain(contracts)
            .chain(limits)
            .chain(archive)
            .collect()
    }

    fn progress(&self) -> Progress {
        Progress {
            cookies: self.log.stats().appended,
            lost: self.subscribers.lost(),
        }
    }

    fn details(&self) -> Value {
        let (stats, known) = (self.log.stats(), self.dsps.known());
        let dsps = known.contracts().listed().map(|(dsp, _)| dsp);
        let nodes = self.subscribers.nodes(&self.log);
        let max = |key: &str| nodes.iter().filter_map(|it| it[key].as_u64()).max();
        json!({
            "name": self.producer_id,
            "lag_cookies": max("lag_cookies"),
            "not_durable_cookies": max("not_durable_cookies"),
            "log_bytes": stats.bytes,
            "log_bytes_max": stats.bytes_max,
            "log_seconds": stats.retained.as_secs_f64(),
            "contracts": self.dsps.contracts_fingerprint(),
            "dsps": dsps.collect::<BTreeSet<_>>(),
            "nodes": nodes,
        })
    }

    fn page<'a>(
        &'a self,
        _: &'a HeaderMap,
        uri: &'a Uri,
    ) -> Pin<Box<dyn Future<Output = Option<Reply>> + Send + 'a>> {
        let is_known = uri.path() == Refusals::PATH;
        let reply = is_known.then(|| self.refusals.page(uri, self.draining.clone()));
        Box::pin(future::ready(reply))
    }
}

impl AcceptTask {
    fn component(&self, name: &'static str) -> Component {
        let state = if self.task.is_finished() {
            Err(format!("{} is closed", self.address))
        } else {
            let exposure = self.exposure.map(|it| format!("; {it}"));
            Ok(format!(
                "{} is open{}",
                self.address,
                exposure.unwrap_or_default()
            ))
        };
        Component::new(name, state)
    }
}

#[cfg(test)]
mod tests {
    use runtime::metrics::Registry;
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test]
    async fn draining_and_closed_ports_are_reported_separately() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let accept_task = |port| AcceptTask {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            exposure: None,
            task: tasks.spawn(stop.clone().cancelled_owned()).abort_handle(),
        };
        let readiness = Readiness {
            draining: CancellationToken::new(),
            http: accept_task(1),
            grpc: accept_task(2),
            dsps: Dsps::register(&Registry::new(), None, std::sync::Arc::default()).unwrap(),
            inlet: crate::inlet::tests::without_limits(),
            archive: archive::Status::default(),
            refusals: Arc::default(),
            producer_id: "p".to_owned(),
            log: crate::inlet::tests::without_limits().log().clone(),
            subscribers: Subscribers::new(std::time::Duration::ZERO, 1),
        };
        let failing = || {
            let components = readiness
                .components()
                .into_iter()
                .filter(|component| !component.ready);
            components
                .map(|component| (component.name, component.state))
                .collect::<Vec<_>>()
        };
        assert!(failing().is_empty());
        readiness.draining.cancel();
        assert_eq!(failing(), [("drain", "draining".to_owned())]);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        let closed = [
            ("http", "127.0.0.1:1 is closed"),
            ("grpc", "127.0.0.1:2 is closed"),
        ];
        let closed = closed.map(|(component, state)| (component, state.to_owned()));
        assert_eq!(failing()[1..], closed);
    }
}
