//! Producers whose limits a server decides on: it and the way to it are played here, in virtual time.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use limits::{Algorithm, Decision, Demand, LimitId, Limits, Refusal, rules::Rules};
use limits_sharing::exact::{Answer, Ask, Outcome, Unanswered};

use super::{MILLISECOND, SECOND, START, World, contract, rules};
use crate::shaping::shaper::Question;

/// How long an answer takes, and how long a producer waits for one.
const ANSWER: u64 = 20 * MILLISECOND;
const BUDGET: u64 = 50 * MILLISECOND;

/// By how much the server's clock is ahead, in microseconds; whole hours, so that windows begin together.
const AHEAD: u64 = 3 * 3_600_000_000;

const HOUR: u64 = 3_600 * SECOND;

/// As the script decides, by the core.
struct Server {
    limits: Limits<Arc<str>>,
    numbers: HashMap<Arc<str>, LimitId>,
    is_lost: bool,
}

impl Server {
    fn decide(&mut self, asks: &[Ask], horizon: Duration, now: u64) -> Answer {
        let now = now.div_ceil(1_000) + AHEAD;
        let demand = |ask: &Ask| Demand {
            limit: self.numbers[&ask.name],
            key: Arc::clone(&ask.key),
            requests: ask.requests,
        };
        let demands: Vec<_> = asks.iter().map(demand).collect();
        let decision = self.limits.reserve(&demands, now * 1_000, horizon);
        let binding = |rule| demands.iter().position(|it| it.limit == rule);
        let answer = Answer {
            outcome: Outcome::Now,
            now,
            at: now,
            binding: None,
            retry_after: 0,
            left: Vec::new(),
        };
        match decision {
            Decision::Now => answer,
            Decision::At { at, rule } => Answer {
                outcome: Outcome::At,
                at: at.div_ceil(1_000),
                binding: binding(rule),
                ..answer
            },
            Decision::Refused { rule, why } => {
                let Refusal::Wait { retry_after } = why else {
                    panic!("{why:?}");
                };
                Answer {
                    outcome: Outcome::Wait,
                    binding: binding(rule),
                    retry_after: u64::try_from(retry_after.as_micros()).unwrap() + 1,
                    ..answer
                }
            }
        }
    }
}

/// Producers of one server.
struct Group {
    server: Server,
    worlds: Vec<World>,
    /// When an answer comes, to whom, and what it is to.
    under_way: Vec<(u64, usize, Question, Option<Answer>)>,
    now: u64,
}

impl Group {
    fn new(count: usize, text: &str) -> Self {
        let rules = rules(text);
        let mut limits = Limits::new(1_000);
        let named = rules.limits.iter().flat_map(|limit| {
            let rule =
                |rule: &limits::rules::Rule| (format!("{}/{}", limit.name, rule.id), rule.limit);
            limit.rules.iter().map(rule).collect::<Vec<_>>()
        });
        let numbers = named
            .map(|(name, limit)| (name.into(), limits.add(limit).unwrap()))
            .collect();
        let mut group = Self {
            server: Server {
                limits,
                numbers,
                is_lost: false,
            },
            worlds: (0..count).map(|_| World::new(text)).collect(),
            under_way: Vec::new(),
            now: 0,
        };
        group.know_server();
        group
    }

    fn lose(&mut self, is_lost: bool) {
        self.server.is_lost = is_lost;
        self.know_server();
    }

    /// Producers notice whether it is there.
    fn know_server(&mut self) {
        for world in &mut self.worlds {
            let now = START + self.now;
            world.shaper.set_server(!self.server.is_lost, now);
        }
    }

    fn offer(&mut self, world: usize, dsp: u32, users: std::ops::Range<u32>) {
        self.worlds[world].now = self.now;
        for user in users {
            self.worlds[world].offer(dsp, &format!("user-{user}"));
        }
    }

