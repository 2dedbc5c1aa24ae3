//! The server process of a broker: its addresses, CPU time and memory, and the losses that it counts.

use std::time::Duration;

use anyhow::{Context as _, Result};
use launcher::{admin, programs::Process, scrape::names};

const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server; dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    /// Address for publishers.
    pub(crate) publish_at: String,
    /// Address for subscribers.
    pub(crate) subscribe_at: String,
    /// Address of the producer's admin port; `None` for other brokers.
    pub(crate) admin: Option<String>,
}

impl Server {
    /// A server with one address for publishers and subscribers.
    pub(crate) fn new(process: Process, address: String) -> Self {
        Self {
            process,
            publish_at: address.clone(),
            subscribe_at: address,
            admin: None,
        }
    }

    /// Number of cookies that the server counts as lost for its subscribers; 0 for brokers without this count.
    pub(crate) async fn counted_lost(&self) -> Result<u64> {
        match &self.admin {
            None => Ok(0),
            Some(admin) => {
                let samples = admin::metrics(admin).await?;
                Ok(samples.count(names::SUBSCRIBER_LOST, &[]))
            }
        }
    }

    /// CPU time and memory of the server process.
    ///
    /// # Errors
    /// The process has exited; the error contains its last log lines.
    pub(crate) fn usage(&mut self) -> Result<Usage> {
        self.process.check()?;
        Usage::of(self.process.id()).context("cannot read /proc")
    }

    /// Stops the server; kills it after a timeout.
    pub(crate) async fn stop(mut self) {
        self.process.stop(STOP_TIMEOUT).await.ok();
    }
}

/// Resource usage of a process since it started.
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
        // The program name may contain any character; it ends at the last parenthesis.
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
