//! `Idempotency-Key`: a bulk request that is repeated at the same path gets the response of the first one, for ten minutes.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use http::request::Parts;
use http_body::Body as _;
use runtime::reply::Reply;

use super::{
    Api,
    problem::{CONFLICT, Early, INVALID, Problem},
    tokens::Client,
};

/// Time for which a response is kept.
const RETENTION: Duration = Duration::from_secs(600);

/// Most responses that are kept; beyond them none is. With [`RESPONSE_BYTES_MAX`], at most 80 MiB.
const RESPONSES_MAX: usize = 10_000;

/// Maximum bytes of a kept response: more than a hundred row errors take.
const RESPONSE_BYTES_MAX: u64 = 8 * 1024;

/// Maximum bytes of a key.
const KEY_BYTES_MAX: usize = 128;

/// Client, path and key.
type Key = (String, String, String);

/// The responses by key.
#[derive(Debug, Default)]
pub(super) struct Idempotency(Mutex<HashMap<Key, Kept>>);

/// When a response was sent, and what it was.
#[derive(Debug)]
enum Kept {
    InProgress,
    Reply(Instant, Reply),
}

/// The key of a request in progress. If it is dropped before [`finish`](Self::finish), the key can be used again.
pub(super) struct Pending {
    key: Option<Key>,
    api: Api,
}

impl Idempotency {
    fn kept(&self) -> MutexGuard<'_, HashMap<Key, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Looks up the key of a request; `None` if it has none.
    ///
    /// # Errors
    /// The response of the first request with this key; 400 for an invalid key, 409 while another request with the key is in
    /// progress.
    pub(super) fn admit(api: &Api, client: &Client, head: &Parts) -> Result<Option<Self>, Early> {
        let Some(key) = head.headers.get("idempotency-key") else {
            return Ok(None);
        };
        let key = key.to_str().ok();
        let key = key.filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
        let key = key.ok_or_else(|| {
            let detail = format!("Idempotency-Key: expected 1 to {KEY_BYTES_MAX} ASCII characters");
            Problem::new(INVALID, detail)
        })?;
        let path = head.uri.path().to_owned();
        let key = (client.name.clone(), path, key.to_owned());
        let mut kept = api.inner.idempotency.kept();
        kept.retain(|_, kept| match kept {
            Kept::InProgress => true,
            Kept::Reply(at, _) => at.elapsed() < RETENTION,
        });
        match kept.get(&key) {
            Some(Kept::Reply(_, reply)) => Err(reply.clone().into()),
            Some(Kept::InProgress) => {
                Err(Problem::new(CONFLICT, "retry later").retry_after(1).into())
            }
            None => {
                kept.insert(key.clone(), Kept::InProgress);
                Ok(Some(Self {
                    key: Some(key),
                    api: api.clone(),
                }))
            }
        }
    }

    /// Keeps the response, if there is capacity.
    pub(super) fn finish(mut self, reply: &Reply) {
        let mut kept = self.api.inner.idempotency.kept();
        if reply.body().size_hint().lower() <= RESPONSE_BYTES_MAX
            && kept.len() <= RESPONSES_MAX
            && let Some(key) = self.key.take()
        {
            kept.insert(key, Kept::Reply(Instant::now(), reply.clone()));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.api.inner.idempotency.kept().remove(&key);
        }
    }
}
