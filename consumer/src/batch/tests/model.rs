//! Test that compares batches with a map. The chunks come from several producers, are reordered and repeated, and
//! contain equal times, times ahead of the clock, ages and malformed cookies. The filter makes each possible decision.

use std::collections::HashMap;

use proptest::prelude::*;
use prost::Message;
use proto::{
    limits::{BUYER_UID_BYTES_MAX, USER_ID_BYTES_MAX},
    units::{DspId, UnixMicros},
};

use super::*;

/// Chunk times are clamped to it.
const CLOCK: u64 = 50;

#[derive(Debug, Clone)]
struct Sent {
    user: u8,
    dsp_id: u32,
    buyer: u8,
    /// In microseconds.
    age: u64,
    /// The kind of malformation, if any.
    malformed: Option<u8>,
}

#[derive(Debug, Clone)]
struct SentChunk {
    producer: u8,
    first_sequence: u64,
    accepted: u64,
    cookies: Vec<Sent>,
    /// Number of cookies that the header counts but the chunk lacks.
    missing: u32,
}

impl Sent {
    fn cookie(&self) -> v1::Cookie {
        let user_id = match self.malformed {
            Some(0) => String::new(),
            Some(1) => "with space".to_owned(),
            Some(2) => "u".repeat(USER_ID_BYTES_MAX + 1),
            Some(3) => "ü".to_owned(),
            // Users with a common prefix of eight bytes, and one that is a prefix of another.
            _ => {
                "common-prefix--"[..usize::from(self.user % 16)].to_owned() + &self.user.to_string()
            }
        };
        v1::Cookie {
            user_id,
            dsp_id: if self.malformed == Some(4) {
                0
            } else {
                self.dsp_id
            },
            buyer_uid: match self.malformed {
                Some(5) => String::new(),
                Some(6) => "b".repeat(BUYER_UID_BYTES_MAX + 1),
                _ => format!("buyer-{}", self.buyer),
            },
            age_micros: self.age,
            deleted: false,
            padding: Bytes::new(),
        }
    }
}

impl SentChunk {
    fn received(&self) -> ChunkRef {
        let chunk = v1::Chunk {
            epoch: 1,
            first_sequence: self.first_sequence,
            count: u32::try_from(self.cookies.len()).unwrap() + self.missing,
            accepted_unix_micros: self.accepted,
            cookies: self.cookies.iter().map(Sent::cookie).collect(),
        };
        ChunkRef::decode(Bytes::from(chunk.encode_to_vec())).unwrap()
    }
}

fn sent_chunk() -> impl Strategy<Value = SentChunk> {
    let age = prop_oneof![3 => Just(0), 2 => 0..10_u64, 1 => 0..60_u64, 1 => Just(u64::MAX)];
    let malformed = prop_oneof![12 => Just(None), 1 => (0..7_u8).prop_map(Some)];
    let cookie = (0..12_u8, 1..4_u32, 0..4_u8, age, malformed).prop_map(
        |(user, dsp_id, buyer, age, malformed)| Sent {
            user,
            dsp_id,
            buyer,
            age,
            malformed,
        },
    );
    let cookies = prop::collection::vec(cookie, 1..20);
    let accepted = prop_oneof![6 => 0..20_u64, 1 => CLOCK - 1..CLOCK + 3, 1 => Just(u64::MAX)];
    let missing = prop_oneof![9 => Just(0_u32), 1 => 1..5_u32];
    (0..3_u8, 1..1000_u64, accepted, cookies, missing).prop_map(
        |(producer, first_sequence, accepted, cookies, missing)| SentChunk {
            producer,
            first_sequence,
            accepted,
            cookies,
            missing,
        },
    )
}

/// Chunks, some of which are repeated later.
fn sent_chunks() -> impl Strategy<Value = Vec<SentChunk>> {
    (
        prop::collection::vec(sent_chunk(), 1..20),
        prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    )
        .prop_map(|(mut chunks, repeats)| {
            for at in repeats {
                chunks.push(at.get(&chunks).clone());
            }
            chunks
        })
}

/// Returns varying decisions, but always the same one for a cookie.
struct VaryingFilter {
    prefetched: Vec<Fingerprint>,
}

impl VaryingFilter {
    fn decision(dsp_id: u32, buyer_uid: &[u8]) -> DedupDecision {
        match (u32::from(*buyer_uid.last().unwrap()) + dsp_id) % 6 {
            0 => DedupDecision::Suppress,
            1 => DedupDecision::Stale,
            5 => DedupDecision::NoDspSlot,
            6 => DedupDecision::InvalidTime,
            other => DedupDecision::Write {
                is_known: other == 2,
            },
        }
    }
}

impl DedupFilter for VaryingFilter {
    fn fingerprint(&self, cookie: &BatchCookie<'_>) -> Fingerprint {
        [u64::from(cookie.dsp_id.0), cookie.buyer_uid.len() as u64]
    }

    fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        assert!(self.prefetched.is_empty(), "all decided");
        self.prefetched = fingerprints.iter().rev().copied().collect();
    }

    fn decide(
        &mut self,
        cookie: &mut BatchCookie<'_>,
        fingerprint: Fingerprint,
        _: BatchId,
    ) -> DedupDecision {
        assert_eq!(
            self.prefetched.pop(),
            Some(fingerprint),
            "in the prefetched order"
        );
        assert_eq!(fingerprint, self.fingerprint(cookie));
        Self::decision(cookie.dsp_id.0, cookie.buyer_uid)
    }
}

