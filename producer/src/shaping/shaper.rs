//! All waiting rooms under one file of limits. Pure: time is what the caller says it is.
//!
//! Every cookie of a DSP under a limit is offered here, and goes at once, is held, or is dropped. [`Shaper::turn`] is called when
//! something is due, and tells what goes now.
//!
//! One reservation covers the limits of a cookie's DSP and those of every call. Where cookies wait it is made for the first of a line only, and
//! each room in turn makes one: so under a limit that several DSPs share each gets as much as the others, however long its line is.

mod change;
mod shares;
mod summary;

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use limits::{
    LimitId, Limits,
    rules::{Mode, Rules},
};
use limits_sharing::dsp_limits::DSPS_MAX;

pub(super) use self::shares::Shares;
pub(crate) use self::summary::Summary;
use super::{
    counters::{Fate, Figures},
    held::Held,
    room::{Offered, Room},
};
use crate::log::burst::Pushed;

/// The key of a room that many DSPs share, and of the limits of every call: no DSP has it.
const EVERYBODY: u32 = 0;

/// Most cookies that go in one turn, so that a turn is short.
pub(super) const TURN_COOKIES_MAX: usize = 256;

/// All waiting rooms.
#[derive(Debug)]
pub(crate) struct Shaper {
    limits: Limits<u32>,
    numbers: BTreeMap<RuleName, LimitId>,
    /// Of rules that are gone.
    spare: Vec<LimitId>,
    /// What of the limits is this process's.
    shares: Shares,
    rooms: Vec<NamedRoom>,
    by_dsp: HashMap<u32, usize, RandomState>,
    /// The room of those that no limit names.
    others: Option<usize>,
    /// What rooms that are gone counted under limits that others are still under, and under rules of theirs.
    past: BTreeMap<String, Figures>,
    /// The latest moment that was told.
    latest: u64,
    /// Rooms that may hold cookies of DSPs whose room is another one now, by their keys.
    strays: HashMap<u32, Vec<usize>, RandomState>,
    /// The rooms that hold something; each turn begins with another.
    busy: Vec<usize>,
    lines: u64,
    /// What was taken out and has no fate yet, by the limits' names.
    leaving: BTreeMap<String, u64>,
    /// When something is due; at the latest.
    due: u64,
}

/// The limit and the rule, and whether it is a copy for those that are only observed.
type RuleName = (String, String, bool);

/// A room, and whose it is.
#[derive(Debug)]
struct NamedRoom {
    /// The limit's name.
    name: String,
    key: u32,
    room: Room,
    /// How many cookies had come when that was asked last.
    counted: u64,
    /// The file does not name its limit any more.
    is_closing: bool,
    /// It is among those that hold something.
    is_busy: bool,
}

impl Shaper {
    /// The rooms of a file that was [checked](limits_sharing::dsp_limits::check).
    pub(super) fn new(rules: &Rules, now: u64) -> Self {
        let rules_max = DSPS_MAX * limits::DEMANDS_MAX;
        let mut shaper = Self {
            limits: Limits::new(rules_max),
            numbers: BTreeMap::new(),
            spare: Vec::new(),
            shares: Shares::default(),
            rooms: Vec::new(),
            by_dsp: HashMap::default(),
            others: None,
            past: BTreeMap::new(),
            latest: now,
            strays: HashMap::default(),
            busy: Vec::new(),
            lines: 0,
            leaving: BTreeMap::new(),
            due: 0,
        };
        shaper.change(rules, now);
        shaper
    }

    /// What becomes of a cookie now. The system's time is asked for when it is held.
    pub(crate) fn offer(
        &mut self,
        cookie: Pushed<'_>,
        now: u64,
        unix_micros: impl FnOnce() -> u64,
    ) -> Offered {
        // A read may be older than what others have offered meanwhile.
        let now = now.max(self.latest);
        self.latest = now;
        let dsp_id = cookie.dsp_id();
        let place = self.by_dsp.get(&dsp_id).copied().or(self.others);
        if !self.strays.is_empty() {
            let of = |key| self.strays.get(&key).into_iter().flatten();
            for stray in of(dsp_id).chain(of(EVERYBODY)) {
                if place != Some(*stray) {
                    self.rooms[*stray].room.supersede(cookie);
                }
            }
        }
        let Some(place) = place else {
            return Offered::Release;
        };
        let NamedRoom { room, is_busy, .. } = &mut self.rooms[place];
        let limits = &mut self.limits;
        let offered = match room.terms.handling.mode {
            Mode::Police => room.police(limits, cookie, now),
            Mode::Shape => {
                let held = || Held::new(&cookie.cookie(), unix_micros(), now);
                room.shape(limits, cookie, now, self.lines, held)
            }
            Mode::Observe => room.observe(limits, cookie, now),
        };
        if offered != Offered::Release {
            room.figures.accepted += 1;
        }
        if offered == Offered::Held {
            self.due = self.due.min(room.due().unwrap_or(u64::MAX));
            if !std::mem::replace(is_busy, true) {
                self.busy.push(place);
            }
        }
        offered
    }

