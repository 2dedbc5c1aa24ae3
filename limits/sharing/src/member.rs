//! One member of a group: its requests to the server, and its shares at any later time, even if no reply arrives. Does no I/O; the
//! caller passes the time, in microseconds of the member's monotonic clock, whose speed may be wrong by up to 1%.

use std::collections::BTreeMap;

use crate::{
    messages::{Grant, LeaseReply, LeaseRequest, LimitRequest, LimitShare},
    terms::{Terms, WHOLE},
};

/// Maximum demand, in millionths of the limit.
const DEMAND_MAX: u64 = 1000 * WHOLE;

/// Demands are rounded up to a multiple of this, or of about 1/64 of a smaller demand: while a share changes, a part of the
/// limit is unused.
const DEMAND_STEP_MAX: u64 = 1 << 11;

/// The state of a member's shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareState {
    /// The lease is valid.
    Ok,
    /// The lease has expired. Until all other leases have expired, the member uses the smaller of its lease and its fallback share.
    Expired,
    /// The member uses its fallback share.
    Fallback,
    /// The member uses its guaranteed share, or nothing: it never had a lease, or had no reply for `forget_after`.
    Guaranteed,
    /// The server rejects the member, which uses nothing.
    Refused,
}

impl ShareState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Ok,
        Self::Expired,
        Self::Fallback,
        Self::Guaranteed,
        Self::Refused,
    ];

    /// Its name in metrics and statuses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Expired => "expired",
            Self::Fallback => "fallback",
            Self::Guaranteed => "guaranteed",
            Self::Refused => "refused",
        }
    }
}

/// The shares of a member at any time after a reply, until the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharePlan {
    terms: Terms,
    /// Start of the member, by its clock.
    began: u64,
    /// When the last granted request was sent, and its grant; `None` before the first.
    granted: Option<(u64, Grant)>,
    /// Index of each limit in the grant.
    indexes: BTreeMap<String, usize>,
    refused: Option<LeaseReply>,
}

impl SharePlan {
    /// The state at `now`.
    pub fn state(&self, now: u64) -> ShareState {
        if self.refused.is_some() {
            return ShareState::Refused;
        }
        let Some((sent, _)) = &self.granted else {
            return ShareState::Guaranteed;
        };
        match now.saturating_sub(*sent) {
            age if age < self.terms.ttl() => ShareState::Ok,
            age if age < self.terms.fallback_after() => ShareState::Expired,
            age if age < self.terms.forget_after => ShareState::Fallback,
            _ => ShareState::Guaranteed,
        }
    }

    /// The share of a limit that the member may use at `now`, in millionths.
    pub fn share(&self, limit: &str, now: u64) -> u64 {
        let share = self.granted(limit);
        match self.state(now) {
            ShareState::Ok => share.map_or(0, |it| it.lease),
            ShareState::Expired => share.map_or(0, |it| it.lease.min(it.fallback)),
            ShareState::Fallback => share.map_or(0, |it| it.fallback),
            ShareState::Guaranteed => match &self.granted {
                None if now.saturating_sub(self.began) < self.terms.guaranteed_after() => 0,
                None => self.terms.guaranteed_share(),
                // Without a grant for the limit, the server has no record that this member uses it.
                Some(_) => share.map_or(0, |it| it.fallback.min(self.terms.guaranteed_share())),
            },
            ShareState::Refused => 0,
        }
    }

    /// The next time after `now` at which shares change without another reply.
    pub fn changes(&self, now: u64) -> Option<u64> {
        if self.refused.is_some() {
            return None;
        }
        let terms = &self.terms;
        let Some((sent, _)) = &self.granted else {
            return Some(self.began + terms.guaranteed_after()).filter(|at| *at > now);
        };
        let ages = [terms.ttl(), terms.fallback_after(), terms.forget_after];
        ages.iter().map(|age| sent + age).find(|at| *at > now)
    }

    /// The last grant for a limit.
    pub fn granted(&self, limit: &str) -> Option<LimitShare> {
        let (_, granted) = self.granted.as_ref()?;
        granted.shares.get(*self.indexes.get(limit)?).copied()
    }

    /// Number of members in the last reply, and whether the server was still learning which members exist.
    pub fn group(&self) -> Option<(u64, bool)> {
        let (_, granted) = self.granted.as_ref()?;
        Some((granted.members, granted.is_learning))
    }

    /// The reply with which the server rejected the member.
    pub fn refused(&self) -> Option<&LeaseReply> {
        self.refused.as_ref()
    }
}

fn rounded(demand: u64) -> u64 {
    let step = (demand / 64).max(1).next_power_of_two();
    demand.next_multiple_of(step.min(DEMAND_STEP_MAX))
}

