//! `POST /v1/cookies`: matches in bulk.
//!
//! A row is `{"u": user id, "d": DSP id, "b": buyer uid, "t": milliseconds since the Unix epoch}`; `t` is optional. Rows
//! take the way of a browser's match, through the limits of their DSP into the log, some kilobytes under one lock. A row
//! with a time is ordered by it and never looks newer than it is. A row older than the horizon of deletions is rejected: it
//! might bring back what was deleted.

use std::{borrow::Cow, collections::BTreeMap, time::Instant};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use proto::{
    ids,
    limits::{BUYER_UID_BYTES_MAX, DELETION_HORIZON_MICROS},
    wire::CookieRef,
};
use serde::{Deserialize, Serialize};

use super::{
    Api,
    body::{self, Rows},
    idempotency::{Admission, Idempotency, respond},
    problem::{Kind, Problem},
    tokens::{Client, Right},
};
use crate::{edge::dsps::KnownDsps, log::AppendBatch};

/// Most row errors in a response.
const ERRORS_MAX: usize = 100;

/// A node that lags this far behind makes bulk requests wait.
const LAG_MAX: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<'a> {
    #[serde(borrow)]
    u: Cow<'a, str>,
    d: u32,
    #[serde(borrow)]
    b: Cow<'a, str>,
    t: Option<u64>,
}

/// Why a row is rejected; the value of the metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RowError {
    /// Not a JSON object of these keys, or too long.
    Malformed,
    UserInvalid,
    DspInvalid,
    BuyerInvalid,
    /// The token does not grant this DSP.
    ForbiddenDsp,
    /// The DSP is not listed in the settings.
    UnknownDsp,
    /// Older than the horizon of deletions.
    TooOld,
}

impl RowError {
    pub(super) const ALL: [Self; 7] = [
        Self::Malformed,
        Self::UserInvalid,
        Self::DspInvalid,
        Self::BuyerInvalid,
        Self::ForbiddenDsp,
        Self::UnknownDsp,
        Self::TooOld,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UserInvalid => "user_invalid",
            Self::DspInvalid => "dsp_invalid",
            Self::BuyerInvalid => "buyer_invalid",
            Self::ForbiddenDsp => "forbidden_dsp",
            Self::UnknownDsp => "unknown_dsp",
            Self::TooOld => "too_old",
        }
    }
}

/// The result of a bulk request.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) accepted: u64,
    pub(super) rejected: u64,
    pub(super) errors: Vec<ErrorRow>,
    #[serde(skip_serializing_if = "is_zero")]
    errors_omitted: u64,
    #[serde(skip)]
    by_reason: BTreeMap<RowError, u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorRow {
    row: u32,
    reason: RowError,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Summary {
    pub(super) fn reject(&mut self, row: u32, reason: RowError) {
        self.rejected += 1;
        *self.by_reason.entry(reason).or_default() += 1;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(ErrorRow { row, reason });
        } else {
            self.errors_omitted += 1;
        }
    }

    /// 200, or 207 when rows were rejected.
    pub(super) fn status(&self) -> StatusCode {
        if self.rejected == 0 {
            StatusCode::OK
        } else {
            StatusCode::MULTI_STATUS
        }
    }
}

/// Handles a request.
pub(super) async fn add(State(api): State<Api>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let client = api.authorize(&head.headers, Right::Write)?;
    api.check_open()?;
    body::check_headers(&head.headers)?;
    let pending = match Idempotency::admit(&api, &client, &head.headers)? {
        Admission::Repeated(response) => return Ok(response),
        Admission::New(pending) => pending,
    };
    api.inner.quotas.request(&client.name)?;
    api.check_lag()?;
    let (summary, read) = read(&api, &client, &head.headers, body).await;
    let rows = &api.inner.metrics.rows;
    rows.with_label_values(&["accepted"])
        .inc_by(summary.accepted);
    for (reason, count) in &summary.by_reason {
        rows.with_label_values(&[reason.label()]).inc_by(*count);
    }
    api.inner
        .quotas
        .rows(&client.name, summary.accepted + summary.rejected);
    // What was accepted stays.
    read.map_err(|problem| problem.with("accepted", summary.accepted))?;
    let status = summary.status();
    let body = Bytes::from(serde_json::to_vec(&summary).expect("numbers and names are JSON"));
    if let Some(pending) = pending {
        pending.finish(status, &body);
    }
    Ok(respond(status, body))
}

