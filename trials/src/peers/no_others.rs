//! Stands in for `others` in a build without the feature `peers`: their clients take longer to build than trials itself.

use std::{path::Path, sync::Arc};

use anyhow::{Result, bail};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    broker::Broker,
    peer::Peer,
    publisher::{PublisherArgs, PublisherLine},
    reader::{Opened, ReaderArgs},
    seen::Seen,
};

const WHY: &str = "this program was built without its client: cargo build --profile dist -p producer -p trials --features trials/peers";

/// Why none of them can be measured.
pub(super) const LEFT_OUT: Option<&str> = Some(WHY);

pub(super) async fn start(_: Peer, _: &Path, _: &Path) -> Result<Broker> {
    bail!(WHY)
}

pub(super) async fn publish(_: &PublisherArgs, _: &CancellationToken) -> Result<PublisherLine> {
    bail!(WHY)
}

/// Subscribes to nothing; `opened` is dropped, which tells the caller.
pub(super) fn read(_: &ReaderArgs, _: Arc<Seen>, _: Opened, _: &mut JoinSet<()>) {}
