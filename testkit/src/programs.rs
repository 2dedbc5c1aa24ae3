//! Finds or builds the programs, and runs them as processes with their output in a log file. Processes are killed on drop.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::admin;

/// Directory with the programs; if set, they are not built.
pub const BIN_DIR_VARIABLE: &str = "COOKIESYNC_BIN_DIR";

/// Prefixes of the variables with which cargo describes the package of the running program.
const PACKAGE_VARIABLES: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"];

/// Prefixes of the variables that the programs read as settings.
const SETTING_VARIABLES: [&str; 4] = ["PRODUCER_", "CONSUMER_", "LIMITER_", "REVALIDATOR_"];

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a [`ServerProcess`] may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Version of each program found, by name.
static FOUND: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Programs found so far by this process, each with its version, such as `0.1.0 (dist)`.
pub fn found_programs() -> Vec<(String, String)> {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.clone().into_iter().collect()
}

/// The version that a program prints; empty if none.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let stdout = output.map(|output| output.stdout).unwrap_or_default();
    let stdout = String::from_utf8_lossy(&stdout);
    stdout
        .trim()
        .split_once(' ')
        .map_or_else(String::new, |(_name, version)| version.to_owned())
}

/// Finds programs of this workspace: in `$COOKIESYNC_BIN_DIR`, or, under cargo, by building them in the profile of this
/// program, or in the directory of this program. Blocks while cargo builds.
///
/// # Errors
/// If a program is missing or cannot be built.
pub fn find<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    find_with(names, "")
}

/// Like [`find`]; cargo builds with these features.
///
/// # Errors
/// As [`find`].
pub fn find_with<const N: usize>(names: [&str; N], features: &str) -> Result<[PathBuf; N]> {
    let programs = find_or_build(names, features)?;
    for (name, program) in names.into_iter().zip(&programs) {
        let version = version(program);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(name.to_owned(), version);
    }
    Ok(programs)
}

fn find_or_build<const N: usize>(names: [&str; N], features: &str) -> Result<[PathBuf; N]> {
    if let Some(dir) = env::var_os(BIN_DIR_VARIABLE) {
        return in_dir(names, Path::new(&dir))
            .with_context(|| format!("invalid ${BIN_DIR_VARIABLE}"));
    }
    if let (Some(cargo), Some(package)) = (env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR"))
    {
        return build(names, features, &cargo, Path::new(&package));
    }
    let own = env::current_exe().context("cannot determine the path of this program")?;
    let dir = own
        .parent()
        .context("this program has no parent directory")?;
    in_dir(names, dir).context("failed to find the other programs in the directory of this program")
}

fn in_dir<const N: usize>(names: [&str; N], dir: &Path) -> Result<[PathBuf; N]> {
    let programs = names.map(|name| dir.join(name));
    match programs.iter().find(|program| !program.is_file()) {
        None => Ok(programs),
        Some(program) => bail!("program not found: {}", program.display()),
    }
}

/// Builds from the workspace root without `-p`, so that cargo does not rebuild dependencies with other features.
fn build<const N: usize>(
    names: [&str; N],
    features: &str,
    cargo: &OsStr,
    package: &Path,
) -> Result<[PathBuf; N]> {
    let root = package
        .parent()
        .context("$CARGO_MANIFEST_DIR has no parent directory")?;
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(["--profile", &own_profile()])
        .args(["--features", features])
        .arg("--target-dir")
        .arg(target_dir())
        .stderr(Stdio::inherit());
    for name in names {
        command.args(["--bin", name]);
    }
    // With these variables, build scripts that read them would run again, and cargo would recompile their dependents (ring, TLS).
    remove_variables(&mut command, &PACKAGE_VARIABLES);
    let output = command.output().context("failed to run cargo")?;
    if !output.status.success() {
        bail!("cargo failed to build the programs ({})", output.status);
    }
    let built: BTreeMap<String, PathBuf> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Artifact>(line).ok())
        .filter_map(|artifact| Some((artifact.target.name, artifact.executable?)))
        .collect();
    match names.iter().find(|name| !built.contains_key(**name)) {
        None => Ok(names.map(|name| built[name].clone())),
        Some(name) => bail!("cargo did not build {name}"),
    }
}

/// Removes the environment variables with these prefixes.
fn remove_variables(command: &mut Command, prefixes: &[&str]) {
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&variable);
        }
    }
}

/// The cargo profile of this program, from its directory below the target directory.
fn own_profile() -> String {
    let own = env::current_exe().unwrap_or_default();
    let dir = own.strip_prefix(target_dir()).ok();
    let mut dirs = dir.into_iter().flat_map(Path::components);
    // A cross-compiled program is one level deeper, in a directory named by target triple, which has dashes.
    let profile = dirs.find(|dir| !dir.as_os_str().to_string_lossy().contains('-'));
    match profile.map(|dir| dir.as_os_str().to_string_lossy()) {
        Some(profile) if profile != "debug" => profile.into_owned(),
        _ => "dev".to_owned(),
    }
}

#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Cargo's target directory if cargo built this program; otherwise `target` in the current directory.
pub fn target_dir() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    // The directory of a target triple has a tag file too, so take the outermost.
    own.ancestors()
        .filter(|dir| dir.join("CACHEDIR.TAG").is_file())
        .last()
        .map_or_else(|| PathBuf::from("target"), Path::to_path_buf)
}

/// The installed program of this name, from the PATH and the `sbin` directories.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// A free loopback address that this process has not returned before.
///
/// Its port is below the ephemeral range, so that outgoing connections of a load do not occupy it.
///
/// # Errors
/// If no port is free.
pub fn free_address() -> Result<SocketAddr> {
    static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1_000 {
        let port = fastrand::u16(12_000..32_000);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if !taken.contains(&port) && TcpListener::bind(address).is_ok() {
            taken.push(port);
            return Ok(address);
        }
    }
    bail!("no free port on 127.0.0.1");
}

/// Converts flags and values to arguments.
pub fn flags<const N: usize, V: Into<String>>(flags: [(&str, V); N]) -> Vec<String> {
    let arguments = flags.map(|(flag, value)| [flag.to_owned(), value.into()]);
    arguments.into_iter().flatten().collect()
}

/// The last value of `flag` in the arguments, as `--flag value` or `--flag=value`.
pub fn flag_value<'a, A: AsRef<str>>(args: &'a [A], flag: &str) -> Option<&'a str> {
    let at = args.iter().rposition(|arg| {
        let rest = arg.as_ref().strip_prefix(flag);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    let value = args[at].as_ref().split_once('=').map(|(_, value)| value);
    value.or_else(|| Some(args.get(at + 1).map_or("", AsRef::as_ref)))
}

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

#[cfg(test)]
mod tests {
    use super::flag_value;

    #[test]
    fn flag_value_is_found_in_both_forms() {
        let args = ["--a", "1", "--b=2", "--b-c=3", "--d", "--a=4"];
        assert_eq!(flag_value(&args, "--a"), Some("4"));
        assert_eq!(flag_value(&args, "--b"), Some("2"));
        assert_eq!(flag_value(&args[..2], "--a"), Some("1"));
        assert_eq!(flag_value(&args[4..5], "--d"), Some(""));
        assert_eq!(flag_value(&args, "--c"), None);
    }
}
