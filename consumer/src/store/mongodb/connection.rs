//! The connection to MongoDB and its timeouts. Errors are classified in `error_class.rs`.
//!
//! If a server stops responding without closing its connections, the driver's monitor detects this after at most 15 s: its
//! heartbeat of 10 s plus [`SELECTION_TIMEOUT`]. It then ends pending commands. Each further attempt selects a server
//! again, so writing continues when a server responds.

use std::{fmt, future::IntoFuture, time::Duration};

use futures_util::FutureExt as _;
use mongodb::{
    Client, Database,
    bson::{Document, doc, serialize_to_bson},
    error::{Error, ErrorKind},
    options::{
        Acknowledgment, ClientOptions, ConnectionString, HostInfo, ReadConcernLevel,
        ReadPreference, SelectionCriteria, ServerAddress,
    },
};
use tokio::time::timeout;

use super::error_class::{Failure, failure, write_errors};
use crate::store::StoreError;

/// Timeout of server selection, short enough to report an unreachable server soon.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of connections, unless set in the URI. Each hanging DSP database may occupy one until its command times out;
/// the driver's default of ten would be exhausted by ten of them.
const CONNECTIONS_MAX: u32 = 100;

/// Timeout of a command, which is then repeated. The repetition changes nothing.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum heartbeat interval of the driver.
const HEARTBEAT_MIN: Duration = Duration::from_millis(500);

/// Maximum bytes of the `appName` option.
const APP_NAME_BYTES_MAX: usize = 128;

/// A pool of connections; clones share it.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// The write concern; empty for the default of the server.
    pub(super) concern: Document,
}

/// The driver's client contains the credentials.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Validates a connection string without network access.
///
/// # Errors
/// A message with the invalid part, but without user and password.
pub fn check_uri(uri: &str) -> Result<(), String> {
    if !cfg!(feature = "full") && needs_full(uri) {
        let why = "this build supports neither SRV records (mongodb+srv://) nor zstd; use an image or release, or build with \
                   `--features consumer/full`";
        return Err(why.to_owned());
    }
    let mut parsed = match ConnectionString::parse(uri) {
        Ok(parsed) => parsed,
        Err(error) => {
            let why = explain(error);
            let is_private = |why: &str| {
                let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
                let mut parts = rest.split(['@', ':', '/', '?', '&', '=', ',']);
                parts.any(|part| part.len() > 3 && why.contains(part))
            };
            return Err(if is_private(&why) {
                "malformed connection string".to_owned()
            } else {
                why
            });
        }
    };
    check_options(&parsed)?;
    // The driver validates the rest when it resolves the hosts. An SRV record would need the network.
    if let HostInfo::DnsRecord(_) = parsed.host_info {
        parsed.host_info = HostInfo::HostIdentifiers(vec![ServerAddress::default()]);
    }
    let checked = ClientOptions::parse(parsed).into_future().now_or_never();
    checked.map_or(Ok(()), |checked| checked.map(drop).map_err(explain))
}

/// The message of a driver error about a connection string.
fn explain(error: Error) -> String {
    match *error.kind {
        ErrorKind::InvalidArgument { message, .. } => message,
        kind => kind.to_string(),
    }
}

