//! Tests of the creation of collections for cookies.

use proto::units::DspId;
use std::sync::Arc;

use anyhow::{Result, ensure};
use consumer::{
    batch::Batch,
    deletions::Deletions,
    store::{Backlog as _, Cookies as _},
};
use mongodb::bson::{Document, doc};
use tempfile::TempDir;

use super::newest_wins::chunk;
use crate::{
    maintenance::{ConsumerOptions, Server},
    mongods::{command, set_failpoint, start_failable},
};

/// Creates the database of DSP 17 as a consumer does.
async fn create(uri: &str) -> Result<()> {
    let store = ConsumerOptions::default().store(uri);
    store.retry(DspId(17), Arc::new(Batch::new(1, 1))).await?;
    Ok(())
}

/// WiredTiger's creation strings of the collection and of its index on `_id`.
async fn creation_strings(server: &Server) -> Result<(String, String)> {
    let statistics = doc! { "collStats": "cookies", "indexDetails": true };
    let statistics = server.database("17").run_command(statistics).await?;
    let creation_string = |of: &Document| of.get_str("creationString").map(str::to_owned);
    let indexes = statistics.get_document("indexDetails")?;
    Ok((
        creation_string(statistics.get_document("wiredTiger")?)?,
        creation_string(indexes.get_document("_id_")?)?,
    ))
}

#[tokio::test]
async fn collection_is_created_with_page_sizes_for_random_ids() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    create(&mongod.uri()).await?;
    let (documents, ids) = creation_strings(&server).await?;
    for setting in ["leaf_page_max=4k", "memory_page_max=512k"] {
        ensure!(documents.contains(setting), "{documents}");
    }
    for setting in ["leaf_page_max=4k", "prefix_compression=false"] {
        ensure!(ids.contains(setting), "{ids}");
    }
    ensure!(server.indexes("17.cookies").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn dropped_collection_is_created_again_with_page_sizes() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    create(&mongod.uri()).await?;
    let store = ConsumerOptions::default().store(&mongod.uri());
    store.load(&Deletions::default()).await?;
    for (user, drops) in [("a", false), ("b", true), ("c", true)] {
        if drops {
            server.database("17").drop().await?;
        }
        let mut batch = Batch::new(1, 1);
        let cookie = (user.to_owned(), 17, "x".to_owned(), 0);
        batch.push_chunk(&chunk(&cookie)?);
        let batch = Arc::new(batch);
        let written = store.write(Arc::clone(&batch)).await?;
        ensure!(written.deferred.is_empty() != drops, "{written:?}");
        if drops {
            let again = store.write(Arc::clone(&batch)).await?;
            ensure!(!again.deferred.is_empty(), "{again:?}");
            store.retry(DspId(17), Arc::clone(&batch)).await?;
        }
        let (documents, ids) = creation_strings(&server).await?;
        ensure!(documents.contains("memory_page_max=512k"), "{documents}");
        ensure!(ids.contains("leaf_page_max=4k"), "{ids}");
        let cookies = server.database("17");
        let cookies = cookies.collection::<Document>("cookies");
        ensure!(cookies.count_documents(doc! {}).await? == 1);
    }
    Ok(())
}

#[tokio::test]
async fn collection_is_created_with_defaults_if_the_server_rejects_page_sizes() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let rejection = doc! { "failCommands": ["create"], "errorCode": 72 };
    let once =
        doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": rejection };
    command(&mongod.uri(), once).await?;
    create(&mongod.uri()).await?;
    let server = Server::connect(&mongod.uri(), mongodb::bson::DateTime::now()).await?;
    let (documents, _) = creation_strings(&server).await?;
    ensure!(documents.contains("memory_page_max=10m"), "{documents}");
    Ok(())
}

#[tokio::test]
async fn unauthorized_database_creation_returns_the_server_error() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    // Code 13, Unauthorized, for any options.
    set_failpoint(
        &mongod,
        doc! { "failCommands": ["create"], "errorCode": 13 },
    )
    .await?;
    let created = create(&mongod.uri()).await;
    let error = created.expect_err("creation is not authorized").to_string();
    ensure!(error.contains("Unauthorized"), "{error}");
    Ok(())
}
