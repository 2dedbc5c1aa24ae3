//! `cargo demo revalidate`: the assets of a list are checked, and again after some of their contents have changed or are gone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use launcher::{
    http::{HttpClient, Response},
    nats::Nats,
    programs::{find, free_address},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    args::RevalidateArgs,
    running::{READY_TIMEOUT, STOP_TIMEOUT, empty, flags, start},
    show::poll,
};

const JOB: &str = "{\"app\": \"shop\", \"allowDelete\": \"partial\"}";

/// Runs the demo to its end or until `stop`.
///
/// # Errors
/// If the build fails, a process fails, or a job does not finish.
pub(crate) async fn run(args: &RevalidateArgs, stop: &CancellationToken) -> Result<()> {
    let programs = tokio::task::spawn_blocking(|| find(["bench", "revalidator"])).await?;
    if stop.is_cancelled() {
        return Ok(());
    }
    let (programs, dir) = (programs?, empty(args.dir.clone())?.canonicalize()?);
    tokio::select! {
        result = show(args.assets, programs, &dir) => result,
        () = stop.cancelled() => Ok(()),
    }
}

async fn show(assets: u32, [bench, program]: [PathBuf; 2], dir: &Path) -> Result<()> {
    let nats = Nats::start(dir).await?;
    let [origin, api, admin] = [free_address()?, free_address()?, free_address()?];
    let files = ["assets.ndjson", "contents", "apps.toml"];
    let [list, contents, apps] = files.map(|name| dir.join(name));
    let lines = (0..assets).map(|number| format!("{{\"url\": \"http://{origin}/{number}\"}}\n"));
    fs::write(&list, lines.collect::<String>())?;
    let text = format!(
        "[apps.shop]\nkind = \"list\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\nallow_networks = [\"127.0.0.0/8\"]\n\
         assets = {list:?}\ncontents = \"file:{}\"\nallow_delete = \"partial\"\nworkers = 2\n",
        contents.display()
    );
    fs::write(&apps, text)?;
    let mut serve = flags([
        ("--apps", apps.display().to_string()),
        ("--nats", nats.url()),
        ("--listen", api.to_string()),
        ("--admin", admin.to_string()),
        ("--workers", "2".to_owned()),
    ]);
    serve.insert(0, "serve".to_owned());
    let mut revalidator = start("revalidator", &program, &serve, dir)?;
    let status_page = admin.to_string();
    revalidator.wait_ready(&status_page, READY_TIMEOUT).await?;
    let place = dir.display();
    println!("status page http://{status_page}/, files and logs in {place}\n");
    for (what, changes) in [
        ("all contents are new", ""),
        (
            "some contents have changed or are gone",
            "--changed=0.1 --errors=404=0.02",
        ),
    ] {
        println!("checking {assets} assets: {what}");
        let own =
            format!("origin --no-report --listen={origin} --delay=40ms --capacity=10 {changes}");
        let own: Vec<_> = own.split_whitespace().map(str::to_owned).collect();
        let mut server = start("origin", &bench, &own, dir)?;
        server.wait_accepting(origin, READY_TIMEOUT).await?;
        let counts = check(&api.to_string()).await?;
        println!("  {counts}, {} files", count_files(&contents)?);
        server.stop(STOP_TIMEOUT).await?;
    }
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

/// The number of files in all subdirectories.
fn count_files(dir: &Path) -> Result<usize> {
    let dirs = fs::read_dir(dir)?;
    let counts = dirs.map(|it| Ok(fs::read_dir(it?.path())?.count()));
    counts.sum()
}
