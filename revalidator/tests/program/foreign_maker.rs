//! A maker in another language.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use launcher::tools::installed_or_skip;
use serde_json::Value;

use super::{
    harness::{Cluster, Origin, answer},
    number,
};

#[tokio::test]
async fn a13_maker_in_python_transmits_assets_and_reads_results() -> Result<()> {
    let Some(python) = installed_or_skip(&["python3"]) else {
        return Ok(());
    };
    let origin = Origin::start(Duration::ZERO, |path, _| {
        let number = number(path);
        answer(
            if number.is_multiple_of(7) { 500 } else { 200 },
            format!("{number}"),
        )
    })
    .await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 250, |_| String::new())?;
    let one = cluster.revalidator(&[]).await?;
    let assets = fs::File::open(cluster.path("assets.ndjson"))?;
    let address = cluster.nats.url();
    let address = address.strip_prefix("nats://").context("a URL")?.to_owned();
    let output = tokio::task::spawn_blocking(move || {
        let maker = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../examples/revalidator/maker.py"
        );
        let mut command = Command::new(python);
        command.args([maker, &address, "shop"]).stdin(assets);
        command.stderr(Stdio::inherit()).output()
    });
    let output = output.await??;
    ensure!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let results: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let count = |outcome: &str| results.iter().filter(|it| it["outcome"] == outcome).count();
    assert_eq!(
        (results.len(), count("failed"), count("changed")),
        (250, 36, 214)
    );
    assert!(
        results
            .iter()
            .all(|it| it["serverError"] == (it["outcome"] == "failed"))
    );
    // Failed assets were requested twice.
    assert_eq!(origin.total(), 250 + 36);
    let (_, jobs) = one.get("/v1/jobs").await?;
    let jobs: Value = serde_json::from_str(&jobs)?;
    let job = &jobs["jobs"][0];
    assert_eq!(
        (&job["serverState"], &job["revalidatorState"]),
        (&"Finished".into(), &"Finished".into()),
        "{job}"
    );
    Ok(())
}
