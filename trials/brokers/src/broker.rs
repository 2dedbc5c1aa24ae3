//! The compared brokers: starts each of them and publishes a load to it.

use std::{
    fmt,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use launcher::programs::installed;
use serde::Serialize;

use crate::{
    cookiesync, nats,
    publisher::{Load, Published, publish},
    redis,
    server::Server,
};

/// A system that distributes cookies to many subscribers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Broker {
    /// The producer of this project.
    #[default]
    Cookiesync,
    /// NATS core.
    Nats,
    /// Redis pub/sub.
    RedisPubsub,
    /// Redis Streams.
    RedisStreams,
}

impl Broker {
    /// All brokers, in the order of their runs.
    pub(crate) const ALL: [Self; 4] = [
        Self::Cookiesync,
        Self::Nats,
        Self::RedisPubsub,
        Self::RedisStreams,
    ];

    /// Name of the server program.
    pub(crate) fn program_name(self) -> &'static str {
        match self {
            Self::Cookiesync => "producer",
            Self::Nats => "nats-server",
            Self::RedisPubsub | Self::RedisStreams => "redis-server",
        }
    }

    /// The server program; `None` if it is not installed.
    pub(crate) fn program(self, bin_dir: &Path) -> Option<PathBuf> {
        match self {
            Self::Cookiesync => {
                Some(bin_dir.join(self.program_name())).filter(|path| path.is_file())
            }
            _ => installed(self.program_name()),
        }
    }

    /// Starts the server and waits until it accepts connections.
    pub(crate) async fn start(self, bin_dir: &Path, dir: &Path, keep: u64) -> Result<Server> {
        let program = self.program(bin_dir).context("its program was removed")?;
        match self {
            Self::Cookiesync => cookiesync::start(&program, dir, keep).await,
            Self::Nats => nats::start(&program, dir).await,
            Self::RedisPubsub | Self::RedisStreams => redis::start(&program, dir).await,
        }
    }

    /// Publishes a load to the server at `to`; a Redis stream keeps about `keep` cookies.
    pub(crate) async fn publish(
        self,
        load: Load,
        to: &str,
        keep: NonZeroU64,
        bin_dir: &Path,
        dir: &Path,
    ) -> Result<Published> {
        match self {
            Self::Cookiesync => cookiesync::publish(bin_dir, to, load, dir).await,
            Self::Nats => publish(load, || nats::Publisher::connect(to)).await,
            Self::RedisPubsub => publish(load, || redis::channel_publisher(to)).await,
            Self::RedisStreams => {
                let connect = || redis::stream_publisher(to, keep.get(), load.batch);
                publish(load, connect).await
            }
        }
    }
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
