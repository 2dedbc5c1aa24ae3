//! The cookies of a load. Each is a pseudo-random function of seed, connection and number, so that verification can generate
//! them again.
//!
//! A cookie costs about seven multiply-and-shift rounds and thirty table lookups, without allocation.

use std::num::{NonZeroU32, NonZeroU64};

use proto::{units::DspId, wire::CookieRef};

/// Bytes of a user id: 20 hexadecimal digits.
pub const USER_ID_BYTES: usize = 20;

/// Range of the length of a buyer uid.
pub const BUYER_UID_BYTES: std::ops::RangeInclusive<usize> = 16..=36;

/// Default number of DSPs. Their ids start at 1.
pub const DSPS: u32 = 20;

/// Fraction of repeated pairs of user and DSP whose buyer uid differs from the previous one, in loads with a number of users.
pub const REPEATS_CHANGED: f64 = 0.1;

const BUYER_UID_BYTES_MAX: usize = 36;
const BUYER_UID_LENGTHS: u32 = 21;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Separates the ids of a population from other draws of the seed.
const POPULATION: u64 = 0x5851_f42d_4c95_7f2d;
/// Separates the freshness of a buyer uid from other draws of a cookie.
const FRESHNESS: u64 = 0x1405_7b7e_f767_814f;
/// Separates the lasting buyer uids of a user from the second half of the user id.
const LASTING: u64 = 0xda94_2042_e4dd_58b5;

static HEX_PAIRS: [[u8; 2]; 256] = pairs(b"0123456789abcdef");
static URL_SAFE_PAIRS: [[u8; 2]; 4096] =
    pairs(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_");

const fn pairs<const ALPHABET: usize, const PAIRS: usize>(
    alphabet: &[u8; ALPHABET],
) -> [[u8; 2]; PAIRS] {
    assert!(ALPHABET * ALPHABET == PAIRS, "the table has all pairs");
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
    pub fn user_id(&self) -> &str {
        std::str::from_utf8(&self.user_id).expect("hexadecimal digits are ASCII")
    }

    /// The DSP id.
    pub fn dsp_id(&self) -> u32 {
        self.dsp_id
    }

    /// The buyer uid, in URL-safe characters.
    pub fn buyer_uid(&self) -> &str {
        std::str::from_utf8(self.buyer_uid_bytes()).expect("the alphabet is ASCII")
    }

    /// The cookie for the wire.
    pub fn to_wire(&self) -> CookieRef<'_> {
        CookieRef {
            user_id: self.user_id(),
            dsp_id: DspId(self.dsp_id),
            buyer_uid: self.buyer_uid(),
            age_micros: 0,
        }
    }

    pub(crate) fn user_id_bytes(&self) -> &[u8] {
        &self.user_id
    }

    pub(crate) fn buyer_uid_bytes(&self) -> &[u8] {
        &self.buyer_uid[..self.buyer_uid_bytes]
    }
}

/// Generator of the cookies of one seed.
#[derive(Debug, Clone)]
pub struct Traffic {
    seed: u64,
    /// Number of distinct users; `None` gives each cookie a new user.
    users: Option<NonZeroU64>,
    /// A buyer uid is fresh if its 64-bit draw is below this bound, which is up to 2^64.
    fresh_below: u128,
    dsps: u32,
    /// Number of DSP ids below the first one.
    dsps_before: u32,
}

impl Traffic {
    /// Traffic of `seed` with uniformly distributed `users`, or with a new user for each cookie. Every buyer uid is new.
    pub fn new(seed: u64, users: Option<NonZeroU64>) -> Self {
        Self {
            seed,
            users,
            fresh_below: 1 << 64,
            dsps: DSPS,
            dsps_before: 0,
        }
    }

    /// Sets the number of DSPs.
    pub fn with_dsps(mut self, dsps: NonZeroU32) -> Self {
        self.dsps = dsps.get();
        self
    }

    /// Sets the first DSP id. The last one must fit into 32 bits.
    pub fn with_first_dsp(mut self, first: NonZeroU32) -> Self {
        self.dsps_before = first.get() - 1;
        self
    }

