//! The stream of an archive: its URL, and a connection that ends with the first failure.

use std::{sync::Arc, time::Duration};

use async_nats::{
    ConnectErrorKind, ConnectOptions, Event, ServerError,
    jetstream::{self, context::GetStreamErrorKind, stream::Stream},
};
use parking_lot::Mutex;
use runtime::{
    connect::{
        ArchiveError::{self, Refused, Unavailable},
        credentials::NatsTlsArgs,
    },
    settings::ConfigErrors,
};
use tokio_util::sync::CancellationToken;

use crate::Servers;

/// Time limit of a connection, and of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The value of `--archive`: servers and a stream, which an operator has created.
#[derive(Debug, Clone)]
pub struct StreamUrl {
    servers: Servers,
    /// Name of the stream.
    pub name: String,
}

/// A connection. After a failure, open another one: a client keeps messages for a lost connection, and never forgets one that is not
/// acknowledged.
#[derive(Debug, Clone)]
pub struct Connection {
    /// JetStream of the servers.
    pub context: jetstream::Context,
    /// The stream, with its settings when the connection was opened.
    pub stream: Stream,
    /// Maximum bytes of a message.
    pub max_payload: usize,
    /// The last error that the server has reported outside of a response, such as a missing permission.
    server_error: Arc<Mutex<Option<String>>>,
    /// Cancelled when the connection is lost. The client would establish another one, without the responses.
    lost: CancellationToken,
}

impl StreamUrl {
    /// Parses URLs of servers, separated by commas, with the name of the stream at the end. Records all errors.
    pub fn check(errors: &mut ConfigErrors, url: &str, tls: &NatsTlsArgs) -> Option<Self> {
        let (servers, name) = url.rsplit_once('/').unwrap_or_default();
        if servers.ends_with('/') || !is_name(name) {
            errors.add("--archive: use URLs and a stream, like nats://127.0.0.1:4222/COOKIES");
            return None;
        }
        Some(Self {
            servers: Servers::check(errors, "--archive", servers, tls)?,
            name: name.to_owned(),
        })
    }

    /// Another stream on the same servers, the value of `flag`. Records an error if its name is invalid.
    pub fn sibling(&self, errors: &mut ConfigErrors, flag: &str, name: &str) -> Option<Self> {
        if !is_name(name) {
            errors.add(format!(
                "{flag}: use the name of a stream, like COOKIES_NODES"
            ));
            return None;
        }
        Some(Self {
            name: name.to_owned(),
            ..self.clone()
        })
    }

    /// Connects as a client with this name, and finds the stream.
    ///
    /// # Errors
    /// If no server is available, the servers reject the credentials, or the stream does not exist.
    pub async fn connect(&self, client: &str) -> Result<Connection, ArchiveError> {
        let server_error = Arc::new(Mutex::new(None));
        let lost = CancellationToken::new();
        let (last, on_loss) = (Arc::clone(&server_error), lost.clone());
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
        let client = self.servers.connect_with(client, TIMEOUT, set).await;
        let client = client.map_err(|error| match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                Refused("the NATS server rejects the credentials".to_owned())
            }
            _ => Unavailable(format!("cannot connect to NATS: {error}")),
        })?;
        let max_payload = client.max_payload();
        let mut context = jetstream::new(client);
        context.set_timeout(TIMEOUT);
        let name = &self.name;
        let stream = lost.run_until_cancelled(context.get_stream(name)).await;
        let stream = stream.ok_or_else(connection_lost)?;
        let stream = stream.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.code() < 500 => {
                Refused(format!("stream {name}: {error}"))
            }
            _ => failure(&server_error, format!("cannot read stream {name}: {error}")),
        })?;
        Ok(Connection {
            context,
            stream,
            max_payload,
            server_error,
            lost,
        })
    }
}

impl Connection {
    /// Whether the connection is lost.
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// The result of a request; an error begins with `what`. Fails when the connection is lost.
    ///
    /// # Errors
    /// If the request fails. The server does not respond to a request that it does not permit; the error then states its reason.
    pub async fn request<T, E: Into<async_nats::Error>>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, ArchiveError> {
        let response = self.lost.run_until_cancelled(request).await;
        match response.ok_or_else(connection_lost)? {
            Ok(response) => {
                // Errors before a response were of something else.
                *self.server_error.lock() = None;
                Ok(response)
            }
            Err(error) => {
                let error: async_nats::Error = error.into();
                Err(failure(&self.server_error, format!("{what}: {error}")))
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    !text.is_empty() && text.chars().all(is_valid)
}

fn connection_lost() -> ArchiveError {
    Unavailable("connection to NATS lost".to_owned())
}

fn failure(server_error: &Mutex<Option<String>>, error: String) -> ArchiveError {
    match server_error.lock().take() {
        Some(reason) => Refused(format!("{error}; the NATS server reports: {reason}")),
        None => Unavailable(error),
    }
}
