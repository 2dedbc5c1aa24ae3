//! `POST /v1/cookies`: bulk input of matches.
//!
//! A row is `{"u": user id, "d": DSP id, "b": buyer uid, "t": milliseconds since the Unix epoch}`; `t` is optional. Like a
//! browser's match, a row is subject to the contract and the limits of its DSP, and is appended to the log. Some kilobytes
//! of rows are appended under one lock. If a row has `t`, stores use this time to decide which match is newest. A row that
//! is older than the time for which nodes keep deletions is rejected, because it could restore a deleted cookie.

use std::{borrow::Cow, time::Instant};

use axum::extract::{Request, State};
use http::StatusCode;
use proto::{ids, limits::BUYER_UID_BYTES_MAX, units::DspId, wire::CookieRef};
use runtime::reply::Reply;
use serde::Deserialize;
use serde_json::json;

use super::{
    Api,
    bulk::{self, Intake, RowError, Summary},
    problem::{Problem, TOO_MANY, draining},
    tokens::{Client, WRITE},
};
use crate::{
    contracts::verdict::Verdict,
    dsps::{KnownDsps, Tally},
    log::AppendBatch,
};

/// A match in a row.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row<'a> {
    /// The user id.
    #[serde(borrow)]
    pub u: Cow<'a, str>,
    /// The DSP id.
    pub d: DspId,
    /// The buyer uid.
    #[serde(borrow)]
    pub b: Cow<'a, str>,
    /// When it was accepted, in milliseconds since the Unix epoch; `None` for now.
    pub t: Option<u64>,
}

impl<'a> Row<'a> {
    /// Parses a row and checks its ids.
    ///
    /// # Errors
    /// The reason, as in the response.
    pub fn parse(row: &'a [u8]) -> Result<Self, &'static str> {
        let row: Self = bulk::parse(row)?;
        if !ids::is_user_id(row.u.as_bytes()) {
            return Err(bulk::USER_INVALID);
        }
        if !row.d.is_valid() {
            return Err(bulk::DSP_INVALID);
        }
        if ids::check_buyer_uid(&row.b, BUYER_UID_BYTES_MAX).is_err() {
            return Err(bulk::BUYER_INVALID);
        }
        Ok(row)
    }
}

/// Handles a request.
pub(super) async fn add(State(api): State<Api>, request: Request) -> Reply {
    let intake = || {
        api.check_lag()?;
        Ok(Cookies {
            api: &api,
            known: api.inner.parts.dsps.known(),
            batch: AppendBatch::default(),
            tally: Tally::default(),
        })
    };
    api.bulk(request, intake).await
}

/// Puts cookies into the log.
struct Cookies<'a> {
    api: &'a Api,
    known: KnownDsps,
    batch: AppendBatch,
    /// Counts refusals in mode `observe`.
    tally: Tally,
}

impl Intake for Cookies<'_> {
    const PERMISSION: &'static str = WRITE;

    fn row(&mut self, row: &[u8], client: &Client) -> Result<(), RowError> {
        let row = Row::parse(row)?;
        if !client.permissions.may_use(row.d) {
            return Err(bulk::FORBIDDEN_DSP);
        }
        let contracts = self.known.contracts();
        let decision = contracts.decide(contracts.of(row.d), &row.b, None);
        let observed = match decision.verdict {
            Verdict::Refuse(rejection) => return Err(rejection.label()),
            Verdict::Record(observed) => observed,
        };
        let cookie = CookieRef {
            user_id: &row.u,
            dsp_id: row.d,
            buyer_uid: &row.b,
            age_micros: 0,
        };
        match row.t {
            None => self.batch.push(&cookie),
            Some(millis) => {
                let now = self.api.inner.parts.inlet.log().now();
                let accepted = bulk::time(now, millis)?;
                self.batch.push_accepted(&cookie, accepted, now);
            }
        }
        self.tally.note_observed(row.d, observed);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.batch.is_full() || self.tally.is_full()
    }

    fn append(&mut self) -> Result<[u64; 2], Problem> {
        let count = u64::from(self.batch.count());
        let parts = &self.api.inner.parts;
        let dropped = parts.inlet.append(&mut self.batch, Instant::now());
        let dropped = dropped.map_err(|_| draining())?;
        parts.dsps.add(&mut self.tally, &mut self.known);
        Ok([count - dropped, dropped])
    }

    async fn finish(self, summary: Summary) -> Result<(StatusCode, String), Problem> {
        Ok((StatusCode::OK, json!(summary).to_string()))
    }
}

impl Api {
    /// Rejects bulk requests while a node lags. Subscribers that confirm nothing do not count: they may read slowly.
    fn check_lag(&self) -> Result<(), Problem> {
        let parts = &self.inner.parts;
        let nodes = parts.subscribers.snapshot();
        let connected = nodes
            .iter()
            .filter(|node| node.connected && node.confirmed.is_some());
        let lags = parts.inlet.log().ages(connected.map(|node| node.position));
        let lag = lags.into_iter().max().unwrap_or_default();
        if lag <= parts.lag_max {
            return Ok(());
        }
        let detail = format!("the slowest node lags by {} s", lag.as_secs());
        Err(Problem::new(TOO_MANY, detail).retry_after(1 + lag.as_secs()))
    }
}
