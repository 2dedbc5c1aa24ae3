//! How long cookies live, DSP by DSP. Pure.

use std::{collections::BTreeMap, time::Duration};

/// The time to live of every DSP's cookies, counted from when they were accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ttls {
    default: Duration,
    by_dsp: BTreeMap<u32, Duration>,
}

impl Ttls {
    /// `default` for all DSPs but those named.
    #[must_use]
    pub fn new(default: Duration, by_dsp: BTreeMap<u32, Duration>) -> Self {
        Self { default, by_dsp }
    }

    /// The time to live of one DSP's cookies.
    #[must_use]
    pub fn of(&self, dsp_id: u32) -> Duration {
        self.by_dsp.get(&dsp_id).copied().unwrap_or(self.default)
    }

    /// The longest of all.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let named = self.by_dsp.values().copied();
        named.fold(self.default, Duration::max)
    }

    /// What cookies of `dsp_id` were accepted before, if they have expired at `now`; both in microseconds since
    /// the Unix epoch.
    #[must_use]
    pub fn expired_before(&self, dsp_id: u32, now: u64) -> u64 {
        before(now, self.of(dsp_id))
    }
}

/// The moment that lies `age` before `now`; both in microseconds since the Unix epoch.
pub(crate) fn before(now: u64, age: Duration) -> u64 {
    now.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dsp_may_have_its_own() {
        let day = Duration::from_secs(86_400);
        let ttls = Ttls::new(14 * day, [(17, 7 * day), (3, 30 * day)].into());
        assert_eq!(
            [1, 3, 17].map(|dsp| ttls.of(dsp) / 86_400),
            [14, 30, 7].map(Duration::from_secs)
        );
        assert_eq!(ttls.longest(), 30 * day);
        assert_eq!(ttls.expired_before(17, 604_801_000_000), 1_000_000);
        assert_eq!(ttls.expired_before(17, 5), 0);
    }
}
