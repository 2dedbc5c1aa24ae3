//! Stands for NATS in a build without the feature `archive`.

use runtime::{connect::credentials::NatsTlsArgs, settings::ConfigErrors};

use super::{ArchiveError, Message, Publisher};

/// Never exists.
#[derive(Debug, Clone)]
pub enum Nats {}

impl Nats {
    /// Records an error.
    pub fn check(
        errors: &mut ConfigErrors,
        _url: &str,
        _tls: &NatsTlsArgs,
        _chunk_bytes: usize,
    ) -> Option<Self> {
        errors.add("--archive: requires a build with `--features producer/archive`");
        None
    }
}

impl Publisher for Nats {
    async fn publish(&mut self, _message: &Message) -> Result<(), ArchiveError> {
        match *self {}
    }
}
