//! `GET /v1/cookies`: the cookies of one DSP that were accepted before a given time, in pages, for clients with a token.
//!
//! A page consists of one JSON line per cookie, ordered by user id, and of a last line with the position of the next page. For a
//! page, the store reads up to [`PAGE_COOKIES_MAX`](crate::store::PAGE_COOKIES_MAX) cookies of the DSP. Only one page is read at a time, so that lookups are not delayed. Any
//! node with the same cookies can return the next page.
//!
//! Nodes that are being filled read pages of all DSPs' cookies, and of deletions, in the [format](crate::copy::protocol) of
//! streams. One of these is read at a time; further requests wait.
//!
//! The last line also contains the time `as_of`: this node has stored all cookies that the connected producers accepted before
//! it. While this time is unknown, the response is a 503.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use proto::{
    ids::is_user_id,
    units::{DspId, UnixMicros},
};
use runtime::{
    problem::Problem,
    reload::Reloader,
    reply::{Reply, content, json as json_reply},
    token,
};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::{
    clock,
    copy::protocol::{
        COOKIES_PATH, DELETIONS_PATH, FLOOR_HEADER, NEXT_HEADER, NODE_PATH, NodeState,
    },
    deletions::Deletions,
    producers::Producers,
    store::{Copies, Lookup, PageQuery},
};

/// The path.
pub const PATH: &str = "/v1/cookies";

/// Prefix of the paths for nodes that are being filled.
pub const COPY_PATHS: &str = "/v1/cookies/";

/// Subtracted from the time up to which the node is complete: clocks of nodes and producers may differ by almost this much.
const CLOCK_MARGIN_MICROS: u64 = 60_000_000;

/// Seconds after which a client should call again.
const RETRY_AFTER: u64 = 5;

runtime::problem_kinds! {
    INVALID BAD_REQUEST
    UNAUTHORIZED UNAUTHORIZED
    CLOSED NOT_FOUND
    BUSY TOO_MANY_REQUESTS
    INCOMPLETE SERVICE_UNAVAILABLE
}

/// The pages of one node.
#[derive(Debug)]
pub struct CookiePages {
    /// Tokens of clients; without them there are no pages.
    pub tokens: Option<Arc<Reloader<token::File>>>,
    /// The lookups of the store.
    pub lookup: Arc<dyn Lookup>,
    /// Deletions of cookies that the store may still have.
    pub deletions: Deletions,
    /// The producers, with the positions received from them.
    pub producers: Producers,
    /// The permit to read a page.
    pub one: Semaphore,
    /// The reads of nodes that are being filled, and their permit.
    pub copies: Arc<dyn Copies>,
    /// See [`copies`](Self::copies).
    pub one_copy: Semaphore,
    /// Random id of this process.
    pub process: u64,
}

impl CookiePages {
    /// The response to a request.
    pub async fn reply(&self, headers: &HeaderMap, uri: &Uri) -> Reply {
        let page = match uri.path() {
            PATH => self.page(headers, uri).await,
            path => self.copy(headers, path, uri).await,
        };
        page.unwrap_or_else(|problem| problem.reply())
    }

    fn authenticate(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let closed = "disabled; set --cookies-token-file";
        let tokens = self.tokens.as_ref();
        let tokens = tokens.ok_or_else(|| Problem::new(CLOSED, closed))?;
        let client = tokens.current().authenticate(headers);
        client.map_err(|error| Problem::new(UNAUTHORIZED, error.to_string()))?;
        Ok(())
    }