#[derive(Debug, Default)]
struct Model {
    /// Acceptance time and buyer uid of the newest cookie of each pair.
    newest: HashMap<(String, u32), (u64, String)>,
    /// The pairs in the order of their first cookie, and whether that one was known.
    order: Vec<((String, u32), bool)>,
    counts: LedgerCounts,
    cursors: HashMap<u8, u64>,
}

impl Model {
    fn push(&mut self, chunk: &SentChunk, filtered: bool) {
        self.counts.received += chunk.cookies.len() as u64 + u64::from(chunk.missing);
        self.counts.malformed += u64::from(chunk.missing);
        for sent in &chunk.cookies {
            let cookie = sent.cookie();
            let decision =
                VaryingFilter::decision(cookie.dsp_id, format!("buyer-{}", sent.buyer).as_bytes());
            let decision = if filtered {
                decision
            } else {
                DedupDecision::Write { is_known: false }
            };
            match (sent.malformed, decision) {
                (Some(_), _) | (None, DedupDecision::InvalidTime) => self.counts.malformed += 1,
                (None, DedupDecision::Suppress) => self.counts.suppressed += 1,
                (None, DedupDecision::Stale) => self.counts.stale += 1,
                (None, DedupDecision::NoDspSlot) => self.counts.no_dsp_slot += 1,
                (None, DedupDecision::Expired) => self.counts.expired += 1,
                (None, DedupDecision::Deleted) => self.counts.deleted_on_arrival += 1,
                (None, DedupDecision::Write { is_known }) => {
                    let accepted = chunk.accepted.min(CLOCK).saturating_sub(sent.age);
                    self.insert(cookie, accepted, is_known);
                }
            }
        }
        let last = chunk.first_sequence + chunk.cookies.len() as u64 + u64::from(chunk.missing) - 1;
        let cursor = self.cursors.entry(chunk.producer).or_default();
        *cursor = last.max(*cursor);
    }

    fn insert(&mut self, cookie: v1::Cookie, accepted: u64, is_known: bool) {
        let pair = (cookie.user_id, cookie.dsp_id);
        let newer = (accepted, cookie.buyer_uid);
        match self.newest.get_mut(&pair) {
            None => {
                self.order.push((pair.clone(), is_known));
                self.newest.insert(pair, newer);
            }
            Some(known) => {
                self.counts.superseded += 1;
                // At equal times the later arrival wins.
                if known.0 <= newer.0 {
                    *known = newer;
                }
            }
        }
    }

    fn check(&self, batch: &Batch) {
        assert_eq!(batch.counts(), self.counts);
        let counts = self.counts;
        let not_written = counts.suppressed
            + counts.stale
            + counts.superseded
            + counts.malformed
            + counts.no_dsp_slot
            + counts.expired;
        assert_eq!(
            counts.received,
            not_written + batch.len() as u64,
            "every cookie is accounted for"
        );
        assert_eq!(batch.len(), self.order.len());
        for (cookie, ((user_id, dsp_id), is_known)) in batch.cookies().zip(&self.order) {
            assert_eq!(
                (cookie.user_id, cookie.dsp_id),
                (user_id.as_bytes(), DspId(*dsp_id))
            );
            let (accepted, buyer_uid) = &self.newest[&(user_id.clone(), *dsp_id)];
            assert_eq!(cookie.buyer_uid, buyer_uid.as_bytes());
            assert_eq!(cookie.accepted.0, *accepted);
            assert_eq!(cookie.is_known, *is_known);
        }
        let pair = |at: u32| {
            let cookie = batch.cookie(at as usize);
            (cookie.user_id, cookie.dsp_id)
        };
        let sorted: Vec<_> = batch.by_user().map(pair).collect();
        assert_eq!(sorted.len(), batch.len());
        assert!(sorted.windows(2).all(|two| two[0] < two[1]));
        assert_eq!(batch.cursors().len(), self.cursors.len());
        for cursor in batch.cursors() {
            assert_eq!(
                cursor.sequence.0,
                self.cursors[&cursor.producer.parse::<u8>().unwrap()]
            );
        }
    }
}

proptest! {
    #[test]
    fn batch_has_the_newest_cookie_of_each_pair_and_counts_all_others(
        chunks in sent_chunks(),
        filtered in any::<bool>(),
        cookies_max in 1..60_usize,
    ) {
        let mut batch = Batch::new(cookies_max, usize::MAX);
        let mut model = Model::default();
        for sent in &chunks {
            if batch.is_full() {
                prop_assert!(batch.len() >= cookies_max);
                batch = batch.next();
                prop_assert!(batch.is_empty());
                model = Model::default();
            }
            let (producer, chunk) = (sent.producer.to_string().into(), sent.received());
            if filtered {
                let mut filter = VaryingFilter { prefetched: Vec::new() };
                batch.push_filtered(&producer, &chunk, UnixMicros(CLOCK), &mut filter);
                prop_assert!(filter.prefetched.is_empty(), "every cookie has a decision");
            } else {
                batch.push(&producer, &chunk, UnixMicros(CLOCK));
            }
            model.push(sent, filtered);
            model.check(&batch);
        }
    }
}
