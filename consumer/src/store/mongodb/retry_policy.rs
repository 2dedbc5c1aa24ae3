//! Which errors of MongoDB are retried, and with whom: the whole batch, the cookies of one DSP, or not at all. Pure.
//!
//! - A [`Failure::Server`] concerns every DSP: the batch is written again once the store is available.
//! - A [`Failure::Dsp`] concerns one database: its cookies are set aside in the retry queue, and retried there.
//! - A [`WriteError`] that [is final](WriteError::is_final) concerns one document: its cookie becomes a dead letter.
//!   One that [is a duplicate of an `_id`](WriteError::is_duplicate_id) is not a loss: see `duplicate_key.rs`.

use mongodb::{
    bson::{Bson, Document},
    error::{Error, ErrorKind},
};

use super::{duplicate_key, error_text};
use crate::store::StoreError;

/// Codes of errors that have nothing to do with the database they come from: not reached, authentication, not a primary,
/// starting, stepping down or shutting down, disk full, not acknowledged by others.
const OF_SERVER: [i32; 22] = [
    6, 7, 11, 18, 64, 79, 89, 91, 100, 175, 189, 317, 391, 9001, 10_058, 10_107, 11_600, 11_602,
    13_435, 13_436, 14_031, 8000,
];

/// Write errors that are about the one document: bad value, failed to parse, type mismatch, overflow, a path that
/// cannot be made, a field that is not allowed, missing, or not to be changed (a shard key), failed validation, no
/// valid key of an index of the operator's, too large for a capped collection, too large, key too long.
///
/// Any other code fails the batch: it may be about the server, and then all its cookies would be set aside.
const REJECTED: [i32; 18] = [
    2, 9, 14, 15, 28, 52, 53, 56, 57, 61, 66, 121, 171, 10_003, 10_334, 16_755, 17_280, 17_282,
];

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

/// Where no DSP is involved, nobody needs to know who was to blame.
impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Server(error) => error,
            Failure::Dsp(why) => Self::Unavailable(why),
        }
    }
}

/// Who is to blame for an error.
pub(super) fn failure(error: &Error) -> Failure {
    let why = error_text::explain(error);
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

/// Everything may pass: a server comes back or is upgraded, credentials are corrected, a disk is emptied.
pub(super) fn unavailable(error: &Error) -> StoreError {
    StoreError::Unavailable(error_text::explain(error))
}

pub(super) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
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
        let why = self.explain();
        if is_of_dsp(self.code, &self.message) {
            Failure::Dsp(why)
        } else {
            Failure::Server(StoreError::Unavailable(why))
        }
    }

    /// One line without line breaks.
    pub(super) fn explain(&self) -> String {
        error_text::command(self.code, "", &self.message)
    }

    /// Whether it says something about the one document and would come again.
    pub(super) fn is_final(&self) -> bool {
        self.code == duplicate_key::CODE || REJECTED.contains(&self.code)
    }
}

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
        let why = error_text::command(code, text("codeName"), text("errmsg"));
        return Err(StoreError::Unavailable(why));
    }
    let errors = answer.get_array("writeErrors").ok();
    let errors = errors.into_iter().flatten().filter_map(Bson::as_document);
    Ok(errors.map(|error| {
        let code = error.get_i32("code").unwrap_or_default();
        let at = error.get_i32("index").ok();
        WriteError {
            // One that cannot be read belongs to no operation, and so fails the batch.
            index: at
                .and_then(|at| usize::try_from(at).ok())
                .unwrap_or(usize::MAX),
            code,
            is_duplicate_id: duplicate_key::is_of_id(code, error),
            message: error.get_str("errmsg").unwrap_or_default().to_owned(),
        }
    }))
}
