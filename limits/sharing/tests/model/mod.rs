//! What the server knows of a group, and what it grants: the model of `lease.lua`, step for step. Pure: time is told.
//!
//! `tests/redis.rs` compares both over one trace; the simulation in `tests/simulation.rs` runs this one against losses, pauses, restarts, steps of the clock and clocks of different speeds.
//!
//! # What holds, and why
//!
//! At every instant the shares that all members of a group use of a limit are at most the whole.
//!
//! A member goes by the latest *grant* that it was told: a lease, and a safe share. It uses the lease for [`Terms::ttl`] from before it asked; then the smaller
//! of both; after `Terms::fallback_after` the safe share, until [`Terms::forget_after`]; then its floor, or nothing. Before its first answer it uses
//! nothing until `Terms::guaranteed_after`, then its floor. It asks one question at a time, uses no answer that comes later than [`Terms::timeout`], and
//! says in each question which grant it goes by.
//!
//! 1. So it goes by one of two grants: the one it named last, or the one it was given for that question. The server keeps both until
//!    it names another, and takes it for the larger of what both allow.
//! 2. A lease is given only as far as there is room beside what all others may use *until it ends*. Two leases that overlap in time were
//!    thus checked against each other when the later one was given.
//! 3. A safe share comes into use `Terms::fallback_after` after a question that the server answered, and the server counts it from
//!    `Terms::silence_max` on. Leases that were given before that have ended when it comes into use.
//! 4. Safe shares by themselves are at most the whole: one rises only when others are known to have fallen.
//! 5. The server's clock may stop or be set. Time between two questions counts for `gap_max` at most, and a longer one, or one
//!    backwards, begins a new *generation*: for `Terms::reserved_for` nothing rises (the server learns), and a member that has no grant of this generation may be using its
//!    safe share already. All steps forward together are less than an eighth of [`Terms::forget_after`].
//! 6. The server may lose its data, or be replaced by an older copy: it has another name then, or a member goes by a grant that it does not know.
//!    Then what is missing to the whole, of the safe shares that it knows, is kept free for those that it does not know: until these come, or for
//!    as long as they may go on without it.
//! 7. With [`Terms::members_max`] each safe share is the floor, and the floors of all members that the server does not know are kept free always: when it
//!    has learned, these have no more.
//!
//! Without it point 6 has a gap: a server that is *empty* and is reached for `Terms::reserved_for` by new members only does not know that there are others.

use std::collections::{BTreeMap, BTreeSet};

use limits_sharing::{
    messages::{Grant, LeaseReply, LeaseRequest, LimitRequest, LimitShare},
    terms::{Terms, WHOLE},
};

/// A longer time than this between two questions is a pause of the server, or a step of its clock.
fn gap_max(terms: &Terms) -> u64 {
    terms.refresh + terms.refresh / 2
}

/// When the server forgets a member. Later than the member itself gives up its safe share, whose clock may differ.
fn forget_at(terms: &Terms) -> u64 {
    terms.forget_after + terms.forget_after / 8
}

#[derive(Debug, Clone, Default)]
struct StoredGrant {
    number: u64,
    at: u64,
    generation: u64,
    /// Lease and safe share.
    shares: BTreeMap<String, (u64, u64)>,
}

#[derive(Debug, Clone, Default)]
struct Record {
    instance: u64,
    number: u64,
    /// By the server's clock, and by that of the ledger.
    seen: u64,
    heard: u64,
    has_left: bool,
    /// What it goes by, and what it was told since.
    applied: StoredGrant,
    told: StoredGrant,
    /// What it wants of each limit, and what it said that it uses.
    wants: BTreeMap<String, (u64, u64)>,
}

/// What the server knows of a group.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    terms: Terms,
    /// Of which run of the server this is.
    run: String,
    /// The server's clock when it was asked last.
    wall: u64,
    /// The ledger's own clock, which does not go back and makes no leaps.
    clock: u64,
    generation: u64,
    learns_until: u64,
    /// Whether something was lost since it learns.
    has_lost: bool,
    members: BTreeMap<String, Record>,
    /// What is kept free, by limit, and since when by the server's clock.
    unknown: BTreeMap<String, (u64, u64)>,
}

