//! Starts a limiter process.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};

use crate::programs::{Process, free_address};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// A running limiter with its addresses; killed on drop.
#[derive(Debug)]
pub struct Limiter {
    /// The process.
    pub process: Process,
    /// Address of the HTTP API.
    pub address: String,
    /// Address of the admin port.
    pub admin: String,
}

impl Limiter {
    /// Starts `program` with these limits (TOML) and waits until it is ready. Its log, limits file and state are in `dir`.
    ///
    /// # Errors
    /// If it does not start; includes the end of its log.
    pub async fn start(program: &Path, dir: &Path, limits: &str, flags: &[String]) -> Result<Self> {
        let path = |name: &str| dir.join(name).display().to_string();
        fs::write(path("limits.toml"), limits).context("failed to write the limits file")?;
        let (address, admin) = (free_address()?.to_string(), free_address()?.to_string());
        let own = [
            "serve".to_owned(),
            format!("--limits={}", path("limits.toml")),
            format!("--state={}", path("state")),
            format!("--listen={address}"),
            format!("--admin={admin}"),
        ];
        let args = [&own, flags].concat();
        let mut limiter = Self {
            process: Process::start("the limiter", program, &args, &dir.join("limiter.log"))?,
            address,
            admin,
        };
        let admin = &limiter.admin;
        limiter.process.wait_ready(admin, READY_TIMEOUT).await?;
        Ok(limiter)
    }
}
