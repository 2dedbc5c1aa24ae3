//! The systems that are compared, and their servers.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use launcher::{
    admin,
    programs::{Process, installed},
    scrape::names,
};
use serde::Serialize;

use crate::{nats, ours, redis};

const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A system that can carry cookies from one to many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// The producer of this project.
    #[default]
    Ours,
    /// NATS core.
    Nats,
    /// Redis pub/sub.
    RedisPubsub,
    /// Redis Streams.
    RedisStreams,
}

impl Peer {
    /// All of them, in the order in which they are measured.
    pub(crate) const ALL: [Self; 4] = [
        Self::Ours,
        Self::Nats,
        Self::RedisPubsub,
        Self::RedisStreams,
    ];

    /// The name of its server's program.
    pub(crate) fn program_name(self) -> &'static str {
        match self {
            Self::Ours => "producer",
            Self::Nats => "nats-server",
            Self::RedisPubsub | Self::RedisStreams => "redis-server",
        }
    }

    /// Its server's program, when it is there.
    pub(crate) fn program(self, bin_dir: &Path) -> Option<PathBuf> {
        match self {
            Self::Ours => Some(bin_dir.join(self.program_name())).filter(|path| path.is_file()),
            _ => installed(self.program_name()),
        }
    }

    /// Starts its server and waits until it accepts connections.
    pub(crate) async fn start(self, bin_dir: &Path, dir: &Path, keep: u64) -> Result<Server> {
        let program = self.program(bin_dir).context("the program is gone")?;
        match self {
            Self::Ours => ours::start(&program, dir, keep).await,
            Self::Nats => nats::start(&program, dir).await,
            Self::RedisPubsub | Self::RedisStreams => redis::start(&program, dir).await,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours",
            Self::Nats => "nats",
            Self::RedisPubsub => "redis-pubsub",
            Self::RedisStreams => "redis-streams",
        })
    }
}

/// A running server; it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    /// Where to publish.
    pub(crate) publish_at: String,
    /// Where to subscribe.
    pub(crate) subscribe_at: String,
    /// The admin port, which ours has.
    pub(crate) admin: Option<String>,
}

impl Server {
    /// A server that takes and gives messages at one address.
    pub(crate) fn new(process: Process, address: String) -> Self {
        Self {
            process,
            publish_at: address.clone(),
            subscribe_at: address,
            admin: None,
        }
    }

    /// Cookies that the server itself counted as lost to its subscribers: ours does.
    pub(crate) async fn counted_lost(&self) -> Result<u64> {
        match &self.admin {
            None => Ok(0),
            Some(admin) => {
                let samples = admin::metrics(admin).await?;
                Ok(samples.count(names::SUBSCRIBER_LOST, &[]))
            }
        }
    }

    /// CPU time and memory of the server's process.
    ///
    /// # Errors
    /// When it has ended, with its last lines.
    pub(crate) fn usage(&mut self) -> Result<Usage> {
        self.process.check()?;
        Usage::of(self.process.id()).context("cannot read /proc")
    }

    /// Asks it to end; kills it when it takes long.
    pub(crate) async fn stop(mut self) {
        self.process.stop(STOP_TIMEOUT).await.ok();
    }
}

/// What a process has used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) peak_bytes: u64,
}

impl Usage {
    fn of(process_id: u32) -> Option<Self> {
        let read = |file| std::fs::read_to_string(format!("/proc/{process_id}/{file}")).ok();
        let stat = read("stat")?;
        // The name of the program may hold anything, and ends with the last parenthesis.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let [user, system] = [ticks(11)?, ticks(12)?];
        let status = read("status")?;
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
            Some(kibibytes * 1024)
        };
        Some(Self {
            cpu_seconds: (user + system) as f64 / rustix::param::clock_ticks_per_second() as f64,
            resident_bytes: bytes("VmRSS:")?,
            peak_bytes: bytes("VmHWM:")?,
        })
    }
}