    fn ask(&mut self) {
        for (place, world) in self.worlds.iter_mut().enumerate() {
            for question in world.shaper.take_questions() {
                let (at, answer) = match self.server.is_lost {
                    true => (self.now + BUDGET, None),
                    false => {
                        let (asks, now) = (&question.asks, START + self.now);
                        let answer = self.server.decide(asks, question.horizon, now);
                        (self.now + ANSWER, Some(answer))
                    }
                };
                self.under_way.push((at, place, question, answer));
            }
        }
        // Whom the next answer is to comes last.
        self.under_way
            .sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
    }

    fn pass_to(&mut self, then: u64) {
        loop {
            self.ask();
            let due = self.worlds.iter().map(|it| it.shaper.due()).min();
            let due = due.unwrap_or(u64::MAX).saturating_sub(START).max(self.now);
            let answer = self.under_way.last().map_or(u64::MAX, |(at, ..)| *at);
            let next = due.min(answer);
            if next > then {
                break;
            }
            self.now = next;
            if answer == next {
                let (_, place, question, answer) = self.under_way.pop().unwrap();
                let answer = answer.as_ref().ok_or(Unanswered::Lost);
                let shaper = &mut self.worlds[place].shaper;
                shaper.answered(&question, answer, START + next);
            }
            for world in &mut self.worlds {
                if world.shaper.due() <= START + next {
                    world.now = next;
                    world.turn();
                }
            }
        }
        self.now = then;
        for world in &mut self.worlds {
            world.now = then;
        }
    }

    /// How many went by all since then.
    fn went(&self, since: u64) -> usize {
        let gone = self.worlds.iter().flat_map(|it| &it.gone);
        gone.filter(|it| it.at >= since).count()
    }

    /// How many went in each hour of the clock.
    fn by_hour(&self) -> Vec<usize> {
        let mut counts = vec![0; 1 + usize::try_from((START % HOUR + self.now) / HOUR).unwrap()];
        for gone in self.worlds.iter().flat_map(|it| &it.gone) {
            counts[usize::try_from((START % HOUR + gone.at) / HOUR).unwrap()] += 1;
        }
        counts
    }

    fn all_is_counted(&self, limit: &str) {
        for world in &self.worlds {
            world.summary(limit);
        }
    }
}

fn text(members: &str, rule: &str, shape: &str) -> String {
    format!(
        "unknown = \"unlimited\"\n[sharing]\nmode = \"exact\"\nredis = \"redis://127.0.0.1:1\"\ngroup = \"test\"\n{members}\n\
         [limits.seventeen]\nkeys = [17]\nmode = \"shape\"\nrules = [ {{ id = \"quota\", {rule} }} ]\n{shape}\n"
    )
}

const QUOTA: &str = "rate = \"40/1h\", algorithm = \"fixed_window\"";

/// Cookies may wait for hours.
const PATIENT: &str = "shape = { horizon = \"30s\", max_age = \"24h\" }";

#[test]
fn quota_is_one_for_two_producers_in_each_window() {
    let mut group = Group::new(2, &text("", QUOTA, PATIENT));
    for world in 0..2 {
        group.offer(world, 17, 0..100);
    }
    group.pass_to(2 * SECOND);
    assert_eq!(group.went(0), 40);
    group.pass_to(3 * HOUR);
    // The first window began before.
    assert_eq!(group.by_hour(), [40, 40, 40, 40]);
    for world in &group.worlds {
        // Each asks in its turn.
        assert!(
            (60..=100).contains(&world.gone.len()),
            "{}",
            world.gone.len()
        );
    }
    group.pass_to(5 * HOUR);
    assert_eq!(group.went(0), 200);
    group.all_is_counted("seventeen");
}

