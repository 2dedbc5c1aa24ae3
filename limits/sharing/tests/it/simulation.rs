//! Tests that simulate members and a server with faults: at every instant, the shares must add up to at most the limit.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use fastrand::Rng;
use limits_sharing::{
    member::{Member, SharePlan, ShareState},
    messages::{LeaseReply, LeaseRequest},
    terms::{Terms, WHOLE},
};

use crate::model::Ledger;

const SECOND: u64 = 1_000_000;

/// Duration of each simulation.
const END: u64 = 200 * SECOND;

/// All members have the first two limits; the third is added to one member after the other.
const LIMITS: [&str; 3] = ["a", "b", "c"];

fn terms(members_max: u64) -> Terms {
    let terms = Terms {
        refresh: SECOND,
        timeout: 50_000,
        forget_after: 60 * SECOND,
        members_max,
    };
    terms.checked().expect("consistent settings")
}

/// A process that shares the limits. A paused process counts as using its share.
struct Process {
    member: Member,
    is_alive: bool,
    /// Its clock is `offset + now · speed / 10,000`.
    offset: u64,
    speed: u64,
    partitioned_until: u64,
    /// Until then, its requests arrive, but not the replies.
    replies_lost_until: u64,
    paused_until: u64,
    /// Until then, no fault affects it: an empty server needs a member that knows the others.
    is_witness_until: u64,
    hot: u64,
    /// Whether its file has the third limit.
    has_third: bool,
}

impl Process {
    fn clock(&self, now: u64) -> u64 {
        self.offset + now * self.speed / 10_000
    }

    /// The simulated time of a reading of its clock, or just after.
    fn when(&self, clock: u64) -> u64 {
        let passed = clock.saturating_sub(self.offset);
        (passed * 10_000).div_ceil(self.speed) + 1
    }

    fn plan(&self) -> &SharePlan {
        self.member.plan()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick(usize),
    ToServer(usize, u64),
    ToMember(usize, u64),
    Fault,
    /// A share changes without a reply.
    Check,
}

struct World {
    seed: u64,
    random: Rng,
    terms: Terms,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    processes: Vec<Process>,
    requests: HashMap<u64, LeaseRequest>,
    replies: HashMap<u64, (u64, LeaseReply)>,
    server: Option<Ledger>,
    /// Copies on replicas, newest last.
    copies: Vec<(u64, Ledger)>,
    run: u64,
    /// Offset of the server's clock. All steps together are less than an eighth of `forget_after`.
    ahead: u64,
    paused_until: u64,
    down_until: u64,
    stepped: u64,
    /// Used share of the first limit in each second, in thousandths.
    used: Vec<u64>,
    faults: bool,
}

impl World {
    fn new(seed: u64, faults: bool) -> Self {
        let mut random = Rng::with_seed(seed);
        let members = random.usize(2..6);
        let members_max = [0, 6][random.usize(0..2)] * u64::from(faults);
        let mut world = Self {
            seed,
            terms: terms(members_max),
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            processes: Vec::new(),
            requests: HashMap::new(),
            replies: HashMap::new(),
            server: None,
            copies: Vec::new(),
            run: 1,
            ahead: 1_000 * SECOND,
            paused_until: 0,
            down_until: 0,
            stepped: 0,
            used: Vec::new(),
            faults,
            random,
        };
        for _ in 0..members {
            world.join(None);
        }
        if faults {
            world.at(5 * SECOND, Event::Fault);
        }
        world
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events
            .push(Reverse((time.max(self.now), self.count, event)));
    }

    /// Adds a process, with a new name or that of an ended process.
    fn join(&mut self, name: Option<usize>) {
        let index = self.processes.len();
        let name = format!("member-{}", name.unwrap_or(index));
        let offset = self.random.u64(0..1_000 * SECOND);
        let speed = self.random.u64(9_900..=10_100);
        let began = offset + self.now * speed / 10_000;
        let process = Process {
            member: Member::new(self.terms, &name, index as u64, began),
            is_alive: true,
            offset,
            speed,
            partitioned_until: 0,
            replies_lost_until: 0,
            paused_until: 0,
            is_witness_until: 0,
            hot: self.random.u64(0..2 * WHOLE),
            // Without `members_max` an empty server needs a witness of each limit.
            has_third: self.terms.members_max > 0 && self.random.bool(),
        };
        let look = process.plan().changes(began).map(|at| process.when(at));
        self.processes.push(process);
        if let Some(look) = look {
            self.at(look, Event::Check);
        }
        let first = self.now + self.random.u64(0..SECOND);
        self.at(first, Event::Tick(index));
    }

