//! The source of an application of kind `cookies`: the matches on its nodes, read in pages.
//!
//! A page is read from the first node that responds; the next page can be read from another node. Matches that the partner has
//! confirmed recently are skipped.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proto::ids::is_user_id;
use runtime::unix_micros;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{Line, Page, Selection};
use crate::{
    apps::{App, Cookies},
    digest::digest,
    engine::Engine,
    matches::notes,
    messages::{Asset, BATCH_ASSETS_MAX},
};

/// Maximum time to read a page and its notes, and the pause between two attempts on all nodes.
const TIME_MAX: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(10);

/// Maximum matches of a page.
const ROWS_MAX: usize = 1_000;

/// Margin that a node subtracts from the time up to which it was complete.
const CLOCK_MARGIN_MS: u64 = 60_000;

#[derive(Deserialize)]
struct Match {
    u: String,
    b: String,
    t: u64,
}

#[derive(Deserialize)]
struct End {
    next: Option<String>,
    as_of: u64,
}

/// The matches of a job.
pub struct Matches<E> {
    engine: E,
    app: Arc<App>,
    selection: Selection,
    /// Position of the next page of a node, empty for the first page; `None` at the end.
    next: Option<String>,
    /// Matches that were read, in batches.
    batches: VecDeque<Vec<Asset>>,
}

impl<E: Engine> Matches<E> {
    /// The matches from a position on.
    pub fn new(engine: &E, app: &Arc<App>, selection: &Selection, cursor: &str) -> Self {
        Self {
            engine: engine.clone(),
            app: Arc::clone(app),
            selection: selection.clone(),
            next: Some(cursor.to_owned()),
            batches: VecDeque::new(),
        }
    }

    /// The matches of the next batch; empty at the end.
    ///
    /// # Errors
    /// When no node returns a valid page, or the broker returns no notes, within ten minutes.
    pub async fn next(&mut self) -> Result<Page> {
        let mut waiting = Vec::new();
        while self.batches.is_empty()
            && waiting.len() < BATCH_ASSETS_MAX
            && let Some(next) = self.next.take()
        {
            waiting.extend(self.read(&next).await?);
        }
        if !waiting.is_empty() {
            // Batches have similar sizes, because `max_removals` permits no removal in a small one.
            let count = waiting.len().div_ceil(BATCH_ASSETS_MAX);
            let batches = waiting.chunks(waiting.len().div_ceil(count));
            self.batches = batches.map(<[_]>::to_vec).collect();
        }
        let batch = self.batches.pop_front().unwrap_or_default();
        // Another maker can continue only after a page.
        let cursor = self.next.clone().filter(|_| self.batches.is_empty());
        Ok((batch, cursor))
    }

    async fn read(&mut self, next: &str) -> Result<Vec<Asset>> {
        let end = Instant::now() + TIME_MAX;
        loop {
            let read = self.read_once(next).await;
            if read.is_ok() || Instant::now() >= end {
                return read.context("failed to read a page of matches");
            }
            sleep(PAUSE).await;
        }
    }

    /// The selected matches of a page.
    async fn read_once(&mut self, next: &str) -> Result<Vec<Asset>> {
        let cookies = self.app.settings.cookies.as_ref();
        let cookies = cookies.context("the application has no table `cookies`")?;
        let mut selection = self.selection.clone();
        let older_than = &mut selection.filter.older_than;
        let min_age = *older_than.get_or_insert(cookies.after.as_secs());
        let before = selection.created_at.saturating_sub(min_age) * 1000;
        let created_at = (selection.created_at + 1) * 1000;
        let (matches, end) = page(cookies, before, next).await?;
        let users = matches.iter().map(|it| it.u.clone()).collect();
        let notes = notes(&self.engine, &self.app, users).await?;
        self.next = end.next;
        let found = matches.into_iter().zip(notes).filter_map(|(found, note)| {
            // A later sync makes a note obsolete. Notes of this job do not count, so that another maker selects the same matches.
            let is_current = |at: &u64| note.as_of > Some(found.t) && *at < created_at;
            let checked = note.confirmed_at.filter(is_current).unwrap_or(found.t);
            let asset = Asset {
                hash: digest(found.b.as_bytes()),
                as_of: Some(end.as_of),
                gone_since: note.gone_since.filter(is_current),
                key: found.u,
                ..Asset::default()
            };
            let line = Line {
                asset,
                checked_at: Some(checked / 1000),
                requested_at: None,
            };
            selection.select(line)
        });
        Ok(found.collect())
    }
}

async fn page(cookies: &Cookies, before: u64, next: &str) -> Result<(Vec<Match>, End)> {
    let mut path = format!("/v1/cookies?dsp={}&before={before}", cookies.dsp);
    if !next.is_empty() {
        path += &format!("&next={}", utf8_percent_encode(next, NON_ALPHANUMERIC));
    }
    let nodes = cookies.nodes.as_ref().context("`nodes` is unset")?;
    let body = nodes.call(&path, None).await?;
    let mut lines: Vec<&[u8]> = body.trim_ascii_end().split(|byte| *byte == b'\n').collect();
    let end = lines.pop().unwrap_or_default();
    let end: Option<End> = serde_json::from_slice(end).ok();
    let mut end = end.context("the node returned a page without a valid last line")?;
    let matches = lines.into_iter().map(serde_json::from_slice);
    let matches: Option<Vec<Match>> = matches.map(Result::ok).collect();
    let matches = matches.context("the node returned a page with an invalid line")?;
    // Only valid user ids may reach partners and producers.
    let is_later = |it: &String| is_user_id(it.as_bytes()) && **it > *next;
    ensure!(
        matches.len() <= ROWS_MAX
            && matches.iter().all(|it| is_user_id(it.u.as_bytes()))
            && end.next.iter().all(is_later),
        "the node returned a page with too many rows, an invalid user id or an invalid `next`"
    );
    end.as_of = end.as_of.min(unix_micros() / 1000 - CLOCK_MARGIN_MS);
    Ok((matches, end))
}
