//! Stands for NATS in a build without the feature `archive`.

use async_trait::async_trait;
use proto::v1::NodePositions;
use runtime::{connect::credentials::NatsTlsArgs, settings::ConfigErrors};

use super::archive::{Archive, ArchiveError, Info, Message, Messages};

/// Never exists.
#[derive(Debug, Clone)]
pub enum Nats {}

impl Nats {
    /// Records an error.
    pub fn check(
        errors: &mut ConfigErrors,
        _url: &str,
        _tls: &NatsTlsArgs,
        _name: &str,
    ) -> Option<Self> {
        errors.add("--archive: requires a build with `--features consumer/archive`");
        None
    }

    /// Never called.
    pub fn node_reports(&self, _errors: &mut ConfigErrors, _stream: &str) -> Option<NodeReports> {
        match *self {}
    }
}

/// Never exists.
#[derive(Debug, Clone)]
pub enum NodeReports {}

impl NodeReports {
    /// Never called.
    pub async fn publish(
        &mut self,
        _positions: &NodePositions,
        _token: Option<&str>,
    ) -> Result<(), ArchiveError> {
        match *self {}
    }
}

#[async_trait]
impl Archive for Nats {
    async fn check(&mut self) -> Result<Info, ArchiveError> {
        match *self {}
    }

    async fn first(&mut self, _: &str, _: u64) -> Result<Option<Message>, ArchiveError> {
        match *self {}
    }

    async fn read(&mut self, _: &str, _: u64) -> Result<Vec<Message>, ArchiveError> {
        match *self {}
    }

    async fn follow(&mut self, _: u64) -> Result<Messages, ArchiveError> {
        match *self {}
    }
}
