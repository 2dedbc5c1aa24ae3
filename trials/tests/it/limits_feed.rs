//! Producers that follow the limits of a limiter: as they change, when they are wrong, and without the limiter.

use std::{fs, net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use bench::{admin, http::HttpClient, programs::free_address};
use limiter::serve::{app::App, config::Config};
use runtime::metrics::Registry;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    Addresses, DRAIN_PATIENCE, PATIENCE, Producer, expect_exit, programs, run_to_end, wait_said,
    wait_until,
};

const LIMITS: &str = r#"
    unknown = "unlimited"
    [limits.dsp]
    keys = [17]
    mode = "police"
    rules = [ { id = "contract", rate = "100000/s", burst = 100 } ]
"#;

const TOKENS: &str = "admin admin-token-of-16b * administer\nfeed feed-token-of-16b * feed\n";

/// A limiter, and what a producer needs to follow it.
struct Followed {
    folder: TempDir,
    address: SocketAddr,
}

impl Followed {
    fn new() -> Result<Self> {
        let followed = Self {
            folder: TempDir::new()?,
            address: free_address()?,
        };
        fs::write(followed.file("of-limiter.toml"), LIMITS)?;
        fs::write(followed.file("tokens"), TOKENS)?;
        fs::write(followed.file("token"), "feed-token-of-16b\n")?;
        Ok(followed)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn limiter(&self) -> Result<App> {
        let path = |name: &str| self.file(name).display().to_string();
        let args = [
            "limiter".to_owned(),
            format!("--listen={}", self.address),
            "--admin=127.0.0.1:0".to_owned(),
            format!("--limits={}", path("of-limiter.toml")),
            format!("--state={}", path("state")),
            format!("--token-file={}", path("tokens")),
            "--drain-timeout=1s".to_owned(),
        ];
        App::start(Config::load(args.map(Into::into))?, Registry::new()).await
    }

    fn flags(&self) -> [String; 3] {
        [
            format!("--limits-feed=http://{}", self.address),
            format!("--limits-feed-token-file={}", self.file("token").display()),
            format!("--limits={}", self.file("of-producer.toml").display()),
        ]
    }

    async fn producer(&self, addresses: &Addresses) -> Result<Producer> {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Producer::start_at(&self.folder, addresses, &flags).await
    }

    /// Gives a limit these terms.
    async fn put(&self, limit: &str, terms: &Value) -> Result<()> {
        let body = terms.to_string();
        let mut client = HttpClient::connect(&self.address.to_string()).await?;
        let request = format!(
            "PUT /v1/limits/{limit} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin-token-of-16b\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send(request.as_bytes()).await?;
        let answer = client.answer().await?;
        ensure!([200, 201].contains(&answer.status), "{answer:?}");
        Ok(())
    }
}

/// DSP 17 dropped but for one.
fn policed() -> Value {
    json!({ "keys": [17], "mode": "police", "rules": [{ "id": "contract", "rate": "1/day" }] })
}

async fn limits(producer: &Producer) -> Result<Value> {
    let answer = admin::get(&producer.admin, "/status.json").await?;
    let status: Value = serde_json::from_str(&answer.body)?;
    Ok(status["limits"].clone())
}

async fn until_version(producer: &Producer, version: u64) -> Result<()> {
    wait_until(PATIENCE, "a version is in force", async || {
        Ok(limits(producer).await?["version"] == version)
    })
    .await
}

async fn dropped(producer: &Producer) -> Result<f64> {
    let samples = producer.metrics().await?;
    let name = figures::producer::SHAPING_DROPPED;
    Ok(samples.sum(name, &[]).unwrap_or(0.0))
}

#[tokio::test]
async fn limits_of_a_limiter_are_followed_and_outlive_it() -> Result<()> {
    let followed = Followed::new()?;
    let limiter = followed.limiter().await?;
    let addresses = Addresses::free()?;
    let mut producer = followed.producer(&addresses).await?;
    producer.accept("alice", 17, "a").await?;
    followed.put("dsp", &policed()).await?;
    until_version(&producer, 2).await?;
    for user in ["bob", "carol"] {
        producer.accept(user, 17, "b").await?;
    }
    ensure!(dropped(&producer).await? >= 1.0);

    // What a limiter can serve and this producer cannot go by changes nothing.
    let wrong = json!({ "keys": ["seventeen"], "rules": [{ "id": "r", "rate": "1/s" }] });
    followed.put("other", &wrong).await?;
    wait_until(PATIENCE, "it is refused", async || {
        let refused = &limits(&producer).await?["refused"];
        Ok(refused
            .as_str()
            .is_some_and(|why| why.contains("seventeen")))
    })
    .await?;
    ensure!(limits(&producer).await?["version"] == 2);
    let file = fs::read_to_string(followed.file("of-producer.toml"))?;
    ensure!(
        file.contains("1/day") && !file.contains("seventeen"),
        "{file}"
    );

    // Without the limiter the last good version is in force, also of a producer that starts.
    limiter.drain().await?;
    wait_said(&producer.process, "cannot be followed, trying again").await?;
    let status = producer.process.stop(DRAIN_PATIENCE).await?;
    expect_exit(&producer.process, status, 0)?;
    producer.process.start_again()?;
    producer.wait_ready().await?;
    for user in ["dave", "erin"] {
        producer.accept(user, 17, "b").await?;
    }
    ensure!(dropped(&producer).await? >= 1.0);

    // And when it is back, its newest again.
    let limiter = followed.limiter().await?;
    let good = json!({ "keys": [18], "rules": [{ "id": "r", "rate": "1/s" }] });
    followed.put("other", &good).await?;
    until_version(&producer, 2).await?;
    let refused = &limits(&producer).await?["refused"];
    ensure!(refused.is_null(), "{refused}");
    limiter.drain().await
}

#[tokio::test]
async fn limits_that_the_token_does_not_open_stop_no_producer() -> Result<()> {
    let followed = Followed::new()?;
    let tokens = TOKENS.replace("feed-token-of-16b *", "feed-token-of-16b dsp");
    fs::write(followed.file("tokens"), tokens)?;
    let limiter = followed.limiter().await?;
    let producer = followed.producer(&Addresses::free()?).await?;
    let partner = json!({ "keys": ["seventeen"], "rules": [{ "id": "r", "rate": "1/s" }] });
    followed.put("partner", &partner).await?;
    // Neither can this producer go by: what is unlimited would not count under it.
    let every_call = json!({ "every_call": true, "rules": [{ "id": "r", "rate": "99999/s" }] });
    followed.put("whole", &every_call).await?;
    followed.put("dsp", &policed()).await?;
    wait_until(
        PATIENCE,
        "all that is the token's is followed",
        async || {
            let file = fs::read_to_string(followed.file("of-producer.toml"))?;
            ensure!(!file.contains("seventeen"), "{file}");
            Ok(file.contains("1/day") && file.contains("99999/s"))
        },
    )
    .await?;
    let refused = &limits(&producer).await?["refused"];
    ensure!(refused.is_null(), "{refused}");
    limiter.drain().await
}

#[tokio::test]
async fn first_start_needs_the_limiter_or_a_version() -> Result<()> {
    let followed = Followed::new()?;
    let program = &programs().await?.producer;
    let flags = followed.flags();
    let mut args: Vec<&str> = flags.iter().map(String::as_str).collect();
    args.push("--check-config");
    let ended = run_to_end(program, &args, &[]).await?;
    ensure!(
        ended.words.contains("which would have its last version"),
        "{}",
        ended.words
    );
    fs::write(followed.file("of-producer.toml"), LIMITS)?;
    let producer = followed.producer(&Addresses::free()?).await?;
    ensure!(limits(&producer).await?["version"] == 1);
    let token = args.iter().find(|it| it.contains("token-file"));
    let token = *token.context("a token")?;
    let ended = run_to_end(program, &[token, "--check-config"], &[]).await?;
    ensure!(
        ended
            .words
            .contains("--limits-feed-token-file: needs --limits-feed"),
        "{}",
        ended.words
    );
    Ok(())
}
