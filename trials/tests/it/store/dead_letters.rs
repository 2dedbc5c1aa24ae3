//! Tests that cookies which MongoDB rejects permanently become dead letters with the reason, and delay no other
//! cookie.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use mongodb::{
    Client, IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{http::HttpClient, programs::ServerProcess, scrape::names};

use crate::{
    harness::{Consumer, Producer, TIMEOUT, sync_request, wait_logged, wait_until},
    mongods::shared,
};

async fn rejected_count(consumer: &Consumer) -> Result<u64> {
    let metrics = consumer.metrics().await?;
    Ok(metrics.count(names::FAILED, &[("reason", "rejected")]))
}

async fn wait_rejected(consumer: &Consumer, cookies: u64) -> Result<()> {
    let what = format!("{cookies} cookies are rejected");
    wait_until(TIMEOUT, &what, async || {
        Ok(rejected_count(consumer).await? >= cookies)
    })
    .await
}

/// The entries of a dead-letter file.
fn read_letters(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path)?;
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?)
}

/// Checks cookies and reasons of all dead letters.
fn check(letters: &[Value], expected: &[(&str, u32, &str, &str)]) -> Result<()> {
    ensure!(letters.len() == expected.len(), "{letters:?}");
    for &(user_id, dsp_id, buyer_uid, reason) in expected {
        let letter = letters.iter().find(|letter| {
            letter["user_id"] == user_id
                && letter["dsp_id"] == dsp_id
                && letter["buyer_uid"] == buyer_uid
        });
        let text = letter.and_then(|letter| letter["reason"].as_str());
        ensure!(
            text.is_some_and(|text| text.contains(reason)),
            "{user_id}: {letters:?}"
        );
    }
    Ok(())
}

async fn create_with_validator(mongod: &ServerProcess, dsp: &str) -> Result<()> {
    let database = Client::with_uri_str(mongod.uri()).await?.database(dsp);
    let validator = doc! { "b": { "$not": { "$regex": "^bad" } } };
    database
        .create_collection("cookies")
        .validator(validator)
        .await?;
    Ok(())
}

async fn unique_buyer_uids(mongod: &ServerProcess, dsp: &str) -> Result<()> {
    let database = Client::with_uri_str(mongod.uri()).await?.database(dsp);
    let unique = IndexOptions::builder().unique(true).build();
    let index = IndexModel::builder()
        .keys(doc! { "b": 1 })
        .options(unique)
        .build();
    let cookies = database.collection::<Document>("cookies");
    cookies.create_index(index).await?;
    Ok(())
}

#[tokio::test]
async fn cookie_rejected_by_a_validator_becomes_a_dead_letter_and_others_are_stored() -> Result<()>
{
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    create_with_validator(&mongod, "17").await?;
    let file = dir.path().join("letters.jsonl");
    let flags = ["--dead-letters", &file.display().to_string()];
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    for (user, buyer) in [("alice", "good"), ("bob", "bad-1"), ("carol", "fine")] {
        producer.accept(user, 17, buyer).await?;
    }
    producer.accept("bob", 18, "bad-is-allowed-here").await?;
    let known = json!({"18": "bad-is-allowed-here"});
    consumer.wait_lookup("bob", known).await?;
    consumer.wait_lookup("alice", json!({"17": "good"})).await?;
    consumer.wait_lookup("carol", json!({"17": "fine"})).await?;
    // A rejected cookie must not replace a stored cookie.
    producer.accept("alice", 17, "bad-2").await?;
    consumer.wait_settled(5).await?;
    ensure!(rejected_count(&consumer).await? == 2);
    consumer.wait_lookup("alice", json!({"17": "good"})).await?;
    consumer.wait_ready().await?;
    let metrics = consumer.metrics().await?;
    assert_eq!(metrics.count(names::WRITTEN, &[]), 3);
    let written = [("outcome", "written")];
    assert_eq!(metrics.count(names::DEAD_LETTERS, &written), 2);
    let expected = [
        ("bob", 17, "bad-1", "code 121: Document failed validation"),
        ("alice", 17, "bad-2", "code 121"),
    ];
    check(&read_letters(&file)?, &expected)
}

#[tokio::test]
async fn duplicate_in_a_foreign_unique_index_becomes_a_dead_letter() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    unique_buyer_uids(&mongod, "17").await?;
    let file = dir.path().join("letters.jsonl");
    let flags = ["--dead-letters", &file.display().to_string()];
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    producer.accept("alice", 17, "shared").await?;
    consumer
        .wait_lookup("alice", json!({"17": "shared"}))
        .await?;
    producer.accept("bob", 17, "shared").await?;
    producer.accept("carol", 17, "own").await?;
    consumer.wait_lookup("carol", json!({"17": "own"})).await?;
    producer.accept("carol", 17, "shared").await?;
    consumer.wait_settled(4).await?;
    ensure!(rejected_count(&consumer).await? == 2);
    consumer
        .wait_lookup("alice", json!({"17": "shared"}))
        .await?;
    consumer.wait_lookup("carol", json!({"17": "own"})).await?;
    let expected = [
        ("bob", 17, "shared", "E11000 duplicate key"),
        ("carol", 17, "shared", "index: b_1"),
    ];
    check(&read_letters(&file)?, &expected)
}

