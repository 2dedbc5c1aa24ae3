//! Tests that compare the scripts with their Rust models over random traces, on a real server. Skipped without a server program.

use std::time::Duration;

use fastrand::Rng;
use limits::{
    Algorithm, Alignment, Decision, Demand, Limit, LimitId, Limits, Rate, RecordError,
    RecordOutcome, Refusal, default_step,
};
use limits_sharing::{
    exact::{self, ExactRule, Outcome},
    lease,
    member::Member,
    messages::{LeaseReply, LeaseRequest},
    terms::{Terms, WHOLE},
};
use redis::{Pipeline, Value, aio::MultiplexedConnection};

use crate::{model::Ledger, server::Server};

const ORDINARY: usize = 20_000;

const MILLION: usize = 1_000_000;

fn values(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) => values,
        other => panic!("{other:?}"),
    }
}

fn whole(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn load(connection: &mut MultiplexedConnection, script: &str) -> String {
    let mut command = redis::cmd("SCRIPT");
    command.arg("LOAD").arg(script);
    command.query_async(connection).await.unwrap()
}

/// Limits for the script, in microseconds, and the same limits for the library, in nanoseconds.
fn limits() -> Vec<(ExactRule, Limit)> {
    let of = |[ours, cores]: [Algorithm; 2]| {
        let ours = Limit::from(ours);
        (ExactRule::new(&ours).unwrap(), Limit::from(cores))
    };
    let units = [Duration::from_micros, Duration::from_nanos];
    let pace = |requests, micros, burst| {
        units.map(|unit| Algorithm::TokenBucket {
            rate: Rate::new(requests, unit(micros)).unwrap(),
            burst,
        })
    };
    let window = |limit, micros| {
        units.map(|unit| Algorithm::FixedWindow {
            limit,
            window: unit(micros),
            aligned: Alignment::Clock,
        })
    };
    vec![
        of(pace(300, 7_000, 30)),
        of(pace(7, 1_000, 1)),
        of(pace(1_000, 333, 1_000)),
        of(pace(50_000, 86_400_000_000, 5)),
        of(pace(31, 2_000, 6)),
        of(window(40, 5_000)),
        of(window(7, 1_333)),
        of(window(50_000, 86_400_000_000)),
    ]
}

/// A call of the trace.
struct Call {
    /// Indexes of limits, and numbers of requests.
    asks: Vec<(usize, u64)>,
    key: u32,
    operation: exact::Operation,
    pause: u64,
}

impl Call {
    fn any(random: &mut Rng, limits: usize, clock: u64) -> Self {
        let mut places: Vec<usize> = (0..limits).collect();
        random.shuffle(&mut places);
        places.truncate(random.usize(1..=3));
        let max_wait = Duration::from_micros([0, 500, 5_000, 200_000][random.usize(0..4)]);
        // In the past, about now, and in the future.
        let about_now = clock + random.u64(0..20_000);
        let made = [
            None,
            Some(clock - random.u64(0..100_000)),
            Some(clock - 100_000_000_000),
            Some(about_now),
            Some(about_now + random.u64(0..20_000_000)),
        ];
        let operation = match random.u32(0..10) {
            0..6 => exact::Operation::Reserve { max_wait },
            6 | 7 => exact::Operation::Peek,
            _ => exact::Operation::Count {
                made: made[random.usize(0..made.len())],
            },
        };
        let asks = places.into_iter();
        Self {
            asks: asks.map(|it| (it, random.u64(1..=4))).collect(),
            key: random.u32(0..20),
            operation,
            pause: [0, 0, 0, 700, 9_000][random.usize(0..5)],
        }
    }

    fn arguments(&self, limits: &[(ExactRule, Limit)]) -> Vec<String> {
        let rules = || self.asks.iter().map(|(place, _)| limits[*place].0);
        let steps =
            rules().map(|it| default_step(Duration::from_nanos(it.lookback_micros())).as_nanos());
        let ahead = steps.max().and_then(|step| u64::try_from(step).ok());
        let pause = Duration::from_micros(self.pause);
        let mut arguments = self.operation.arguments_with(ahead.unwrap(), pause);
        for (rule, (_, requests)) in rules().zip(&self.asks) {
            arguments.extend(rule.arguments(*requests));
        }
        arguments
    }

    fn demands(&self, numbers: &[LimitId], of_one: bool) -> Vec<Demand<u32>> {
        let demand = |(place, requests): &(usize, u64)| Demand {
            limit: numbers[*place],
            key: self.key,
            requests: if of_one { 1 } else { *requests },
        };
        self.asks.iter().map(demand).collect()
    }

    /// Checks the script's decision against that of the library.
    fn check(&self, core: &mut Limits<u32>, numbers: &[LimitId], reply: &exact::ExactDecision) {
        let now = reply.now;
        let from = now + self.pause;
        let demands = self.demands(numbers, false);
        let named = reply.binding.map(|place| demands[place].limit);
        let when = |at| if at == now { Outcome::Now } else { Outcome::At };
        match self.operation {
            exact::Operation::Reserve { max_wait } => {
                // The library's unit is the nanosecond.
                let max_wait = u64::try_from(max_wait.as_micros()).unwrap();
                let max_wait = Duration::from_nanos(max_wait);
                let decision = core.reserve_from(&demands, from, now, max_wait);
                // If only the pause makes it wait, the library names the first limit.
                let named = named.unwrap_or(demands[0].limit);
                match decision {
                    Decision::Now => {
                        assert_eq!((reply.outcome, reply.at), (Outcome::Now, now));
                        assert_eq!(reply.binding, None);
                    }
                    Decision::At { at, limit } => {
                        let expected = (Outcome::At, at, limit);
                        assert_eq!((reply.outcome, reply.at, named), expected);
                    }
                    Decision::Refused { limit, reason } => match reason {
                        Refusal::Wait { retry_after } => {
                            let expected = (Outcome::OverMaxWait, retry_after.as_nanos(), limit);
                            let again = u128::from(reply.retry_after);
                            assert_eq!((reply.outcome, again, named), expected);
                        }
                        reason => {
                            assert!(matches!(reason, Refusal::TooMany { .. }), "{reason:?}");
                            assert_eq!((reply.outcome, named), (Outcome::TooMany, limit));
                        }
                    },
                }
            }
            exact::Operation::Peek => match core.peek(&demands, from, now) {
                Ok((at, rule)) => {
                    assert_eq!((reply.outcome, reply.at, named), (when(at), at, rule));
                }
                Err((rule, _)) => {
                    assert_eq!((reply.outcome, named), (Outcome::TooMany, Some(rule)));
                }
            },
            exact::Operation::Count { made } => {
                let outcome = match core.record(&demands, made.unwrap_or(now), now) {
                    Ok(RecordOutcome::Counted) => Outcome::Counted,
                    Ok(RecordOutcome::TooOld) => Outcome::TooOld,
                    Err(error) => {
                        assert_eq!(error, RecordError::TooEarly);
                        Outcome::TooEarly
                    }
                };
                assert_eq!(reply.outcome, outcome);
                if outcome != Outcome::TooEarly {
                    let next = core.peek(&self.demands(numbers, true), from, now);
                    assert_eq!((reply.at, named), next.unwrap());
                }
            }
        }
        for (demand, remaining) in demands.iter().zip(&reply.remaining) {
            let expected = core.remaining(demand.limit, &demand.key, now);
            let expected = (expected.requests, expected.more_at);
            assert_eq!((remaining.requests, remaining.more_at), expected);
        }
    }
}

async fn exact_script_matches_the_library(operations: usize) {
    let Some(server) = Server::start().await else {
        return;
    };
    let mut connection = server.connect().await;
    let digest = load(&mut connection, exact::SCRIPT).await;
    let limits = limits();
    let mut core = Limits::new(100_000);
    let numbers = limits.iter().map(|(_, it)| core.add(*it).unwrap());
    let numbers: Vec<LimitId> = numbers.collect();
    let mut random = Rng::with_seed(20);
    let mut outcomes = [0_usize; 7];
    let mut clock = 1_000_000_000_000;
    for _ in 0..operations / 500 {
        let mut pipeline = Pipeline::with_capacity(500);
        let mut calls = Vec::new();
        for _ in 0..500 {
            let call = Call::any(&mut random, limits.len(), clock);
            let key = |(place, _): &(usize, u64)| format!("{{g}}:{place}:{}", call.key);
            let keys: Vec<_> = call.asks.iter().map(key).collect();
            let command = pipeline.cmd("EVALSHA");
            command.arg(&digest).arg(keys.len()).arg(keys);
            command.arg(call.arguments(&limits));
            calls.push(call);
        }
        let replies: Vec<Value> = pipeline.query_async(&mut connection).await.unwrap();
        for (call, reply) in calls.into_iter().zip(&replies) {
            let reply = exact::ExactDecision::read(values(reply)).unwrap();
            call.check(&mut core, &numbers, &reply);
            outcomes[reply.outcome as usize] += 1;
            clock = reply.now;
        }
    }
    eprintln!(
        "{operations} decisions match the library: now, later, refused, too many, counted, too old, too early: {outcomes:?}"
    );
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// The remaining quota of a key whose rule changes.
#[tokio::test]
async fn usage_is_carried_over_to_a_changed_rule() {
    let Some(server) = Server::start().await else {
        return;
    };
    let mut connection = server.connect().await;
    let digest = load(&mut connection, exact::SCRIPT).await;
    let bucket = |rate: &str, burst| Algorithm::token_bucket(rate, burst).unwrap();
    let window = |limit, days: u64| Algorithm::FixedWindow {
        limit,
        window: Duration::from_secs(days * 86_400),
        aligned: Alignment::Clock,
    };
    // The window of seven days may end during the test, which is unlikely.
    let steps = [
        (window(10, 7), 3, 7),
        (window(20, 7), 0, 17),
        (window(20, 14), 0, 17),
        (bucket("1/day", 20), 0, 17),
        (bucket("1/day", 5), 0, 2),
        (bucket("7/3day", 5), 0, 2),
        (bucket("1/day", 5), 1, 1),
        (bucket("2/day", 5), 0, 1),
        (window(9, 7), 0, 5),
    ];
    for (algorithm, taken, left) in steps {
        let rule = ExactRule::new(&algorithm.into()).unwrap();
        let operation = match taken {
            0 => exact::Operation::Peek,
            _ => exact::Operation::Count { made: None },
        };
        let mut arguments = operation.arguments([rule].into_iter(), Duration::ZERO);
        arguments.extend(rule.arguments(taken.max(1)));
        let mut command = redis::cmd("EVALSHA");
        command.arg(&digest).arg(1).arg("{g}:k").arg(arguments);
        let reply: Value = command.query_async(&mut connection).await.unwrap();
        let reply = exact::ExactDecision::read(values(&reply)).unwrap();
        assert_eq!(reply.remaining[0].requests, left, "{algorithm}");
    }
}

/// A wait that would exceed the number range of a reply.
#[tokio::test]
async fn script_handles_waits_of_centuries() {
    let Some(server) = Server::start().await else {
        return;
    };
    let mut connection = server.connect().await;
    let digest = load(&mut connection, exact::SCRIPT).await;
    let count = exact::Operation::Count { made: None };
    let max_wait = Duration::ZERO;
    let reserve = exact::Operation::Reserve { max_wait };
    let steps = [
        ("1/s", 4_000_000_000, count),
        ("1/30days", 1, exact::Operation::Peek),
        ("1/30days", 1, count),
        ("1/30days", 1, reserve),
        ("1/s", 1, count),
        ("1/s", 1, reserve),
    ];
    for (rate, requests, operation) in steps {
        let bucket = Algorithm::token_bucket(rate, requests).unwrap();
        let rule = ExactRule::new(&bucket.into()).unwrap();
        let mut arguments = operation.arguments([rule].into_iter(), Duration::ZERO);
        arguments.extend(rule.arguments(requests));
        let mut command = redis::cmd("EVALSHA");
        command.arg(&digest).arg(1).arg("{g}:k").arg(arguments);
        let reply: Value = command.query_async(&mut connection).await.unwrap();
        let reply = exact::ExactDecision::read(values(&reply)).unwrap();
        let remaining = reply.remaining[0];
        assert_eq!(remaining.requests, 0, "{rate} {operation:?}");
        assert!(remaining.free_at > reply.now, "{rate} {operation:?}");
    }
}

async fn lease_script_matches_the_model(operations: usize) {
    let Some(server) = Server::start().await else {
        return;
    };
    let mut connection = server.connect().await;
    let digest = load(&mut connection, lease::SCRIPT).await;
    let mut random = Rng::with_seed(4);
    let (mut granted, mut learning, mut others, mut renewed) = (0, 0, 0, 0);
    let mut done = 0;
    while done < operations {
        let terms = Terms {
            refresh: 10_000,
            timeout: 5_000,
            forget_after: 600_000,
            members_max: [0, 6][random.usize(0..2)],
        };
        let mut terms = terms.checked().unwrap();
        let mut is_new = false;
        let mut members: Vec<_> = (0..5)
            .map(|it| Member::new(terms, &format!("m{it}"), 1, 0))
            .collect();
        let mut model: Option<Ledger> = None;
        let mut delayed: Vec<LeaseRequest> = Vec::new();
        let mut clock = 0;
        for _ in 0..2_000.min(operations) {
            done += 1;
            let index = random.usize(0..members.len());
            match random.u32(0..400) {
                0 => tokio::time::sleep(Duration::from_millis(random.u64(1..60))).await,
                // The server loses its data.
                1 if random.u32(0..5) == 0 => {
                    let _: Value = redis::cmd("DEL")
                        .arg("l")
                        .query_async(&mut connection)
                        .await
                        .unwrap();
                    model = None;
                }
                2 => {
                    let name = format!("m{}", random.u32(0..8));
                    members[index] = Member::new(terms, &name, done as u64, 0);
                }
                // All members restart with different settings.
                3 => {
                    terms.members_max = 8 - terms.members_max;
                    is_new = true;
                    let names = (0..8).map(|it| format!("m{it}"));
                    members = names
                        .map(|it| Member::new(terms, &it, done as u64, 0))
                        .collect();
                }
                _ => {}
            }
            let member = &mut members[index];
            let all = ["a", "b", "c", "d"].iter().take(random.usize(2..=4));
            member.set_demands(
                all.map(|limit| ((*limit).to_owned(), random.u64(0..WHOLE)))
                    .collect::<Vec<_>>(),
            );
            let mut request = match random.u32(0..300) {
                0 => member.leave(),
                _ => member.request(clock),
            };
            // Some requests are delayed or duplicated.
            match random.u32(0..40) {
                0 => delayed.push(request.clone()),
                1 if !delayed.is_empty() => {
                    request = delayed.swap_remove(random.usize(0..delayed.len()))
                }
                _ => {}
            }
            let said = match random.u32(0..500) {
                0 => Terms {
                    members_max: 7,
                    ..terms
                },
                _ => terms,
            };
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(&digest)
                .arg(1)
                .arg("l")
                .arg(lease::arguments(&said, &request));
            let reply: Value = command.query_async(&mut connection).await.unwrap();
            let reply = values(&reply);
            let now = whole(&reply[1]);
            clock = now;
            let Value::BulkString(run) = &reply[2] else {
                panic!("{reply:?}")
            };
            let run = std::str::from_utf8(run).unwrap();
            let model = model.get_or_insert_with(|| Ledger::new(said, run, now));
            let expected = model.respond(&said, run, now, &request);
            let found = lease::read(reply).unwrap();
            assert_eq!(found, expected, "{request:?}");
            match &found {
                LeaseReply::Granted(it) if it.is_learning => {
                    learning += 1;
                    renewed += usize::from(is_new);
                    is_new = false;
                }
                LeaseReply::Granted(_) => granted += 1,
                _ => others += 1,
            }
            if random.u32(0..20) > 0 {
                members[index].receive(request.number, found, now);
            }
        }
        let _: Value = redis::cmd("DEL")
            .arg("l")
            .query_async(&mut connection)
            .await
            .unwrap();
    }
    eprintln!(
        "{done} replies match the model: {granted} granted, {learning} while learning, {others} others; {renewed} changes of settings"
    );
    // On a fast machine, the ledger is learning for most of the test.
    assert!(granted > operations / 200 && learning > operations / 20);
    assert!(others > 0 && renewed > 0);
}

#[tokio::test]
async fn exact_script_decides_like_the_library() {
    exact_script_matches_the_library(ORDINARY).await;
}

#[tokio::test]
async fn lease_script_replies_like_the_model() {
    lease_script_matches_the_model(ORDINARY).await;
}

#[tokio::test]
#[ignore = "long: a million operations, about two minutes"]
async fn exact_script_matches_for_a_million_operations() {
    exact_script_matches_the_library(MILLION).await;
}

#[tokio::test]
#[ignore = "long: a million operations, some minutes"]
async fn lease_script_matches_for_a_million_operations() {
    lease_script_matches_the_model(MILLION).await;
}
