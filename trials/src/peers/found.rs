//! The program of a system: found, and started.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use bench::programs::{Programs, installed};

use super::{broker::Broker, others, ours, peer::Peer};

/// The program of a peer.
#[derive(Debug, Clone)]
pub(super) struct Found {
    program: PathBuf,
    /// As it says itself.
    pub(super) version: String,
}

impl Found {
    /// Finds the program of `peer`, or says why not. Blocks, for our own while cargo builds it.
    ///
    /// # Errors
    /// When our own program cannot be built.
    pub(super) fn of(peer: Peer) -> Result<Result<Self, String>> {
        let name = match peer {
            Peer::Ours => {
                let program = Programs::find()?.producer;
                let version = version(&program, "--version");
                return Ok(Ok(Self { program, version }));
            }
            Peer::Nats => "nats-server",
            Peer::RedisPubsub | Peer::RedisStreams => "redis-server",
            Peer::Rabbitmq => "rabbitmq-server",
        };
        if let Some(why) = others::LEFT_OUT {
            return Ok(Err(why.to_owned()));
        }
        let missing = |name: &str| Ok(Err(format!("{name} is not on the PATH")));
        let Some(program) = installed(name) else {
            return missing(name);
        };
        if peer == Peer::Rabbitmq && installed("epmd").is_none() {
            return missing("epmd");
        }
        let version = match peer {
            // It tells its version only as it starts.
            Peer::Rabbitmq => String::new(),
            _ => version(&program, "--version"),
        };
        Ok(Ok(Self { program, version }))
    }

    /// Starts it and waits until it accepts connections.
    ///
    /// # Errors
    /// When it does not, with its last words.
    pub(super) async fn start(&self, peer: Peer, folder: &Path, keep: u64) -> Result<Broker> {
        fs::create_dir_all(folder)?;
        let program = self.program.as_path();
        match peer {
            Peer::Ours => ours::start(program, folder, keep).await,
            _ => others::start(peer, program, folder).await,
        }
    }
}

/// What a program says of its version, up to the number.
fn version(program: &Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).output();
    let said = output.map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let mut words = Vec::new();
    for word in said.split_whitespace() {
        words.push(word);
        if word.contains(|letter: char| letter.is_ascii_digit()) {
            break;
        }
    }
    words.join(" ")
}
