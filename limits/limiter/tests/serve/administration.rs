//! Limits that are PUT and deleted, what they override, and what of that outlives a limiter.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use launcher::http::{Answer, HttpClient};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::harness::{Limiter, PATIENCE, body};

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'r', rate = '1000/30days', algorithm = 'fixed_window', aligned = 'first_call' }]
[limits.b]
keys = ['7']
rules = [{ id = 'r', rate = '1/s' }]
";

const ADMIN: (&str, &str) = ("Authorization", "Bearer admin-token-of-16b");

fn tokens(folder: &TempDir) -> Result<String> {
    let file = folder.path().join("tokens");
    fs::write(
        &file,
        "admin admin-token-of-16b * administer\npart part-token-of-16 b administer\n\
         user one-token-of-16b *\nfeed feed-token-of-16b * feed\n",
    )?;
    Ok(format!("--token-file={}", file.display()))
}

async fn change(
    client: &mut HttpClient,
    method: &str,
    limit: &str,
    headers: &[(&str, &str)],
    terms: &Value,
) -> Result<Answer> {
    let body = terms.to_string();
    let mut request = format!(
        "{method} /v1/limits/{limit} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    client
        .send(format!("{request}\r\n{body}").as_bytes())
        .await?;
    client.answer().await
}

fn etag(answer: &Answer) -> String {
    let tag = answer.head.split("etag: ").nth(1);
    let tag = tag.and_then(|it| it.split('\r').next());
    tag.unwrap_or_default().to_owned()
}

fn terms(rate: &str) -> Value {
    json!({ "rules": [{ "id": "r", "rate": rate, "algorithm": "fixed_window", "aligned": "first_call" }] })
}

#[tokio::test]
async fn limit_that_is_put_is_in_force_at_once_and_after_a_kill() -> Result<()> {
    let folder = TempDir::new()?;
    let mut limiter = Limiter::start(LIMITS, &[&tokens(&folder)?]).await?;
    let mut client = limiter.client().await?;
    for _ in 0..25 {
        let taken = client
            .post("/v1/limits/a/k/reserve", &[ADMIN], "{}")
            .await?;
        body(&taken, 200);
    }
    let known = client.get("/v1/limits/a", &[ADMIN]).await?;
    assert_eq!(body(&known, 200)["source"], "file");
    // Only what was read is replaced.
    for (header, value, status) in [
        ("If-Match", "\"other\"".to_owned(), 412),
        ("If-None-Match", "*".to_owned(), 412),
        ("If-Match", etag(&known), 200),
        ("If-Match", etag(&known), 412),
    ] {
        let headers = [ADMIN, (header, &*value)];
        let answer = change(&mut client, "PUT", "a", &headers, &terms("30/30days")).await?;
        body(&answer, status);
    }
    let made = change(&mut client, "PUT", "new", &[ADMIN], &terms("5/30days")).await?;
    assert_eq!(body(&made, 201)["source"], "put");
    limiter.process.signal(Signal::KILL)?;
    limiter.process.wait(PATIENCE).await?;
    limiter.start_again().await?;
    let mut client = limiter.client().await?;
    let answer = client.get("/v1/limits/a", &[ADMIN]).await?;
    let a = body(&answer, 200);
    ensure!(
        a["source"] == "put" && a["terms"] == terms("30/30days"),
        "{a}"
    );
    assert_eq!(a["overridden"][0]["source"], "file");
    assert_eq!(
        a["overridden"][0]["terms"]["rules"][0]["rate"],
        "1000/30days"
    );
    let unchanged = [ADMIN, ("If-None-Match", &*etag(&answer))];
    assert_eq!(client.get("/v1/limits/a", &unchanged).await?.status, 304);
    // What was used stays used under other terms: 25, and one for the crash, of 30.
    for status in [200, 200, 200, 200, 429] {
        let taken = client
            .post("/v1/limits/a/k/reserve", &[ADMIN], "{}")
            .await?;
        body(&taken, status);
    }
    let status = limiter.status().await?;
    let row = status["limits"].as_array().context("no limits")?;
    let row = row.iter().find(|row| row["name"] == "a").context("no a")?;
    ensure!(
        row["source"] == "put" && row["overrides"][0] == "file",
        "{row}"
    );

    let back = change(&mut client, "DELETE", "a", &[ADMIN], &Value::Null).await?;
    assert_eq!(body(&back, 200)["source"], "file");
    let gone = change(&mut client, "DELETE", "new", &[ADMIN], &Value::Null).await?;
    assert_eq!(gone.status, 204);
    for (limit, status) in [("a", 409), ("new", 404)] {
        let answer = change(&mut client, "DELETE", limit, &[ADMIN], &Value::Null).await?;
        body(&answer, status);
    }
    let listed = body(&client.get("/v1/limits", &[ADMIN]).await?, 200);
    let names: Vec<&Value> = listed["limits"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|limit| &limit["name"])
        .collect();
    assert_eq!(names, ["a", "b"]);
    limiter.stop().await?;
    let log = fs::read_to_string(limiter.file("log"))?;
    let audit: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("limit is changed"))
        .collect();
    ensure!(audit.len() == 4, "{log}");
    ensure!(
        audit[0].contains("admin")
            && audit[0].contains("1000/30days")
            && audit[0].contains("30/30days"),
        "{}",
        audit[0]
    );
    Ok(())
}

