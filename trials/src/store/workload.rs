//! The cookies to write, including repeats of earlier pairs of user and DSP. Does no I/O.
//!
//! Pairs are numbered in order of their first cookie. User, DSP and buyer uid are computed from the number and the seed, and need no
//! memory. A repeat is drawn uniformly from all earlier pairs. Buyer uids have versions, one byte per pair; a changed repeat has the next
//! version.

use std::num::NonZeroU32;

use anyhow::Result;
use bench::traffic::{SyntheticCookie, Traffic, nth_word};
use proto::{
    limits::CHUNK_BYTES_DEFAULT,
    wire::{
        ChunkHeader, ChunkRef, CookieRef, FRAME_PREFIX_BYTES, HEADROOM_BYTES, StreamMessage,
        TAILROOM_BYTES, put_cookie, seal,
    },
};

use super::args::StoreArgs;

/// Separates the draws of this module from the draws of the traffic with the same seed.
const DRAWS: u64 = 0x2545_f491_4f6c_dd1d;

/// Minimum time between two chunks: the resolution of all stores.
const CHUNK_STEP_MICROS: u64 = 1_000;

/// Upper bound of an encoded cookie of this traffic.
const COOKIE_BYTES_MAX: usize = 80;

/// Generator of slices of cookies.
pub(super) struct Workload {
    pairs: Pairs,
    dsps: NonZeroU32,
    repeat: f64,
    changed: f64,
    cookies: u64,
    /// Version of the buyer uid by pair.
    versions: Vec<u8>,
    epoch: u64,
    accepted_unix_micros: u64,
}

/// A slice of cookies, encoded as chunks.
pub(super) struct Slice {
    pub(super) chunks: Vec<ChunkRef>,
    /// Whether the pair of each cookie is new, in order.
    pub(super) is_new: Vec<bool>,
}

/// The pairs at a point in time.
#[derive(Debug, Clone)]
pub(super) struct Pairs {
    traffic: Traffic,
    count: u64,
}

/// Expected cookie of a pair in the store.
pub(super) struct Expected {
    pub(super) user_id: String,
    pub(super) dsp_id: u32,
    pub(super) buyer_uid: String,
}

impl Workload {
    /// A generator that continues after the first `pairs` of the seed. The chunks have this `epoch`.
    pub(super) fn new(args: &StoreArgs, seed: u64, pairs: u64, epoch: u64) -> Self {
        let traffic = Traffic::new(seed, None).with_dsps(args.dsps);
        let known = usize::try_from(pairs).expect("pairs fit into memory");
        Self {
            pairs: Pairs {
                traffic,
                count: pairs,
            },
            dsps: args.dsps,
            repeat: args.repeat,
            changed: args.repeat_changed,
            cookies: 0,
            versions: vec![0; known],
            epoch,
            accepted_unix_micros: 0,
        }
    }

    /// Number of cookies so far.
    pub(super) fn cookies(&self) -> u64 {
        self.cookies
    }

    /// All pairs so far.
    pub(super) fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    pub(super) fn dsps(&self) -> NonZeroU32 {
        self.dsps
    }

    /// The next `cookies` in chunks with increasing acceptance times, from `now` (Unix time in microseconds).
    pub(super) fn slice(&mut self, cookies: u64, now: u64) -> Result<Slice> {
        let (mut chunks, mut is_new) = (Vec::new(), Vec::new());
        let end = self.cookies + cookies;
        while self.cookies < end {
            let first_sequence = self.cookies + 1;
            let mut buffer = Vec::with_capacity(CHUNK_BYTES_DEFAULT + TAILROOM_BYTES);
            buffer.resize(HEADROOM_BYTES, 0);
            while self.cookies < end && buffer.len() + COOKIE_BYTES_MAX <= CHUNK_BYTES_DEFAULT {
                is_new.push(self.put_next(&mut buffer));
            }
            self.accepted_unix_micros = now.max(self.accepted_unix_micros + CHUNK_STEP_MICROS);
            let header = ChunkHeader {
                epoch: self.epoch,
                first_sequence,
                count: u32::try_from(self.cookies + 1 - first_sequence)?,
                accepted_unix_micros: self.accepted_unix_micros,
            };
            let message_at = seal(&mut buffer, &header);
            let message = bytes::Bytes::from(buffer).slice(message_at + FRAME_PREFIX_BYTES..);
            match StreamMessage::decode(message)? {
                StreamMessage::Chunk(chunk) => chunks.push(chunk),
                StreamMessage::Event(_) | StreamMessage::Unknown => {
                    unreachable!("a chunk was sealed")
                }
            }
        }
        Ok(Slice { chunks, is_new })
    }

    /// Appends a cookie; returns whether its pair is new.
    fn put_next(&mut self, buffer: &mut Vec<u8>) -> bool {
        let draws = nth_word(self.pairs.traffic.seed() ^ DRAWS, self.cookies);
        self.cookies += 1;
        let is_new = self.pairs.count == 0 || fraction(nth_word(draws, 0)) >= self.repeat;
        let pair = if is_new {
            self.versions.push(0);
            self.pairs.count += 1;
            self.pairs.count - 1
        } else {
            let pair = below(nth_word(draws, 1), self.pairs.count);
            if fraction(nth_word(draws, 2)) < self.changed {
                let version = self.version(pair);
                *version = version.wrapping_add(1);
            }
            pair
        };
        let version = *self.version(pair);
        let (first, newest) = self.pairs.versions(pair, version);
        put_cookie(
            buffer,
            &CookieRef {
                buyer_uid: newest.buyer_uid(),
                ..first.to_wire()
            },
        );
        is_new
    }

    fn version(&mut self, pair: u64) -> &mut u8 {
        let at = usize::try_from(pair).expect("pairs fit into memory");
        &mut self.versions[at]
    }

    /// A sample of about `count` pairs with their newest values, or all of them.
    pub(super) fn expected(&self, count: u64) -> impl Iterator<Item = Expected> {
        let step = (self.pairs.count / count).max(1);
        let versions = (0_u64..).zip(&self.versions);
        let drawn = versions.filter(move |(pair, _)| pair % step == 0);
        drawn.map(|(pair, version)| self.pairs.expected(pair, *version))
    }
}

impl Slice {
    pub(super) fn cookies(&self) -> u64 {
        self.is_new.len() as u64
    }
}

impl Pairs {
    /// Number of pairs.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// A uniformly drawn pair in its first version.
    pub(super) fn draw(&self) -> Expected {
        self.expected(fastrand::u64(..self.count.max(1)), 0)
    }

    fn expected(&self, pair: u64, version: u8) -> Expected {
        let (first, newest) = self.versions(pair, version);
        Expected {
            user_id: first.user_id().to_owned(),
            dsp_id: first.dsp_id(),
            buyer_uid: newest.buyer_uid().to_owned(),
        }
    }

    /// The first cookie of a pair, and a cookie with its buyer uid in this version.
    fn versions(&self, pair: u64, version: u8) -> (SyntheticCookie, SyntheticCookie) {
        let first = self.traffic.cookie(0, pair);
        match version {
            0 => (first, first),
            _ => (first, self.traffic.cookie(version.into(), pair)),
        }
    }
}

/// Converts a word to a fraction from 0 to below 1.
fn fraction(word: u64) -> f64 {
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// Scales a 64-bit draw to a number below `bound`.
fn below(word: u64, bound: u64) -> u64 {
    let scaled = (u128::from(word) * u128::from(bound)) >> 64;
    u64::try_from(scaled).expect("below the bound")
}
