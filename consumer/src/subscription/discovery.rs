//! Discovers producers: resolves every host name periodically and subscribes to each of its addresses.
//!
//! An address that is no longer resolved keeps its subscription until its stream ends. A failed lookup changes nothing.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use runtime::connect::Network;
use tokio::{sync::watch, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Context, Subscription, buffer::BufferWriter};
use crate::config::ProducerUrl;

/// Interval of lookups.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// Resolves all producers and keeps one subscription per address until `stop` is cancelled. A slow lookup does not delay
/// others.
pub async fn run(
    producers: Vec<ProducerUrl>,
    context: Arc<Context>,
    buffer: BufferWriter,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    let mut subscriptions = Subscriptions {
        context,
        buffer,
        tracker,
        stop: stop.clone(),
        addresses: HashMap::new(),
        open: HashMap::new(),
    };
    let network = Arc::clone(&subscriptions.context.network);
    let hosts = producers.into_iter().map(|url| ProducerHost {
        url,
        addresses: Vec::new(),
        is_failing: false,
    });
    let mut lookups: FuturesUnordered<_> = hosts
        .map(|host| host.look_up_after(&*network, Duration::ZERO))
        .collect();
    loop {
        let host = tokio::select! {
            () = stop.cancelled() => return,
            host = lookups.next() => host,
        };
        let Some(host) = host else { return };
        subscriptions.update(&host);
        lookups.push(host.look_up_after(&*network, LOOKUP_INTERVAL));
    }
}

/// The subscriptions of all addresses.
struct Subscriptions {
    context: Arc<Context>,
    buffer: BufferWriter,
    tracker: TaskTracker,
    stop: CancellationToken,
    addresses: HashMap<ProducerUrl, Vec<SocketAddr>>,
    /// Whether each address is still resolved.
    open: HashMap<SocketAddr, watch::Sender<bool>>,
}

impl Subscriptions {
    fn update(&mut self, host: &ProducerHost) {
        // The receiver is closed when the subscription has ended.
        self.open.retain(|_, resolved| !resolved.is_closed());
        let mut new = Vec::new();
        for &address in &host.addresses {
            self.open.entry(address).or_insert_with(|| {
                let (resolved, is_resolved) = watch::channel(true);
                let subscription = Subscription::new(
                    Arc::clone(&self.context),
                    &host.url,
                    address,
                    self.buffer.clone(),
                    is_resolved,
                    self.stop.clone(),
                );
                new.push(subscription);
                resolved
            });
        }
        // Started after all are registered, because the number of addresses determines their receive windows.
        for subscription in new {
            self.tracker.spawn(subscription.run());
        }
        self.addresses
            .insert(host.url.clone(), host.addresses.clone());
        let current: HashSet<_> = self.addresses.values().flatten().collect();
        for (address, resolved) in &self.open {
            let is_current = current.contains(address);
            resolved
                .send_if_modified(|resolved| std::mem::replace(resolved, is_current) != is_current);
        }
    }
}

/// A configured producer and its addresses of the last successful lookup.
struct ProducerHost {
    url: ProducerUrl,
    addresses: Vec<SocketAddr>,
    is_failing: bool,
}

impl ProducerHost {
    async fn look_up_after(mut self, network: &dyn Network, pause: Duration) -> Self {
        sleep(pause).await;
        let found = network.lookup(&self.url.host, self.url.port).await;
        let found = found.map_err(|error| error.to_string());
        let why = match found {
            Ok(addresses) if !addresses.is_empty() => {
                self.addresses = addresses;
                None
            }
            Ok(_) => Some("the name has no addresses".to_owned()),
            Err(why) => Some(why),
        };
        let was_failing = std::mem::replace(&mut self.is_failing, why.is_some());
        let producer = &self.url;
        match why {
            Some(why) if !was_failing => {
                tracing::warn!(%producer, why, "failed to resolve the host name, retrying");
            }
            None if was_failing => tracing::info!(%producer, "host name resolves again"),
            _ => {}
        }
        self
    }
}