impl StoredGrant {
    fn share(&self, limit: &str) -> (u64, u64) {
        self.shares.get(limit).copied().unwrap_or_default()
    }
}

impl Record {
    /// The larger safe share of both of its grants.
    fn safe(&self, limit: &str) -> u64 {
        self.applied.share(limit).1.max(self.told.share(limit).1)
    }

    /// All limits of which it wants or has something.
    fn limits(&self) -> BTreeSet<&str> {
        let granted = self.applied.shares.keys().chain(self.told.shares.keys());
        self.wants
            .keys()
            .chain(granted)
            .map(String::as_str)
            .collect()
    }

    /// Whether it wants something of a limit, or may still be using it.
    fn has(&self, limit: &str) -> bool {
        let of = |grant: &StoredGrant| grant.shares.contains_key(limit);
        self.wants.contains_key(limit) || of(&self.applied) || of(&self.told)
    }

    /// What it wants of a limit, and what it said that it uses.
    fn wants(&self, limit: &str) -> (u64, u64) {
        self.wants.get(limit).copied().unwrap_or_default()
    }
}

impl Ledger {
    /// An empty one, of a server whose clock shows `now`.
    #[must_use]
    pub(crate) fn new(terms: Terms, run: &str, now: u64) -> Self {
        Self {
            terms,
            run: run.to_owned(),
            wall: now,
            clock: 0,
            generation: now,
            learns_until: terms.reserved_for(),
            has_lost: false,
            members: BTreeMap::new(),
            unknown: BTreeMap::new(),
        }
    }

    /// Answers a question at `now` of the server's clock. `run` names the run of the server.
    pub(crate) fn ask(
        &mut self,
        terms: &Terms,
        run: &str,
        now: u64,
        question: &LeaseRequest,
    ) -> LeaseReply {
        if *terms != self.terms {
            if !self.is_over_with(question) {
                return LeaseReply::TermsMismatch;
            }
            *self = Self::new(*terms, run, now);
        }
        self.pass_to(run, now);
        self.forget(now);
        let known = self.members.get(&question.member);
        if let Some(known) = known {
            if question.instance < known.instance {
                return LeaseReply::Replaced(known.instance);
            }
            if question.instance == known.instance && question.number <= known.number {
                return LeaseReply::Stale;
            }
        }
        let is_member = known.is_some_and(|known| !known.has_left);
        let members = self.members.values().filter(|it| !it.has_left).count() as u64;
        if !is_member && terms.members_max > 0 && members >= terms.members_max && !question.leaves {
            return LeaseReply::Full;
        }
        if question.leaves {
            if let Some(known) = self.take(&question.member, question.instance) {
                self.release(&known);
            }
            let left = Record {
                instance: question.instance,
                number: question.number,
                seen: now,
                heard: self.clock,
                has_left: true,
                ..Record::default()
            };
            self.members.insert(question.member.clone(), left);
            return LeaseReply::Granted(Grant {
                is_learning: self.is_learning(),
                members: members - u64::from(is_member),
                shares: Vec::new(),
            });
        }
        self.note(question, now);
        let shares: Vec<LimitShare> = question
            .limits
            .iter()
            .map(|ask| self.grant(&question.member, ask))
            .collect();
        let told = StoredGrant {
            number: question.number,
            at: self.clock,
            generation: self.generation,
            shares: question
                .limits
                .iter()
                .zip(&shares)
                .map(|(ask, share)| (ask.limit.clone(), (share.lease, share.fallback)))
                .collect(),
        };
        self.members
            .get_mut(&question.member)
            .expect("it was noted")
            .told = told;
        LeaseReply::Granted(Grant {
            is_learning: self.is_learning(),
            members: members + u64::from(!is_member),
            shares,
        })
    }

