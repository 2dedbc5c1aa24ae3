//! Reported losses: what this node will not get of the producers' cookies, or may not, as records: each gap, and how each epoch
//! of a producer ended for it. `GET /v1/losses` shows them.
//!
//! What learns of a loss puts its record into the buffer: a subscription, ahead of the cursor that passes it, or maintenance.
//! From there it goes the way of the cookies: the collector gives it its [number](Records) and a place in a batch, and the commit
//! of that batch makes it durable together with its cursors. Then it is [kept](Losses) for the page. So all that a store stands behind is on record, whatever became of the processes
//! that wrote it; what a process had noted and not committed, the next one notes again, from where the store stands. A
//! record may then be there twice, of overlapping sequences: it is of what it is of, once. One alone has no next process: that
//! a producer never came back is noted when its cursor has been deleted, and a process that ends just then has told it to the log alone.
//! Gaps of one epoch within a minute are one record, which grows.
//!
//! Records have numbers that begin at 1. The newest [`KEPT`] of them are kept, each in a place of its own in the store: a
//! further one takes that of the oldest.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::StatusCode;
use proto::v1::GapReason;
use runtime::answer::{Answer, json};
use serde::{Deserialize, Serialize};

/// Records that are kept.
pub const KEPT: u64 = 8_192;

/// Gaps of one kind that are noted so soon after the first of them are one record with it.
const STRETCH_MICROS: u64 = 60 * 1_000_000;

/// Records of one batch, which takes no more then.
pub const OF_BATCH_MAX: usize = 1_024;

/// Where they are shown.
const PATH: &str = "/v1/losses";

/// Cookies of one producer's epoch that this node will not get, or may not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Whose.
    pub producer: String,
    /// The epoch.
    pub epoch: u64,
    /// The first sequence that may be missing.
    pub first: u64,
    /// The last, if that is known.
    pub last: Option<u64>,
    /// How many are missing of these, if that is known.
    pub cookies: Option<u64>,
    /// Whether it is exactly so many, and not only at most.
    pub exact: bool,
    /// How it came.
    #[serde(flatten)]
    pub cause: Cause,
    /// When this node learned of it, in microseconds since the Unix epoch.
    pub noted_unix_micros: u64,
}

/// How cookies were lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// The producer dropped them, since this consumer was further behind than `--queue-cookies`.
    QueueBound,
    /// The producer's log had moved on.
    LogMovedOn,
    /// The producer gave no reason that is known here.
    Unspecified,
    /// The epoch is over. The record is of what follows `first` in it, and of epochs after it that this node never saw.
    Ended {
        /// The epoch that told of it; none when the producer never came back.
        told_by: Option<u64>,
        /// Whether epochs in between would be known: without a record of them only this one's end is.
        whole: bool,
        /// The first sequence of the epoch that the process watched which noted this.
        watched_from: u64,
        /// Cookies of the epoch from there on that were lost in gaps.
        lost_in_gaps: u64,
    },
}

impl From<GapReason> for Cause {
    fn from(reason: GapReason) -> Self {
        match reason {
            GapReason::QueueBound => Self::QueueBound,
            GapReason::LogMovedOn => Self::LogMovedOn,
            GapReason::Unspecified => Self::Unspecified,
        }
    }
}

/// A record with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// From 1 on, without holes.
    pub number: u64,
    /// What it is.
    #[serde(flatten)]
    pub loss: Loss,
}

impl Loss {
    /// Takes in another gap of the same epoch, if both are one; false when they are not of one kind.
    pub fn join(&mut self, other: &Self) -> bool {
        let is_gap = !matches!(self.cause, Cause::Ended { .. });
        let is_same = is_gap
            && (&self.producer, self.epoch, &self.cause)
                == (&other.producer, other.epoch, &other.cause);
        if is_same {
            self.first = self.first.min(other.first);
            self.last = self.last.max(other.last);
            // Two streams of one producer may both tell of a gap.
            let span = self
                .last
                .map_or(u64::MAX, |last| last.saturating_add(1) - self.first);
            let both = self.cookies.zip(other.cookies);
            self.cookies = both.map(|(a, b)| a.saturating_add(b).min(span));
        }
        is_same
    }
}

impl Numbered {
    /// Which of the [`KEPT`] places in the store it has.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.number % KEPT
    }
}

/// Gives records their numbers.
#[derive(Debug)]
pub struct Records {
    next: u64,
    /// Gaps that others may still join.
    open: Vec<Numbered>,
}

impl Records {
    /// The next record has this number.
    #[must_use]
    pub fn from(next: u64) -> Self {
        Self {
            next,
            open: Vec::new(),
        }
    }

    /// The record that a loss is, or that it has become part of.
    pub fn number(&mut self, loss: Loss) -> Numbered {
        let now = loss.noted_unix_micros;
        let is_open = |it: &Numbered| now.abs_diff(it.loss.noted_unix_micros) < STRETCH_MICROS;
        self.open.retain(is_open);
        if let Some(joined) = self
            .open
            .iter_mut()
            .find_map(|it| it.loss.join(&loss).then_some(&*it))
        {
            return joined.clone();
        }
        let record = Numbered {
            number: self.next,
            loss,
        };
        self.next += 1;
        if !matches!(record.loss.cause, Cause::Ended { .. }) && self.open.len() < OF_BATCH_MAX {
            self.open.push(record.clone());
        }
        record
    }
}

/// What `GET /v1/losses` answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Records that others have taken the places of.
    pub forgotten: u64,
    /// All others, the oldest first.
    pub losses: Vec<Numbered>,
}

/// The durable records of one consumer; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Losses(Arc<Mutex<VecDeque<Numbered>>>);

