//! `cargo demo revalidate`: matches are checked with a partner that has changed some of them and lost others.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use launcher::{
    http::{HttpClient, Response},
    nats::Nats,
    programs::{find, flags, free_address},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    args::RevalidateArgs,
    running::{self, READY_TIMEOUT, Running, STOP_TIMEOUT, TOKEN_FILE, start},
    show::poll,
};

/// A DSP id.
const DSP: u32 = 17;

/// Age of the matches in milliseconds.
const AGE: u128 = 3_600_000;

const JOB: &str = "{\"app\": \"partner\", \"allowDelete\": \"partial\"}";

/// Runs the demo to its end or until `stop`.
///
/// # Errors
/// If a port is in use, the build fails, a process fails, or a job does not finish.
pub(crate) async fn run(args: &RevalidateArgs, stop: &CancellationToken) -> Result<()> {
    let api = free_address()?.to_string();
    let flags = |_: &Path| Ok(flags([("--api", api.clone())]));
    let show = async |running: &mut Running| show(running, args.matches, &api).await;
    match running::run(&args.setup, true, stop, flags, show).await? {
        Some(running) => running.stop().await,
        None => Ok(()),
    }
}

async fn show(running: &mut Running, matches: u32, producer: &str) -> Result<()> {
    let (dir, node) = (
        &running.dir.canonicalize()?,
        &running.consumer_admin.clone(),
    );
    let [program] = tokio::task::spawn_blocking(|| find(["revalidator"])).await??;
    running.wait_ready().await?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() - AGE;
    let row = |number| {
        let user = format!("user-{number}");
        format!("{{\"u\":\"{user}\",\"d\":{DSP},\"b\":\"{user}-0\",\"t\":{time}}}\n")
    };
    let rows: String = (0..matches).map(row).collect();
    let mut client = HttpClient::connect(producer).await?;
    let headers = [("Content-Type", "application/x-ndjson")];
    let sent = client.request("POST", "/v1/cookies", &headers, &rows);
    let sent = sent.await?;
    ensure!(sent.status == 200, "{}", sent.body);
    let last = format!("/v1/users/user-{}", matches - 1);
    poll("GET", node, &last, |it| it.status == 200).await?;

    let nats = Nats::start(dir).await?;
    let [partner, api, admin] = [free_address()?, free_address()?, free_address()?];
    let (file, tokens) = (dir.join("apps.toml"), dir.join(TOKEN_FILE));
    let apps = format!(
        "[apps.partner]\nkind = \"cookies\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
         allow_networks = [\"127.0.0.0/8\"]\nallow_delete = \"partial\"\nworkers = 2\n[apps.partner.cookies]\ndsp = {DSP}\n\
         after = \"30m\"\nsightings_apart = \"1s\"\nurl = \"http://{partner}/{{user}}\"\n\
         nodes = {{ urls = [\"http://{node}\"], token_file = {tokens:?} }}\nproducers = {{ urls = [\"http://{producer}\"] }}\n"
    );
    fs::write(&file, apps)?;
    let mut serve = flags([
        ("--apps", file.display().to_string()),
        ("--nats", nats.url()),
        ("--listen", api.to_string()),
        ("--admin", admin.to_string()),
        ("--workers", "2".to_owned()),
    ]);
    serve.insert(0, "serve".to_owned());
    let mut revalidator = start("revalidator", &program, &serve, dir)?;
    let status_page = admin.to_string();
    revalidator.wait_ready(&status_page, READY_TIMEOUT).await?;
    println!("revalidator  http://{status_page}/ (status page)\n");
    let own = format!(
        "origin --no-report --uids --listen={partner} --delay=40ms --capacity=10 --changed=0.1 --errors=404=0.02"
    );
    let own: Vec<_> = own.split_whitespace().map(str::to_owned).collect();
    let mut origin = running.start_bench("partner", &own)?;
    origin.wait_accepting(partner, READY_TIMEOUT).await?;
    for what in [
        "all matches, because all are older than `after`",
        "only unconfirmed matches; those missing for the second time are removed",
    ] {
        println!("checking: {what}");
        println!("  {}", check(&api.to_string()).await?);
    }
    origin.stop(STOP_TIMEOUT).await?;
    revalidator.stop(STOP_TIMEOUT).await?;
    Ok(())
}

/// Runs a job; returns its counts.
async fn check(api: &str) -> Result<String> {
    let mut client = HttpClient::connect(api).await?;
    let created = client.post("/v1/jobs", &[], JOB).await?.body;
    let job: Value = serde_json::from_str(&created)?;
    let path = format!("/v1/jobs/{}", job["jobId"].as_str().context(created)?);
    let is_finished = |it: &Response| it.body.contains("\"serverState\":\"Finished\"");
    let job = poll("GET", api, &path, is_finished).await?.body;
    let counts = &serde_json::from_str::<Value>(&job)?["counts"];
    let counts = ["checked", "fresh", "changed", "gone", "deleted"]
        .map(|name| format!("{} {name}", counts[name]));
    Ok(counts.join(", "))
}
