//! `brokers reader`: a process with many subscribers.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use tokio::{sync::mpsc, task::JoinSet, time::interval};

use crate::{
    broker::Broker,
    cookiesync,
    count::{Count, Counts},
    nats, redis,
    subscriber::follow,
};

/// Interval at which the counts are written.
pub(crate) const LINE_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of a reader process.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReaderArgs {
    #[arg(long, value_enum)]
    broker: Broker,
    /// Address of the server.
    #[arg(long)]
    at: String,
    #[arg(long)]
    subscribers: usize,
    /// Cookies per message.
    #[arg(long)]
    batch: u32,
}

/// Subscribes; once all connections are open, writes [`Counts`] as one JSON object per line until it is killed.
///
/// # Errors
/// A subscriber could not open its first connection.
pub(crate) async fn read(args: &ReaderArgs) -> Result<()> {
    let all: Vec<Arc<Count>> = (0..args.subscribers).map(|_| Arc::default()).collect();
    let (opened_tx, mut opened) = mpsc::channel(args.subscribers.max(1));
    let mut running = JoinSet::new();
    for (number, count) in all.iter().enumerate() {
        let (at, count, opened) = (args.at.clone(), Arc::clone(count), opened_tx.clone());
        match args.broker {
            Broker::Cookiesync => {
                let name = format!("brokers-{}-{number}", std::process::id());
                let reader = cookiesync::Reader::new(at, name, args.batch == 1);
                running.spawn(follow(reader, count, opened))
            }
            Broker::Nats => {
                let reader = nats::Reader::new(at, Arc::clone(&count));
                running.spawn(follow(reader, count, opened))
            }
            Broker::RedisPubsub => {
                running.spawn(follow(redis::ChannelReader::new(at), count, opened))
            }
            Broker::RedisStreams => {
                let reader = redis::StreamReader::new(at, args.batch);
                running.spawn(follow(reader, count, opened))
            }
        };
    }
    drop(opened_tx);
    for _ in &all {
        let first = opened
            .recv()
            .await
            .context("a subscriber ended before it was open")?;
        first.context("cannot subscribe")?;
    }
    let mut ticks = interval(LINE_INTERVAL);
    loop {
        ticks.tick().await;
        let counts = Counts::sum(all.iter().map(AsRef::as_ref));
        println!("{}", serde_json::to_string(&counts)?);
    }
}
