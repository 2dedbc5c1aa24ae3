//! The server process, and whether it is available.

use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, doc};
use tokio::time::timeout;

use super::{
    CURSORS, MongodbStore,
    connection::{Connection, run},
    error_class::{Failure, write_errors},
};
use crate::store::{Cookies as _, Receipt, StoreError};

/// Maximum response time of an available server.
pub(super) const AVAILABLE_WITHIN: Duration = Duration::from_secs(1);

/// Timeout of a check for the acknowledgment of other members.
pub(super) const ACKNOWLEDGE_MILLIS: i32 = 3_000;

impl MongodbStore {
    /// The server process that receives the writes.
    pub(super) async fn server(&self, connection: &Connection) -> Result<Receipt, StoreError> {
        let known = *self.server.lock();
        match known {
            Some(server) => Ok(server),
            None => {
                let server = server_process(connection).await?;
                *self.server.lock() = Some(server);
                Ok(server)
            }
        }
    }

    pub(super) async fn check_server(
        &self,
        connection: &Connection,
        expected: Receipt,
    ) -> Result<(), StoreError> {
        let found = server_process(connection).await?;
        *self.server.lock() = Some(found);
        if found == expected {
            return Ok(());
        }
        let why = "the server restarted or another member took over; repeating writes that may have been lost";
        Err(StoreError::Unavailable(why.to_owned()))
    }

    /// Whether the server responds to writes. Then a failure concerns only one database.
    pub(super) async fn is_server_available(&self) -> bool {
        let check = timeout(AVAILABLE_WITHIN, self.ping()).await;
        check.is_ok_and(|check| check.is_ok())
    }

    /// Isolates the failure of one DSP in an operation on all DSPs: stores it in `failed` and returns `None`.
    ///
    /// # Errors
    /// When the whole server fails.
    pub(super) async fn isolate<T>(
        &self,
        result: Result<T, Failure>,
        failed: &mut Option<StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let error = match result {
            Ok(done) => return Ok(Some(done)),
            Err(Failure::Dsp(why)) => StoreError::Unavailable(why),
            Err(Failure::Server(error)) if self.is_server_available().await => error,
            Err(Failure::Server(error)) => return Err(error),
        };
        failed.get_or_insert(error);
        Ok(None)
    }

    /// Waits until all acknowledged writes are in the journal.
    pub(super) async fn journal(&self, connection: &Connection) -> Result<(), StoreError> {
        self.write_no_op(connection, doc! { "j": true }).await
    }

    /// Writes to the collection of cursors without changing it.
    pub(super) async fn write_no_op(
        &self,
        connection: &Connection,
        more_concern: Document,
    ) -> Result<(), StoreError> {
        let mut concern = connection.concern.clone();
        concern.extend(more_concern);
        let no_match = doc! { "_id": { "c": &self.options.name, "p": Bson::MinKey } };
        let command = doc! {
            "update": CURSORS,
            "writeConcern": concern,
            "updates": [{ "q": no_match, "u": { "$set": { "at": DateTime::now() } } }],
        };
        let database = self.own_database(connection);
        let reply = run(database.run_command(command)).await?;
        match write_errors(&reply)?.next() {
            None => Ok(()),
            Some(error) => Err(StoreError::Unavailable(error.explain())),
        }
    }
}

/// The id of the server process, which changes at each start. Empty if the server has none.
async fn server_process(connection: &Connection) -> Result<Receipt, StoreError> {
    receipt_of(&hello(connection).await?)
}

/// The server's description of itself.
pub(super) async fn hello(connection: &Connection) -> Result<Document, StoreError> {
    let admin = connection.client.database("admin");
    Ok(run(admin.run_command(doc! { "hello": 1 })).await?)
}

fn receipt_of(hello: &Document) -> Result<Receipt, StoreError> {
    if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
        let why = "--store is a mongos, which hides restarts of its servers; use the mongod or replica set of this node";
        return Err(StoreError::Broken(why.to_owned()));
    }
    let process = hello.get_document("topologyVersion");
    let process = process.and_then(|version| version.get_object_id("processId"));
    Ok(process.map_or_else(|_| Receipt::default(), |id| Receipt(id.bytes())))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;

    use super::*;

    #[test]
    fn receipt_is_the_server_process_and_a_mongos_is_rejected() {
        let id = ObjectId::from_bytes([7; 12]);
        let hello = doc! { "topologyVersion": { "processId": id, "counter": 0_i64 } };
        assert_eq!(receipt_of(&hello).unwrap(), Receipt([7; 12]));
        assert_eq!(receipt_of(&doc! {}).unwrap(), Receipt::default());
        let router = doc! { "msg": "isdbgrid", "topologyVersion": { "processId": id } };
        let why = receipt_of(&router).unwrap_err().to_string();
        assert!(why.contains("mongos"), "{why}");
    }
}
