//! Checks the contents of one store. Does no I/O.

use std::collections::HashMap;

use testkit::numbers::grouped;
use tokio::time::Instant;

use super::sent::{
    LostRequest, PRODUCER_CLOCK_MARGIN, RequestOutcome, RequestRef, SentRequests, Source,
};
use crate::traffic::SyntheticCookie;

/// Maximum examples in a verdict.
const EXAMPLES_MAX: usize = 5;

/// Whether a request, given by its connection and number, may be lost because of the injected faults.
pub type LossPredicate<'a> = &'a (dyn Fn(&Source, u64) -> bool + Sync);

/// Check of one store, cookie by cookie.
pub struct StoreCheck<'a> {
    sent: &'a SentRequests,
    may_be_lost: LossPredicate<'a>,
    /// Whether the consumer was restarted, which loses the times of suppressed duplicates.
    was_restarted: bool,
    /// One bit per request, set for the first request of each stored pair.
    found: Vec<u64>,
    verdict: StoreVerdict,
}

/// Result of the check of one store.
#[derive(Debug, Clone, Default)]
pub struct StoreVerdict {
    /// Name of the node.
    pub node: String,
    /// Pairs of user and DSP in the store.
    pub stored: u64,
    /// Stored pairs whose value may be the newest.
    pub correct: u64,
    /// Accepted pairs that are not stored, without explanation.
    pub missing: u64,
    /// Pairs whose value is certainly not the newest, without explanation.
    pub stale: u64,
    /// Pairs with a stored value that was never sent for them.
    pub wrong: u64,
    /// Pairs that were never sent.
    pub unexpected: u64,
    /// Missing or stale pairs explained by injected faults.
    pub explained: u64,
    /// Pairs with an older value that arrived after a newer duplicate: the duplicate was suppressed, and the restart of
    /// the consumer lost its time.
    pub forgotten_duplicates: u64,
    /// Minimum set of lost requests that explains these pairs.
    pub lost: Vec<LostRequest>,
    /// Examples of unexplained differences.
    pub examples: Vec<String>,
}

impl StoreVerdict {
    /// Whether the store has the expected contents.
    pub fn has_passed(&self) -> bool {
        self.missing + self.stale + self.wrong + self.unexpected == 0
    }

    /// Summary in one line.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{}: {} of {} stored pairs are correct",
            self.node,
            grouped(self.correct),
            grouped(self.stored)
        );
        for (kind, count) in self.differences().into_iter().filter(|it| it.1 > 0) {
            line.push_str(&format!(", {} {kind}", grouped(count)));
        }
        line
    }

    /// Numbers of pairs that are missing or not correct, by kind.
    pub fn differences(&self) -> [(&'static str, u64); 6] {
        [
            ("missing", self.missing),
            ("stale", self.stale),
            ("wrong", self.wrong),
            ("unexpected", self.unexpected),
            ("explained", self.explained),
            ("forgotten duplicates", self.forgotten_duplicates),
        ]
    }
}

/// The newest accepted requests of a pair.
#[derive(Default)]
struct NewestRequests {
    /// Last request number by connection.
    numbers: HashMap<u32, u32>,
    /// Latest send time by producer.
    times: HashMap<usize, Instant>,
}

impl NewestRequests {
    fn add(&mut self, sent: &SentRequests, request: &RequestRef) {
        let number = self.numbers.entry(request.source).or_default();
        *number = request.number.max(*number);
        let source = sent.source(request);
        let at = source.requests.sent_after(request.number.into());
        let time = self.times.entry(source.producer).or_insert(at);
        *time = at.max(*time);
    }

    /// Whether no added request is certainly newer than `request`.
    fn admits(&self, sent: &SentRequests, request: &RequestRef) -> bool {
        let source = sent.source(request);
        if sent.outcome(request) == RequestOutcome::Accepted
            && self
                .numbers
                .get(&request.source)
                .is_some_and(|last| *last > request.number)
        {
            return false;
        }
        let responded = source.requests.responded_by(request.number.into());
        self.times.iter().all(|(producer, sent_after)| {
            let is_other = *producer != source.producer;
            *sent_after <= responded || is_other && *sent_after <= responded + PRODUCER_CLOCK_MARGIN
        })
    }
}

impl<'a> StoreCheck<'a> {
    /// Starts a check. `was_restarted`: whether the node's consumer was restarted.
    pub fn new(
        node: &str,
        sent: &'a SentRequests,
        may_be_lost: LossPredicate<'a>,
        was_restarted: bool,
    ) -> Self {
        Self {
            sent,
            may_be_lost,
            was_restarted,
            found: vec![0; sent.len().div_ceil(64)],
            verdict: StoreVerdict {
                node: node.to_owned(),
                ..StoreVerdict::default()
            },
        }
    }

