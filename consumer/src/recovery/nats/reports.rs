//! Publishes the reports of this node to a stream that producers read.

use proto::{archive::node_subject, v1::NodePositions};
use runtime::connect::ArchiveError::{self, Refused};
use runtime_nats::{Connection, StreamUrl, report};

/// The stream, and the connection, if there is one.
#[derive(Debug, Clone)]
pub struct NodeReports {
    url: StreamUrl,
    /// The name of this client on the server.
    client: String,
    connection: Option<Connection>,
}

impl NodeReports {
    pub(super) fn new(url: StreamUrl, client: String) -> Self {
        Self {
            url,
            client,
            connection: None,
        }
    }

    /// Publishes positions, with a code that proves the token, and returns when they are stored. Connects when necessary.
    ///
    /// # Errors
    /// If they may not be stored.
    pub async fn publish(
        &mut self,
        positions: &NodePositions,
        token: Option<&str>,
    ) -> Result<(), ArchiveError> {
        let connection = match self.connection.take().filter(|it| !it.is_lost()) {
            Some(connection) => connection,
            None => self.url.connect(&self.client).await?,
        };
        let subject = node_subject(&positions.name);
        let message = report::seal(positions, token).into();
        let sent = connection.context.publish(subject.clone(), message);
        let stored = connection
            .request("cannot publish to NATS", async { sent.await?.await })
            .await?
            .stream;
        let stream = &self.url.name;
        if stored != *stream {
            return Err(Refused(format!(
                "subject {subject} belongs to stream {stored}, not to {stream}"
            )));
        }
        self.connection = Some(connection);
        Ok(())
    }
}
