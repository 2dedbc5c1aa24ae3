//! Limits in virtual time: nothing here waits.

mod driver;
mod fairness;
mod leased;
mod life_cycle;
mod model;
mod paper;
mod shares;

use std::collections::HashMap;

use limits::rules::Rules;
use proto::wire::CookieRef;

use super::{
    counters::Holding,
    room::Offered,
    shaper::{Shaper, Summary},
};
use crate::log::Burst;

/// When all of these tests begin, in nanoseconds since the Unix epoch.
const START: u64 = 1_700_000_000_000_000_000;

const SECOND: u64 = 1_000_000_000;

const MILLISECOND: u64 = 1_000_000;

/// A cookie that was released.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Gone {
    /// When, in nanoseconds since the start.
    at: u64,
    dsp: u32,
    user: String,
    buyer: String,
    /// When it had been accepted, likewise.
    accepted: u64,
}

/// A shaper, and what it let go.
struct World {
    shaper: Shaper,
    /// Since the start.
    now: u64,
    /// How long after something is due somebody looks.
    late: u64,
    gone: Vec<Gone>,
    /// When the newest cookie of each pair was accepted that was released.
    newest: HashMap<(u32, String), u64>,
}

fn rules(text: &str) -> Rules {
    let rules = Rules::parse(text).expect("the rules are in order");
    assert_eq!(limits_sharing::dsp_limits::check(&rules), [""; 0]);
    rules
}

impl World {
    fn new(text: &str) -> Self {
        Self {
            shaper: Shaper::new(&rules(text), START),
            now: 0,
            late: 0,
            gone: Vec::new(),
            newest: HashMap::new(),
        }
    }

    /// Offers a cookie now; its buyer uid is the moment.
    fn offer(&mut self, dsp: u32, user: &str) -> Offered {
        let buyer = format!("at-{}", self.now);
        let cookie = CookieRef {
            user_id: user,
            dsp_id: dsp,
            buyer_uid: &buyer,
            age_micros: 0,
        };
        let now = START + self.now;
        let mut burst = Burst::default();
        burst.push(&cookie);
        let mut offered = Offered::Dropped;
        burst.retain(|cookie| {
            offered = self.shaper.offer(cookie, now, || now / 1000);
            false
        });
        if offered == Offered::Release {
            self.note(Gone {
                at: self.now,
                dsp,
                user: user.to_owned(),
                buyer,
                accepted: self.now,
            });
        }
        offered
    }

    fn note(&mut self, gone: Gone) {
        assert!(gone.accepted <= gone.at);
        let newest = self.newest.entry((gone.dsp, gone.user.clone()));
        let newest = newest.or_insert(gone.accepted);
        assert!(*newest <= gone.accepted, "{gone:?} goes after a later one");
        *newest = gone.accepted;
        self.gone.push(gone);
    }

    /// Does what is due until then.
    fn pass_to(&mut self, then: u64) {
        loop {
            let due = self
                .shaper
                .due()
                .saturating_sub(START)
                .saturating_add(self.late);
            if due > then {
                break;
            }
            self.now = self.now.max(due);
            self.turn();
        }
        self.now = then;
    }

    fn turn(&mut self) {
        let mut released = Vec::new();
        self.shaper
            .turn(START + self.now, |held| released.push(held));
        for held in released {
            let cookie = held.cookie();
            assert_eq!(held.accepted_unix_micros, held.accepted / 1000);
            self.note(Gone {
                at: self.now,
                dsp: cookie.dsp_id,
                user: cookie.user_id.to_owned(),
                buyer: cookie.buyer_uid.to_owned(),
                accepted: held.accepted - START,
            });
        }
    }

    fn change(&mut self, text: &str) {
        self.shaper.change(&rules(text), START + self.now);
    }

    fn summary(&self, limit: &str) -> Summary {
        let summaries = self.shaper.summaries(START + self.now);
        for (name, summary) in &summaries {
            let uncounted = summary.figures.uncounted(&summary.holding);
            assert_eq!(uncounted, 0, "of {name}: {summary:#?}");
        }
        summaries.get(limit).cloned().unwrap_or_default()
    }

    fn holding(&self, limit: &str) -> Holding {
        self.summary(limit).holding
    }

    /// How many went in each second, of those that match.
    fn by_second(&self, of: impl Fn(&Gone) -> bool) -> Vec<u64> {
        let seconds = usize::try_from(self.now / SECOND).expect("few");
        let mut counts = vec![0; seconds + 1];
        for gone in self.gone.iter().filter(|gone| of(gone)) {
            counts[usize::try_from(gone.at / SECOND).expect("few")] += 1;
        }
        counts
    }
}
