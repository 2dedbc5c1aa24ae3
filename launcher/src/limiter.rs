//! A limiter process: where it listens, and how it is started.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};

use crate::programs::{Process, free_address};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// A running limiter and where it listens; it is killed when this is dropped.
#[derive(Debug)]
pub struct Limiter {
    /// The process.
    pub process: Process,
    /// Address for calls, over HTTP.
    pub address: String,
    /// Address of the admin port.
    pub admin: String,
}

impl Limiter {
    /// Starts `program` with these limits, in TOML, and waits until it is ready. Its log, its limits and its state are in `dir`.
    ///
    /// # Errors
    /// When it does not start, with its last words.
    pub async fn start(program: &Path, dir: &Path, limits: &str, flags: &[String]) -> Result<Self> {
        let path = |name: &str| dir.join(name).display().to_string();
        fs::write(path("limits.toml"), limits).context("cannot write the file of limits")?;
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
