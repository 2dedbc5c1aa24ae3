//! Sends one sync request through the programs, then prints commands to try.

use std::time::Duration;

use anyhow::{Result, bail};
use testkit::admin;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    args::Args,
    processes::{Processes, Programs},
};

const USER_ID: &str = "alice";
const DSP_ID: u32 = 17;
const BUYER_UID: &str = "buyer-17-knows-alice";

const POLL_TIMEOUT: Duration = Duration::from_secs(60);
const LOOKUP_INTERVAL: Duration = Duration::from_millis(10);

/// Interval of checks that all processes run.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the demo until `stop`. All ports are checked before anything is built or started.
///
/// # Errors
/// If a port is in use, the build fails, or a process fails.
pub(crate) async fn run(args: &Args, stop: &CancellationToken) -> Result<()> {
    args.check_ports()?;
    let with_bench = args.load.is_some();
    let found = tokio::task::spawn_blocking(move || Programs::find(with_bench)).await?;
    if stop.is_cancelled() {
        // The same Ctrl-C has stopped cargo.
        return Ok(());
    }
    let programs = found?;
    let started = stop.run_until_cancelled(Processes::start(args, &programs));
    let Some(mut processes) = started.await.transpose()? else {
        return Ok(());
    };
    let shown = stop.run_until_cancelled(show(args, &programs, &mut processes));
    shown.await.unwrap_or(Ok(()))?;
    processes.stop().await
}

/// Sends one sync request and looks it up, then runs until a process fails.
async fn show(args: &Args, programs: &Programs, processes: &mut Processes) -> Result<()> {
    let (edge, producer) = (&processes.producer.http, &processes.producer.admin);
    let consumer = args.consumer_admin.to_string();
    send_one(edge, &consumer).await?;
    println!(
        "try\n  \
         curl -i --cookie 'uid=bob' 'http://{edge}/?d=3&b=bob-at-dsp-3'\n  \
         curl 'http://{consumer}/v1/users/bob'\n  \
         curl 'http://{producer}/metrics'\n  \
         curl 'http://{consumer}/metrics'\n\
         status pages: http://{producer}/ (producer), http://{consumer}/ (consumer)\n"
    );
    if let Some(rate) = args.load {
        println!("sending {rate} requests per second until Ctrl-C; see both status pages");
        processes.start_load(programs, rate)?;
    } else {
        println!("running until Ctrl-C; `--load 20000` also sends 20,000 requests per second");
    }
    loop {
        sleep(CHECK_INTERVAL).await;
        processes.check()?;
    }
}

async fn send_one(edge: &str, consumer_admin: &str) -> Result<()> {
    println!("GET http://{edge}/?d={DSP_ID}&b={BUYER_UID}   Cookie: uid={USER_ID}");
    let response = admin::sync(edge, USER_ID, DSP_ID, BUYER_UID).await?;
    if response.status != 200 {
        bail!(
            "the producer's sync port returned {}: {}",
            response.status,
            response.body.trim()
        );
    }
    let accepted_at = Instant::now();
    println!("  200");
    let path = format!("/v1/users/{USER_ID}");
    println!("GET http://{consumer_admin}{path}");
    loop {
        let response = admin::get(consumer_admin, &path).await?;
        let (status, body) = (response.status, response.body.trim());
        let elapsed = accepted_at.elapsed();
        if body.contains(BUYER_UID) {
            println!("  {status}, {} ms later: {body}\n", elapsed.as_millis());
            return Ok(());
        }
        if elapsed > POLL_TIMEOUT {
            bail!("the match is not stored after {POLL_TIMEOUT:?}: {status} {body}");
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}