/// Rejects options that the driver or the server would reject only later, or that prevent acknowledgments.
fn check_options(uri: &ConnectionString) -> Result<(), String> {
    let w = uri
        .write_concern
        .as_ref()
        .and_then(|it| match it.w.as_ref()? {
            Acknowledgment::Nodes(nodes @ (0 | 51..)) => Some(nodes.to_string()),
            Acknowledgment::Custom(tag) if tag.is_empty() => Some(String::new()),
            _ => None,
        });
    let level = uri.read_concern.as_ref().and_then(|it| match &it.level {
        ReadConcernLevel::Custom(level) => Some(level.clone()),
        _ => None,
    });
    let zero = |count: Option<u32>| count.filter(|it| *it == 0).map(|_| "0".to_owned());
    let millis = |time: Duration| time.as_millis().to_string();
    let heartbeat = uri.heartbeat_frequency.filter(|it| *it < HEARTBEAT_MIN);
    let app_name = uri.app_name.clone();
    let app_name = app_name.filter(|it| it.len() > APP_NAME_BYTES_MAX);
    #[expect(deprecated, reason = "it is rejected")]
    let socket_timeout = uri.socket_timeout.map(millis);
    let balanced = uri.load_balanced.filter(|it| *it);
    for (option, value, fix) in [
        ("w", w, "use majority or a number from 1 to 50, or omit it"),
        ("maxPoolSize", zero(uri.max_pool_size), "use 1 or more"),
        ("maxConnecting", zero(uri.max_connecting), "use 1 or more"),
        (
            "heartbeatFrequencyMS",
            heartbeat.map(millis),
            "use 500 or more",
        ),
        ("readConcernLevel", level, "use local or majority"),
        ("appName", app_name, "use 128 bytes or less"),
        (
            "socketTimeoutMS",
            socket_timeout,
            "omit it, because every command has a deadline",
        ),
        (
            "loadBalanced",
            balanced.map(|it| it.to_string()),
            "omit it, and name the mongod or replica set of this node",
        ),
    ] {
        if let Some(value) = value {
            return Err(format!("{option}={value} is not supported; {fix}"));
        }
    }
    Ok(())
}

/// Whether a connection string needs the feature `full`, whose libraries take a fifteenth of the build time.
fn needs_full(uri: &str) -> bool {
    let is_zstd = |option: &str| option.starts_with("compressors=") && option.contains("zstd");
    let uri = uri.to_ascii_lowercase();
    uri.starts_with("mongodb+srv://") || uri.split(['?', '&']).any(is_zstd)
}

impl Connection {
    pub(super) async fn open(uri: &str) -> Result<Self, StoreError> {
        Ok(run(Self::new(uri)).await?)
    }

    async fn new(uri: &str) -> Result<Self, Error> {
        let mut options = ClientOptions::parse(uri).await?;
        options
            .app_name
            .get_or_insert_with(|| "cookiesync".to_owned());
        options
            .server_selection_timeout
            .get_or_insert(SELECTION_TIMEOUT);
        options.connect_timeout.get_or_insert(SELECTION_TIMEOUT);
        options.max_pool_size.get_or_insert(CONNECTIONS_MAX);
        let concern = options.write_concern.as_ref();
        let concern = match concern.and_then(|concern| concern.w.as_ref()) {
            Some(w) => doc! { "w": serialize_to_bson(w)? },
            None => doc! {},
        };
        Ok(Self {
            client: Client::with_options(options)?,
            concern,
        })
    }

    /// The write concern with `j: true`.
    pub(super) fn journaled(&self) -> Document {
        let mut concern = self.concern.clone();
        concern.insert("j", true);
        concern
    }
}

/// Reads from the primary, where all writes go.
pub(super) fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// Runs a command with a deadline, and classifies its error.
pub(super) async fn run<T>(
    command: impl IntoFuture<Output = Result<T, Error>>,
) -> Result<T, Failure> {
    let reply = timeout(COMMAND_TIMEOUT, command.into_future()).await;
    let why = |_| format!("no response for {COMMAND_TIMEOUT:?}");
    let reply = reply.map_err(|it| StoreError::Unavailable(why(it)))?;
    reply.map_err(|error| failure(&error))
}

/// Runs a command that writes documents other than cookies; `what` describes them. Inserting an existing document succeeds.
pub(super) async fn write(
    database: &Database,
    command: Document,
    what: &str,
) -> Result<(), StoreError> {
    let is_insert = command.contains_key("insert");
    let reply = run(database.run_command(command)).await?;
    match write_errors(&reply)?.find(|error| !(is_insert && error.is_duplicate_id)) {
        None => Ok(()),
        Some(error) => Err(StoreError::Unavailable(format!(
            "{what}: {}",
            error.explain()
        ))),
    }
}
