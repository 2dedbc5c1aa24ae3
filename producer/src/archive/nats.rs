//! Publishes to a NATS JetStream stream, which the operator has created. Uses only features that nats-server 2.9 supports.
//!
//! Each error replaces the client. A client keeps messages for a lost connection, and never forgets one that is not acknowledged.

use std::{sync::Arc, time::Duration};

use async_nats::{
    ConnectErrorKind, ConnectOptions, Event, ServerError,
    jetstream::{
        self,
        context::GetStreamErrorKind,
        message::PublishMessage,
        stream::{DiscardPolicy, RetentionPolicy, StorageType},
    },
};
use parking_lot::Mutex;
use proto::archive::{GROUP_BYTES_MAX, SUBJECT_PREFIX, VERSION, VERSION_HEADER};
use runtime::{connect::credentials::NatsTlsArgs, settings::ConfigErrors};
use runtime_nats::Servers;
use tokio_util::sync::CancellationToken;

use super::{
    Message, PublishError,
    PublishError::{Refused, Unavailable},
    Publisher,
};

/// Time limit of a connection, and of an acknowledgement.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a message besides its chunks: headers, heartbeats, gaps and times to live.
const OVERHEAD_BYTES: usize = 64 << 10;

/// The servers and the stream, and the connection, if there is one.
#[derive(Debug, Clone)]
pub struct Nats {
    servers: Servers,
    stream: String,
    payload_bytes: usize,
    connection: Option<Connection>,
}

#[derive(Debug, Clone)]
struct Connection {
    context: jetstream::Context,
    /// The last error that the server has reported outside of a response, such as a missing permission.
    server_error: Arc<Mutex<Option<String>>>,
    /// Cancelled when the connection is lost. The client would establish another one, without the responses.
    lost: CancellationToken,
}

impl Nats {
    /// Parses URLs of servers, separated by commas, with the name of the stream at the end. Records all errors.
    pub fn check(
        errors: &mut ConfigErrors,
        url: &str,
        tls: &NatsTlsArgs,
        chunk_bytes: usize,
    ) -> Option<Self> {
        let (servers, stream) = url.rsplit_once('/').unwrap_or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if servers.ends_with('/') || stream.is_empty() || !stream.chars().all(is_name) {
            errors.add("--archive: use URLs and a stream, like nats://127.0.0.1:4222/COOKIES");
            return None;
        }
        Some(Self {
            servers: Servers::check(errors, "--archive", servers, tls)?,
            stream: stream.to_owned(),
            payload_bytes: GROUP_BYTES_MAX.max(chunk_bytes) + OVERHEAD_BYTES,
            connection: None,
        })
    }

    /// Connects, and checks the settings of the server and the stream.
    async fn connect(&self) -> Result<Connection, PublishError> {
        let server_error = Arc::new(Mutex::new(None));
        let last = Arc::clone(&server_error);
        let lost = CancellationToken::new();
        let on_loss = lost.clone();
        let on_event = move |event| {
            match event {
                Event::ServerError(ServerError::Other(error)) => *last.lock() = Some(error),
                Event::Disconnected => on_loss.cancel(),
                _ => {}
            }
            std::future::ready(())
        };
        // A client does not live long enough to use servers that it discovers.
        let set = |it: ConnectOptions| it.event_callback(on_event).ignore_discovered_servers();
        let client = self
            .servers
            .connect_with("producer", TIMEOUT, set)
            .await
            .map_err(|error| match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    Refused("the NATS server rejects the credentials".to_owned())
                }
                _ => Unavailable(format!("cannot connect to NATS: {error}")),
            })?;
        let (max, needed) = (client.max_payload(), self.payload_bytes);
        if max < needed {
            return Err(Refused(format!(
                "max_payload of the NATS server is {max} bytes; set it to at least {needed}"
            )));
        }
        let mut context = jetstream::new(client);
        context.set_timeout(TIMEOUT);
        let connection = Connection {
            context,
            server_error,
            lost,
        };
        connection
            .unless_lost(self.check_stream(&connection))
            .await?;
        Ok(connection)
    }

    async fn check_stream(&self, connection: &Connection) -> Result<(), PublishError> {
        let name = &self.stream;
        let stream = connection.context.get_stream(name).await;
        let stream = stream.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.code() < 500 => {
                Refused(format!("stream {name}: {error}"))
            }
            _ => connection.error(format!("cannot read stream {name}: {error}")),
        })?;
        let config = &stream.cached_info().config;
        let subjects = format!("{SUBJECT_PREFIX}.>");
        if !config.subjects.contains(&subjects) {
            return Err(Refused(format!("stream {name} lacks subject {subjects}")));
        }
        if config.retention != RetentionPolicy::Limits {
            return Err(Refused(format!("stream {name} needs retention limits")));
        }
        if config.discard != DiscardPolicy::Old {
            return Err(Refused(format!("stream {name} needs discard old")));
        }
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
        Ok(())
    }
}

impl Connection {
    async fn unless_lost<T>(
        &self,
        response: impl Future<Output = Result<T, PublishError>>,
    ) -> Result<T, PublishError> {
        let response = self.lost.run_until_cancelled(response).await;
        response.unwrap_or_else(|| Err(Unavailable("connection to NATS lost".to_owned())))
    }

    /// An error without a response. The server does not respond to a request that it does not permit.
    fn error(&self, error: String) -> PublishError {
        match self.server_error.lock().take() {
            Some(reason) => Refused(format!("{error}; the NATS server reports: {reason}")),
            None => Unavailable(error),
        }
    }

    async fn publish(&self, message: &Message, stream: &str) -> Result<(), PublishError> {
        let publish = PublishMessage::build()
            .payload(message.payload.clone())
            .header(VERSION_HEADER, VERSION)
            .message_id(&message.id);
        let published = async {
            let subject = message.subject.clone();
            self.context.send_publish(subject, publish).await?.await
        };
        match published.await {
            Ok(stored) if stored.stream == stream => Ok(()),
            Ok(stored) => {
                let other = stored.stream;
                let subject = &message.subject;
                Err(Refused(format!(
                    "subject {subject} belongs to stream {other}, not to {stream}"
                )))
            }
            Err(error) => Err(self.error(format!("cannot publish to NATS: {error}"))),
        }
    }
}

impl Publisher for Nats {
    async fn publish(&mut self, message: &Message) -> Result<(), PublishError> {
        let usable = self.connection.take().filter(|it| !it.lost.is_cancelled());
        let connection = match usable {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let published = connection.publish(message, &self.stream);
        connection.unless_lost(published).await?;
        self.connection = Some(connection);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
