//! The connection to MongoDB: how it is made, how long it is waited for, and what its answers mean.

use std::time::Duration;

use mongodb::{
    Client, Database,
    bson::{Document, RawDocumentBuf, doc},
    error::{Error, ErrorKind},
    options::{Acknowledgment, ClientOptions, ConnectionString},
};
use tokio::time::timeout;

use crate::store::StoreError;

/// How long a server may be looked for, so that its absence shows soon.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a command may take before it counts as failed; it is then repeated, which changes nothing.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// What older servers say for `INDEX_OPTIONS_CONFLICT`.
const INDEX_KEY_CONFLICT: i32 = 86;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// `None` leaves it to the server's default.
    pub(super) concern: Option<WriteConcern>,
}

/// Who must have a write before it is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WriteConcern {
    Nodes(i32),
    Tag(String),
}

/// Checks a connection string as far as that is possible without a network.
///
/// # Errors
/// With what is wrong, without repeating user and password.
pub fn check_uri(uri: &str) -> Result<(), String> {
    let Err(error) = ConnectionString::parse(uri) else {
        return Ok(());
    };
    let why = match *error.kind {
        ErrorKind::InvalidArgument { message, .. } => message,
        kind => kind.to_string(),
    };
    let is_private = |why: &str| {
        let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
        let mut parts = rest.split(['@', ':', '/', '?', '&', '=', ',']);
        parts.any(|part| part.len() > 3 && why.contains(part))
    };
    Err(if is_private(&why) {
        "the connection string is malformed".to_owned()
    } else {
        why
    })
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
        let concern = options.write_concern.as_ref();
        let concern = concern
            .and_then(|concern| concern.w.clone())
            .map(|w| match w {
                // Without an acknowledgment nothing could be called durable.
                Acknowledgment::Nodes(nodes) => {
                    WriteConcern::Nodes(i32::try_from(nodes.max(1)).unwrap_or(i32::MAX))
                }
                Acknowledgment::Custom(tag) => WriteConcern::Tag(tag),
                _ => WriteConcern::Tag("majority".to_owned()),
            });
        Ok(Self {
            client: Client::with_options(options)?,
            concern,
        })
    }

    pub(super) fn database(&self, dsp_id: u32) -> Database {
        self.client.database(&dsp_id.to_string())
    }
}

impl WriteConcern {
    pub(super) fn document(&self) -> Document {
        match self {
            Self::Nodes(nodes) => doc! { "w": nodes },
            Self::Tag(tag) => doc! { "w": tag },
        }
    }
}

/// One operation of a write command that failed by itself.
pub(super) struct WriteError {
    pub(super) index: usize,
    pub(super) code: i32,
    pub(super) message: String,
}

/// The operations that failed.
///
/// # Errors
/// When the command as a whole was not acknowledged as it should have been.
pub(super) fn write_errors(
    answer: &Document,
) -> Result<impl Iterator<Item = WriteError>, StoreError> {
    if let Ok(error) = answer.get_document("writeConcernError") {
        return Err(StoreError::Unavailable(format!(
            "not acknowledged: {}",
            error.get_str("errmsg").unwrap_or("no reason given")
        )));
    }
    let errors = answer.get_array("writeErrors").ok();
    Ok(errors.into_iter().flatten().filter_map(|error| {
        let error = error.as_document()?;
        Some(WriteError {
            index: usize::try_from(error.get_i32("index").ok()?).ok()?,
            code: error.get_i32("code").ok()?,
            message: error.get_str("errmsg").unwrap_or_default().to_owned(),
        })
    }))
}

/// Runs a raw command.
pub(super) async fn run(
    database: &Database,
    command: RawDocumentBuf,
) -> Result<Document, StoreError> {
    in_time(database.run_raw_command(command).into_future()).await
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

/// Everything may pass: a server comes back, credentials are corrected, a disk is emptied.
pub(super) fn unavailable(error: &Error) -> StoreError {
    StoreError::Unavailable(match &*error.kind {
        // The driver tells the whole topology; what an operator needs is why its first server is out.
        ErrorKind::ServerSelection { message, .. } => {
            let cause = message.split_once("Error: Kind: ");
            let cause = cause.and_then(|(_, rest)| rest.split_once(", labels"));
            let cause = cause.map_or("no server answers", |(cause, _)| cause);
            format!("no server can be used: {cause}")
        }
        kind => kind.to_string(),
    })
}

pub(super) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) if error.code == INDEX_KEY_CONFLICT => {
            Some(super::INDEX_OPTIONS_CONFLICT)
        }
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}