    /// Holds again what an earlier run held; released at once when its DSP's cookies do not wait any more.
    pub(super) fn take_back(&mut self, held: Held, now: u64) -> Option<Held> {
        let place = self.by_dsp.get(&held.dsp_id).copied().or(self.others);
        let Some(place) = place else {
            return Some(held);
        };
        let NamedRoom { room, is_busy, .. } = &mut self.rooms[place];
        room.take_back(held, now, self.lines);
        if !std::mem::replace(is_busy, true) {
            self.busy.push(place);
        }
        None
    }

    /// When something is due, `u64::MAX` when nothing is; a moment that has passed when there was too much for one turn.
    pub(super) fn due(&self) -> u64 {
        self.due
    }

    /// Does what is due, and tells what goes now, in this order.
    pub(super) fn turn(&mut self, now: u64, mut go: impl FnMut(Held)) {
        let now = now.max(self.latest);
        self.latest = now;
        let busy = std::mem::take(&mut self.busy);
        let mut left = TURN_COOKIES_MAX;
        for &index in &busy {
            let place = &mut self.rooms[index];
            if place.shapes() {
                place.room.wake(now, self.lines, TURN_COOKIES_MAX);
                continue;
            }
            while left > 0
                && let Some(held) = place.room.take_any(now)
            {
                left -= 1;
                place.room.figures.note(Fate::ReleasedEarly, 1);
                go(held);
            }
        }
        self.hand_out_slots(&busy, now);
        for &index in &busy {
            let share = left.min(TURN_COOKIES_MAX / 4);
            self.rooms[index].room.release(now, share, |held| {
                left -= 1;
                go(held);
            });
        }
        self.find_busy(busy);
    }

    /// Which rooms still hold something, and when the first of them has something to do.
    fn find_busy(&mut self, mut busy: Vec<usize>) {
        busy.retain(|index| {
            let place = &mut self.rooms[*index];
            place.is_busy = place.room.len() > 0;
            place.is_busy
        });
        if !busy.is_empty() {
            busy.rotate_left(1);
        }
        self.busy = busy;
        self.retire();
        let is_empty = |index: &usize| self.rooms[*index].room.len() == 0;
        if self.strays.values().flatten().any(is_empty) {
            self.find_strays();
        }
        let busy = || self.busy.iter().map(|index| &self.rooms[*index]);
        self.lines = busy().filter(|place| place.room.has_line()).count() as u64;
        let due = |place: &NamedRoom| match place.shapes() {
            true => place.room.due(),
            false => Some(0),
        };
        self.due = busy().filter_map(due).min().unwrap_or(u64::MAX);
    }

    /// Takes out everything that is held. It counts as waiting until it [is settled](Self::settle).
    pub(super) fn take_all(&mut self, now: u64) -> Vec<Held> {
        let mut all = Vec::new();
        for place in &mut self.rooms {
            let before = all.len();
            all.extend(std::iter::from_fn(|| place.room.take_any(now)));
            *self.leaving.entry(place.name.clone()).or_default() += (all.len() - before) as u64;
        }
        all
    }

    /// What was taken out has this fate.
    pub(super) fn settle(&mut self, fate: Fate) {
        for (limit, count) in std::mem::take(&mut self.leaving) {
            let past = self.past.entry(limit).or_default();
            past.note(fate, count);
        }
    }

    /// How many cookies are held.
    pub(super) fn held(&self) -> u64 {
        let rooms = self.rooms.iter().map(|place| place.room.len() as u64);
        rooms.chain(self.leaving.values().copied()).sum()
    }

    /// What was counted, by the limits' names.
    pub(crate) fn summaries(&self, now: u64) -> BTreeMap<String, Summary> {
        let mut summaries: BTreeMap<String, Summary> = BTreeMap::new();
        for (limit, past) in &self.past {
            summaries
                .entry(limit.clone())
                .or_default()
                .figures
                .add(past);
        }
        for place in &self.rooms {
            let summary = summaries.entry(place.name.clone()).or_default();
            summary.figures.add(&place.room.figures);
            summary.holding.add(&place.room.holding(now));
        }
        for (limit, count) in &self.leaving {
            summaries.entry(limit.clone()).or_default().holding.waiting += count;
        }
        summaries
    }

    /// One slot to each room that wants one, until none does.
    fn hand_out_slots(&mut self, busy: &[usize], now: u64) {
        let wants = |place: &NamedRoom| place.shapes() && place.room.wants_slot(now);
        let of = |index: &usize| wants(&self.rooms[*index]);
        let mut wanting: Vec<usize> = busy.iter().copied().filter(of).collect();
        while !wanting.is_empty() {
            wanting.retain(|index| {
                let place = &mut self.rooms[*index];
                place.room.take_slot(&mut self.limits, now);
                wants(place)
            });
        }
    }
}

impl NamedRoom {
    /// Whether what is over its limit waits in it.
    fn shapes(&self) -> bool {
        !self.is_closing && self.room.terms.handling.mode == Mode::Shape
    }
}
