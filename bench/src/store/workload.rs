//! The cookies that are written: how many repeat a pair of user and DSP, and with what. Pure.
//!
//! Pairs are numbered as they first come; the number and the seed give user, DSP and buyer uid, so no ids are kept. A
//! repeat takes one of all pairs sent before, each as likely as any other. Buyer uids have versions; a changed repeat
//! has the next one. Versions are counted in one byte a pair, and only where repeats change at all.

use std::{collections::HashMap, num::NonZeroU32};

use proto::{
    limits::CHUNK_BYTES_DEFAULT,
    wire::{
        ChunkHeader, ChunkRef, FRAME_PREFIX_BYTES, HEADROOM_BYTES, Received, TAILROOM_BYTES,
        WireError, put_cookie, seal,
    },
};

use crate::traffic::{SyntheticCookie, Traffic, nth_word};

/// Keep what is drawn here apart from what the traffic draws from the same seed.
const DRAWS: u64 = 0x2545_f491_4f6c_dd1d;
const SAMPLES: u64 = 0xd6e8_feb8_6659_fd93;

/// Between half of this and this many pairs are remembered for the verification, or all when there are fewer.
const SAMPLE_MAX: usize = 20_000;

/// Chunks are accepted at least so far apart: the finest step that every store can tell.
const CHUNK_STEP_MICROS: u64 = 1_000;

/// What shares of the cookies are repeats, and of those are changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    pub(super) repeat: f64,
    pub(super) changed: f64,
}

/// Makes one slice of cookies after the other.
#[derive(Debug)]
pub(super) struct Workload {
    traffic: Traffic,
    shares: Shares,
    cookies: u64,
    pairs: u64,
    changes: u64,
    /// By pair; empty when nothing changes.
    versions: Vec<u8>,
    sample: Sample,
    epoch: u64,
    accepted_unix_micros: u64,
}

/// A run of cookies, as a producer would send them.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) chunks: Vec<ChunkRef>,
    /// For each cookie, in order, whether its pair comes for the first time.
    pub(super) is_new: Vec<bool>,
}

/// What the store should have of one pair in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) user_id: String,
    pub(super) dsp_id: u32,
    pub(super) buyer_uid: String,
}

/// The pairs there are at some moment.
#[derive(Debug, Clone)]
pub(super) struct Pairs {
    traffic: Traffic,
    count: u64,
}

/// Some of the pairs, drawn without regard to when they came, with their newest version.
#[derive(Debug)]
struct Sample {
    seed: u64,
    /// A pair is in when its hash ends in so many zero bits.
    zeros: u32,
    versions: HashMap<u64, u8>,
}

impl Workload {
    /// Goes on after `pairs`, the first of the same seed, each in its first version. `epoch` is that of the chunks.
    pub(super) fn new(seed: u64, dsps: NonZeroU32, shares: Shares, pairs: u64, epoch: u64) -> Self {
        let versions = match shares.changed > 0.0 {
            true => vec![0; usize::try_from(pairs).expect("a pair has a place in memory")],
            false => Vec::new(),
        };
        Self {
            traffic: Traffic::new(seed, None).with_dsps(dsps),
            shares,
            cookies: 0,
            pairs,
            changes: 0,
            versions,
            sample: Sample {
                seed: seed ^ SAMPLES,
                zeros: 0,
                versions: HashMap::new(),
            },
            epoch,
            accepted_unix_micros: 0,
        }
    }

    /// The cookies made so far.
    pub(super) fn cookies(&self) -> u64 {
        self.cookies
    }

    /// The distinct pairs among them and before them.
    pub(super) fn pairs(&self) -> u64 {
        self.pairs
    }

    /// The pairs there are now, to draw from.
    pub(super) fn all_pairs(&self) -> Pairs {
        Pairs {
            traffic: self.traffic.clone(),
            count: self.pairs,
        }
    }

    /// The repeats that changed a buyer uid.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The next `cookies`, in chunks each accepted after the one before and not before `now`, in microseconds since
    /// the Unix epoch.
    pub(super) fn slice(&mut self, cookies: u64, now: u64) -> Result<Slice, WireError> {
        let mut slice = Slice {
            chunks: Vec::new(),
            is_new: Vec::new(),
        };
        let end = self.cookies + cookies;
        while self.cookies < end {
            let first_sequence = self.cookies + 1;
            let mut buffer = Vec::with_capacity(CHUNK_BYTES_DEFAULT + TAILROOM_BYTES);
            buffer.resize(HEADROOM_BYTES, 0);
            while self.cookies < end && buffer.len() + COOKIE_BYTES_MAX <= CHUNK_BYTES_DEFAULT {
                let (cookie, is_new) = self.next();
                put_cookie(&mut buffer, &cookie.to_wire());
                slice.is_new.push(is_new);
            }
            self.accepted_unix_micros = now.max(self.accepted_unix_micros + CHUNK_STEP_MICROS);
            let header = ChunkHeader {
                epoch: self.epoch,
                first_sequence,
                count: u32::try_from(self.cookies + 1 - first_sequence)
                    .expect("a chunk holds few cookies"),
                accepted_unix_micros: self.accepted_unix_micros,
            };
            slice.chunks.push(sealed(buffer, &header)?);
        }
        Ok(slice)
    }

