//! Handles bulk requests: admits a request, passes its rows on, counts the results, and responds.

use std::sync::Arc;

use axum::{body::Body, extract::Request};
use http::{StatusCode, request::Parts};
use proto::{limits::DELETION_HORIZON_MICROS, units::UnixMicros};
use runtime::reply::Reply;
use serde::{Deserialize, Serialize};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    Api, ROWS,
    body::{self, ROW_BYTES_MAX, Rows},
    idempotency::{FirstResponse, Key},
    problem::{OTHER_BODY, Problem, UNAUTHORIZED, respond},
    tokens::Client,
};
use crate::contracts::rejection::{Cause, Rejection};

/// Maximum number of row errors in a response.
const ERRORS_MAX: usize = 100;

/// Maximum number of rows that are charged to the limit of their token and appended to the log together.
const BATCH_ROWS_MAX: u32 = 256;

/// Reason for the rejection of a row, as in the response and the metric label.
pub(super) type RowError = &'static str;

/// Not a JSON object with the documented keys, or too long.
pub(super) const MALFORMED: RowError = "malformed";
pub(super) const USER_INVALID: RowError = "user_invalid";
pub(super) const DSP_INVALID: RowError = "dsp_invalid";
pub(super) const BUYER_INVALID: RowError = "buyer_invalid";
/// The token does not grant this DSP.
pub(super) const FORBIDDEN_DSP: RowError = "forbidden_dsp";
/// Older than the time for which nodes keep deletions.
pub(super) const TOO_OLD: RowError = "too_old";

/// The values of the metric label.
pub(super) fn row_outcomes() -> impl Iterator<Item = &'static str> {
    let contract = Rejection::ALL.iter().copied();
    let contract = contract.filter(|it| matches!(it.cause(), Cause::Dsp | Cause::Uid));
    [
        "accepted",
        "dropped",
        MALFORMED,
        USER_INVALID,
        DSP_INVALID,
        BUYER_INVALID,
        FORBIDDEN_DSP,
        TOO_OLD,
    ]
    .into_iter()
    .chain(contract.map(Rejection::label))
}

/// The results of the rows.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    /// Rows in the log, or in the queue of the limit of their DSP.
    accepted: u64,
    /// Valid rows that exceeded the limit of their DSP.
    dropped: u64,
    rejected: u64,
    /// The first rejected rows.
    pub(super) errors: Vec<ErrorRow>,
    /// Rejected rows that `errors` does not list.
    pub(super) errors_omitted: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorRow {
    row: u32,
    reason: RowError,
}

/// Receives the rows of a bulk request.
pub(super) trait Intake {
    /// The permission that a request needs.
    const PERMISSION: &'static str;

    /// Collects one row.
    fn row(&mut self, row: &[u8], client: &Client) -> Result<(), RowError>;

    /// Whether the collected rows must be appended.
    fn is_full(&self) -> bool {
        false
    }

    /// Appends the collected rows to the log; returns how many were accepted and how many dropped.
    fn append(&mut self) -> Result<[u64; 2], Problem>;

    /// Status and JSON of the response, once all rows are appended. The status is 207 instead if some rows were not accepted.
    async fn finish(self, summary: Summary) -> Result<(StatusCode, String), Problem>;
}

/// A bulk request that was admitted.
struct Bulk<'a, I> {
    api: &'a Api,
    client: Arc<Client>,
    rows: Rows<'a>,
    intake: I,
    summary: Summary,
    /// Number of rows charged to the limit of the token.
    charged: u32,
}

impl Api {
    /// Handles a bulk request. Calls `intake` if the client has the permission.
    pub(super) async fn bulk<I: Intake>(
        &self,
        request: Request,
        intake: impl FnOnce() -> Result<I, Problem>,
    ) -> Reply {
        let (head, mut body) = request.into_parts();
        let handled = self.handle_bulk(&head, &mut body, intake).await;
        if handled.as_ref().is_err_and(|it| it.kind != UNAUTHORIZED) {
            body::discard(&mut body).await;
        }
        respond(handled)
    }

