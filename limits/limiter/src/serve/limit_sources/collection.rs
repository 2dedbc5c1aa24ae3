//! Limits of a collection of MongoDB: read as a whole, every second.
//!
//! Each document is a limit: its `_id` is the name, all else its terms. Nothing but this reads the collection, and it
//! writes nothing. A server that does not answer changes nothing; what was read last stays in force.

use std::{panic::resume_unwind, time::Duration};

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use limits::rules::LimitDefinition;
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
    LimitSources, Named,
    plan::BYTES_MAX,
};

/// How often the collection is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a server may be looked for, and a command may take.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the limits of a collection up to date.
pub(in super::super) struct Follower {
    of: config::Collection,
    sources: LimitSources,
}

/// Why there is nothing new.
enum Failed {
    /// The server does not answer, or refuses.
    Server(String),
    /// What is in the collection is not limits.
    Content(String),
}

impl Follower {
    /// Of this collection.
    ///
    /// # Errors
    /// When the connection string is malformed; without repeating it.
    pub(in super::super) fn new(
        of: config::Collection,
        sources: LimitSources,
    ) -> anyhow::Result<Self> {
        let parsed = mongodb::options::ConnectionString::parse(&of.uri).ok();
        parsed.context("--limits-mongodb: the connection string is malformed")?;
        Ok(Self { of, sources })
    }

    /// Follows the collection until `stop`.
    pub(in super::super) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(Box::pin(self.follow())).await;
    }

    async fn follow(&self) {
        let mut connected = None;
        let mut is_lost = false;
        loop {
            let read = match self.read(&mut connected).await {
                Ok(named) => Ok(named),
                Err(Failed::Content(why)) => Err(why),
                Err(Failed::Server(why)) => {
                    if !std::mem::replace(&mut is_lost, true) {
                        tracing::warn!(
                            collection = ?self.of,
                            why,
                            "cannot read the collection of limits, retrying; keeping its last limits"
                        );
                    }
                    sleep(POLL_INTERVAL).await;
                    continue;
                }
            };
            let sources = self.sources.clone();
            // What may take long holds up no call.
            if let Err(ended) = spawn_blocking(move || sources.collection(read)).await {
                resume_unwind(ended.into_panic());
            }
            if std::mem::replace(&mut is_lost, false) {
                tracing::info!(collection = ?self.of, "collection of limits available again");
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Reads the collection, over the connection that is made the first time.
    async fn read(
        &self,
        connected: &mut Option<Collection<RawDocumentBuf>>,
    ) -> Result<Named, Failed> {
        if connected.is_none() {
            let made = self.connect().await;
            *connected = Some(made.map_err(|error| Failed::Server(in_words(&error)))?);
        }
        match connected {
            Some(collection) => read(collection).await,
            None => unreachable!("it was made"),
        }
    }

    async fn connect(&self) -> Result<Collection<RawDocumentBuf>, Error> {
        let mut options = ClientOptions::parse(&self.of.uri).await?;
        let name = || "cookiesync-limiter".to_owned();
        options.app_name.get_or_insert_with(name);
        options
            .server_selection_timeout
            .get_or_insert(SELECTION_TIMEOUT);
        options.connect_timeout.get_or_insert(SELECTION_TIMEOUT);
        options.max_pool_size.get_or_insert(2);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        options.selection_criteria.get_or_insert(primary);
        let database = Client::with_options(options)?.database(&self.of.database);
        Ok(database.collection(&self.of.name))
    }
}

/// All limits of the collection.
async fn read(collection: &Collection<RawDocumentBuf>) -> Result<Named, Failed> {
    let reading = timeout(COMMAND_TIMEOUT, Box::pin(all(collection))).await;
    reading.unwrap_or_else(|_| Err(Failed::Server("no answer in time".to_owned())))
}

async fn all(collection: &Collection<RawDocumentBuf>) -> Result<Named, Failed> {
    let server = |error: Error| Failed::Server(in_words(&error));
    let most = i64::try_from(LIMITS_MAX).unwrap_or(i64::MAX) + 1;
    let mut find = collection.find(doc! {}).limit(most);
    let hello = collection.client().database("admin");
    let hello = hello.run_command(doc! { "hello": 1 }).await;
    if is_replicated(&hello.map_err(server)?) {
        // Of one moment, and what a majority has.
        find = find.read_concern(ReadConcern::snapshot());
    }
    let mut cursor = find.await.map_err(server)?;
    let (mut named, mut bytes) = (Named::new(), 0);
    while let Some(raw) = cursor.try_next().await.map_err(server)? {
        bytes += raw.as_bytes().len();
        if bytes > BYTES_MAX || named.len() == LIMITS_MAX {
            let what = format!("it has more than {LIMITS_MAX} limits, or than {BYTES_MAX} bytes");
            return Err(Failed::Content(what));
        }
        let document = Document::try_from(raw).map_err(|_| {
            let what = "a document is not BSON";
            Failed::Content(what.to_owned())
        })?;
        let (name, terms) = limit(document).map_err(Failed::Content)?;
        named.insert(name, terms);
    }
    Ok(named)
}

/// Whether a server is of a replica set, or stands before some.
fn is_replicated(hello: &Document) -> bool {
    hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|it| it == "isdbgrid")
}

/// A document's name, and its terms.
fn limit(mut document: Document) -> Result<(String, LimitDefinition), String> {
    let Some(Bson::String(name)) = document.remove("_id") else {
        return Err("an _id is not a text: it is the name of a limit".to_owned());
    };
    match bson::deserialize_from_document(document) {
        Ok(terms) => Ok((name, terms)),
        Err(error) => Err(format!("{}: {error}", name.escape_debug())),
    }
}

/// Without what may hold a part of the connection string.
fn in_words(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::Command(refused) => format!("{} ({})", refused.code_name, refused.code),
        ErrorKind::Authentication { .. } => "the login is refused".to_owned(),
        ErrorKind::ServerSelection { .. } => "no server answers".to_owned(),
        ErrorKind::Io(error) => error.to_string(),
        ErrorKind::InvalidArgument { .. } => "the connection string is malformed".to_owned(),
        _ => "the driver fails".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_the_terms_of_a_limit() {
        let document = doc! {
            "_id": "a",
            "keys": ["17", 18],
            "rules": [{ "id": "r", "rate": "3/s", "burst": 5_i64 }],
            "mode": "shape",
            "dead_letter": { "share": 0.1 },
        };
        let (name, terms) = limit(document).unwrap();
        let expected = "{\"keys\": [\"17\", 18], \"rules\": [{\"id\": \"r\", \"rate\": \"3/s\", \"burst\": 5}], \
                        \"mode\": \"shape\", \"dead_letter\": {\"share\": 0.1}}";
        assert_eq!(
            (name.as_str(), terms),
            ("a", serde_json::from_str(expected).unwrap())
        );
        for (document, what) in [
            (doc! { "_id": 17 }, "_id"),
            (doc! { "rules": [] }, "_id"),
            (doc! { "_id": "a", "rules": Bson::Null }, "a: "),
        ] {
            let why = limit(document).unwrap_err();
            assert!(why.contains(what), "{why}");
        }
    }
}
