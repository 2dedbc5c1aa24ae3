//! The ledger of a group, which the server stores: a model of `lease.lua` for tests, step for step. Does no I/O; the caller
//! passes the time.
//!
//! `scripts.rs` compares model and script over random traces. `simulation.rs` tests the model with lost messages, pauses, restarts,
//! clock steps, and clocks of different speeds.
//!
//! # Guarantee and proof
//!
//! At every instant, the shares of a limit that all members of a group use add up to at most the limit.
//!
//! A member uses its latest *grant*: a lease and a fallback share. It uses the lease until [`Terms::ttl`], the smaller of both until
//! [`Terms::fallback_after`], the fallback share until [`Terms::forget_after`], and then the guaranteed share; the member counts these
//! times from before it sends the request for the grant. A member without a reply uses nothing until `Terms::guaranteed_after`, then the
//! guaranteed share. A member sends one request at a time, ignores replies later than [`Terms::timeout`], and states in each request which
//! grant it uses.
//!
//! 1. A member therefore uses one of two grants: the one it stated last, or the one in the reply to that request. The server stores both
//!    until the member states another one, and assumes the larger share of both.
//! 2. A lease is granted only from what all others cannot use *until it ends*. If two leases overlap in time, the later
//!    one was checked against the earlier one.
//! 3. A member uses its fallback share `Terms::fallback_after` after its last request with a reply. The server reserves the share once it
//!    has received no request for `Terms::silence_max`. Leases that the server granted earlier have ended by the time the member uses the
//!    share.
//! 4. The fallback shares add up to at most the limit: one rises only after others are confirmed to have fallen.
//! 5. The server's clock may stop or step. The time between two requests counts for up to `gap_max`. A longer time, or a step back, starts
//!    a new *generation*: for `Terms::reserved_for` no share rises (the server learns), and a member without a grant of this generation may
//!    already use its fallback share. All steps forward together are less than an eighth of [`Terms::forget_after`].
//! 6. The server may lose its data or be replaced by an older copy. Then its run id changes, or a member uses an unknown grant.
//!    For unknown members, the server then reserves the limit minus the known fallback shares, until these members return or expire.
//! 7. With [`Terms::members_max`], each fallback share is the guaranteed share, and the guaranteed shares of all unknown members are always
//!    reserved. Once the server has learned, unknown members use no more.
//!
//! Without `members_max`, point 6 has a gap: if only new members reach an *empty* server for `Terms::reserved_for`, it does not know that
//! there are others.

use std::collections::{BTreeMap, BTreeSet};

use limits_sharing::{
    messages::{Grant, LeaseReply, LeaseRequest, LimitRequest, LimitShare},
    terms::{Terms, WHOLE},
};

/// A longer time between two requests is a pause of the server or a step of its clock.
fn gap_max(terms: &Terms) -> u64 {
    terms.refresh + terms.refresh / 2
}

/// When the server forgets a member: after the member has stopped using its fallback share, even if their clocks differ.
fn expires_after(terms: &Terms) -> u64 {
    terms.forget_after + terms.forget_after / 8
}

#[derive(Debug, Clone, Default)]
struct StoredGrant {
    number: u64,
    at: u64,
    generation: u64,
    /// Lease and fallback share.
    shares: BTreeMap<String, (u64, u64)>,
}

#[derive(Debug, Clone, Default)]
struct Record {
    instance: u64,
    number: u64,
    /// Time of the last request, by the server's clock and by the ledger's.
    seen: u64,
    heard: u64,
    has_left: bool,
    /// The grant in use, and the grant in the last reply.
    applied: StoredGrant,
    latest: StoredGrant,
    /// Demand and share in use of each limit.
    wants: BTreeMap<String, (u64, u64)>,
}

/// The ledger of a group.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    terms: Terms,
    /// Run id of the server.
    run: String,
    /// The server's clock at the last request.
    wall: u64,
    /// The ledger's clock, which never goes back or jumps.
    clock: u64,
    generation: u64,
    learns_until: u64,
    /// Whether data was lost in this generation.
    has_lost: bool,
    members: BTreeMap<String, Record>,
    /// Share reserved for unknown members, by limit, and since when by the server's clock.
    unknown: BTreeMap<String, (u64, u64)>,
}

impl StoredGrant {
    fn share(&self, limit: &str) -> (u64, u64) {
        self.shares.get(limit).copied().unwrap_or_default()
    }
}

impl Record {
    /// The larger fallback share of its two grants.
    fn fallback(&self, limit: &str) -> u64 {
        self.applied.share(limit).1.max(self.latest.share(limit).1)
    }

    /// All limits that it demands or has shares of.
    fn limits(&self) -> BTreeSet<&str> {
        let granted = self.applied.shares.keys().chain(self.latest.shares.keys());
        self.wants
            .keys()
            .chain(granted)
            .map(String::as_str)
            .collect()
    }

