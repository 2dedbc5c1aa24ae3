//! The cookies a load consists of: random to look at, yet each a pure function of (seed, connection, number),
//! so that a verifier makes the same ones again and compares them with a store.
//!
//! One cookie costs about seven multiplications-and-shifts and thirty table look-ups; no allocation.

use std::num::{NonZeroU32, NonZeroU64};

/// Bytes of a user id: 20 hexadecimal digits.
pub const USER_ID_BYTES: usize = 20;

/// Fewest and most characters of a buyer uid.
pub const BUYER_UID_BYTES: std::ops::RangeInclusive<usize> = 16..=36;

/// DSPs are numbered from 1 to this, unless told otherwise.
pub const DSPS: u32 = 20;

const BUYER_UID_BYTES_MAX: usize = 36;
const BUYER_UID_LENGTHS: u32 = 21;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keeps the ids of a population apart from everything else drawn from the seed.
const POPULATION: u64 = 0x5851_f42d_4c95_7f2d;

static HEX_PAIRS: [[u8; 2]; 256] = pairs(b"0123456789abcdef");
static URL_SAFE_PAIRS: [[u8; 2]; 4096] =
    pairs(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_");

const fn pairs<const ALPHABET: usize, const PAIRS: usize>(
    alphabet: &[u8; ALPHABET],
) -> [[u8; 2]; PAIRS] {
    assert!(ALPHABET * ALPHABET == PAIRS, "every pair has its place");
    let mut pairs = [[0; 2]; PAIRS];
    let mut index = 0;
    while index < PAIRS {
        pairs[index] = [alphabet[index / ALPHABET], alphabet[index % ALPHABET]];
        index += 1;
    }
    pairs
}

/// One cookie of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticCookie {
    user_id: [u8; USER_ID_BYTES],
    dsp_id: u32,
    buyer_uid: [u8; BUYER_UID_BYTES_MAX],
    buyer_uid_bytes: usize,
}

impl SyntheticCookie {
    /// The user id: 20 hexadecimal digits.
    #[must_use]
    pub fn user_id(&self) -> &str {
        std::str::from_utf8(&self.user_id).expect("hexadecimal digits are ASCII")
    }

    /// The DSP.
    #[must_use]
    pub fn dsp_id(&self) -> u32 {
        self.dsp_id
    }

    /// The buyer uid: URL-safe characters, so that it stands in a query as it is.
    #[must_use]
    pub fn buyer_uid(&self) -> &str {
        std::str::from_utf8(self.buyer_uid_bytes()).expect("the alphabet is ASCII")
    }

    /// This cookie with the buyer uid of another.
    #[must_use]
    pub(crate) fn with_buyer_uid_of(mut self, other: &Self) -> Self {
        self.buyer_uid = other.buyer_uid;
        self.buyer_uid_bytes = other.buyer_uid_bytes;
        self
    }

    pub(crate) fn user_id_bytes(&self) -> &[u8] {
        &self.user_id
    }

    pub(crate) fn buyer_uid_bytes(&self) -> &[u8] {
        &self.buyer_uid[..self.buyer_uid_bytes]
    }
}

/// Makes the cookies of one seed.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    seed: u64,
    users: Option<NonZeroU64>,
    dsps: u32,
}

impl Traffic {
    /// Traffic of `seed`: from a population of `users` distinct users, or with a new user for every cookie.
    #[must_use]
    pub fn new(seed: u64, users: Option<NonZeroU64>) -> Self {
        Self {
            seed,
            users,
            dsps: DSPS,
        }
    }

    /// The same with DSPs from 1 to `dsps`.
    #[must_use]
    pub fn with_dsps(mut self, dsps: NonZeroU32) -> Self {
        self.dsps = dsps.get();
        self
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The cookie with this number, from 0, on this connection.
    #[must_use]
    #[inline]
    pub fn cookie(&self, connection: u64, number: u64) -> SyntheticCookie {
        let stream = nth_word(self.seed, connection);
        let words = nth_word(stream, number);
        let [dsp_draw, length_draw] = halves(nth_word(words, 0));

        let user = match self.users {
            None => nth_word(words, 1),
            Some(users) => {
                let user = nth_word(words, 1) % users;
                nth_word(self.seed ^ POPULATION, user)
            }
        };
        let mut user_id = [0; USER_ID_BYTES];
        let bytes = user
            .to_le_bytes()
            .into_iter()
            .chain(nth_word(user, 0).to_le_bytes());
        for (pair, byte) in user_id.chunks_exact_mut(2).zip(bytes) {
            pair.copy_from_slice(&HEX_PAIRS[usize::from(byte)]);
        }

        let mut buyer_uid = [0; BUYER_UID_BYTES_MAX];
        for (index, ten) in (2..).zip(buyer_uid.chunks_mut(10)) {
            let mut word = nth_word(words, index);
            for pair in ten.chunks_exact_mut(2) {
                pair.copy_from_slice(&URL_SAFE_PAIRS[low_12_bits(word)]);
                word >>= 12;
            }
        }
        SyntheticCookie {
            user_id,
            dsp_id: 1 + below(dsp_draw, self.dsps),
            buyer_uid,
            buyer_uid_bytes: BUYER_UID_BYTES.start()
                + below(length_draw, BUYER_UID_LENGTHS) as usize,
        }
    }
}

/// The `index`-th word of the random sequence that begins at `state` (splitmix64).
#[inline]
pub(crate) fn nth_word(state: u64, index: u64) -> u64 {
    let mut word = state.wrapping_add(GOLDEN.wrapping_mul(index.wrapping_add(1)));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

fn low_12_bits(word: u64) -> usize {
    let [low, high, ..] = word.to_le_bytes();
    usize::from(u16::from_le_bytes([low, high & 0x0f]))
}

/// Scales a draw from all 32-bit numbers to one below `bound`.
fn below(draw: u32, bound: u32) -> u32 {
    let [_, upper] = halves(u64::from(draw) * u64::from(bound));
    upper
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn cookies_differ_and_stay_in_their_ranges() {
        let traffic = Traffic::new(7, None);
        let (mut users, mut buyers) = (HashSet::new(), HashSet::new());
        let (mut dsps, mut lengths) = (HashSet::new(), HashSet::new());
        for connection in 0..4 {
            for number in 0..5_000 {
                let cookie = traffic.cookie(connection, number);
                assert!(cookie.user_id().bytes().all(|b| b.is_ascii_hexdigit()));
                assert!(users.insert(cookie.user_id().to_owned()));
                assert!(buyers.insert(cookie.buyer_uid().to_owned()));
                dsps.insert(cookie.dsp_id());
                lengths.insert(cookie.buyer_uid().len());
            }
        }
        assert_eq!(dsps, (1..=DSPS).collect());
        assert_eq!(lengths, BUYER_UID_BYTES.collect());
    }

    #[test]
    fn same_seed_makes_the_same_cookies_and_another_seed_others() {
        let cookie = |seed| Traffic::new(seed, None).cookie(3, 99);
        assert_eq!(cookie(1), cookie(1));
        assert_ne!(cookie(1), cookie(2));
    }

    #[test]
    fn population_bounds_the_users() {
        let traffic = Traffic::new(1, NonZeroU64::new(10));
        let users: HashSet<_> = (0..1_000)
            .map(|number| traffic.cookie(number % 3, number).user_id().to_owned())
            .collect();
        assert_eq!(users.len(), 10);
    }
}
