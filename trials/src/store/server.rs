//! The MongoDB server: its process and the databases of a run.

use std::{num::NonZeroU32, time::Duration};

use anyhow::{Context as _, Result};
use bench::cpu;
use consumer::store::mongodb::COOKIES;
use mongodb::{
    Client,
    bson::{Document, doc},
    options::ClientOptions,
};

/// Prefix of all database names of a run. Databases with this prefix are dropped.
pub(super) const PREFIX: &str = "trials-store-";

/// Timeout for finding the server; short, to report a missing server soon.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// A MongoDB server.
pub(super) struct Server {
    uri: String,
    client: Client,
    /// Process id of `mongod`, if it runs on this machine.
    process_id: Option<u32>,
}

impl Server {
    pub(super) async fn connect(uri: &str) -> Result<Self> {
        let mut options = ClientOptions::parse(uri).await?;
        options
            .server_selection_timeout
            .get_or_insert(SELECTION_TIMEOUT);
        let client = Client::with_options(options)?;
        let command = doc! {"serverStatus": 1, "repl": 0, "metrics": 0, "locks": 0};
        let status = client.database("admin").run_command(command).await;
        let status = status.context("failed to query the MongoDB of --store")?;
        let id = status.get_i64("pid").ok();
        let id = id.and_then(|id| u32::try_from(id).ok());
        let is_mongod = |id: &u32| cpu::stat(*id).is_some_and(|stat| stat.comm == "mongod");
        Ok(Self {
            uri: uri.to_owned(),
            client,
            process_id: id.filter(is_mongod),
        })
    }

    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Database of a DSP of a variant.
    pub(super) fn database(variant: &str, dsp_id: u32) -> String {
        format!("{PREFIX}{variant}-{dsp_id}")
    }

    /// CPU time of `mongod`; `None` if it runs on another machine.
    pub(super) fn cpu(&self) -> Option<Duration> {
        self.process_id.and_then(cpu::of)
    }

    /// Drops the databases of this run and of previous ones.
    pub(super) async fn drop_databases(&self) -> Result<()> {
        for name in self.client.list_database_names().await? {
            if name.starts_with(PREFIX) {
                self.client.database(&name).drop().await?;
            }
        }
        Ok(())
    }

    /// Number of documents of a variant.
    pub(super) async fn count(&self, variant: &str, dsps: NonZeroU32) -> Result<u64> {
        let mut count = 0;
        for dsp_id in 1..=dsps.get() {
            let database = self.client.database(&Self::database(variant, dsp_id));
            let cookies = database.collection::<Document>(COOKIES);
            count += cookies.estimated_document_count().await?;
        }
        Ok(count)
    }
}
