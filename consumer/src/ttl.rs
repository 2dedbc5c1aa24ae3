//! Times to live of cookies, by DSP. Pure.

use std::{collections::BTreeMap, time::Duration};

/// TTLs of cookies, counted from acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ttls {
    default: Duration,
    by_dsp: BTreeMap<u32, Duration>,
}

impl Ttls {
    /// `default` applies to all DSPs that are not in `by_dsp`.
    #[must_use]
    pub fn new(default: Duration, by_dsp: BTreeMap<u32, Duration>) -> Self {
        Self { default, by_dsp }
    }

    /// The TTL of a DSP's cookies.
    #[must_use]
    pub fn of(&self, dsp_id: u32) -> Duration {
        self.by_dsp.get(&dsp_id).copied().unwrap_or(self.default)
    }

    /// The maximum TTL.
    #[must_use]
    pub fn max(&self) -> Duration {
        let named = self.by_dsp.values().copied();
        named.fold(self.default, Duration::max)
    }

    /// Cookies of `dsp_id` accepted before this time have expired at `now`. Both in microseconds since the Unix epoch.
    #[must_use]
    pub fn expired_before(&self, dsp_id: u32, now: u64) -> u64 {
        before(now, self.of(dsp_id))
    }
}

/// `now` minus `age`, in microseconds since the Unix epoch.
pub(crate) fn before(now: u64, age: Duration) -> u64 {
    now.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dsp_ttl_overrides_the_default() {
        let day = Duration::from_secs(86_400);
        let ttls = Ttls::new(14 * day, [(17, 7 * day), (3, 30 * day)].into());
        assert_eq!(
            [1, 3, 17].map(|dsp| ttls.of(dsp) / 86_400),
            [14, 30, 7].map(Duration::from_secs)
        );
        assert_eq!(ttls.max(), 30 * day);
        assert_eq!(ttls.expired_before(17, 604_801_000_000), 1_000_000);
        assert_eq!(ttls.expired_before(17, 5), 0);
    }
}
