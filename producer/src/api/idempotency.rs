//! `Idempotency-Key`: a repeated bulk request gets the response of the first one, for ten minutes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use super::{
    problem::{Kind, Problem},
    tokens::Client,
};

/// How long a response is kept.
const KEPT: Duration = Duration::from_secs(600);

/// Most responses that are kept; beyond them the oldest is dropped. With [`RESPONSE_BYTES_MAX`], at most 80 MiB.
const KEPT_MAX: usize = 10_000;

/// Largest response of a bulk request: a hundred row errors.
const RESPONSE_BYTES_MAX: usize = 8 * 1024;

/// Most bytes of a key.
const KEY_BYTES_MAX: usize = 128;

type Key = (String, String);

/// The responses by client and key.
#[derive(Debug, Default)]
pub(super) struct Idempotency {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// `None` while the request is in progress.
    responses: HashMap<Key, Option<(StatusCode, Bytes)>>,
    by_age: VecDeque<(Instant, Key)>,
}

/// What to do with a request.
pub(super) enum Admission {
    /// It is new. Its response is to be [finished](Pending::finish) if it should be kept.
    New(Option<Pending>),
    /// The response of the first request with this key.
    Repeated(Response),
}

/// The key of a request in progress. Dropped before it is finished, the key is free again.
pub(super) struct Pending {
    key: Option<Key>,
    api: super::Api,
}

impl Idempotency {
    /// Looks up the key of a request, if it has one.
    ///
    /// # Errors
    /// 400 for an invalid key, 409 while another request with the key is in progress.
    pub(super) fn admit(
        api: &super::Api,
        client: &Client,
        headers: &HeaderMap,
    ) -> Result<Admission, Problem> {
        let Some(key) = headers.get("idempotency-key") else {
            return Ok(Admission::New(None));
        };
        let key = key
            .to_str()
            .ok()
            .filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
        let key = key.ok_or_else(|| {
            let detail = format!("Idempotency-Key: expected 1 to {KEY_BYTES_MAX} ASCII characters");
            Problem::new(Kind::Invalid, detail)
        })?;
        let key = (client.name.clone(), key.to_owned());
        let mut kept = api.inner.idempotency.kept();
        kept.expire(Instant::now());
        match kept.responses.get(&key) {
            Some(Some((status, body))) => Ok(Admission::Repeated(respond(*status, body.clone()))),
            Some(None) => Err(Problem::new(Kind::Conflict, "retry later").retry_after(1)),
            None => {
                kept.responses.insert(key.clone(), None);
                Ok(Admission::New(Some(Pending {
                    key: Some(key),
                    api: api.clone(),
                })))
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Keeps the response.
    pub(super) fn finish(mut self, status: StatusCode, body: &Bytes) {
        if body.len() > RESPONSE_BYTES_MAX {
            return;
        }
        if let Some(key) = self.key.take() {
            let mut kept = self.api.inner.idempotency.kept();
            kept.responses
                .insert(key.clone(), Some((status, body.clone())));
            kept.by_age.push_back((Instant::now(), key));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.api.inner.idempotency.kept().responses.remove(&key);
        }
    }
}

impl Kept {
    fn expire(&mut self, now: Instant) {
        while let Some((at, _)) = self.by_age.front()
            && (self.by_age.len() > KEPT_MAX || now.saturating_duration_since(*at) >= KEPT)
        {
            if let Some((_, key)) = self.by_age.pop_front() {
                self.responses.remove(&key);
            }
        }
    }
}

/// A response in JSON.
pub(super) fn respond(status: StatusCode, body: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
