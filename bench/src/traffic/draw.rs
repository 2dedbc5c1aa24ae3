//! What is drawn for a cookie: a user of a population, a DSP, and whether something happens.

use std::{
    convert::Infallible,
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
};

use rand_core::TryRng;
use rand_distr::{Distribution, Zipf};

use super::{below, halves, nth_word};

/// How users are drawn from a population.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Draw {
    /// Each user as often as any other.
    Uniform,
    /// The user of rank r, from 1, in proportion to 1 / r to the power of this exponent: few come often, most
    /// seldom, as browsers do. With an exponent of 1 a cookie takes 81 ns instead of 36, with another about 220
    /// (100 million users; measured by the test `a_cookie_costs`).
    Zipf(f64),
}

/// Distinct users, and how often each comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Population {
    users: NonZeroU64,
    zipf: Option<Zipf<f64>>,
}

/// Something that happens with a fixed probability.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chance {
    /// Draws below this are hits; up to 2^64.
    hits_below: u128,
}

/// DSPs, and how often each comes.
#[derive(Debug, Clone)]
pub(super) enum Dsps {
    /// From 1 to this, each as often as any other.
    Equal(u32),
    /// DSP i + 1 is drawn below the i-th bound and not below the one before it; the last is 2^32.
    Weighted(Arc<[u64]>),
}

impl Population {
    /// So many users, each as likely as any other.
    pub(super) fn new(users: NonZeroU64) -> Self {
        Self { users, zipf: None }
    }

    /// The same drawn in this way.
    pub(super) fn drawn(self, draw: Draw) -> Self {
        let zipf = match draw {
            Draw::Uniform => None,
            Draw::Zipf(exponent) => Some(
                Zipf::new(self.users.get() as f64, exponent)
                    .expect("there is a user, and the exponent is not negative"),
            ),
        };
        Self { zipf, ..self }
    }

    /// A user's number, from 0; with Zipf, the lower the more frequent.
    #[inline]
    pub(super) fn draw(&self, words: u64) -> u64 {
        let Some(zipf) = &self.zipf else {
            return nth_word(words, 1) % self.users;
        };
        let mut random = Words {
            state: nth_word(words, 1),
            index: 0,
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a rank is whole, and from 1"
        )]
        let rank = zipf.sample(&mut random) as u64;
        // A rank is not above the number of users, but for the rounding of a float.
        rank.clamp(1, self.users.get()) - 1
    }
}

impl Chance {
    /// That of `probability`, from 0 to 1.
    pub(crate) fn new(probability: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float cast saturates, at 0 too"
        )]
        let hits_below = (probability.min(1.0) * 2_f64.powi(64)) as u128;
        Self { hits_below }
    }

    /// True when it never happens.
    pub(crate) fn is_never(&self) -> bool {
        self.hits_below == 0
    }

    /// Whether it happens with this draw of all 64-bit words.
    #[inline]
    pub(crate) fn hits(&self, draw: u64) -> bool {
        u128::from(draw) < self.hits_below
    }
}

impl Dsps {
    /// In these shares; the first is DSP 1's.
    pub(super) fn weighted(shares: &[NonZeroU32]) -> Self {
        let weights = || shares.iter().map(|share| u64::from(share.get()));
        let total = u128::from(weights().sum::<u64>());
        let bounds = weights().scan(0, |sum, weight| {
            *sum += weight;
            let bound = (u128::from(*sum) << u32::BITS) / total;
            Some(u64::try_from(bound).expect("no part exceeds the whole, which is 2^32"))
        });
        Self::Weighted(bounds.collect())
    }

    #[inline]
    pub(super) fn draw(&self, draw: u32) -> u32 {
        match self {
            Self::Equal(dsps) => 1 + below(draw, *dsps),
            Self::Weighted(bounds) => {
                let index = bounds.partition_point(|&bound| bound <= u64::from(draw));
                1 + u32::try_from(index).expect("there are not so many DSPs")
            }
        }
    }
}

/// The random sequence of [`nth_word`] as a generator.
struct Words {
    state: u64,
    index: u64,
}

impl TryRng for Words {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let [low, _] = halves(self.try_next_u64()?);
        Ok(low)
    }

    #[inline]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let word = nth_word(self.state, self.index);
        self.index += 1;
        Ok(word)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for part in bytes.chunks_mut(8) {
            let word = self.try_next_u64()?.to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
        Ok(())
    }
}