#[tokio::test]
async fn only_who_may_administer_changes_limits_and_mistakes_change_nothing() -> Result<()> {
    let folder = TempDir::new()?;
    let mut limiter = Limiter::start(LIMITS, &[&tokens(&folder)?]).await?;
    let mut client = limiter.client().await?;
    let good = terms("5/s");
    for (token, limit, status) in [
        ("Bearer one-token-of-16b", "b", 403),
        ("Bearer feed-token-of-16b", "b", 403),
        ("Bearer part-token-of-16", "a", 403),
        ("Bearer part-token-of-16", "b", 200),
    ] {
        let headers = [("Authorization", token)];
        let answer = change(&mut client, "PUT", limit, &headers, &good).await?;
        body(&answer, status);
    }
    // A token of one limit cannot limit all calls.
    let part = [("Authorization", "Bearer part-token-of-16")];
    let rules = json!([{ "id": "r", "rate": "1/day" }]);
    for (terms, status) in [
        (json!({ "every_call": true, "rules": rules }), 403),
        (json!({ "keys": ["b", 8], "rules": rules }), 403),
        (json!({ "keys": ["b"], "rules": rules }), 200),
    ] {
        body(
            &change(&mut client, "PUT", "b", &part, &terms).await?,
            status,
        );
    }
    for (limit, terms, status, said) in [
        ("c", terms("fast"), 422, "limits.c.rules[0].rate"),
        ("c", json!({ "rules": [] }), 422, "limits.c: needs rules"),
        (
            "c",
            json!({ "rules": [{ "id": "r", "rate": "1/s", "brust": 2 }] }),
            422,
            "brust",
        ),
        (
            "c",
            json!({ "keys": ["a"], "rules": [{ "id": "r", "rate": "1/s" }] }),
            422,
            "the key a",
        ),
        ("c", json!([]), 400, "terms of a limit"),
        ("c", json!({ "rules": null }), 400, "terms of a limit"),
        ("c%2Fd", good.clone(), 400, "slash"),
    ] {
        let answer = change(&mut client, "PUT", limit, &[ADMIN], &terms).await?;
        let why = body(&answer, status);
        ensure!(
            why["detail"].as_str().unwrap_or_default().contains(said),
            "{why}"
        );
        body(&client.get("/v1/limits/c", &[ADMIN]).await?, 404);
    }
    until(&mut limiter, |it| it["limits_version"] == 3).await?;
    limiter.stop().await?;

    // Nobody may without a token, unless that is set.
    for (flags, status) in [(&[][..], 403), (&["--open-administration=true"], 200)] {
        let mut limiter = Limiter::start(LIMITS, flags).await?;
        let mut client = limiter.client().await?;
        let answer = change(&mut client, "PUT", "b", &[], &terms("5/s")).await?;
        body(&answer, status);
        limiter.stop().await?;
    }
    Ok(())
}

