//! Tests of the program with real processes and sockets.

#![expect(clippy::unwrap_used, reason = "a test that fails panics")]

// Named so that the longest test starts first.
#[path = "program/kills.rs"]
mod a8_kills;
#[path = "program/broker.rs"]
mod broker;
#[path = "program/failures.rs"]
mod failures;
#[path = "program/foreign_maker.rs"]
mod foreign_maker;
#[path = "program/harness.rs"]
mod harness;
#[path = "program/long_run.rs"]
mod long_run;
#[path = "program/port.rs"]
mod port;

use std::{fs, time::Duration};

use anyhow::Result;
use http::{HeaderMap, HeaderValue, header};
use revalidator::{contents::Contents, digest::digest};
use serde_json::Value;

use harness::{Cluster, Origin, Revalidator, answer};

/// The number in a path.
pub(crate) fn number(path: &str) -> usize {
    path.trim_start_matches('/').parse().unwrap()
}

/// The lines of the assets file.
fn lines(cluster: &Cluster) -> Vec<Value> {
    let text = fs::read_to_string(cluster.path("assets.ndjson")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Batch numbers of all results of a job, per page.
async fn batches_by_page(one: &Revalidator, id: &str) -> Result<Vec<Vec<u64>>> {
    let (mut pages, mut next) = (Vec::new(), 0);
    loop {
        let (_, page) = one
            .get(&format!("/v1/jobs/{id}/results?from={next}"))
            .await?;
        let lines = page.lines().map(serde_json::from_str);
        let mut lines: Vec<Value> = lines.collect::<Result<_, _>>()?;
        next = lines.pop().unwrap()["next"].as_u64().unwrap();
        if lines.is_empty() {
            return Ok(pages);
        }
        let batches = lines.iter().map(|it| it["batch"].as_u64().unwrap());
        pages.push(batches.collect());
    }
}

#[tokio::test]
async fn changed_objects_are_replaced_gone_ones_removed_and_metadata_written_back() -> Result<()> {
    let origin = Origin::start(Duration::from_millis(2), |path, headers| {
        let number = number(path);
        match number % 10 {
            0 => answer(200, format!("new {number}")),
            1 => answer(404, "not found"),
            2 => answer(200, format!("old {number}")),
            _ if headers.contains_key(header::IF_NONE_MATCH) => {
                let mut headers = HeaderMap::new();
                headers.insert(header::ETAG, HeaderValue::from_static("\"again\""));
                (304, headers, "".into())
            }
            _ => answer(500, ""),
        }
    })
    .await?;
    let mut cluster = Cluster::start().await?;
    let place = format!("file:{}", cluster.path("contents").display());
    let more = format!("allow_delete = \"partial\"\nworkers = 2\ncontents = \"{place}\"");
    cluster.write_apps(&origin, &more)?;
    cluster.write_assets(&origin, 1150, |number| {
        digest(format!("old {number}").as_bytes())
    })?;
    let contents = Contents::parse(&place).unwrap();
    for number in 0..1150 {
        let path = contents.path(&format!("key-{number}"));
        fs::create_dir_all(path.parent().unwrap())?;
        fs::write(path, format!("old {number}"))?;
    }
    let one = cluster.revalidator(&["--workers=2"]).await?;
    let _two = cluster.revalidator(&["--workers=1", "--no-maker"]).await?;
    let id = one
        .create("{\"app\": \"shop\", \"allowDelete\": \"partial\"}")
        .await?;
    let job = one.wait_finished(&id).await?;
    let counts = &job["counts"];
    assert_eq!(
        (&job["assetCount"], &job["batchCount"]),
        (&1150.into(), &12.into())
    );
    for (outcome, count) in [
        ("checked", 1150),
        ("fresh", 920),
        ("changed", 115),
        ("gone", 115),
        ("deleted", 115),
        ("failed", 0),
    ] {
        assert_eq!(counts[outcome], count, "{outcome}: {job}");
    }
    assert!(origin.requests().values().all(|count| *count == 1));
    // Each process exports the workers of all processes.
    let samples = testkit::admin::metrics(&one.admin).await?;
    assert_eq!(
        samples.by_label("revalidator_concurrency", "worker").len(),
        3
    );
    let lines = lines(&cluster);
    assert_eq!(lines.len(), 1035);
    for line in &lines {
        let number: usize = line["key"].as_str().unwrap()[4..].parse().unwrap();
        let expected = if number.is_multiple_of(10) {
            format!("new {number}")
        } else {
            format!("old {number}")
        };
        assert_eq!(line["hash"], digest(expected.as_bytes()));
        assert_eq!(
            fs::read(contents.path(&format!("key-{number}")))?,
            expected.as_bytes()
        );
        let e_tag = if number % 10 > 2 { "\"again\"" } else { "" };
        assert_eq!(line["eTag"], e_tag, "{line}");
    }
    for number in (1..1150).step_by(10) {
        assert!(!contents.path(&format!("key-{number}")).exists());
    }
    let batches = batches_by_page(&one, &id).await?;
    assert!(batches.len() > 1 && batches.iter().all(|it| it.len() <= 10));
    let mut batches = batches.concat();
    batches.sort_unstable();
    assert_eq!(batches, (0..12).collect::<Vec<_>>());
    assert_eq!(
        one.metric("revalidator_jobs", &[("state", "finished")])
            .await?,
        1
    );
    // Nothing has changed since: the origin returns 200 with equal bodies, or 304.
    let id = one.create("{\"app\": \"shop\"}").await?;
    let job = one.wait_finished(&id).await?;
    assert_eq!(
        (&job["counts"]["checked"], &job["counts"]["fresh"]),
        (&1035.into(), &1035.into()),
        "{job}"
    );
    Ok(())
}

#[tokio::test]
async fn assets_of_a_request_are_checked_and_filters_select_assets() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |path, _| answer(200, path.to_owned())).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 30, |_| String::new())?;
    let one = cluster.revalidator(&[]).await?;
    let line = |number| format!("{{\"url\":\"http://{}/{number}\"}}\n", origin.address);
    let lines = std::iter::once("{\"app\":\"bare\"}\n".to_owned()).chain((0..250).map(line));
    let body: String = lines.collect();
    let (status, body) = one.post("/v1/jobs", "application/x-ndjson", &body).await?;
    assert_eq!(status, 201, "{body}");
    let id: Value = serde_json::from_str(&body)?;
    let job = one.wait_finished(id["jobId"].as_str().unwrap()).await?;
    // The application allows neither plain HTTP nor this network.
    assert_eq!(
        (&job["counts"]["kept"], &job["batchCount"]),
        (&250.into(), &3.into()),
        "{job}"
    );
    assert_eq!(origin.total(), 0);
    let check = format!(
        "{{\"app\": \"shop\", \"assets\": [{}, {}]}}",
        line(7).trim(),
        line(8).trim()
    );
    let (status, body) = one
        .post("/v1/revalidate", "application/json", &check)
        .await?;
    assert_eq!(status, 201, "{body}");
    let id: Value = serde_json::from_str(&body)?;
    let job = one.wait_finished(id["jobId"].as_str().unwrap()).await?;
    assert_eq!((&job["counts"]["changed"], origin.total()), (&2.into(), 2));
    let id = one
        .create("{\"app\": \"shop\", \"filter\": {\"prefix\": \"key-1\"}}")
        .await?;
    let job = one.wait_finished(&id).await?;
    assert_eq!(job["counts"]["changed"], 11);
    Ok(())
}
