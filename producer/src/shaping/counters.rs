//! What is counted of a limit: each cookie that was accepted under it has one fate, or is held.

use std::collections::BTreeMap;

use metric_defs::buckets::SHAPING_DELAY_SECONDS;

/// Why a cookie was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It was the oldest of a room that was full.
    Bound,
    /// It was over the limit of a DSP that is policed.
    Police,
    /// It waited when the producer stopped, and could be neither released nor kept.
    Drain,
}

impl Dropped {
    pub(crate) const ALL: [(Self, &str); 3] = [
        (Self::Bound, "bound"),
        (Self::Police, "police"),
        (Self::Drain, "drain"),
    ];
}

/// What became of a cookie that was taken out of its room before its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in the log.
    ReleasedEarly,
    /// It is kept for the next run.
    Spooled,
    /// It is gone.
    Dropped(Dropped),
}

/// Why a cookie became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadReason {
    /// It was older than allowed when its turn came.
    Age,
    /// It would have been, as long as the wait was.
    Wait,
}

impl DeadReason {
    pub(crate) const ALL: [(Self, &str); 2] = [(Self::Age, "age"), (Self::Wait, "wait")];
}

/// What became of the cookies that were accepted under a limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Figures {
    /// Accepted and gone at once: counted here alone, so that as little memory as can be goes
    /// from one processor to the other with each cookie. [`Figures::add`] adds them where they belong.
    passed: u64,
    /// All others: those that were held by an earlier run included.
    pub(crate) accepted: u64,
    /// Released at their turn.
    pub(crate) released: u64,
    /// Released before it.
    pub(crate) released_early: u64,
    /// Superseded by a newer one of their pair.
    pub(crate) superseded: u64,
    /// Dropped, by reason.
    dropped: [u64; Dropped::ALL.len()],
    /// Kept for the next run.
    pub(crate) spooled: u64,
    /// How often one was requeued.
    pub(crate) requeued: u64,
    /// By the rule's name.
    pub(crate) rules: BTreeMap<String, RuleFigures>,
    /// How long those that were released waited.
    pub(crate) delays: Delays,
}

/// What was counted of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuleFigures {
    /// How many were over the limit when they came: how many had to wait for it, and how many would have had to wait for longer than the
    /// maximum wait, or not at all where nothing waits.
    pub(crate) over: [u64; 2],
    /// How often one that waited for it became a dead letter, by reason.
    pub(crate) dead_letters: [u64; DeadReason::ALL.len()],
}

impl Figures {
    pub(super) fn new(rules: &[String]) -> Self {
        let mut figures = Self::default();
        figures.keep_rules(rules);
        figures
    }

    /// Counts by these rules from now on, and forgets all others.
    pub(super) fn keep_rules(&mut self, rules: &[String]) {
        let mut before = std::mem::take(&mut self.rules);
        let counted = |rule: &String| (rule.clone(), before.remove(rule).unwrap_or_default());
        self.rules = rules.iter().map(counted).collect();
    }

    fn rule(&mut self, name: &str) -> &mut RuleFigures {
        self.rules.get_mut(name).expect("it is a rule of the terms")
    }

    /// One was accepted and goes at once, as nearly all do under a limit that their DSP keeps to.
    pub(super) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(super) fn release(&mut self, delay_nanos: u64) {
        self.released += 1;
        self.delays.note(delay_nanos);
    }

    pub(super) fn note(&mut self, fate: Fate, count: u64) {
        match fate {
            Fate::ReleasedEarly => self.released_early += count,
            Fate::Spooled => self.spooled += count,
            Fate::Dropped(why) => self.drop(why, count),
        }
    }

    pub(super) fn drop(&mut self, why: Dropped, count: u64) {
        self.dropped[why as usize] += count;
    }

    pub(super) fn die(&mut self, reason: DeadReason, rule: &str) {
        self.rule(rule).dead_letters[reason as usize] += 1;
    }

    pub(super) fn delayed(&mut self, rule: &str) {
        self.rule(rule).over[0] += 1;
    }

    pub(super) fn refused(&mut self, rule: &str) {
        self.rule(rule).over[1] += 1;
    }

    /// Adds what another room counted.
    pub(super) fn add(&mut self, other: &Self) {
        self.accepted += other.accepted + other.passed;
        self.released += other.released + other.passed;
        self.released_early += other.released_early;
        self.superseded += other.superseded;
        self.spooled += other.spooled;
        self.requeued += other.requeued;
        for (known, more) in self.dropped.iter_mut().zip(other.dropped) {
            *known += more;
        }
        for (rule, more) in &other.rules {
            let known = self.rules.entry(rule.clone()).or_default();
            for (known, more) in known.over.iter_mut().zip(more.over) {
                *known += more;
            }
            for (known, more) in known.dead_letters.iter_mut().zip(more.dead_letters) {
                *known += more;
            }
        }
        self.delays.add(&other.delays);
        self.delays.buckets[0] += other.passed;
    }

    /// How many came: accepted, those that passed at once included.
    pub(super) fn came(&self) -> u64 {
        self.accepted + self.passed
    }

    /// How many were dropped for this reason.
    pub(crate) fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize]
    }

    /// What was accepted and is neither held nor has a fate: zero.
    #[cfg(test)]
    pub(crate) fn uncounted(&self, held: &Holding) -> i128 {
        let fates = self.released
            + self.released_early
            + self.superseded
            + self.spooled
            + self.dropped.iter().sum::<u64>();
        let held = held.waiting + held.dead + held.parked;
        i128::from(self.accepted) - i128::from(fates) - i128::from(held)
    }
}

/// What a room holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Cookies queued for release, including deferred ones.
    pub(crate) waiting: u64,
    /// Dead letters that will be requeued.
    pub(crate) dead: u64,
    /// Those that will not.
    pub(crate) parked: u64,
    /// What all of them take in memory.
    pub(crate) bytes: u64,
    /// How long ago the oldest was accepted.
    pub(crate) oldest_nanos: u64,
}

impl Holding {
    /// Adds what another room holds.
    pub(super) fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.dead += other.dead;
        self.parked += other.parked;
        self.bytes += other.bytes;
        self.oldest_nanos = self.oldest_nanos.max(other.oldest_nanos);
    }
}

/// How long cookies waited: a histogram.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Delays {
    /// How many waited for up to each of the bounds of [`SHAPING_DELAY_SECONDS`] and for longer than the one before; the last for longer than all.
    pub(crate) buckets: [u64; SHAPING_DELAY_SECONDS.len() + 1],
    /// All of them together.
    pub(crate) sum_nanos: u64,
}

impl Delays {
    fn add(&mut self, other: &Self) {
        for (known, more) in self.buckets.iter_mut().zip(other.buckets) {
            *known += more;
        }
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
    }

    fn note(&mut self, delay_nanos: u64) {
        let seconds = seconds(delay_nanos);
        let bucket = SHAPING_DELAY_SECONDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(delay_nanos);
    }
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}
