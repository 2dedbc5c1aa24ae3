//! What one connection is to do in a load.

use std::{net::SocketAddr, sync::Arc};

use super::{request::Template, schedule::Schedule, source::Source};

/// What a connection is to do.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// Its stream among all of the traffic.
    pub(super) connection: u64,
    pub(super) address: SocketAddr,
    pub(super) template: Arc<Template>,
    pub(super) source: Source,
    /// Most requests without an answer.
    pub(super) pipeline: u64,
    /// When requests leave; without one, as soon as the pipeline allows.
    pub(super) schedule: Option<Schedule>,
    /// How many requests to send; `u64::MAX` for no end.
    pub(super) requests: u64,
    /// The fate of each request is kept, not only their number.
    pub(super) keeps_history: bool,
}