async fn read(
    api: &Api,
    client: &Client,
    headers: &http::HeaderMap,
    body: Body,
) -> (Summary, Result<(), Problem>) {
    let mut intake = Intake {
        api,
        client,
        known: api.inner.parts.dsps.known(),
        batch: AppendBatch::default(),
        summary: Summary::default(),
    };
    let read = body::read(headers, body, &mut intake).await;
    let appended = intake.append();
    (intake.summary, read.and(appended))
}

/// Puts rows into the log.
struct Intake<'a> {
    api: &'a Api,
    client: &'a Client,
    known: KnownDsps,
    batch: AppendBatch,
    summary: Summary,
}

impl Rows for Intake<'_> {
    fn row(&mut self, number: u32, row: Option<&[u8]>) -> Result<(), Problem> {
        match self.accept(row) {
            Ok(()) => Ok(()),
            Err(reason) => {
                self.summary.reject(number, reason);
                Ok(())
            }
        }?;
        if self.batch.is_full() {
            self.append()?;
        }
        Ok(())
    }
}

impl Intake<'_> {
    fn accept(&mut self, row: Option<&[u8]>) -> Result<(), RowError> {
        let row: Row<'_> = row
            .and_then(|row| serde_json::from_slice(row).ok())
            .ok_or(RowError::Malformed)?;
        if !ids::is_user_id(row.u.as_bytes()) {
            return Err(RowError::UserInvalid);
        }
        if !ids::is_dsp_id(row.d) {
            return Err(RowError::DspInvalid);
        }
        if ids::check_buyer_uid(&row.b, BUYER_UID_BYTES_MAX).is_err() {
            return Err(RowError::BuyerInvalid);
        }
        if !self.client.may_use(row.d) {
            return Err(RowError::ForbiddenDsp);
        }
        if self.known.rejects(row.d) {
            return Err(RowError::UnknownDsp);
        }
        let age_micros = match row.t {
            None => 0,
            Some(millis) => age(self.api.inner.parts.log.unix_micros(), millis)?,
        };
        self.batch.push(&CookieRef {
            user_id: &row.u,
            dsp_id: row.d,
            buyer_uid: &row.b,
            age_micros,
        });
        Ok(())
    }

    fn append(&mut self) -> Result<(), Problem> {
        let count = u64::from(self.batch.count());
        let parts = &self.api.inner.parts;
        let appended = match &parts.shaping {
            Some(shaping) => shaping.append(&mut self.batch, Instant::now()),
            None => parts.log.append(&mut self.batch),
        };
        appended.map_err(|_| Problem::draining())?;
        self.summary.accepted += count;
        Ok(())
    }
}

/// The age of a client's time, in microseconds. A time in the future counts as now.
///
/// # Errors
/// [`RowError::TooOld`] beyond the horizon of deletions.
pub(super) fn age(now_micros: u64, millis: u64) -> Result<u64, RowError> {
    let age = now_micros.saturating_sub(millis.saturating_mul(1_000));
    if age > DELETION_HORIZON_MICROS {
        return Err(RowError::TooOld);
    }
    Ok(age)
}

impl Api {
    /// Refuses bulk work while a node lags.
    fn check_lag(&self) -> Result<(), Problem> {
        let parts = &self.inner.parts;
        let nodes = parts.subscribers.snapshot();
        let connected = nodes.iter().filter(|node| node.connected);
        let lags = parts.log.ages(connected.map(|node| node.position));
        let lag = lags.into_iter().max().unwrap_or_default();
        if lag <= LAG_MAX {
            return Ok(());
        }
        let detail = format!("the slowest node is {} s behind", lag.as_secs());
        Err(Problem::new(Kind::NodesLag, detail).retry_after(LAG_MAX.as_secs()))
    }
}