impl Losses {
    /// Takes in what the store has, in any order; returns the number of the next.
    pub fn load(&self, mut stored: Vec<Numbered>) -> u64 {
        stored.sort_unstable_by_key(|it| it.number);
        let next = stored.last().map_or(1, |newest| newest.number + 1);
        *self.kept() = stored.into();
        next
    }

    /// Adds records that are durable, in the order of their numbers.
    pub fn add(&self, durable: &[Numbered]) {
        if durable.is_empty() {
            return;
        }
        let mut kept = self.kept();
        for record in durable {
            // One that has grown is among the newest.
            match kept.iter_mut().rev().find(|it| it.number <= record.number) {
                Some(same) if same.number == record.number => *same = record.clone(),
                _ => kept.push_back(record.clone()),
            }
        }
        let newest = kept.back().map_or(0, |newest| newest.number);
        while kept
            .front()
            .is_some_and(|oldest| oldest.number + KEPT <= newest)
        {
            kept.pop_front();
        }
    }

    /// What is shown.
    #[must_use]
    pub fn page(&self) -> Page {
        let kept = self.kept();
        Page {
            forgotten: kept.front().map_or(0, |oldest| oldest.number - 1),
            losses: kept.iter().cloned().collect(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Numbered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers a path of the admin port; `None` when it is another.
#[must_use]
pub fn page(losses: &Losses, path: &str) -> Option<Answer> {
    (path == PATH).then(|| {
        let mut body = serde_json::to_vec(&losses.page()).expect("records are JSON");
        body.push(b'\n');
        json(StatusCode::OK, body)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A gap.
    pub(crate) fn gap(number: u64) -> Numbered {
        Numbered {
            number,
            loss: Loss {
                producer: "p".to_owned(),
                epoch: 7,
                first: number * 10,
                last: Some(number * 10 + 4),
                cookies: Some(5),
                exact: true,
                cause: Cause::QueueBound,
                noted_unix_micros: 1_000_000,
            },
        }
    }

    #[test]
    fn newest_are_kept_and_the_others_counted() {
        let losses = Losses::default();
        assert_eq!(losses.load(vec![gap(3), gap(2)]), 4);
        assert_eq!(losses.page().forgotten, 1);
        let more: Vec<_> = (4..=KEPT + 5).map(gap).collect();
        losses.add(&more);
        let page = losses.page();
        assert_eq!((page.forgotten, page.losses.len() as u64), (5, KEPT));
        let numbers = page.losses.iter().map(|it| it.number);
        assert!(numbers.eq(6..=KEPT + 5));
        assert_eq!(Losses::default().load(Vec::new()), 1);
    }

    #[test]
    fn records_have_places_of_their_own_until_there_are_too_many() {
        let mut places: Vec<_> = (1..=KEPT).map(|number| gap(number).place()).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len() as u64, KEPT);
        assert_eq!(gap(1).place(), gap(KEPT + 1).place());
    }

    #[test]
    fn gaps_of_one_epoch_join_and_nothing_else_does() {
        let mut first = gap(1).loss;
        assert!(first.join(&gap(3).loss));
        assert_eq!(
            (first.first, first.last, first.cookies),
            (10, Some(34), Some(10))
        );
        let of_another_epoch = Loss {
            epoch: 8,
            ..gap(2).loss
        };
        assert!(!first.join(&of_another_epoch));
        let end = Cause::Ended {
            told_by: None,
            whole: true,
            watched_from: 1,
            lost_in_gaps: 0,
        };
        let mut end = Loss {
            cause: end,
            ..gap(2).loss
        };
        assert!(!end.clone().join(&gap(2).loss) && !end.join(&gap(2).loss));
    }

    #[test]
    fn gaps_of_a_minute_are_one_record_that_grows() {
        let mut records = Records::from(5);
        let at = |second: u64, number| Loss {
            noted_unix_micros: second * 1_000_000,
            ..gap(number).loss
        };
        let losses = Losses::default();
        for (second, gap, number, cookies) in
            [(1, 1, 5, 5), (30, 2, 5, 10), (62, 3, 6, 5), (63, 4, 6, 10)]
        {
            let record = records.number(at(second, gap));
            assert_eq!(
                (record.number, record.loss.cookies),
                (number, Some(cookies))
            );
            losses.add(&[record]);
        }
        let kept: Vec<_> = losses.page().losses.iter().map(|it| it.number).collect();
        assert_eq!(kept, [5, 6]);
        // What two streams tell of is lost once.
        assert_eq!(records.number(at(64, 4)).loss.cookies, Some(15));
        assert_eq!(records.number(at(64, 4)).loss.cookies, Some(15));
    }

    #[test]
    fn page_is_json_that_says_what_each_is() {
        let losses = Losses::default();
        let end = Loss {
            last: None,
            cookies: None,
            exact: false,
            cause: Cause::Ended {
                told_by: Some(9),
                whole: true,
                watched_from: 1,
                lost_in_gaps: 0,
            },
            ..gap(2).loss
        };
        losses.add(&[
            gap(1),
            Numbered {
                number: 2,
                loss: end,
            },
        ]);
        let page = losses.page();
        let text = serde_json::to_string(&page).unwrap();
        assert_eq!(
            text,
            r#"{"forgotten":0,"losses":[{"number":1,"producer":"p","epoch":7,"first":10,"last":14,"cookies":5,"exact":true,"cause":"queue_bound","noted_unix_micros":1000000},{"number":2,"producer":"p","epoch":7,"first":20,"last":null,"cookies":null,"exact":false,"cause":"ended","told_by":9,"whole":true,"watched_from":1,"lost_in_gaps":0,"noted_unix_micros":1000000}]}"#
        );
        assert_eq!(serde_json::from_str::<Page>(&text).unwrap(), page);
    }
}