async fn until(limiter: &mut Limiter, what: impl Fn(&Value) -> bool) -> Result<Value> {
    loop {
        let status = limiter.status().await?;
        if what(&status) {
            return Ok(status);
        }
        limiter.process.check()?;
        sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn file_that_contradicts_a_put_is_refused_until_it_does_not_also_over_a_restart() -> Result<()>
{
    let folder = TempDir::new()?;
    let mut limiter = Limiter::start(LIMITS, &[&tokens(&folder)?]).await?;
    let mut client = limiter.client().await?;
    let put = json!({ "keys": ["9"], "rules": [{ "id": "r", "rate": "9/s" }] });
    body(&change(&mut client, "PUT", "p", &[ADMIN], &put).await?, 201);
    // Its own terms of a limit that was PUT are not in force, and no mistake.
    let file = limiter.file("limits.toml");
    let same = format!("{LIMITS}\n[limits.p]\nrules = [{{ id = 'r', rate = '1/s' }}]");
    fs::write(&file, same)?;
    until(&mut limiter, |it| it["limits_version"] == 3).await?;
    let p = body(&client.get("/v1/limits/p", &[ADMIN]).await?, 200);
    ensure!(
        p["terms"] == put && p["overridden"][0]["source"] == "file",
        "{p}"
    );
    // The key of what was PUT is another's now.
    let clash = "[limits.a]\nkeys = ['9']\nrules = [{ id = 'r', rate = '1/s' }]";
    fs::write(&file, clash)?;
    let is_refused = |it: &Value| {
        let why = it["limits_refused"].as_str().unwrap_or_default();
        why.contains("the key 9")
    };
    until(&mut limiter, is_refused).await?;
    body(&client.get("/v1/limits/b", &[ADMIN]).await?, 200);
    for _ in 0..2 {
        limiter.process.signal(Signal::KILL)?;
        limiter.process.wait(PATIENCE).await?;
        limiter.start_again().await?;
        until(&mut limiter, is_refused).await?;
        let mut client = limiter.client().await?;
        body(&client.get("/v1/limits/b", &[ADMIN]).await?, 200);
        let p = body(&client.get("/v1/limits/p", &[ADMIN]).await?, 200);
        assert_eq!(p["source"], "put");
    }
    let mut client = limiter.client().await?;
    let gone = change(&mut client, "DELETE", "p", &[ADMIN], &Value::Null).await?;
    assert_eq!(
        gone.status, 204,
        "the newest version of the file is in force, and has none"
    );
    until(&mut limiter, |it| it["limits_refused"].is_null()).await?;
    body(&client.get("/v1/limits/b", &[ADMIN]).await?, 404);
    body(&client.get("/v1/limits/a", &[ADMIN]).await?, 200);
    limiter.stop().await
}

#[tokio::test]
async fn feed_is_one_document_that_is_held_until_it_changes() -> Result<()> {
    let folder = TempDir::new()?;
    let limits = format!("unknown = 'a'\n{LIMITS}");
    let mut limiter = Limiter::start(&limits, &[&tokens(&folder)?]).await?;
    let mut client = limiter.client().await?;
    let feed = ("Authorization", "Bearer feed-token-of-16b");
    body(&client.get("/v1/feed", &[ADMIN]).await?, 403);
    let first = client.get("/v1/feed", &[feed]).await?;
    let document = body(&first, 200);
    assert_eq!(document["unknown"], "a");
    assert_eq!(document["limits"]["b"]["keys"][0], "7");
    let tag = etag(&first);
    let known = [feed, ("If-None-Match", &*tag)];
    assert_eq!(client.get("/v1/feed?wait=0", &known).await?.status, 304);
    body(&client.get("/v1/feed?wait=31", &known).await?, 400);
    let held = "GET /v1/feed?wait=30 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer feed-token-of-16b\r\n";
    let mut waiter = limiter.client().await?;
    waiter
        .send(format!("{held}If-None-Match: {tag}\r\n\r\n").as_bytes())
        .await?;
    until(&mut limiter, |it| it["waiting"] == 1).await?;
    body(
        &change(&mut client, "PUT", "c", &[ADMIN], &terms("5/s")).await?,
        201,
    );
    let second = waiter.answer().await?;
    assert_eq!(body(&second, 200)["limits"]["c"], terms("5/s"));
    // A request that is held when it stops is answered.
    let tag = etag(&second);
    waiter
        .send(format!("{held}If-None-Match: {tag}\r\n\r\n").as_bytes())
        .await?;
    until(&mut limiter, |it| it["waiting"] == 1).await?;
    limiter.process.signal(Signal::TERM)?;
    assert_eq!(waiter.answer().await?.status, 304);
    ensure!(limiter.process.wait(PATIENCE).await?.success());
    Ok(())
}

#[tokio::test]
async fn password_of_the_file_is_told_to_nobody_without_a_token() -> Result<()> {
    let limits =
        format!("{LIMITS}\n[sharing]\nmode = 'local'\nredis = 'redis://me:secret@10.0.0.5'");
    let mut limiter = Limiter::start(&limits, &[]).await?;
    let mut client = limiter.client().await?;
    body(&client.get("/v1/feed", &[]).await?, 403);
    let listed = client.get("/v1/limits", &[]).await?;
    ensure!(listed.status == 200 && !listed.body.contains("secret"));
    limiter.stop().await
}
