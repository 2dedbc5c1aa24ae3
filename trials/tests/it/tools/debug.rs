//! Tests of the profiles of a running process, and of access to the debug endpoints.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bench::load;
use tempfile::TempDir;
use testkit::{admin, http::HttpClient};
use tokio_util::sync::CancellationToken;

use crate::harness::{Addresses, Producer, TIMEOUT, expect_exit, wait_until, within_timeout};

/// Status and body of a response, without a timeout.
async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let mut client = HttpClient::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    client.send(request.as_bytes()).await?;
    let answer = client.response().await?;
    Ok((answer.status, answer.body))
}

/// Takes a profile, retrying while another one is taken.
async fn profile(address: &str, query: &str) -> Result<String> {
    let path = format!("/debug/profile?{query}");
    loop {
        match get(address, &path).await? {
            (200, body) => return Ok(body),
            (429, _) => {}
            (status, body) => bail!("{status}: {body}"),
        }
    }
}

#[tokio::test]
async fn profiles_are_disabled_by_default_and_name_their_flag() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    for path in ["/debug/profile", "/debug"] {
        let answer = admin::get(&producer.admin, path).await?;
        ensure!(
            answer.status == 404 && answer.body.contains("--debug-endpoints"),
            "{path}: {answer:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn profile_under_load_names_our_functions_and_excludes_a_second_profile() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--debug-endpoints"]).await?;
    let (plan, stop) = (producer.load(1)?, CancellationToken::new());
    let profiling = async {
        wait_until(TIMEOUT, "the load begins", async || {
            Ok(producer.appended().await? > 0)
        })
        .await?;
        for (path, status) in [
            ("/debug/profile?seconds=61", 400),
            ("/debug/nothing", 404),
            // Smuggles a header into the request.
            (
                "/debug/profile HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nX: ",
                403,
            ),
        ] {
            assert_eq!(get(&producer.admin, path).await?.0, status, "{path}");
        }
        let rejected = wait_until(TIMEOUT, "a concurrent profile is rejected", async || {
            let (status, _) = get(&producer.admin, "/debug/profile?seconds=1").await?;
            Ok(status == 429)
        });
        let (first, rejected) = tokio::join!(profile(&producer.admin, "seconds=2"), rejected);
        rejected?;
        let mut profile = first?;
        // On a busy machine, a profile may have no sample of the edge.
        for _ in 0..10 {
            if profile.contains("producer::edge") {
                break;
            }
            profile = self::profile(&producer.admin, "seconds=2").await?;
        }
        ensure!(profile.contains("producer::edge"), "{profile}");
        let is_folded = |line: &str| {
            let (stack, samples) = line.rsplit_once(' ').unwrap_or_default();
            stack.contains(';') && samples.parse::<u64>().is_ok_and(|samples| samples > 0)
        };
        ensure!(profile.lines().all(is_folded), "{profile}");
        anyhow::Ok(())
    };
    let both = async {
        let profiling = async {
            let profiled = profiling.await;
            stop.cancel();
            profiled
        };
        tokio::join!(load::run(&plan, &stop), profiling)
    };
    let (loaded, profiled) = within_timeout("the profiles", both).await?;
    profiled?;
    ensure!(loaded?.report().failures.is_empty());
    Ok(())
}

#[tokio::test]
async fn profile_error_names_the_missing_temporary_directory() -> Result<()> {
    let dir = TempDir::new()?;
    let addresses = Addresses::free()?;
    let producer = Producer::start_wrapped(
        &dir,
        &addresses,
        &["--debug-endpoints"],
        &|program, flags| {
            // `env` sets the variable and then executes the program.
            let program = program.display().to_string();
            let args = ["TMPDIR=/no/such".to_owned(), program].into_iter();
            (
                "/usr/bin/env".into(),
                args.chain(flags.to_owned()).collect(),
            )
        },
    )
    .await?;
    for _ in 0..2 {
        let (status, body) = get(&producer.admin, "/debug/profile?seconds=1").await?;
        ensure!(
            status == 500 && body.contains("/no/such") && body.contains("TMPDIR"),
            "{status}: {body}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn profile_does_not_delay_the_drain() -> Result<()> {
    let dir = TempDir::new()?;
    let flags = ["--debug-endpoints", "--drain-timeout=1h"];
    let mut producer = Producer::start(&dir, &flags).await?;
    let admin = producer.admin.clone();
    let profile = async {
        loop {
            let answer = get(&admin, "/debug/profile?seconds=60").await?;
            if answer.0 != 429 {
                return anyhow::Ok(answer);
            }
        }
    };
    let draining = async {
        wait_until(TIMEOUT, "a profile is being taken", async || {
            Ok(get(&admin, "/debug/profile?seconds=1").await?.0 == 429)
        })
        .await?;
        // Shorter than the profile and the drain timeout.
        let status = producer.process.stop(Duration::from_secs(45)).await?;
        expect_exit(&producer.process, status, 0)
    };
    let (profile, drained) = tokio::join!(profile, draining);
    let (status, body) = profile?;
    ensure!(status == 503, "{status}: {body}");
    drained
}
