//! Tests that `bench subscribe --fan-out` accounts for every cookie, writes its report and stops its processes.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use bench::report::Report;
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::programs::{BIN_DIR_VARIABLE, Process};

use crate::harness::{TIMEOUT, bench, bin_dir, children, run_to_end, wait_until};

async fn check_fan_out(call: &str) -> Result<()> {
    let parent = TempDir::new()?;
    let dir = parent.path().join("report");
    let report = format!("--report={}", dir.display());
    let call_flag = format!("--call={call}");
    let args = [
        "subscribe",
        "--fan-out=1,2",
        "-l",
        "2000",
        "-d",
        "1s",
        "--json",
        &call_flag,
        &report,
    ];
    let bin_dir = bin_dir().await?.display().to_string();
    let output = run_to_end(bench().await?, &args, &[(BIN_DIR_VARIABLE, &bin_dir)]).await?;
    ensure!(output.code == Some(0), "{:?}: {}", output.code, output.text);
    for name in ["report.json", "report.html"] {
        ensure!(fs::metadata(dir.join(name))?.len() > 0, "{name}");
    }
    let report = serde_json::from_slice::<Report>(&fs::read(dir.join("report.json"))?)?;
    assert_eq!(report.scenario, "fan-out");
    assert_eq!(report.failures, Vec::<String>::new());
    let printed = output.text.lines().find(|line| line.starts_with('{'));
    let printed: Report = serde_json::from_str(printed.context("no JSON was printed")?)?;
    assert_eq!(printed.tables, report.tables);
    assert!(report.findings[0].starts_with("Each additional stream"));
    for (name, streams) in [("1 stream", 1.0), ("2 streams", 2.0)] {
        let value = |result: &str| report.value(&format!("{name}: {result}"));
        let appended = value("appended").context("the step is missing")?;
        // Requests that are too late on a busy machine are not sent.
        assert!((1.0..=2_000.0).contains(&appended), "{appended}");
        assert_eq!(value("requests sent"), Some(appended));
        let (delivered, lost) = (value("delivered"), value("lost"));
        let settled = delivered
            .zip(lost)
            .map(|(delivered, lost)| delivered + lost);
        assert_eq!(settled, Some(appended * streams));
        assert!(value("accepted") > Some(0.0));
        assert!(value("deliveries") > Some(0.0));
        assert!(value("producer CPU per cookie") > Some(0.0));
        assert!(value("memory") > Some(1.0));
        assert_eq!(value("delivery p99").is_some(), call == "subscribe");
    }
    Ok(())
}

#[tokio::test]
async fn fan_out_of_subscribe_accounts_for_every_cookie() -> Result<()> {
    check_fan_out("subscribe").await
}

#[tokio::test]
async fn fan_out_of_get_cookies_accounts_for_every_cookie() -> Result<()> {
    check_fan_out("get-cookies").await
}

#[tokio::test]
async fn invalid_fan_out_flags_are_rejected() -> Result<()> {
    for (flags, word) in [
        (vec!["--fan-out=1,2,1"], "1 twice"),
        (vec!["--fan-out=1,10001"], "10000"),
        (
            vec!["--fan-out=1", "--rate=99999999999999"],
            "not an integer",
        ),
        (vec!["--fan-out=1", "--streams=2"], "--streams"),
        (vec!["--rate=1"], "--fan-out"),
    ] {
        let args = [&["subscribe", "--no-report"], flags.as_slice()].concat();
        let output = run_to_end(bench().await?, &args, &[]).await?;
        ensure!(output.code != Some(0), "{flags:?}: {}", output.text);
        ensure!(output.text.contains(word), "{flags:?}: {}", output.text);
    }
    Ok(())
}

#[tokio::test]
async fn interrupted_fan_out_stops_its_processes_and_reports() -> Result<()> {
    let parent = TempDir::new()?;
    let dir = parent.path().join("report");
    let bin_dir = bin_dir().await?.display().to_string();
    // `env` sets the variable for the program that it executes.
    let args = [
        format!("{BIN_DIR_VARIABLE}={bin_dir}"),
        bench().await?.display().to_string(),
        "subscribe".to_owned(),
        "--fan-out=1".to_owned(),
        "--rate=100".to_owned(),
        "--duration=10m".to_owned(),
        format!("--report={}", dir.display()),
    ];
    let log = parent.path().join("log");
    let mut fan_out = Process::start("bench", Path::new("/usr/bin/env"), &args, &log)?;
    let id = fan_out.id();
    let started = wait_until(TIMEOUT, "the producer runs", async || {
        Ok(children(id)?.len() == 1)
    });
    started.await?;
    let started = children(id)?;
    fan_out.signal(Signal::INT)?;
    let status = fan_out.wait(TIMEOUT).await?;
    ensure!(
        status.code() == Some(0),
        "{status}: {}",
        fan_out.last_lines(20)
    );
    for child in started {
        let is_there = Path::new(&format!("/proc/{child}")).exists();
        ensure!(!is_there, "process {child} still runs");
    }
    let report = serde_json::from_slice::<Report>(&fs::read(dir.join("report.json"))?)?;
    assert_eq!(report.findings, ["The run was interrupted."]);
    assert!(report.tables.is_empty());
    Ok(())
}
