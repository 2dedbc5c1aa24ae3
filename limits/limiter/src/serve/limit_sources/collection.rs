//! Limits from a MongoDB collection, which is read completely every second and never written.
//!
//! Each document is a limit, named by its `_id`. While the server is unavailable, the last limits stay in effect.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use anyhow::anyhow;
use futures_util::TryStreamExt as _;
use limits::rules::Table;
use mongodb::{
    Client, Collection,
    bson::{self, Bson, Document, RawDocumentBuf, doc},
    error::{Error, ErrorKind},
    options::{ClientOptions, ReadConcern, ReadPreference, SelectionCriteria},
};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{config, engine::LIMITS_MAX},
    LimitSources, TermsByName,
};

/// Maximum bytes of the documents.
const BYTES_MAX: usize = 2 << 20;

/// Time between two reads.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Timeouts for connecting to a server, and for reading the collection.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the limits of a collection up to date.
pub(in super::super) struct CollectionWatcher {
    collection: Collection<RawDocumentBuf>,
    sources: Arc<LimitSources>,
}

/// Why a read has no result.
enum ReadError {
    /// The server is unavailable, or rejected a command.
    Server(String),
    /// The collection has invalid documents, or too many.
    Content(String),
}

impl CollectionWatcher {
    /// Creates a watcher. The driver connects in the background.
    ///
    /// # Errors
    /// When the connection string is invalid. The error omits it, because it may contain a password.
    pub(in super::super) async fn new(
        config: &config::Collection,
        sources: Arc<LimitSources>,
    ) -> anyhow::Result<Self> {
        let invalid = |error: Error| anyhow!("--limits-mongodb: {}", describe(&error));
        let mut options = ClientOptions::parse(&config.uri).await.map_err(invalid)?;
        let name = || "cookiesync-limiter".to_owned();
        options.app_name.get_or_insert_with(name);
        options
            .server_selection_timeout
            .get_or_insert(SELECTION_TIMEOUT);
        options.connect_timeout.get_or_insert(SELECTION_TIMEOUT);
        options.max_pool_size.get_or_insert(2);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        options.selection_criteria.get_or_insert(primary);
        let client = Client::with_options(options).map_err(invalid)?;
        let collection = client.database(&config.database).collection(&config.name);
        Ok(Self {
            collection,
            sources,
        })
    }

    /// Reads the collection periodically until `stop`.
    pub(in super::super) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(Box::pin(self.watch())).await;
    }

    async fn watch(&self) {
        let mut is_lost = false;
        loop {
            let name = self.collection.namespace();
            let read = timeout(READ_TIMEOUT, Box::pin(read_all(&self.collection))).await;
            let read = read.unwrap_or_else(|_| Err(ReadError::Server("timeout".to_owned())));
            let read = match read {
                Ok(limits) => Ok(limits),
                Err(ReadError::Content(error)) => Err(error),
                Err(ReadError::Server(why)) => {
                    if !std::mem::replace(&mut is_lost, true) {
                        tracing::warn!(
                            collection = %name,
                            why,
                            "cannot read the collection of limits, retrying; keeping the last limits read"
                        );
                    }
                    sleep(POLL_INTERVAL).await;
                    continue;
                }
            };
            let sources = self.sources.clone();
            // Validation can take long.
            if let Err(ended) = spawn_blocking(move || sources.set_collection(read)).await {
                resume_unwind(ended.into_panic());
            }
            if std::mem::replace(&mut is_lost, false) {
                tracing::info!(collection = %name, "collection of limits available again");
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

async fn read_all(collection: &Collection<RawDocumentBuf>) -> Result<TermsByName, ReadError> {
    let server = |error: Error| ReadError::Server(describe(&error));
    let limit = i64::try_from(LIMITS_MAX).unwrap_or(i64::MAX) + 1;
    let mut find = collection.find(doc! {}).limit(limit);
    let hello = collection.client().database("admin");
    let hello = hello.run_command(doc! { "hello": 1 }).await;
    if is_replicated(&hello.map_err(server)?) {
        // A consistent snapshot of majority-committed data.
        find = find.read_concern(ReadConcern::snapshot());
    }
    let mut cursor = find.await.map_err(server)?;
    let (mut limits, mut bytes) = (TermsByName::new(), 0);
    while let Some(raw) = cursor.try_next().await.map_err(server)? {
        bytes += raw.as_bytes().len();
        if bytes > BYTES_MAX || limits.len() == LIMITS_MAX {
            let error = format!("more than {LIMITS_MAX} limits or {BYTES_MAX} bytes");
            return Err(ReadError::Content(error));
        }
        let document = Document::try_from(raw);
        let document = document.map_err(|_| "a document is not valid BSON".to_owned());
        let (name, terms) = document.and_then(parse_limit).map_err(ReadError::Content)?;
        limits.insert(name, terms);
    }
    Ok(limits)
}

/// Whether a server is a member of a replica set, or a router of a sharded cluster.
fn is_replicated(hello: &Document) -> bool {
    hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|it| it == "isdbgrid")
}

/// Returns the name and the definition of a limit.
fn parse_limit(mut document: Document) -> Result<(String, Table), String> {
    let Some(Bson::String(name)) = document.remove("_id") else {
        return Err("invalid `_id`: use the name of the limit, as a string".to_owned());
    };
    match bson::deserialize_from_document(document) {
        Ok(terms) => Ok((name, terms)),
        Err(error) => Err(format!("{}: {error}", name.escape_debug())),
    }
}

/// Describes an error without any part of the connection string.
fn describe(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::Command(error) => format!("{} ({})", error.code_name, error.code),
        ErrorKind::Authentication { .. } => "authentication failed".to_owned(),
        ErrorKind::ServerSelection { .. } => "no server available".to_owned(),
        ErrorKind::Io(error) => error.to_string(),
        ErrorKind::InvalidArgument { .. } => "invalid connection string".to_owned(),
        _ => "MongoDB driver error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_is_parsed_as_a_limit() {
        let document = doc! {
            "_id": "a",
            "keys": ["17", 18],
            "rules": [{ "id": "r", "rate": "3/s", "burst": 5_i64 }],
            "mode": "shape",
            "requeue": { "share": 0.1 },
        };
        let (name, terms) = parse_limit(document).unwrap();
        let expected = "{\"keys\": [\"17\", 18], \"rules\": [{\"id\": \"r\", \"rate\": \"3/s\", \"burst\": 5}], \
                        \"mode\": \"shape\", \"requeue\": {\"share\": 0.1}}";
        assert_eq!(
            (name.as_str(), terms),
            ("a", serde_json::from_str(expected).unwrap())
        );
        for (document, expected) in [
            (doc! { "_id": 17 }, "_id"),
            (doc! { "rules": [] }, "_id"),
            (doc! { "_id": "a", "rules": Bson::Null }, "a: "),
        ] {
            let error = parse_limit(document).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
