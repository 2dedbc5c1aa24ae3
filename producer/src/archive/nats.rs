//! Publishes to a NATS JetStream stream, which the operator has created. Uses only features that nats-server 2.9 supports.

mod reports;

use std::time::Duration;

use async_nats::jetstream::{
    message::PublishMessage,
    stream::{Config, DiscardPolicy, RetentionPolicy, StorageType},
};
use proto::archive::{GROUP_BYTES_MAX, SUBJECT_PREFIX, VERSION, VERSION_HEADER};
use runtime::{
    connect::{
        ArchiveError::{self, Refused},
        credentials::NatsTlsArgs,
    },
    settings::ConfigErrors,
};
use runtime_nats::{Connection, StreamUrl};

use super::{Message, Publisher};
pub use reports::NodeReports;

/// Bytes of a message besides its chunks: headers, heartbeats, gaps and times to live.
const OVERHEAD_BYTES: usize = 64 << 10;

/// The stream, and the connection, if there is one.
#[derive(Debug, Clone)]
pub struct Nats {
    url: StreamUrl,
    payload_bytes: usize,
    connection: Option<Connection>,
    has_connected: bool,
}

impl Nats {
    /// Parses the URL of a stream. Records all errors.
    pub fn check(
        errors: &mut ConfigErrors,
        url: &str,
        tls: &NatsTlsArgs,
        chunk_bytes: usize,
    ) -> Option<Self> {
        Some(Self {
            url: StreamUrl::check(errors, url, tls)?,
            payload_bytes: GROUP_BYTES_MAX.max(chunk_bytes) + OVERHEAD_BYTES,
            connection: None,
            has_connected: false,
        })
    }

    /// The reports of nodes in another stream of the same servers. Records an error if its name is invalid.
    pub fn node_reports(&self, errors: &mut ConfigErrors, stream: &str) -> Option<NodeReports> {
        let url = self.url.sibling(errors, "--node-reports", stream);
        url.map(NodeReports::new)
    }

    /// Connects, and checks the settings of the server and the stream.
    async fn connect(&mut self) -> Result<Connection, ArchiveError> {
        let connection = self.url.connect("producer").await?;
        let (max, needed) = (connection.max_payload, self.payload_bytes);
        if max < needed {
            return Err(Refused(format!(
                "max_payload of the NATS server is {max} bytes; set it to at least {needed}"
            )));
        }
        let config = &connection.stream.cached_info().config;
        check_stream(&self.url.name, config)?;
        if !self.has_connected {
            warn_of_unusual_settings(&self.url.name, config);
        }
        self.has_connected = true;
        Ok(connection)
    }

    async fn publish_to(
        &self,
        connection: &Connection,
        message: &Message,
    ) -> Result<(), ArchiveError> {
        let publish = PublishMessage::build()
            .payload(message.payload.clone())
            .header(VERSION_HEADER, VERSION)
            .message_id(&message.id);
        let subject = &message.subject;
        let sent = connection.context.send_publish(subject.clone(), publish);
        let stored = connection
            .request("cannot publish to NATS", async { sent.await?.await })
            .await?
            .stream;
        let stream = &self.url.name;
        if stored == *stream {
            Ok(())
        } else {
            Err(Refused(format!(
                "subject {subject} belongs to stream {stored}, not to {stream}"
            )))
        }
    }
}

fn check_stream(name: &str, config: &Config) -> Result<(), ArchiveError> {
    let subjects = format!("{SUBJECT_PREFIX}.>");
    let unsuitable = if !config.subjects.contains(&subjects) {
        Some(format!("lacks subject {subjects}"))
    } else if config.retention != RetentionPolicy::Limits {
        Some("needs retention limits".to_owned())
    } else if config.discard != DiscardPolicy::Old {
        Some("needs discard old".to_owned())
    } else if config.max_messages_per_subject > 0 {
        Some("must not limit messages per subject".to_owned())
    } else if config.no_ack || config.sealed {
        Some("must acknowledge messages".to_owned())
    } else {
        None
    };
    if let Some(reason) = unsuitable {
        return Err(Refused(format!("stream {name} {reason}")));
    }
    Ok(())
}

fn warn_of_unusual_settings(name: &str, config: &Config) {
    let warnings = [
        (
            config.storage == StorageType::Memory,
            "stores messages in memory",
        ),
        (
            config.max_bytes <= 0,
            "has no max_bytes: it can fill the disk",
        ),
        (
            config.duplicate_window < Duration::from_secs(60),
            "has a duplicate window of less than a minute: messages can be stored twice",
        ),
    ];
    for (_, warning) in warnings.into_iter().filter(|(applies, _)| *applies) {
        tracing::warn!(stream = %name, "the archive's stream {warning}");
    }
}

impl Publisher for Nats {
    async fn publish(&mut self, message: &Message) -> Result<(), ArchiveError> {
        let connection = match self.connection.take().filter(|it| !it.is_lost()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        self.publish_to(&connection, message).await?;
        self.connection = Some(connection);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