#[tokio::test]
async fn logs_contain_no_user_id_or_buyer_uid() -> Result<()> {
    const USER: &str = "uzed-7f3a91";
    const BUYER: &str = "bzed-91c4e7";
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    unique_buyer_uids(&mongod, "17").await?;
    create_with_validator(&mongod, "18").await?;
    let view = doc! { "create": "cookies", "viewOn": "others", "pipeline": [] };
    let client = Client::with_uri_str(mongod.uri()).await?;
    client.database("19").run_command(view).await?;
    let file = dir.path().join("letters.jsonl");
    let filter = "--log-filter=info,producer=trace,consumer=trace,runtime=trace";
    let flags = [filter, "--dead-letters", &file.display().to_string()];
    let mut producer = Producer::start(&dir, &[filter]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    let bad = format!("bad-{BUYER}");
    for (dsp_id, buyer_uid) in [(17, BUYER), (18, &bad), (19, BUYER), (20, BUYER)] {
        for number in 1..=2 {
            let user_id = format!("{USER}-{number}");
            producer.accept(&user_id, dsp_id, buyer_uid).await?;
        }
    }
    // Log messages about invalid requests contain no ids.
    let mut connection = HttpClient::connect(&producer.http).await?;
    for (user_id, buyer_uid) in [
        (USER.repeat(9), BUYER.into()),
        (USER.into(), BUYER.repeat(99)),
    ] {
        connection
            .send(sync_request(&user_id, 17, &buyer_uid).as_bytes())
            .await?;
        ensure!(connection.response().await?.status == 400);
    }
    wait_rejected(&consumer, 3).await?;
    wait_until(
        TIMEOUT,
        "the DSP with a view is reported as failing",
        async || {
            let failing = [("dsp", "19")];
            Ok(consumer
                .metrics()
                .await?
                .count("consumer_dsp_failing", &failing)
                == 1)
        },
    )
    .await?;
    // Log messages about a dead letter that cannot be written contain no ids.
    fs::remove_file(&file)?;
    fs::create_dir(&file)?;
    producer.accept(&format!("{USER}-3"), 18, &bad).await?;
    wait_rejected(&consumer, 4).await?;
    let path = format!("/v1/users/{USER}-1");
    ensure!(testkit::admin::get(&consumer.admin, &path).await?.status == 200);
    for process in [&mut consumer.process, &mut producer.process] {
        process.signal(Signal::TERM)?;
        process.wait(TIMEOUT).await?;
        let log = process.last_lines(usize::MAX);
        for id in [USER, BUYER] {
            let line = log.lines().find(|line| line.contains(id));
            ensure!(line.is_none(), "{line:?}");
        }
        let rejected = log.matches("request rejected").count();
        ensure!(!log.contains("producer started") || rejected == 2, "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn each_of_thousands_of_rejected_cookies_is_counted() -> Result<()> {
    // The time of mongod grows with the square of the number of cookies that share a key.
    const COOKIES: u64 = 3_000;
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    unique_buyer_uids(&mongod, "17").await?;
    let file = dir.path().join("letters.jsonl");
    let flags = [
        "--dead-letters",
        &file.display().to_string(),
        "--flush-interval=2s",
    ];
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    let mut connection = HttpClient::connect(&producer.http).await?;
    for hundred in 0..COOKIES / 100 {
        let users = (0..100).map(|at| format!("user-{}", hundred * 100 + at));
        let requests: String = users
            .map(|user| sync_request(&user, 17, "shared"))
            .collect();
        connection.send(requests.as_bytes()).await?;
        for _ in 0..100 {
            let answer = connection.response().await?;
            ensure!(answer.status == 200, "{answer:?}");
        }
    }
    wait_until(
        4 * TIMEOUT,
        "all cookies but one are rejected",
        async || {
            let metrics = consumer.metrics().await?;
            Ok(metrics.count(names::FAILED, &[]) == COOKIES - 1)
        },
    )
    .await?;
    consumer.wait_settled(COOKIES).await?;
    let metrics = consumer.metrics().await?;
    assert_eq!(rejected_count(&consumer).await?, COOKIES - 1);
    assert_eq!(metrics.count(names::WRITTEN, &[]), 1);
    let letters = read_letters(&file)?;
    assert_eq!(letters.len() as u64, COOKIES - 1);
    let unexplained = letters.iter().find(|letter| {
        !letter["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("11000"))
    });
    ensure!(unexplained.is_none(), "{unexplained:?}");
    Ok(())
}

#[tokio::test]
async fn failed_write_of_dead_letters_does_not_block() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    create_with_validator(&mongod, "17").await?;
    let file = dir.path().join("letters.jsonl");
    let flags = ["--dead-letters", &file.display().to_string()];
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    // A directory at its path makes writes fail.
    fs::create_dir(&file)?;
    producer.accept("alice", 17, "bad").await?;
    producer.accept("alice", 18, "good").await?;
    consumer.wait_lookup("alice", json!({"18": "good"})).await?;
    wait_rejected(&consumer, 1).await?;
    consumer.wait_ready().await?;
    let metrics = consumer.metrics().await?;
    let failed = [("outcome", "failed")];
    assert_eq!(metrics.count(names::DEAD_LETTERS, &failed), 1);
    wait_logged(&consumer.process, "failed to write dead letters").await
}
