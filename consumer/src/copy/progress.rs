//! The progress of filling a store: stored, shown, logged, and compared at the end.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Copying, LOG_INTERVAL, check, protocol};
use crate::{config::ProducerUrl, health::CopyStatus};

/// Maximum number of DSPs in the summary; the log has all.
const DSPS_SHOWN_MAX: usize = 5;

/// The progress, as this store has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Position of the next page; `None` after the last.
    pub(super) next: Option<String>,
    /// The order of its positions, which the kind of the other node's store determines.
    pub(super) order: String,
    /// Cookies copied up to this position, by DSP.
    pub(super) cookies: BTreeMap<u32, u64>,
    /// Whether this node is filled, and the result.
    pub(super) finished: Option<String>,
}

impl Progress {
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("maps of numbers are JSON")
    }

    /// Begins again if the positions of the other node have another order.
    pub(super) fn begin_order(&mut self, order: &str) {
        if self.order != order && self.next.is_some() {
            self.next = Some(String::new());
            self.cookies.clear();
            order.clone_into(&mut self.order);
        }
    }

    pub(super) fn copied(&self) -> u64 {
        self.cookies.values().sum()
    }
}

impl Copying {
    /// Stores the progress whose records are durable.
    pub(super) async fn save(&mut self) -> Result<()> {
        let durable = *self.copier.durable.borrow();
        let is_durable = |(at, _): &(u64, Progress)| *at <= durable;
        while self.unsaved.front().is_some_and(is_durable)
            && let Some((_, progress)) = self.unsaved.pop_front()
        {
            self.progress = progress;
        }
        let text = self.progress.to_json();
        self.copier.copies.put_copy_state(&text).await?;
        self.saved = Instant::now();
        Ok(())
    }

    /// Shows the progress, and logs it from time to time.
    pub(super) fn report(&mut self, node: &ProducerUrl, copied: u64) {
        let (logged, before, rate) = self.logged;
        let (elapsed, new) = (logged.elapsed(), self.pushed - before);
        let is_due = elapsed >= LOG_INTERVAL;
        let current = u128::from(new) * 1_000_000 / elapsed.as_micros().max(1);
        let current = u64::try_from(current).unwrap_or(u64::MAX);
        let rate = if is_due || rate == 0 { current } else { rate };
        // The total is approximate.
        let percent = (copied * 100 / self.total.max(1)).min(99);
        let left = self.total.saturating_sub(copied) / rate.max(1);
        self.show(format!(
            "{percent} % from {node}, {rate} cookies/s, {} left",
            humantime::format_duration(Duration::from_secs(left))
        ));
        if is_due {
            tracing::info!(%node, copied, percent, cookies_per_second = rate, seconds_left = left, "filling this node");
            self.logged = (Instant::now(), self.pushed, rate);
        }
    }

    pub(super) fn show(&self, state: String) {
        let copied = self
            .unsaved
            .back()
            .map_or(&self.progress, |(_, it)| it)
            .copied();
        #[expect(clippy::cast_precision_loss, reason = "the total is approximate")]
        let ratio = copied as f64 / self.total.max(1) as f64;
        let ratio = match &self.progress.finished {
            Some(_) => 1.0,
            None => ratio.min(0.99),
        };
        let records = self.pushed;
        self.copier.health.set_copy(CopyStatus {
            state,
            records,
            ratio,
        });
    }

    /// Compares the number of cookies of each DSP that the other node had with that in this store.
    pub(super) async fn finish(&mut self) -> Result<()> {
        let mut here: BTreeMap<u32, u64> = BTreeMap::new();
        let mut next = Some(String::new());
        while let Some(position) = next {
            let deletions = &self.copier.deletions;
            let page = self
                .copier
                .copies
                .cookies_after(&position, deletions)
                .await?;
            for chunk in protocol::decode(&page.chunks)? {
                for dsp_id in check(&chunk)? {
                    *here.entry(dsp_id.0).or_default() += 1;
                }
            }
            next = page.next;
        }
        let mut fewer = Vec::new();
        for (dsp, there) in &self.progress.cookies {
            let here = here.get(dsp).copied().unwrap_or_default();
            tracing::info!(dsp, here, there, "compared the cookies of a DSP");
            if here < *there {
                fewer.push(format!("DSP {dsp}: {here} of {there}"));
            }
        }
        let copied = self.progress.finished.clone().unwrap_or_default();
        let result = match fewer.len() {
            0 => format!("{copied}; this node has at least as many cookies of each DSP"),
            count => {
                fewer.truncate(DSPS_SHOWN_MAX);
                let shown = fewer.join(", ");
                tracing::warn!(
                    dsps = count,
                    shown,
                    "this node has fewer cookies than the other"
                );
                format!("{copied}; fewer here for {count} DSPs: {shown}")
            }
        };
        self.show(format!("finished: {result}"));
        self.progress.finished = Some(result);
        self.save().await
    }
}
