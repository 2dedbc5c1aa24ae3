//! Invalid requests, and requests of untrusted clients.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::harness::{Cluster, Origin, TIMEOUT, answer};

#[tokio::test]
async fn invalid_requests_are_rejected_and_create_nothing() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(200, "x")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "allow_delete = \"all\"")?;
    cluster.write_assets(&origin, 1, |_| String::new())?;
    let one = cluster.revalidator(&["--workers=0"]).await?;
    let (json, ndjson) = ("application/json", "application/x-ndjson");
    let described = "{\"app\":\"shop\"}";
    let good = format!("{{\"url\":\"http://{}/1\"}}", origin.address);
    let many = format!(
        "{{\"app\":\"shop\",\"assets\":[{}]}}",
        vec![good.as_str(); 101].join(",")
    );
    let long = format!(
        "{described}\n{{\"url\":\"https://x/\",\"key\":\"{}\"}}\n",
        "k".repeat(5000)
    );
    for (path, content_type, body, expected, detail) in [
        (
            "/v1/jobs",
            json,
            "{\"app\": \"other\"}",
            422,
            "unknown application",
        ),
        ("/v1/jobs", json, "{\"app\": \"bare\"}", 422, "no assets"),
        (
            "/v1/jobs",
            json,
            "{\"app\": \"shop\", \"revalidatorsNeeded\": 0}",
            422,
            "revalidatorsNeeded",
        ),
        (
            "/v1/jobs",
            json,
            "{\"app\": \"shop\", \"revalidatorsNeeded\": 65}",
            422,
            "revalidatorsNeeded",
        ),
        (
            "/v1/jobs",
            json,
            "{\"app\": \"shop\", \"filter\": {\"colour\": 1}}",
            422,
            "colour",
        ),
        (
            "/v1/jobs",
            json,
            "{\"app\": \"shop\", \"allowDelete\": \"all\"}",
            422,
            "confirm",
        ),
        ("/v1/jobs", json, "[]", 422, "not a JSON object"),
        ("/v1/jobs", json, "{", 422, "EOF"),
        ("/v1/jobs", "text/plain", "{}", 415, ""),
        (
            "/v1/jobs",
            ndjson,
            &format!("{described}\n{good}\nnot json\n"),
            422,
            "line 3",
        ),
        ("/v1/jobs", ndjson, &long, 413, "line 2"),
        (
            "/v1/jobs",
            ndjson,
            "{\"app\":\"shop\",\"colour\":1}\n",
            422,
            "colour",
        ),
        ("/v1/revalidate", json, &many, 422, "1 to 100"),
        (
            "/v1/revalidate",
            json,
            "{\"app\":\"shop\",\"assets\":[{\"key\":\"x\"}]}",
            422,
            "assets[0]",
        ),
        ("/v1/jobs/none/pause", json, "", 404, ""),
        ("/v1/jobs/none/explode", json, "", 404, ""),
        ("/v1/workers", json, "", 404, ""),
    ] {
        let (status, found) = one.post(path, content_type, body).await?;
        assert_eq!(status, expected, "{path} {body} {found}");
        assert!(found.contains(detail), "{path} {body} {found}");
    }
    let (_, jobs) = one.get("/v1/jobs").await?;
    assert_eq!(jobs.trim(), "{\"jobs\":[]}");
    assert_eq!(origin.total(), 0);
    Ok(())
}

#[tokio::test]
async fn tokens_are_required_if_there_is_a_token_file() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(200, "x")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    let file = cluster.path("tokens");
    std::fs::write(&file, "a-token-of-16-bytes\n")?;
    let one = cluster
        .revalidator(&[&format!("--token-file={}", file.display())])
        .await?;
    assert_eq!(one.get("/v1/jobs").await?.0, 401);
    let mut client = launcher::http::HttpClient::connect(&one.address).await?;
    let authorized = client
        .get(
            "/v1/jobs",
            &[("Authorization", "Bearer a-token-of-16-bytes")],
        )
        .await?;
    assert_eq!(authorized.status, 200);
    Ok(())
}

#[tokio::test]
async fn operators_pause_resume_cancel_and_acknowledge() -> Result<()> {
    let origin = Origin::start(Duration::from_millis(20), |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 5_000, |_| String::new())?;
    let mut one = cluster.revalidator(&[]).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    one.wait_job(&id, |job| job["counts"]["checked"].as_u64() > Some(0))
        .await?;
    let operate = async |name: &str| one.post(&format!("/v1/jobs/{id}/{name}"), "", "").await;
    assert_eq!(operate("acknowledge").await?.0, 409);
    assert_eq!(operate("pause").await?.0, 200);
    let job = one.job(&id).await?;
    assert_eq!(
        (&job["revalidatorState"], &job["reason"]),
        (&"Suspended".into(), &"paused by an operator".into())
    );
    let of_job = [("job", &*id), ("app", "shop")];
    let checked = one
        .metric("revalidator_job_checked_assets", &of_job)
        .await?;
    assert!(checked > 0);
    assert!(one.metric("revalidator_job_assets", &of_job).await? > 0);
    assert_eq!(operate("resume").await?.0, 200);
    let checked = job["counts"]["checked"].as_u64();
    one.wait_job(&id, |job| {
        job["counts"]["checked"].as_u64() > checked.map(|it| it + 200)
    })
    .await?;
    assert_eq!(operate("cancel").await?.0, 200);
    one.wait_job(&id, |job| job["revalidatorState"] == "Cancelled")
        .await?;
    assert_eq!(one.metric("revalidator_job_assets", &of_job).await?, 0);
    assert_eq!(operate("resume").await?.0, 409);
    assert_eq!(operate("acknowledge").await?.0, 200);
    one.process.signal(Signal::TERM)?;
    assert!(
        one.process.wait(TIMEOUT).await?.success(),
        "{}",
        one.process.last_lines(20)
    );
    Ok(())
}
