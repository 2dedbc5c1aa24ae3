//! Times to live of cookies, by DSP. Contains no `async`.
//!
//! Producers report the times to live that their DSP contracts define. With a floor, a report shortens the configured TTL
//! of a DSP, but never below the floor. If reports differ, the longest TTL applies. With a floor, a lookup costs an
//! uncontended read lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use proto::{
    limits::CONTRACTS_MAX,
    units::{DspId, UnixMicros},
    v1::TimesToLive,
};

/// TTLs of cookies, counted from acceptance. Clones share the reports.
#[derive(Debug, Clone)]
pub struct Ttls {
    default: Duration,
    by_dsp: BTreeMap<DspId, Duration>,
    /// The floor and the reports; `None` if reports are ignored.
    reported: Option<(Duration, Arc<RwLock<Reports>>)>,
}

#[derive(Debug, Default)]
struct Reports {
    by_address: BTreeMap<SocketAddr, Report>,
    longest: Report,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Report {
    by_dsp: BTreeMap<DspId, Duration>,
    /// The TTL of all other DSPs.
    others: Option<Duration>,
}

impl Ttls {
    /// Creates TTLs: those in `by_dsp`, and `default` for all other DSPs.
    pub fn new(default: Duration, by_dsp: BTreeMap<DspId, Duration>) -> Self {
        Self {
            default,
            by_dsp,
            reported: None,
        }
    }

    /// Lets reports shorten these TTLs, but not below `floor`; `None` ignores reports.
    pub fn with_floor(mut self, floor: Option<Duration>) -> Self {
        self.reported = floor.map(|floor| (floor, Arc::default()));
        self
    }

    /// The TTL of a DSP's cookies.
    pub fn of(&self, dsp_id: DspId) -> Duration {
        let configured = self.configured(dsp_id);
        let reported = self.reported.as_ref().and_then(|(floor, reports)| {
            let reported = reports.read().longest.of(dsp_id)?;
            Some(reported.max(*floor))
        });
        reported.map_or(configured, |reported| reported.min(configured))
    }

    /// The shortest TTL of a DSP's cookies that any report can cause.
    pub fn shortest(&self, dsp_id: DspId) -> Duration {
        let configured = self.configured(dsp_id);
        let reported = self.reported.as_ref();
        reported.map_or(configured, |(floor, _)| configured.min(*floor))
    }

    fn configured(&self, dsp_id: DspId) -> Duration {
        self.by_dsp.get(&dsp_id).copied().unwrap_or(self.default)
    }

    /// The maximum configured TTL.
    pub fn max(&self) -> Duration {
        let named = self.by_dsp.values().copied();
        named.fold(self.default, Duration::max)
    }

    /// Cookies of `dsp_id` accepted before the returned time have expired at `now`.
    pub fn expired_before(&self, dsp_id: DspId, now: UnixMicros) -> UnixMicros {
        before(now, self.of(dsp_id))
    }

    /// Number of DSPs with a reported TTL.
    pub fn reported_dsps(&self) -> usize {
        let reported = self.reported.as_ref();
        reported.map_or(0, |(_, reports)| reports.read().longest.by_dsp.len())
    }

