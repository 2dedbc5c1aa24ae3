//! What a member of a group may use, moment by moment: questions to the server, answers, and what holds without them. Pure: time is told,
//! in microseconds of the member's own clock, which must not go back and may run 1 % wrong.

use std::{collections::BTreeMap, fmt};

use crate::{
    messages::{Answer, Ask, Granted, Question, Share},
    terms::{Terms, WHOLE},
};

/// How much more than everything a member may want.
const DEMAND_MAX: u64 = 1000 * WHOLE;

/// How a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has a lease.
    Ok,
    /// Its lease has run out; until others' have too, it uses no more than it had, nor more than its safe share.
    Expired,
    /// It goes by its safe share.
    Safe,
    /// It never had a lease, or not for so long that others do not count it any more: it uses its floor, or nothing.
    Floor,
    /// The server refuses it: it uses nothing.
    Refused,
}

impl State {
    /// All of them, with what metrics call them.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Ok, "ok"),
        (Self::Expired, "expired"),
        (Self::Safe, "safe"),
        (Self::Floor, "floor"),
        (Self::Refused, "refused"),
    ];
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = Self::ALL[*self as usize];
        formatter.write_str(name)
    }
}

/// What holds from an answer on, at every later moment, if no other comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    terms: Terms,
    /// When the member began, by its clock.
    began: u64,
    /// When the question was sent, and its answer; none before the first.
    granted: Option<(u64, Granted)>,
    /// The numbers of the limits in the answer.
    places: BTreeMap<String, usize>,
    refused: Option<Answer>,
}

impl Plan {
    fn new(terms: Terms, began: u64) -> Self {
        Self {
            terms,
            began,
            granted: None,
            places: BTreeMap::new(),
            refused: None,
        }
    }

    /// How the member stands then.
    #[must_use]
    pub fn state(&self, now: u64) -> State {
        if self.refused.is_some() {
            return State::Refused;
        }
        let Some((sent, _)) = &self.granted else {
            return State::Floor;
        };
        match now.saturating_sub(*sent) {
            age if age < self.terms.ttl => State::Ok,
            age if age < self.terms.safe_after() => State::Expired,
            age if age < self.terms.forget_after => State::Safe,
            _ => State::Floor,
        }
    }

    /// What it may use of a limit then, in millionths.
    #[must_use]
    pub fn share(&self, limit: &str, now: u64) -> u64 {
        let share = self.granted(limit);
        match self.state(now) {
            State::Ok => share.map_or(0, |it| it.lease),
            State::Expired => share.map_or(0, |it| it.lease.min(it.safe)),
            State::Safe => share.map_or(0, |it| it.safe),
            State::Floor => match &self.granted {
                None if now.saturating_sub(self.began) < self.terms.floor_after() => 0,
                None => self.terms.floor(),
                // Nobody knows that it wants any of a limit of which it had no answer.
                Some(_) => share.map_or(0, |it| it.safe.min(self.terms.floor())),
            },
            State::Refused => 0,
        }
    }

    /// When shares change next without another answer.
    #[must_use]
    pub fn changes(&self, now: u64) -> Option<u64> {
        if self.refused.is_some() {
            return None;
        }
        let terms = &self.terms;
        let Some((sent, _)) = &self.granted else {
            return Some(self.began + terms.floor_after()).filter(|at| *at > now);
        };
        let ages = [terms.ttl, terms.safe_after(), terms.forget_after];
        ages.iter().map(|age| sent + age).find(|at| *at > now)
    }

    /// What the server answered last of a limit.
    #[must_use]
    pub fn granted(&self, limit: &str) -> Option<Share> {
        let (_, granted) = self.granted.as_ref()?;
        granted.shares.get(*self.places.get(limit)?).copied()
    }

    /// How many members there were, and whether the server learned, when it answered last.
    #[must_use]
    pub fn group(&self) -> Option<(u64, bool)> {
        let (_, granted) = self.granted.as_ref()?;
        Some((granted.members, granted.is_learning))
    }

    /// Why the server refuses it.
    #[must_use]
    pub fn refused(&self) -> Option<&Answer> {
        self.refused.as_ref()
    }
}