#[test]
fn rate_is_used_and_never_exceeded() {
    let mut group = Group::new(2, &text("", "rate = \"50/s\", burst = 10", ""));
    for second in 0..20 {
        for world in 0..2 {
            group.offer(world, 17, 100 * second..100 * second + 100);
        }
        group.pass_to(u64::from(second + 1) * SECOND);
    }
    // By when the server had counted them.
    let mut times: Vec<_> = group
        .worlds
        .iter()
        .flat_map(|it| &it.gone)
        .map(|it| it.at)
        .collect();
    times.sort_unstable();
    assert!((990..=1_010).contains(&times.len()), "{}", times.len());
    for (first, from) in times.iter().enumerate() {
        let within = times[first..]
            .iter()
            .take_while(|it| **it < from + SECOND)
            .count();
        // In a time of a second, an answer's way and what is asked ahead.
        assert!(within <= 60 + 5, "{within} from {from}");
    }
    let [one, other] = [0, 1].map(|it: usize| group.worlds[it].gone.len());
    assert!(one.abs_diff(other) <= one / 5, "{one} and {other}");
    group.all_is_counted("seventeen");
}

#[test]
fn nothing_goes_while_the_server_is_lost_and_then_all_goes_on() {
    let mut group = Group::new(2, &text("", QUOTA, PATIENT));
    group.lose(true);
    for world in 0..2 {
        group.offer(world, 17, 0..30);
    }
    group.pass_to(10 * SECOND);
    assert_eq!(group.went(0), 0);
    group.lose(false);
    group.pass_to(10 * SECOND + 30 * MILLISECOND);
    // It is lost with questions under way, which it has counted.
    group.server.is_lost = true;
    group.pass_to(11 * SECOND);
    group.know_server();
    let went = group.went(0);
    assert!((1..40).contains(&went), "{went}");
    group.pass_to(HOUR / 2);
    assert_eq!(group.went(0), went);
    group.lose(false);
    group.pass_to(HOUR / 2 + 10 * SECOND);
    assert_eq!(group.went(0), 40);
    group.pass_to(2 * HOUR);
    assert_eq!(group.by_hour(), [40, 20, 0]);
    group.all_is_counted("seventeen");
}

#[test]
fn each_keeps_to_its_part_while_the_server_is_lost_and_to_none_before_it_was_there() {
    let mut group = Group::new(2, &text("members_max = 4", QUOTA, PATIENT));
    group.lose(true);
    // As at the start, before anything answered.
    group.worlds = (0..2)
        .map(|_| World::new(&text("members_max = 4", QUOTA, PATIENT)))
        .collect();
    group.offer(0, 17, 0..30);
    group.pass_to(10 * SECOND);
    assert_eq!(group.went(0), 0);
    group.lose(false);
    group.pass_to(20 * SECOND);
    assert_eq!(group.went(0), 30);
    group.lose(true);
    for world in 0..2 {
        group.offer(world, 17, 100..200);
    }
    group.pass_to(30 * SECOND);
    // What the first was given is more than its part.
    let went = [0, 1].map(|it: usize| group.worlds[it].gone.len());
    assert_eq!(went, [30, 10]);
    group.lose(false);
    group.pass_to(40 * SECOND);
    assert_eq!(group.went(0), 40 + 10);
    group.all_is_counted("seventeen");
}

#[test]
fn answer_of_a_server_that_is_lost_meanwhile_stops_no_part() {
    let mut group = Group::new(2, &text("members_max = 4", QUOTA, PATIENT));
    group.offer(0, 17, 0..40);
    group.pass_to(10 * SECOND);
    assert_eq!(group.went(0), 40);
    // Nothing is left, which the answers say that are under way.
    group.offer(1, 17, 100..200);
    group.worlds[1].turn();
    group.ask();
    assert!(!group.under_way.is_empty());
    group.lose(true);
    group.pass_to(20 * SECOND);
    let went = [0, 1].map(|it: usize| group.worlds[it].gone.len());
    assert_eq!(went, [40, 10]);
    group.all_is_counted("seventeen");
}

