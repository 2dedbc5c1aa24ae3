//! Client of the outbound limiter. If an application has a limit, each of its requests waits until the limiter
//! permits it.
//!
//! While the limiter is unavailable, no request is sent.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use http::StatusCode;
use runtime::{reload::Reloader, token};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use url::Url;

use crate::{
    client::{body, builder},
    engine::RETRY_PAUSE,
};

/// Timeout of a call; longer than the limiter delays a response.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum bytes of a response.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Maximum wait for a slot in one call.
const MAX_WAIT_SECONDS: u32 = 30;

/// Client of a limiter; clones share it.
#[derive(Debug, Clone)]
pub struct Limiter {
    url: Url,
    token: Option<Arc<Reloader<token::File>>>,
    http: reqwest::Client,
    /// Error of the last reservation, if it failed.
    error: watch::Sender<Option<String>>,
}

impl Limiter {
    /// A client of the limiter at this URL.
    ///
    /// # Errors
    /// When the HTTP client cannot be created.
    pub fn new(url: Url, token: Option<Arc<Reloader<token::File>>>) -> reqwest::Result<Self> {
        Ok(Self {
            url,
            token,
            http: builder().timeout(TIMEOUT).build()?,
            error: watch::Sender::default(),
        })
    }

    /// Whether the limiter is available.
    ///
    /// # Errors
    /// The error of the last reservation.
    pub fn state(&self) -> Result<String, String> {
        match &*self.error.borrow() {
            None => Ok("available, or not used yet".to_owned()),
            Some(error) => Err(format!("unavailable; limited requests wait: {error}")),
        }
    }

    /// Waits for a slot, without a timeout.
    pub async fn reserve(&self, counter: &str) {
        loop {
            let reserved = self.try_reserve(counter).await;
            let error = reserved.as_ref().err().map(|error| format!("{error:#}"));
            match (self.error.send_replace(error.clone()), error) {
                (None, Some(error)) => tracing::warn!(error, "limiter unavailable; requests wait"),
                (Some(_), None) => tracing::info!("limiter available again"),
                _ => {}
            }
            if let Ok(Some(wait)) = reserved {
                return sleep(wait).await;
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// The wait for a reserved slot; `None` if there is no slot within the maximum wait.
    async fn try_reserve(&self, counter: &str) -> Result<Option<Duration>> {
        let request = json!({ "wait": true, "max_wait": MAX_WAIT_SECONDS });
        let response = self.call(counter, "reserve", &request).await?;
        match response.status() {
            StatusCode::OK => {
                let body = body(response, RESPONSE_BYTES_MAX).await?;
                let body: Value = serde_json::from_slice(&body).context("invalid JSON")?;
                let wait = body["wait"].as_f64().unwrap_or(f64::NAN);
                let is_valid = (0.0..=f64::from(MAX_WAIT_SECONDS + 1)).contains(&wait);
                ensure!(is_valid, "the limiter returned an invalid wait of {wait} s");
                Ok(Some(Duration::from_secs_f64(wait)))
            }
            StatusCode::TOO_MANY_REQUESTS => Ok(None),
            status => bail!("reserve returned {status} for {counter}"),
        }
    }

    /// Reports to the limiter a response with this status after which the job pauses for some milliseconds.
    pub async fn feedback(&self, counter: &str, status: u16, pause: u64) {
        let seconds = pause.div_ceil(1_000).to_string();
        let body = json!({ "status": status, "retry_after": seconds });
        let result = self.call(counter, "feedback", &body).await;
        if let Err(error) = result.and_then(|it| Ok(it.error_for_status()?)) {
            tracing::debug!(%error, "failed to send feedback to the limiter");
        }
    }

    async fn call(
        &self,
        counter: &str,
        operation: &str,
        body: &Value,
    ) -> Result<reqwest::Response> {
        let (limit, counter) = counter.split_once('/').unwrap_or_default();
        let mut url = self.url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            let path = path.pop_if_empty();
            path.extend(["v1", "limits", limit, counter, operation]);
        }
        let mut request = self.http.post(url).json(body);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.current().first());
        }
        Ok(request.send().await.map_err(reqwest::Error::without_url)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::test_server::serve;

    #[tokio::test]
    async fn requests_wait_for_a_slot_and_responses_are_reported() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&calls);
        let respond = move |request: &str| {
            let mut calls = record.lock().unwrap();
            let path = request.split(' ').nth(1).unwrap().to_owned();
            calls.push(path + request.split_once("\r\n\r\n").unwrap().1);
            // The first wait is invalid.
            let wait = if calls.len() == 1 { "1e9" } else { "0.001" };
            let body = format!("{{\"wait\":{wait}}}");
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let (address, _tasks) = serve(None, respond).await;
        let counter = "partner/x y/z";
        let limiter = Limiter::new(format!("http://{address}").parse().unwrap(), None).unwrap();
        let error = limiter.try_reserve(counter).await.unwrap_err();
        assert!(error.to_string().contains("invalid wait"), "{error}");
        limiter.reserve(counter).await;
        assert!(limiter.state().is_ok());
        limiter.feedback(counter, 429, 29_001).await;
        let reserve = "/v1/limits/partner/x%20y%2Fz/reserve{\"max_wait\":30,\"wait\":true}";
        let feedback =
            "/v1/limits/partner/x%20y%2Fz/feedback{\"retry_after\":\"30\",\"status\":429}";
        assert_eq!(*calls.lock().unwrap(), [reserve, reserve, feedback]);
    }
}
