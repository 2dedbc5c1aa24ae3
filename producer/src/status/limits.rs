//! The limits of DSPs: what is in force, and a row for each limit with what it let pass lately.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use figures::buckets::SHAPING_DELAY_SECONDS;
use limits::rules::Mode;
use runtime::status::{
    counted::{Buckets, Count},
    quantiles::{Quantiles, Window},
    series::{Rate, short},
};
use serde::Serialize;
use tokio::time::Instant;

use super::LIMITS_MAX;
use crate::shaping::{Dropped, Shaping, Standing, Summary};

/// Most characters shown of what is wrong with a file, which may have thousands of mistakes.
const REFUSAL_CHARS_MAX: usize = 500;

/// The limits of this producer. Several producers keep theirs each for itself, unless the file says that they are shared.
#[derive(Debug, Clone, Serialize)]
pub struct Limits {
    /// Which version of the file is in force: 1 at the start, one more for each that replaced it.
    pub version: u64,
    /// Why the newest version is not; its beginning, when that is long.
    pub refused: Option<String>,
    /// How this producer takes part in shared limits, in words; none when it keeps them for itself.
    pub sharing: Option<String>,
    /// How many limits there are: those that the file names, and those that it named before and that still hold cookies.
    pub total: usize,
    /// The limits, by name; when there are more than [`LIMITS_MAX`], those with most cookies.
    pub rows: Vec<Limit>,
}

/// One limit. Counts are of cookies since the start: accepted = released + coalesced + dropped + spooled + waiting + dead +
/// parked.
#[derive(Debug, Clone, Serialize)]
pub struct Limit {
    /// Its name in the file.
    pub name: String,
    /// The part of it that this producer may use now, where it is shared.
    pub share: Option<f64>,
    /// What is done with what is over it: `observe`, `police` or `shape`; none when the file does not name it any more.
    pub mode: Option<&'static str>,
    /// Cookies accepted under it.
    pub accepted: u64,
    /// The same, of the last second.
    pub accepted_per_second: f64,
    /// Accepted cookies that were over it on arrival, each once: delayed, sent back or dropped; under an observed limit, those that `police`
    /// would have dropped. The others passed at once, or took the place of a cookie that was held.
    pub limited: u64,
    /// The same, of the last second.
    pub limited_per_second: f64,
    /// The same by the rule that decided, those that did; a rule of every call with the name of its limit.
    pub limited_by: Vec<Count>,
    /// Put into the log: at once, at their turn, or early.
    pub released: u64,
    /// The same, of the last second.
    pub released_per_second: f64,
    /// Superseded by a newer one of their pair while they were held.
    pub coalesced: u64,
    /// Dropped, by reason, those that were.
    pub dropped: Vec<Count>,
    /// Kept for the next start.
    pub spooled: u64,
    /// Wait for their turn.
    pub waiting: u64,
    /// Dead letters that will be revived.
    pub dead: u64,
    /// Dead letters that will not.
    pub parked: u64,
    /// For how long the oldest of these three has been accepted.
    pub oldest_seconds: f64,
    /// Seconds from accepted to released, of the last ten seconds, if one was released.
    pub delay_seconds: Option<Quantiles>,
    /// How much that differs from one cookie to the next, smoothed (RFC 3550).
    pub jitter_seconds: f64,
}

/// What is kept from one sample to the next, of the limits that are shown.
#[derive(Debug, Default)]
pub(super) struct Rows {
    known: HashMap<String, Known>,
}

#[derive(Debug, Default)]
struct Known {
    accepted: Rate,
    limited: Rate,
    released: Rate,
    delays: Window,
}

impl Rows {
    /// What is to be said of the limits now. Costs what [`Shaping::summaries`] does.
    pub(super) fn sample(&mut self, shaping: &Shaping, now: Instant) -> Limits {
        let mut summaries = shaping.summaries();
        summaries.retain(|_, summary| is_shown(summary));
        let sharing = shaping.sharing();
        Limits {
            version: shaping.version(),
            refused: shaping.refused().map(beginning),
            sharing: sharing.as_ref().map(Standing::in_words),
            total: summaries.len(),
            rows: self.shared_rows(summaries, sharing.as_ref(), now),
        }
    }

    fn shared_rows(
        &mut self,
        summaries: BTreeMap<String, Summary>,
        sharing: Option<&Standing>,
        now: Instant,
    ) -> Vec<Limit> {
        let mut rows = self.rows(summaries, now);
        for row in &mut rows {
            let mut shares = sharing.iter().flat_map(|it| &it.shares);
            let share = shares.find(|(limit, ..)| *limit == row.name);
            row.share = share.map(|(_, share, _)| short(*share));
        }
        rows
    }