/// A member.
#[derive(Debug, Clone)]
pub struct Member {
    name: String,
    instance: u64,
    number: u64,
    /// The grant that it goes by.
    applied: u64,
    /// The question that is under way, and when it was sent.
    asked: Option<(Question, u64)>,
    plan: Plan,
    demands: BTreeMap<String, u64>,
    /// Whether it has taken the number after that of a process before it.
    has_taken_over: bool,
}

impl Member {
    /// A process of this name that begins when its clock shows `began`: `instance` is larger than that of any earlier one.
    #[must_use]
    pub fn new(terms: Terms, name: &str, instance: u64, began: u64) -> Self {
        Self {
            name: name.to_owned(),
            instance,
            number: 0,
            applied: 0,
            asked: None,
            plan: Plan::new(terms, began),
            demands: BTreeMap::new(),
            has_taken_over: false,
        }
    }

    /// What holds now.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What it could use of each of its limits since it asked last, in millionths. What it uses of others ends with the next answer.
    pub fn want(&mut self, demands: impl IntoIterator<Item = (String, u64)>) {
        let before = std::mem::take(&mut self.demands);
        let smooth = |(limit, demand): (String, u64)| {
            let demand = demand.min(DEMAND_MAX);
            let smoothed = before
                .get(&limit)
                .map_or(demand, |known| (known + demand).div_ceil(2));
            (limit, smoothed)
        };
        self.demands = demands.into_iter().map(smooth).collect();
    }

    /// The next question, which is sent now. The one before is given up.
    pub fn ask(&mut self, now: u64) -> Question {
        self.number += 1;
        if self.plan.state(now) == State::Floor {
            self.applied = 0;
        }
        // Of what it wants no more it still has something.
        let past = self
            .plan
            .places
            .keys()
            .filter(|limit| !self.demands.contains_key(*limit));
        let limits = self.demands.iter().map(|(limit, demand)| (limit, *demand));
        let limits = limits
            .chain(past.map(|limit| (limit, 0)))
            .map(|(limit, demand)| Ask {
                limit: limit.clone(),
                held: self.plan.share(limit, now),
                safe: match self.applied {
                    0 => self.plan.terms.floor(),
                    _ => self.plan.granted(limit).map_or(0, |it| it.safe),
                },
                demand,
            });
        let question = Question {
            member: self.name.clone(),
            instance: self.instance,
            number: self.number,
            applied: self.applied,
            leaves: false,
            limits: limits.collect(),
        };
        self.asked = Some((question.clone(), now));
        question
    }

    /// Takes the answer to question `number`; false when it is too late to be used.
    pub fn hear(&mut self, number: u64, answer: Answer, now: u64) -> bool {
        let in_time = |asked: &(Question, u64)| {
            asked.0.number == number && now.saturating_sub(asked.1) <= self.plan.terms.timeout
        };
        let Some((question, sent)) = self.asked.take_if(|asked| in_time(asked)) else {
            return false;
        };
        match answer {
            Answer::Granted(granted) => {
                let limits = question.limits.into_iter().enumerate();
                let wanted = limits.filter(|(_, ask)| self.demands.contains_key(&ask.limit));
                self.plan.places = wanted.map(|(place, ask)| (ask.limit, place)).collect();
                self.plan.granted = Some((sent, granted));
                self.plan.refused = None;
                self.applied = number;
            }
            Answer::Stale => return false,
            // It has only begun, so it is the later one: the clock of its machine is behind.
            Answer::Replaced(known) if self.plan.granted.is_none() && !self.has_taken_over => {
                self.has_taken_over = true;
                self.instance = known + 1;
            }
            refused => self.plan.refused = Some(refused),
        }
        true
    }

    /// Whether the last answer took something away, so that others wait to hear that it is given up.
    #[must_use]
    pub fn gave_up_some(&self, before: &Plan, now: u64) -> bool {
        let fell = |limit: &String| self.plan.share(limit, now) < before.share(limit, now);
        self.demands.keys().any(fell)
    }

    /// Says goodbye: from now on it uses nothing.
    pub fn leave(&mut self) -> Question {
        self.number += 1;
        self.asked = None;
        self.plan.refused = Some(Answer::Replaced(self.instance));
        Question {
            member: self.name.clone(),
            instance: self.instance,
            number: self.number,
            applied: self.applied,
            leaves: true,
            limits: Vec::new(),
        }
    }
}
