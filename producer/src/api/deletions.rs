//! Deletions: of a user, of a user at one DSP, of a DSP, and in bulk.
//!
//! A deletion is a record in the log. The response is sent when enough nodes have stored it durably, or after two
//! seconds with `"at_risk": true`. Before a node has stored it, a crash of this producer loses it, like a match.

use std::{borrow::Cow, time::Duration};

use axum::{
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
};
use http::{HeaderMap, StatusCode, Uri, request::Parts};
use proto::ids;
use runtime::reply::{Reply, json};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::timeout};

use super::{
    Api, body,
    bulk::{self, Intake, RowError, Summary},
    problem::{Early, FORBIDDEN, INVALID, Problem, draining},
    receipts::Receipt,
    tokens::{Client, Right},
};
use crate::log::{Deletion, Sequence};

/// Maximum time that a response waits for nodes.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of deletions appended to the log under one lock.
const BATCH_MAX: usize = 256;

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

/// What a path names.
#[derive(Deserialize)]
pub(super) struct Scope {
    user: Option<String>,
    dsp: Option<String>,
}

/// `DELETE /v1/users/{user}`, `DELETE /v1/users/{user}/dsps/{dsp}` and `DELETE /v1/dsps/{dsp}?confirm={dsp}`
pub(super) async fn delete_one(
    State(api): State<Api>,
    path: Result<Path<Scope>, PathRejection>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Reply, Early> {
    let client = api.admit(&headers, Right::Delete)?;
    let Path(path) = path?;
    let scope = match (&path.user, &path.dsp) {
        (Some(_), None) => "user",
        (Some(_), Some(_)) => "pair",
        _ => "dsp",
    };
    let dsp_id = path.dsp.as_deref().map(parse_dsp).transpose()?;
    let confirm = path.dsp.map(|dsp| format!("confirm={dsp}"));
    if scope == "dsp" && uri.query() != confirm.as_deref() {
        let detail =
            "this deletes all cookies of the DSP; to confirm it, add the query confirm=DSP";
        return Err(Problem::new(INVALID, detail).into());
    }
    let deletion = deletion(path.user.unwrap_or_default(), dsp_id.unwrap_or(0));
    check(&deletion, &client).map_err(|error| match error {
        bulk::FORBIDDEN_DSP => Problem::new(
            FORBIDDEN,
            "the token does not grant all DSPs of this deletion",
        ),
        _ => Problem::new(
            INVALID,
            "a user id is 1 to 64 printable ASCII characters without space",
        ),
    })?;
    let sequence = in_log(api.append_deletions(vec![deletion])?).await?;
    api.inner.parts.deletions.with_label_values(&[scope]).inc();
    let accepted = api.accepted(sequence, sequence, None).await;
    Ok(json(StatusCode::ACCEPTED, &accepted))
}

/// `POST /v1/deletions`
pub(super) async fn delete_many(State(api): State<Api>, request: Request) -> Result<Reply, Early> {
    let (head, mut body) = request.into_parts();
    let deleted = delete_all(&api, head, &mut body).await;
    body::discard_rest(deleted, body).await
}

async fn delete_all(api: &Api, head: Parts, body: &mut Body) -> Result<Reply, Early> {
    let bulk = api.admit_bulk(head, Right::Delete)?;
    let deletions = Deletions {
        api,
        part: Vec::new(),
        first: None,
        last: None,
    };
    // Without a receipt the client repeats all of it, which changes nothing.
    let (deletions, summary) = bulk.read(body, deletions).await?;
    let Some((first, count)) = deletions.first else {
        let errors = serde_json::to_value(&summary.errors).unwrap_or_default();
        let problem = Problem::new(INVALID, "no row is a valid deletion");
        return Err(problem.with("errors", errors).into());
    };
    let mut last = in_log(first).await?;
    let first = last + 1 - count;
    if let Some(appended) = deletions.last {
        last = in_log(appended).await?;
    }
    let status = summary.status(StatusCode::ACCEPTED);
    let accepted = api.accepted(first, last, Some(summary)).await;
    Ok(bulk.reply(status, &accepted))
}

impl Api {
    /// Appends deletions to the log, and drops queued cookies that they cover.
    fn append_deletions(
        &self,
        deletions: Vec<Deletion>,
    ) -> Result<oneshot::Receiver<Sequence>, Problem> {
        let parts = &self.inner.parts;
        if let Some(shaping) = &parts.shaping {
            shaping.delete(&deletions);
        }
        let appended = parts.log.append_deletions(deletions);
        appended.map_err(|_| draining())
    }

    /// The response to deletions with these sequences, once enough nodes have them.
    async fn accepted(&self, first: Sequence, last: Sequence, rows: Option<Summary>) -> Accepted {
        let parts = &self.inner.parts;
        let accepted_at = jiff::Timestamp::now().to_string();
        let receipt = Receipt {
            producer: parts.producer_id.clone(),
            epoch: parts.log.epoch(),
            first,
            last,
        };
        self.inner.unconfirmed.add(first, last);
        let need = parts.config.deletion_confirmations;
        let durable = parts.subscribers.wait_durable(first, last, need);
        let at_risk = timeout(DURABLE_TIMEOUT, durable).await.is_err();
        if at_risk {
            self.inner.metrics.at_risk.inc();
        }
        Accepted {
            receipt: receipt.to_string(),
            accepted_at,
            at_risk,
            rows,
        }
    }
}

/// Appends deletions to the log.
struct Deletions<'a> {
    api: &'a Api,
    part: Vec<Deletion>,
    /// The first part that was handed to the log, and how many deletions it has.
    first: Option<(oneshot::Receiver<Sequence>, u64)>,
    /// The last part after it.
    last: Option<oneshot::Receiver<Sequence>>,
}