    /// Sets the fraction (0 to 1) of repeated pairs of user and DSP whose buyer uid differs from the previous one.
    ///
    /// A pair of user and DSP has one lasting buyer uid; a cookie has a fresh one instead with probability p. Two
    /// successive ones are equal only if neither is fresh, so p = 1 − √(1 − `changed`).
    pub fn with_repeats_changed(mut self, changed: f64) -> Self {
        let fresh = 1.0 - (1.0 - changed.clamp(0.0, 1.0)).sqrt();
        #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
        let fresh_below = (fresh * 2_f64.powi(64)) as u128;
        self.fresh_below = fresh_below;
        self
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The cookie with this number (from 0) on this connection.
    ///
    /// All connections share the users of a population and their lasting buyer uids.
    #[inline]
    pub fn cookie(&self, connection: u64, number: u64) -> SyntheticCookie {
        let stream = nth_word(self.seed, connection);
        let words = nth_word(stream, number);
        let [dsp_draw, length_draw] = halves(nth_word(words, 0));
        let dsp_id = self.dsps_before + 1 + below(dsp_draw, self.dsps);

        let user = match self.users {
            None => nth_word(words, 1),
            Some(users) => self.user(nth_word(words, 1) % users),
        };
        if u128::from(nth_word(words ^ FRESHNESS, 0)) < self.fresh_below {
            return SyntheticCookie::new(user_id(user), dsp_id, words, length_draw);
        }
        lasting(user, dsp_id)
    }

    /// Id of the population's user with this number. Numbers from the size of the population on are unknown users.
    #[inline]
    pub fn user_id(&self, number: u64) -> [u8; USER_ID_BYTES] {
        user_id(self.user(number))
    }

    /// The cookie with the lasting buyer uid of the population's user with this number.
    #[inline]
    pub fn lasting(&self, number: u64, dsp_id: u32) -> SyntheticCookie {
        lasting(self.user(number), dsp_id)
    }

    fn user(&self, number: u64) -> u64 {
        nth_word(self.seed ^ POPULATION, number)
    }
}

#[inline]
fn user_id(user: u64) -> [u8; USER_ID_BYTES] {
    let mut user_id = [0; USER_ID_BYTES];
    let bytes = user
        .to_le_bytes()
        .into_iter()
        .chain(nth_word(user, 0).to_le_bytes());
    for (pair, byte) in user_id.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&HEX_PAIRS[usize::from(byte)]);
    }
    user_id
}

#[inline]
fn lasting(user: u64, dsp_id: u32) -> SyntheticCookie {
    let lasting = nth_word(user ^ LASTING, u64::from(dsp_id));
    let [_, length_draw] = halves(nth_word(lasting, 0));
    SyntheticCookie::new(user_id(user), dsp_id, lasting, length_draw)
}

impl SyntheticCookie {
    #[inline]
    fn new(user_id: [u8; USER_ID_BYTES], dsp_id: u32, words: u64, length_draw: u32) -> Self {
        let mut buyer_uid = [0; BUYER_UID_BYTES_MAX];
        for (index, ten) in (2..).zip(buyer_uid.chunks_mut(10)) {
            let mut word = nth_word(words, index);
            for pair in ten.chunks_exact_mut(2) {
                pair.copy_from_slice(&URL_SAFE_PAIRS[low_12_bits(word)]);
                word >>= 12;
            }
        }
        Self {
            user_id,
            dsp_id,
            buyer_uid,
            buyer_uid_bytes: BUYER_UID_BYTES.start()
                + below(length_draw, BUYER_UID_LENGTHS) as usize,
        }
    }
}

