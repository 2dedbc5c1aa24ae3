//! Revalidation of matches with all programs: nodes, producer, NATS, and a partner in this process.

use std::{collections::BTreeMap, fs, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bench::{
    admin,
    http::HttpClient,
    mongod::Mongod,
    nats::Nats,
    programs::{Process, find, free_address},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    deletions::{millis_ago, post, start_producer},
    harness::{Consumer, TIMEOUT, embedded, wait_until},
};

const TOKEN: &str = "a-token-of-16-bytes";

/// Several pages of a node.
const USERS: usize = 2_500;

fn user(number: usize) -> String {
    format!("user-{number:05}")
}

/// A partner that knows all users but the second of each fifty, and has a new uid for the first of each fifty.
struct Partner {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Partner {
    /// Before it responds for user 7, a browser syncs this user at `producer`, and `node` stores it.
    async fn start(producer: String, node: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (producer, node) = (producer.clone(), node.clone());
                connections.spawn(async move { drop(respond(stream, producer, node).await) });
            }
        });
        Ok(Self {
            address,
            _tasks: tasks,
        })
    }
}

/// Responds to the requests of one connection.
async fn respond(mut stream: TcpStream, producer: String, node: String) -> Result<()> {
    let mut request = Vec::new();
    loop {
        request.clear();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await?);
        }
        let text = std::str::from_utf8(&request)?;
        let path = text.split(' ').nth(1).context("a path")?;
        let number = path.strip_prefix("/match?user=user-").context("a user")?;
        let number: usize = number.parse()?;
        if number == 7 {
            admin::sync(&producer, &user(7), 7, "browser").await?;
            wait_until(TIMEOUT, "the sync is stored", async || {
                let path = format!("/v1/users/{}", user(7));
                Ok(admin::get(&node, &path).await?.body.contains("browser"))
            })
            .await?;
        }
        let (status, body) = match number % 50 {
            _ if number == 7 => (200, json!({ "uid": "partner" })),
            0 => (200, json!({ "uid": format!("new-{number}") })),
            1 => (404, Value::Null),
            _ => (200, json!({ "uid": format!("old-{number}") })),
        };
        let body = body.to_string();
        let length = body.len();
        let response = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(response.as_bytes()).await?;
    }
}

/// Reads all pages, from one node after the other.
async fn all_pages(nodes: &[&Consumer]) -> Result<BTreeMap<String, Value>> {
    let (mut rows, mut next, mut pages) = (BTreeMap::new(), String::new(), 0);
    loop {
        let path = format!("/v1/cookies?dsp=7&before={}{next}", u64::MAX / 2000);
        let node = &nodes[pages % nodes.len()].admin;
        let (token, deadline) = (format!("Bearer {TOKEN}"), Instant::now() + TIMEOUT);
        let body = loop {
            let mut client = HttpClient::connect(node).await?;
            let response = client.get(&path, &[("authorization", &token)]).await?;
            match response.status {
                200 => break response.body,
                // The node is not complete yet.
                503 => ensure!(Instant::now() < deadline, "{}", response.body),
                status => bail!("{status} {}", response.body),
            }
            sleep(Duration::from_millis(50)).await;
        };
        let lines: Vec<Value> = body
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        let (end, lines) = lines.split_last().context("an end")?;
        for line in lines {
            let user = line["u"].as_str().context("a user")?.to_owned();
            ensure!(
                rows.insert(user.clone(), line.clone()).is_none(),
                "{user} twice"
            );
        }
        pages += 1;
        match end["next"].as_str() {
            Some(position) => next = format!("&next={position}"),
            None => break,
        }
    }
    ensure!(pages > 2, "only {pages} pages");
    Ok(rows)
}

/// A running revalidator, and the address of its API.
struct Revalidator {
    process: Process,
    api: String,
}

impl Revalidator {
    async fn start(dir: &TempDir, nats: &Nats) -> Result<Self> {
        let [program] = tokio::task::spawn_blocking(|| find(["revalidator"])).await??;
        let (api, admin) = (free_address()?.to_string(), free_address()?.to_string());
        let flags = [
            "serve".to_owned(),
            format!("--apps={}", dir.path().join("apps.toml").display()),
            format!("--nats={}", nats.url()),
            format!("--listen={api}"),
            format!("--admin={admin}"),
        ];
        let log = dir.path().join("revalidator.log");
        let mut process = Process::start("the revalidator", &program, &flags, &log)?;
        process.wait_ready(&admin, TIMEOUT).await?;
        Ok(Self { process, api })
    }

