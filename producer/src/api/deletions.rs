//! Deletions: of a user, of a user at one DSP, of a DSP, and in bulk.
//!
//! A deletion is a record in the log. Its response comes when enough nodes have it durable, or after two seconds with
//! `"at_risk": true`: until a node has it, a crash of this producer loses it as it loses a match.

use std::{borrow::Cow, time::Duration};

use axum::{
    body::Bytes,
    extract::{Path, Request, State},
    response::Response,
};
use http::{HeaderMap, StatusCode, Uri};
use proto::ids;
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::timeout};

use super::{
    Api,
    body::{self, Rows},
    cookies::{RowError, Summary, age},
    idempotency::{Admission, Idempotency, respond},
    problem::{Kind, Problem},
    receipts::Receipt,
    tokens::{Client, Right},
};
use crate::log::{Deletion, Sequence};

/// How long a response waits for nodes.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Deletions that enter the log under one lock.
const PART: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<'a> {
    #[serde(borrow)]
    u: Cow<'a, str>,
    d: Option<u32>,
    t: Option<u64>,
}

#[derive(Serialize)]
struct Accepted {
    receipt: String,
    accepted_at: String,
    at_risk: bool,
    #[serde(flatten)]
    rows: Option<Summary>,
}

/// `DELETE /v1/users/{user}`
pub(super) async fn delete_user(
    State(api): State<Api>,
    Path(user): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    api.delete_one(&headers, "user", deletion(user, 0)).await
}

/// `DELETE /v1/users/{user}/dsps/{dsp}`
pub(super) async fn delete_pair(
    State(api): State<Api>,
    Path((user, dsp)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let dsp_id = parse_dsp(&dsp)?;
    api.delete_one(&headers, "pair", deletion(user, dsp_id))
        .await
}

/// `DELETE /v1/dsps/{dsp}?confirm={dsp}`
pub(super) async fn delete_dsp(
    State(api): State<Api>,
    Path(dsp): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let dsp_id = parse_dsp(&dsp)?;
    if uri.query() != Some(&*format!("confirm={dsp}")) {
        let detail =
            "this deletes all cookies of the DSP; to confirm it, add the query confirm=DSP";
        return Err(Problem::new(Kind::Invalid, detail));
    }
    api.delete_one(&headers, "dsp", deletion(String::new(), dsp_id))
        .await
}

/// `POST /v1/deletions`
pub(super) async fn delete_many(
    State(api): State<Api>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let client = api.authorize(&head.headers, Right::Delete)?;
    api.check_open()?;
    body::check_headers(&head.headers)?;
    let pending = match Idempotency::admit(&api, &client, &head.headers)? {
        Admission::Repeated(response) => return Ok(response),
        Admission::New(pending) => pending,
    };
    api.inner.quotas.request(&client.name)?;
    let mut intake = Intake {
        api: &api,
        client: &client,
        part: Vec::new(),
        appended: Vec::new(),
        summary: Summary::default(),
    };
    let read = body::read(&head.headers, body, &mut intake).await;
    let read = read.and(intake.append());
    let Intake {
        mut appended,
        summary,
        ..
    } = intake;
    api.inner
        .quotas
        .rows(&client.name, summary.accepted + summary.rejected);
    let deletions = &api.inner.parts.deletions;
    deletions
        .with_label_values(&["bulk"])
        .inc_by(summary.accepted);
    // What was accepted stays; without a receipt the client repeats all of it, which changes nothing.
    read.map_err(|problem| problem.with("accepted", summary.accepted))?;
    let last = appended.pop().ok_or_else(|| {
        let errors = serde_json::to_value(&summary.errors).unwrap_or_default();
        Problem::new(Kind::Invalid, "no row is a valid deletion").with("errors", errors)
    })?;
    let (last, mut first) = (in_log(last.0).await?, last.1);
    first = last + 1 - first;
    if let Some((sequence, count)) = appended.into_iter().next() {
        first = in_log(sequence).await? + 1 - count;
    }
    let status = match summary.rejected {
        0 => StatusCode::ACCEPTED,
        _ => StatusCode::MULTI_STATUS,
    };
    let body = api.accepted(first, last, Some(summary)).await;
    if let Some(pending) = pending {
        pending.finish(status, &body);
    }
    Ok(respond(status, body))
}

impl Api {
    async fn delete_one(
        &self,
        headers: &HeaderMap,
        scope: &str,
        deletion: Deletion,
    ) -> Result<Response, Problem> {
        let client = self.authorize(headers, Right::Delete)?;
        self.check_open()?;
        check(&deletion, &client).map_err(|error| match error {
            RowError::ForbiddenDsp => Problem::new(
                Kind::Forbidden,
                "the token does not grant all DSPs of this deletion",
            ),
            _ => Problem::new(
                Kind::Invalid,
                "a user id is 1 to 64 printable ASCII characters without space",
            ),
        })?;
        self.inner.quotas.request(&client.name)?;
        let appended = self.append_deletions(vec![deletion])?;
        let sequence = in_log(appended).await?;
        self.inner.parts.deletions.with_label_values(&[scope]).inc();
        let body = self.accepted(sequence, sequence, None).await;
        Ok(respond(StatusCode::ACCEPTED, body))
    }

    /// Puts deletions into the log, and drops what waits for limits of theirs.
    fn append_deletions(
        &self,
        deletions: Vec<Deletion>,
    ) -> Result<oneshot::Receiver<Sequence>, Problem> {
        let parts = &self.inner.parts;
        if let Some(shaping) = &parts.shaping {
            shaping.delete(&deletions);
        }
        parts
            .log
            .append_deletions(deletions)
            .map_err(|_| Problem::draining())
    }

    /// The body of a response to deletions with these sequences, once enough nodes have them.
    async fn accepted(&self, first: Sequence, last: Sequence, rows: Option<Summary>) -> Bytes {
        let (parts, need) = (&self.inner.parts, self.inner.config.deletions_need);
        let accepted_at = jiff::Timestamp::now().to_string();
        let receipt = Receipt {
            producer: parts.producer_id.clone(),
            epoch: parts.log.epoch(),
            first,
            last,
        };
        self.inner.unconfirmed.add(first, last);
        let durable = parts.subscribers.wait_durable(first, last, need);
        let at_risk = timeout(DURABLE_TIMEOUT, durable).await.is_err();
        if at_risk {
            self.inner.metrics.at_risk.inc();
        }
        let body = Accepted {
            receipt: receipt.to_string(),
            accepted_at,
            at_risk,
            rows,
        };
        Bytes::from(serde_json::to_vec(&body).expect("numbers and names are JSON"))
    }
}

/// Collects deletions into the log.
struct Intake<'a> {
    api: &'a Api,
    client: &'a Client,
    part: Vec<Deletion>,
    /// The parts that were handed to the log, and how many deletions each has.
    appended: Vec<(oneshot::Receiver<Sequence>, u64)>,
    summary: Summary,
}