/// Word `index` of the splitmix64 sequence with the seed `state`.
#[inline]
pub fn nth_word(state: u64, index: u64) -> u64 {
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

/// Scales a 32-bit draw to a number below `bound`.
fn below(draw: u32, bound: u32) -> u32 {
    let [_, upper] = halves(u64::from(draw) * u64::from(bound));
    upper
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proto::ids;

    use super::*;

    fn users(users: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(users)
    }

    fn draws(traffic: &Traffic, count: u64) -> impl Iterator<Item = SyntheticCookie> {
        (0..count).map(|number| traffic.cookie(number % 3, number))
    }

    /// Allows four standard deviations. The draws are seeded, so the result never changes.
    #[track_caller]
    fn check_count(count: u64, draws: u64, probability: f64) {
        let expected = draws as f64 * probability;
        let off = (count as f64 - expected).abs();
        let deviation = (expected * (1.0 - probability)).sqrt();
        assert!(off <= 4.0 * deviation, "{count} instead of {expected}");
    }

    #[test]
    fn cookies_are_distinct_and_valid() {
        let traffic = Traffic::new(7, None);
        let (mut users, mut buyers) = (HashSet::new(), HashSet::new());
        let (mut dsps, mut lengths) = (HashSet::new(), HashSet::new());
        for connection in 0..4 {
            for number in 0..5_000 {
                let cookie = traffic.cookie(connection, number);
                assert!(cookie.user_id().bytes().all(|b| b.is_ascii_hexdigit()));
                let user_id = ids::check_user_cookie(cookie.user_id().as_bytes(), USER_ID_BYTES);
                assert_eq!(user_id, Ok(cookie.user_id()));
                let buyer_uid = ids::check_buyer_uid(cookie.buyer_uid(), BUYER_UID_BYTES_MAX);
                assert_eq!(buyer_uid, Ok(()));
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
    fn cookies_depend_on_the_seed() {
        let cookie = |seed| Traffic::new(seed, None).cookie(3, 99);
        assert_eq!(cookie(1), cookie(1));
        assert_ne!(cookie(1), cookie(2));
    }

    #[test]
    fn population_limits_the_number_of_users() {
        let traffic = Traffic::new(1, users(10));
        let drawn: HashSet<_> = draws(&traffic, 1_000)
            .map(|cookie| cookie.user_id)
            .collect();
        assert_eq!(drawn.len(), 10);
    }

    #[test]
    fn population_is_the_same_on_every_connection() {
        let traffic = Traffic::new(1, users(10));
        let on = |connection| -> HashSet<_> {
            let cookies = (0..1_000).map(|number| traffic.cookie(connection, number));
            cookies.map(|cookie| cookie.user_id).collect()
        };
        assert_eq!((on(0).len(), on(0)), (10, on(9)));
    }

    #[test]
    fn lasting_cookies_are_those_that_a_load_repeats() {
        let traffic = Traffic::new(5, users(50)).with_dsps(NonZeroU32::new(3).unwrap());
        let repeated = traffic.clone().with_repeats_changed(0.0);
        let drawn: HashSet<_> = draws(&repeated, 5_000)
            .map(|cookie| {
                (
                    cookie.user_id,
                    cookie.dsp_id(),
                    cookie.buyer_uid().to_owned(),
                )
            })
            .collect();
        let lasting: HashSet<_> = (0..50)
            .flat_map(|user| (1..=3).map(move |dsp| (user, dsp)))
            .map(|(user, dsp)| {
                let cookie = traffic.lasting(user, dsp);
                assert_eq!(cookie.user_id, traffic.user_id(user));
                (cookie.user_id, dsp, cookie.buyer_uid().to_owned())
            })
            .collect();
        assert_eq!(drawn, lasting);
        let unknown: HashSet<_> = (50..1_000).map(|user| traffic.user_id(user)).collect();
        assert_eq!(unknown.len(), 950);
        assert!(drawn.iter().all(|(user, ..)| !unknown.contains(user)));
    }

    #[test]
    fn configured_fraction_of_repeats_changes_the_buyer_uid() {
        for changed in [0.0, 0.1, 0.5, 1.0] {
            let traffic = Traffic::new(3, users(200)).with_repeats_changed(changed);
            let mut last = HashMap::new();
            let (mut repeats, mut changes) = (0, 0);
            for cookie in draws(&traffic, 100_000) {
                let pair = (cookie.user_id, cookie.dsp_id());
                let buyer = cookie.buyer_uid().to_owned();
                if let Some(before) = last.insert(pair, buyer.clone()) {
                    repeats += 1;
                    changes += u64::from(before != buyer);
                }
            }
            assert_eq!(repeats, 100_000 - 200 * u64::from(DSPS));
            check_count(changes, repeats, changed);
        }
    }

    #[test]
    fn dsp_ids_start_at_the_first() {
        let of = |dsps, first| {
            let [dsps, first] = [dsps, first].map(|number| NonZeroU32::new(number).unwrap());
            let traffic = Traffic::new(3, None).with_dsps(dsps).with_first_dsp(first);
            let dsps = draws(&traffic, 100).map(|cookie| cookie.dsp_id());
            dsps.collect::<HashSet<_>>()
        };
        assert_eq!(of(3, 1), (1..=3).collect());
        assert_eq!(of(1, 20), [20].into());
        assert_eq!(of(2, u32::MAX - 1), [u32::MAX - 1, u32::MAX].into());
    }

    #[test]
    fn dsps_are_uniformly_distributed() {
        let traffic = Traffic::new(3, None).with_dsps(NonZeroU32::new(4).unwrap());
        let mut counts = HashMap::new();
        for cookie in draws(&traffic, 100_000) {
            *counts.entry(cookie.dsp_id()).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 4);
        for dsp in 1..=4 {
            check_count(counts[&dsp], 100_000, 0.25);
        }
    }
}
