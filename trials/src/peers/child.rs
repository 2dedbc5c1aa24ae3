//! A further process of this program that writes one JSON object a line.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{ChildStdout, Command},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

/// How long it may take to end after it was asked to.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A child whose newest line is known; it is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Child<L> {
    name: &'static str,
    child: tokio::process::Child,
    id: Pid,
    newest: watch::Receiver<Option<L>>,
    reading: JoinSet<()>,
    log: PathBuf,
}

impl<L: DeserializeOwned + Copy + Send + Sync + 'static> Child<L> {
    /// Starts this program with `args`, in a process group of its own; what it complains of goes to a file in `folder`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(name: &'static str, args: &[String], folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let mut child = Command::new(env::current_exe()?)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&log)?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start a {name}"))?;
        let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let stdout = child.stdout.take().context("its output is piped")?;
        let (newest_tx, newest) = watch::channel(None);
        let mut reading = JoinSet::new();
        reading.spawn(read(stdout, newest_tx));
        Ok(Self {
            name,
            id: id.context("it has just been started")?,
            child,
            newest,
            reading,
            log,
        })
    }

    /// Its newest line.
    pub(super) fn newest(&self) -> Option<L> {
        *self.newest.borrow()
    }

    /// Waits for its first line.
    ///
    /// # Errors
    /// When it ends without one, with its last words; or when none comes in time.
    pub(super) async fn first(&mut self, patience: Duration) -> Result<L> {
        let waited = timeout(patience, self.newest.wait_for(Option::is_some)).await;
        let line = waited.map(|line| line.ok().and_then(|line| *line));
        match line {
            Ok(Some(line)) => Ok(line),
            Ok(None) => bail!("{}", self.last_words()),
            Err(_) => bail!("the {} is not ready after {patience:?}", self.name),
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the {} has ended ({status})", self.name);
        }
        // Not reaped yet, so the id is still this child's.
        Ok(kill_process(self.id, signal)?)
    }

    /// Waits until it ends by itself, and gives its last line.
    ///
    /// # Errors
    /// When it ends badly or without one, with its last words.
    pub(super) async fn ended(&mut self) -> Result<L> {
        while let Some(read) = self.reading.join_next().await {
            read?;
        }
        let status = self.child.wait().await?;
        match self.newest() {
            Some(line) if status.success() => Ok(line),
            _ => bail!("{} ({status})", self.last_words()),
        }
    }

    /// Asks it to end, and gives its last line.
    ///
    /// # Errors
    /// As [`ended`](Self::ended), and when it does not end in time.
    pub(super) async fn end(mut self) -> Result<L> {
        self.signal(Signal::TERM)
            .with_context(|| self.last_words())?;
        match timeout(END_PATIENCE, self.ended()).await {
            Ok(line) => line,
            Err(_) => bail!("the {} does not end", self.name),
        }
    }

    fn last_words(&self) -> String {
        let words = fs::read_to_string(&self.log).unwrap_or_default();
        let words = words.lines().last().unwrap_or("nothing");
        format!("the {} ended and said: {words}", self.name)
    }
}

/// Keeps the newest line that can be read, to the end.
async fn read<L: DeserializeOwned>(stdout: ChildStdout, newest: watch::Sender<Option<L>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(line) = serde_json::from_str(&line) {
            newest.send_replace(Some(line));
        }
    }
}
