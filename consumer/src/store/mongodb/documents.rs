//! Scans and deletes the documents of cookie collections.

use mongodb::{
    ClientSession, Database,
    bson::{Bson, DateTime, doc},
};
use proto::units::UnixMicros;

use super::{
    COOKIES,
    connection::{Connection, primary, run},
    date,
    error_class::{Failure, write_errors},
    number,
};
use crate::store::StoreError;

/// Maximum number of documents per delete command. Each takes 5 to 12 µs.
pub(super) const DELETES_PER_COMMAND_MAX: usize = 1_000;

/// The fields of a document that a scan reads.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScannedDocument {
    pub(super) id: Bson,
    /// `None` if the document is not a cookie.
    pub(super) accepted: Option<DateTime>,
}

/// Reads the documents of a collection in natural order.
pub(super) struct Documents {
    database: Database,
    session: ClientSession,
    /// The cursor id of the server; 0 at the end.
    cursor: Option<i64>,
}

/// Deletes documents by id if they were accepted before the time paired with the id. Returns their number. Each time
/// needs its own statement in the command, so pairs should be ordered by time.
pub(super) async fn delete(
    connection: &Connection,
    database: &Database,
    documents: &[(UnixMicros, Bson)],
) -> Result<u64, Failure> {
    let statements = documents.chunk_by(|one, other| date(one.0) == date(other.0));
    let statements = statements.map(|part| {
        let ids: Vec<&Bson> = part.iter().map(|(_, id)| id).collect();
        let expired = doc! { "_id": { "$in": ids }, "t": { "$lt": date(part[0].0) } };
        // While an index on `t` exists, the server would compare both plans for each statement.
        doc! { "q": expired, "limit": 0, "hint": { "_id": 1 } }
    });
    let command = doc! {
        "delete": COOKIES,
        "ordered": false,
        "deletes": statements.collect::<Vec<_>>(),
        "writeConcern": &connection.concern,
    };
    let reply = run(database.run_command(command)).await?;
    match write_errors(&reply)?.next() {
        None => Ok(reply.get("n").and_then(number).unwrap_or_default()),
        Some(error) => Err(error.failure()),
    }
}

impl Documents {
    pub(super) async fn begin(
        connection: &Connection,
        database: Database,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            database,
            session: run(connection.client.start_session()).await?,
            cursor: None,
        })
    }

    /// Whether all documents were read.
    pub(super) fn is_at_end(&self) -> bool {
        self.cursor == Some(0)
    }

    /// The next documents, up to `limit`.
    pub(super) async fn next(&mut self, limit: usize) -> Result<Vec<ScannedDocument>, Failure> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let command = match self.cursor {
            Some(cursor) => doc! { "getMore": cursor, "collection": COOKIES, "batchSize": limit },
            None => doc! {
                "find": COOKIES,
                "projection": { "_id": 1, "t": 1 },
                "hint": { "$natural": 1 },
                "batchSize": limit,
            },
        };
        let command = self.database.run_command(command);
        let command = command
            .selection_criteria(primary())
            .session(&mut self.session);
        let mut reply = run(command).await?;
        let found = reply.get_document_mut("cursor").ok();
        let (cursor, documents) = found
            .and_then(|found| {
                let documents = found.remove("firstBatch");
                let documents = documents.or_else(|| found.remove("nextBatch"));
                Some((found.get_i64("id").ok()?, documents?))
            })
            .ok_or_else(|| StoreError::Unavailable("response without documents".to_owned()))?;
        self.cursor = Some(cursor);
        let Bson::Array(documents) = documents else {
            return Ok(Vec::new());
        };
        let found = documents.into_iter().filter_map(|document| match document {
            Bson::Document(mut document) => Some(ScannedDocument {
                accepted: document.get_datetime("t").ok().copied(),
                id: document.remove("_id").unwrap_or(Bson::Null),
            }),
            _ => None,
        });
        Ok(found.collect())
    }
}

/// Ids of the documents accepted before the time that `before` returns for them. Paired with this
/// time and ordered by it.
pub(super) fn expired(
    found: Vec<ScannedDocument>,
    before: impl Fn(&Bson) -> UnixMicros,
) -> Vec<(UnixMicros, Bson)> {
    let expired = found
        .into_iter()
        .filter_map(|ScannedDocument { id, accepted }| {
            let before = before(&id);
            (accepted? < date(before)).then_some((before, id))
        });
    let mut expired: Vec<_> = expired.collect();
    expired.sort_by_key(|(before, _)| *before);
    expired
}
