//! Runs programs as processes with their output in a log file. Processes are killed on drop.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use super::remove_variables;
use crate::admin;

/// Prefixes of the variables that the programs read as settings.
const SETTING_VARIABLES: [&str; 4] = ["PRODUCER_", "CONSUMER_", "LIMITER_", "REVALIDATOR_"];

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a [`ServerProcess`] may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running program; killed on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `program` and appends its output to the file `log`.
    ///
    /// It gets its own process group, so that Ctrl-C in a terminal reaches only the parent, which stops its children in
    /// order.
    ///
    /// # Errors
    /// If the file cannot be written or the program cannot be started.
    pub fn start(name: &str, program: &Path, args: &[String], log: &Path) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            program: program.to_owned(),
            args: args.to_vec(),
            log: log.to_owned(),
            child: spawn(program, args, log)?,
        })
    }

    /// Starts the program again with the same arguments, after it has exited.
    ///
    /// # Errors
    /// If it is still running or cannot be started.
    pub fn restart(&mut self) -> Result<()> {
        if self.exit_status()?.is_none() {
            bail!("{} is still running", self.name);
        }
        self.child = spawn(&self.program, &self.args, &self.log)?;
        Ok(())
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process has exited.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.exit_status()? {
            bail!("{} has exited ({status})", self.name);
        }
        // Not reaped yet, so the id still belongs to this child.
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).with_context(|| format!("failed to signal {}", self.name))
    }

    /// Kills the process (SIGKILL) and waits for its exit.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The exit status; `None` while the process runs.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the process to exit.
    ///
    /// # Errors
    /// If it is still running after `timeout`.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} is still running after {timeout:?}", self.name);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends SIGTERM and waits for the exit.
    ///
    /// # Errors
    /// If it is still running after `timeout`; it is then killed.
    pub async fn stop(&mut self, timeout: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.exit_status()? {
            return Ok(status);
        }
        self.signal(Signal::TERM)?;
        let stopped = self.wait(timeout).await;
        if stopped.is_err() {
            self.kill()?;
        }
        stopped
    }

    /// [Stops](Self::stop) the process, and checks that it exits without an error.
    ///
    /// # Errors
    /// Otherwise, with the end of its log.
    pub async fn drain(&mut self, timeout: Duration) -> Result<()> {
        let what = match self.stop(timeout).await {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => format!("exited with {status}"),
            Err(error) => format!("did not stop: {error:#}"),
        };
        bail!(self.failure(&what))
    }

    /// Waits until the process is ready according to its admin port.
    ///
    /// # Errors
    /// If the process exits, with the end of its log; or if it is not ready after `timeout`, with the reason.
    pub async fn wait_ready(&mut self, admin: &str, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            self.check()?;
            let reason = match admin::readiness(admin).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(reason)) => reason,
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() >= deadline {
                bail!("{} is not ready after {timeout:?}: {reason}", self.name);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Checks that the process is running.
    ///
    /// # Errors
    /// If it has exited; includes the end of its log.
    pub fn check(&mut self) -> Result<()> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => bail!(self.failure(&format!("exited ({status})"))),
        }
    }

    fn failure(&self, what: &str) -> String {
        let lines = self.last_lines(20);
        format!("{} {what}; last log lines:\n{lines}", self.name)
    }

    /// The log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last `count` lines of the log.
    pub fn last_lines(&self, count: usize) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let from = lines.len().saturating_sub(count);
        lines[from..].join("\n")
    }
}

/// A running server that is not one of our programs; killed on drop.
#[derive(Debug)]
pub struct ServerProcess {
    /// The process.
    pub process: Process,
    /// Its address.
    pub address: SocketAddr,
    scheme: &'static str,
}

impl ServerProcess {
    /// Waits until `process` accepts connections at `address`. The [URI](Self::uri) has this scheme.
    ///
    /// # Errors
    /// If it exits, or does not accept any in time; includes the end of its log.
    pub(crate) async fn start(
        process: Process,
        address: SocketAddr,
        scheme: &'static str,
    ) -> Result<Self> {
        let mut server = Self {
            process,
            address,
            scheme,
        };
        server.wait_accepting().await?;
        Ok(server)
    }

    /// The connection string.
    pub fn uri(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Kills the server (SIGKILL).
    ///
    /// # Errors
    /// If the system call fails.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Suspends the server (SIGSTOP): connections stay open without any response.
    ///
    /// # Errors
    /// If it has exited.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Continues the server after [`pause`](Self::pause).
    ///
    /// # Errors
    /// If it has exited.
    pub fn resume(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Starts the server again with the same port and data, after it has exited, and waits until it accepts
    /// connections.
    ///
    /// # Errors
    /// If it is still running or does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_accepting().await
    }

    async fn wait_accepting(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(self.address).await.is_err() {
            self.process.check()?;
            if Instant::now() >= deadline {
                bail!(self.process.failure("accepts no connection"));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

fn spawn(program: &Path, args: &[String], log: &Path) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("failed to write {}", log.display()))?;
    let mut command = Command::new(program);
    // Variables for other programs of the user must not configure these.
    remove_variables(&mut command, &SETTING_VARIABLES);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("failed to start {}", program.display()))
}

impl Drop for Process {
    fn drop(&mut self) {
        let killed: io::Result<()> = self.child.kill().and_then(|()| self.child.wait().map(drop));
        if let Err(error) = killed {
            eprintln!("failed to kill {}: {error}", self.name);
        }
    }
}
