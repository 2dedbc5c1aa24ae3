//! What is wrong with the settings is said before anything begins, all at once, by exit code and in words.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use bench::programs::{Process, free_address};
use tempfile::TempDir;

use crate::{
    harness::{Addresses, Ended, Producer, TIMEOUT, embedded, programs, run_to_end},
    stream_client::{Subscription, from_newest},
};

/// Fails unless a program ended with `code` and its words contain all of these.
fn check(ended: &Ended, code: i32, said: &[&str]) -> Result<()> {
    ensure!(
        ended.code == Some(code),
        "{:?} instead of {code}:\n{}",
        ended.code,
        ended.words
    );
    for part in said {
        ensure!(
            ended.words.contains(part),
            "{part} is missing in:\n{}",
            ended.words
        );
    }
    Ok(())
}

#[tokio::test]
async fn all_config_errors_are_reported_together() -> Result<()> {
    let programs = programs().await?;
    let producer = [
        "--http=nowhere",
        "--chunk-age=0s",
        "--log-bytes=12 parsecs",
        "--queue-cookies=-1",
    ];
    let environment = [("PRODUCER_CHUNK_BYTES", "65B")];
    let ended = run_to_end(&programs.producer, &producer, &environment).await?;
    let said = [
        "--http",
        "--chunk-age",
        "--log-bytes",
        "--queue-cookies",
        "--chunk-bytes",
    ];
    check(&ended, 2, &said)?;

    let consumer = [
        "--producer=ftp://a",
        "--store=mangodb://user:secret@host",
        "--admin=here",
        "--expiry-window=noon",
    ];
    let environment = [("CONSUMER_TTL", "soon")];
    let ended = run_to_end(&programs.consumer, &consumer, &environment).await?;
    let said = [
        "--producer",
        "--store",
        "--admin",
        "--expiry-window",
        "--ttl",
    ];
    check(&ended, 2, &said)?;
    ensure!(!ended.words.contains("secret"), "{}", ended.words);
    Ok(())
}

#[tokio::test]
async fn unknown_config_keys_and_flags_are_errors() -> Result<()> {
    let programs = programs().await?;
    let dir = TempDir::new()?;
    let file = dir.path().join("settings.toml");
    std::fs::write(&file, "log_byte = '1GiB'\nflush = '1s'\n")?;
    let config = format!("--config={}", file.display());
    for program in [&programs.producer, &programs.consumer] {
        let ended = run_to_end(program, &[&config], &[]).await?;
        check(&ended, 2, &["log_byte", "flush"])?;
        let ended = run_to_end(program, &["--no-such-flag"], &[]).await?;
        check(&ended, 2, &["--no-such-flag"])?;
        let ended = run_to_end(program, &["--config=/no/such/file.toml"], &[]).await?;
        check(&ended, 2, &["/no/such/file.toml"])?;
    }
    Ok(())
}

#[tokio::test]
async fn help_names_flags_variables_and_defaults() -> Result<()> {
    let programs = programs().await?;
    let ended = run_to_end(&programs.producer, &["--help"], &[]).await?;
    check(
        &ended,
        0,
        &["--http", "PRODUCER_HTTP", "0.0.0.0:8080", "--queue-cookies"],
    )?;
    let ended = run_to_end(&programs.consumer, &["--help"], &[]).await?;
    check(
        &ended,
        0,
        &["--producer", "CONSUMER_PRODUCER", "embedded:./data"],
    )
}

#[tokio::test]
async fn port_in_use_is_reported_with_its_flag() -> Result<()> {
    let programs = programs().await?;
    let dir = TempDir::new()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    for flag in ["--http", "--grpc", "--admin"] {
        let free = Addresses::free()?;
        let mut args = vec![flag, &address];
        for (other, free) in [
            ("--http", &free.http),
            ("--grpc", &free.grpc),
            ("--admin", &free.admin),
        ] {
            if other != flag {
                args.extend([other, free]);
            }
        }
        let ended = run_to_end(&programs.producer, &args, &[]).await?;
        check(&ended, 1, &[&address, flag])?;
    }
    let store = embedded(&dir.path().join("store"));
    let args = ["--admin", &address, "--store", &store];
    let ended = run_to_end(&programs.consumer, &args, &[]).await?;
    check(&ended, 1, &[&address, "--admin"])
}

#[tokio::test]
async fn flags_override_the_config_file() -> Result<()> {
    let dir = TempDir::new()?;
    let addresses = Addresses::free()?;
    let file = dir.path().join("settings.toml");
    let text =
        "id = 'from-the-file'\nhttp = 'nonsense that the flag replaces'\nqueue_cookies = 7\n";
    std::fs::write(&file, text)?;
    let config = format!("--config={}", file.display());
    let producer = Producer::start_at(&dir, &addresses, &[&config]).await?;
    let stream = Subscription::open(&producer.grpc, from_newest("reader")).await?;
    assert_eq!(stream.hello.producer_id, "from-the-file");

    let store = format!("store = '{}'\n", embedded(&dir.path().join("store")));
    let file = dir.path().join("consumer.toml");
    std::fs::write(&file, format!("{store}producer = ['{}']\n", producer.grpc))?;
    let config = format!("--config={}", file.display());
    let admin = free_address()?.to_string();
    let args = [config, format!("--admin={admin}")];
    let log = dir.path().join("consumer.log");
    let program = &programs().await?.consumer;
    let mut consumer = Process::start("the consumer", program, &args, &log)?;
    consumer.wait_ready(&admin, TIMEOUT).await
}
