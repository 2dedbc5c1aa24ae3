//! Tests of flags that print information instead of starting the program: configuration, checks, probes, completions and
//! manual pages.

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::programs::free_address;

use crate::harness::{Consumer, Producer, ProgramOutput, embedded, programs, run_to_end};

/// Checks that a program exited with `code` and printed all of `parts`.
fn check(output: &ProgramOutput, code: i32, parts: &[&str]) -> Result<()> {
    let ProgramOutput { code: found, text } = output;
    ensure!(
        *found == Some(code),
        "exit code {found:?} instead of {code}:\n{text}"
    );
    for part in parts {
        ensure!(text.contains(part), "{part} is missing in:\n{text}");
    }
    Ok(())
}

#[tokio::test]
async fn short_help_omits_expert_flags_and_long_help_has_groups_and_examples() -> Result<()> {
    let programs = programs().await?;
    for (program, heading, expert) in [
        (&programs.producer, "Log and retention:", "--rewind-bytes"),
        (&programs.consumer, "Storage:", "--batch-cookies"),
    ] {
        let short = run_to_end(program, &["-h"], &[]).await?;
        check(&short, 0, &[heading, "--help shows all settings"])?;
        ensure!(!short.text.contains(expert), "{}", short.text);
        let long = run_to_end(program, &["--help"], &[]).await?;
        check(&long, 0, &[heading, expert, "Examples:", "Commands:"])?;
    }
    Ok(())
}

#[tokio::test]
async fn printed_config_names_its_sources_and_is_a_valid_file() -> Result<()> {
    let programs = programs().await?;
    let dir = TempDir::new()?;
    let file = dir.path().join("producer.toml");
    std::fs::write(&file, "log_bytes = '2GiB'\n")?;
    let config = format!("--config={}", file.display());
    let args = [&*config, "--chunk-age=20ms", "--print-config"];
    let environment = [("PRODUCER_QUEUE_COOKIES", "7")];
    let printed = run_to_end(&programs.producer, &args, &environment).await?;
    let lines = [
        "log_bytes = \"2GiB\"  # file",
        "chunk_age = \"20ms\"  # flag",
        "queue_cookies = \"7\"  # environment PRODUCER_QUEUE_COOKIES",
        "subscriber_retention = \"60s\"  # default",
    ];
    check(&printed, 0, &lines)?;
    std::fs::write(&file, &printed.text)?;
    let again = run_to_end(&programs.producer, &[&config, "--print-config"], &[]).await?;
    check(&again, 0, &["queue_cookies = \"7\"  # file"])?;

    let args = ["--store=mongodb://user:secret@host/", "--print-config"];
    let printed = run_to_end(&programs.consumer, &args, &[]).await?;
    check(&printed, 0, &["\nstore = \"mongodb://***@host/\""])?;
    ensure!(!printed.text.contains("secret@"), "{}", printed.text);
    let file = dir.path().join("consumer.toml");
    std::fs::write(&file, &printed.text)?;
    let config = format!("--config={}", file.display());
    let args = [&*config, "--check-config"];
    let rejected = run_to_end(&programs.consumer, &args, &[]).await?;
    check(&rejected, 2, &["--store", "credentials were removed"])?;
    let environment = [("CONSUMER_STORE", "mongodb://user:secret@host/")];
    let with_secret = run_to_end(&programs.consumer, &args, &environment).await?;
    check(&with_secret, 0, &["configuration is valid"])?;
    Ok(())
}

#[tokio::test]
async fn config_check_accepts_valid_settings_and_reports_all_errors() -> Result<()> {
    let programs = programs().await?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let admin = format!("--admin={}", taken.local_addr()?);
    for program in [&programs.producer, &programs.consumer] {
        let valid = run_to_end(program, &["--check-config", &admin], &[]).await?;
        check(&valid, 0, &["configuration is valid"])?;
        let args = [
            "--check-config",
            "--token-file=/no/such/token",
            "--drain-timeout=soon",
            "--log-filter=inof",
        ];
        let invalid = run_to_end(program, &args, &[]).await?;
        check(
            &invalid,
            2,
            &["--token-file", "--drain-timeout", "--log-filter"],
        )?;
    }
    Ok(())
}

#[tokio::test]
async fn probe_reports_the_readiness_of_the_configured_process() -> Result<()> {
    let programs = programs().await?;
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let admin = format!("--admin={}", producer.admin);
    let ready = run_to_end(&programs.producer, &["--probe", &admin], &[]).await?;
    check(&ready, 0, &["ready"])?;

    let store = embedded(&dir.path().join("store"));
    let nowhere = format!("http://{}", free_address()?);
    let consumer = Consumer::spawn(&dir, "node", &[&nowhere], &store, &[]).await?;
    consumer.wait_not_ready("no producer").await?;
    let environment = [("CONSUMER_ADMIN", &*consumer.admin)];
    // An error in another setting must not fail the probe of a healthy container.
    let args = ["--probe", "--token-file=/no/such/token"];
    let unready = run_to_end(&programs.consumer, &args, &environment).await?;
    check(&unready, 1, &["503", "no producer"])?;

    let unused = format!("--admin={}", free_address()?);
    let gone = run_to_end(&programs.producer, &["--probe", &unused], &[]).await?;
    check(&gone, 1, &["refused"])
}

#[tokio::test]
async fn program_generates_completions_and_manual_pages() -> Result<()> {
    let programs = programs().await?;
    for program in [&programs.producer, &programs.consumer, &programs.cookiesync] {
        for (shell, part) in [
            ("bash", "complete -F"),
            ("zsh", "#compdef"),
            ("fish", "complete -c"),
        ] {
            let script = run_to_end(program, &["--completions", shell], &[]).await?;
            check(&script, 0, &[part, "log-filter"])?;
        }
        let unknown = run_to_end(program, &["--completions", "tcl"], &[]).await?;
        check(&unknown, 2, &["\"tcl\"", "bash", "zsh", "fish"])?;
        let page = run_to_end(program, &["--man"], &[]).await?;
        check(&page, 0, &[".TH", "log\\-filter"])?;
    }
    Ok(())
}
