//! Whether a store has what it should: pure.

use std::collections::HashMap;

use serde::Serialize;
use tokio::time::Instant;

use super::{LostRequest, PRODUCERS_APART, RequestOutcome, RequestRef, SentRequests, Source};
use crate::traffic::SyntheticCookie;

/// Faults of a kind that are told in full.
const EXAMPLES_MAX: usize = 5;

/// Whether the request with this number on this connection may have been lost: by contract, in what was done to the
/// processes.
pub type LossPredicate<'a> = &'a (dyn Fn(&Source, u64) -> bool + Sync);

/// The check of one store, cookie by cookie.
pub struct StoreCheck<'a> {
    sent: &'a SentRequests,
    may_be_lost: LossPredicate<'a>,
    /// Whether the consumer may have forgotten when a repeat came that it did not write.
    forgets_duplicates: bool,
    /// One bit for each request: set at the first of each pair that was found.
    found: Vec<u64>,
    verdict: StoreVerdict,
}

/// What was found in one store.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StoreVerdict {
    /// The node.
    pub node: String,
    /// Pairs of user and DSP in the store.
    pub stored: u64,
    /// Of these, such with a value that may be the newest.
    pub correct: u64,
    /// Pairs that were accepted and are not in the store, though nothing explains it.
    pub missing: u64,
    /// Pairs with a value that is certainly not the newest, though nothing explains it.
    pub stale: u64,
    /// Pairs with a value that was never sent for them.
    pub wrong: u64,
    /// Cookies that were never sent.
    pub unexpected: u64,
    /// Pairs that are missing or stale and may be, by what was done to the processes.
    pub explained: u64,
    /// Pairs with an older value that came after a newer repeat: the repeat was not written, and a restarted consumer does not
    /// know its time.
    pub forgotten_duplicates: u64,
    /// What must have been lost of these pairs: never more than was.
    #[serde(skip)]
    pub lost: Vec<LostRequest>,
    /// Some of what is not as it should be.
    pub examples: Vec<String>,
}

impl StoreVerdict {
    /// True when the store has what it should.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.missing + self.stale + self.wrong + self.unexpected == 0
    }

    /// One line.
    #[must_use]
    pub fn line(&self) -> String {
        let grouped = crate::report::grouped;
        let mut line = format!(
            "{}: {} of {} stored pairs are right",
            self.node,
            grouped(self.correct),
            grouped(self.stored)
        );
        for (count, what) in [
            (self.missing, "missing"),
            (self.stale, "stale"),
            (self.wrong, "with a wrong value"),
            (self.unexpected, "never sent"),
            (self.explained, "lost or stale as the faults allow"),
            (
                self.forgotten_duplicates,
                "older than a repeat that a restarted consumer forgot",
            ),
        ] {
            if count > 0 {
                line.push_str(&format!(", {} {what}", grouped(count)));
            }
        }
        line
    }
}

/// What a pair's newest value is held against.
#[derive(Default)]
struct NewestRequests {
    /// The last number of each connection.
    numbers: HashMap<u32, u32>,
    /// The last time of sending to each producer.
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

    /// True when nothing that was added is certainly newer than this.
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
        let answered = source.requests.responded_by(request.number.into());
        self.times.iter().all(|(producer, sent_after)| {
            let same = *producer == source.producer;
            *sent_after
                <= if same {
                    answered
                } else {
                    answered + PRODUCERS_APART
                }
        })
    }
}

impl<'a> StoreCheck<'a> {
    /// A check that has seen nothing yet. `forgets_duplicates` says that the node's consumer was restarted.
    #[must_use]
    pub fn new(
        node: &str,
        sent: &'a SentRequests,
        may_be_lost: LossPredicate<'a>,
        forgets_duplicates: bool,
    ) -> Self {
        Self {
            sent,
            may_be_lost,
            forgets_duplicates,
            found: vec![0; sent.len().div_ceil(64)],
            verdict: StoreVerdict {
                node: node.to_owned(),
                ..StoreVerdict::default()
            },
        }
    }

    /// Takes one stored cookie.
    pub fn take(&mut self, user_id: &[u8], dsp_id: u32, buyer_uid: &[u8]) {
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
            (&mut verdict.wrong, "was sent with other values only")
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
            // Came through another producer than the stored one, with a value that had come before both.
            let is_repeat = |newer: &RequestRef, stored: &RequestRef| {
                let value = sent.cookie(newer);
                sent.source(newer).producer != sent.source(stored).producer
                    && accepted.iter().any(|first| {
                        sent.cookie(first).buyer_uid() == value.buyer_uid()
                            && is_newer(newer, first)
                            && !is_newer(first, stored)
                    })
            };
            let is_older_than_repeats = |stored: &RequestRef| {
                let mut newer = accepted.iter().filter(|it| is_newer(it, stored));
                newer.all(|newer| {
                    (self.may_be_lost)(sent.source(newer), newer.number.into())
                        || is_repeat(newer, stored)
                })
            };
            if self.forgets_duplicates && with_value().any(is_older_than_repeats) {
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

    /// Looks for what is missing, after the whole store was taken.
    #[must_use]
    pub fn finish(mut self) -> StoreVerdict {
        let sent = self.sent;
        let mut from = 0;
        for same in sent.requests.chunk_by(|a, b| a.hash == b.hash) {
            if self.found[from / 64] >> (from % 64) & 1 == 0 {
                self.not_found(same);
            }
            from += same.len();
        }
        self.verdict
    }

    fn not_found(&mut self, group: &[RequestRef]) {
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
            "user {}, DSP {}: was accepted and is not there",
            cookie.user_id(),
            cookie.dsp_id()
        ));
    }
}