    /// Whether nobody goes by the terms of this group any more, as far as the question of a member with others tells.
    fn is_over_with(&mut self, question: &LeaseRequest) -> bool {
        let instance = question.instance;
        if let Some(known) = self.members.get_mut(&question.member)
            && known.instance < instance
        {
            *known = Record {
                instance,
                has_left: true,
                ..Record::default()
            };
        }
        // One that is not known may still go by them.
        self.unknown.is_empty() && self.members.values().all(|it| it.has_left)
    }

    fn is_learning(&self) -> bool {
        self.clock < self.learns_until
    }

    fn begin_generation(&mut self, now: u64) {
        self.generation = self.generation.max(now) + 1;
        self.learns_until = self.clock + self.terms.reserved_for();
        self.has_lost = false;
    }

    fn pass_to(&mut self, run: &str, now: u64) {
        let gap = now.saturating_sub(self.wall);
        self.clock += gap.min(gap_max(&self.terms));
        let leaps = now < self.wall || gap > gap_max(&self.terms);
        self.wall = now;
        if run != self.run {
            self.run = run.to_owned();
            self.begin_generation(now);
            self.lose(now);
        } else if leaps {
            self.begin_generation(now);
        }
    }

    /// Some of what was granted is not known here. Whatever is missing to the whole is kept free, and nobody is forgotten too soon.
    fn lose(&mut self, now: u64) {
        self.has_lost = true;
        let mut safe: BTreeMap<String, u64> = BTreeMap::new();
        for record in self.members.values_mut() {
            record.seen = now;
            // By now others may use it.
            record.wants.values_mut().for_each(|(_, uses)| *uses = 0);
            for limit in record.limits() {
                *safe.entry(limit.to_owned()).or_default() += record.safe(limit);
            }
        }
        for (limit, safe) in safe {
            self.unknown
                .insert(limit, (WHOLE.saturating_sub(safe), now));
        }
    }

    /// Takes out what is known of a member. What a process that has ended had may be another's, if nothing was heard of it since something was lost.
    fn take(&mut self, member: &str, instance: u64) -> Option<Record> {
        let known = self.members.remove(member)?;
        if known.instance == instance {
            return Some(known);
        }
        self.release(&known);
        None
    }

    fn release(&mut self, record: &Record) {
        for limit in record.limits() {
            if let Some((rest, since)) = self.unknown.get_mut(limit)
                && record.seen <= *since
            {
                *rest += record.safe(limit);
            }
        }
    }

    fn forget(&mut self, now: u64) {
        let (terms, clock) = (&self.terms, self.clock);
        self.members.retain(|_, record| match record.has_left {
            true => clock - record.heard <= terms.reserved_for(),
            false => now.saturating_sub(record.seen) <= forget_at(terms),
        });
        self.unknown
            .retain(|_, (_, since)| now.saturating_sub(*since) <= forget_at(terms));
    }

    /// Takes down what a member says of itself.
    fn note(&mut self, question: &LeaseRequest, now: u64) {
        let known = self.take(&question.member, question.instance);
        // One that has left has nothing any more, and one that goes by no grant goes by the floor of all that it asks for.
        let known = known.filter(|it| !it.has_left && question.applied > 0);
        let (is_known, applied) = match known {
            Some(known) if known.told.number == question.applied => (true, known.told),
            Some(known) if known.applied.number == question.applied => (true, known.applied),
            // It may have used its floor, and may still.
            _ if question.applied == 0 => {
                let floor = self.terms.guaranteed_share();
                let shares = question.limits.iter();
                let shares = shares.map(|ask| (ask.limit.clone(), (floor, floor)));
                (
                    true,
                    StoredGrant {
                        at: self.clock,
                        shares: shares.collect(),
                        ..StoredGrant::default()
                    },
                )
            }
            _ => {
                let shares = question.limits.iter();
                let shares = shares.map(|ask| (ask.limit.clone(), (ask.in_use, ask.fallback)));
                let claimed = StoredGrant {
                    number: question.applied,
                    at: self.clock,
                    generation: 0,
                    shares: shares.collect(),
                };
                (false, claimed)
            }
        };
        let record = Record {
            instance: question.instance,
            number: question.number,
            seen: now,
            heard: self.clock,
            has_left: false,
            applied,
            told: StoredGrant::default(),
            wants: question
                .limits
                .iter()
                .map(|ask| (ask.limit.clone(), (ask.demand, ask.in_use)))
                .collect(),
        };
        self.members.insert(question.member.clone(), record);
        if is_known {
            // What others may have of a limit of which nobody has spoken yet.
            if self.is_learning() && self.has_lost {
                for ask in &question.limits {
                    let safe: u64 = self.members.values().map(|it| it.safe(&ask.limit)).sum();
                    let rest = (WHOLE.saturating_sub(safe), now);
                    self.unknown.entry(ask.limit.clone()).or_insert(rest);
                }
            }
            return;
        }
        // Something was lost that this member knows of.
        if !self.is_learning() {
            self.begin_generation(now);
        }
        self.lose(now);
    }

