//! Numbers that must not be confused: times of the wall clock, sequence numbers, epochs and DSPs.
//!
//! A time has no arithmetic with another clock, and a sequence number none with another epoch's: only the differences and offsets
//! below. `.0` is the number as messages and files have it.

use std::{fmt, num::ParseIntError, ops, str::FromStr};

use serde::{Deserialize, Serialize};

/// Defines a unit, which is displayed as its number.
macro_rules! unit {
    ($(#[$doc:meta])* $unit:ident($number:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $unit(pub $number);

        impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit! {
    /// A time of a wall clock, in microseconds since the Unix epoch.
    UnixMicros(u64)
}

unit! {
    /// Number of a cookie in its epoch, from 1; 0 is before the first.
    Sequence(u64)
}

unit! {
    /// A run of a producer, in which sequence numbers are unique. Epochs have an order in time only within one producer.
    Epoch(u64)
}

unit! {
    /// A DSP, from 1.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    DspId(u32)
}

impl UnixMicros {
    /// 0, where a time is unknown or there is none. It is before all others.
    pub const NONE: Self = Self(0);

    /// The latest time.
    pub const MAX: Self = Self(u64::MAX);

    /// Microseconds since `earlier`; 0 if that is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time this many microseconds later.
    #[must_use]
    #[inline]
    pub const fn after(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// The time this many microseconds earlier; 0 if that is before the Unix epoch.
    #[must_use]
    #[inline]
    pub const fn before(self, micros: u64) -> Self {
        Self(self.0.saturating_sub(micros))
    }

    /// Microseconds by which this clock is ahead of one that shows `other` now; negative if it is behind.
    #[inline]
    pub const fn ahead_of(self, other: Self) -> i64 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// The time of a clock that is ahead by this many microseconds, when this one shows this time.
    #[must_use]
    #[inline]
    pub const fn offset_by(self, ahead_micros: i64) -> Self {
        Self(self.0.saturating_add_signed(ahead_micros))
    }
}

impl Sequence {
    /// The number of the first cookie.
    pub const FIRST: Self = Self(1);

    /// The highest number.
    pub const MAX: Self = Self(u64::MAX);

    /// Number of cookies after `earlier`, up to this one; 0 if that is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The next number; of the last one, itself.
    #[must_use]
    #[inline]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The number this many cookies earlier; 0 if there is none.
impl ops::Sub<u64> for Sequence {
    type Output = Self;

    #[inline]
    fn sub(self, cookies: u64) -> Self {
        Self(self.0.saturating_sub(cookies))
    }
}

/// The number this many cookies later. Numbers do not overflow: a chunk whose numbers would is rejected.
impl ops::Add<u64> for Sequence {
    type Output = Self;

    #[inline]
    fn add(self, cookies: u64) -> Self {
        Self(self.0 + cookies)
    }
}

impl DspId {
    /// 0, where a message names no DSP.
    pub const NONE: Self = Self(0);

    /// Whether this is a DSP.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 > 0
    }
}

impl FromStr for DspId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}
