//! Tests of the demos, run as a user runs them. The final ledger of `cargo demo limits` must balance, whether the
//! demo completes or is interrupted.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bench::{
    producer::Addresses,
    programs::{BIN_DIR_VARIABLE, find, free_address},
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::harness::{TIMEOUT, bin_dir, within_timeout};

/// Deadline for a complete demo on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

const SECONDS: &str = "8";

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
        let programs = || find(["demo", "revalidator"]);
        let [program, _] = tokio::task::spawn_blocking(programs).await??;
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

    /// Reads until a line reports queued cookies.
    async fn wait_queued(&mut self) -> Result<()> {
        loop {
            let line = within_timeout("a line", self.lines.next_line()).await??;
            let line = line.with_context(|| format!("no cookie is queued: {:#?}", self.printed))?;
            let has_queued = is_nonzero(&line, 3);
            self.printed.push(line);
            if has_queued {
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

/// Whether this is a status line with a number other than 0 in this column.
fn is_nonzero(line: &str, column: usize) -> bool {
    let columns = line.split("  ").map(str::trim);
    let columns: Vec<_> = columns.filter(|text| !text.is_empty()).collect();
    let is_status_line = columns.len() == 7 && columns[0].ends_with(" s");
    is_status_line && !columns[column].starts_with('0')
}

/// The number after `outcome` in the printed ledger.
fn count(printed: &[String], outcome: &str) -> Result<u64> {
    let lines = printed.iter();
    let mut found = lines.filter_map(|line| {
        line.trim_start_matches([' ', '=', '+'])
            .strip_prefix(outcome)
    });
    let number = found
        .next()
        .with_context(|| format!("{outcome}: {printed:#?}"))?;
    Ok(number.replace(' ', "").parse()?)
}

/// Checks the printed ledger and returns the numbers of accepted and released cookies.
fn check_ledger(printed: &[String]) -> Result<(u64, u64)> {
    let from = printed
        .iter()
        .position(|line| line.starts_with("ledger of the limit"));
    let ledger = &printed[from.with_context(|| format!("no ledger: {printed:#?}"))?..];
    let outcomes = [
        "released",
        "superseded",
        "dropped",
        "spooled",
        "queued",
        "dead",
        "parked",
    ];
    let mut sum = 0;
    for outcome in outcomes {
        sum += count(ledger, outcome)?;
    }
    let accepted = count(ledger, "accepted")?;
    ensure!(
        accepted == sum,
        "accepted {accepted}, sum of outcomes {sum}: {ledger:#?}"
    );
    Ok((accepted, count(ledger, "released")?))
}

#[tokio::test]
async fn limits_demo_ends_with_a_balanced_ledger() -> Result<()> {
    let demo = Demo::start(&["limits", "--seconds", SECONDS]).await?;
    let printed = demo.finish().await?;
    let (accepted, released) = check_ledger(&printed)?;
    let sent = 600 * SECONDS.parse::<u64>()?;
    // A busy machine may not send everything in time.
    ensure!(accepted <= sent && released < accepted, "{printed:#?}");
    let changed = printed
        .iter()
        .position(|line| line.as_str() == "changed the limit to 450 per second");
    let active = printed
        .iter()
        .position(|line| line == "version 2 of the limits is active");
    ensure!(changed.is_some() && changed < active, "{printed:#?}");
    for (column, what) in [
        (1, "in"),
        (2, "out"),
        (3, "queued"),
        (5, "dead"),
        (6, "requeued"),
    ] {
        let any = printed.iter().any(|line| is_nonzero(line, column));
        ensure!(any, "no {what}: {printed:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn interrupted_limits_demo_prints_its_ledger() -> Result<()> {
    let mut demo = Demo::start(&["limits"]).await?;
    demo.wait_queued().await?;
    demo.interrupt()?;
    let printed = demo.finish().await?;
    let (accepted, released) = check_ledger(&printed)?;
    ensure!(released < accepted, "{printed:#?}");
    // Queued cookies are spooled, not released early.
    let is_spooled = printed
        .iter()
        .any(|line| line.starts_with("saved queued cookies in"));
    ensure!(is_spooled, "{printed:#?}");
    Ok(())
}

#[tokio::test]
async fn deletion_demo_shows_the_lookup_before_and_after_and_a_receipt() -> Result<()> {
    let printed = Demo::start(&["deletion"]).await?.finish().await?;
    let mut found = printed.iter();
    for expected in [
        r#"  200 {"user_id":"alice","buyer_uids":{"17":"buyer-17","42":"buyer-42","99":"buyer-99"}}"#,
        r#"  202 {"accepted_at":""#,
        r#""nodes":{"confirmed":1,"pending":0,"unknown":0}"#,
        "  404 ",
    ] {
        ensure!(
            found.any(|line| line.contains(expected)),
            "{expected}: {printed:#?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn contracts_demo_shows_a_redirect_and_refused_matches() -> Result<()> {
    let printed = Demo::start(&["contracts"]).await?.finish().await?;
    let mut found = printed.iter();
    for expected in [
        "302 location: https://sync.example/done?u=alice&x=buyer-17",
        "400 parameter b (the buyer uid) is a macro",
        "451 the privacy signals",
        "cookiesync_optout=1  204 ",
        r#"{"user_id":"alice","buyer_uids":{"17":"buyer-17"}}"#,
        "uid_macro 1",
        "consent_missing 1",
    ] {
        ensure!(
            found.any(|line| line.contains(expected)),
            "{expected}: {printed:#?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn revalidate_demo_shows_changed_and_removed_matches() -> Result<()> {
    let demo = Demo::start(&["revalidate", "--matches", "300"]).await?;
    let printed = demo.finish().await?;
    let counts = printed.iter().filter_map(|line| {
        let counts = line.strip_prefix("  ")?.split(", ");
        let numbers = counts.map(|it| it.split(' ').next()?.parse::<u64>().ok());
        numbers.collect::<Option<Vec<_>>>()
    });
    let counts: Vec<_> = counts.collect();
    let [first, second] = &counts[..] else {
        bail!("{printed:#?}");
    };
    let [300, fresh, changed, gone, 0] = first[..] else {
        bail!("{printed:#?}");
    };
    ensure!(fresh + changed + gone == 300, "{printed:#?}");
    ensure!(changed > 0 && gone > 0, "{printed:#?}");
    // The other matches are recorded as confirmed. The node may not have stored all changes yet.
    let [checked, 0, changed, missing, deleted] = second[..] else {
        bail!("{printed:#?}");
    };
    assert_eq!((missing, deleted, checked), (gone, gone, changed + gone));
    Ok(())
}

#[tokio::test]
async fn invalid_demo_arguments_are_rejected_with_a_reason() -> Result<()> {
    let [program] = tokio::task::spawn_blocking(|| find(["demo"])).await??;
    for (args, message) in [
        (&["limit"][..], "unrecognized subcommand 'limit'"),
        (&["limits", "--seconds", "5"], "5 is not in 6..=3600"),
        (&["revalidate", "--matches", "5"], "5 is not in 100..=20000"),
        (&["limits", "--load", "5"], "unexpected argument '--load'"),
        (&["--load", "5", "limits"], "cannot be used with"),
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