/// A member of a group.
#[derive(Debug, Clone)]
pub struct Member {
    name: String,
    instance: u64,
    number: u64,
    /// Number of the request whose grant is in use.
    applied: u64,
    /// The request in flight, and the time at which it was sent.
    pending: Option<(LeaseRequest, u64)>,
    plan: SharePlan,
    demands: BTreeMap<String, u64>,
    /// Whether it has raised its instance number above that of a previous process.
    has_taken_over: bool,
}

impl Member {
    /// A process with this name that starts at `began` of its clock. `instance` must be larger than that of any previous process.
    pub fn new(terms: Terms, name: &str, instance: u64, began: u64) -> Self {
        Self {
            name: name.to_owned(),
            instance,
            number: 0,
            applied: 0,
            pending: None,
            plan: SharePlan {
                terms,
                began,
                granted: None,
                indexes: BTreeMap::new(),
                refused: None,
            },
            demands: BTreeMap::new(),
            has_taken_over: false,
        }
    }

    /// The current plan.
    pub fn plan(&self) -> &SharePlan {
        &self.plan
    }

    /// Sets the share of each limit that the member could have used since the last request, in millionths. Its shares of all other limits
    /// end with the next reply.
    pub fn set_demands(&mut self, demands: impl IntoIterator<Item = (String, u64)>) {
        let before = std::mem::take(&mut self.demands);
        let smooth = |(limit, demand): (String, u64)| {
            let demand = demand.min(DEMAND_MAX);
            let smoothed = before.get(&limit).map_or(demand, |&known| {
                // Small differences are usually chance, large ones a change of the load.
                let weight = match demand.abs_diff(known) > known / 4 {
                    true => 2,
                    false => 8,
                };
                (known * (weight - 1) + demand).div_ceil(weight)
            });
            (limit, smoothed)
        };
        self.demands = demands.into_iter().map(smooth).collect();
    }

    /// Creates the next request, which must be sent now. A pending request is abandoned.
    pub fn request(&mut self, now: u64) -> LeaseRequest {
        self.number += 1;
        if self.plan.state(now) == ShareState::Guaranteed {
            self.applied = 0;
        }
        // The member still has shares of limits without a demand.
        let past = self
            .plan
            .indexes
            .keys()
            .filter(|limit| !self.demands.contains_key(*limit));
        let limits = self.demands.iter().map(|(limit, demand)| (limit, *demand));
        let limits = limits
            .chain(past.map(|limit| (limit, 0)))
            .map(|(limit, demand)| LimitRequest {
                limit: limit.clone(),
                in_use: self.plan.share(limit, now),
                fallback: match self.applied {
                    0 => self.plan.terms.guaranteed_share(),
                    _ => self.plan.granted(limit).map_or(0, |it| it.fallback),
                },
                demand: rounded(demand),
            });
        let request = self.message(limits.collect());
        self.pending = Some((request.clone(), now));
        request
    }

    /// Applies the reply to request `number`. Returns false if it is too late to be used.
    pub fn receive(&mut self, number: u64, reply: LeaseReply, now: u64) -> bool {
        let in_time = |pending: &(LeaseRequest, u64)| {
            pending.0.number == number && now.saturating_sub(pending.1) <= self.plan.terms.timeout
        };
        let Some((request, sent)) = self.pending.take_if(|pending| in_time(pending)) else {
            return false;
        };
        match reply {
            LeaseReply::Granted(granted) => {
                let limits = request.limits.into_iter().enumerate();
                let wanted = limits.filter(|(_, it)| self.demands.contains_key(&it.limit));
                self.plan.indexes = wanted.map(|(index, it)| (it.limit, index)).collect();
                self.plan.granted = Some((sent, granted));
                self.plan.refused = None;
                self.applied = number;
            }
            LeaseReply::Stale => return false,
            // This process has just started, so it is the later one: the clock of its machine is behind.
            LeaseReply::Replaced(known) if self.plan.granted.is_none() && !self.has_taken_over => {
                self.has_taken_over = true;
                self.instance = known + 1;
            }
            refused => self.plan.refused = Some(refused),
        }
        true
    }

    /// Whether the last reply reduced a share. Other members get the difference once a request confirms the reduction.
    pub fn has_released_share(&self, before: &SharePlan, now: u64) -> bool {
        let fell = |limit: &String| self.plan.share(limit, now) < before.share(limit, now);
        self.demands.keys().any(fell)
    }

    /// Creates the request to leave the group. From now on the member uses nothing.
    pub fn leave(&mut self) -> LeaseRequest {
        self.number += 1;
        self.pending = None;
        self.plan.refused = Some(LeaseReply::Replaced(self.instance));
        LeaseRequest {
            leaves: true,
            ..self.message(Vec::new())
        }
    }

    fn message(&self, limits: Vec<LimitRequest>) -> LeaseRequest {
        LeaseRequest {
            member: self.name.clone(),
            instance: self.instance,
            number: self.number,
            applied: self.applied,
            leaves: false,
            limits,
        }
    }
}
