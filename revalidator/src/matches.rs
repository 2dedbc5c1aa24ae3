//! Applies the outcomes of checks to matches, for applications of kind `cookies`.
//!
//! Changes and removals are sent to a producer, with the time of the page from which the match was read. A later sync of a browser
//! therefore always wins, in any order of arrival. For each match that the partner confirmed or did not know, the check result is written
//! to a bucket. All effects can be repeated safely.

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, future::join_all, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::{
    apps::{App, Cookies},
    engine::{Bucket, Engine},
    messages::{Asset, AssetResult, Outcome},
};

/// Maximum age of the page of a match when the match is requested, and when its row is sent. Producers reject rows that are older
/// than 25 hours.
const REQUEST_MS_MAX: u64 = 24 * 3_600_000;
const ROW_MS_MAX: u64 = REQUEST_MS_MAX + 3_000_000;

/// Notes that are read at the same time.
const NOTES_PARALLEL: usize = 32;

/// A note: the responses of the partner about one match. Times are Unix milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Note {
    /// When the partner last confirmed it.
    pub confirmed_at: Option<u64>,
    /// When it was first missing at the partner.
    pub gone_since: Option<u64>,
    /// Time up to which the node was complete when it returned the match.
    pub as_of: Option<u64>,
}

fn key(app: &App, user: &str) -> String {
    format!("{}.{:032x}", app.name, xxh3_128(user.as_bytes()))
}

/// The notes of these users.
///
/// # Errors
/// When the broker fails.
pub async fn notes<E: Engine>(engine: &E, app: &App, users: Vec<String>) -> Result<Vec<Note>> {
    let reads = users.into_iter().map(|user| async move {
        let found = engine.get(Bucket::Matches, &key(app, &user)).await?;
        let note: Option<Note> = found.and_then(|(value, _)| serde_json::from_slice(&value).ok());
        anyhow::Ok(note.unwrap_or_default())
    });
    let reads: Vec<_> = reads.collect();
    let notes = stream::iter(reads).buffered(NOTES_PARALLEL);
    notes.try_collect().await
}

/// Replaces `gone_since` of the assets with the time in their notes, because clients of the streams could have forged it.
///
/// # Errors
/// When the broker fails.
pub async fn verify<E: Engine>(engine: &E, app: &App, assets: &mut [Asset]) -> Result<()> {
    let mut missing: Vec<_> = assets
        .iter_mut()
        .filter(|it| it.gone_since.is_some())
        .collect();
    let users = missing.iter().map(|it| it.key.clone()).collect();
    let notes = notes(engine, app, users).await?;
    for (asset, note) in missing.iter_mut().zip(notes) {
        asset.gone_since = note.gone_since;
    }
    Ok(())
}

/// Whether a match may be requested: producers still accept rows with its time, which is not in the future, and its user id can be
/// a path segment.
pub fn is_publishable(asset: &Asset, now: u64) -> bool {
    let is_segment = !matches!(&*asset.key, "." | "..");
    is_segment && is_younger(asset, REQUEST_MS_MAX, now)
}

fn is_younger(asset: &Asset, max: u64, now: u64) -> bool {
    let age = asset.as_of.and_then(|as_of| now.checked_sub(as_of));
    age.is_some_and(|age| age < max)
}

/// Marks matches as kept if producers would reject their rows, because the batch took too long.
pub fn keep_old(results: &mut [AssetResult], now: u64) {
    let is_old = |it: &&mut AssetResult| !is_younger(&it.asset, ROW_MS_MAX, now);
    for result in results.iter_mut().filter(is_old) {
        (result.outcome, result.was_stale) = (Outcome::Unexpected, false);
    }
}

/// The outcome that counts for the suspension of a job. A match that was missing before does not count: a batch may have only
/// such matches, because confirmed ones are skipped.
pub fn judged(result: &AssetResult) -> Outcome {
    match result.outcome {
        Outcome::Gone if result.asset.gone_since.is_some() => Outcome::Unexpected,
        outcome => outcome,
    }
}

/// Whether the match is missing at the partner for the first time.
pub fn is_first_sighting(result: &AssetResult) -> bool {
    result.outcome == Outcome::Gone && result.asset.gone_since.is_none()
}

