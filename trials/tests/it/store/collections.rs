//! How collections of cookies are made.

use std::sync::Arc;

use anyhow::{Result, ensure};
use consumer::{
    batch::Batch,
    store::{Store, mongodb::ExpiryMode},
};
use mongodb::bson::{Document, doc};
use tempfile::TempDir;

use crate::{
    maintenance::{Server, Who, in_both_modes},
    mongods::{command, fail, failing},
};

in_both_modes!(collection_is_created_with_page_sizes_for_random_ids);

/// Has a consumer make the database of DSP 17 on this server.
async fn make(mode: ExpiryMode, uri: &str) -> Result<()> {
    let store = Who::from(mode).store(uri);
    store.retry(17, Arc::new(Batch::new(1, 1))).await?;
    Ok(())
}

/// What WiredTiger was told of the collection, and of its index on `_id`.
async fn told(server: &Server) -> Result<(String, String)> {
    let statistics = doc! { "collStats": "cookies", "indexDetails": true };
    let statistics = server.database("17").run_command(statistics).await?;
    let told = |of: &Document| of.get_str("creationString").map(str::to_owned);
    let indexes = statistics.get_document("indexDetails")?;
    Ok((
        told(statistics.get_document("wiredTiger")?)?,
        told(indexes.get_document("_id_")?)?,
    ))
}

async fn collection_is_created_with_page_sizes_for_random_ids(mode: ExpiryMode) -> Result<()> {
    let dir = TempDir::new()?;
    let (mongod, server) = Server::start_in(mode, dir.path()).await?;
    make(mode, &mongod.uri()).await?;
    let (documents, ids) = told(&server).await?;
    for setting in ["leaf_page_max=4k", "memory_page_max=512k"] {
        ensure!(documents.contains(setting), "{documents}");
    }
    for setting in ["leaf_page_max=4k", "prefix_compression=false"] {
        ensure!(ids.contains(setting), "{ids}");
    }
    let indexes = server.indexes("17.cookies").await?.len();
    ensure!(indexes == usize::from(mode == ExpiryMode::Index));
    Ok(())
}

#[tokio::test]
async fn collection_is_created_with_defaults_if_the_server_rejects_page_sizes() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = failing(&dir).await?;
    let refused = doc! { "failCommands": ["create"], "errorCode": 72 };
    let once =
        doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": refused };
    command(&mongod.uri(), once).await?;
    make(ExpiryMode::Sweep, &mongod.uri()).await?;
    let server = Server::connect(&mongod.uri(), mongodb::bson::DateTime::now()).await?;
    let (documents, _) = told(&server).await?;
    ensure!(documents.contains("memory_page_max=10m"), "{documents}");
    Ok(())
}

#[tokio::test]
async fn unauthorized_database_creation_returns_the_server_error() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = failing(&dir).await?;
    // Not allowed, whatever the settings.
    fail(
        &mongod,
        doc! { "failCommands": ["create"], "errorCode": 13 },
    )
    .await?;
    let made = make(ExpiryMode::Sweep, &mongod.uri()).await;
    let why = made.expect_err("it is not allowed").to_string();
    ensure!(why.contains("Unauthorized"), "{why}");
    Ok(())
}
