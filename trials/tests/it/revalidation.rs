//! Test of the revalidation of matches with all programs: nodes, producer, NATS, and a partner in this process.

mod kills;
mod partner;

use std::{collections::BTreeMap, fs, time::Duration};

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
use tokio::time::{Instant, sleep};

use self::partner::{Partner, USERS, user};
use crate::{
    deletions::{call, millis_ago, post, start_producer},
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until},
};

const TOKEN: &str = "a-token-of-16-bytes";

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
    nats: Nats,
    /// Stores in MongoDB.
    here: Consumer,
    /// Has an embedded store.
    there: Consumer,
    producer: Producer,
    mongod: Mongod,
    /// Time of the matches.
    accepted: u128,
    dir: TempDir,
}

impl Servers {
    /// Starts all of them. The application has `more` settings, and the partner responds after `delay`.
    async fn start(more: &str, delay: Duration) -> Result<Self> {
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
        let accepted = millis_ago(Duration::from_secs(3600));
        let row = |number| {
            let user = user(number);
            format!("{{\"u\":\"{user}\",\"d\":7,\"b\":\"old-{number}\",\"t\":{accepted}}}\n")
        };
        let rows: String = (0..USERS).map(row).collect();
        let (status, summary) = post(&api, "/v1/cookies", &rows).await?;
        ensure!(status == 200, "{summary}");
        for node in [&here, &there] {
            node.wait_written(USERS as u64).await?;
        }
        let nodes = [here.admin.clone(), there.admin.clone()];
        let partner = Partner::start(producer.http.clone(), nodes, delay).await?;
        let apps = format!(
            "[apps.dsp-7]\nkind = \"cookies\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\nallow_delete = \"partial\"\nbrake = 0.5\n{more}\n[apps.dsp-7.cookies]\ndsp = 7\n\
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
            "serve".to_owned(),
            format!("--apps={}", self.dir.path().join("apps.toml").display()),
            format!("--nats={}", self.nats.url()),
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
    servers.partner.begin_job();
    let noted = revalidator.job(json!({ "olderThan": 1800 })).await?;
    // The brake does not apply to matches that are missing again.
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
