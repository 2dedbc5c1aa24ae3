//! Tests of the operator's tool `cookiesync` with real producers and consumers, and with many simulated ones.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{admin, programs::free_address};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use crate::{
    deletions::start_producer,
    edge::security::certificates::Authority,
    harness::{Consumer, TIMEOUT, embedded, programs, run_to_end, wait_logged, wait_until},
};

const PRIVACY: &str = "token-of-the-privacy-service";
const OPERATOR: &str = "token-of-the-operators";

/// The tool, with the flags of one cluster.
struct Tool {
    flags: Vec<String>,
}

impl Tool {
    /// Runs a command with a generous deadline; returns its output. The output never contains a token.
    async fn run(&self, code: i32, command: &[&str]) -> Result<String> {
        let flags = self.flags.iter().map(String::as_str);
        let args: Vec<_> = flags
            .chain(["--timeout", "30s"])
            .chain(command.iter().copied())
            .collect();
        let output = run_to_end(&programs().await?.cookiesync, &args, &[]).await?;
        ensure!(
            output.code == Some(code),
            "{command:?}: {:?}\n{}",
            output.code,
            output.text
        );
        for token in [PRIVACY, OPERATOR] {
            ensure!(!output.text.contains(token), "{}", output.text);
        }
        Ok(output.text)
    }

    /// The rows of a command.
    async fn rows(&self, code: i32, command: &[&str]) -> Result<Vec<Value>> {
        let text = self.run(code, &[&["--json"], command].concat()).await?;
        let output: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let problems = output["problems"].as_array().context("problems")?;
        ensure!(problems.is_empty() == (code == 0), "{text}");
        output["rows"].as_array().cloned().context(text)
    }

    fn with(&self, flags: &[&str]) -> Self {
        let more = flags.iter().map(ToString::to_string);
        Self {
            flags: self.flags.iter().cloned().chain(more).collect(),
        }
    }
}

