//! Where one node's cookies are stored.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use mongodb::Client;

use super::{ClusterArgs, StoreChoice};
use crate::{mongod::Mongod, programs::Process};

/// As docs/mongodb.md recommends.
const RECOMMENDED: [&str; 4] = [
    "--syncdelay",
    "300",
    "--wiredTigerEngineConfigString",
    "eviction_dirty_target=75,eviction_dirty_trigger=90,eviction_updates_target=70,eviction_updates_trigger=85",
];

/// Bounds of mongod's cache in bytes: the smallest that WiredTiger is comfortable with, and what docs/mongodb.md recommends.
const CACHE_BYTES: (u64, u64) = (512 << 20, 8 << 30);

/// The memory that is taken for granted where `/proc` does not tell.
const MEMORY_BYTES: u64 = 4 << 30;

/// Where one node's cookies are stored.
#[derive(Debug)]
pub enum Place {
    /// In a mongod of its own.
    Mongod(Box<Mongod>),
    /// In databases of its own in a MongoDB that runs already.
    Existing {
        /// The connection string.
        uri: String,
        /// What the names of its databases begin with.
        prefix: String,
    },
    /// In a folder.
    Embedded(PathBuf),
    /// Nowhere.
    Nothing,
}

impl Place {
    pub(super) async fn prepare(args: &ClusterArgs, number: usize, folder: &Path) -> Result<Self> {
        Ok(match &args.store {
            StoreChoice::Mongodb => {
                let cache = format!("{:.2}", cache_gibibytes(args.consumers.get()));
                let mut flags = vec!["--wiredTigerCacheSizeGB", cache.as_str()];
                if !args.mongod_default {
                    flags.extend(RECOMMENDED);
                }
                flags.extend(args.mongod_arg.iter().map(String::as_str));
                let folder = folder.join(format!("mongod-{number}"));
                let started = Mongod::start_with(&folder, &flags).await;
                Self::Mongod(Box::new(started?))
            }
            StoreChoice::Embedded => Self::Embedded(folder.join(format!("store-{number}"))),
            StoreChoice::Nothing => Self::Nothing,
            StoreChoice::Existing(uri) => Self::Existing {
                uri: uri.clone(),
                // Two runs at once, or one that was killed before, share nothing.
                prefix: format!("{}{:08x}-{number}-", args.mongodb_prefix, fastrand::u32(..)),
            },
        })
    }

    pub(super) fn consumer_flags(&self) -> Vec<String> {
        let store = match self {
            Self::Mongod(mongod) => mongod.uri(),
            Self::Existing { uri, .. } => uri.clone(),
            Self::Embedded(folder) => format!("embedded:{}", folder.display()),
            Self::Nothing => "none".to_owned(),
        };
        let mut flags = vec!["--store".to_owned(), store];
        if let Self::Existing { prefix, .. } = self {
            flags.extend(["--mongodb-prefix".to_owned(), prefix.clone()]);
        }
        flags
    }

    /// The mongod that was started for it.
    pub fn process(&mut self) -> Option<&mut Process> {
        match self {
            Self::Mongod(mongod) => Some(mongod.process()),
            _ => None,
        }
    }

    /// Ends it, in order when its data are to be kept, and drops databases that are ours.
    pub(super) async fn remove(self, is_kept: bool, patience: Duration) -> Result<()> {
        match self {
            Self::Mongod(mut mongod) if is_kept => {
                mongod.process().stop(patience).await?;
            }
            Self::Existing { uri, prefix } if !is_kept => {
                let client = Client::with_uri_str(&uri).await?;
                for name in client.list_database_names().await? {
                    if name.starts_with(&prefix) {
                        let dropped = client.database(&name).drop().await;
                        dropped.with_context(|| format!("cannot drop the database {name}"))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A quarter of the machine for all mongods together: they share it with everything else, and write through the
/// system's cache as well.
fn cache_gibibytes(consumers: usize) -> f64 {
    let total = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| memory_bytes(&text))
        .unwrap_or(MEMORY_BYTES);
    let share = total / 4 / consumers as u64;
    share.clamp(CACHE_BYTES.0, CACHE_BYTES.1) as f64 / f64::from(1 << 30)
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_machine_is_read() {
        let text = "MemTotal:       24622116 kB\nMemFree: 1 kB\n";
        assert_eq!(memory_bytes(text), Some(24_622_116 * 1024));
        assert_eq!(memory_bytes("MemFree: 1 kB\n"), None);
    }
}
