//! Tests of the API: invalid requests, requests of untrusted clients, and operations of operators.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Cluster, Origin, Revalidator, TIMEOUT, answer};

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
    let mut client = testkit::http::HttpClient::connect(&one.address).await?;
    let authorized = client
        .get(
            "/v1/jobs",
            &[("Authorization", "Bearer a-token-of-16-bytes")],
        )
        .await?;
    assert_eq!(authorized.status, 200);
    Ok(())
}

/// Applies an operation to a job; returns the job, or the problem.
async fn operate(one: &Revalidator, id: &str, operation: &str) -> Result<String, String> {
    let path = format!("/v1/jobs/{id}/{operation}");
    match one.post(&path, "", "").await.unwrap() {
        (200, job) => Ok(job),
        (_, problem) => Err(problem),
    }
}

#[tokio::test]
async fn operators_create_pause_resume_cancel_and_acknowledge() -> Result<()> {
    let origin = Origin::start(Duration::from_millis(20), |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 5_000, |_| String::new())?;
    let mut one = cluster.revalidator(&[]).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    one.wait_job(&id, |job| job["counts"]["checked"].as_u64() > Some(0))
        .await?;
    let operate = async |name: &str| operate(&one, &id, name).await;
    assert!(
        operate("acknowledge")
            .await
            .unwrap_err()
            .contains("cancelled first")
    );
    operate("pause").await.unwrap();
    let (_, job) = one.get(&format!("/v1/jobs/{id}")).await?;
    let job: Value = serde_json::from_str(&job)?;
    assert_eq!(
        (&job["revalidatorState"], &job["reason"]),
        (&"Suspended".into(), &"paused by an operator".into())
    );
    let (_, listed) = one.get("/v1/jobs").await?;
    let listed: Value = serde_json::from_str(&listed)?;
    assert_eq!(listed["jobs"], serde_json::json!([job]));
    let of_job = [("job", &*id), ("app", "shop")];
    let checked = one
        .metric("revalidator_job_checked_assets", &of_job)
        .await?;
    assert!(checked > 0);
    assert!(one.metric("revalidator_job_assets", &of_job).await? > 0);
    operate("resume").await.unwrap();
    let checked = job["counts"]["checked"].as_u64();
    one.wait_job(&id, |job| {
        job["counts"]["checked"].as_u64() > checked.map(|it| it + 200)
    })
    .await?;
    operate("cancel").await.unwrap();
    one.wait_job(&id, |job| job["revalidatorState"] == "Cancelled")
        .await?;
    // One of the last ten ended jobs.
    assert!(one.metric("revalidator_job_assets", &of_job).await? > 0);
    assert!(operate("resume").await.unwrap_err().contains("has ended"));
    let resume = format!("/v1/jobs/{id}/resume");
    assert_eq!(one.post(&resume, "", "").await?.0, 409);
    operate("acknowledge").await.unwrap();
    assert_eq!(one.get("/v1/jobs/unknown").await?.0, 404);
    one.process.signal(Signal::TERM)?;
    assert!(
        one.process.wait(TIMEOUT).await?.success(),
        "{}",
        one.process.last_lines(20)
    );
    Ok(())
}

#[tokio::test]
async fn metric_shows_the_next_time_of_a_schedule() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "schedule = \"0 0 1 1 * UTC\"")?;
    let one = cluster.revalidator(&[]).await?;
    let labels = [("app", "shop")];
    let next = one
        .metric("revalidator_schedule_next_unix_seconds", &labels)
        .await?;
    let year = Duration::from_secs(366 * 24 * 3600);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    assert!(
        (now..now + year).contains(&Duration::from_secs(next)),
        "{next}"
    );
    assert_eq!(next % 86_400, 0);
    Ok(())
}
