//! An archive in a NATS JetStream stream, which recovery only reads.
//!
//! A read uses its own short-lived consumer: it keeps no state that a restart of the server or of the stream could invalidate. After an
//! error, the next call connects again. A follower keeps its consumer until the first error.

mod reports;

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{
        self,
        consumer::{AckPolicy, DeliverPolicy, pull},
        stream::DirectGetErrorKind,
    },
};
use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use proto::{
    archive::{SUBJECT_PREFIX, VERSION, VERSION_HEADER},
    units::UnixMicros,
};
use runtime::{
    connect::{
        ArchiveError::{self, Refused},
        credentials::NatsTlsArgs,
    },
    settings::ConfigErrors,
};
use runtime_nats::{Connection, StreamUrl};
use tokio::time::timeout;

use super::archive::{Archive, Info, Message, Messages};
pub use reports::NodeReports;

/// Maximum time of a whole call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// When the server forgets a consumer that was not deleted.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number and bytes of the messages of a read. A message has at most 1 MiB, the default maximum of a server.
const READ_MESSAGES_MAX: usize = 1_000;
const READ_BYTES_MAX: usize = 2 << 20;

/// Intervals at which a follower asks for more, and at which the server shows that it has nothing new: twice this time without any
/// message is an error.
const PULL_INTERVAL: Duration = Duration::from_secs(2);
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// The stream, and the connection, if there is one.
#[derive(Debug, Clone)]
pub struct Nats {
    url: StreamUrl,
    /// The name of this client on the server.
    client: String,
    connection: Option<Connection>,
}

impl Nats {
    /// Parses the URL of a stream. Records all errors.
    pub fn check(
        errors: &mut ConfigErrors,
        url: &str,
        tls: &NatsTlsArgs,
        client: &str,
    ) -> Option<Self> {
        Some(Self {
            url: StreamUrl::check(errors, url, tls)?,
            client: client.to_owned(),
            connection: None,
        })
    }

    /// The reports of this node in another stream of the same servers. Records an error if its name is invalid.
    pub fn node_reports(&self, errors: &mut ConfigErrors, stream: &str) -> Option<NodeReports> {
        let url = self.url.sibling(errors, "--node-reports", stream)?;
        Some(NodeReports::new(url, self.client.clone()))
    }
}

#[async_trait]
impl Archive for Nats {
    async fn check(&mut self) -> Result<Info, ArchiveError> {
        let connection = self.connection().await?;
        let stream = &connection.stream;
        let info = self.call(&connection, stream.get_info()).await?;
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
        let newest = micros(info.state.last_timestamp.unix_timestamp_nanos());
        let oldest = micros(info.state.first_timestamp.unix_timestamp_nanos());
        Ok(Info {
            created: micros(info.created.unix_timestamp_nanos()),
            last_position: info.state.last_sequence,
            newest: (info.state.last_sequence > 0).then_some(newest),
            oldest: (info.state.messages > 0).then_some(oldest),
            bytes: info.state.bytes,
            bytes_max: u64::try_from(config.max_bytes).ok().filter(|max| *max > 0),
            is_copy,
        })
    }