    /// Checks one stored cookie.
    pub fn check_cookie(&mut self, user_id: &[u8], dsp_id: u32, buyer_uid: &[u8]) {
        self.verdict.stored += 1;
        let group = self.sent.group(user_id, dsp_id);
        if !group.is_empty() {
            self.found[group.start / 64] |= 1 << (group.start % 64);
        }
        let sent = self.sent;
        let pair: Vec<_> = sent.requests[group]
            .iter()
            .map(|request| (request, sent.cookie(request)))
            .filter(|(_, cookie)| cookie.user_id_bytes() == user_id && cookie.dsp_id() == dsp_id)
            .collect();
        let with_value = || {
            let equal = |(_, cookie): &&(_, SyntheticCookie)| cookie.buyer_uid_bytes() == buyer_uid;
            pair.iter().filter(equal).map(|(request, _)| *request)
        };
        let verdict = &mut self.verdict;
        let (count, problem) = if pair.is_empty() {
            (&mut verdict.unexpected, "was never sent")
        } else if with_value().next().is_none() {
            (&mut verdict.wrong, "was sent only with other values")
        } else if pair.len() == 1 {
            verdict.correct += 1;
            return;
        } else {
            let accepted: Vec<_> = pair
                .iter()
                .map(|(request, _)| *request)
                .filter(|request| sent.outcome(request) == RequestOutcome::Accepted)
                .collect();
            let (mut required, mut all) = (NewestRequests::default(), NewestRequests::default());
            for request in &accepted {
                all.add(sent, request);
                if !(self.may_be_lost)(sent.source(request), request.number.into()) {
                    required.add(sent, request);
                }
            }
            if with_value().any(|request| all.admits(sent, request)) {
                verdict.correct += 1;
                return;
            }
            let is_newer = |request: &RequestRef, than: &RequestRef| {
                let mut newest = NewestRequests::default();
                newest.add(sent, request);
                !newest.admits(sent, than)
            };
            let newer = |stored: &RequestRef| -> Vec<_> {
                let newer = accepted.iter().filter(|it| is_newer(it, stored));
                newer.map(|request| sent.lost(request)).collect()
            };
            let excused = with_value().filter(|request| required.admits(sent, request));
            if let Some(lost) = excused.map(newer).min_by_key(Vec::len) {
                verdict.explained += 1;
                verdict.lost.extend(lost);
                return;
            }
            // Whether `newer` repeats a value that is older than both requests, through another producer than `stored`.
            let is_duplicate = |newer: &RequestRef, stored: &RequestRef| {
                let value = sent.cookie(newer);
                sent.source(newer).producer != sent.source(stored).producer
                    && accepted.iter().any(|first| {
                        sent.cookie(first).buyer_uid() == value.buyer_uid()
                            && is_newer(newer, first)
                            && !is_newer(first, stored)
                    })
            };
            let is_older_than_duplicates = |stored: &RequestRef| {
                let mut newer = accepted.iter().filter(|it| is_newer(it, stored));
                newer.all(|newer| {
                    (self.may_be_lost)(sent.source(newer), newer.number.into())
                        || is_duplicate(newer, stored)
                })
            };
            if self.was_restarted && with_value().any(is_older_than_duplicates) {
                verdict.forgotten_duplicates += 1;
                return;
            }
            (&mut verdict.stale, "is certainly not the newest")
        };
        *count += 1;
        let [user, buyer] = [user_id, buyer_uid].map(String::from_utf8_lossy);
        let example = format!("user {user}, DSP {dsp_id}: {buyer} {problem}");
        self.example(example);
    }

    fn example(&mut self, example: String) {
        if self.verdict.examples.len() < EXAMPLES_MAX {
            self.verdict.examples.push(example);
        }
    }

    /// Checks for missing pairs, after all stored cookies were checked.
    pub fn finish(mut self) -> StoreVerdict {
        let sent = self.sent;
        let mut from = 0;
        for same in sent.requests.chunk_by(|a, b| a.hash == b.hash) {
            if self.found[from / 64] >> (from % 64) & 1 == 0 {
                self.check_missing(same);
            }
            from += same.len();
        }
        self.verdict
    }

    fn check_missing(&mut self, group: &[RequestRef]) {
        let sent = self.sent;
        let accepted = || {
            let requests = group.iter();
            requests.filter(|request| sent.outcome(request) == RequestOutcome::Accepted)
        };
        let Some(first) = accepted().next() else {
            return;
        };
        let may_be_lost =
            |request: &RequestRef| (self.may_be_lost)(sent.source(request), request.number.into());
        if accepted().all(may_be_lost) {
            self.verdict.explained += 1;
            let lost = accepted().map(|request| sent.lost(request));
            self.verdict.lost.extend(lost);
            return;
        }
        self.verdict.missing += 1;
        let cookie = sent.cookie(first);
        self.example(format!(
            "user {}, DSP {}: an accepted cookie is not stored",
            cookie.user_id(),
            cookie.dsp_id()
        ));
    }
}