    /// A sample of the pairs, each with its newest value.
    pub(super) fn expected(&self) -> Vec<Expected> {
        let expected = |(pair, version): (&u64, &u8)| Expected::of(&self.cookie(*pair, *version));
        self.sample.versions.iter().map(expected).collect()
    }

    fn next(&mut self) -> (SyntheticCookie, bool) {
        let draws = nth_word(self.traffic.seed() ^ DRAWS, self.cookies);
        self.cookies += 1;
        let is_new = self.pairs == 0 || share(nth_word(draws, 0)) >= self.shares.repeat;
        let (pair, version) = if is_new {
            self.pairs += 1;
            if self.shares.changed > 0.0 {
                self.versions.push(0);
            }
            (self.pairs - 1, 0)
        } else {
            let pair = below(nth_word(draws, 1), self.pairs);
            let is_changed = share(nth_word(draws, 2)) < self.shares.changed;
            (pair, self.version(pair, is_changed))
        };
        self.sample.note(pair, version);
        (self.cookie(pair, version), is_new)
    }

    /// The version of a pair's buyer uid, the next one if it `is_changed`. After 256 the first comes again.
    fn version(&mut self, pair: u64, is_changed: bool) -> u8 {
        let at = usize::try_from(pair).expect("a pair has a place in memory");
        let Some(version) = self.versions.get_mut(at) else {
            return 0;
        };
        if is_changed {
            *version = version.wrapping_add(1);
            self.changes += 1;
        }
        *version
    }

    fn cookie(&self, pair: u64, version: u8) -> SyntheticCookie {
        let cookie = self.traffic.cookie(0, pair);
        match version {
            0 => cookie,
            _ => cookie.with_buyer_uid_of(&self.traffic.cookie(version.into(), pair)),
        }
    }
}

impl Slice {
    /// The number of cookies.
    pub(super) fn cookies(&self) -> u64 {
        self.is_new.len() as u64
    }

    /// The sequence of the last cookie; 0 when there is none.
    pub(super) fn last_sequence(&self) -> u64 {
        self.chunks
            .last()
            .map_or(0, |chunk| chunk.header().last_sequence())
    }
}

impl Pairs {
    /// How many.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// One of them, each as likely as any other, as it first came.
    pub(super) fn draw(&self) -> Expected {
        let pair = fastrand::u64(..self.count.max(1));
        Expected::of(&self.traffic.cookie(0, pair))
    }
}

impl Expected {
    fn of(cookie: &SyntheticCookie) -> Self {
        Self {
            user_id: cookie.user_id().to_owned(),
            dsp_id: cookie.dsp_id(),
            buyer_uid: cookie.buyer_uid().to_owned(),
        }
    }
}

impl Sample {
    fn note(&mut self, pair: u64, version: u8) {
        if self.has(pair) {
            self.versions.insert(pair, version);
            while self.versions.len() > SAMPLE_MAX {
                self.zeros += 1;
                let mut versions = std::mem::take(&mut self.versions);
                versions.retain(|pair, _| self.has(*pair));
                self.versions = versions;
            }
        }
    }

    fn has(&self, pair: u64) -> bool {
        nth_word(self.seed, pair).trailing_zeros() >= self.zeros
    }
}

/// More than a cookie of this traffic takes in a chunk.
const COOKIE_BYTES_MAX: usize = 80;

/// As the consumer receives it: the message without its length prefix.
fn sealed(mut buffer: Vec<u8>, header: &ChunkHeader) -> Result<ChunkRef, WireError> {
    let message_at = seal(&mut buffer, header);
    let message = bytes::Bytes::from(buffer).slice(message_at + FRAME_PREFIX_BYTES..);
    match Received::decode(message)? {
        Received::Chunk(chunk) => Ok(chunk),
        Received::Event(_) | Received::Unknown => unreachable!("a chunk was sealed"),
    }
}