#[test]
fn rooms_ask_in_turn_for_what_they_share() {
    let text = text("", "rate = \"1000/s\", burst = 100", "")
        + "[limits.eighteen]\nkeys = [18]\nmode = \"shape\"\nrules = [ { id = \"own\", rate = \"1000/s\", burst = 100 } ]\n\
           [limits.all]\nevery_call = true\nrules = [ { id = \"whole\", rate = \"20/s\" } ]\n";
    let text = text.replace("unknown = \"unlimited\"", "unknown = \"seventeen\"");
    let mut group = Group::new(1, &text);
    group.offer(0, 17, 0..500);
    group.offer(0, 18, 0..50);
    group.worlds[0].turn();
    group.ask();
    // By the names that limiters ask by, which may share them.
    let mut asked = BTreeSet::new();
    for (_, _, question, _) in &group.under_way {
        asked.extend(question.asks.iter().map(|it| (&*it.name, &*it.key)));
    }
    let expected = [
        ("all/whole", ""),
        ("eighteen/own", "18"),
        ("seventeen/quota", "17"),
    ];
    assert_eq!(asked, BTreeSet::from(expected));
    group.pass_to(2 * SECOND);
    let of = |dsp| {
        group.worlds[0]
            .gone
            .iter()
            .filter(move |it| it.dsp == dsp)
            .count()
    };
    assert!((40..=42).contains(&group.went(0)), "{}", group.went(0));
    assert!(of(17).abs_diff(of(18)) <= 4, "{} and {}", of(17), of(18));
}

#[test]
fn other_rules_are_asked_for_and_slots_of_others_stay() {
    let quota = |rate: &str| {
        text(
            "",
            &format!("rate = \"{rate}\", algorithm = \"fixed_window\""),
            PATIENT,
        )
    };
    let mut group = Group::new(1, &quota("40/1h"));
    group.offer(0, 17, 0..10);
    group.worlds[0].turn();
    group.ask();
    assert!(!group.under_way.is_empty());
    // What comes to other rules than it asked for is wasted: four questions.
    group.worlds[0].change(&quota("50/1h"));
    let number = group.server.numbers["seventeen/quota"];
    let Algorithm::FixedWindow {
        window, aligned, ..
    } = group.server.limits.limit(number).algorithm
    else {
        panic!("a window");
    };
    let more = Algorithm::FixedWindow {
        limit: 50,
        window,
        aligned,
    };
    let now = START + AHEAD * 1_000;
    group
        .server
        .limits
        .change(number, more, limits::Carry::Requests, now)
        .unwrap();
    group.pass_to(SECOND);
    assert_eq!(group.went(0), 10);
    group.offer(0, 17, 10..60);
    group.pass_to(10 * SECOND);
    assert_eq!(group.went(0), 50 - 4);
}

#[test]
fn what_the_server_cannot_decide_on_is_refused_by_name() {
    let mistakes = |text: &str| contract::check(&Rules::parse(text).unwrap()).join("\n");
    let policed = text("", QUOTA, "").replace("\"shape\"", "\"police\"");
    for (text, wrong) in [
        (policed, "limits.seventeen: mode: what is policed"),
        (
            text("", "rate = \"40/1h\", algorithm = \"sliding_log\"", ""),
            "limits.seventeen: quota: a sliding_log cannot be exact",
        ),
        (
            text("members_max = 50", QUOTA, ""),
            "the part of it that each of 50",
        ),
        (
            text("", QUOTA, "").replace("redis://", "http://"),
            "sharing.redis: is not redis://",
        ),
    ] {
        let mistakes = mistakes(&text);
        assert!(mistakes.contains(wrong), "{mistakes}");
    }
    let fine = text("members_max = 4", QUOTA, "").replace("\"shape\"", "\"observe\"");
    assert_eq!(mistakes(&fine), "");
}

#[test]
fn what_is_observed_is_counted_whole_and_asks_nobody() {
    let observed = text("members_max = 4", QUOTA, "").replace("\"shape\"", "\"observe\"");
    let mut group = Group::new(1, &observed);
    group.offer(0, 17, 0..45);
    group.ask();
    assert_eq!((group.went(0), group.under_way.len()), (45, 0));
    assert_eq!(
        group.worlds[0].summary("seventeen").rules["quota"].over,
        [0, 5]
    );
}
