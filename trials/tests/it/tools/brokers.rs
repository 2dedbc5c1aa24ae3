//! Tests that `trials brokers` counts every cookie exactly, with each installed system.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bench::report::Report;
use testkit::{programs::BIN_DIR_VARIABLE, tools::installed_or_skip};

use crate::harness::{TRIALS, bin_dir, run_to_end};

#[tokio::test]
async fn every_system_delivers_all_cookies_at_a_low_rate() -> Result<()> {
    let bin_dir = bin_dir().await?.display().to_string();
    let args = "brokers --subscribers=2 -d 2s -l 10000 --json --no-report";
    let args: Vec<_> = args.split(' ').collect();
    let env = [(BIN_DIR_VARIABLE, &*bin_dir)];
    let output = run_to_end(Path::new(TRIALS), &args, &env).await?;
    ensure!(output.code == Some(0), "{:?}: {}", output.code, output.text);
    let printed = output.text.lines().find(|line| line.starts_with('{'));
    let report: Report = serde_json::from_str(printed.context("no JSON was printed")?)?;
    let redis = installed_or_skip(&["redis-server"]).map(|_| "redis");
    for system in ["producer", "nats", "jetstream"].into_iter().chain(redis) {
        let value = |name: &str| report.value(&format!("2 × {system}: {name}"));
        assert_eq!(value("lost"), Some(0.0), "{system}: {report:#?}");
        for name in ["accepted", "deliveries", "memory"] {
            assert!(value(name) > Some(0.0), "{system}, {name}: {report:#?}");
        }
    }
    Ok(())
}
