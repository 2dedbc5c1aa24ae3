//! Starts a Redis or Valkey server on a free loopback port, without persistence.

use std::path::Path;

use anyhow::Result;

use crate::programs::{Process, ServerProcess, flags, free_address};

/// Starts `program` with its log in `dir`, and waits until it accepts connections.
///
/// # Errors
/// If it does not start; includes the end of its log.
pub async fn start(program: &Path, dir: &Path) -> Result<ServerProcess> {
    let address = free_address()?;
    let args = flags([
        ("--bind", address.ip().to_string()),
        ("--port", address.port().to_string()),
        ("--dir", dir.display().to_string()),
        ("--save", String::new()),
        ("--appendonly", "no".to_owned()),
    ]);
    let log = dir.join("redis.log");
    let process = Process::start("redis-server", program, &args, &log)?;
    ServerProcess::start(process, address, "redis").await
}
