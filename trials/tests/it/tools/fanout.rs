//! `bench fanout` accounts for every cookie, says what it found, and leaves no process behind.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use bench::{
    programs::{BIN_DIR_VARIABLE, Process},
    report::Report,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{PATIENCE, bench, bin_dir, children, machine, run_to_end, wait_until};

#[tokio::test]
async fn fanout_accounts_for_every_cookie_of_both_calls() -> Result<()> {
    let _machine = machine().await;
    let parent = TempDir::new()?;
    let folder = parent.path().join("report");
    let report = format!("--report={}", folder.display());
    let mut args = vec![
        "fanout",
        "--subscribers=1,2",
        "-l",
        "2000",
        "-d",
        "1s",
        "--json",
        &report,
    ];
    args.extend(["-c", "4", "-p", "4", "--log-bytes", "64MiB"]);
    let bin_dir = bin_dir().await?.display().to_string();
    let ended = run_to_end(bench().await?, &args, &[(BIN_DIR_VARIABLE, &bin_dir)]).await?;
    ensure!(ended.code == Some(0), "{:?}: {}", ended.code, ended.words);
    for name in [
        "report.json",
        "report.html",
        "deliveries.svg",
        "cpu.svg",
        "memory.svg",
    ] {
        ensure!(fs::metadata(folder.join(name))?.len() > 0, "{name}");
    }

    let report = Report::read(&folder)?;
    assert_eq!(report.scenario, "fanout");
    assert_eq!(report.faults, Vec::<String>::new());
    let printed = ended.words.lines().find(|line| line.starts_with('{'));
    let printed: Value = serde_json::from_str(printed.context("no JSON")?)?;
    assert_eq!(
        printed["steps"].as_array().map(Vec::len),
        report.outcome["steps"].as_array().map(Vec::len)
    );
    let steps = printed["steps"].as_array().context("no steps")?;
    let kinds: Vec<_> = steps
        .iter()
        .map(|step| (step["call"].as_str(), step["subscribers"].as_u64()))
        .collect();
    let calls = ["subscribe", "get-cookies"];
    let expected = calls.map(|call| [1, 2].map(|count| (Some(call), Some(count))));
    assert_eq!(kinds, expected.concat());
    for step in steps {
        let count = |name: &str| step[name].as_u64().unwrap_or(u64::MAX);
        // What a busy machine makes late is not sent, and counted.
        assert_eq!(count("sent") + count("unsent"), 2_000, "{step}");
        assert!(count("accepted") > 0, "{step}");
        assert_eq!(count("accepted"), count("sent"), "{step}");
        assert_eq!(count("appended"), count("accepted"), "{step}");
        assert_eq!(
            count("deliveries") + count("lost"),
            count("accepted") * count("subscribers"),
            "{step}"
        );
        assert_eq!(step["unaccounted"], 0, "{step}");
        assert!(
            step["memory"]["peak_bytes"].as_u64() > Some(1 << 20),
            "{step}"
        );
        assert_eq!(
            step["delivery_micros"].is_object(),
            step["call"] == "subscribe",
            "{step}"
        );
    }
    assert_eq!(printed["marginals"].as_array().map(Vec::len), Some(2));
    Ok(())
}

#[tokio::test]
async fn steps_that_make_no_sense_are_refused() -> Result<()> {
    for (flag, word) in [
        ("--subscribers=1,2,1", "1 twice"),
        ("--subscribers=1,10001", "10000"),
        ("--rate=99999999999999", "whole number"),
        ("--duration=0s", "--duration"),
        ("--duration=500years", "--duration"),
    ] {
        let ended = run_to_end(bench().await?, &["fanout", flag, "--no-report"], &[]).await?;
        ensure!(ended.code != Some(0), "{flag}: {}", ended.words);
        ensure!(ended.words.contains(word), "{flag}: {}", ended.words);
    }
    Ok(())
}

#[tokio::test]
async fn step_that_fails_is_a_fault_in_the_report() -> Result<()> {
    let parent = TempDir::new()?;
    let folder = parent.path().join("report");
    let report = format!("--report={}", folder.display());
    let args = ["fanout", "--subscribers=1", "--log-bytes=none", &report];
    let bin_dir = bin_dir().await?.display().to_string();
    let ended = run_to_end(bench().await?, &args, &[(BIN_DIR_VARIABLE, &bin_dir)]).await?;
    ensure!(ended.code == Some(1), "{:?}: {}", ended.code, ended.words);
    let report = Report::read(&folder)?;
    ensure!(
        matches!(report.faults.as_slice(), [fault] if fault.contains("could not be finished")),
        "{:?}",
        report.faults
    );
    Ok(())
}

#[tokio::test]
async fn interrupted_fanout_ends_its_processes_and_reports() -> Result<()> {
    let parent = TempDir::new()?;
    let folder = parent.path().join("report");
    let bin_dir = bin_dir().await?.display().to_string();
    // The variable for the child only: through `env`, which becomes it.
    let args = [
        format!("{BIN_DIR_VARIABLE}={bin_dir}"),
        bench().await?.display().to_string(),
        "fanout".to_owned(),
        "--subscribers=1".to_owned(),
        "--rate=100".to_owned(),
        "--duration=10m".to_owned(),
        format!("--report={}", folder.display()),
    ];
    let log = parent.path().join("log");
    let mut fanout = Process::start("bench fanout", Path::new("/usr/bin/env"), &args, &log)?;
    let id = fanout.id();
    let started = wait_until(PATIENCE, "producer, readers and load run", async || {
        Ok(children(id)?.len() == 3)
    });
    started.await?;
    let started = children(id)?;
    fanout.signal(Signal::INT)?;
    let status = fanout.wait(PATIENCE).await?;
    ensure!(
        status.code() == Some(0),
        "{status}: {}",
        fanout.last_lines(20)
    );
    for child in started {
        ensure!(
            !Path::new(&format!("/proc/{child}")).exists(),
            "{child} still runs"
        );
    }
    let report = Report::read(&folder)?;
    assert_eq!(report.outcome["interrupted"], true);
    assert_eq!(report.outcome["steps"], Value::Array(Vec::new()));
    Ok(())
}