    /// Runs a job; returns its status.
    async fn job(&self, filter: Value) -> Result<Value> {
        let job = json!({ "app": "dsp-7", "filter": filter, "allowDelete": "partial" });
        let head = "POST /v1/jobs HTTP/1.1\r\ncontent-type: application/json";
        let (status, body) = crate::deletions::call(&self.api, head, &job.to_string()).await?;
        ensure!(status == 201, "{status} {body}");
        let job: Value = serde_json::from_str(&body)?;
        let path = format!("/v1/jobs/{}", job["jobId"].as_str().context("an id")?);
        let deadline = Instant::now() + TIMEOUT;
        let status = loop {
            let status: Value = serde_json::from_str(&admin::get(&self.api, &path).await?.body)?;
            if status["endedAt"].is_u64() {
                break status;
            }
            let lines = || self.process.last_lines(30);
            ensure!(Instant::now() < deadline, "{status}\n{}", lines());
            sleep(Duration::from_millis(50)).await;
        };
        ensure!(status["serverState"] == "Finished", "{status}");
        Ok(status)
    }
}

#[tokio::test]
async fn matches_are_confirmed_changed_and_removed_and_browsers_win() -> Result<()> {
    let dir = TempDir::new()?;
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, TOKEN)?;
    let tokens = tokens.display().to_string();
    let (producer, api) = start_producer(&dir, &[]).await?;
    let mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let flags = ["--cookies-token-file", &*tokens];
    let store = embedded(&dir.path().join("store"));
    let here = Consumer::start(&dir, "here", &[&producer], &mongod.uri(), &flags).await?;
    let there = Consumer::start(&dir, "there", &[&producer], &store, &flags).await?;
    let nodes = [&here, &there];
    let accepted = millis_ago(Duration::from_secs(3600));
    let row = |number| {
        let user = user(number);
        format!("{{\"u\":\"{user}\",\"d\":7,\"b\":\"old-{number}\",\"t\":{accepted}}}\n")
    };
    let rows: String = (0..USERS).map(row).collect();
    let (status, summary) = post(&api, "/v1/cookies", &rows).await?;
    ensure!(status == 200, "{summary}");
    for node in nodes {
        node.wait_written(USERS as u64).await?;
    }
    let before = all_pages(&nodes).await?;
    assert_eq!(before.len(), USERS);

    let partner = Partner::start(producer.http.clone(), here.admin.clone()).await?;
    let apps = format!(
        "[apps.dsp-7]\nkind = \"cookies\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
         allow_networks = [\"127.0.0.0/8\"]\nallow_delete = \"partial\"\nbrake = 0.5\n[apps.dsp-7.cookies]\ndsp = 7\n\
         after = \"1s\"\nsightings_apart = \"1s\"\nurl = \"http://{}/match?user={{user}}\"\n\
         nodes = {{ urls = [\"http://{}\", \"http://{}\", \"http://{}\"], token_file = \"{tokens}\" }}\n\
         producers = {{ urls = [\"http://{api}\"] }}\n",
        partner.address,
        // The first node does not exist.
        free_address()?,
        here.admin,
        there.admin,
    );
    fs::write(dir.path().join("apps.toml"), apps)?;
    let nats = Nats::start(dir.path()).await?;
    let revalidator = Revalidator::start(&dir, &nats).await?;
    let counts = |job: &Value| {
        let of = |name| job["counts"][name].as_u64().unwrap_or_default();
        ["checked", "fresh", "changed", "gone", "deleted"].map(of)
    };
    let first = revalidator.job(json!({})).await?;
    assert_eq!(counts(&first), [2500, 2399, 51, 50, 0], "{first}");
    let uid = |uid: &str| json!({ "7": uid });
    for node in nodes {
        node.wait_lookup(&user(50), uid("new-50")).await?;
        node.wait_lookup(&user(51), uid("old-51")).await?;
        node.wait_lookup(&user(52), uid("old-52")).await?;
        // The response of the partner is newer, but its time is not.
        node.wait_lookup(&user(7), uid("browser")).await?;
    }
    // Confirmed matches are as before, and the times of changed ones are not later than those of their pages.
    let after = all_pages(&nodes).await?;
    assert_eq!(after[&user(52)], before[&user(52)]);
    let changed = after[&user(50)]["t"].as_u64().context("a time")?;
    let minute_ago = u64::try_from(millis_ago(Duration::from_secs(60)))?;
    assert!(u128::from(changed) > accepted && changed <= minute_ago);

    // Confirmed matches are noted, so a longer age leaves only the missing ones.
    let noted = revalidator.job(json!({ "olderThan": 1800 })).await?;
    // The brake does not apply to matches that are missing again.
    assert_eq!(counts(&noted), [50, 0, 0, 50, 50], "{noted}");
    for node in nodes {
        wait_until(TIMEOUT, "missing matches are removed", async || {
            let path = format!("/v1/users/{}", user(51));
            Ok(admin::get(&node.admin, &path).await?.status == 404)
        })
        .await?;
        node.wait_lookup(&user(7), uid("browser")).await?;
    }
    let last = revalidator.job(json!({})).await?;
    assert_eq!(counts(&last), [2449, 2449, 0, 0, 0], "{last}");
    Ok(())
}