/// A draw from 0 up to, not including, 1.
fn share(word: u64) -> f64 {
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// Scales a draw from all 64-bit numbers to one below `bound`.
fn below(word: u64, bound: u64) -> u64 {
    let scaled = (u128::from(word) * u128::from(bound)) >> 64;
    u64::try_from(scaled).expect("below the bound")
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (String, u32);

    fn workload(repeat: f64, changed: f64) -> Workload {
        let dsps = NonZeroU32::new(7).unwrap();
        Workload::new(11, dsps, Shares { repeat, changed }, 0, 5)
    }

    /// Every cookie with its time accepted and whether it is said to be new.
    fn cookies(slice: &Slice) -> Vec<(Pair, String, u64, bool)> {
        let chunks = slice.chunks.iter().flat_map(|chunk| {
            let accepted = chunk.header().accepted_unix_micros;
            chunk
                .cookies()
                .map(move |cookie| (cookie.unwrap(), accepted))
        });
        chunks
            .zip(&slice.is_new)
            .map(|((cookie, accepted), is_new)| {
                let pair = (cookie.user_id.to_owned(), cookie.dsp_id);
                (pair, cookie.buyer_uid.to_owned(), accepted, *is_new)
            })
            .collect()
    }

    #[track_caller]
    fn check_shares(repeat: f64, changed: f64) {
        const COOKIES: u64 = 40_000;
        let mut workload = workload(repeat, changed);
        let (mut newest, mut repeats, mut changes) = (HashMap::new(), 0_u64, 0_u64);
        for slice in 0..4 {
            let slice = workload.slice(COOKIES / 4, slice).unwrap();
            for (pair, buyer_uid, _, is_new) in cookies(&slice) {
                assert!((1..=7).contains(&pair.1));
                let before = newest.insert(pair, buyer_uid.clone());
                assert_eq!(before.is_none(), is_new);
                repeats += u64::from(before.is_some());
                changes += u64::from(before.is_some_and(|before| before != buyer_uid));
            }
        }
        let is_near = |count: u64, expected: f64| (count as f64 - expected).abs() < 400.0;
        assert!(is_near(repeats, COOKIES as f64 * repeat), "{repeats}");
        assert!(is_near(changes, repeats as f64 * changed), "{changes}");
        assert_eq!(workload.changes(), changes);
        assert_eq!(workload.cookies(), COOKIES);
        assert_eq!(workload.pairs(), newest.len() as u64);

        let expected = workload.expected();
        assert!(expected.len() >= newest.len().min(SAMPLE_MAX / 2));
        for Expected {
            user_id,
            dsp_id,
            buyer_uid,
        } in expected
        {
            assert_eq!(newest[&(user_id, dsp_id)], buyer_uid);
        }
    }

    #[test]
    fn repeats_and_changes_have_their_shares_and_the_sample_their_newest_value() {
        check_shares(0.0, 0.0);
        check_shares(0.3, 0.0);
        check_shares(0.8, 0.25);
        check_shares(0.9, 1.0);
    }

    #[test]
    fn chunks_follow_each_other_in_sequence_and_time() {
        let mut workload = workload(0.5, 0.0);
        let (mut sequence, mut accepted) = (0, 0);
        for now in [5_000_000, 5_000_100, 9_000_000] {
            let slice = workload.slice(3_000, now).unwrap();
            assert!(slice.chunks.len() > 1);
            for chunk in &slice.chunks {
                let header = chunk.header();
                assert_eq!(header.first_sequence, sequence + 1);
                assert!(header.accepted_unix_micros >= (accepted + 1_000).max(now));
                assert!(chunk.body().len() <= CHUNK_BYTES_DEFAULT);
                sequence = header.last_sequence();
                accepted = header.accepted_unix_micros;
            }
            assert_eq!(slice.last_sequence(), sequence);
        }
        assert_eq!(sequence, 9_000);
    }

    #[test]
    fn what_goes_on_repeats_pairs_from_before_and_makes_new_ones_after_them() {
        let dsps = NonZeroU32::new(7).unwrap();
        let mut before = workload(0.0, 0.0);
        let before: Vec<_> = cookies(&before.slice(5_000, 0).unwrap());
        let shares = Shares {
            repeat: 0.5,
            changed: 0.0,
        };
        let mut after = Workload::new(11, dsps, shares, 5_000, 6);
        let slice = after.slice(1_000, 0).unwrap();
        let known: HashMap<_, _> = before
            .into_iter()
            .map(|(pair, buyer, ..)| (pair, buyer))
            .collect();
        let mut repeats = 0;
        for (pair, buyer, _, is_new) in cookies(&slice) {
            let had = known.get(&pair);
            assert!(!is_new || had.is_none());
            if let Some(had) = had {
                assert_eq!(*had, buyer);
                repeats += 1;
            }
        }
        assert!((300..700).contains(&repeats), "{repeats}");
        assert!((5_300..5_700).contains(&after.pairs()));
        assert_eq!(after.cookies(), 1_000);
    }

    #[test]
    fn same_seed_makes_the_same_cookies_however_they_are_sliced() {
        let made = |slices: &[u64]| {
            let mut workload = workload(0.6, 0.5);
            let mut made = Vec::new();
            for cookies_of_slice in slices {
                let slice = workload.slice(*cookies_of_slice, 0).unwrap();
                made.extend(
                    cookies(&slice)
                        .into_iter()
                        .map(|(pair, buyer, ..)| (pair, buyer)),
                );
            }
            made
        };
        assert_eq!(made(&[5_000]), made(&[1, 1_234, 3_765]));
    }
}
