//! Test of the revalidation of matches with all programs: nodes, producer, NATS, and a partner in this process.

mod kills;
mod partner;

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    admin,
    http::HttpClient,
    limiter::Limiter,
    mongod, nats,
    programs::{Process, ServerProcess, find, free_address},
};
use tokio::time::{Instant, sleep};

use self::partner::{Partner, USERS, user};
use crate::{
    deletions::{call, millis_ago, start_producer},
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until},
};

const TOKEN: &str = "a-token-of-16-bytes";
const NEW_TOKEN: &str = "another-token-of-16-bytes";

/// A line of the producer's API tokens.
fn api_token(number: usize, token: &str) -> String {
    format!("revalidator-{number} {token} * write,delete\n")
}

/// A line of the limiter's tokens.
fn limiter_token(number: usize, token: &str) -> String {
    format!("revalidator-{number} {token} *\n")
}

/// Matches of a node, by user.
type Rows = BTreeMap<String, Value>;

/// Reads all pages of one node after the other.
async fn all_pages(nodes: &[&Consumer]) -> Result<Rows> {
    let (mut rows, mut next, mut pages) = (Rows::new(), String::new(), 0);
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

/// All processes except revalidators. Both nodes have an old match of each user.
struct Servers {
    partner: Partner,
    nats: ServerProcess,
    /// Stores in MongoDB.
    here: Consumer,
    /// Has an embedded store.
    there: Consumer,
    producer: Producer,
    mongod: ServerProcess,
    /// Time of the matches.
    accepted: u128,
    dir: TempDir,
}

impl Servers {
    /// Starts all of them. The application has `more` settings, and the partner responds after `delay`.
    async fn start(more: &str, delay: Duration) -> Result<Self> {
        let dir = TempDir::new()?;
        let file = |name: &str, contents: String| {
            let path = dir.path().join(name).display().to_string();
            fs::write(&path, contents).map(|()| path)
        };
        let tokens = file("node-tokens", TOKEN.to_owned())?;
        let api_tokens = file("api-tokens", api_token(1, TOKEN))?;
        let token = file("token", TOKEN.to_owned())?;
        let (producer, api) = start_producer(&dir, &["--api-tokens", &api_tokens]).await?;
        let mongod = mongod::start(&dir.path().join("mongod")).await?;
        let flags = ["--cookies-token-file", &*tokens];
        let store = embedded(&dir.path().join("store"));
        let here = Consumer::start(&dir, "here", &[&producer], &mongod.uri(), &flags).await?;
        let there = Consumer::start(&dir, "there", &[&producer], &store, &flags).await?;
        let accepted = millis_ago(Duration::from_secs(3600));
        let row = |number| {
            let user = user(number);
            format!("{{\"u\":\"{user}\",\"d\":7,\"b\":\"old-{number}\",\"t\":{accepted}}}\n")
        };
        let rows: String = (0..USERS).map(row).collect();
        let head = format!(
            "POST /v1/cookies HTTP/1.1\r\ncontent-type: application/x-ndjson\r\nauthorization: Bearer {TOKEN}"
        );
        let (status, summary) = call(&api, &head, &rows).await?;
        ensure!(status == 200, "{summary}");
        for node in [&here, &there] {
            node.wait_written(USERS as u64).await?;
        }
        let nodes = [here.admin.clone(), there.admin.clone()];
        let partner = Partner::start(producer.http.clone(), nodes, delay).await?;
        let apps = format!(
            "[apps.dsp-7]\nkind = \"cookies\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\nallow_delete = \"partial\"\nmax_removals = 0.5\n{more}\n[apps.dsp-7.cookies]\ndsp = 7\n\
             after = \"1s\"\nsightings_apart = \"1s\"\nurl = \"http://{}/match?user={{user}}\"\n\
             nodes = {{ urls = [\"http://{}\", \"http://{}\", \"http://{}\"], token_file = \"{token}\" }}\n\
             producers = {{ urls = [\"http://{api}\"], token_file = \"{token}\" }}\n",
            partner.address,
            // The first node does not exist.
            free_address()?,
            here.admin,
            there.admin,
        );
        fs::write(dir.path().join("apps.toml"), apps)?;
        let nats = nats::start(dir.path()).await?;
        Ok(Self {
            partner,
            nats,
            here,
            there,
            producer,
            mongod,
            accepted,
            dir,
        })
    }

    fn nodes(&self) -> [&Consumer; 2] {
        [&self.here, &self.there]
    }

    async fn revalidator(&self, name: &str, flags: &[String]) -> Result<Revalidator> {
        let [program] = tokio::task::spawn_blocking(|| find(["revalidator"])).await??;
        let (api, admin) = (free_address()?.to_string(), free_address()?.to_string());
        let own = [
            format!("--apps={}", self.dir.path().join("apps.toml").display()),
            format!("--nats={}", self.nats.uri()),
            format!("--listen={api}"),
            format!("--admin={admin}"),
        ];
        let log = self.dir.path().join(format!("revalidator-{name}.log"));
        let mut process = Process::start(name, &program, &[&own, flags].concat(), &log)?;
        process.wait_ready(&admin, TIMEOUT).await?;
        Ok(Revalidator {
            process,
            api,
            admin,
        })
    }
}

/// A running revalidator with its addresses.
struct Revalidator {
    process: Process,
    api: String,
    admin: String,
}

impl Revalidator {
    /// Creates a job; returns its id.
    async fn create(&self, filter: Value) -> Result<String> {
        let job = json!({ "app": "dsp-7", "filter": filter, "allowDelete": "partial" });
        let head = "POST /v1/jobs HTTP/1.1\r\ncontent-type: application/json";
        let (status, body) = call(&self.api, head, &job.to_string()).await?;
        ensure!(status == 201, "{status} {body}");
        let job: Value = serde_json::from_str(&body)?;
        Ok(job["jobId"].as_str().context("an id")?.to_owned())
    }

    /// The status of a job once it has ended or `is_enough` returns true. Fails if the status does not change for a time.
    async fn wait(&self, id: &str, is_enough: impl Fn(&Value) -> bool) -> Result<Value> {
        let (mut last, mut deadline) = (Value::Null, Instant::now() + TIMEOUT);
        loop {
            // The broker may be unavailable for a moment.
            let response = admin::get(&self.api, &format!("/v1/jobs/{id}")).await;
            let response = response.ok().filter(|it| it.status == 200);
            if let Some(response) = response {
                let status: Value = serde_json::from_str(&response.body)?;
                if status["endedAt"].is_u64() || is_enough(&status) {
                    return Ok(status);
                }
                if status != last {
                    (last, deadline) = (status, Instant::now() + TIMEOUT);
                }
            }
            let lines = || self.process.last_lines(30);
            ensure!(Instant::now() < deadline, "{last}\n{}", lines());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs a job; returns its status.
    async fn job(&self, filter: Value) -> Result<Value> {
        let id = self.create(filter).await?;
        let is_suspended = |status: &Value| status["revalidatorState"] == "Suspended";
        let status = self.wait(&id, is_suspended).await?;
        ensure!(status["serverState"] == "Finished", "{status}");
        Ok(status)
    }
}

fn counts<const N: usize>(job: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| job["counts"][name].as_u64().unwrap_or_default())
}

#[tokio::test]
async fn matches_are_confirmed_changed_and_removed_and_browsers_win() -> Result<()> {
    let servers = Servers::start("", Duration::ZERO).await?;
    let nodes = servers.nodes();
    let before = all_pages(&nodes).await?;
    assert_eq!(before.len(), USERS);
    let revalidator = servers.revalidator("one", &[]).await?;
    let names = ["checked", "fresh", "changed", "gone", "deleted"];
    servers.partner.begin_job();
    let first = revalidator.job(json!({})).await?;
    assert_eq!(counts(&first, names), [2500, 2390, 60, 50, 0], "{first}");
    let uid = |uid: &str| json!({ "7": uid });
    for node in nodes {
        node.wait_lookup(&user(50), uid("new-50")).await?;
        node.wait_lookup(&user(51), uid("old-51")).await?;
        node.wait_lookup(&user(52), uid("old-52")).await?;
        // The response of the partner is newer, but its time is not.
        node.wait_lookup(&user(7), uid("browser")).await?;
    }
    // Confirmed matches are unchanged, and the times of changed matches are not later than the times of their pages.
    let after = all_pages(&nodes).await?;
    assert_eq!(after[&user(52)], before[&user(52)]);
    let changed = after[&user(50)]["t"].as_u64().context("a time")?;
    let minute_ago = u64::try_from(millis_ago(Duration::from_secs(60)))?;
    assert!(u128::from(changed) > servers.accepted && changed <= minute_ago);

    // Confirmed matches are recorded, so a filter with a longer age selects only the missing matches.
    // The two sightings must be a second apart.
    sleep(Duration::from_secs(1)).await;
    servers.partner.begin_job();
    let noted = revalidator.job(json!({ "olderThan": 1800 })).await?;
    // `max_removals` does not apply to matches that are missing again.
    assert_eq!(counts(&noted, names), [50, 0, 0, 50, 50], "{noted}");
    for node in nodes {
        wait_until(TIMEOUT, "missing matches are removed", async || {
            let path = format!("/v1/users/{}", user(51));
            Ok(admin::get(&node.admin, &path).await?.status == 404)
        })
        .await?;
        // One of these users is missing at the partner.
        for number in [1, 7] {
            node.wait_lookup(&user(number), uid("browser")).await?;
        }
    }
    servers.partner.begin_job();
    let last = revalidator.job(json!({})).await?;
    // A page omits matches of the last minute.
    let checked = counts(&last, names)[0];
    assert!((2440..=2455).contains(&checked), "{last}");
    assert_eq!(counts(&last, names), [checked, checked, 0, 0, 0], "{last}");
    Ok(())
}

#[tokio::test]
async fn rotated_tokens_of_nodes_producers_and_the_limiter_interrupt_no_job() -> Result<()> {
    const LIMITS: &str = "[limits.partner]\nrules = [{ id = \"peak\", rate = \"100000/s\" }]\n";
    let servers = Servers::start("limit = \"partner/match\"", Duration::ZERO).await?;
    let path = |name: &str| servers.dir.path().join(name);
    let line = |number: usize, token: &str| {
        [
            ("node-tokens", format!("{token}\n")),
            ("api-tokens", api_token(number, token)),
            ("limiter-tokens", limiter_token(number, token)),
        ]
    };
    let [old, new] = [line(1, TOKEN), line(2, NEW_TOKEN)];
    fs::write(path("limiter-tokens"), &old[2].1)?;
    let [program] = tokio::task::spawn_blocking(|| find(["limiter"])).await??;
    let flags = [format!("--token-file={}", path("limiter-tokens").display())];
    let limiter = Limiter::start(&program, servers.dir.path(), LIMITS, &flags).await?;
    let flags = [
        format!("--limiter=http://{}", limiter.address),
        format!("--limiter-token-file={}", path("token").display()),
    ];
    let revalidator = servers.revalidator("one", &flags).await?;
    let wait_reloaded = async |servers: &[(&str, &str)], times: u64| {
        for (program, admin) in servers {
            let name = format!("{program}_file_reloads_total");
            wait_until(TIMEOUT, &name, async || {
                let metrics = admin::metrics(admin).await?;
                Ok(metrics.count(&name, &[("outcome", "done")]) == times)
            })
            .await?;
        }
        anyhow::Ok(())
    };
    let of_servers = [
        ("consumer", &*servers.here.admin),
        ("consumer", &*servers.there.admin),
        ("producer", &*servers.producer.admin),
        ("limiter", &*limiter.admin),
    ];
    servers.partner.begin_job();
    revalidator.job(json!({})).await?;

    for (old, new) in old.iter().zip(&new) {
        fs::write(path(old.0), format!("{}{}", old.1, new.1))?;
    }
    wait_reloaded(&of_servers, 1).await?;
    fs::write(path("token"), NEW_TOKEN)?;
    wait_reloaded(&[("revalidator", &*revalidator.admin)], 1).await?;
    for (file, line) in &new {
        fs::write(path(file), line)?;
    }
    wait_reloaded(&of_servers, 2).await?;

    servers.partner.begin_job();
    let job = revalidator.job(json!({ "olderThan": 1800 })).await?;
    // Reads matches from the nodes, requests slots from the limiter, and sends deletions to the producer.
    assert_eq!(counts(&job, ["checked", "deleted"]), [50, 50], "{job}");
    Ok(())
}