    /// A response to a node that is being filled.
    async fn copy(&self, headers: &HeaderMap, path: &str, uri: &Uri) -> Result<Reply, Problem> {
        self.authenticate(headers)?;
        let incomplete = |why: &str| Problem::new(INCOMPLETE, why).retry_after(RETRY_AFTER);
        if !self.producers.is_loaded() {
            return Err(incomplete("the store is not loaded yet"));
        }
        if path == NODE_PATH {
            let cookies = self.copies.approximate_cookies().await;
            return cookies
                .map(|cookies| json_reply(StatusCode::OK, &self.state(cookies)))
                .map_err(|error| incomplete(&format!("cannot read the store: {error}")));
        }
        if self.deletions.is_copying() {
            return Err(incomplete("the node is being filled from another"));
        }
        if let Some(dsp_id) = self.deletions.queued_dsps().first() {
            let why = format!("the retry queue contains cookies of DSP {dsp_id}");
            return Err(incomplete(&why));
        }
        let next = uri.query().unwrap_or_default().strip_prefix("next=");
        let next = percent_decode_str(next.unwrap_or_default()).decode_utf8();
        let next = next.map_err(|_| Problem::new(INVALID, "`next` is not UTF-8"))?;
        let permit = self.one_copy.acquire().await;
        let _one = permit.expect("the semaphore is never closed");
        let page = match path {
            COOKIES_PATH => self.copies.cookies_after(&next, &self.deletions).await,
            DELETIONS_PATH => self.copies.deletions_after(&next).await,
            _ => return Err(Problem::new(CLOSED, "unknown path")),
        };
        let page = page.map_err(|error| incomplete(&format!("cannot read the store: {error}")))?;
        let mut reply = content(StatusCode::OK, "application/octet-stream", page.chunks);
        // Read after the deletions: those that have left the store since are covered.
        let floor = HeaderValue::from(self.deletions.floor().0);
        reply.headers_mut().insert(FLOOR_HEADER, floor);
        if let Some(next) = page.next {
            let next = utf8_percent_encode(&next, NON_ALPHANUMERIC).to_string();
            let next = HeaderValue::try_from(next).expect("percent-encoded text is ASCII");
            reply.headers_mut().insert(NEXT_HEADER, next);
        }
        Ok(reply)
    }

    fn state(&self, cookies: u64) -> NodeState {
        let producers = self.producers.snapshot().producers.into_iter();
        let durable = producers.filter_map(|(id, it)| {
            let durable = it.durable?;
            Some((id.to_string(), (durable.epoch.0, durable.sequence.0)))
        });
        NodeState {
            process: self.process,
            order: self.copies.order().to_owned(),
            cookies,
            deletions: self.deletions.size().0,
            durable: durable.collect(),
        }
    }

    async fn page(&self, headers: &HeaderMap, uri: &Uri) -> Result<Reply, Problem> {
        self.authenticate(headers)?;
        let mut query = parse(uri.query().unwrap_or_default()).ok_or_else(|| {
            let detail = "use ?dsp=ID&before=MILLISECONDS, and &next=POSITION for further pages";
            Problem::new(INVALID, detail)
        })?;
        let _one = self.one.try_acquire().map_err(|_| {
            let detail = "another request is reading a page";
            Problem::new(BUSY, detail).retry_after(1)
        })?;
        let incomplete = |why: &str| Problem::new(INCOMPLETE, why).retry_after(RETRY_AFTER);
        // Determined before the store is read, so that the store has all cookies up to this time.
        let until = self.producers.complete_until();
        let until = until.ok_or_else(|| incomplete("not connected to all producers"))?;
        if self.deletions.is_queued(query.dsp_id) {
            return Err(incomplete("the retry queue contains cookies of the DSP"));
        }
        let as_of = until.min(clock::now()).before(CLOCK_MARGIN_MICROS);
        query.before = query.before.min(as_of);
        let page = self.lookup.page(&query, &self.deletions).await;
        let page = page.map_err(|error| incomplete(&format!("cannot read the store: {error}")))?;
        let mut body = String::new();
        for (user_id, buyer_uid, accepted) in &page.cookies {
            body += &format!(
                "{}\n",
                json!({"u": user_id, "b": buyer_uid, "t": accepted.0 / 1000})
            );
        }
        body += &format!("{}\n", json!({"next": page.next, "as_of": as_of.0 / 1000}));
        Ok(content(StatusCode::OK, "application/x-ndjson", body))
    }
}

fn parse(query: &str) -> Option<PageQuery> {
    let (mut dsp_id, mut before, mut after_user) = (None, None, None);
    for part in query.split('&') {
        match part.split_once('=')? {
            ("dsp", value) => dsp_id = Some(value.parse().ok().filter(|id: &DspId| id.is_valid())?),
            ("before", value) => {
                before = Some(UnixMicros(value.parse::<u64>().ok()?.saturating_mul(1000)));
            }
            ("next", value) => {
                let user = percent_decode_str(value).decode_utf8().ok()?;
                after_user = Some(is_user_id(user.as_bytes()).then(|| user.into_owned())?);
            }
            _ => return None,
        }
    }
    Some(PageQuery {
        dsp_id: dsp_id?,
        before: before?,
        after_user: after_user.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