    fn run(&mut self) {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > END {
                return;
            }
            self.check();
            while self.used.len() as u64 <= time / SECOND {
                let used = self.sum(LIMITS[0]) * 1_000 / WHOLE;
                self.used.push(used);
            }
            self.now = time;
            self.check();
            match event {
                Event::Tick(index) => self.tick(index),
                Event::ToServer(index, id) => self.reach_server(index, id),
                Event::ToMember(index, id) => self.reach_member(index, id),
                Event::Fault => self.fault(),
                Event::Check => {}
            }
        }
    }

    fn sum(&self, limit: &str) -> u64 {
        let alive = self.processes.iter().filter(|it| it.is_alive);
        alive
            .filter(|it| limit != LIMITS[2] || it.has_third)
            .map(|it| it.plan().share(limit, it.clock(self.now)))
            .sum()
    }

    #[track_caller]
    fn check(&self) {
        for limit in LIMITS {
            let sum = self.sum(limit);
            if sum > WHOLE {
                let seconds = self.now as f64 / 1e6;
                for (index, it) in self
                    .processes
                    .iter()
                    .enumerate()
                    .filter(|(_, it)| it.is_alive)
                {
                    let clock = it.clock(self.now);
                    let (state, share) = (it.plan().state(clock), it.plan().share(limit, clock));
                    eprintln!("{index}: {state:?} {share} {:?}", it.plan().granted(limit));
                }
                panic!("seed {}: {sum} of {limit} at {seconds} s", self.seed);
            }
        }
    }

    fn delay(&mut self, index: usize) -> Option<u64> {
        let process = &self.processes[index];
        if self.now < process.is_witness_until || !self.faults {
            return Some(self.random.u64(100..5_000));
        }
        if self.now < process.partitioned_until {
            return None;
        }
        match self.random.u32(0..100) {
            0..88 => Some(self.random.u64(100..5_000)),
            88..93 => Some(self.random.u64(5_000..60_000)),
            93..95 => Some(self.random.u64(60_000..8 * SECOND)),
            _ => None,
        }
    }

    fn tick(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if !process.is_alive {
            return;
        }
        if self.now < process.paused_until {
            let until = process.paused_until;
            return self.at(until, Event::Tick(index));
        }
        let noise = self.random.u64(0..100_000);
        let hot = process.hot;
        let mut limits = vec![(LIMITS[0].to_owned(), hot + noise)];
        if self.random.u32(0..10) > 0 {
            limits.push((LIMITS[1].to_owned(), (2 * WHOLE).saturating_sub(hot)));
        }
        if process.has_third {
            limits.push((LIMITS[2].to_owned(), hot));
        }
        process.member.set_demands(limits);
        let request = process.member.request(process.clock(self.now));
        let next = self.terms.refresh * 100 / process.speed * 100;
        let next = self.now + next * self.random.u64(90..=110) / 100;
        self.send(index, request);
        self.at(next, Event::Tick(index));
    }

    fn send(&mut self, index: usize, request: LeaseRequest) {
        if let Some(delay) = self.delay(index) {
            let id = self.count;
            self.requests.insert(id, request);
            self.at(self.now + delay, Event::ToServer(index, id));
        }
    }

    fn reach_server(&mut self, index: usize, id: u64) {
        if self.now < self.paused_until {
            // Queued requests are processed in any order.
            let until = self.paused_until + self.random.u64(0..100);
            return self.at(until, Event::ToServer(index, id));
        }
        let request = self.requests.remove(&id).expect("a sent message");
        if self.now < self.down_until {
            return;
        }
        let (run, wall) = (self.run.to_string(), self.now + self.ahead);
        let terms = self.terms;
        let server = self
            .server
            .get_or_insert_with(|| Ledger::new(terms, &run, wall));
        let reply = server.respond(&terms, &run, wall, &request);
        if self.faults && id.is_multiple_of(4) {
            self.copies.push((self.now, server.clone()));
        }
        if self.copies.len() > 10 {
            self.copies.remove(0);
        }
        let process = &self.processes[index];
        if self.now < process.replies_lost_until && self.now >= process.is_witness_until {
            return;
        }
        if let Some(delay) = self.delay(index) {
            self.replies.insert(id, (request.number, reply));
            self.at(self.now + delay, Event::ToMember(index, id));
        }
    }

    fn reach_member(&mut self, index: usize, id: u64) {
        let paused_until = self.processes[index].paused_until;
        if self.now < paused_until {
            return self.at(paused_until, Event::ToMember(index, id));
        }
        let (number, reply) = self.replies.remove(&id).expect("a sent message");
        let process = &mut self.processes[index];
        if !process.is_alive {
            return;
        }
        let clock = process.clock(self.now);
        let before = process.plan().clone();
        if !process.member.receive(number, reply, clock) {
            return;
        }
        let mut looks = Vec::new();
        let mut at = clock;
        while let Some(next) = process.plan().changes(at) {
            looks.push(process.when(next));
            at = next;
        }
        let asks_again = process.member.has_released_share(&before, clock);
        let request = asks_again.then(|| process.member.request(clock));
        for look in looks {
            self.at(look, Event::Check);
        }
        if let Some(request) = request {
            self.send(index, request);
        }
    }

