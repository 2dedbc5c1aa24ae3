//! `Idempotency-Key`: a bulk request that is repeated with the same key and path within ten minutes gets the response to the first one.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{StatusCode, request::Parts};
use parking_lot::Mutex;
use runtime::reply::{Reply, content};

use super::{
    Api,
    problem::{CONFLICT, INVALID, Problem},
};

/// Time for which a response is kept.
const RETENTION: Duration = Duration::from_secs(600);

/// Maximum bytes of a client's stored responses: enough for thousands, or for hundreds with many row errors. Beyond it, the
/// oldest responses are dropped early.
pub(crate) const CLIENT_BYTES_MAX: usize = 1 << 20;

/// Bytes stored for a request with the longest key and path, without the body of its response.
const REQUEST_BYTES: usize = 256;

/// Maximum bytes of a key.
const KEY_BYTES_MAX: usize = 128;

/// The requests with an idempotency key, by client, oldest first.
pub(super) type Idempotency = Mutex<HashMap<String, Vec<KeyedRequest>>>;

#[derive(Debug)]
pub(super) struct KeyedRequest {
    /// Path and key.
    key: String,
    at: Instant,
    /// `None` while it is in progress.
    response: Option<FirstResponse>,
}

/// The response to the first request with a key.
#[derive(Debug, Clone)]
pub(super) struct FirstResponse {
    /// Digest of the body of the request.
    pub(super) digest: u64,
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// The key of a request. If this is dropped before [`finish`](Self::finish), clients can use the key again.
pub(super) struct Key {
    api: Api,
    client: String,
    key: String,
    /// The first response, if the request is a repetition.
    pub(super) first: Option<FirstResponse>,
}

impl FirstResponse {
    pub(super) fn reply(&self) -> Reply {
        content(self.status, "application/json", self.body.clone())
    }
}

impl KeyedRequest {
    fn bytes(&self) -> usize {
        let body = self.response.as_ref().map_or(0, |it| it.body.len());
        REQUEST_BYTES + self.key.len() + body
    }
}

impl Key {
    /// Looks up the key of a request; `None` if it has none.
    ///
    /// # Errors
    /// 400 for an invalid key, 409 while another request with the key is in progress.
    pub(super) fn admit(api: &Api, client: &str, head: &Parts) -> Result<Option<Self>, Problem> {
        let Some(key) = head.headers.get("idempotency-key") else {
            return Ok(None);
        };
        let key = key.to_str().ok();
        let key = key.filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
        let key = key.ok_or_else(|| {
            let detail = format!("Idempotency-Key: use 1 to {KEY_BYTES_MAX} ASCII characters");
            Problem::new(INVALID, detail)
        })?;
        let key = format!("{} {key}", head.uri.path());
        let mut all = api.inner.idempotency.lock();
        let requests = all.entry(client.to_owned()).or_default();
        requests.retain(|it| it.response.is_none() || it.at.elapsed() < RETENTION);
        let first = match requests.iter().find(|it| it.key == key) {
            Some(KeyedRequest { response: None, .. }) => {
                let detail = "a request with this Idempotency-Key is in progress";
                return Err(Problem::new(CONFLICT, detail).retry_after(1));
            }
            Some(first) => first.response.clone(),
            None => {
                requests.push(KeyedRequest {
                    key: key.clone(),
                    at: Instant::now(),
                    response: None,
                });
                None
            }
        };
        Ok(Some(Self {
            api: api.clone(),
            client: client.to_owned(),
            key,
            first,
        }))
    }

    /// Keeps the response.
    pub(super) fn finish(self, response: FirstResponse) {
        let mut all = self.api.inner.idempotency.lock();
        let requests = all.entry(self.client.clone()).or_default();
        if let Some(request) = requests.iter_mut().find(|it| it.key == self.key) {
            request.at = Instant::now();
            request.response = Some(response);
        }
        let mut bytes: usize = requests.iter().map(KeyedRequest::bytes).sum();
        requests.retain(|it| {
            let is_kept = bytes <= CLIENT_BYTES_MAX || it.response.is_none();
            bytes -= if is_kept { 0 } else { it.bytes() };
            is_kept
        });
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let mut all = self.api.inner.idempotency.lock();
        if let Some(requests) = all.get_mut(&self.client) {
            requests.retain(|it| it.response.is_some() || it.key != self.key);
        }
    }
}