    /// Whether it demands a limit, or may still use it.
    fn has(&self, limit: &str) -> bool {
        let of = |grant: &StoredGrant| grant.shares.contains_key(limit);
        self.wants.contains_key(limit) || of(&self.applied) || of(&self.latest)
    }

    /// Demand and share in use of a limit.
    fn wants(&self, limit: &str) -> (u64, u64) {
        self.wants.get(limit).copied().unwrap_or_default()
    }
}

impl Ledger {
    /// An empty ledger on a server whose clock is `now`.
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

    /// Processes a request at `now` of the server's clock, with the server's run id.
    pub(crate) fn respond(
        &mut self,
        terms: &Terms,
        run: &str,
        now: u64,
        request: &LeaseRequest,
    ) -> LeaseReply {
        if *terms != self.terms {
            if !self.is_unused(request) {
                return LeaseReply::TermsMismatch;
            }
            *self = Self::new(*terms, run, now);
        }
        self.advance_clock(run, now);
        self.expire_members(now);
        let known = self.members.get(&request.member);
        if let Some(known) = known {
            if request.instance < known.instance {
                return LeaseReply::Replaced(known.instance);
            }
            if request.instance == known.instance && request.number <= known.number {
                return LeaseReply::Stale;
            }
        }
        let is_member = known.is_some_and(|known| !known.has_left);
        let members = self.members.values().filter(|it| !it.has_left).count() as u64;
        if !is_member && terms.members_max > 0 && members >= terms.members_max && !request.leaves {
            return LeaseReply::Full;
        }
        if request.leaves {
            if let Some(known) = self.remove(&request.member, request.instance) {
                self.release(&known);
            }
            let left = Record {
                instance: request.instance,
                number: request.number,
                seen: now,
                heard: self.clock,
                has_left: true,
                ..Record::default()
            };
            self.members.insert(request.member.clone(), left);
            return LeaseReply::Granted(Grant {
                is_learning: self.is_learning(),
                members: members - u64::from(is_member),
                shares: Vec::new(),
            });
        }
        self.record_request(request, now);
        let shares: Vec<LimitShare> = request
            .limits
            .iter()
            .map(|it| self.grant(&request.member, it))
            .collect();
        let latest = StoredGrant {
            number: request.number,
            at: self.clock,
            generation: self.generation,
            shares: request
                .limits
                .iter()
                .zip(&shares)
                .map(|(request, share)| (request.limit.clone(), (share.lease, share.fallback)))
                .collect(),
        };
        self.members
            .get_mut(&request.member)
            .expect("a recorded member")
            .latest = latest;
        LeaseReply::Granted(Grant {
            is_learning: self.is_learning(),
            members: members + u64::from(!is_member),
            shares,
        })
    }

