//! `POST /v1/cookies`: bulk input of matches.
//!
//! A row is `{"u": user id, "d": DSP id, "b": buyer uid, "t": milliseconds since the Unix epoch}`; `t` is optional. Rows
//! take the way of a browser's match, through the limits of their DSP into the log, some kilobytes under one lock. A row
//! with a time is ordered by it. Its age is computed when it is read, so it enters the log before more of the body is awaited:
//! otherwise it would look newer than it is. A row older than the horizon of deletions is rejected: it might bring back what
//! was deleted.

use std::{borrow::Cow, time::Instant};

use axum::{
    body::Body,
    extract::{Request, State},
};
use http::{StatusCode, request::Parts};
use proto::{ids, limits::BUYER_UID_BYTES_MAX, wire::CookieRef};
use runtime::reply::Reply;
use serde::Deserialize;

use super::{
    Api, body,
    bulk::{self, Intake, RowError, Summary},
    problem::{Early, NODES_LAG, Problem, draining},
    tokens::{Client, Right},
};
use crate::{edge::dsps::KnownDsps, log::AppendBatch, streams::subscribers::Call};

/// Maximum lag of a node. Beyond it, bulk requests are rejected.
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

/// Handles a request.
pub(super) async fn add(State(api): State<Api>, request: Request) -> Result<Reply, Early> {
    let (head, mut body) = request.into_parts();
    let added = add_all(&api, head, &mut body).await;
    body::discard_rest(added, body).await
}

async fn add_all(api: &Api, head: Parts, body: &mut Body) -> Result<Reply, Early> {
    let bulk = api.admit_bulk(head, Right::Write)?;
    api.check_lag()?;
    let cookies = Cookies {
        api,
        known: api.inner.parts.dsps.known(),
        batch: AppendBatch::default(),
    };
    let (_, summary) = bulk.read(body, cookies).await?;
    Ok(bulk.reply(summary.status(StatusCode::OK), &summary))
}

/// Puts cookies into the log.
struct Cookies<'a> {
    api: &'a Api,
    known: KnownDsps,
    batch: AppendBatch,
}

impl Intake for Cookies<'_> {
    fn row(&mut self, row: &[u8], client: &Client) -> Result<(), RowError> {
        let row: Row<'_> = bulk::parse(row)?;
        if !ids::is_user_id(row.u.as_bytes()) {
            return Err(bulk::USER_INVALID);
        }
        if !ids::is_dsp_id(row.d) {
            return Err(bulk::DSP_INVALID);
        }
        if ids::check_buyer_uid(&row.b, BUYER_UID_BYTES_MAX).is_err() {
            return Err(bulk::BUYER_INVALID);
        }
        if !client.permissions.may_use(row.d) {
            return Err(bulk::FORBIDDEN_DSP);
        }
        if self.known.rejects(row.d) {
            return Err(bulk::UNKNOWN_DSP);
        }
        let age_micros = match row.t {
            None => 0,
            Some(millis) => bulk::age(self.api.inner.parts.log.unix_micros(), millis)?,
        };
        self.batch.push(&CookieRef {
            user_id: &row.u,
            dsp_id: row.d,
            buyer_uid: &row.b,
            age_micros,
        });
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    fn append(&mut self) -> Result<u64, Problem> {
        let count = u64::from(self.batch.count());
        let parts = &self.api.inner.parts;
        let appended = match &parts.shaping {
            Some(shaping) => shaping.append(&mut self.batch, Instant::now()),
            None => parts.log.append(&mut self.batch),
        };
        appended.map_err(|_| draining())?;
        Ok(count)
    }

    fn count(&self, summary: &Summary) {
        let rows = |outcome| self.api.inner.metrics.rows.with_label_values(&[outcome]);
        rows("accepted").inc_by(summary.accepted);
        for (reason, count) in &summary.by_reason {
            rows(reason).inc_by(*count);
        }
    }
}

impl Api {
    /// Rejects bulk requests while a node lags. Clients of `GetCookies` do not count: they may read as slowly as they like.
    fn check_lag(&self) -> Result<(), Problem> {
        let parts = &self.inner.parts;
        let nodes = parts.subscribers.snapshot();
        let connected = nodes
            .iter()
            .filter(|node| node.connected && node.call == Call::Subscribe);
        let lags = parts.log.ages(connected.map(|node| node.position));
        let lag = lags.into_iter().max().unwrap_or_default();
        if lag <= LAG_MAX {
            return Ok(());
        }
        let detail = format!("the slowest node is {} s behind", lag.as_secs());
        Err(Problem::new(NODES_LAG, detail).retry_after(LAG_MAX.as_secs()))
    }
}
