//! Objects in a bucket of S3, or of a server with its API.
//!
//! Credentials, region and endpoint come from the environment variables of Amazon's clients, such as `AWS_ACCESS_KEY_ID`. An
//! object is replaced atomically, and removing a missing object succeeds.

use std::{path::Path, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use object_store::{
    ClientOptions, Error, ObjectStoreExt as _,
    aws::{AmazonS3, AmazonS3Builder},
    client::{HttpClient, HttpConnector},
};

use crate::client::builder;

/// Timeout of a request. Up to ten retries follow within three minutes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A bucket; clones share its connections.
#[derive(Debug, Clone)]
pub(super) struct Bucket(AmazonS3);

/// Creates HTTP clients with the same settings as all other clients.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let (client, store) = (builder().timeout(TIMEOUT).build(), "S3");
        let failed = |error: reqwest::Error| Error::Generic {
            store,
            source: error.into(),
        };
        client.map(HttpClient::new).map_err(failed)
    }
}

impl Bucket {
    pub(super) fn open(name: &str) -> Result<Self, String> {
        let store = AmazonS3Builder::from_env()
            .with_bucket_name(name)
            .with_disable_bulk_delete(true)
            .with_http_connector(Connector)
            .build();
        store.map(Self).map_err(|error| error.to_string())
    }

    pub(super) async fn write(&self, path: &Path, body: Bytes) -> Result<()> {
        self.0.put(&object(path), body.into()).await?;
        Ok(())
    }

    pub(super) async fn has(&self, path: &Path) -> bool {
        self.0.head(&object(path)).await.is_ok()
    }

    pub(super) async fn remove(&self, path: &Path) -> Result<()> {
        match self.0.delete(&object(path)).await {
            Err(error) if !matches!(error, Error::NotFound { .. }) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn object(path: &Path) -> object_store::path::Path {
    path.to_string_lossy().as_ref().into()
}