    /// Whether no member can use the group's settings any more. A request with other settings ends the member's previous process.
    fn is_unused(&mut self, request: &LeaseRequest) -> bool {
        let instance = request.instance;
        if let Some(known) = self.members.get_mut(&request.member)
            && known.instance < instance
        {
            *known = Record {
                instance,
                has_left: true,
                ..Record::default()
            };
        }
        // Unknown members may still use them.
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

    fn advance_clock(&mut self, run: &str, now: u64) {
        let gap = now.saturating_sub(self.wall);
        self.clock += gap.min(gap_max(&self.terms));
        let jumps = now < self.wall || gap > gap_max(&self.terms);
        self.wall = now;
        if run != self.run {
            self.run = run.to_owned();
            self.begin_generation(now);
            self.record_loss(now);
        } else if jumps {
            self.begin_generation(now);
        }
    }

    /// Some grants are unknown. Reserves each limit minus the known fallback shares, and restarts the expiry of all members.
    fn record_loss(&mut self, now: u64) {
        self.has_lost = true;
        let mut safe: BTreeMap<String, u64> = BTreeMap::new();
        for record in self.members.values_mut() {
            record.seen = now;
            // Other members may use this share by now.
            record.wants.values_mut().for_each(|(_, uses)| *uses = 0);
            for limit in record.limits() {
                *safe.entry(limit.to_owned()).or_default() += record.fallback(limit);
            }
        }
        for (limit, safe) in safe {
            self.unknown
                .insert(limit, (WHOLE.saturating_sub(safe), now));
        }
    }

    /// Removes a member's record and returns it, unless it is that of a previous process, whose fallback share may be reserved.
    fn remove(&mut self, member: &str, instance: u64) -> Option<Record> {
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
                *rest += record.fallback(limit);
            }
        }
    }

    fn expire_members(&mut self, now: u64) {
        let (terms, clock) = (&self.terms, self.clock);
        self.members.retain(|_, record| match record.has_left {
            true => clock - record.heard <= terms.reserved_for(),
            false => now.saturating_sub(record.seen) <= expires_after(terms),
        });
        self.unknown
            .retain(|_, (_, since)| now.saturating_sub(*since) <= expires_after(terms));
    }

    /// Stores a member's request.
    fn record_request(&mut self, request: &LeaseRequest, now: u64) {
        let known = self.remove(&request.member, request.instance);
        // A member that left has no shares, and one without a grant uses the guaranteed share of its limits.
        let known = known.filter(|it| !it.has_left && request.applied > 0);
        let (is_known, applied) = match known {
            Some(known) if known.latest.number == request.applied => (true, known.latest),
            Some(known) if known.applied.number == request.applied => (true, known.applied),
            // The member may use its guaranteed share.
            _ if request.applied == 0 => {
                let share = self.terms.guaranteed_share();
                let shares = request.limits.iter();
                let shares = shares.map(|request| (request.limit.clone(), (share, share)));
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
                let shares = request.limits.iter();
                let shares = shares
                    .map(|request| (request.limit.clone(), (request.in_use, request.fallback)));
                let claimed = StoredGrant {
                    number: request.applied,
                    at: self.clock,
                    generation: 0,
                    shares: shares.collect(),
                };
                (false, claimed)
            }
        };
        let record = Record {
            instance: request.instance,
            number: request.number,
            seen: now,
            heard: self.clock,
            has_left: false,
            applied,
            latest: StoredGrant::default(),
            wants: request
                .limits
                .iter()
                .map(|request| (request.limit.clone(), (request.demand, request.in_use)))
                .collect(),
        };
        self.members.insert(request.member.clone(), record);
        if is_known {
            // Unknown members may use a limit that no request has named yet.
            if self.is_learning() && self.has_lost {
                for request in &request.limits {
                    let safe: u64 = self
                        .members
                        .values()
                        .map(|it| it.fallback(&request.limit))
                        .sum();
                    let rest = (WHOLE.saturating_sub(safe), now);
                    self.unknown.entry(request.limit.clone()).or_insert(rest);
                }
            }
            return;
        }
        // The member uses a grant that was lost.
        if !self.is_learning() {
            self.begin_generation(now);
        }
        self.record_loss(now);
    }

    /// The maximum share of a limit that a member may use during a lease that is granted now.
    fn reserved(&self, record: &Record, limit: &str) -> u64 {
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
        of(&record.applied).max(of(&record.latest))
    }

    fn grant(&self, member: &str, request: &LimitRequest) -> LimitShare {
        let (limit, terms) = (&*request.limit, &self.terms);
        let (mut reserved, mut silent_reserved, mut fallbacks, mut total) =
            (0, 0, 0, request.in_use);
        let mut demands = vec![request.demand];
        let others = self.members.iter().filter(|(name, _)| *name != member);
        let mut count = 1;
        for (_, record) in others.filter(|(_, it)| it.has(limit)) {
            let share = self.reserved(record, limit);
            let silent = self.clock - record.heard;
            let (demand, uses) = record.wants(limit);
            count += 1;
            reserved += share;
            fallbacks += record.fallback(limit);
            if silent < terms.reserved_for() {
                demands.push(demand);
            } else {
                silent_reserved += share;
            }
            total += if silent < terms.fallback_after() {
                uses.min(share)
            } else {
                share
            };
        }
        let minimum = WHOLE / (50 * count);
        demands.iter_mut().for_each(|it| *it = (*it).max(minimum));
        let unknown = match terms.members_max {
            0 => self.unknown.get(limit).map_or(0, |(rest, _)| *rest),
            max => max.saturating_sub(count) * terms.guaranteed_share(),
        };
        let free = WHOLE.saturating_sub(unknown + reserved);
        let lease = if self.is_learning() {
            request.in_use.min(free)
        } else {
            let capacity = WHOLE.saturating_sub(unknown + silent_reserved);
            fair(capacity, request.demand.max(minimum), &mut demands).min(free)
        };
        let fallback = match terms.members_max {
            0 if self.is_learning() => request.fallback,
            0 => (WHOLE / count).min(WHOLE.saturating_sub(unknown + fallbacks)),
            _ => terms.guaranteed_share(),
        };
        LimitShare {
            lease,
            fallback,
            total,
            reserved: unknown,
        }
    }
}

/// Max-min fair share of one of these demands. Capacity without demand is divided equally.
fn fair(capacity: u64, demand: u64, demands: &mut [u64]) -> u64 {
    demands.sort_unstable();
    let (mut rest, mut count) = (capacity, demands.len() as u64);
    for other in demands.iter() {
        let level = rest / count;
        if *other > level {
            return demand.min(level);
        }
        rest -= other;
        count -= 1;
    }
    demand + rest / demands.len() as u64
}
