//! Classifies errors of MongoDB: retry the batch, retry the cookies of one DSP, or reject a cookie. Does no I/O.
//!
//! - A [`Failure::Server`] concerns all DSPs: the batch is written again when the store is available.
//! - A [`Failure::Dsp`] concerns one database: its cookies go to the retry queue.
//! - A [final](WriteError::is_final) [`WriteError`] concerns one document: its cookie becomes a dead letter. A
//!   [duplicate `_id`](WriteError::is_duplicate_id) is not a loss: after a failed insert, `write.rs` reads the stored cookie, and
//!   replaces it if it is older. After a failed upsert, the stored cookie is newer, and the cookie of the batch is stale.
//!   `insert_strategy.rs` avoids the error if existing users are frequent. A duplicate in a unique index that the operator
//!   created is final.

use mongodb::{
    bson::{Bson, Document},
    error::{Error, ErrorKind},
};

use super::error_text;
use crate::store::StoreError;

/// Error codes of the whole server: unreachable, authentication, not a primary, starting, stepping down or shutting down, disk
/// full, not acknowledged by other members.
const SERVER_CODES: [i32; 22] = [
    6, 7, 11, 18, 64, 79, 89, 91, 100, 175, 189, 317, 391, 9001, 10_058, 10_107, 11_600, 11_602,
    13_435, 13_436, 14_031, 8000,
];

/// Write error codes that concern one document: bad value, failed to parse, type mismatch, overflow, path not viable, field not
/// allowed, missing, or immutable (a shard key), failed validation, invalid index key, too large for a capped collection, too
/// large, key too long.
///
/// Any other code fails the batch, because it may concern the server.
const REJECTED_CODES: [i32; 18] = [
    2, 9, 14, 15, 28, 52, 53, 56, 57, 61, 66, 121, 171, 10_003, 10_334, 16_755, 17_280, 17_282,
];

/// A document with the same value of a unique index exists.
const DUPLICATE_KEY: i32 = 11_000;

/// The collection of a command does not exist, or is a different one.
pub(super) const COLLECTION_UUID_MISMATCH: i32 = 361;

/// A server before 6.0 does not know an option of a command.
pub(super) const UNKNOWN_FIELD: i32 = 40_415;

/// Why cookies of a DSP were not written.
#[derive(Debug)]
pub(super) enum Failure {
    /// The whole server fails.
    Server(StoreError),
    /// The database of this DSP fails, or permissions for it are missing.
    Dsp(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Server(error)
    }
}

/// For operations that concern no single DSP.
impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Server(error) => error,
            Failure::Dsp(why) => Self::Unavailable(why),
        }
    }
}

/// Classifies an error.
pub(super) fn failure(error: &Error) -> Failure {
    let why = error_text::explain(error);
    match code(error) {
        Some(code) if concerns_dsp(code, &error.to_string()) => Failure::Dsp(why),
        _ => Failure::Server(StoreError::Unavailable(why)),
    }
}

fn concerns_dsp(code: i32, message: &str) -> bool {
    // An unauthenticated client has no permission anywhere.
    let is_unauthenticated = code == 13 && !message.contains("not authorized on ");
    !is_unauthenticated && !SERVER_CODES.contains(&code)
}

/// Treats all errors as temporary: servers restart or are upgraded, operators correct credentials or free disk space.
pub(super) fn unavailable(error: &Error) -> StoreError {
    StoreError::Unavailable(error_text::explain(error))
}

pub(super) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

/// A failed operation of a write command.
pub(super) struct WriteError {
    pub(super) index: usize,
    pub(super) code: i32,
    pub(super) message: String,
    /// A document with this `_id` exists. False for a duplicate in another unique index.
    pub(super) is_duplicate_id: bool,
}

impl WriteError {
    /// Classifies an error that does not concern the document.
    pub(super) fn failure(&self) -> Failure {
        let why = self.explain();
        if concerns_dsp(self.code, &self.message) {
            Failure::Dsp(why)
        } else {
            Failure::Server(StoreError::Unavailable(why))
        }
    }

    /// Describes the error in one line.
    pub(super) fn explain(&self) -> String {
        error_text::command(self.code, "", &self.message)
    }

    /// Whether the error concerns the document and would occur again.
    pub(super) fn is_final(&self) -> bool {
        self.code == DUPLICATE_KEY || REJECTED_CODES.contains(&self.code)
    }
}

/// The failed operations of a write command.
///
/// # Errors
/// When its write concern was not satisfied.
pub(super) fn write_errors(
    reply: &Document,
) -> Result<impl Iterator<Item = WriteError>, StoreError> {
    if let Ok(error) = reply.get_document("writeConcernError") {
        let text = |key| error.get_str(key).unwrap_or_default();
        let code = error.get_i32("code").unwrap_or_default();
        let why = error_text::command(code, text("codeName"), text("errmsg"));
        return Err(StoreError::Unavailable(why));
    }
    let errors = reply.get_array("writeErrors").ok();
    let errors = errors.into_iter().flatten().filter_map(Bson::as_document);
    Ok(errors.map(|error| {
        let code = error.get_i32("code").unwrap_or_default();
        let at = error.get_i32("index").ok();
        WriteError {
            // An invalid index matches no operation, and fails the batch.
            index: at
                .and_then(|at| usize::try_from(at).ok())
                .unwrap_or(usize::MAX),
            code,
            is_duplicate_id: is_duplicate_id(code, error),
            message: error.get_str("errmsg").unwrap_or_default().to_owned(),
        }
    }))
}

/// Whether a write error means that a document with this `_id` exists.
fn is_duplicate_id(code: i32, error: &Document) -> bool {
    // If a reply has too many errors, the server omits their details.
    let index = error.get_document("keyPattern");
    code == DUPLICATE_KEY && index.map_or(true, |index| index.keys().eq(["_id"]))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn only_a_duplicate_id_means_an_existing_user() {
        for (code, error, is_existing_user) in [
            (DUPLICATE_KEY, doc! { "keyPattern": { "_id": 1 } }, true),
            (DUPLICATE_KEY, doc! {}, true),
            (DUPLICATE_KEY, doc! { "keyPattern": { "b": 1 } }, false),
            (
                DUPLICATE_KEY,
                doc! { "keyPattern": { "_id": 1, "b": 1 } },
                false,
            ),
            (121, doc! {}, false),
        ] {
            assert_eq!(is_duplicate_id(code, &error), is_existing_user, "{error}");
        }
    }
}