impl Intake for Deletions<'_> {
    fn row(&mut self, row: &[u8], client: &Client) -> Result<(), RowError> {
        let row: Row<'_> = bulk::parse(row)?;
        if row.d == Some(0) {
            return Err(bulk::DSP_INVALID);
        }
        let now = self.api.inner.parts.log.unix_micros();
        let until = row.t.map(|millis| bulk::age(now, millis)).transpose()?;
        let deletion = Deletion {
            until_unix_micros: until.map(|age| now - age),
            ..deletion(row.u.into_owned(), row.d.unwrap_or(0))
        };
        if deletion.user_id.is_empty() {
            return Err(bulk::USER_INVALID);
        }
        check(&deletion, client)?;
        self.part.push(deletion);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.part.len() >= BATCH_MAX
    }

    fn append(&mut self) -> Result<u64, Problem> {
        let part = std::mem::take(&mut self.part);
        let count = part.len() as u64;
        if count > 0 {
            let appended = self.api.append_deletions(part)?;
            match self.first {
                None => self.first = Some((appended, count)),
                Some(_) => self.last = Some(appended),
            }
        }
        Ok(count)
    }

    fn count(&self, summary: &Summary) {
        let deletions = &self.api.inner.parts.deletions;
        let bulk = deletions.with_label_values(&["bulk"]);
        bulk.inc_by(summary.accepted);
    }
}

/// A deletion of all cookies accepted before the deletion is appended to the log.
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
        return Err(bulk::USER_INVALID);
    }
    if !client.permissions.may_use(deletion.dsp_id) {
        return Err(bulk::FORBIDDEN_DSP);
    }
    Ok(())
}

fn parse_dsp(text: &str) -> Result<u32, Problem> {
    let dsp_id = text.parse().ok().filter(|dsp_id| ids::is_dsp_id(*dsp_id));
    dsp_id.ok_or_else(|| Problem::new(INVALID, "a DSP id is a decimal from 1 to 4294967295"))
}

/// Waits until deletions are in the log.
async fn in_log(appended: oneshot::Receiver<Sequence>) -> Result<Sequence, Problem> {
    appended.await.map_err(|_| draining())
}
