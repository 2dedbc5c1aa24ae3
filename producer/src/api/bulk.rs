//! Bulk requests: their admission, the results of their rows, and their response.

use std::{collections::BTreeMap, sync::Arc};

use axum::body::Body;
use http::{StatusCode, request::Parts};
use proto::limits::DELETION_HORIZON_MICROS;
use runtime::reply::{Reply, json};
use serde::{Deserialize, Serialize};

use super::{
    Api,
    body::{self, Rows},
    idempotency::Pending,
    problem::{Early, Problem},
    tokens::{Client, Right},
};

/// Maximum number of row errors in a response.
const ERRORS_MAX: usize = 100;

/// Why a row is rejected: a value in the response and of the metric label.
pub(super) type RowError = &'static str;

/// Not a JSON object of the documented keys, or too long.
pub(super) const MALFORMED: RowError = "malformed";
pub(super) const USER_INVALID: RowError = "user_invalid";
pub(super) const DSP_INVALID: RowError = "dsp_invalid";
pub(super) const BUYER_INVALID: RowError = "buyer_invalid";
/// The token does not grant this DSP.
pub(super) const FORBIDDEN_DSP: RowError = "forbidden_dsp";
/// The DSP is not listed in the settings.
pub(super) const UNKNOWN_DSP: RowError = "unknown_dsp";
/// Older than the retention of deletions.
pub(super) const TOO_OLD: RowError = "too_old";

pub(super) const ROW_ERRORS: [RowError; 7] = [
    MALFORMED,
    USER_INVALID,
    DSP_INVALID,
    BUYER_INVALID,
    FORBIDDEN_DSP,
    UNKNOWN_DSP,
    TOO_OLD,
];

/// The results of the rows.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) accepted: u64,
    rejected: u64,
    pub(super) errors: Vec<ErrorRow>,
    /// Rejected rows that are not in `errors`.
    errors_omitted: u64,
    #[serde(skip)]
    pub(super) by_reason: BTreeMap<RowError, u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorRow {
    row: u32,
    reason: RowError,
}

impl Summary {
    fn reject(&mut self, row: u32, reason: RowError) {
        self.rejected += 1;
        *self.by_reason.entry(reason).or_default() += 1;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(ErrorRow { row, reason });
        } else {
            self.errors_omitted += 1;
        }
    }

    /// `complete`, or 207 when rows were rejected.
    pub(super) fn status(&self, complete: StatusCode) -> StatusCode {
        match self.rejected {
            0 => complete,
            _ => StatusCode::MULTI_STATUS,
        }
    }
}

/// Receives the rows of a bulk request.
pub(super) trait Intake {
    /// Collects one row.
    fn row(&mut self, row: &[u8], client: &Client) -> Result<(), RowError>;

    /// Whether the collected rows must be appended.
    fn is_full(&self) -> bool;

    /// Appends the collected rows to the log, and returns their number.
    fn append(&mut self) -> Result<u64, Problem>;

    /// Counts the results in metrics.
    fn count(&self, summary: &Summary);
}

/// A bulk request that was admitted.
pub(super) struct Bulk {
    api: Api,
    client: Arc<Client>,
    head: Parts,
    pending: Option<Pending>,
}

impl Api {
    /// Admits a bulk request of a client with `right`.
    pub(super) fn admit_bulk(&self, head: Parts, right: Right) -> Result<Bulk, Early> {
        let client = self.admit(&head.headers, right)?;
        body::check_headers(&head.headers)?;
        Ok(Bulk {
            pending: Pending::admit(self, &client, &head)?,
            api: self.clone(),
            client,
            head,
        })
    }
}

impl Bulk {
    /// Passes the rows of the body to `intake`.
    ///
    /// # Errors
    /// When the body cannot be read to its end. Rows accepted before the error stay in the log.
    pub(super) async fn read<I: Intake>(
        &self,
        body: &mut Body,
        mut intake: I,
    ) -> Result<(I, Summary), Problem> {
        let mut summary = Summary::default();
        let mut reading = Reading {
            bulk: self,
            intake: &mut intake,
            summary: &mut summary,
        };
        let read = body::read(&self.head.headers, body, &mut reading).await;
        let read = read.and(reading.flush());
        drop(reading);
        read.map_err(|problem| problem.with("accepted", summary.accepted))?;
        Ok((intake, summary))
    }

    /// The response; repeated requests get the same one.
    pub(super) fn reply(self, status: StatusCode, body: &impl Serialize) -> Reply {
        let reply = json(status, body);
        if let Some(pending) = self.pending {
            pending.finish(&reply);
        }
        reply
    }
}

/// The rows of a request while they are read.
struct Reading<'a, I: Intake> {
    bulk: &'a Bulk,
    intake: &'a mut I,
    summary: &'a mut Summary,
}

impl<I: Intake> Rows for Reading<'_, I> {
    fn row(&mut self, number: u32, row: Option<&[u8]>) -> Result<(), Problem> {
        let read = row.ok_or(MALFORMED);
        if let Err(reason) = read.and_then(|row| self.intake.row(row, &self.bulk.client)) {
            self.summary.reject(number, reason);
        }
        if self.intake.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Problem> {
        self.summary.accepted += self.intake.append()?;
        Ok(())
    }
}

impl<I: Intake> Drop for Reading<'_, I> {
    /// Counts the rows, including those of a client that has closed the connection.
    fn drop(&mut self) {
        let (quotas, summary) = (&self.bulk.api.inner.quotas, &*self.summary);
        quotas.rows(&self.bulk.client.name, summary.accepted + summary.rejected);
        self.intake.count(summary);
    }
}

/// Parses a row, which must be an object, because serde also accepts arrays.
pub(super) fn parse<'a, T: Deserialize<'a>>(row: &'a [u8]) -> Result<T, RowError> {
    if !row.starts_with(b"{") {
        return Err(MALFORMED);
    }
    serde_json::from_slice(row).map_err(|_| MALFORMED)
}

/// The age of a client's time, in microseconds. A time in the future counts as now.
///
/// # Errors
/// [`TOO_OLD`] if it is older than the retention of deletions.
pub(super) fn age(now_micros: u64, millis: u64) -> Result<u64, RowError> {
    let age = now_micros.saturating_sub(millis.saturating_mul(1_000));
    if age > DELETION_HORIZON_MICROS {
        return Err(TOO_OLD);
    }
    Ok(age)
}
