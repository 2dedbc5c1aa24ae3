//! Tests of `cargo demo`, run as a user runs it.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{
    producer::Addresses,
    programs::{BIN_DIR_VARIABLE, find, free_address},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::harness::{TIMEOUT, bin_dir, within_timeout};

/// Deadline for a complete demo on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// A running demo.
struct Demo {
    _dir: TempDir,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    printed: Vec<String>,
}

impl Demo {
    async fn start(args: &[&str]) -> Result<Self> {
        let Addresses { http, grpc, admin } = Addresses::free()?;
        let consumer = free_address()?.to_string();
        let ports = [
            ("--http", &http),
            ("--grpc", &grpc),
            ("--producer-admin", &admin),
            ("--consumer-admin", &consumer),
        ];
        let ports = ports.map(|(flag, address)| [flag, address]).concat();
        Self::spawn(&[args, &ports].concat()).await
    }

    async fn spawn(args: &[&str]) -> Result<Self> {
        let [program] = tokio::task::spawn_blocking(|| find(["demo"])).await??;
        let dir = TempDir::new()?;
        let mut child = Command::new(program)
            .args(args)
            .arg("--dir")
            .arg(dir.path())
            .env(BIN_DIR_VARIABLE, bin_dir().await?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("the demo has no stdout")?;
        Ok(Self {
            _dir: dir,
            child,
            lines: BufReader::new(stdout).lines(),
            printed: Vec::new(),
        })
    }

    /// Reads until a line contains `part`.
    async fn wait_printed(&mut self, part: &str) -> Result<()> {
        loop {
            let line = within_timeout(part, self.lines.next_line()).await??;
            let line = line.with_context(|| format!("no {part}: {:#?}", self.printed))?;
            let is_printed = line.contains(part);
            self.printed.push(line);
            if is_printed {
                return Ok(());
            }
        }
    }

    fn interrupt(&self) -> Result<()> {
        let id = self.child.id().context("the demo has ended")?;
        let id = Pid::from_raw(id.try_into()?).context("the process id is 0")?;
        kill_process(id, Signal::INT).context("cannot signal the demo")
    }

    /// Waits for a successful end and returns all printed lines.
    async fn finish(mut self) -> Result<Vec<String>> {
        let reading = async {
            while let Some(line) = self.lines.next_line().await? {
                self.printed.push(line);
            }
            anyhow::Ok(self.child.wait().await?)
        };
        let status = timeout(RUN_TIMEOUT, reading).await;
        let status =
            status.with_context(|| format!("the demo does not end: {:#?}", self.printed))??;
        ensure!(status.success(), "{status}: {:#?}", self.printed);
        Ok(self.printed)
    }
}

#[tokio::test]
async fn demo_shows_a_lookup_and_sends_a_load_until_it_is_interrupted() -> Result<()> {
    let mut demo = Demo::start(&["--load", "500"]).await?;
    demo.wait_printed("sending 500 requests per second").await?;
    demo.interrupt()?;
    let printed = demo.finish().await?;
    let expected = r#"{"user_id":"alice","buyer_uids":{"17":"buyer-17-knows-alice"}}"#;
    let is_found = printed.iter().any(|line| line.contains(expected));
    ensure!(is_found, "{printed:#?}");
    Ok(())
}

#[tokio::test]
async fn invalid_demo_arguments_are_rejected_with_a_reason() -> Result<()> {
    let [program] = tokio::task::spawn_blocking(|| find(["demo"])).await??;
    for (args, message) in [
        (&["limits"][..], "unexpected argument 'limits'"),
        (&["--load", "0"], "number would be zero"),
    ] {
        let output = Command::new(&program)
            .args(args)
            .stdin(Stdio::null())
            .output();
        let output = timeout(TIMEOUT, output).await??;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(2) && errors.contains(message),
            "{args:?}: {errors}"
        );
    }
    Ok(())
}
