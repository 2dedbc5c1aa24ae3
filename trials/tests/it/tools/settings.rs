//! Tests of settings: configuration errors are reported together before startup, with exit code 2.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::programs::{Process, free_address};

use crate::{
    harness::{Addresses, Producer, ProgramOutput, TIMEOUT, embedded, programs, run_to_end},
    stream_client::{Subscription, from_newest},
};

/// Checks that a program exited with `code` and printed all of `parts`.
fn check(output: &ProgramOutput, code: i32, parts: &[&str]) -> Result<()> {
    ensure!(
        output.code == Some(code),
        "exit code {:?} instead of {code}:\n{}",
        output.code,
        output.text
    );
    for part in parts {
        ensure!(
            output.text.contains(part),
            "{part} is missing in:\n{}",
            output.text
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
    let output = run_to_end(&programs.producer, &producer, &environment).await?;
    let parts = [
        "--http",
        "--chunk-age",
        "--log-bytes",
        "--queue-cookies",
        "--chunk-bytes",
    ];
    check(&output, 2, &parts)?;

    let consumer = [
        "--producer=ftp://a",
        "--store=mangodb://user:secret@host",
        "--admin=here",
        "--expiry-window=noon",
    ];
    let environment = [("CONSUMER_TTL", "soon")];
    let output = run_to_end(&programs.consumer, &consumer, &environment).await?;
    let parts = [
        "--producer",
        "--store",
        "--admin",
        "--expiry-window",
        "--ttl",
    ];
    check(&output, 2, &parts)?;
    ensure!(!output.text.contains("secret"), "{}", output.text);
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
        let output = run_to_end(program, &[&config], &[]).await?;
        check(&output, 2, &["log_byte", "flush"])?;
        let output = run_to_end(program, &["--no-such-flag"], &[]).await?;
        check(&output, 2, &["--no-such-flag"])?;
        let output = run_to_end(program, &["--config=/no/such/file.toml"], &[]).await?;
        check(&output, 2, &["/no/such/file.toml"])?;
    }
    Ok(())
}

#[tokio::test]
async fn help_names_flags_variables_and_defaults() -> Result<()> {
    let programs = programs().await?;
    let output = run_to_end(&programs.producer, &["--help"], &[]).await?;
    check(
        &output,
        0,
        &["--http", "PRODUCER_HTTP", "0.0.0.0:8080", "--queue-cookies"],
    )?;
    let output = run_to_end(&programs.consumer, &["--help"], &[]).await?;
    check(
        &output,
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
        let output = run_to_end(&programs.producer, &args, &[]).await?;
        check(&output, 1, &[&address, flag])?;
    }
    let store = embedded(&dir.path().join("store"));
    let args = ["--admin", &address, "--store", &store];
    let output = run_to_end(&programs.consumer, &args, &[]).await?;
    check(&output, 1, &[&address, "--admin"])
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
