//! The retry queue in MongoDB: database `cookiesync`, collection `retry_queue`,
//! `{_id: {c: <consumer>, n: <number>}, dsp, cookies, bytes, chunks: [<encoded chunk>]}`.
//!
//! Entries are written with `j: true` before the cursors that cover them. If the server executes an insert late, after
//! its timeout, the entry exists or its cookies have been written since. In the latter case, the next start finds the
//! entry and writes the cookies again, which changes nothing. A late insert never replaces another entry, because entry
//! numbers are times and are not reused.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use proto::units::{DspId, UnixMicros};

use super::{
    COOKIES, MongodbStore,
    connection::{Connection, run, write},
    cookies::by_dsp,
    error_class::Failure,
    int,
};
use crate::{
    batch::Batch,
    store::{Backlog, FullRetryEntry, RetryEntry, StoreError, WriteOutcome},
};

const COLLECTION: &str = "retry_queue";

/// Maximum bytes of one insert. A message is limited to 48 MB.
const INSERT_BYTES: u64 = 8 << 20;

#[async_trait]
impl Backlog for MongodbStore {
    fn has_slot(&self, dsp_id: DspId) -> bool {
        self.dsps.lock().slots.contains(&dsp_id)
    }

    /// Ignores the DSP's breaker.
    async fn retry(&self, dsp_id: DspId, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        self.breakers.may_try(dsp_id)?;
        let connection = self.connection().await?;
        let receipt = self.server(connection).await?;
        let written = match self.write_retried(connection, dsp_id, &batch).await {
            Ok(written) => written,
            Err(Failure::Server(error)) => return Err(error),
            Err(Failure::Dsp(why)) => {
                self.breakers.trip(dsp_id, &why);
                return Err(StoreError::Unavailable(why));
            }
        };
        self.journal(connection).await?;
        self.check_server(connection, receipt).await?;
        self.breakers.reset(dsp_id);
        Ok(written)
    }

    async fn retry_entries(&self) -> Result<Vec<RetryEntry>, StoreError> {
        let collection = self.own_collection(COLLECTION).await?;
        let found = collection.find(self.own_ids("n")).sort(doc! { "_id": 1 });
        let found = found.projection(doc! { "chunks": 0 });
        // Streamed, so that memory contains only one page of documents.
        let entries = run(async {
            let entries = found
                .await?
                .try_filter_map(async |found| Ok(decode(&found)));
            entries.try_collect().await
        });
        Ok(entries.await?)
    }

    async fn put_retry_entries(&self, entries: &[FullRetryEntry]) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let mut rest = entries;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|full| {
                bytes += full.entry.bytes;
                bytes <= INSERT_BYTES
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            rest = later;
            let documents: Vec<Document> = now.iter().map(|full| self.encode(full)).collect();
            let command = doc! {
                "insert": COLLECTION,
                "ordered": false,
                "writeConcern": connection.journaled(),
                "documents": documents,
            };
            // Entries that an earlier attempt has inserted are not an error.
            write(&self.own_database(connection), command, COLLECTION).await?;
        }
        Ok(())
    }

    async fn read_retry_entries(&self, numbers: &[u64]) -> Result<Vec<Bytes>, StoreError> {
        let found = self.find_own(COLLECTION, self.of_numbers(numbers)).await?;
        let chunks = found
            .into_iter()
            .flat_map(|mut entry| match entry.remove("chunks") {
                Some(Bson::Array(chunks)) => chunks,
                _ => Vec::new(),
            });
        let bytes = chunks.filter_map(|chunk| match chunk {
            Bson::Binary(chunk) => Some(chunk.bytes.into()),
            _ => None,
        });
        Ok(bytes.collect())
    }

    async fn remove_retry_entries(&self, numbers: &[u64]) -> Result<(), StoreError> {
        self.delete_own(COLLECTION, self.of_numbers(numbers)).await
    }
}

impl MongodbStore {
    /// Deletes entries of other consumers that were queued before this time.
    pub(super) async fn delete_abandoned_retries(
        &self,
        before: UnixMicros,
    ) -> Result<(), StoreError> {
        let old =
            doc! { "_id.c": { "$ne": &self.options.name }, "_id.n": { "$lt": int(before.0) } };
        self.delete_own(COLLECTION, old).await
    }

    fn encode(&self, FullRetryEntry { entry, chunk }: &FullRetryEntry) -> Document {
        let chunk = Binary {
            subtype: BinarySubtype::Generic,
            bytes: chunk.to_vec(),
        };
        doc! {
            "_id": self.id(entry.number),
            "dsp": i64::from(entry.dsp_id.0),
            "cookies": int(entry.cookies),
            "deletions": int(entry.deletions),
            "bytes": int(entry.bytes),
            "chunks": [chunk],
        }
    }

    fn id(&self, entry: u64) -> Document {
        doc! { "c": &self.options.name, "n": int(entry) }
    }

    fn of_numbers(&self, numbers: &[u64]) -> Document {
        let ids: Vec<Document> = numbers.iter().map(|number| self.id(*number)).collect();
        doc! { "_id": { "$in": ids } }
    }

    async fn write_retried(
        &self,
        connection: &Connection,
        dsp_id: DspId,
        batch: &Arc<Batch>,
    ) -> Result<WriteOutcome, Failure> {
        let mut by_dsp = by_dsp(batch).await?;
        for dsp_id in batch.dsps_with_removals(&[dsp_id].into()) {
            by_dsp.entry(dsp_id).or_default();
        }
        if !self.has_slot(dsp_id) {
            self.create_slot(connection, dsp_id).await?;
        }
        if by_dsp.is_empty() {
            return self.probe(connection, dsp_id).await;
        }
        let mut total = WriteOutcome::default();
        for (dsp_id, indices) in by_dsp {
            let write = self.collection_write(connection, batch, dsp_id);
            total.merge(write.write(indices).await?);
        }
        Ok(total)
    }

    /// Checks that a DSP's collection is writable, without changing it.
    async fn probe(&self, connection: &Connection, dsp_id: DspId) -> Result<WriteOutcome, Failure> {
        let no_match = doc! { "q": { "_id": "" }, "u": { "$set": { "b": "" } } };
        let command = doc! { "update": COOKIES, "updates": [no_match] };
        run(self.database(connection, dsp_id).run_command(command)).await?;
        Ok(WriteOutcome::default())
    }
}

fn decode(document: &Document) -> Option<RetryEntry> {
    let field = |document: &Document, key| u64::try_from(document.get_i64(key).ok()?).ok();
    Some(RetryEntry {
        number: field(document.get_document("_id").ok()?, "n")?,
        dsp_id: DspId(u32::try_from(field(document, "dsp")?).ok()?),
        cookies: field(document, "cookies")?,
        // Entries of earlier versions lack this field.
        deletions: field(document, "deletions").unwrap_or(0),
        bytes: field(document, "bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_of_an_earlier_version_is_read() {
        let document = doc! {
            "_id": { "c": "node", "n": 5_i64 },
            "dsp": 7_i64,
            "cookies": 3_i64,
            "bytes": 1_200_i64,
        };
        let entry = RetryEntry {
            number: 5,
            dsp_id: DspId(7),
            cookies: 3,
            deletions: 0,
            bytes: 1_200,
        };
        assert_eq!(decode(&document), Some(entry));
    }
}
