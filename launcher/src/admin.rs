//! Small questions over HTTP: to a process's admin port, and one sync at a time.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    http::{Answer, HttpClient},
    ledger,
    scrape::Samples,
};

/// GETs one path over a connection of its own.
///
/// # Errors
/// When no whole answer comes in time.
pub async fn get(address: &str, path_and_query: &str) -> Result<Answer> {
    HttpClient::connect(address)
        .await?
        .get(path_and_query, &[])
        .await
}

/// What the process with this admin port says at `/readyz`: `Ok` when it is ready, otherwise why not, as `part: why`, one
/// line for each part.
///
/// # Errors
/// When it does not answer, or not as it should.
pub async fn readiness(address: &str) -> Result<Result<(), String>> {
    let answer = get(address, "/readyz").await?;
    let said: Value = serde_json::from_str(&answer.body)
        .with_context(|| format!("http://{address}/readyz says {:?}", answer.body))?;
    let reasons = said["reasons"].as_array().into_iter().flatten();
    let reasons = reasons.map(|it| [&it["part"], &it["why"]].map(|it| it.as_str().unwrap_or("?")));
    let reasons: Vec<_> = reasons.map(|reason| reason.join(": ")).collect();
    match (answer.status, reasons.is_empty()) {
        (200, true) => Ok(Ok(())),
        (503, false) => Ok(Err(reasons.join("\n"))),
        (status, _) => bail!("http://{address}/readyz says {status} with {said}"),
    }
}

/// PUTs `body` to one path over a connection of its own.
///
/// # Errors
/// When no whole answer comes in time.
pub async fn put(address: &str, path: &str, body: &str) -> Result<Answer> {
    HttpClient::connect(address).await?.put(path, body).await
}

/// Sends one sync request to the edge at `address`. The ids go into the request as they are.
///
/// # Errors
/// When no whole answer comes in time.
pub async fn sync(address: &str, user_id: &str, dsp_id: u32, buyer_uid: &str) -> Result<Answer> {
    HttpClient::connect(address)
        .await?
        .get(
            &format!("/?d={dsp_id}&b={buyer_uid}"),
            &[("Cookie", &format!("uid={user_id}"))],
        )
        .await
}

/// The metrics of the process with this admin port, whose ledger balances.
///
/// # Errors
/// When it does not answer, or a [`ledger`] in it does not add up.
pub async fn metrics(address: &str) -> Result<Samples> {
    let answer = get(address, "/metrics").await?;
    if answer.status != 200 {
        bail!("http://{address}/metrics answers {}", answer.status);
    }
    let samples = Samples::parse(&answer.body);
    ledger::check(&samples).with_context(|| format!("http://{address}/metrics"))?;
    Ok(samples)
}
