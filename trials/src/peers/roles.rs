//! `trials peers-reader` and `trials peers-publisher`: what the further processes of a step do, each with its connections
//! and tasks.

use std::{io::Write as _, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use bench::cpu::CpuTime;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    others, ours,
    peer::Peer,
    publisher::PublisherArgs,
    reader::{Opened, ReaderArgs, follow},
    seen::{ReaderLine, Seen},
};

const LINE_INTERVAL: Duration = Duration::from_millis(100);

/// Publishes until the time is over, or `stop`, and prints one JSON object with what it did.
///
/// # Errors
/// When the peer cannot be reached or breaks off.
pub async fn publish(args: &PublisherArgs, stop: &CancellationToken) -> Result<()> {
    let line = match args.peer {
        Peer::Ours => ours::publish(args, stop).await?,
        _ => others::publish(args, stop).await?,
    };
    println!("{}", serde_json::to_string(&line)?);
    Ok(())
}

/// Subscribes, and reads until `stop` or until nobody listens to what it writes: once all are open a `ReaderLine` ten times a
/// second, and a last one in the end.
///
/// # Errors
/// When a subscriber cannot be opened at the start.
pub async fn read(args: &ReaderArgs, stop: &CancellationToken) -> Result<()> {
    let all: Vec<Arc<Seen>> = (0..args.subscribers).map(|_| Arc::default()).collect();
    let (opened_tx, mut opened) = mpsc::channel(args.subscribers.max(1));
    let mut running = JoinSet::new();
    for (number, seen) in all.iter().enumerate() {
        let (seen, opened) = (Arc::clone(seen), opened_tx.clone());
        subscribe(args, number, seen, opened, &mut running);
    }
    drop(opened_tx);
    for _ in &all {
        let first = tokio::select! {
            first = opened.recv() => first.context("a subscriber ended before it was open")?,
            () = stop.cancelled() => return Ok(()),
        };
        first.context("cannot subscribe")?;
    }
    let cpu_before = CpuTime::of_this_process();
    let write = || {
        let line = ReaderLine::of(all.iter().map(AsRef::as_ref), &cpu_before);
        let line = serde_json::to_string(&line).map_err(std::io::Error::from)?;
        writeln!(std::io::stdout(), "{line}")
    };
    let mut ticks = interval(LINE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => write()?,
            () = stop.cancelled() => break,
        }
    }
    running.shutdown().await;
    Ok(write()?)
}

/// Spawns subscriber `number` of the peer.
fn subscribe(
    args: &ReaderArgs,
    number: usize,
    seen: Arc<Seen>,
    opened: Opened,
    running: &mut JoinSet<()>,
) {
    if args.peer != Peer::Ours {
        others::read(args, seen, opened, running);
        return;
    }
    let name = format!("trials-{}-{number}", std::process::id());
    let reader = ours::Reader::new(args.at.clone(), name, args.batch == 1);
    running.spawn(follow(reader, seen, opened));
}
