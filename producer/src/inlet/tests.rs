//! Tests of the limits, most of them in virtual time.

mod deletions;
mod fairness;
mod lease;
mod life_cycle;
mod overload;
mod random_traffic;
mod real_clock;
mod shares;

use std::{collections::HashMap, time::Duration};

use limits::rules::Rules;
use proto::{
    units::{DspId, Epoch, UnixMicros},
    wire::CookieRef,
};

use super::{
    Inlet,
    clock::MonotonicNanos,
    counters::{LimitSummary, QueueUsage},
    dsp_limits::DspLimits,
    queue::Admission,
};
use crate::log::{self, AppendBatch, Log};

/// Start of the virtual time, in nanoseconds since the Unix epoch.
const START: u64 = 1_700_000_000_000_000_000;

const SECOND: u64 = 1_000_000_000;

const MILLISECOND: u64 = 1_000_000;

/// A released cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Release {
    /// Release time, in nanoseconds since the start.
    at: u64,
    dsp: u32,
    user: String,
    buyer: String,
    /// Acceptance time, in nanoseconds since the start.
    accepted: u64,
}

/// The limits in virtual time, and the cookies that it released.
struct World {
    dsp_limits: DspLimits,
    /// Nanoseconds since the start.
    now: u64,
    /// Delay of the timer.
    late: u64,
    releases: Vec<Release>,
    /// Acceptance time of the newest released cookie of each DSP and user.
    newest: HashMap<(u32, String), u64>,
}

/// This many nanoseconds after the start.
fn at(nanos: u64) -> MonotonicNanos {
    MonotonicNanos(START + nanos)
}

fn rules(text: &str) -> Rules {
    let rules = Rules::parse(text).expect("valid rules");
    assert_eq!(limits_sharing::dsp_limits::check(&rules), [""; 0]);
    rules
}

/// An inlet into an empty log.
pub(crate) fn without_limits() -> Inlet {
    let log = Log::new(log::Config {
        epoch: Epoch(1),
        bytes_max: 1 << 20,
        chunk_bytes: 64 << 10,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_millis(30),
    });
    Inlet::start("", None, None, log).expect("no spool")
}

impl World {
    fn new(text: &str) -> Self {
        Self {
            dsp_limits: DspLimits::new(&rules(text), at(0)),
            now: 0,
            late: 0,
            releases: Vec::new(),
            newest: HashMap::new(),
        }
    }

    /// Offers a cookie that was accepted now.
    fn offer(&mut self, dsp: u32, user: &str) -> Admission {
        self.offer_accepted(dsp, user, self.now)
    }

    /// Offers a cookie with its acceptance time, which its buyer uid contains.
    fn offer_accepted(&mut self, dsp: u32, user: &str, accepted: u64) -> Admission {
        let buyer = format!("at-{accepted}");
        let cookie = CookieRef {
            user_id: user,
            dsp_id: DspId(dsp),
            buyer_uid: &buyer,
            age_micros: (self.now - accepted) / 1000,
        };
        let now = at(self.now);
        let mut batch = AppendBatch::default();
        batch.push(&cookie);
        let mut admission = Admission::Dropped;
        batch.retain(|cookie| {
            admission = self
                .dsp_limits
                .offer(cookie, now, || UnixMicros(now.0 / 1000));
            false
        });
        if admission == Admission::Release {
            self.record(Release {
                at: self.now,
                dsp,
                user: user.to_owned(),
                buyer,
                accepted,
            });
        }
        admission
    }

    fn record(&mut self, release: Release) {
        assert!(release.accepted <= release.at);
        let newest = self.newest.entry((release.dsp, release.user.clone()));
        let newest = newest.or_insert(release.accepted);
        assert!(
            *newest <= release.accepted,
            "{release:?} after a newer cookie of its pair"
        );
        *newest = release.accepted;
        self.releases.push(release);
    }

    /// Advances the time and releases due cookies.
    fn advance_to(&mut self, then: u64) {
        loop {
            let due = self.dsp_limits.due().since(at(0)).saturating_add(self.late);
            if due > then {
                break;
            }
            self.now = self.now.max(due);
            self.release_due();
        }
        self.now = then;
    }

    fn release_due(&mut self) {
        for queued in self.dsp_limits.release_due(at(self.now)) {
            let cookie = queued.cookie();
            assert_eq!(queued.accepted.0, queued.accepted_at.0 / 1000);
            self.record(Release {
                at: self.now,
                dsp: cookie.dsp_id.0,
                user: cookie.user_id.to_owned(),
                buyer: cookie.buyer_uid.to_owned(),
                accepted: queued.accepted_at.since(at(0)),
            });
        }
    }

    fn set_rules(&mut self, text: &str) {
        self.dsp_limits.set_rules(&rules(text), at(self.now));
    }

    fn summary(&self, limit: &str) -> LimitSummary {
        let summaries = self.dsp_limits.summaries(at(self.now));
        for (name, summary) in &summaries {
            let unaccounted = summary.counters.unaccounted(&summary.usage);
            assert_eq!(unaccounted, 0, "limit {name}: {summary:#?}");
        }
        summaries.get(limit).cloned().unwrap_or_default()
    }

    fn usage(&self, limit: &str) -> QueueUsage {
        self.summary(limit).usage
    }

    /// Number of matching releases in each second.
    fn by_second(&self, matches: impl Fn(&Release) -> bool) -> Vec<u64> {
        let seconds = usize::try_from(self.now / SECOND).expect("a small number");
        let mut counts = vec![0; seconds + 1];
        for release in self.releases.iter().filter(|release| matches(release)) {
            counts[usize::try_from(release.at / SECOND).expect("a small number")] += 1;
        }
        counts
    }
}
