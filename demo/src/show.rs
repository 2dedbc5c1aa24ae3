//! One sync on its way through the programs, and then what there is to see.

use std::time::Duration;

use anyhow::{Result, bail};
use launcher::admin;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{Args, Places, reachable},
    running::{Prepared, Running},
};

const USER_ID: &str = "alice";
const DSP_ID: u32 = 17;
const BUYER_UID: &str = "buyer-17-knows-alice";

const STORED_TIMEOUT: Duration = Duration::from_secs(10);
const LOOKUP_INTERVAL: Duration = Duration::from_millis(10);

/// How often it looks whether all processes still run.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the demonstration until `stop`.
///
/// # Errors
/// When a port is taken, the programs cannot be built, or one of them does not do its work.
pub(crate) async fn run(args: &Args, stop: &CancellationToken) -> Result<()> {
    let with_load = args.load.is_some();
    let Some(prepared) = Prepared::prepare(&args.places, with_load, stop).await? else {
        return Ok(());
    };
    let mut running = Running::start(&args.places, &prepared, Vec::new())?;
    let shown = tokio::select! {
        shown = show(&mut running, args, &prepared) => shown,
        () = stop.cancelled() => Ok(()),
    };
    shown?;
    running.stop().await
}

/// Waits for both, sends one sync, shows its lookup, and then what there is to see for as long as nothing fails.
async fn show(running: &mut Running, args: &Args, prepared: &Prepared) -> Result<()> {
    let places = &args.places;
    running.wait_ready(places, prepared).await?;
    send_one(places, &running.consumer_admin).await?;
    print_what_to_try(places);
    if let Some(rate) = args.load {
        println!("sending {rate} requests a second: see both pages; Ctrl-C stops everything");
        let flags = [
            ("--rate", rate.to_string()),
            // As long as a load can be.
            ("--duration", "30d".to_owned()),
        ];
        running.start_load(places, prepared, flags)?;
    } else {
        println!("running until Ctrl-C; `--load 20000` adds load");
    }
    loop {
        sleep(CHECK_INTERVAL).await;
        running.check()?;
    }
}

async fn send_one(places: &Places, consumer_admin: &str) -> Result<()> {
    let edge = reachable(places.http).to_string();
    println!("GET http://{edge}/?d={DSP_ID}&b={BUYER_UID}   Cookie: uid={USER_ID}");
    let answer = admin::sync(&edge, USER_ID, DSP_ID, BUYER_UID).await?;
    if answer.status != 200 {
        bail!("the edge answers {}: {}", answer.status, answer.body.trim());
    }
    let accepted_at = Instant::now();
    println!("  200");
    let path = format!("/v1/users/{USER_ID}");
    println!("GET http://{consumer_admin}{path}");
    loop {
        let answer = admin::get(consumer_admin, &path).await?;
        if answer.status == 200 && answer.body.contains(BUYER_UID) {
            println!(
                "  200, {} ms after the edge: {}\n",
                accepted_at.elapsed().as_millis(),
                answer.body.trim()
            );
            return Ok(());
        }
        if accepted_at.elapsed() > STORED_TIMEOUT {
            bail!(
                "the consumer does not know the cookie after {STORED_TIMEOUT:?}: it answers {} {}",
                answer.status,
                answer.body.trim()
            );
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}

fn print_what_to_try(places: &Places) {
    let (edge, producer, consumer) = (
        reachable(places.http),
        reachable(places.producer_admin),
        reachable(places.consumer_admin),
    );
    println!(
        "try\n  \
         curl -i --cookie 'uid=bob' 'http://{edge}/?d=3&b=bob-at-dsp-3'\n  \
         curl 'http://{consumer}/v1/users/bob'\n  \
         curl 'http://{producer}/metrics'\n  \
         curl 'http://{consumer}/metrics'\n\
         and look at the producer at http://{producer}/ and the consumer at http://{consumer}/\n"
    );
}
