//! `cargo demo revalidate`: matches are checked at a partner that has changed some of them and lost others.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use launcher::{
    http::{HttpClient, Response},
    nats::Nats,
    programs::{find, free_address},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    args::RevalidateArgs,
    running::{READY_TIMEOUT, Running, STOP_TIMEOUT, Setup, TOKEN_FILE, flags, start},
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
    let Some(mut setup) = Setup::prepare(&args.setup, true, stop).await? else {
        return Ok(());
    };
    setup.dir = setup.dir.canonicalize()?;
    let api = free_address()?.to_string();
    let mut running = Running::start(&args.setup, &setup, flags([("--api", api.clone())]))?;
    let result = tokio::select! {
        result = show(&mut running, args, &setup, &api) => result,
        () = stop.cancelled() => Ok(()),
    };
    result?;
    running.stop().await
}

async fn show(
    running: &mut Running,
    args: &RevalidateArgs,
    setup: &Setup,
    producer: &str,
) -> Result<()> {
    let (dir, node) = (&setup.dir, &running.consumer_admin.clone());
    let [program] = tokio::task::spawn_blocking(|| find(["revalidator"])).await??;
    running.wait_ready(&args.setup, setup).await?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() - AGE;
    let row = |number| {
        let user = format!("user-{number}");
        format!("{{\"u\":\"{user}\",\"d\":{DSP},\"b\":\"{user}-0\",\"t\":{time}}}\n")
    };
    let rows: String = (0..args.matches).map(row).collect();
    let mut client = HttpClient::connect(producer).await?;
    let length = rows.len();
    let request = format!(
        "POST /v1/cookies HTTP/1.1\r\nHost: {producer}\r\nContent-Type: application/x-ndjson\r\nContent-Length: {length}\r\n\r\n{rows}"
    );
    client.send(request.as_bytes()).await?;
    let sent = client.response().await?;
    ensure!(sent.status == 200, "{}", sent.body);
    let last = format!("/v1/users/user-{}", args.matches - 1);
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
    let bench = setup.programs.bench.as_ref();
    let bench = bench.context("the partner (bench) was not built")?;
    let mut origin = start("partner", bench, &own, dir)?;
    origin.wait_accepting(partner, READY_TIMEOUT).await?;
    for what in [
        "all matches are older than `after`",
        "confirmed matches are skipped, and missing ones removed",
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