    /// Chooses a member that knows the others and reaches an empty server.
    fn name_witness(&mut self) -> bool {
        let until = self.now + 20 * SECOND;
        let (now, terms) = (self.now, self.terms);
        if terms.members_max > 0 {
            return true;
        }
        let knows = |it: &&mut Process| {
            it.is_alive
                && it.partitioned_until < now
                && it.replies_lost_until < now
                && it.paused_until < now
                && it.plan().state(it.clock(now)) != ShareState::Guaranteed
        };
        match self.processes.iter_mut().find(knows) {
            Some(witness) => {
                witness.is_witness_until = until;
                true
            }
            None => self
                .processes
                .iter()
                .all(|it| !it.is_alive || it.plan().state(it.clock(now)) == ShareState::Guaranteed),
        }
    }

    fn fault(&mut self) {
        let next = self.now + self.random.u64(SECOND / 2..12 * SECOND);
        self.at(next, Event::Fault);
        let now = self.now;
        let long = match self.random.u32(0..10) {
            0..6 => self.random.u64(SECOND / 10..5 * SECOND),
            6..9 => self.random.u64(SECOND..20 * SECOND),
            _ => self.random.u64(20 * SECOND..100 * SECOND),
        };
        let index = self.random.usize(0..self.processes.len());
        let alive = self.processes.iter().filter(|it| it.is_alive).count() as u64;
        let has_capacity = alive < 6;
        let process = &mut self.processes[index];
        let is_free = process.is_alive && process.is_witness_until < now;
        match self.random.u32(0..17) {
            0..3 if is_free => process.partitioned_until = now + long,
            3 if is_free => process.paused_until = now + long.min(30 * SECOND),
            // Killed, and possibly restarted under its name.
            4 if is_free && alive > 1 => {
                process.is_alive = false;
                if self.random.bool() {
                    self.join(Some(index));
                }
            }
            5 if is_free && alive > 1 => {
                let request = process.member.leave();
                process.is_alive = false;
                self.send(index, request);
            }
            15 if self.terms.members_max > 0 => process.has_third = true,
            // Sometimes for longer than `forget_after`.
            16 if is_free => {
                process.replies_lost_until = now + self.random.u64(10 * SECOND..100 * SECOND);
            }
            6 if has_capacity && self.processes.len() < 12 => self.join(None),
            7 => self
                .processes
                .iter_mut()
                .for_each(|it| it.hot = self.random.u64(0..2 * WHOLE)),
            8 => self.paused_until = self.paused_until.max(now + long.min(15 * SECOND)),
            9 => self.down_until = self.down_until.max(now + long.min(30 * SECOND)),
            // The server restarts without its data.
            10 if self.name_witness() => {
                self.server = None;
                self.copies.clear();
                self.run += 1;
                self.down_until = now + self.random.u64(0..2 * SECOND);
            }
            // A lagging replica with a different clock takes over.
            11 | 12 if !self.copies.is_empty() => {
                let copy = self.random.usize(0..self.copies.len());
                self.server = Some(self.copies[copy].1.clone());
                self.copies.truncate(copy + 1);
                self.run += 1;
                self.ahead = self.random.u64(1_000 * SECOND..1_007 * SECOND);
            }
            13 => self.ahead = self.random.u64(1_000 * SECOND..1_007 * SECOND),
            // A small step, which is not detected.
            14 if self.stepped + 10 * SECOND < now => {
                self.stepped = now;
                let ahead = self.ahead + self.random.u64(0..2 * SECOND) - SECOND;
                self.ahead = ahead.clamp(1_000 * SECOND, 1_007 * SECOND);
            }
            _ => {}
        }
    }
}

#[test]
fn shares_never_exceed_the_limit() {
    for seed in 0..1_000 {
        World::new(seed, true).run();
    }
}

#[test]
#[ignore = "long: 20,000 seeds, some minutes"]
fn shares_never_exceed_the_limit_for_many_seeds() {
    for seed in 1_000..21_000 {
        World::new(seed, true).run();
    }
}

#[test]
fn limit_is_fully_used_without_faults() {
    for seed in 0..50 {
        let mut world = World::new(seed, false);
        world.run();
        let calm = &world.used[20..];
        let least = calm.iter().min().unwrap();
        assert!(*least > 900, "seed {seed}: {calm:?}");
    }
}
