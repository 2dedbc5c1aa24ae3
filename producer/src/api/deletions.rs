//! API requests that delete a user's cookies at one DSP or all DSPs, or all cookies of a DSP, one by one or in bulk.
//!
//! A deletion is a record in the log. The response is sent when enough nodes have stored it durably, or after two seconds
//! with `"at_risk": true`. Like a match, a deletion is lost if this producer crashes before a node has stored it.

use std::{borrow::Cow, num::NonZeroU32, time::Duration};

use axum::extract::{Path, Request, State, rejection::PathRejection};
use http::{HeaderMap, StatusCode, Uri};
use proto::{
    ids,
    units::{DspId, Sequence},
    wire::Scope,
};
use runtime::reply::{self, Reply};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::timeout};

use super::{
    Api,
    bulk::{self, Intake, RowError, Summary},
    problem::{FORBIDDEN, INVALID, Problem, draining, invalid_path},
    receipts::receipt,
    tokens::{Client, DELETE},
};
use crate::log::Deletion;

/// Maximum time that a response waits for nodes.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<'a> {
    #[serde(borrow)]
    u: Cow<'a, str>,
    d: Option<DspId>,
    t: Option<u64>,
}

/// Parameters of a path.
#[derive(Deserialize)]
pub(super) struct Ids {
    user: Option<String>,
    dsp: Option<NonZeroU32>,
}

/// `DELETE /v1/users/{user}`, `DELETE /v1/users/{user}/dsps/{dsp}` and `DELETE /v1/dsps/{dsp}?confirm={dsp}`
pub(super) async fn delete_one(
    State(api): State<Api>,
    path: Result<Path<Ids>, PathRejection>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Reply, Problem> {
    let client = api.admit(&headers, DELETE)?;
    let Path(Ids { user, dsp }) = path.map_err(invalid_path)?;
    let scope = match (&user, dsp) {
        (Some(_), None) => "user",
        (Some(_), Some(_)) => "pair",
        _ => "dsp",
    };
    let dsp_id = dsp.map_or(DspId::NONE, |dsp| DspId(dsp.get()));
    if scope == "dsp" && uri.query() != Some(&*format!("confirm={dsp_id}")) {
        let detail = "this deletes all cookies of the DSP: to confirm, add the id of the DSP to the query, as confirm=ID";
        return Err(Problem::new(INVALID, detail));
    }
    if user
        .as_ref()
        .is_some_and(|user| !ids::is_user_id(user.as_bytes()))
    {
        let detail = "invalid user id: use 1 to 64 printable ASCII characters without spaces";
        return Err(Problem::new(INVALID, detail));
    }
    if !client.permissions.may_use(dsp_id) {
        let detail = "the token does not grant access to all DSPs of this deletion";
        return Err(Problem::new(FORBIDDEN, detail));
    }
    let deletion = Deletion {
        scope: Scope::from_ids(user.unwrap_or_default(), dsp_id),
        until: None,
    };
    let sequence = in_log(api.delete(vec![deletion], scope)?).await?;
    let accepted = api.accepted(sequence, sequence, json!({})).await;
    Ok(reply::json(StatusCode::ACCEPTED, &accepted))
}

/// `POST /v1/deletions`
pub(super) async fn delete_many(State(api): State<Api>, request: Request) -> Reply {
    let intake = || {
        Ok(Deletions {
            api: &api,
            part: Vec::new(),
            first: None,
            last: None,
        })
    };
    api.bulk(request, intake).await
}

impl Api {
    fn delete(
        &self,
        deletions: Vec<Deletion>,
        scope: &'static str,
    ) -> Result<oneshot::Receiver<Sequence>, Problem> {
        let deleted = self.inner.parts.inlet.delete(deletions, scope);
        deleted.map_err(|_| draining())
    }

    /// Adds the receipt of deletions with these sequence numbers to a response, once enough nodes have stored them.
    async fn accepted(&self, first: Sequence, last: Sequence, mut response: Value) -> Value {
        let parts = &self.inner.parts;
        response["accepted_at"] = jiff::Timestamp::now().to_string().into();
        let need = parts.limits.deletion_confirmations;
        let durable = parts.subscribers.wait_durable(first, last, need);
        let at_risk = timeout(DURABLE_TIMEOUT, durable).await.is_err();
        if at_risk {
            self.inner.at_risk.inc();
        }
        response["at_risk"] = at_risk.into();
        response["receipt"] = receipt(parts, first, last).into();
        response
    }
}

/// Appends deletions to the log.
struct Deletions<'a> {
    api: &'a Api,
    part: Vec<Deletion>,
    /// The first batch that was handed to the log, and its number of deletions.
    first: Option<(oneshot::Receiver<Sequence>, u64)>,
    /// The last batch, if there are several.
    last: Option<oneshot::Receiver<Sequence>>,
}

impl Intake for Deletions<'_> {
    const PERMISSION: &'static str = DELETE;

    fn row(&mut self, row: &[u8], client: &Client) -> Result<(), RowError> {
        let row: Row<'_> = bulk::parse(row)?;
        let dsp_id = row.d.unwrap_or(DspId::NONE);
        if !ids::is_user_id(row.u.as_bytes()) {
            return Err(bulk::USER_INVALID);
        }
        if row.d == Some(DspId::NONE) {
            return Err(bulk::DSP_INVALID);
        }
        if !client.permissions.may_use(dsp_id) {
            return Err(bulk::FORBIDDEN_DSP);
        }
        let now = self.api.inner.parts.inlet.log().now();
        let until = row.t.map(|millis| bulk::time(now, millis));
        self.part.push(Deletion {
            scope: Scope::from_ids(row.u.into_owned(), dsp_id),
            until: until.transpose()?,
        });
        Ok(())
    }

    fn append(&mut self) -> Result<[u64; 2], Problem> {
        let part = std::mem::take(&mut self.part);
        let count = part.len() as u64;
        if count > 0 {
            let appended = self.api.delete(part, "bulk")?;
            match self.first {
                None => self.first = Some((appended, count)),
                Some(_) => self.last = Some(appended),
            }
        }
        Ok([count, 0])
    }

    /// A client that gets no receipt repeats the request, which changes nothing.
    async fn finish(self, summary: Summary) -> Result<(StatusCode, String), Problem> {
        let Some((first, count)) = self.first else {
            let problem = Problem::new(INVALID, "no row is a valid deletion");
            let problem = problem.with("errors_omitted", summary.errors_omitted);
            return Err(problem.with("errors", json!(summary.errors)));
        };
        let mut last = in_log(first).await?;
        let first = last + 1 - count;
        if let Some(appended) = self.last {
            last = in_log(appended).await?;
        }
        let response = self.api.accepted(first, last, json!(summary)).await;
        Ok((StatusCode::ACCEPTED, response.to_string()))
    }
}

/// Waits until deletions are in the log.
async fn in_log(appended: oneshot::Receiver<Sequence>) -> Result<Sequence, Problem> {
    appended.await.map_err(|_| draining())
}
