//! Sends one sync request through the programs, then prints commands to try.

use std::{num::NonZeroU64, time::Duration};

use anyhow::{Result, bail};
use launcher::{
    admin,
    http::{HttpClient, Response},
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    args::Args,
    running::{self, Running},
};

const USER_ID: &str = "alice";
const DSP_ID: u32 = 17;
const BUYER_UID: &str = "buyer-17-knows-alice";

const POLL_TIMEOUT: Duration = Duration::from_secs(60);
const LOOKUP_INTERVAL: Duration = Duration::from_millis(10);

/// Interval of checks that all processes run.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the demo until `stop`.
///
/// # Errors
/// If a port is in use, the build fails, or a process fails.
pub(crate) async fn run(args: &Args, stop: &CancellationToken) -> Result<()> {
    let show = async |running: &mut Running| show(running, args.load).await;
    match running::run(&args.setup, args.load.is_some(), stop, show).await? {
        Some(running) => running.stop().await,
        None => Ok(()),
    }
}

/// Waits until both processes are ready, sends one sync request and looks it up, then runs until a process fails.
async fn show(running: &mut Running, load: Option<NonZeroU64>) -> Result<()> {
    running.wait_ready().await?;
    let edge = running.edge();
    send_one(&edge, &running.consumer_admin).await?;
    let (producer, consumer) = (&running.producer_admin, &running.consumer_admin);
    println!(
        "try\n  \
         curl -i --cookie 'uid=bob' 'http://{edge}/?d=3&b=bob-at-dsp-3'\n  \
         curl 'http://{consumer}/v1/users/bob'\n  \
         curl 'http://{producer}/metrics'\n  \
         curl 'http://{consumer}/metrics'\n\
         status pages: http://{producer}/ (producer), http://{consumer}/ (consumer)\n"
    );
    if let Some(rate) = load {
        println!("sending {rate} requests per second until Ctrl-C; see both status pages");
        running.start_load(rate)?;
    } else {
        println!("running until Ctrl-C; `--load 20000` also sends 20,000 requests per second");
    }
    loop {
        sleep(CHECK_INTERVAL).await;
        running.check()?;
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
    let is_stored = |response: &Response| response.body.contains(BUYER_UID);
    let response = poll(consumer_admin, &path, is_stored).await?;
    println!(
        "  200, {} ms later: {}\n",
        accepted_at.elapsed().as_millis(),
        response.body.trim()
    );
    Ok(())
}

/// Repeats a request until its response is as expected.
async fn poll(
    address: &str,
    path: &str,
    is_expected: impl Fn(&Response) -> bool,
) -> Result<Response> {
    let deadline = Instant::now() + POLL_TIMEOUT;
    loop {
        let mut connection = HttpClient::connect(address).await?;
        let response = connection.get(path, &[]).await?;
        if is_expected(&response) {
            return Ok(response);
        }
        if Instant::now() > deadline {
            bail!(
                "GET http://{address}{path} still returns {} {} after {POLL_TIMEOUT:?}",
                response.status,
                response.body.trim()
            );
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}
