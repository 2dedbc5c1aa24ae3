//! Tests of the programs in `examples/`, unchanged, with real producers, a real consumer and a real `mongod`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{nats, programs::free_address, scrape::names};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    archive,
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, embedded, expect_exit, numbered_cookie,
        wait_until, within_timeout,
    },
    mongods::shared,
    stream::python_client,
};

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(file)
}

/// Waits until the reader `example` has opened a stream of this producer.
async fn wait_stream(producer: &Producer) -> Result<()> {
    wait_until(TIMEOUT, "the example opens a stream", async || {
        let labels = [("subscriber", "example"), ("call", "get_cookies")];
        Ok(producer.metrics().await?.count(names::STREAMS, &labels) == 1)
    })
    .await
}

#[tokio::test]
async fn python_example_reads_two_producers_and_reconnects_after_a_restart() -> Result<()> {
    let python = python_client::python().await?;
    let dirs = [TempDir::new()?, TempDir::new()?];
    let mut first = Producer::start(&dirs[0], &[]).await?;
    let second = Producer::start(&dirs[1], &[]).await?;
    let mut reader = Command::new(python)
        .arg(example("python/read_cookies.py"))
        .args(["--name", "example"])
        .args([&first, &second].map(|producer| producer.grpc.trim_start_matches("http://")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines =
        BufReader::new(reader.stdout.take().context("the reader has no stdout")?).lines();
    wait_stream(&first).await?;
    wait_stream(&second).await?;
    first.accept_numbers(1..=100).await?;
    second.accept_numbers(101..=200).await?;
    let status = first.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&first.process, status, 0)?;
    first.process.restart()?;
    first.wait_ready().await?;
    wait_stream(&first).await?;
    first.accept_numbers(201..=300).await?;

    let mut missing: BTreeSet<_> = (1..=300).map(numbered_cookie).collect();
    while !missing.is_empty() {
        let what = format!("{} more cookies are printed", missing.len());
        let line = within_timeout(&what, lines.next_line()).await??;
        let cookie: Value = serde_json::from_str(&line.context("the reader has ended")?)?;
        let text = |key: &str| cookie[key].as_str().unwrap_or_default().to_owned();
        let dsp_id = cookie["dsp_id"].as_u64().context("dsp_id is missing")?;
        missing.remove(&(text("user_id"), u32::try_from(dsp_id)?, text("buyer_uid")));
    }
    Ok(())
}

#[tokio::test]
async fn archive_example_reads_every_cookie_once_and_reports_what_is_missing() -> Result<()> {
    let python = python_client::python().await?;
    let dir = TempDir::new()?;
    let nats = nats::start(dir.path()).await?;
    archive::create_stream(&nats.uri(), archive::stream_config()).await?;
    let url = archive::archive_url(&nats);
    let mut producer = Producer::start(&dir, &["--archive", &url, "--id", "edge.1"]).await?;
    producer.accept_numbers(1..=300).await?;
    archive::wait_archived(&producer).await?;
    producer.process.drain(DRAIN_TIMEOUT).await?;
    // Messages of a stranger, and a message that is stored a second time.
    let context = archive::context(&nats.uri()).await?;
    let stream = context.get_stream("COOKIES").await?;
    // The largest message has cookies.
    let (mut largest, mut sequence) = (stream.get_raw_message(1).await?, 2);
    while let Ok(message) = stream.get_raw_message(sequence).await {
        if message.payload.len() > largest.payload.len() {
            largest = message;
        }
        sequence += 1;
    }
    let zeros = Bytes::from(vec![1; 1 << 10]);
    context.publish("cookies.stranger.1", zeros).await?.await?;
    context
        .publish(largest.subject, largest.payload)
        .await?
        .await?;

    let reading = Command::new(python)
        .arg(example("python/read_archive.py"))
        .args([&url, "--once"])
        .stdin(Stdio::null())
        .output();
    let output = within_timeout("the reader exits", reading).await??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}:\n{errors}", output.status);
    let invalid = errors
        .lines()
        .filter(|line| line.starts_with("invalid message"));
    ensure!(
        invalid.count() == 1 && errors.lines().count() == 1,
        "{errors}"
    );
    let rows = String::from_utf8(output.stdout)?;
    let mut expected: BTreeSet<_> = (1..=300).map(numbered_cookie).collect();
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row)?;
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let dsp_id = u32::try_from(row["dsp_id"].as_u64().context("a DSP")?)?;
        ensure!(
            expected.remove(&(text("user_id"), dsp_id, text("buyer_uid"))),
            "{row}"
        );
    }
    ensure!(expected.is_empty(), "{expected:?}");
    Ok(())
}

