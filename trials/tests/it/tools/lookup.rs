//! Tests that `bench lookup` stores users in each kind of server, finds exactly these, and recognizes wrong answers.

use anyhow::{Context as _, Result, ensure};
use bench::report::Report;
use tempfile::TempDir;
use testkit::{mongod, programs::free_address, redis, tools::redis_server_or_skip};

use crate::harness::{Consumer, Producer, bench, embedded, run_to_end};

/// The stored users. There are so many that few of those of another number or seed are stored.
const STORED: &str = "--users=300 --dsps=12";

/// Runs `bench lookup`; returns its exit code and report.
async fn lookup(flags: &str) -> Result<(Option<i32>, Report)> {
    let args = format!("lookup --no-report --json -d 300ms {flags}");
    let args: Vec<_> = args.split_whitespace().collect();
    let output = run_to_end(bench().await?, &args, &[]).await?;
    let printed = output.text.lines().find(|line| line.starts_with('{'));
    let printed = printed.with_context(|| output.text.clone())?;
    Ok((output.code, serde_json::from_str(printed)?))
}

async fn fill(url: &str) -> Result<()> {
    let (code, report) = lookup(&format!("--fill={url} {STORED}")).await?;
    ensure!(code == Some(0), "{}", report.summary());
    Ok(())
}

/// Looks up users of whom all, some or none are stored, in batches of these sizes, and then users with other buyer uids.
async fn check(url: &str, process_id: u32, batches: &[u32]) -> Result<()> {
    for batch in batches {
        let target = format!(
            "--target={url} --pid={process_id} --turns=1 -c 4 --batch={batch} --deadline-ms=1000"
        );
        for flags in ["--hit-share=0", "--hit-share=0.5 -l 50", "--hit-share=1"] {
            let (code, report) = lookup(&format!("{target} {STORED} {flags}")).await?;
            let summary = report.summary();
            ensure!(code == Some(0), "{flags}: {summary}");
            let value = |name: &str| {
                let value = report.value(&format!("{url}/: {name}"));
                value.with_context(|| format!("{name}: {summary}"))
            };
            let users = value("correct responses")? * f64::from(*batch);
            ensure!(users > 0.0 && value("p99.9")? > 0.0, "{summary}");
            ensure!(value("errors")? == 0.0, "{summary}");
            let hits = value("hits")?;
            match flags {
                "--hit-share=0" => ensure!(hits == 0.0, "{summary}"),
                "--hit-share=1" => ensure!(hits == users, "{summary}"),
                _ => ensure!(hits < users, "{summary}"),
            }
            ensure!(value("CPU per user")? >= 0.0, "{summary}");
        }
        for wrong in [
            "--users=300 --dsps=13",
            "--users=3000 --dsps=12",
            "--users=300 --dsps=12 --seed=2",
        ] {
            let (code, report) = lookup(&format!("{target} --hit-share=1 {wrong}")).await?;
            let failures = report.failures.join("\n");
            ensure!(code == Some(1), "{wrong}: {}", report.summary());
            ensure!(failures.contains("wrong response"), "{wrong}: {failures}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn users_are_found_in_redis() -> Result<()> {
    let Some(program) = redis_server_or_skip() else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let server = redis::start(&program, dir.path()).await?;
    fill(&server.uri()).await?;
    check(&server.uri(), server.process.id(), &[1, 100]).await
}

#[tokio::test]
async fn users_are_found_in_mongod() -> Result<()> {
    let dir = TempDir::new()?;
    let server = mongod::start(&dir.path().join("mongod")).await?;
    // Again: stored users are no error.
    fill(&server.uri()).await?;
    fill(&server.uri()).await?;
    check(&server.uri(), server.process.id(), &[1, 100]).await
}

#[tokio::test]
async fn users_are_found_in_a_consumer() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let lookup = free_address()?.to_string();
    let flags = ["--lookup", &lookup];
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &flags).await?;
    fill(&format!("http://{}/", producer.http)).await?;
    consumer.wait_written(300 * 12).await?;
    for scheme in ["http", "grpc"] {
        let url = format!("{scheme}://{lookup}");
        check(&url, consumer.process.id(), &[1, 100]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn targets_take_turns_and_are_compared_with_redis() -> Result<()> {
    let Some(program) = redis_server_or_skip() else {
        return Ok(());
    };
    let dirs = [TempDir::new()?, TempDir::new()?];
    let first = redis::start(&program, dirs[0].path()).await?;
    let second = redis::start(&program, dirs[1].path()).await?;
    let [a, b] = [first.uri(), second.uri()].map(|url| format!("{url}/"));
    let flags = format!("--fill={a} --fill={b} --target={a} --target={b} {STORED}");
    let (code, report) = lookup(&flags).await?;
    ensure!(code == Some(0), "{}", report.summary());
    let names = |title: &str| -> Result<Vec<String>> {
        let table = report.tables.iter().find(|table| table.title == title);
        let rows = &table.context("no table")?.rows;
        Ok(rows.iter().map(|row| row.name.clone()).collect())
    };
    let turns: Vec<_> = (1..=3)
        .flat_map(|turn| [&a, &b].map(|url| format!("{url} turn {turn}")))
        .collect();
    assert_eq!(names("Turns")?, turns);
    assert_eq!(names("Medians")?, [a.clone(), b.clone()]);
    let ratio = |url: &str| report.value(&format!("{url}: lookups ratio"));
    assert_eq!(ratio(&a), Some(1.0));
    let rate = |url: &str| report.value(&format!("{url}: lookups"));
    let expected = rate(&b).zip(rate(&a)).map(|(b, a)| b / a);
    let (ratio, expected) = ratio(&b).zip(expected).context("no ratio")?;
    // The order of divisions may differ.
    ensure!((ratio - expected).abs() < 1e-9, "{ratio}, not {expected}");
    Ok(())
}

#[tokio::test]
async fn invalid_targets_are_rejected() -> Result<()> {
    for (flags, word) in [
        ("", "--target"),
        ("--target=ftp://127.0.0.1:1", "expected http://"),
        ("--target=redis://127.0.0.1", "needs a port"),
        ("--target=redis://me:secret@127.0.0.1:1", "no credentials"),
        ("--target=redis://127.0.0.1:1", "failed to connect"),
        ("--fill=redis://127.0.0.1:1", "failed to connect"),
    ] {
        let args = format!("lookup --no-report {flags}");
        let args: Vec<_> = args.split_whitespace().collect();
        let output = run_to_end(bench().await?, &args, &[]).await?;
        ensure!(output.code != Some(0), "{flags}: {}", output.text);
        ensure!(output.text.contains(word), "{flags}: {}", output.text);
    }
    Ok(())
}
