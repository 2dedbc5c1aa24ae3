//! What a team would otherwise use: how each is started, published to and read from.

mod nats;
mod rabbitmq;
mod redis_pubsub;
mod redis_server;
mod redis_streams;

use std::{path::Path, sync::Arc};

use anyhow::Result;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    broker::Broker,
    peer::Peer,
    publisher::{PublisherArgs, PublisherLine, publish as over_lanes},
    reader::{Opened, ReaderArgs, follow},
    seen::Seen,
};

/// Why none of them can be measured.
pub(super) const LEFT_OUT: Option<&str> = None;

/// Starts the server of a peer and waits until it accepts connections.
///
/// # Errors
/// When it does not, with its last words.
pub(super) async fn start(peer: Peer, program: &Path, folder: &Path) -> Result<Broker> {
    match peer {
        Peer::Ours => unreachable!("ours is started by itself"),
        Peer::Nats => nats::start(program, folder).await,
        Peer::RedisPubsub | Peer::RedisStreams => redis_server::start(program, folder).await,
        Peer::Rabbitmq => rabbitmq::start(program, folder).await,
    }
}

/// Publishes what the arguments say, until it is done or `stop`.
///
/// # Errors
/// When the peer cannot be reached or breaks off.
pub(super) async fn publish(
    args: &PublisherArgs,
    stop: &CancellationToken,
) -> Result<PublisherLine> {
    let PublisherArgs {
        to, batch, keep, ..
    } = args;
    match args.peer {
        Peer::Ours => unreachable!("ours is loaded over HTTP"),
        Peer::Nats => over_lanes(args, || nats::Publisher::connect(to), stop).await,
        Peer::RedisPubsub => over_lanes(args, || redis_pubsub::publisher(to), stop).await,
        Peer::RedisStreams => {
            let connect = || redis_streams::publisher(to, *keep, *batch);
            over_lanes(args, connect, stop).await
        }
        Peer::Rabbitmq => over_lanes(args, || rabbitmq::Publisher::connect(to), stop).await,
    }
}

/// Spawns a subscriber.
pub(super) fn read(args: &ReaderArgs, seen: Arc<Seen>, opened: Opened, running: &mut JoinSet<()>) {
    let (at, keep, batch) = (args.at.clone(), args.keep, args.batch);
    match args.peer {
        Peer::Ours => unreachable!("ours is read by itself"),
        Peer::Nats => {
            let reader = nats::Reader::new(at, Arc::clone(&seen));
            running.spawn(follow(reader, seen, opened))
        }
        Peer::RedisPubsub => running.spawn(follow(redis_pubsub::Reader::new(at), seen, opened)),
        Peer::RedisStreams => {
            running.spawn(follow(redis_streams::Reader::new(at, batch), seen, opened))
        }
        Peer::Rabbitmq => {
            running.spawn(follow(rabbitmq::Reader::new(at, keep, batch), seen, opened))
        }
    };
}