#[tokio::test]
async fn bidder_example_finds_buyer_uids_in_mongodb() -> Result<()> {
    let python = python_client::python().await?;
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    producer.accept("alice", 17, "a-17").await?;
    producer.accept("alice", 42, "a-42").await?;
    consumer
        .wait_lookup("alice", json!({"17": "a-17", "42": "a-42"}))
        .await?;
    for (user, known) in [
        ("alice", json!({"17": "a-17", "42": "a-42"})),
        ("bob", json!({})),
    ] {
        let lookup = Command::new(&python)
            .arg(example("python/bidder.py"))
            .args(["--timeout", "10", user, &mongod.uri(), "17", "42", "99"])
            .stdin(Stdio::null())
            .output();
        let output = within_timeout("the bidder exits", lookup).await??;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}:\n{errors}", output.status);
        assert_eq!(serde_json::from_slice::<Value>(&output.stdout)?, known);
    }
    Ok(())
}

/// The token of [`api_flags`].
const TOKEN: &str = "nKq3mB0xT5r8vYw1z4A7";

/// Flags of a producer with an API whose token is valid for these DSPs and this permission, and the URL of the API.
fn api_flags(dir: &TempDir, dsps: &str, permission: &str) -> Result<(Vec<String>, String)> {
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, format!("client {TOKEN} {dsps} {permission}\n"))?;
    let api = free_address()?.to_string();
    let flags = ["--api", &api, "--api-tokens", &tokens.display().to_string()];
    Ok((flags.map(str::to_owned).into(), format!("http://{api}")))
}

/// Runs an example of the API; returns its exit code, its stdout and its stderr.
async fn run_api_example(file: &str, args: &[&str], token: &str) -> Result<(i32, String, String)> {
    let run = Command::new("python3")
        .arg(example(file))
        .args(args)
        .env("COOKIESYNC_TOKEN", token)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within_timeout("the example exits", run).await??;
    let [stdout, stderr] = [output.stdout, output.stderr].map(String::from_utf8);
    let code = output.status.code().context("killed by a signal")?;
    Ok((code, stdout?, stderr?))
}

