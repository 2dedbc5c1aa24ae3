//! The store of one exchange node.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use mongodb::Client;

use super::args::{ClusterArgs, StoreChoice};
use crate::{memory, mongod::Mongod, programs::Process};

/// Options of mongod recommended by docs/mongodb.md.
const RECOMMENDED: [(&str, &str); 2] = [
    ("--syncdelay", "300"),
    (
        "--wiredTigerEngineConfigString",
        "eviction_dirty_target=75,eviction_dirty_trigger=90,eviction_updates_target=70,eviction_updates_trigger=85",
    ),
];

/// Prefix of database names in an existing MongoDB. A random suffix follows.
const DATABASE_PREFIX: &str = "bench-e2e-";

/// Bounds of the cache of mongod in bytes: a practical minimum of WiredTiger, and the recommendation of docs/mongodb.md.
const CACHE_BYTES: (u64, u64) = (512 << 20, 8 << 30);

/// The store of one node.
#[derive(Debug)]
pub enum StoreBackend {
    /// A mongod for this node only.
    Mongod(Box<Mongod>),
    /// Separate databases in an existing MongoDB.
    Existing {
        /// The connection string.
        uri: String,
        /// Prefix of the database names.
        prefix: String,
    },
    /// An embedded store in this directory.
    Embedded(PathBuf),
    /// No store.
    Nothing,
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
                let started = Mongod::start_with(&dir, &flags).await;
                Self::Mongod(Box::new(started?))
            }
            StoreChoice::Embedded | StoreChoice::Mixed => {
                Self::Embedded(dir.join(format!("store-{number}")))
            }
            StoreChoice::Nothing => Self::Nothing,
            StoreChoice::Existing(uri) => Self::Existing {
                uri,
                // Random, so that concurrent or killed runs use other databases.
                prefix: format!("{}{:08x}-{number}-", DATABASE_PREFIX, fastrand::u32(..)),
            },
        })
    }

    pub(super) fn consumer_flags(&self) -> Vec<String> {
        let store = match self {
            Self::Mongod(mongod) => mongod.uri(),
            Self::Existing { uri, .. } => uri.clone(),
            Self::Embedded(dir) => format!("embedded:{}", dir.display()),
            Self::Nothing => "none".to_owned(),
        };
        let mut flags = vec!["--store".to_owned(), store];
        if let Self::Existing { prefix, .. } = self {
            flags.extend(["--mongodb-prefix".to_owned(), prefix.clone()]);
        }
        flags
    }

    /// The mongod of this node.
    pub fn process(&mut self) -> Option<&mut Process> {
        match self {
            Self::Mongod(mongod) => Some(mongod.process()),
            _ => None,
        }
    }

    /// Drops the databases of the node in an existing MongoDB. If the data is kept, stops mongod cleanly instead.
    pub(super) async fn remove(self, is_kept: bool, timeout: Duration) -> Result<()> {
        match self {
            Self::Mongod(mut mongod) if is_kept => {
                mongod.process().stop(timeout).await?;
            }
            Self::Existing { prefix, .. } if is_kept => {
                eprintln!("kept      databases {prefix}*")
            }
            Self::Existing { uri, prefix } => {
                let dropped = drop_databases(&uri, &prefix).await;
                dropped.with_context(|| format!("failed to drop the databases {prefix}*"))?;
            }
            _ => {}
        }
        Ok(())
    }
}

async fn drop_databases(uri: &str, prefix: &str) -> Result<()> {
    let client = Client::with_uri_str(uri).await?;
    for name in client.list_database_names().await? {
        if name.starts_with(prefix) {
            client.database(&name).drop().await?;
        }
    }
    Ok(())
}

/// Cache size of one mongod. All of them share a quarter of the memory; the rest is for the other processes and the page cache.
fn cache_gibibytes(consumers: usize) -> f64 {
    let share = memory::of_machine() / 4 / consumers as u64;
    share.clamp(CACHE_BYTES.0, CACHE_BYTES.1) as f64 / f64::from(1 << 30)
}
