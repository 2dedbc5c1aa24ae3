//! Limits that a server decides on, for several processes: what it is asked, and what becomes of its answers.
//!
//! Rooms ask in turn. What the server let go counts here too, where there is a part of each limit for when it is lost.

use std::sync::Arc;

use limits::{
    Limit,
    rules::{Mode, NamedLimit, Rules, Sharing, SharingMode},
};
use limits_sharing::exact::{Answer, Ask, Outcome, Rule, Unanswered};

use super::{NamedRoom, Shaper};
use crate::shaping::room::Giver;

/// Most questions that are under way.
const ASKED_MAX: usize = 16;

/// When may the next of a room go?
#[derive(Debug)]
pub(in crate::shaping) struct Question {
    limit: String,
    key: u32,
    /// What it asks of each rule.
    pub(in crate::shaping) asks: Arc<[Ask]>,
    /// How long it may wait.
    pub(in crate::shaping) horizon: std::time::Duration,
}

/// That a server decides.
#[derive(Debug)]
pub(super) struct Asking {
    /// Of how many parts of each limit one is this process's while the server is lost; none when nothing goes then.
    parts: Option<u64>,
    giver: Giver,
    /// Whether the server was there since the start: before, a part would come anew with each start.
    was_there: bool,
    /// How many questions have no answer yet.
    asked: usize,
    questions: Vec<Question>,
}

impl Asking {
    /// None when no server decides.
    pub(super) fn of(sharing: Option<&Sharing>) -> Option<Self> {
        let sharing = sharing.filter(|it| it.mode == SharingMode::Exact)?;
        Some(Self {
            parts: sharing.members_max,
            giver: Giver::Nobody,
            was_there: false,
            asked: 0,
            questions: Vec::new(),
        })
    }
}

impl Shaper {
    /// What of a rule is counted here. What is only observed is counted whole.
    pub(super) fn counted(&self, named: &NamedLimit, limit: Limit, is_observed: bool) -> Limit {
        let Some(asking) = &self.asking else {
            return self.shares.limit(&named.name, limit);
        };
        let is_observed = match named.every_call {
            true => is_observed,
            false => named.handling.mode == Mode::Observe,
        };
        let parts = asking.parts.filter(|_| !is_observed).unwrap_or(1);
        let algorithm = limit.algorithm.part(parts).expect("the file was checked");
        Limit { algorithm, ..limit }
    }

    /// What a cookie under these limits asks the server, in the order of its demands; none when no server decides.
    pub(super) fn asks(&self, rules: &Rules, limit: &NamedLimit, key: u32) -> Option<Arc<[Ask]>> {
        self.asking.as_ref()?;
        let every_call = rules.limits.iter().filter(|limit| limit.every_call);
        let asks = std::iter::once(limit).chain(every_call).flat_map(|under| {
            // As limiters name it, with which these limits may be shared.
            let key: Arc<str> = match under.every_call {
                true => Arc::from(""),
                false => key.to_string().into(),
            };
            under.rules.iter().map(move |rule| Ask {
                name: format!("{}/{}", under.name, rule.id).into(),
                rule: Rule::of(&rule.limit).expect("the file was checked"),
                key: Arc::clone(&key),
                requests: 1,
            })
        });
        Some(asks.collect())
    }

    /// Who gives slots to rooms.
    pub(in crate::shaping) fn giver(&self) -> Giver {
        self.asking.as_ref().map_or(Giver::Here, |it| it.giver)
    }

    /// Whether the server that decides is there.
    pub(in crate::shaping) fn set_server(&mut self, is_there: bool, now: u64) {
        let now = now.max(self.latest);
        let Some(asking) = &mut self.asking else {
            return;
        };
        asking.was_there |= is_there;
        let giver = match asking.parts {
            _ if is_there => Giver::Server,
            Some(_) if asking.was_there => Giver::Here,
            _ => Giver::Nobody,
        };
        if giver != asking.giver {
            asking.giver = giver;
            for place in &mut self.rooms {
                place.room.set_giver(giver, now);
            }
            self.due = 0;
        }
    }

    /// Whether one more question may be asked.
    pub(super) fn may_ask(&self) -> bool {
        let is_below = |asking: &Asking| asking.asked < ASKED_MAX;
        self.asking.as_ref().is_some_and(is_below)
    }

    /// Has rooms ask for slots, one after the other, until none wants one.
    pub(super) fn ask(&mut self, busy: &[usize], now: u64) {
        let Some(asking) = &mut self.asking else {
            return;
        };
        let wants = |place: &NamedRoom| place.shapes() && place.room.wants_to_ask(now);
        let of = |index: &usize| wants(&self.rooms[*index]);
        let mut wanting: Vec<usize> = busy.iter().copied().filter(of).collect();
        while !wanting.is_empty() {
            wanting.retain(|index| {
                let place = &mut self.rooms[*index];
                let Some(asks) = place.asks.as_ref().filter(|_| asking.asked < ASKED_MAX) else {
                    return false;
                };
                asking.asked += 1;
                place.room.note_asked();
                asking.questions.push(Question {
                    limit: place.name.clone(),
                    key: place.key,
                    asks: Arc::clone(asks),
                    horizon: place.room.terms.handling.horizon,
                });
                wants(place)
            });
        }
    }

    /// What the server is to be asked. Each is [answered](Self::answered) once.
    pub(in crate::shaping) fn take_questions(&mut self) -> Vec<Question> {
        let questions = self.asking.as_mut().map(|it| &mut it.questions);
        questions.map(std::mem::take).unwrap_or_default()
    }

    /// Whether there is something to ask.
    pub(in crate::shaping) fn has_questions(&self) -> bool {
        let has = |asking: &Asking| !asking.questions.is_empty();
        self.asking.as_ref().is_some_and(has)
    }

    /// What the server said, if it did. The slot is of the room that asked, if its rules are still those.
    pub(in crate::shaping) fn answered(
        &mut self,
        question: &Question,
        answer: Result<&Answer, Unanswered>,
        now: u64,
    ) {
        let now = now.max(self.latest);
        self.latest = now;
        let Some(asking) = &mut self.asking else {
            return;
        };
        asking.asked -= 1;
        self.due = 0;
        let is_it =
            |place: &&mut NamedRoom| (place.key, &place.name) == (question.key, &question.limit);
        let Some(place) = self.rooms.iter_mut().find(is_it) else {
            return;
        };
        place.room.note_answered();
        let Ok(answer) = answer else {
            return;
        };
        if asking.parts.is_some() && matches!(answer.outcome, Outcome::Now | Outcome::At) {
            let recorded = self.limits.record_all(&place.room.terms.demands, now, now);
            if recorded.is_err() {
                tracing::debug!(limit = %question.limit, "no room here: nothing of it goes without the server");
            }
        }
        if place.asks.as_ref() == Some(&question.asks) {
            place.room.take_answer(answer, now);
        }
    }
}
