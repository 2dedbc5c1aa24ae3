//! Slots of the outbound limiter: each request of an application with a limit waits for one.
//!
//! While the limiter is unavailable, no request is sent.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use runtime::{reload::Reloader, token};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{sleep, sleep_until},
};
use url::Url;

use crate::{apps::App, origin, outcome::Response};

/// Longer than the limiter holds a reservation.
const TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum wait for a slot in one call.
const MAX_WAIT_SECONDS: u32 = 30;

/// A counter of the limiter: the path of its operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter(String);

impl Counter {
    /// Parses `LIMIT/COUNTER`.
    ///
    /// # Errors
    /// When a part is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once('/')
            .filter(|it| !it.0.is_empty() && !it.1.is_empty());
        let (limit, counter) = parts.ok_or_else(|| format!("{text:?} is not LIMIT/COUNTER"))?;
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        Ok(Self(format!(
            "/v1/limits/{}/{}",
            encoded(limit),
            encoded(counter)
        )))
    }
}

/// Client of a limiter; clones share it.
#[derive(Debug, Clone)]
pub struct Limiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    url: Url,
    token: Option<Arc<Reloader<token::File>>>,
    http: reqwest::Client,
    /// Why it is unavailable.
    error: watch::Sender<Option<String>>,
}

/// A response to `reserve`.
#[derive(Debug, Deserialize)]
struct Slot {
    wait: f64,
}

impl Limiter {
    /// A client of the limiter at this URL.
    ///
    /// # Errors
    /// When the HTTP client cannot be created.
    pub fn new(url: Url, token: Option<Arc<Reloader<token::File>>>) -> Result<Self> {
        let http = origin::builder()
            .timeout(TIMEOUT)
            .build()
            .context("HTTP client")?;
        Ok(Self(Arc::new(Inner {
            url,
            token,
            http,
            error: watch::Sender::default(),
        })))
    }

    /// Whether the limiter is available.
    ///
    /// # Errors
    /// The error of the last reservation.
    pub fn state(&self) -> Result<String, String> {
        match &*self.0.error.borrow() {
            None => Ok("available".to_owned()),
            Some(error) => Err(format!(
                "unavailable, so no limited request is sent: {error}"
            )),
        }
    }

    /// Waits for a slot, as long as it takes.
    pub async fn reserve(&self, counter: &Counter) {
        let body = json!({ "wait": true, "max_wait": MAX_WAIT_SECONDS });
        loop {
            match self.try_reserve(counter, &body).await {
                Ok(wait) => {
                    if self.0.error.send_replace(None).is_some() {
                        tracing::info!("limiter is available again");
                    }
                    sleep(wait.unwrap_or_default()).await;
                    if wait.is_some() {
                        return;
                    }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    let before = self.0.error.send_replace(Some(error.clone()));
                    if before.is_none() {
                        tracing::warn!(error, "limiter is unavailable; requests wait");
                    }
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// The wait for a reserved slot; `None` if there is no slot within the maximum wait.
    async fn try_reserve(&self, counter: &Counter, body: &Value) -> Result<Option<Duration>> {
        let response = self.call(counter, "reserve", body).await?;
        match response.status() {
            StatusCode::OK => {
                let slot: Slot = response.json().await.context("reserve")?;
                let wait = Duration::try_from_secs_f64(slot.wait);
                Ok(Some(wait.context("reserve")?))
            }
            StatusCode::TOO_MANY_REQUESTS => Ok(None),
            status => bail!("{}/reserve returned {status}", counter.0),
        }
    }

    /// Reports a response that demands fewer requests.
    pub async fn feedback(&self, counter: &Counter, response: &Response) {
        let body = json!({ "status": response.status, "retry_after": response.retry_after });
        let result = self.call(counter, "feedback", &body).await;
        if let Err(error) = result.and_then(|it| Ok(it.error_for_status()?)) {
            tracing::debug!(%error, "failed to send feedback to the limiter");
        }
    }

    async fn call(
        &self,
        counter: &Counter,
        operation: &str,
        body: &Value,
    ) -> Result<reqwest::Response> {
        let url = self.0.url.join(&format!("{}/{operation}", counter.0))?;
        let mut request = self.0.http.post(url).json(body);
        if let Some(token) = &self.0.token {
            request = request.bearer_auth(token.current().first());
        }
        request.send().await.map_err(|error| anyhow!("{error:#}"))
    }
}

/// Waits until a request of the application may be sent.
pub async fn wait_for_slot(limiter: Option<&Limiter>, app: &App) {
    loop {
        if let Some(until) = app.throttled_until() {
            sleep_until(until).await;
            continue;
        }
        if let (Some(limiter), Some(counter)) = (limiter, &app.limit) {
            limiter.reserve(counter).await;
        }
        if app.throttled_until().is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_has_two_parts() {
        let counter = Counter::parse("dsp-17/revalidator/x").unwrap();
        assert_eq!(counter.0, "/v1/limits/dsp%2D17/revalidator%2Fx");
        for text in ["", "x", "/x", "x/"] {
            assert!(Counter::parse(text).is_err(), "{text}");
        }
    }
}