    /// Sets the report of the producer at `address`; an empty report withdraws it. Returns whether TTLs have changed.
    pub fn report(&self, address: SocketAddr, message: &TimesToLive) -> bool {
        let reported = self.reported.as_ref();
        reported.is_some_and(|(_, reports)| reports.write().set(address, Report::from(message)))
    }
}

impl Reports {
    fn set(&mut self, address: SocketAddr, report: Report) -> bool {
        let none = Report::default();
        if self.by_address.get(&address).unwrap_or(&none) == &report {
            return false;
        }
        if report == none {
            self.by_address.remove(&address);
        } else {
            self.by_address.insert(address, report);
        }
        let reports = self.by_address.values();
        let dsps: BTreeSet<_> = reports.clone().flat_map(|it| it.by_dsp.keys()).collect();
        let longest = |dsp_id| reports.clone().filter_map(|it| it.of(dsp_id)).max();
        let by_dsp = dsps.into_iter().filter_map(|it| Some((*it, longest(*it)?)));
        let longest = Report {
            by_dsp: by_dsp.collect(),
            others: reports.clone().filter_map(|it| it.others).max(),
        };
        let has_changed = self.longest != longest;
        self.longest = longest;
        has_changed
    }
}

impl Report {
    fn of(&self, dsp_id: DspId) -> Option<Duration> {
        self.by_dsp.get(&dsp_id).copied().or(self.others)
    }
}

impl From<&TimesToLive> for Report {
    fn from(message: &TimesToLive) -> Self {
        let ttl = |seconds| (seconds > 0).then(|| Duration::from_secs(seconds));
        let dsps = message.dsps.iter().take(CONTRACTS_MAX);
        Self {
            by_dsp: dsps
                .filter_map(|it| Some((DspId(it.dsp_id), ttl(it.seconds)?)))
                .collect(),
            others: ttl(message.other_seconds),
        }
    }
}

/// `now` minus `age`.
pub(crate) fn before(now: UnixMicros, age: Duration) -> UnixMicros {
    now.before(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proto::v1::DspTimeToLive;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn dsp_ttl_overrides_the_default() {
        let ttls = Ttls::new(
            14 * DAY,
            [(DspId(17), 7 * DAY), (DspId(3), 30 * DAY)].into(),
        );
        assert_eq!(
            [1, 3, 17].map(|dsp| ttls.of(DspId(dsp)) / 86_400),
            [14, 30, 7].map(Duration::from_secs)
        );
        assert_eq!(ttls.max(), 30 * DAY);
        let expired_before = |now| ttls.expired_before(DspId(17), UnixMicros(now)).0;
        assert_eq!(expired_before(604_801_000_000), 1_000_000);
        assert_eq!(expired_before(5), 0);
    }

    fn report(ttls: &Ttls, producer: u8, dsps: &[(u32, u64)], other_days: u64) -> bool {
        let dsps = dsps.iter().map(|(dsp_id, days)| DspTimeToLive {
            dsp_id: *dsp_id,
            seconds: days * 86_400,
        });
        let message = TimesToLive {
            dsps: dsps.collect(),
            other_seconds: other_days * 86_400,
        };
        ttls.report(([10, 0, 0, producer], 7676).into(), &message)
    }

    #[track_caller]
    fn check(ttls: &Ttls, expected: &[(u32, u32)]) {
        for (dsp_id, days) in expected {
            assert_eq!(ttls.of(DspId(*dsp_id)), *days * DAY, "of DSP {dsp_id}");
        }
    }

    #[test]
    fn report_shortens_a_ttl_but_not_below_the_floor() {
        let configured = || Ttls::new(14 * DAY, [(DspId(17), 7 * DAY), (DspId(3), 2 * DAY)].into());
        let ignoring = configured();
        assert!(!report(&ignoring, 1, &[(1, 5)], 5));
        check(&ignoring, &[(1, 14), (17, 7)]);

        let ttls = configured().with_floor(Some(3 * DAY));
        let shared = ttls.clone();
        check(&shared, &[(1, 14), (17, 7), (3, 2)]);
        let dsps = [
            (1, 10),
            (2, 1),
            (17, 30),
            (3, 1),
            (4, u64::MAX / 86_400),
            (5, 0),
        ];
        assert!(report(&ttls, 1, &dsps, 0));
        check(
            &shared,
            &[(1, 10), (2, 3), (17, 7), (4, 14), (5, 14), (6, 14)],
        );
        check(&shared, &[(3, 2)]);
        assert_eq!(
            [1, 3, 17].map(|dsp| shared.shortest(DspId(dsp))),
            [3 * DAY, 2 * DAY, 3 * DAY]
        );
        assert_eq!(ignoring.shortest(DspId(1)), 14 * DAY);
        assert_eq!(shared.reported_dsps(), 5);
        assert_eq!(shared.max(), 14 * DAY, "the TTL of cursors");
        assert!(!report(&ttls, 1, &dsps, 0), "unchanged");
    }

    #[test]
    fn longest_report_applies() {
        let ttls = Ttls::new(14 * DAY, [].into()).with_floor(Some(DAY));
        report(&ttls, 1, &[(1, 5), (2, 9)], 0);
        check(&ttls, &[(1, 5), (2, 9), (3, 14)]);
        report(&ttls, 2, &[(1, 8), (3, 4)], 6);
        check(&ttls, &[(1, 8), (2, 9), (3, 4), (4, 6)]);
        report(&ttls, 1, &[(1, 9)], 7);
        check(&ttls, &[(1, 9), (2, 7), (3, 7), (4, 7)]);
        report(&ttls, 1, &[], 0);
        check(&ttls, &[(1, 8), (2, 6), (3, 4), (4, 6)]);
        report(&ttls, 2, &[], 0);
        check(&ttls, &[(1, 14), (2, 14), (3, 14), (4, 14)]);
    }

    #[test]
    fn report_is_bounded() {
        let ttls = Ttls::new(14 * DAY, [].into()).with_floor(Some(DAY));
        let dsps: Vec<_> = (1..5_000).map(|dsp_id| (dsp_id, 5)).collect();
        report(&ttls, 1, &dsps, 0);
        assert_eq!(ttls.reported_dsps(), CONTRACTS_MAX);
    }
}
