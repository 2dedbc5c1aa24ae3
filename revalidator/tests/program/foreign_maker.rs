//! Test of a job whose batches are sent by a program in another language.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::tools::installed_or_skip;
use tokio::task::spawn_blocking;

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
    let (assets, address) = (cluster.path("assets.ndjson"), cluster.nats.uri());
    let address = address.strip_prefix("nats://").context("a URL")?.to_owned();
    let maker = Arc::new(move |args: &[&str]| {
        let program = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../examples/revalidator/maker.py"
        );
        let mut command = Command::new(&python);
        command.args([program, &address]).args(args);
        command.stdin(fs::File::open(&assets).unwrap());
        command
    });
    let first = Arc::clone(&maker);
    let output = spawn_blocking(move || first(&["shop"]).stderr(Stdio::inherit()).output());
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
    // The job is suspended, so its maker waits until another process cancels it.
    origin.set(|_, _| answer(401, ""));
    let (id, ended, text) = spawn_blocking(move || cancelled(&*maker)).await??;
    assert!(
        !ended.success() && text.contains("cancelled by its maker"),
        "{text}"
    );
    let job = one.job(&id).await?;
    assert_eq!(
        (&job["serverState"], &job["revalidatorState"]),
        (&"Cancelled".into(), &"Cancelled".into()),
        "{job}"
    );
    Ok(())
}

/// Starts a maker, and cancels its job by another process. Returns the job, and how the maker ended.
fn cancelled(maker: &dyn Fn(&[&str]) -> Command) -> Result<(String, ExitStatus, String)> {
    let mut waiting = maker(&["shop"]).stderr(Stdio::piped()).spawn()?;
    let mut errors = BufReader::new(waiting.stderr.take().context("it is piped")?);
    let (mut id, mut text) = (String::new(), String::new());
    errors.read_line(&mut id)?;
    let id = id.trim().to_owned();
    let status = maker(&["--cancel", &id]).status()?;
    ensure!(status.success(), "{status}");
    errors.read_to_string(&mut text)?;
    Ok((id, waiting.wait()?, text))
}
