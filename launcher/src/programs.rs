//! The real programs: found or built, started with their output in a file, and never left running.

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

/// Names the directory that holds the programs, instead of building them.
pub const BIN_DIR_VARIABLE: &str = "COOKIESYNC_BIN_DIR";

/// Beginnings of the variables in which cargo describes the package whose program it runs.
const OWN_PACKAGE: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"];

/// Beginnings of the variables that the programs take for flags.
const OWN_VARIABLES: [&str; 3] = ["PRODUCER_", "CONSUMER_", "LIMITER_"];

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where the programs are that are started together.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The `producer` program.
    pub producer: PathBuf,
    /// The `consumer` program.
    pub consumer: PathBuf,
    /// The `bench` program, where it was asked for.
    pub bench: Option<PathBuf>,
}

impl Programs {
    /// [Finds](find) what takes cookies and what stores them.
    ///
    /// # Errors
    /// As [`find`].
    pub fn find() -> Result<Self> {
        let [producer, consumer] = find(["producer", "consumer"])?;
        Ok(Self {
            producer,
            consumer,
            bench: None,
        })
    }

    /// Like [`find`](Self::find), with what sends a load; in one go, so that cargo builds them side by side.
    ///
    /// # Errors
    /// As [`find`].
    pub fn find_with_bench() -> Result<Self> {
        let [producer, consumer, bench] = find(["producer", "consumer", "bench"])?;
        Ok(Self {
            producer,
            consumer,
            bench: Some(bench),
        })
    }
}

/// The programs that were found, by name, each with its version.
static FOUND: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The programs that this process has found so far, by name, each with what it says of its version: `0.1.0 (dist)`.
#[must_use]
pub fn found() -> Vec<(String, String)> {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.clone().into_iter().collect()
}

/// What a program says of its version; nothing when it says none.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let said = output.map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.trim()
        .split_once(' ')
        .map_or_else(String::new, |(_name, version)| version.to_owned())
}

/// Finds programs of this workspace: in `$COOKIESYNC_BIN_DIR`; or, when this runs under cargo, by building them with it in the
/// profile of this program; or beside this program. Blocks while cargo builds.
///
/// # Errors
/// When they cannot be built or are not there.
pub fn find<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    let programs = find_or_build(names)?;
    for (name, program) in names.into_iter().zip(&programs) {
        let version = version(program);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(name.to_owned(), version);
    }
    Ok(programs)
}

fn find_or_build<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    if let Some(dir) = env::var_os(BIN_DIR_VARIABLE) {
        return in_dir(names, Path::new(&dir)).with_context(|| format!("in ${BIN_DIR_VARIABLE}"));
    }
    if let (Some(cargo), Some(package)) = (env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR"))
    {
        return build(names, &cargo, Path::new(&package));
    }
    let own = env::current_exe().context("where is this program?")?;
    let dir = own.parent().context("this program lies in no directory")?;
    in_dir(names, dir).context("beside this program")
}

fn in_dir<const N: usize>(names: [&str; N], dir: &Path) -> Result<[PathBuf; N]> {
    let programs = names.map(|name| dir.join(name));
    match programs.iter().find(|program| !program.is_file()) {
        None => Ok(programs),
        Some(program) => bail!("there is no program {}", program.display()),
    }
}

/// Builds from the workspace's root and for all of it, so that what cargo has built there is not built again with other
/// features.
fn build<const N: usize>(names: [&str; N], cargo: &OsStr, package: &Path) -> Result<[PathBuf; N]> {
    let root = package
        .parent()
        .context("this package is not a workspace member")?;
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(["--profile", &own_profile()])
        .arg("--target-dir")
        .arg(target_dir())
        .stderr(Stdio::inherit());
    for name in names {
        command.args(["--bin", name]);
    }
    // What cargo tells this program of its own package would make build scripts that look at it run again,
    // and everything after them (ring, then all of TLS) be compiled again.
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if OWN_PACKAGE.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&variable);
        }
    }
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo could not build the programs ({})", output.status);
    }
    let built: BTreeMap<String, PathBuf> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Artifact>(line).ok())
        .filter_map(|artifact| Some((artifact.target.name, artifact.executable?)))
        .collect();
    match names.iter().find(|name| !built.contains_key(**name)) {
        None => Ok(names.map(|name| built[name].clone())),
        Some(name) => bail!("cargo built no program {name}"),
    }
}

/// The profile in which cargo built this program: the directory below its target directory says which.
fn own_profile() -> String {
    let own = env::current_exe().unwrap_or_default();
    let dir = own.strip_prefix(target_dir()).ok();
    let mut dirs = dir.into_iter().flat_map(Path::components);
    // A cross-compiled program lies one deeper, below the name of its system, and that has dashes.
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

/// Cargo's directory for what it makes, when this program was made by it; otherwise `target` here.
#[must_use]
pub fn target_dir() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    // One for another system has a tag of its own, inside.
    own.ancestors()
        .filter(|dir| dir.join("CACHEDIR.TAG").is_file())
        .last()
        .map_or_else(|| PathBuf::from("target"), Path::to_path_buf)
}