    async fn handle_bulk<I: Intake>(
        &self,
        head: &Parts,
        body: &mut Body,
        intake: impl FnOnce() -> Result<I, Problem>,
    ) -> Result<Reply, Problem> {
        let client = self.admit(&head.headers, I::PERMISSION)?;
        let mut bulk = Bulk {
            api: self,
            rows: Rows::new(&head.headers, body)?,
            intake: intake()?,
            summary: Summary::default(),
            charged: 0,
            client,
        };
        let key = Key::admit(self, &bulk.client.name, head)?;
        if let Some(first) = key.as_ref().and_then(|key| key.first.as_ref()) {
            if bulk.skip().await? == first.digest {
                return Ok(first.reply());
            }
            let detail = "an earlier request with this Idempotency-Key had a different body";
            return Err(Problem::new(OTHER_BODY, detail));
        }
        let read = bulk.read().await;
        read.map_err(|problem| problem.with("accepted", bulk.summary.accepted))?;
        let incomplete = bulk.summary.rejected + bulk.summary.dropped;
        let (complete, body) = bulk.intake.finish(bulk.summary).await?;
        let response = FirstResponse {
            digest: bulk.rows.digest(),
            status: match incomplete {
                0 => complete,
                _ => StatusCode::MULTI_STATUS,
            },
            body: body.into(),
        };
        let reply = response.reply();
        if let Some(key) = key {
            key.finish(response);
        }
        Ok(reply)
    }

    /// Counts rows in metrics.
    fn count_rows(&self, outcome: &str, count: u64) {
        let rows = &self.inner.rows;
        rows.with_label_values(&[outcome]).inc_by(count);
    }
}

impl<I: Intake> Bulk<'_, I> {
    /// Passes all rows to the intake. On an error, some rows are already in the log.
    async fn read(&mut self) -> Result<(), Problem> {
        while self.rows.receive().await? {
            while let Some(row) = self.rows.next()? {
                if !row.is_empty()
                    && let Err(reason) = self.intake.row(row, &self.client)
                {
                    self.reject(reason);
                }
                if self.intake.is_full() || self.rows.count - self.charged == BATCH_ROWS_MAX {
                    self.append().await?;
                }
            }
            self.append().await?;
        }
        Ok(())
    }

    /// Receives the body without using it; returns its digest.
    async fn skip(&mut self) -> Result<u64, Problem> {
        while self.rows.receive().await? {
            while self.rows.next()?.is_some() {}
            yield_now().await;
        }
        Ok(self.rows.digest())
    }

    fn reject(&mut self, reason: RowError) {
        self.api.count_rows(reason, 1);
        self.summary.rejected += 1;
        if self.summary.errors.len() < ERRORS_MAX {
            let row = self.rows.count;
            self.summary.errors.push(ErrorRow { row, reason });
        } else {
            self.summary.errors_omitted += 1;
        }
    }

    /// Appends the collected rows, and then waits while the token exceeds its row rate.
    ///
    /// Appending precedes the wait because the age of a row was computed when it was read.
    async fn append(&mut self) -> Result<(), Problem> {
        let rows = self.rows.count - self.charged;
        let wait_max = self.rows.deadline.saturating_duration_since(Instant::now());
        let api = self.api;
        let wait = api.charge(&self.client, ROWS, rows.into(), wait_max)?;
        self.charged = self.rows.count;
        let [accepted, dropped] = self.intake.append()?;
        self.summary.accepted += accepted;
        self.summary.dropped += dropped;
        api.count_rows("accepted", accepted);
        api.count_rows("dropped", dropped);
        if wait.is_zero() {
            yield_now().await;
        } else {
            sleep(wait).await;
        }
        Ok(())
    }
}

/// Parses a row, which must be an object, because serde also accepts arrays.
pub(super) fn parse<'a, T: Deserialize<'a>>(row: &'a [u8]) -> Result<T, RowError> {
    if row.len() > ROW_BYTES_MAX || !row.starts_with(b"{") {
        return Err(MALFORMED);
    }
    serde_json::from_slice(row).map_err(|_| MALFORMED)
}

/// The time of a row: the client's time, or now if the client's time is in the future.
///
/// # Errors
/// [`TOO_OLD`] if it is older than the retention of deletions.
pub(super) fn time(now: UnixMicros, millis: u64) -> Result<UnixMicros, RowError> {
    let time = UnixMicros(millis.saturating_mul(1_000)).min(now);
    if now.since(time) > DELETION_HORIZON_MICROS {
        return Err(TOO_OLD);
    }
    Ok(time)
}
