//! Sends single HTTP requests: queries to admin ports, and sync requests.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    http::{HttpClient, Response},
    ledger,
    scrape::Samples,
};

/// GETs one path over a new connection.
///
/// # Errors
/// If no complete response arrives in time.
pub async fn get(address: &str, path: &str) -> Result<Response> {
    HttpClient::connect(address).await?.get(path, &[]).await
}

/// The readiness of the process with this admin port: `Ok`, or its reasons as `component: reason`, one per line.
///
/// # Errors
/// If the response is missing or malformed.
pub async fn readiness(address: &str) -> Result<Result<(), String>> {
    let response = get(address, "/readyz").await?;
    let body: Value = serde_json::from_str(&response.body)
        .with_context(|| format!("http://{address}/readyz returned {:?}", response.body))?;
    let reasons = body["reasons"].as_array().into_iter().flatten();
    let reasons =
        reasons.map(|it| ["component", "reason"].map(|key| it[key].as_str().unwrap_or("?")));
    let reasons: Vec<_> = reasons.map(|reason| reason.join(": ")).collect();
    match (response.status, reasons.is_empty()) {
        (200, true) => Ok(Ok(())),
        (503, false) => Ok(Err(reasons.join("\n"))),
        (status, _) => bail!("http://{address}/readyz returned {status} with {body}"),
    }
}

/// Sends one sync request to the edge at `address`. The ids are not escaped.
///
/// # Errors
/// If no complete response arrives in time.
pub async fn sync(address: &str, user_id: &str, dsp_id: u32, buyer_uid: &str) -> Result<Response> {
    HttpClient::connect(address)
        .await?
        .get(
            &format!("/?d={dsp_id}&b={buyer_uid}"),
            &[("Cookie", &format!("uid={user_id}"))],
        )
        .await
}

/// The metrics of the process with this admin port, after checking its ledger.
///
/// # Errors
/// If the request fails or a [`ledger`] does not balance.
pub async fn metrics(address: &str) -> Result<Samples> {
    let response = get(address, "/metrics").await?;
    if response.status != 200 {
        bail!("http://{address}/metrics returned {}", response.status);
    }
    let samples = Samples::parse(&response.body);
    ledger::check(&samples).with_context(|| format!("http://{address}/metrics"))?;
    Ok(samples)
}
