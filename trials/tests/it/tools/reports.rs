//! Tests of the reports of `bench`: their files, and the comparison of two reports.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use bench::report::{Plot, Report, ReportArgs, Row, Series, unit::RATE};
use tempfile::TempDir;

use crate::harness::{ProgramOutput, bench, run_to_end};

async fn run_bench(args: &[&str]) -> Result<ProgramOutput> {
    run_to_end(bench().await?, args, &[]).await
}

/// Writes a fake report of a scenario with one result and its plot, and returns its directory.
fn write(
    parent: &TempDir,
    name: &str,
    scenario: &str,
    rate: f64,
    failures: &[&str],
) -> Result<PathBuf> {
    let path = parent.path().join(name);
    let args = ReportArgs {
        report: Some(path.clone()),
        ..ReportArgs::default()
    };
    let mut report = Report::new(scenario, "Fake report");
    report.environment.command = vec!["bench".to_owned(), scenario.to_owned()];
    // Removes programs that other tests of this process have found.
    report.environment.programs.clear();
    report.failures = failures
        .iter()
        .map(|failure| (*failure).to_owned())
        .collect();
    let result = RATE.of("rate", rate).higher();
    let result = result.with_samples([rate, rate + 1.0, rate - 1.0]);
    report.add("Results", "", [Row::new("", [result])]);
    let line = Series::new("rate", [(0.0, rate), (1.0, rate)]);
    let plot = Plot::over_time("Rate", "cookies a second", vec![line]);
    report.plots = vec![plot];
    let dir = args.prepare(scenario)?.context("no directory")?;
    report.write(&dir)?;
    Ok(path)
}

#[tokio::test]
async fn reports_are_compared_with_a_noise_threshold() -> Result<()> {
    let parent = TempDir::new()?;
    let a = write(&parent, "a", "load", 1_000.0, &[])?;
    for (name, rate, failures, noise, code, word) in [
        ("same", 1_100.0, &[][..], "20", 0, "within noise"),
        ("faster", 1_500.0, &[], "20%", 0, "better"),
        ("slower", 700.0, &[], "20", 1, "worse"),
        ("tolerated", 700.0, &[], "40", 0, "within noise"),
        ("broken", 1_000.0, &["it broke"], "20", 1, "it broke"),
    ] {
        let b = write(&parent, name, "load", rate, failures)?;
        // A directory and its JSON file are the same report.
        let [a, b] = [
            a.display().to_string(),
            b.join("report.json").display().to_string(),
        ];
        let own = parent.path().join(format!("{name}-compared"));
        let flags = [
            format!("--noise={noise}"),
            format!("--report={}", own.display()),
        ];
        let output = run_bench(&["compare", &a, &b, &flags[0], &flags[1]]).await?;
        ensure!(
            output.code == Some(code),
            "{name}: {:?}: {}",
            output.code,
            output.text
        );
        ensure!(output.text.contains(word), "{name}: {}", output.text);
        let report = Report::read(&own)?;
        assert_eq!(
            report.failures.is_empty(),
            code == 0,
            "{name}: {:?}",
            report.failures
        );
    }
    Ok(())
}

#[tokio::test]
async fn incomparable_reports_are_rejected() -> Result<()> {
    let parent = TempDir::new()?;
    let load = write(&parent, "load", "load", 1.0, &[])?
        .display()
        .to_string();
    let store = write(&parent, "store", "store", 1.0, &[])?
        .display()
        .to_string();
    let nothing = parent.path().display().to_string();
    let optimized = parent.path().join("optimized");
    fs::create_dir(&optimized)?;
    let report = fs::read_to_string(Path::new(&load).join("report.json"))?;
    let report = report.replace("\"profile\": \"dev\"", "\"profile\": \"dist\"");
    fs::write(optimized.join("report.json"), report)?;
    let optimized = optimized.display().to_string();
    for (args, word) in [
        ([load.as_str(), store.as_str()], "different scenarios"),
        ([&load, &nothing], "report.json"),
        ([&load, &optimized], "dev build in A, but a dist build in B"),
        ([&load, "--noise=-1"], "--noise"),
    ] {
        let output = run_bench(&["compare", args[0], args[1], "--no-report"]).await?;
        ensure!(output.code != Some(0), "{args:?}: {}", output.text);
        ensure!(output.text.contains(word), "{args:?}: {}", output.text);
    }
    Ok(())
}