    async fn first(
        &mut self,
        subject: &str,
        position: u64,
    ) -> Result<Option<Message>, ArchiveError> {
        let connection = self.connection().await?;
        let stream = &connection.stream;
        let request = stream.direct_get_builder().sequence(position.max(1));
        let found = async {
            match request.next_by_subject(subject).send().await {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        let found = self.call(&connection, found).await?;
        Ok(found.map(|it| Message {
            position: it.sequence,
            archived: micros(it.time.unix_timestamp_nanos()),
            subject: it.subject.into_string(),
            is_known_version: is_known_version(Some(&it.headers)),
            payload: it.payload,
        }))
    }

    async fn read(&mut self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError> {
        let connection = self.connection().await?;
        let stream = &connection.stream;
        let read = async {
            let consumer = stream.create_consumer(consumer(subject, position)).await?;
            let fetch = consumer.fetch().max_messages(READ_MESSAGES_MAX);
            let mut fetched = fetch.max_bytes(READ_BYTES_MAX).messages().await?;
            let mut messages = Vec::new();
            while let Some(next) = fetched.next().await {
                match next {
                    Ok(it) => messages.push(message(it)?.1),
                    // At the maximum number of bytes, the server ends the read with an error.
                    Err(_) if !messages.is_empty() => break,
                    Err(error) => return Err(error),
                }
            }
            // Otherwise, the server deletes it later.
            drop(stream.delete_consumer(&consumer.cached_info().name).await);
            Ok::<_, async_nats::Error>(messages)
        };
        Box::pin(self.call(&connection, read)).await
    }

    async fn follow(&mut self, position: u64) -> Result<Messages, ArchiveError> {
        let connection = self.connection().await?;
        let stream = &connection.stream;
        let open = async {
            let subject = format!("{SUBJECT_PREFIX}.>");
            let consumer = stream.create_consumer(consumer(&subject, position)).await?;
            let pulls = consumer.stream().max_messages_per_batch(READ_MESSAGES_MAX);
            let pulls = pulls.max_bytes_per_batch(READ_BYTES_MAX);
            let pulls = pulls.expires(PULL_INTERVAL).heartbeat(HEARTBEAT_INTERVAL);
            Ok::<_, async_nats::Error>(pulls.messages().await?)
        };
        let pulled = Box::pin(self.call(&connection, open)).await?;
        let follower = Follower {
            what: format!("cannot read stream {}", self.url.name),
            pulled,
            connection,
            delivered: 0,
        };
        Ok(stream::unfold(follower, Follower::next).boxed())
    }
}

impl Nats {
    /// The connection, after connecting if necessary.
    async fn connection(&mut self) -> Result<Connection, ArchiveError> {
        let usable = self.connection.take().filter(|it| !it.is_lost());
        let connection = match usable {
            Some(connection) => connection,
            None => self.url.connect(&self.client).await?,
        };
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    /// The result of a call; disconnects after an error.
    async fn call<T, E: Into<async_nats::Error>>(
        &mut self,
        connection: &Connection,
        call: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, ArchiveError> {
        let what = format!("cannot read stream {}", self.url.name);
        let response = timeout(CALL_TIMEOUT, connection.request(&what, call)).await;
        let response = response.unwrap_or_else(|_| {
            let error = format!("{what}: no response for {CALL_TIMEOUT:?}");
            Err(ArchiveError::Unavailable(error))
        });
        response.inspect_err(|_| self.connection = None)
    }
}

/// The messages of a consumer that stays open.
struct Follower {
    what: String,
    pulled: pull::Stream,
    connection: Connection,
    /// Number of messages so far.
    delivered: u64,
}

impl Follower {
    async fn next(mut self) -> Option<(Result<Message, ArchiveError>, Self)> {
        let next = async {
            let next = self.pulled.next().await.ok_or("the consumer has ended")?;
            let (number, message) = message(next?)?;
            self.delivered += 1;
            // The server does not repeat what a lost connection had.
            if number != self.delivered {
                return Err("a message was not delivered".into());
            }
            Ok::<_, async_nats::Error>(message)
        };
        let next = self.connection.request(&self.what, next).await;
        Some((next, self))
    }
}

/// A consumer of the messages at or after a position.
fn consumer(subject: &str, position: u64) -> pull::Config {
    pull::Config {
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: position.max(1),
        },
        ack_policy: AckPolicy::None,
        filter_subject: subject.to_owned(),
        inactive_threshold: CONSUMER_TIMEOUT,
        num_replicas: 1,
        memory_storage: true,
        ..pull::Config::default()
    }
}

/// A message, and its number in the order of its consumer, from 1.
fn message(it: jetstream::Message) -> Result<(u64, Message), async_nats::Error> {
    let info = it.info()?;
    let message = Message {
        position: info.stream_sequence,
        archived: micros(info.published.unix_timestamp_nanos()),
        subject: it.subject.to_string(),
        is_known_version: is_known_version(it.headers.as_ref()),
        payload: it.payload.clone(),
    };
    Ok((info.consumer_sequence, message))
}

fn is_known_version(headers: Option<&HeaderMap>) -> bool {
    let version = headers.and_then(|headers| headers.get(VERSION_HEADER));
    version.is_some_and(|version| version.as_str() == VERSION)
}

fn micros(nanos: i128) -> UnixMicros {
    UnixMicros(u64::try_from(nanos / 1_000).unwrap_or_default())
}
