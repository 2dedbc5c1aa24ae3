//! An archive in a NATS JetStream stream, which recovery only reads.
//!
//! A read uses its own short-lived consumer: it keeps no state that a restart of the server or of the stream could invalidate. After an
//! error, the next call connects again.

use std::{sync::Arc, time::Duration};

use async_nats::{
    ConnectErrorKind, Event, HeaderMap, ServerError,
    jetstream::{
        self,
        consumer::{AckPolicy, DeliverPolicy, pull},
        context::GetStreamErrorKind,
        stream::{DirectGetErrorKind, Stream},
    },
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use proto::{
    archive::{SUBJECT_PREFIX, VERSION, VERSION_HEADER},
    units::UnixMicros,
};
use runtime::{connect::credentials::NatsTlsArgs, settings::ConfigErrors};
use runtime_nats::Servers;
use tokio::time::timeout;

use super::archive::{
    Archive,
    ArchiveError::{self, Refused, Unavailable},
    Info, Message,
};

/// Maximum time of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time of a whole call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// When the server forgets a consumer that was not deleted.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number and bytes of the messages of a read. A message has at most 1 MiB, the default maximum of a server.
const READ_MESSAGES_MAX: usize = 1_000;
const READ_BYTES_MAX: usize = 2 << 20;

/// The servers and the stream, and the connection, if there is one.
#[derive(Debug, Clone)]
pub struct Nats {
    servers: Servers,
    stream: String,
    /// The name of this client on the server.
    name: String,
    connection: Option<Connection>,
}

#[derive(Debug, Clone)]
struct Connection {
    stream: Stream,
    server_error: ServerErrors,
}

/// The last error that the server has reported outside of a response, such as a missing permission.
type ServerErrors = Arc<Mutex<Option<String>>>;

impl Nats {
    /// Parses URLs of servers, separated by commas, with the name of the stream at the end. Records all errors.
    pub fn check(
        errors: &mut ConfigErrors,
        url: &str,
        tls: &NatsTlsArgs,
        name: &str,
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
            name: name.to_owned(),
            connection: None,
        })
    }
}

#[async_trait]
impl Archive for Nats {
    async fn check(&mut self) -> Result<Info, ArchiveError> {
        let stream = self.stream().await?;
        let info = self.limited(stream.get_info()).await?;
        let config = &info.config;
        let is_copy = config.mirror.is_some() || config.sources.iter().flatten().next().is_some();
        let has_cookies = |subject: &String| subject.starts_with(SUBJECT_PREFIX);
        let refused = if !config.allow_direct {
            Some("`allow_direct` is not set on the stream; set it")
        } else if !is_copy && !config.subjects.iter().any(has_cookies) {
            Some(
                "the stream has no subjects `cookies.>`; use the stream of the producers' --archive",
            )
        } else {
            None
        };
        if let Some(why) = refused {
            self.connection = None;
            return Err(Refused(why.to_owned()));
        }
        let newest = info.state.last_timestamp.unix_timestamp_nanos() / 1_000;
        let newest = u64::try_from(newest).ok().map(UnixMicros);
        Ok(Info {
            last_position: info.state.last_sequence,
            newest: newest.filter(|_| info.state.last_sequence > 0),
            is_copy,
        })
    }

    async fn first(
        &mut self,
        subject: &str,
        position: u64,
    ) -> Result<Option<Message>, ArchiveError> {
        let stream = self.stream().await?;
        let request = stream.direct_get_builder().sequence(position.max(1));
        let found = async {
            match request.next_by_subject(subject).send().await {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        let found = self.limited(found).await?;
        Ok(found.map(|it| message(it.sequence, Some(&it.headers), it.payload)))
    }

    async fn read(&mut self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError> {
        let stream = self.stream().await?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: position.max(1),
            },
            ack_policy: AckPolicy::None,
            filter_subject: subject.to_owned(),
            inactive_threshold: CONSUMER_TIMEOUT,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let read = async {
            let consumer = stream.create_consumer(config).await?;
            let fetch = consumer.fetch().max_messages(READ_MESSAGES_MAX);
            let mut fetched = fetch.max_bytes(READ_BYTES_MAX).messages().await?;
            let mut messages = Vec::new();
            while let Some(next) = fetched.next().await {
                match next {
                    Ok(it) => {
                        let position = it.info()?.stream_sequence;
                        let it = it.message;
                        messages.push(message(position, it.headers.as_ref(), it.payload));
                    }
                    // At the maximum number of bytes, the server ends the read with an error.
                    Err(_) if !messages.is_empty() => break,
                    Err(error) => return Err(error),
                }
            }
            // Otherwise, the server deletes it later.
            drop(stream.delete_consumer(&consumer.cached_info().name).await);
            Ok::<_, async_nats::Error>(messages)
        };
        self.limited(read).await
    }
}

impl Nats {
    /// The stream, after connecting if necessary.
    async fn stream(&mut self) -> Result<Stream, ArchiveError> {
        if let Some(connection) = &self.connection {
            return Ok(connection.stream.clone());
        }
        let server_error = ServerErrors::default();
        let last = Arc::clone(&server_error);
        let on_event = move |event| {
            if let Event::ServerError(ServerError::Other(error)) = event {
                *last.lock() = Some(error);
            }
            std::future::ready(())
        };
        let connecting = self
            .servers
            .connect_with(&self.name, REQUEST_TIMEOUT, |it| {
                it.event_callback(on_event)
            });
        let client = connecting.await.map_err(|error| match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                Refused("the NATS server rejects the credentials".to_owned())
            }
            _ => Unavailable(format!("cannot connect to NATS: {error}")),
        })?;
        let mut context = jetstream::new(client);
        context.set_timeout(REQUEST_TIMEOUT);
        let name = &self.stream;
        let stream = context.get_stream(name).await;
        let stream = stream.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) => Refused(format!("stream {name}: {error}")),
            _ => failure(&server_error, format!("cannot read stream {name}: {error}")),
        })?;
        self.connection = Some(Connection {
            stream: stream.clone(),
            server_error,
        });
        Ok(stream)
    }

    /// The result of a call; disconnects after an error.
    async fn limited<T, E: Into<async_nats::Error>>(
        &mut self,
        call: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, ArchiveError> {
        let why = match timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => error.into().to_string(),
            Err(_) => format!("no response for {CALL_TIMEOUT:?}"),
        };
        let reported = self.connection.take().map(|it| it.server_error);
        let why = format!("cannot read stream {}: {why}", self.stream);
        Err(failure(&reported.unwrap_or_default(), why))
    }
}

/// An error without a response. The server does not respond to a request that it does not permit.
fn failure(reported: &ServerErrors, why: String) -> ArchiveError {
    match reported.lock().take() {
        Some(reason) => Refused(format!("{why}; the NATS server reports: {reason}")),
        None => Unavailable(why),
    }
}

/// A message of the stream.
fn message(position: u64, headers: Option<&HeaderMap>, payload: Bytes) -> Message {
    let version = headers.and_then(|headers| headers.get(VERSION_HEADER));
    Message {
        position,
        is_known_version: version.is_some_and(|version| version.as_str() == VERSION),
        payload,
    }
}