fn file(dir: &TempDir, name: &str, text: &str) -> Result<String> {
    let path = dir.path().join(name);
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

#[tokio::test]
async fn tool_shows_and_changes_a_cluster_and_names_a_killed_node() -> Result<()> {
    let dir = TempDir::new()?;
    let tokens = format!("privacy {PRIVACY} * delete\noperator {OPERATOR} * nodes\n");
    let tokens = file(&dir, "api-tokens", &tokens)?;
    let flags = ["--api-tokens", &tokens, "--id", "first"];
    let (first, first_api) = start_producer(&dir, &flags).await?;
    let flags = ["--api-tokens", &tokens, "--id", "second"];
    let (second, second_api) = start_producer(&dir, &flags).await?;
    let producers = [&first, &second];
    let store = |name| embedded(&dir.path().join(name));
    let here = Consumer::start(&dir, "here", &producers, &store("here"), &[]).await?;
    let mut away = Consumer::start(&dir, "away", &producers, &store("away"), &[]).await?;

    let privacy = file(&dir, "privacy", PRIVACY)?;
    let operator = file(&dir, "operator", OPERATOR)?;
    let cluster = format!(
        "producer = ['http://{}', 'http://{}']\nnode = ['http://{}', 'http://{}']\n\
         api = ['http://{first_api}', 'http://{second_api}']\napi_token_file = '{privacy}'\n",
        first.admin, second.admin, here.admin, away.admin
    );
    let cluster = file(&dir, "cluster.toml", &cluster)?;
    let tool = Tool {
        flags: vec!["--cluster".to_owned(), cluster],
    };

    let rows = tool.rows(0, &["status"]).await?;
    let of = |key: &str| rows.iter().map(|row| row[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["first", "second", "here", "away"]);
    assert_eq!(of("state"), ["ready"; 4]);
    let text = tool.run(0, &["status"]).await?;
    ensure!(
        text.trim_start().starts_with("PROCESS ") && text.contains("0.1.0"),
        "{text}"
    );
    let rows = tool.rows(0, &["nodes"]).await?;
    ensure!(
        rows.len() == 4 && rows.iter().all(|row| row["state"] == "connected"),
        "{rows:?}"
    );

    first.accept("alice", 17, "a-1").await?;
    for node in [&here, &away] {
        node.wait_lookup("alice", json!({"17": "a-1"})).await?;
    }
    let rows = tool.rows(0, &["lookup", "alice"]).await?;
    assert_eq!(rows[0]["all_nodes"], json!(["here", "away"]));
    let found = ["dsp", "buyer_uid"].map(|key| rows[0][key].clone());
    assert_eq!(found, [json!("17"), json!("a-1")]);
    ensure!(rows[0]["accepted_at"].is_string(), "{rows:?}");
    let rows = tool.rows(0, &["partners"]).await?;
    let partner = ["dsp", "accepted", "offered"].map(|key| rows[0][key].clone());
    assert_eq!(partner, [json!("17"), json!(1), Value::Null]);
    let rows = tool.rows(0, &["why", "alice", "17"]).await?;
    ensure!(rows.len() == 2 && rows[1]["reason"] == "found", "{rows:?}");
    let text = tool.run(1, &["why", "bob", "17"]).await?;
    ensure!(
        text.contains("not_stored") && !text.contains("PROBLEM  first"),
        "{text}"
    );

    let text = tool
        .run(0, &["log-filter", "here", "debug", "--for", "1s"])
        .await?;
    ensure!(text.contains("info"), "{text}");
    let restored = wait_until(TIMEOUT, "the filter is restored", async || {
        Ok(admin::get(&here.admin, "/log-filter").await?.body == "info\n")
    });
    restored.await?;
    wait_logged(&here.process, "log filter restored").await?;
    tool.run(2, &["log-filter", "nobody", "debug"]).await?;

    let rows = tool.rows(0, &["delete", "alice"]).await?;
    let receipt = rows[0]["receipt"].as_str().context("a receipt")?;
    ensure!(receipt.starts_with("first:"), "{receipt}");
    let tool_at_end = async || tool.run(0, &["receipt", receipt]).await;
    wait_until(TIMEOUT, "both nodes have confirmed", async || {
        Ok(tool_at_end().await.is_ok())
    })
    .await?;
    let rows = tool.rows(0, &["receipt", receipt]).await?;
    ensure!(rows[0]["confirmed"] == 2, "{rows:?}");
    let rows = tool.rows(0, &["lookup", "alice"]).await?;
    assert_eq!(rows[0]["buyer_uid"], "no match");
    tool.run(2, &["receipt", "third:1:1-1"]).await?;

    let rows = tool.rows(1, &["check"]).await?;
    let result = |check: &str| {
        rows.iter()
            .find(|row| row["check"] == *check)
            .map(|row| &row["result"])
    };
    for (check, expected) in [
        ("processes are ready", "ok"),
        ("versions and settings agree", "ok"),
        ("nodes are connected", "ok"),
        ("clocks agree", "ok"),
        ("APIs need tokens and use TLS", "ok"),
        ("--contracts lists the DSPs", "problem"),
        ("logs cover an outage", "ok"),
        ("Prometheus has the alerts and scrapes all", "not checked"),
    ] {
        assert_eq!(result(check), Some(&json!(expected)), "{check}");
    }

    away.process.kill()?;
    let rows = tool.rows(1, &["status"]).await?;
    let state = rows[0]["state"].as_str().unwrap_or_default();
    ensure!(
        state.starts_with("no response") && rows[0]["process"] == "consumer",
        "{rows:?}"
    );
    assert_eq!(rows[0]["address"], *away.admin);
    ensure!(
        rows[1..].iter().all(|row| row["state"] == "ready"),
        "{rows:?}"
    );
    let text = tool.run(1, &["nodes"]).await?;
    ensure!(
        text.contains("node away is absent at producer first"),
        "{text}"
    );
    tool.run(1, &["lookup", "alice"]).await?;

    let rows = tool.rows(0, &["delete", "bob", "--dsp", "17"]).await?;
    let receipt = rows[0]["receipt"].as_str().context("a receipt")?;
    let rows = tool.rows(1, &["receipt", receipt]).await?;
    ensure!(rows[0]["pending"].as_u64() >= Some(1), "{rows:?}");
    let text = tool.run(2, &["forget", "away"]).await?;
    ensure!(text.contains("lacks the permission `nodes`"), "{text}");
    let operators = tool.with(&["--api-token-file", &operator]);
    let text = operators.run(1, &["forget", "here"]).await?;
    ensure!(text.contains("stop it first"), "{text}");
    let rows = operators.rows(0, &["forget", "away"]).await?;
    let results: Vec<_> = rows.iter().map(|row| &row["result"]).collect();
    assert_eq!(results, ["forgotten", "forgotten"]);
    wait_until(TIMEOUT, "the receipt is done", async || {
        Ok(tool.run(0, &["receipt", receipt]).await.is_ok())
    })
    .await?;

    let nowhere = free_address()?.to_string();
    let none = Tool {
        flags: vec!["--node".to_owned(), format!("http://{nowhere}")],
    };
    for command in [
        &["status"][..],
        &["nodes"],
        &["lookup", "alice"],
        &["partners"],
        &["check"],
    ] {
        none.run(2, command).await?;
    }
    none.run(2, &["delete", "alice"]).await?;
    Ok(())
}

#[tokio::test]
async fn tool_verifies_the_certificate_of_an_api() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = Authority::new("ours")?;
    let (certificate, key) = ours.write_identity(dir.path(), "server")?;
    let flags = ["--tls-cert", &certificate, "--tls-key", &key];
    let flags = [&flags[..], &["--deletion-confirmations", "0"]].concat();
    let (_producer, api) = start_producer(&dir, &flags).await?;
    let [ca, other] = [(&ours, "ca.pem"), (&Authority::new("others")?, "other.pem")]
        .map(|(authority, name)| authority.write(dir.path(), name));
    let (ca, other) = (ca?, other?);
    let api = format!("https://{api}");
    let tool = Tool {
        flags: vec!["--api".to_owned(), api],
    };
    tool.with(&["--tls-ca", &ca])
        .run(0, &["delete", "alice"])
        .await?;
    let text = tool
        .with(&["--tls-ca", &other])
        .run(2, &["delete", "alice"])
        .await?;
    ensure!(text.contains("certificate"), "{text}");
    tool.run(2, &["delete", "alice"]).await?;
    Ok(())
}

/// The status of a simulated process, as a producer or consumer states it.
fn simulated(process: &str, name: &str) -> Value {
    let mut status = json!({
        "process": process, "name": name, "version": "0.1.0", "commit": "0123456789", "uptime_seconds": 90_000,
        "unix_micros": 1, "cookies_per_second": 7, "lost_last_hour": 0,
        "readiness": {"ready": true, "reasons": [], "components": []}, "settings": {"ttl": "14d"},
    });
    status[if process == "producer" {
        "nodes"
    } else {
        "producers"
    }] = json!([]);
    status
}

/// Serves a status to each client, and counts it.
async fn serve(listener: TcpListener, status: Value, served: Arc<AtomicUsize>) -> Result<()> {
    let body = status.to_string();
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            ensure!(stream.read_buf(&mut request).await? > 0, "no request");
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await?;
        served.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn status_of_103_processes_names_the_dead_ones_and_shows_the_others() -> Result<()> {
    const ALIVE: usize = 100;
    let dir = TempDir::new()?;
    let served = Arc::new(AtomicUsize::new(0));
    let mut lists = [Vec::new(), Vec::new()];
    let mut serving = JoinSet::new();
    for at in 0..ALIVE {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let is_producer = at < 3;
        let role = if is_producer { "producer" } else { "consumer" };
        let mut status = simulated(role, &format!("{role}-{at}"));
        match at {
            50 => status["settings"]["ttl"] = "7d".into(),
            51 => {
                let readiness = &mut status["readiness"];
                readiness["ready"] = false.into();
                readiness["reasons"] = json!([{"component": "store", "reason": "gone\u{1b}[2J"}]);
            }
            _ => {}
        }
        lists[usize::from(!is_producer)].push(format!("http://{}", listener.local_addr()?));
        serving.spawn(serve(listener, status, Arc::clone(&served)));
    }
    // Two refuse connections, and one accepts them but never responds.
    for _ in 0..2 {
        lists[1].push(format!("http://{}", free_address()?));
    }
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    lists[1].push(format!("http://{}", silent.local_addr()?));
    let [producers, nodes] = lists.map(|urls| json!(urls).to_string());
    let cluster = file(
        &dir,
        "cluster.toml",
        &format!("producer = {producers}\nnode = {nodes}\n"),
    )?;
    let program: &Path = &programs().await?.cookiesync;
    let args = [
        "--cluster",
        &cluster,
        "--json",
        "--timeout",
        "20s",
        "status",
    ];
    let output = run_to_end(program, &args, &[]).await?;
    assert_eq!(output.code, Some(1), "{}", output.text);
    assert_eq!(served.load(Ordering::Relaxed), ALIVE);
    let output: Value = serde_json::from_str(&output.text)?;
    let rows = output["rows"].as_array().context("rows")?;
    assert_eq!(rows.len(), ALIVE + 3);
    let count = |text: &str| {
        let states = rows.iter().filter_map(|row| row["state"].as_str());
        states.filter(|state| state.contains(text)).count()
    };
    let counts = [
        "refused",
        "no response in time",
        "not ready: store: gone",
        "ready",
    ]
    .map(count);
    assert_eq!(counts, [2, 1, 1, ALIVE]);
    let problems: Vec<_> = output["problems"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let ttl = problems
        .iter()
        .find(|it| it.starts_with("--ttl differs: 14d"));
    ensure!(
        ttl.is_some_and(|it| it.ends_with("7d at consumer-50")),
        "{problems:?}"
    );
    Ok(())
}