    fn rows(&mut self, summaries: BTreeMap<String, Summary>, now: Instant) -> Vec<Limit> {
        let mut summaries: Vec<_> = summaries.into_iter().collect();
        if summaries.len() > LIMITS_MAX {
            summaries.sort_by_key(|(_, summary)| Reverse(summary.figures.accepted));
            summaries.truncate(LIMITS_MAX);
            summaries.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        let mut before = std::mem::take(&mut self.known);
        let rows = summaries.into_iter().map(|(name, summary)| {
            let mut known = before.remove(&name).unwrap_or_default();
            let row = Limit::of(name.clone(), &summary, &mut known, now);
            self.known.insert(name, known);
            row
        });
        rows.collect()
    }
}

impl Limit {
    fn of(name: String, summary: &Summary, known: &mut Known, now: Instant) -> Self {
        let (figures, holding) = (&summary.figures, &summary.holding);
        let limited_by = summary.figures.rules.iter().map(|(rule, counted)| Count {
            what: rule.clone(),
            count: counted.over.iter().sum(),
        });
        let limited_by = those_counted(limited_by);
        let limited = limited_by.iter().map(|it| it.count).sum();
        let dropped = Dropped::ALL.map(|(why, label)| Count {
            what: label.to_owned(),
            count: figures.dropped(why),
        });
        let released = figures.released + figures.released_early;
        let oldest = Duration::from_nanos(holding.oldest_nanos);
        Self {
            name,
            share: None,
            mode: summary.mode.map(|mode| match mode {
                Mode::Observe => "observe",
                Mode::Police => "police",
                Mode::Shape => "shape",
            }),
            accepted: figures.accepted,
            accepted_per_second: known.accepted.look(figures.accepted, now),
            limited,
            limited_per_second: known.limited.look(limited, now),
            limited_by,
            released,
            released_per_second: known.released.look(released, now),
            coalesced: figures.coalesced,
            dropped: those_counted(dropped),
            spooled: figures.spooled,
            waiting: holding.waiting,
            dead: holding.dead,
            parked: holding.parked,
            oldest_seconds: short(oldest.as_secs_f64()),
            delay_seconds: known.delays.look(buckets(&figures.delays.buckets)),
            jitter_seconds: short(figures.delays.jitter_nanos / 1e9),
        }
    }
}

/// Whether the file names it, or it still holds cookies.
fn is_shown(summary: &Summary) -> bool {
    let holding = &summary.holding;
    summary.mode.is_some() || holding.waiting + holding.dead + holding.parked > 0
}

fn those_counted(counts: impl IntoIterator<Item = Count>) -> Vec<Count> {
    counts.into_iter().filter(|it| it.count > 0).collect()
}

/// A histogram of delays, of the counts of single buckets.
fn buckets(counts: &[u64]) -> Buckets {
    let mut count = 0;
    let up_to = counts.iter().map(|more| {
        count += more;
        count
    });
    // The last count is of what is above all bounds.
    let buckets = SHAPING_DELAY_SECONDS.iter().copied().zip(up_to).collect();
    Buckets {
        buckets,
        count: counts.iter().sum(),
    }
}

fn beginning(text: String) -> String {
    match text.char_indices().nth(REFUSAL_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_counted_up_to_each_bound_and_those_above_all_too() {
        let mut counts = vec![0; SHAPING_DELAY_SECONDS.len() + 1];
        (counts[0], counts[2], *counts.last_mut().unwrap()) = (3, 4, 5);
        let found = buckets(&counts);
        assert_eq!(found.buckets[..3], [(0.001, 3), (0.005, 3), (0.01, 7)]);
        assert_eq!(found.buckets.last(), Some(&(3600.0, 7)));
        assert_eq!(found.count, 12);
    }

    #[test]
    fn limit_that_is_no_more_is_shown_while_it_holds_cookies() {
        let mut summary = Summary::default();
        assert!(!is_shown(&summary));
        summary.holding.parked = 1;
        assert!(is_shown(&summary));
        assert_eq!(
            Limit::of(
                String::new(),
                &summary,
                &mut Known::default(),
                Instant::now()
            )
            .mode,
            None
        );
        summary.holding.parked = 0;
        summary.mode = Some(Mode::Observe);
        assert!(is_shown(&summary));
    }

    #[test]
    fn refusal_is_shown_to_a_bound() {
        let short = "ü".repeat(REFUSAL_CHARS_MAX);
        assert_eq!(beginning(short.clone()), short);
        assert_eq!(beginning(format!("{short}x")), format!("{short}…"));
    }
}