#[tokio::test]
async fn python_example_sends_matches_in_bulk_and_reports_rejected_lines() -> Result<()> {
    let dir = TempDir::new()?;
    let (mut flags, api) = api_flags(&dir, "1,2,3,4,5", "write")?;
    // The second request must be repeated.
    flags.push("--api-requests-per-second=1".to_owned());
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let producer = Producer::start(&dir, &flags).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    let mut lines: Vec<_> = (1..=3_000)
        .map(|it| format!("user-{it},1,b-{it}"))
        .collect();
    lines[4] = "user-5,1,".to_owned();
    lines[6] = "user-7,99,b".to_owned();
    lines[8] = "user-9,b".to_owned();
    let file = dir.path().join("matches.csv").display().to_string();
    std::fs::write(&file, lines.join("\n"))?;

    let script = "python/send_matches.py";
    let args = [&*api, &file, "--rows", "1500"];
    let (code, stdout, stderr) = run_api_example(script, &args, TOKEN).await?;
    ensure!(
        code == 1 && stdout == "2997 accepted, 3 rejected\n",
        "{code} {stdout} {stderr}"
    );
    for expected in [
        format!("{file}:5: buyer_invalid\n"),
        format!("{file}:7: forbidden_dsp\n"),
        format!("{file}:9: expected USER,DSP,BUYER UID"),
        "429: too many requests for this token; next attempt in".to_owned(),
    ] {
        ensure!(stderr.contains(&expected), "{expected}: {stderr}");
    }
    for user in [1, 3_000] {
        let expected = json!({ "1": format!("b-{user}") });
        consumer
            .wait_lookup(&format!("user-{user}"), expected)
            .await?;
    }
    // Repeated requests get the stored responses of their Idempotency-Key.
    let (_, stdout, _) = run_api_example(script, &args, TOKEN).await?;
    assert_eq!(stdout, "2997 accepted, 3 rejected\n");
    assert_eq!(producer.metrics().await?.count(names::APPENDED, &[]), 2_997);

    for (token, args, code, message) in [
        (
            "wrong",
            &[&*api, &*file][..],
            1,
            "error: 401: invalid token",
        ),
        (
            TOKEN,
            &[&api, "/none"],
            1,
            "No such file or directory: '/none'",
        ),
        (TOKEN, &["localhost", "x"], 2, "does not begin with http://"),
        (
            TOKEN,
            &[&api, &file, "--rows", "0"],
            2,
            "expected 1 to 100000",
        ),
    ] {
        let (found, _, stderr) = run_api_example(script, args, token).await?;
        let is_expected = found == code && stderr.contains(message);
        ensure!(
            is_expected && !stderr.contains("Traceback"),
            "{args:?}: {found} {stderr}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn python_example_deletes_users_and_continues_after_an_interruption() -> Result<()> {
    let dir = TempDir::new()?;
    let (flags, api) = api_flags(&dir, "*", "delete")?;
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let mut producer = Producer::start(&dir, &flags).await?;
    let stores = ["here", "away"].map(|name| embedded(&dir.path().join(name)));
    let here = Consumer::start(&dir, "here", &[&producer], &stores[0], &[]).await?;
    let mut away = Consumer::start(&dir, "away", &[&producer], &stores[1], &[]).await?;
    for user in ["alice", "bob", "carol"] {
        producer.accept(user, 1, "b").await?;
    }
    for node in [&here, &away] {
        node.wait_lookup("carol", json!({ "1": "b" })).await?;
    }
    let list = dir.path().join("users.txt").display().to_string();
    std::fs::write(&list, "alice\nbob\n")?;
    let receipts = dir.path().join("receipts");
    let script = "python/delete_users.py";
    let directory = receipts.display().to_string();
    let args = [&*api, &list, &directory, "--nodes", "2", "--wait"];
    let archived = |user: &str| -> Result<Value> {
        let file = std::fs::read(receipts.join(format!("{user}.json")))?;
        Ok(serde_json::from_slice(&file)?)
    };

    away.process.kill()?;
    let (code, stdout, stderr) =
        run_api_example(script, &[&args[..], &["0"]].concat(), TOKEN).await?;
    ensure!(
        code == 1 && stdout.contains("bob: 1 of 2 nodes confirmed, pending 1, unknown 0"),
        "{code} {stdout} {stderr}"
    );
    let open = archived("bob")?;
    assert_eq!(open["done"], false, "{open}");

    away.process.restart()?;
    away.wait_ready().await?;
    let args = [&args[..], &["30"]].concat();
    let (code, stdout, stderr) = run_api_example(script, &args, TOKEN).await?;
    ensure!(
        code == 0 && stdout.contains("2 of 2 deletions are done"),
        "{code} {stdout} {stderr}"
    );
    for user in ["alice", "bob"] {
        let record = archived(user)?;
        let expected = json!({ "confirmed": 2, "pending": 0, "unknown": 0 });
        assert_eq!(
            (&record["nodes"], &record["done"]),
            (&expected, &json!(true))
        );
    }
    assert_eq!(
        archived("bob")?["receipt"],
        open["receipt"],
        "deleted twice"
    );
    here.check_unknown(["alice", "bob"].map(str::to_owned).into_iter())
        .await?;

    // A receipt from before a restart of the producer is unknown, so the deletion is repeated.
    std::fs::write(
        receipts.join("carol.json"),
        json!({ "user": "carol", "receipt": open["receipt"], "done": false }).to_string(),
    )?;
    std::fs::write(&list, "alice\nbob\ncarol\n")?;
    producer.process.kill()?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    let (code, stdout, stderr) = run_api_example(script, &args, TOKEN).await?;
    ensure!(
        code == 0 && stdout.contains("3 of 3"),
        "{code} {stdout} {stderr}"
    );
    let record = archived("carol")?;
    assert_ne!(record["receipt"], open["receipt"]);
    assert_eq!(record["done"], true);
    here.check_unknown(["carol".to_owned()].into_iter()).await
}

/// Runs a shell script with these variables; returns its lines.
async fn run_script(file: &str, variables: &[(&str, &str)]) -> Result<Vec<String>> {
    let run = Command::new(example(file))
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within_timeout("the script exits", run).await??;
    let stdout = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{stdout}{:?}", output.stderr);
    Ok(stdout.lines().map(str::to_owned).collect())
}

#[tokio::test]
async fn deletion_script_shows_the_lookup_before_and_after_and_a_receipt() -> Result<()> {
    let dir = TempDir::new()?;
    let api = free_address()?.to_string();
    let producer = Producer::start(&dir, &["--api", &api]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    let variables = [
        ("EDGE", &*producer.http),
        ("API", &api),
        ("NODE", &consumer.admin),
    ];
    let printed = run_script("deletion.sh", &variables).await?;
    let expected = [
        r#"{"user_id":"alice","buyer_uids":{"17":"buyer-17","42":"buyer-42","99":"buyer-99"}}"#,
        r#"{"accepted_at":""#,
        r#""nodes":{"confirmed":1,"pending":0,"unknown":0}"#,
        "lookup: 404",
    ];
    let is_expected = |(line, part): (&String, &str)| line.contains(part);
    assert_eq!(printed.len(), expected.len(), "{printed:#?}");
    assert!(
        printed.iter().zip(expected).all(is_expected),
        "{printed:#?}"
    );
    Ok(())
}

#[tokio::test]
async fn contracts_script_shows_a_redirect_and_refused_matches() -> Result<()> {
    let dir = TempDir::new()?;
    let contracts = example("contracts.toml").display().to_string();
    let producer = Producer::start(&dir, &["--contracts", &contracts, "--opt-out"]).await?;
    let printed = run_script("contracts.sh", &[("EDGE", &producer.http)]).await?;
    let expected = [
        "valid        302 https://sync.example/done?u=alice&x=buyer-0017&",
        "macro        204 ",
        "pattern      204 ",
        "opted out    204 ",
        "observed     200 ",
        "blocked      403 ",
    ];
    let is_expected = |(line, part): (&String, &str)| line.starts_with(part);
    assert_eq!(printed.len(), expected.len(), "{printed:#?}");
    assert!(
        printed.iter().zip(expected).all(is_expected),
        "{printed:#?}"
    );
    Ok(())
}

#[tokio::test]
async fn limits_script_shows_how_the_queue_drains() -> Result<()> {
    let dir = TempDir::new()?;
    let (api, limits) = (free_address()?.to_string(), example("producer-limits.toml"));
    let limits = limits.display().to_string();
    let producer = Producer::start(&dir, &["--contracts", &limits, "--api", &api]).await?;
    let variables = [("API", &*api), ("ADMIN", &producer.admin)];
    let printed = run_script("dsp-limits.sh", &variables).await?;
    let [response, first, .., last] = &printed[..] else {
        anyhow::bail!("{printed:#?}");
    };
    ensure!(response.contains(r#""accepted":900"#), "{printed:#?}");
    ensure!(first.starts_with("accepted 900 queued "), "{printed:#?}");
    assert_eq!(last, "accepted 900 queued 0", "{printed:#?}");
    Ok(())
}

#[tokio::test]
async fn sync_plan_example_shows_that_the_plan_after_the_matches_is_empty() -> Result<()> {
    let dir = TempDir::new()?;
    let contracts = example("plan.toml").display().to_string();
    let producer = Producer::start(&dir, &["--contracts", &contracts, "--uid", "mint"]).await?;
    let (code, stdout, stderr) =
        run_api_example("python/sync_plan.py", &[&producer.http], "").await?;
    ensure!(code == 0, "{code} {stdout} {stderr}");
    let mut printed: Vec<_> = stdout.lines().map(str::trim).collect();
    // The order of the partners is random.
    for left_out in [1..4, 9..12] {
        printed[left_out].sort_unstable();
    }
    let expected = [
        "plan 1: no_cookie, 0 partners; HTTP cookies: uid",
        "alpha left out: No user id",
        "beta left out: No user id",
        "gamma left out: No user id",
        "plan 2: no_cookie, 3 partners; HTTP cookies: sy uid",
        "alpha (redirect) returned to /setuid: 200",
        "beta (redirect) returned to /setuid: 200",
        "gamma (iframe) returned to /setuid: 200",
        "plan 3: ok, 0 partners; HTTP cookies: sy uid",
        "alpha left out: Already in sync",
        "beta left out: Already in sync",
        "gamma left out: Already in sync",
    ];
    assert_eq!(printed, expected);
    assert_eq!(producer.appended().await?, 3);
    Ok(())
}
