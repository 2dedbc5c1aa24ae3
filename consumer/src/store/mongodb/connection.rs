//! The connection to MongoDB: how it is made, how long it is waited for, and what its answers mean.
//!
//! A server that stops answering without closing its connections is noticed by the driver's monitor after at most
//! 15 s (its heartbeat of 10 s and [`SELECTION_TIMEOUT`]); that ends the commands that wait. From then on each
//! attempt looks for a server anew, so it goes on as soon as one answers.

use std::{fmt, time::Duration};

use mongodb::{
    Client, Database,
    bson::{Bson, Document, RawDocumentBuf, doc},
    error::{Error, ErrorKind},
    options::{Acknowledgment, ClientOptions, ConnectionString, ReadPreference, SelectionCriteria},
};
use tokio::time::timeout;

use super::{errors, secrets::Secrets};
use crate::store::StoreError;

/// How long a server may be looked for, so that its absence shows soon.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Most connections, if the URI does not say. Each DSP whose database hangs may hold one for as long as a command may take; the
/// driver's ten would be gone with ten of them.
const CONNECTIONS_MAX: u32 = 100;

/// How long a command may take before it counts as failed; it is then repeated, which changes nothing.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Clones share their connections.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// `None` leaves it to the server's default.
    pub(super) concern: Option<WriteConcern>,
}

/// The driver's client knows the credentials.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Who must have a write before it is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteConcern {
    /// So many nodes, at least one.
    Nodes(i32),
    /// Those that a name stands for, such as `majority`.
    Tag(String),
}

/// Checks a connection string as far as that is possible without a network.
///
/// # Errors
/// With what is wrong, without repeating user and password.
pub fn check_uri(uri: &str) -> Result<(), String> {
    if let Some(what) = left_out(uri) {
        return Err(format!(
            "this consumer was built without {what}: images and releases have it, and so has a build with \
             `--features consumer/full`"
        ));
    }
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
    let hides = Secrets::of(uri).hide(why.clone()) != why;
    Err(if hides || is_private(&why) {
        "the connection string is malformed".to_owned()
    } else {
        why
    })
}

/// What a connection string asks for that only the feature `full` brings: the libraries for it take a fifteenth of a first build.
fn left_out(uri: &str) -> Option<&'static str> {
    if cfg!(feature = "full") {
        return None;
    }
    if uri.starts_with("mongodb+srv://") {
        return Some("the lookup of SRV records, which mongodb+srv:// needs");
    }
    let (_, options) = uri.split_once('?')?;
    let options = options
        .split('&')
        .filter_map(|option| option.split_once('='));
    let mut compressors = options
        .filter(|(name, _)| name.eq_ignore_ascii_case("compressors"))
        .flat_map(|(_, names)| names.split(','));
    compressors
        .any(|name| name.eq_ignore_ascii_case("zstd"))
        .then_some("zstd (zlib and snappy are there)")
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
}

/// Reads where it is written.
pub(super) fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
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
    /// A document of this `_id` is there already. Of a duplicate in another unique index, this is false.
    pub(super) is_duplicate_id: bool,
}

impl WriteError {
    /// Who is to blame for it, where it is not the one document.
    pub(super) fn failure(&self) -> Failure {
        let why = format!("write refused with code {}: {}", self.code, self.message);
        if is_of_dsp(self.code, &self.message) {
            Failure::Dsp(why)
        } else {
            Failure::Server(StoreError::Unavailable(why))
        }
    }

    /// Whether it says something about the one document and would come again.
    pub(super) fn is_final(&self) -> bool {
        self.code == DUPLICATE || REJECTED.contains(&self.code)
    }
}

const DUPLICATE: i32 = 11_000;

/// Write errors that are about the one document: bad value, failed to parse, type mismatch, overflow, a path that
/// cannot be made, a field that is not allowed, missing, or not to be changed (a shard key), failed validation, no
/// valid key of an index of the operator's, too large for a capped collection, too large, key too long.
///
/// Any other code fails the batch: it may be about the server, and then all its cookies would be set aside.
const REJECTED: [i32; 18] = [
    2, 9, 14, 15, 28, 52, 53, 56, 57, 61, 66, 121, 171, 10_003, 10_334, 16_755, 17_280, 17_282,
];

/// The operations that failed.
///
/// # Errors
/// When the command as a whole was not acknowledged as it should have been.
pub(super) fn write_errors(
    answer: &Document,
) -> Result<impl Iterator<Item = WriteError>, StoreError> {
    if let Ok(error) = answer.get_document("writeConcernError") {
        let text = |key| error.get_str(key).unwrap_or_default();
        let code = error.get_i32("code").unwrap_or_default();
        let why = errors::command(code, text("codeName"), text("errmsg"));
        return Err(StoreError::Unavailable(why));
    }
    let errors = answer.get_array("writeErrors").ok();
    let errors = errors.into_iter().flatten().filter_map(Bson::as_document);
    Ok(errors.map(|error| {
        let code = error.get_i32("code").unwrap_or_default();
        let at = error.get_i32("index").ok();
        // Where there are very many errors, the server leaves out their details.
        let index = error.get_document("keyPattern");
        let is_id = index.map_or(true, |index| index.keys().eq(["_id"]));
        WriteError {
            // One that cannot be read belongs to no operation, and so fails the batch.
            index: at
                .and_then(|at| usize::try_from(at).ok())
                .unwrap_or(usize::MAX),
            code,
            is_duplicate_id: code == DUPLICATE && is_id,
            message: error.get_str("errmsg").unwrap_or_default().to_owned(),
        }
    }))
}

/// Why cookies of one DSP were not written.
#[derive(Debug)]
pub(super) enum Failure {
    /// It would be the same with those of any other.
    Server(StoreError),
    /// Something is wrong with this DSP's database, or with what we may do there.
    Dsp(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Server(error)
    }
}

/// Who was to blame is of no interest where there is no DSP.
impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Server(error) => error,
            Failure::Dsp(why) => Self::Unavailable(why),
        }
    }
}

/// Codes of errors that have nothing to do with the database they come from: not reached, authentication, not a primary,
/// starting, stepping down or shutting down, disk full, not acknowledged by others.
const OF_SERVER: [i32; 22] = [
    6, 7, 11, 18, 64, 79, 89, 91, 100, 175, 189, 317, 391, 9001, 10_058, 10_107, 11_600, 11_602,
    13_435, 13_436, 14_031, 8000,
];

/// Runs a raw command in a database.
pub(super) async fn run(database: &Database, command: RawDocumentBuf) -> Result<Document, Failure> {
    let answer = answered(database.run_raw_command(command).into_future()).await?;
    answer.map_err(|error| failure(&error))
}

/// Who is to blame for an error.
pub(super) fn failure(error: &Error) -> Failure {
    let why = errors::explain(error);
    match code(error) {
        Some(code) if is_of_dsp(code, &error.to_string()) => Failure::Dsp(why),
        _ => Failure::Server(StoreError::Unavailable(why)),
    }
}

fn is_of_dsp(code: i32, message: &str) -> bool {
    // Who is not known to the server may do nothing anywhere.
    let is_nobody = code == 13 && !message.contains("not authorized on ");
    !is_nobody && !OF_SERVER.contains(&code)
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

/// Everything may pass: a server comes back or is upgraded, credentials are corrected, a disk is emptied.
pub(super) fn unavailable(error: &Error) -> StoreError {
    StoreError::Unavailable(errors::explain(error))
}

pub(super) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}