impl Rows for Intake<'_> {
    fn row(&mut self, number: u32, row: Option<&[u8]>) -> Result<(), Problem> {
        match self.read(row) {
            Ok(deletion) => self.part.push(deletion),
            Err(reason) => self.summary.reject(number, reason),
        }
        if self.part.len() >= PART {
            self.append()?;
        }
        Ok(())
    }
}

impl Intake<'_> {
    fn read(&self, row: Option<&[u8]>) -> Result<Deletion, RowError> {
        let row: Row<'_> = row
            .and_then(|row| serde_json::from_slice(row).ok())
            .ok_or(RowError::Malformed)?;
        if row.d == Some(0) {
            return Err(RowError::DspInvalid);
        }
        let now = self.api.inner.parts.log.unix_micros();
        let until = row.t.map(|millis| age(now, millis)).transpose()?;
        let deletion = Deletion {
            until_unix_micros: until.map(|age| now - age),
            ..deletion(row.u.into_owned(), row.d.unwrap_or(0))
        };
        if deletion.user_id.is_empty() {
            return Err(RowError::UserInvalid);
        }
        check(&deletion, self.client)?;
        Ok(deletion)
    }

    fn append(&mut self) -> Result<(), Problem> {
        let part = std::mem::take(&mut self.part);
        let count = part.len() as u64;
        if count > 0 {
            let appended = self.api.append_deletions(part)?;
            self.appended.push((appended, count));
            self.summary.accepted += count;
        }
        Ok(())
    }
}

/// A deletion of all that was accepted until it enters the log.
fn deletion(user_id: String, dsp_id: u32) -> Deletion {
    Deletion {
        user_id,
        dsp_id,
        until_unix_micros: None,
    }
}

/// Checks the ids, and that the client may delete them. Only a deletion of a DSP has no user.
fn check(deletion: &Deletion, client: &Client) -> Result<(), RowError> {
    let is_of_dsp = deletion.user_id.is_empty() && deletion.dsp_id > 0;
    if !is_of_dsp && !ids::is_user_id(deletion.user_id.as_bytes()) {
        return Err(RowError::UserInvalid);
    }
    if !client.may_use(deletion.dsp_id) {
        return Err(RowError::ForbiddenDsp);
    }
    Ok(())
}

fn parse_dsp(text: &str) -> Result<u32, Problem> {
    let dsp_id = text.parse().ok().filter(|dsp_id| ids::is_dsp_id(*dsp_id));
    dsp_id.ok_or_else(|| Problem::new(Kind::Invalid, "a DSP id is a decimal from 1 to 4294967295"))
}

/// Waits until deletions are in the log.
async fn in_log(appended: oneshot::Receiver<Sequence>) -> Result<Sequence, Problem> {
    appended.await.map_err(|_| Problem::draining())
}
