//! The server of a peer: measured while it runs on loopback ports of its own, and ended.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use bench::{admin, cpu::CpuTime, memory::Memory, programs::Process, scrape::names};

/// RabbitMQ takes 5 s on an idle machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `process` accepts connections at `address`.
///
/// # Errors
/// When it ends before, or does not in time.
pub(super) async fn accept(process: &mut Process, address: SocketAddr) -> Result<()> {
    process.wait_accepting(address, START_PATIENCE).await
}

/// A running server; it is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Broker {
    process: Process,
    /// Ended after it.
    companion: Option<Process>,
    publishers: String,
    subscribers: String,
    /// Of ours: where it says what it lost.
    admin: Option<String>,
}

impl Broker {
    pub(super) fn new(process: Process, address: String) -> Self {
        Self {
            process,
            companion: None,
            subscribers: address.clone(),
            publishers: address,
            admin: None,
        }
    }

    pub(super) fn with_companion(mut self, companion: Process) -> Self {
        self.companion = Some(companion);
        self
    }

    pub(super) fn with_subscribers_at(mut self, address: String) -> Self {
        self.subscribers = address;
        self
    }

    pub(super) fn with_admin_at(mut self, address: String) -> Self {
        self.admin = Some(address);
        self
    }

    /// Cookies that subscribers will not get, as far as the server itself counts them: ours does.
    pub(super) async fn declared_lost(&self) -> Result<u64> {
        let Some(admin) = &self.admin else {
            return Ok(0);
        };
        let samples = admin::metrics(admin).await?;
        Ok(samples.count(names::SUBSCRIBER_LOST, &[]))
    }

    /// Where to publish.
    pub(super) fn publishers(&self) -> &str {
        &self.publishers
    }

    /// Where to subscribe.
    pub(super) fn subscribers(&self) -> &str {
        &self.subscribers
    }

    /// CPU time and memory so far; without those of helper processes, which do nothing for messages.
    ///
    /// # Errors
    /// When it has ended, with its last words.
    pub(super) fn usage(&mut self) -> Result<(CpuTime, Memory)> {
        self.process.check()?;
        let id = self.process.id();
        Ok((
            CpuTime::of(id).unwrap_or_default(),
            Memory::of(id).unwrap_or_default(),
        ))
    }

    /// What it said of its version as it started, as RabbitMQ does: `RabbitMQ 3.10.8`.
    pub(super) fn said_version(&self) -> Option<String> {
        let said = self.process.last_lines(usize::MAX);
        let at = said.find("RabbitMQ ")?;
        let words: Vec<_> = said[at..].split_whitespace().take(2).collect();
        Some(words.join(" "))
    }

    /// Asks it to end, then makes it.
    pub(super) async fn stop(mut self) {
        // A server that takes long has been killed, which is all that is wanted here.
        self.process.stop(STOP_PATIENCE).await.ok();
        if let Some(mut companion) = self.companion.take() {
            companion.stop(STOP_PATIENCE).await.ok();
        }
    }
}
