//! Which addresses the producers have: every host name is looked up again and again, and every address gets a
//! subscription of its own.
//!
//! An address that vanishes from the name service keeps its subscription while that works. When a lookup fails,
//! what was known stays.

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

/// How often host names are looked up.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// Looks up all producers until `stop` and keeps one subscription for each address. Each name is looked up in its
/// own time: one that is slow holds up no other.
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
    let names = producers.into_iter().map(Name::new);
    let mut lookups: FuturesUnordered<_> = names
        .map(|name| name.look_up_after(&*network, Duration::ZERO))
        .collect();
    loop {
        let name = tokio::select! {
            () = stop.cancelled() => return,
            name = lookups.next() => name,
        };
        let Some(name) = name else { return };
        subscriptions.set(&name);
        lookups.push(name.look_up_after(&*network, LOOKUP_INTERVAL));
    }
}

/// One subscription for each address of any name.
struct Subscriptions {
    context: Arc<Context>,
    buffer: BufferWriter,
    tracker: TaskTracker,
    stop: CancellationToken,
    addresses: HashMap<ProducerUrl, Vec<SocketAddr>>,
    open: HashMap<SocketAddr, watch::Sender<bool>>,
}

impl Subscriptions {
    fn set(&mut self, name: &Name) {
        // A subscription that ended, in whatever way, has dropped its receiver.
        self.open.retain(|_, listed| !listed.is_closed());
        let mut new = Vec::new();
        for &address in &name.addresses {
            self.open.entry(address).or_insert_with(|| {
                let (listed, is_listed) = watch::channel(true);
                let subscription = Subscription::new(
                    Arc::clone(&self.context),
                    &name.url,
                    address,
                    self.buffer.clone(),
                    is_listed,
                    self.stop.clone(),
                );
                new.push(subscription);
                listed
            });
        }
        // Each counts all that are listed, with which it shares the windows.
        for subscription in new {
            self.tracker.spawn(subscription.run());
        }
        self.addresses
            .insert(name.url.clone(), name.addresses.clone());
        let current: HashSet<_> = self.addresses.values().flatten().collect();
        for (address, listed) in &self.open {
            let is_current = current.contains(address);
            listed.send_if_modified(|listed| std::mem::replace(listed, is_current) != is_current);
        }
    }
}

/// A configured producer and the addresses it was last seen to have.
struct Name {
    url: ProducerUrl,
    addresses: Vec<SocketAddr>,
    failing: bool,
}

impl Name {
    fn new(url: ProducerUrl) -> Self {
        Self {
            url,
            addresses: Vec::new(),
            failing: false,
        }
    }

    async fn look_up_after(mut self, network: &dyn Network, pause: Duration) -> Self {
        sleep(pause).await;
        self.look_up(network).await;
        self
    }

    async fn look_up(&mut self, network: &dyn Network) {
        let found = network.lookup(&self.url.host, self.url.port).await;
        let why = match found {
            Ok(addresses) if !addresses.is_empty() => {
                if self.failing {
                    tracing::info!(producer = %self.url, "host name is found again");
                    self.failing = false;
                }
                self.addresses = addresses;
                return;
            }
            Ok(_) => "no address".to_owned(),
            Err(error) => error.to_string(),
        };
        if !self.failing {
            tracing::warn!(producer = %self.url, why, "host name is not found");
            self.failing = true;
        }
    }
}