    /// The most that a member may use of a limit while a lease lasts that is given now.
    fn held(&self, record: &Record, limit: &str) -> u64 {
        let terms = &self.terms;
        let of = |grant: &StoredGrant| {
            let (lease, safe) = grant.share(limit);
            let age = self.clock - grant.at;
            let leased = if age < terms.reserved_for() {
                lease
            } else {
                lease.min(safe)
            };
            let is_safe = grant.generation != self.generation || age >= terms.silence_max();
            if is_safe { leased.max(safe) } else { leased }
        };
        of(&record.applied).max(of(&record.told))
    }

    fn grant(&self, member: &str, ask: &LimitRequest) -> LimitShare {
        let (limit, terms) = (&*ask.limit, &self.terms);
        let (mut held, mut gone, mut safe, mut sum) = (0, 0, 0, ask.in_use);
        let mut demands = vec![ask.demand];
        let others = self.members.iter().filter(|(name, _)| *name != member);
        let mut count = 1;
        for (_, record) in others.filter(|(_, it)| it.has(limit)) {
            let holds = self.held(record, limit);
            let silent = self.clock - record.heard;
            let (demand, uses) = record.wants(limit);
            count += 1;
            held += holds;
            safe += record.safe(limit);
            if silent < terms.reserved_for() {
                demands.push(demand);
            } else {
                gone += holds;
            }
            sum += if silent < terms.fallback_after() {
                uses.min(holds)
            } else {
                holds
            };
        }
        let least = WHOLE / (50 * count);
        demands.iter_mut().for_each(|it| *it = (*it).max(least));
        let kept = match terms.members_max {
            0 => self.unknown.get(limit).map_or(0, |(rest, _)| *rest),
            most => most.saturating_sub(count) * terms.guaranteed_share(),
        };
        let room = WHOLE.saturating_sub(kept + held);
        let lease = if self.is_learning() {
            ask.in_use.min(room)
        } else {
            let capacity = WHOLE.saturating_sub(kept + gone);
            fair(capacity, ask.demand.max(least), &mut demands).min(room)
        };
        let safe = match terms.members_max {
            0 if self.is_learning() => ask.fallback,
            0 => (WHOLE / count).min(WHOLE.saturating_sub(kept + safe)),
            _ => terms.guaranteed_share(),
        };
        LimitShare {
            lease,
            fallback: safe,
            total: sum,
            reserved: kept,
        }
    }
}

/// The fair share of one of these demands: all that it asks for, or as much as all others get who do not get that. What nobody asks for is
/// for all alike.
fn fair(capacity: u64, demand: u64, demands: &mut [u64]) -> u64 {
    demands.sort_unstable();
    let (mut left, mut count) = (capacity, demands.len() as u64);
    for asked in demands.iter() {
        let level = left / count;
        if *asked > level {
            return demand.min(level);
        }
        left -= asked;
        count -= 1;
    }
    demand + left / demands.len() as u64
}
