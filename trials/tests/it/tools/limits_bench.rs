//! `bench limits` measures every way to decide and a limiter at a rate, checks what is answered, and leaves no process behind.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bench::{
    programs::{BIN_DIR_VARIABLE, Process, find},
    report::Report,
    stat::Stat,
    tools::installed_or_skip,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Ended, PATIENCE, bench, children, run_to_end, wait_until};

/// The folder with the limiter, which cargo has built for its own tests.
async fn bin_dir() -> Result<PathBuf> {
    let [limiter] = tokio::task::spawn_blocking(|| find(["limiter"])).await??;
    let folder = limiter.parent().context("a program lies in a folder")?;
    Ok(folder.to_owned())
}

async fn bench_limits(flags: &[&str]) -> Result<Ended> {
    let bin_dir = bin_dir().await?.display().to_string();
    let args = [&["limits", "--counters=50", "-c", "4"], flags].concat();
    run_to_end(bench().await?, &args, &[(BIN_DIR_VARIABLE, &bin_dir)]).await
}

/// Its JSON object; fails unless it ended well.
fn outcome(ended: &Ended) -> Result<Value> {
    ensure!(ended.code == Some(0), "{:?}: {}", ended.code, ended.words);
    let printed = ended.words.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(printed.context("no JSON")?)?)
}

#[tokio::test]
async fn each_way_lets_every_call_go_and_tells_what_it_took() -> Result<()> {
    let parent = TempDir::new()?;
    let folder = parent.path().join("report");
    let report = format!("--report={}", folder.display());
    let flags = ["-p", "2", "-d", "100ms", "--json", &report];
    let printed = outcome(&bench_limits(&flags).await?)?;
    let has_redis = installed_or_skip(&["redis-server"]).is_some();
    let mut expected = vec!["local", "governor", "http"];
    let of_redis = ["lease", "exact", "window"];
    if has_redis {
        expected.splice(2..2, of_redis);
        assert_eq!(printed["left_out"], Value::Array(Vec::new()));
    } else {
        assert_eq!(printed["left_out"].as_array().map(Vec::len), Some(3));
    }
    let ways = printed["ways"].as_array().context("no ways")?;
    let names: Vec<_> = ways.iter().filter_map(|way| way["way"].as_str()).collect();
    assert_eq!(names, expected);
    for (way, name) in ways.iter().zip(expected) {
        assert!(way["decisions"].as_u64() > Some(0), "{way}");
        assert!(way["per_second"].as_f64() > Some(0.0), "{way}");
        assert_eq!(way["wrong"], 0, "{way}");
        let latency = &way["latency_micros"];
        assert!(latency["p50"].as_f64() > Some(0.0), "{way}");
        assert!(latency["max"].as_f64() >= latency["p99"].as_f64(), "{way}");
        let of_limiter = way["service_cpu_micros"].is_number();
        assert_eq!(of_limiter, name == "http", "{way}");
        let of_server = way["redis_cpu_micros"].is_number();
        assert_eq!(of_server, of_redis.contains(&name), "{way}");
    }
    let report = Report::read(&folder)?;
    assert_eq!(report.scenario, "limits");
    assert_eq!(report.faults, Vec::<String>::new());
    assert_eq!(report.tables[0].rows.len(), ways.len());
    Ok(())
}

#[tokio::test]
async fn calls_at_a_rate_are_all_answered_beside_one_who_never_reads() -> Result<()> {
    let flags = [
        "--rate=500",
        "-d",
        "1s",
        "--mix=delay=2,increment=1,reserve=1",
        "--stalled=1",
        "--json",
        "--no-report",
    ];
    let printed = outcome(&bench_limits(&flags).await?)?;
    let service = &printed["service"];
    assert_eq!(
        (&service["rate"], &service["sent"]),
        (&500.into(), &500.into())
    );
    assert_eq!(
        (&service["unsent"], &service["unanswered"]),
        (&0.into(), &0.into())
    );
    let calls = service["calls"].as_array().context("no calls")?;
    let answered = calls.iter().filter_map(|it| it["answered"].as_u64());
    assert_eq!((calls.len(), answered.sum::<u64>()), (3, 500));
    assert!(calls.iter().all(|it| it["wrong"] == 0), "{service}");
    assert!(service["latency_micros"]["p99"].as_f64() > Some(0.0));
    assert!(service["late_micros"].is_object(), "{service}");
    assert!(service["stalled"]["sent_bytes"].as_u64() > Some(0));
    assert_eq!(printed["ways"], Value::Array(Vec::new()));

    let flags = [
        "--rate=max",
        "-p",
        "4",
        "-d",
        "200ms",
        "--json",
        "--no-report",
    ];
    let printed = outcome(&bench_limits(&flags).await?)?;
    let service = &printed["service"];
    assert!(service["rate"].is_null() && service["sent"].as_u64() > Some(0));
    Ok(())
}

#[tokio::test]
async fn flags_that_make_no_sense_are_refused() -> Result<()> {
    for (flags, word) in [
        (vec!["--ways=local,http,local"], "local twice"),
        (vec!["--ways=redis"], "--ways"),
        (vec!["--counters=0"], "--counters"),
        (vec!["--rate=0"], "--rate"),
        (vec!["--rate=max", "--ways=http"], "--ways"),
        (vec!["--rate=1", "--mix=put=1"], "--mix"),
        (vec!["--rate=1", "--stalled=2048"], "2048"),
        (vec!["--stalled=1"], "--rate"),
        (vec!["--ways=exact", "--redis=/none/such"], "/none/such"),
    ] {
        let args = [&["limits", "--no-report"], flags.as_slice()].concat();
        let ended = run_to_end(bench().await?, &args, &[]).await?;
        ensure!(ended.code != Some(0), "{flags:?}: {}", ended.words);
        ensure!(ended.words.contains(word), "{flags:?}: {}", ended.words);
    }
    Ok(())
}

#[tokio::test]
async fn interrupted_run_ends_its_limiter_and_reports() -> Result<()> {
    let parent = TempDir::new()?;
    let folder = parent.path().join("report");
    // The variable for the child only: through `env`, which becomes it.
    let args = [
        format!("{BIN_DIR_VARIABLE}={}", bin_dir().await?.display()),
        bench().await?.display().to_string(),
        "limits".to_owned(),
        "--rate=100".to_owned(),
        "--duration=10m".to_owned(),
        format!("--report={}", folder.display()),
    ];
    let log = parent.path().join("log");
    let mut run = Process::start("bench limits", Path::new("/usr/bin/env"), &args, &log)?;
    let id = run.id();
    let started = wait_until(PATIENCE, "the limiter is asked", async || {
        let children = children(id)?;
        let busy = children.iter().filter_map(|id| Stat::of(*id));
        Ok(busy
            .map(|stat| stat.user + stat.system)
            .any(|it| !it.is_zero()))
    });
    started.await?;
    let started = children(id)?;
    run.signal(Signal::INT)?;
    let status = run.wait(PATIENCE).await?;
    ensure!(status.code() == Some(0), "{status}: {}", run.last_lines(20));
    for child in started {
        let is_there = Path::new(&format!("/proc/{child}")).exists();
        ensure!(!is_there, "{child} still runs");
    }
    let report = Report::read(&folder)?;
    assert_eq!(report.outcome["interrupted"], true);
    Ok(())
}
