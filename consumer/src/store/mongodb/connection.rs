//! The connection to MongoDB: how it is made, and how long it is waited for. What its errors mean: `retry_policy.rs`.
//!
//! A server that stops answering without closing its connections is noticed by the driver's monitor after at most
//! 15 s (its heartbeat of 10 s and [`SELECTION_TIMEOUT`]); that ends the commands that wait. From then on each
//! attempt looks for a server anew, so it goes on as soon as one answers.

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

use super::retry_policy::{Failure, failure, unavailable, write_errors};
use crate::store::StoreError;

/// How long a server may be looked for, so that its absence shows soon.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Most connections, if the URI does not say. Each DSP whose database hangs may hold one for as long as a command may take; the
/// driver's ten would be gone with ten of them.
const CONNECTIONS_MAX: u32 = 100;

/// How long a command may take before it counts as failed; it is then repeated, which changes nothing.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The driver takes no shorter heartbeat.
const HEARTBEAT_MIN: Duration = Duration::from_millis(500);

/// The server takes no longer name.
const APP_NAME_BYTES_MAX: usize = 128;

/// Clones share their connections.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// Who must have a write before it is acknowledged; empty where it is left to the server's default.
    pub(super) concern: Document,
}

/// The driver's client knows the credentials.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Checks a connection string as far as that is possible without a network.
///
/// # Errors
/// With what is wrong, without repeating user and password.
pub fn check_uri(uri: &str) -> Result<(), String> {
    if !cfg!(feature = "full") && needs_full(uri) {
        let why = "this consumer was built without SRV records (mongodb+srv://) and zstd: images and releases have them, and so \
                   has a build with `--features consumer/full`";
        return Err(why.to_owned());
    }
    let mut parsed = match ConnectionString::parse(uri) {
        Ok(parsed) => parsed,
        Err(error) => {
            let why = explained(error);
            let is_private = |why: &str| {
                let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
                let mut parts = rest.split(['@', ':', '/', '?', '&', '=', ',']);
                parts.any(|part| part.len() > 3 && why.contains(part))
            };
            return Err(if is_private(&why) {
                "the connection string is malformed".to_owned()
            } else {
                why
            });
        }
    };
    check_options(&parsed)?;
    // The driver checks the rest when it resolves the hosts: those of an SRV record need a network.
    if let HostInfo::DnsRecord(_) = parsed.host_info {
        parsed.host_info = HostInfo::HostIdentifiers(vec![ServerAddress::default()]);
    }
    let checked = ClientOptions::parse(parsed).into_future().now_or_never();
    checked.map_or(Ok(()), |checked| checked.map(drop).map_err(explained))
}

/// The message of an error of the driver about a connection string.
fn explained(error: Error) -> String {
    match *error.kind {
        ErrorKind::InvalidArgument { message, .. } => message,
        kind => kind.to_string(),
    }
}

/// Refuses options that the driver or the server would refuse only later, or that keep it unknown what is stored.
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
    #[expect(deprecated, reason = "it is refused")]
    let socket_timeout = uri.socket_timeout.map(millis);
    let balanced = uri.load_balanced.filter(|it| *it);
    for (option, value, instead) in [
        ("w", w, "write majority, or 1 to 50, or leave it out"),
        ("maxPoolSize", zero(uri.max_pool_size), "write 1 or more"),
        ("maxConnecting", zero(uri.max_connecting), "write 1 or more"),
        (
            "heartbeatFrequencyMS",
            heartbeat.map(millis),
            "write 500 or more",
        ),
        ("readConcernLevel", level, "write local or majority"),
        ("appName", app_name, "write 128 bytes or less"),
        (
            "socketTimeoutMS",
            socket_timeout,
            "leave it out, since every command has a deadline",
        ),
        (
            "loadBalanced",
            balanced.map(|it| it.to_string()),
            "leave it out, and name the mongod or the replica set of this node",
        ),
    ] {
        if let Some(value) = value {
            return Err(format!("{option}={value} cannot be used: {instead}"));
        }
    }
    Ok(())
}

/// Whether a connection string asks for what only the feature `full` brings: the libraries for it take a fifteenth of a first
/// build.
fn needs_full(uri: &str) -> bool {
    let is_zstd = |option: &str| option.starts_with("compressors=") && option.contains("zstd");
    let uri = uri.to_ascii_lowercase();
    uri.starts_with("mongodb+srv://") || uri.split(['?', '&']).any(is_zstd)
}

impl Connection {
    pub(super) async fn new(uri: &str) -> Result<Self, Error> {
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
}

/// Reads where it is written.
pub(super) fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

impl Connection {
    /// The write concern, in the journal.
    pub(super) fn journaled(&self) -> Document {
        let mut concern = self.concern.clone();
        concern.insert("j", true);
        concern
    }
}

/// Runs a command, with its options.
pub(super) async fn run(
    command: impl IntoFuture<Output = Result<Document, Error>>,
) -> Result<Document, Failure> {
    let answer = answered(command.into_future()).await?;
    answer.map_err(|error| failure(&error))
}

/// Runs a command that writes what is not cookies, `what` in words. A document to insert may be there already.
pub(super) async fn write(
    database: &Database,
    command: Document,
    what: &str,
) -> Result<(), StoreError> {
    let is_insert = command.contains_key("insert");
    let answer = run(database.run_command(command)).await?;
    // An update that another one got ahead of has changed nothing.
    match write_errors(&answer)?.find(|error| !(is_insert && error.is_duplicate_id)) {
        None => Ok(()),
        Some(error) => Err(StoreError::Unavailable(format!(
            "{what}: {}",
            error.explain()
        ))),
    }
}

pub(super) async fn in_time<T>(
    command: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    answered(command)
        .await?
        .map_err(|error| unavailable(&error))
}

/// What the server answers, be it an error.
///
/// # Errors
/// When it answers nothing in time.
pub(super) async fn answered<T>(
    command: impl Future<Output = Result<T, Error>>,
) -> Result<Result<T, Error>, StoreError> {
    timeout(COMMAND_TIMEOUT, command)
        .await
        .map_err(|_| StoreError::Unavailable(format!("no answer for {COMMAND_TIMEOUT:?}")))
}