/// The installed program of this name: on the PATH, or where servers lie that are not for every user.
#[must_use]
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// A loopback address that nobody listens on and that this process has not handed out before.
///
/// It lies below the range from which systems take the local ports of outgoing connections, so a busy load
/// does not occupy it meanwhile.
///
/// # Errors
/// When no port is free.
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

/// The value of `flag` among arguments, as `--flag value` or `--flag=value`; of several, the last.
#[must_use]
pub fn given<'a, A: AsRef<str>>(args: &'a [A], flag: &str) -> Option<&'a str> {
    let at = args.iter().rposition(|arg| {
        let rest = arg.as_ref().strip_prefix(flag);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    let value = args[at].as_ref().split_once('=').map(|(_, value)| value);
    value.or_else(|| Some(args.get(at + 1).map_or("", AsRef::as_ref)))
}

/// A running program; it is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `program` with its output appended to the file `log`.
    ///
    /// It gets a process group of its own: a Ctrl-C in the terminal reaches only the parent, which then stops
    /// its children in order.
    ///
    /// # Errors
    /// When the file cannot be written or the program cannot be started.
    pub fn start(name: &str, program: &Path, args: &[String], log: &Path) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            program: program.to_owned(),
            args: args.to_vec(),
            log: log.to_owned(),
            child: spawn(program, args, log)?,
        })
    }

    /// Starts the same program again with the same arguments, after its end.
    ///
    /// # Errors
    /// When it still runs, or cannot be started.
    pub fn start_again(&mut self) -> Result<()> {
        if self.exited()?.is_none() {
            bail!("{} still runs", self.name);
        }
        self.child = spawn(&self.program, &self.args, &self.log)?;
        Ok(())
    }

    /// What it is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.exited()? {
            bail!("{} has ended ({status})", self.name);
        }
        // Not reaped yet, so the id is still this child's.
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Ends it at once, as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// How it ended; `None` while it runs.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it has not ended after `timeout`.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} still runs after {timeout:?}", self.name);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// When it has not ended after `timeout`; it is then killed.
    pub async fn stop(&mut self, timeout: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.exited()? {
            return Ok(status);
        }
        self.signal(Signal::TERM)?;
        let stopped = self.wait(timeout).await;
        if stopped.is_err() {
            self.kill()?;
        }
        stopped
    }

    /// Waits until the process's admin port says that it is ready.
    ///
    /// # Errors
    /// When the process ends, with its last words; or when it is not ready after `timeout`, with its reason.
    pub async fn wait_ready(&mut self, admin: &str, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            self.check()?;
            let why = match admin::readiness(admin).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => why,
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() >= deadline {
                bail!("{} is not ready after {timeout:?}: {why}", self.name);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until it accepts connections at `address`.
    ///
    /// # Errors
    /// When it ends before, or does not after `timeout`, with its last words.
    pub async fn wait_accepting(&mut self, address: SocketAddr, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while TcpStream::connect(address).await.is_err() {
            self.check()?;
            if Instant::now() >= deadline {
                bail!(
                    "{} accepts no connections after {timeout:?}; its last lines:\n{}",
                    self.name,
                    self.last_lines(20)
                );
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// # Errors
    /// When it has ended, with its last words.
    pub fn check(&mut self) -> Result<()> {
        match self.exited()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended ({status}); its last lines:\n{}",
                self.name,
                self.last_lines(20)
            ),
        }
    }

    /// The file that it writes its log to.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last `count` lines it wrote.
    #[must_use]
    pub fn last_lines(&self, count: usize) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let from = lines.len().saturating_sub(count);
        lines[from..].join("\n")
    }
}

fn spawn(program: &Path, args: &[String], log: &Path) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(program);
    // What is set for a program of the user's own is not meant for these.
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if OWN_VARIABLES.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&variable);
        }
    }
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

impl Drop for Process {
    fn drop(&mut self) {
        let ended: io::Result<()> = self.child.kill().and_then(|()| self.child.wait().map(drop));
        if let Err(error) = ended {
            eprintln!("cannot end {}: {error}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::given;

    #[test]
    fn value_of_a_flag_is_found_in_either_form() {
        let args = ["--a", "1", "--b=2", "--b-c=3", "--d", "--a=4"];
        assert_eq!(given(&args, "--a"), Some("4"));
        assert_eq!(given(&args, "--b"), Some("2"));
        assert_eq!(given(&args[..2], "--a"), Some("1"));
        assert_eq!(given(&args[4..5], "--d"), Some(""));
        assert_eq!(given(&args, "--c"), None);
    }
}
