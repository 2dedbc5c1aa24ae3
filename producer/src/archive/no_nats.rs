//! Stands for NATS in a build without the feature `archive`.

use runtime::{connect::credentials::NatsTlsArgs, settings::ConfigErrors};

use super::{ArchiveError, Message, Publisher, ReportIntake};

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
    pub async fn remove(&self, _name: &str) -> Result<(), ArchiveError> {
        match *self {}
    }

    /// Never called.
    pub async fn run(self, _intake: ReportIntake) {
        match self {}
    }
}

impl Publisher for Nats {
    async fn publish(&mut self, _message: &Message) -> Result<(), ArchiveError> {
        match *self {}
    }
}
