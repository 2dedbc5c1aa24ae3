//! The store of one exchange node.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::args::{ClusterArgs, StoreChoice};
use crate::{
    memory, mongod,
    programs::{Process, ServerProcess},
};

/// Options of mongod recommended by docs/mongodb.md.
const RECOMMENDED: [(&str, &str); 2] = [
    ("--syncdelay", "300"),
    (
        "--wiredTigerEngineConfigString",
        "eviction_dirty_target=75,eviction_dirty_trigger=90,eviction_updates_target=70,eviction_updates_trigger=85",
    ),
];

/// Bounds of the cache of mongod in bytes: a practical minimum of WiredTiger, and the recommendation of docs/mongodb.md.
const CACHE_BYTES: (u64, u64) = (512 << 20, 8 << 30);

/// The store of one node.
#[derive(Debug)]
pub enum StoreBackend {
    /// A mongod for this node only.
    Mongod(Box<ServerProcess>),
    /// An embedded store in this directory.
    Embedded(PathBuf),
}

impl StoreBackend {
    /// Prepares the store, and starts its mongod. `host`: address of this machine for nodes in network namespaces.
    pub(super) async fn prepare(
        args: &ClusterArgs,
        number: usize,
        dir: &Path,
        host: Option<Ipv4Addr>,
    ) -> Result<Self> {
        Ok(match args.store.of_node(number) {
            StoreChoice::Mongodb => {
                let cache = format!("{:.2}", cache_gibibytes(args.consumers.get()));
                let host = host.map(|host| host.to_string());
                let host = host.iter().map(|host| ("--bind_ip", host.as_str()));
                let flags = RECOMMENDED.into_iter().chain(host);
                let flags = flags.chain([("--wiredTigerCacheSizeGB", cache.as_str())]);
                let flags: Vec<_> = flags.flat_map(<[&str; 2]>::from).collect();
                let dir = dir.join(format!("mongod-{number}"));
                let started = mongod::start_with(&dir, &flags).await;
                Self::Mongod(Box::new(started?))
            }
            StoreChoice::Embedded | StoreChoice::Mixed => {
                Self::Embedded(dir.join(format!("store-{number}")))
            }
        })
    }

    /// Value of the consumer's flag `--store`.
    pub(super) fn flag(&self) -> String {
        match self {
            Self::Mongod(mongod) => mongod.uri(),
            Self::Embedded(dir) => format!("embedded:{}", dir.display()),
        }
    }

    /// The mongod of this node.
    pub fn process(&mut self) -> Option<&mut Process> {
        match self {
            Self::Mongod(mongod) => Some(&mut mongod.process),
            Self::Embedded(_) => None,
        }
    }
}

/// Cache size of one mongod. All of them share a quarter of the memory; the rest is for the other processes and the page cache.
fn cache_gibibytes(consumers: usize) -> f64 {
    let share = memory::of_machine() / 4 / consumers as u64;
    share.clamp(CACHE_BYTES.0, CACHE_BYTES.1) as f64 / f64::from(1 << 30)
}