/// Whether a result may remove its match: it was first missing at least `sightings_apart` ago.
pub fn is_second_sighting(cookies: &Cookies, result: &AssetResult, now: u64) -> bool {
    let apart = u64::try_from(cookies.sightings_apart.as_millis()).unwrap_or(u64::MAX);
    let since = result.asset.gone_since;
    since.is_some_and(|since| now.saturating_sub(since) >= apart)
}

/// Publishes changed matches, and those to rewrite. Results whose uid the producer rejects become malformed, and their matches are
/// kept.
///
/// # Errors
/// When no producer accepts the changes.
pub async fn publish(
    cookies: &Cookies,
    assets: &[Asset],
    results: &mut [AssetResult],
) -> Result<()> {
    let results = results.iter_mut().zip(assets);
    let changed: Vec<_> = results
        .filter(|(it, _)| !it.asset.uid.is_empty() && it.outcome != Outcome::Unexpected)
        .collect();
    let row = |it: &Asset| json!({"u": it.key, "d": cookies.dsp, "b": it.uid, "t": it.as_of});
    let rows = changed.iter().map(|(it, _)| row(&it.asset));
    let rejected = post(cookies, "/v1/cookies", rows).await?;
    for (row, (result, asset)) in (1..).zip(changed) {
        if rejected.contains(&row) {
            (result.outcome, result.was_stale) = (Outcome::Malformed, false);
            result.asset = asset.clone();
        }
    }
    Ok(())
}

/// Writes notes of confirmed and missing matches; returns the number of failed writes.
pub async fn note<E: Engine>(engine: &E, app: &App, results: &[AssetResult], now: u64) -> u64 {
    let note = |result: &AssetResult| {
        let mut note = Note {
            as_of: result.asset.as_of,
            ..Note::default()
        };
        match result.outcome {
            Outcome::Fresh => note.confirmed_at = Some(now),
            _ if is_first_sighting(result) && !result.held_back => note.gone_since = Some(now),
            _ => return None,
        }
        let value = Bytes::from(serde_json::to_vec(&note).unwrap_or_default());
        Some((key(app, &result.asset.key), value))
    };
    let writes = results.iter().filter_map(note).map(async |(key, value)| {
        // Without the note, the match is checked again by the next job.
        let put = engine.put(Bucket::Matches, &key, value).await;
        let failed = put.map_err(|error| tracing::debug!(%error, "failed to store a check result"));
        u64::from(failed.is_err())
    });
    join_all(writes.collect::<Vec<_>>()).await.iter().sum()
}

/// Removes the matches of results that are marked as removed.
///
/// # Errors
/// When no producer accepts the deletions.
pub async fn remove(cookies: &Cookies, results: &[AssetResult]) -> Result<()> {
    let removed = results.iter().filter(|it| it.is_deleted);
    let row = |it: &Asset| json!({"u": it.key, "d": cookies.dsp, "t": it.as_of});
    let rows = removed.map(|it| row(&it.asset));
    post(cookies, "/v1/deletions", rows).await.map(drop)
}

/// Sends rows to a producer. Returns the numbers (from 1) of the rows whose uid it rejects.
async fn post(
    cookies: &Cookies,
    path: &str,
    rows: impl Iterator<Item = Value>,
) -> Result<Vec<u64>> {
    let rows: Vec<_> = rows.map(|row| format!("{row}\n")).collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let producers = cookies.producers.as_ref().context("`producers` is unset")?;
    let response = producers.call(path, Some(rows.concat())).await?;
    let response: Value = serde_json::from_slice(&response).context("invalid producer reply")?;
    let of_uid = |it: &&Value| {
        let reason = it["reason"].as_str();
        reason.is_some_and(|it| it.starts_with("uid_") || it == "buyer_invalid")
    };
    let errors = response["errors"].as_array().into_iter().flatten();
    let rejected: Vec<_> = errors
        .filter(of_uid)
        .filter_map(|it| it["row"].as_u64())
        .collect();
    let (count, [accepted, dropped]) =
        (rows.len(), ["accepted", "dropped"].map(|it| &response[it]));
    let error = format!("the producer accepted {accepted} of {count} rows and dropped {dropped}");
    ensure!(
        accepted.as_u64() == Some((count - rejected.len().min(count)) as u64),
        error
    );
    Ok(rejected)
}
