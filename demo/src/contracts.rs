//! `cargo demo contracts`: shows requests to a producer with a contract for a DSP, the responses, and the stored matches.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use launcher::{admin, http::HttpClient, programs::flags, scrape::names};
use tokio_util::sync::CancellationToken;

use crate::{
    args::SetupArgs,
    running::{self, Running},
    show::poll,
};

const CONTRACTS: &str = "\
[privacy]
mode = \"enforce\"

[dsp.17]
name = \"example\"
answer = \"redirect\"
redirect = \"https://sync.example/done?u={UID}&x={DSP_UID}\"
";

/// The requests: description, query, and the Cookie header.
const REQUESTS: [(&str, &str, &str); 4] = [
    ("valid match", "d=17&b=buyer-17", "uid=alice"),
    ("macro", "d=17&b=%24%7BUSER_ID%7D", "uid=bob"),
    ("no consent", "d=17&b=buyer-17&gdpr=1", "uid=carol"),
    (
        "opt-out",
        "d=17&b=buyer-17",
        "uid=dave; cookiesync_optout=1",
    ),
];

/// Runs the demo to its end or until `stop`.
///
/// # Errors
/// If a port is in use, the build fails, a process fails, or a response is not as expected.
pub(crate) async fn run(args: &SetupArgs, stop: &CancellationToken) -> Result<()> {
    let flags = |dir: &Path| {
        let file = dir.join("contracts.toml");
        fs::write(&file, CONTRACTS)
            .with_context(|| format!("failed to write {}", file.display()))?;
        let mut flags = flags([("--contracts", file.display().to_string())]);
        flags.push("--opt-out".to_owned());
        Ok(flags)
    };
    match running::run(args, false, stop, flags, show).await? {
        Some(running) => running.stop().await,
        None => Ok(()),
    }
}

async fn show(running: &mut Running) -> Result<()> {
    running.wait_ready().await?;
    let edge = running.edge();
    for (what, query, cookies) in REQUESTS {
        let mut connection = HttpClient::connect(&edge).await?;
        let path = format!("/?{query}");
        let response = connection.get(&path, &[("Cookie", cookies)]).await?;
        let mut headers = response.head.lines();
        let location = headers.find(|line| line.starts_with("location: "));
        let answer = location.unwrap_or(response.body.trim());
        println!(
            "{what:12} GET {path:26} Cookie: {cookies:30} {} {answer}",
            response.status
        );
    }
    let stored = poll("GET", &running.consumer_admin, "/v1/users/alice", |it| {
        it.status == 200
    });
    println!("{:12} {}", "stored", stored.await?.body.trim());
    let metrics = admin::metrics(&running.producer_admin).await?;
    for (name, label) in [(names::DSP_COOKIES, "outcome"), (names::PRIVACY, "outcome")] {
        let counts = metrics.by_label(name, label).into_iter();
        let counts = counts.filter(|(_, count)| *count > 0);
        let counts: Vec<_> = counts
            .map(|(outcome, count)| format!("{outcome} {count}"))
            .collect();
        println!("{:12} {}: {}", "counted", name.name, counts.join(", "));
    }
    Ok(())
}
