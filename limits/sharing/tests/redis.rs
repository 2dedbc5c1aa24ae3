//! The scripts of the server and what they are in Rust: the same answers over one recorded trace, on a real server. Without one, nothing is tested.

#![allow(
    clippy::unwrap_used,
    reason = "a test, in which all that fails is a failure"
)]

mod server;

use std::time::Duration;

use fastrand::Rng;
use limits::{Algorithm, Aligned, Decision, Demand, Limits, Rate, Refusal};
use limits_sharing::{
    exact::{self, Outcome},
    lease,
    ledger::{Answer, Ledger, Question},
    member::Member,
    terms::{Terms, WHOLE},
};
use redis::{Pipeline, Value, aio::MultiplexedConnection};

use self::server::Server;

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

/// A limit whose unit of time is the microsecond: to the core, the nanosecond is only a name.
fn algorithms() -> Vec<(Algorithm, Algorithm)> {
    let pace = |requests, micros, burst| {
        let of = |per| Algorithm::TokenBucket {
            rate: Rate::new(requests, per).unwrap(),
            burst,
        };
        (
            of(Duration::from_micros(micros)),
            of(Duration::from_nanos(micros)),
        )
    };
    let window = |limit, micros| {
        let of = |window| Algorithm::FixedWindow {
            limit,
            window,
            aligned: Aligned::Clock,
        };
        (
            of(Duration::from_micros(micros)),
            of(Duration::from_nanos(micros)),
        )
    };
    vec![
        pace(300, 7_000, 30),
        pace(7, 1_000, 1),
        pace(1_000, 333, 1_000),
        pace(50_000, 86_400_000_000, 5),
        window(40, 5_000),
        window(7, 1_333),
        window(50_000, 86_400_000_000),
    ]
}

async fn exact_is_the_core(operations: usize) {
    let Some(server) = Server::start().await else {
        return;
    };
    let mut connection = server.connect().await;
    let digest = load(&mut connection, exact::SCRIPT).await;
    let algorithms = algorithms();
    let mut core = Limits::new(100_000);
    let numbers: Vec<_> = algorithms
        .iter()
        .map(|(_, it)| core.add(*it).unwrap())
        .collect();
    let mut random = Rng::with_seed(20);
    let mut outcomes = [0_usize; 4];
    for _ in 0..operations / 500 {
        let mut pipeline = Pipeline::with_capacity(500);
        let mut calls = Vec::new();
        for _ in 0..500 {
            let mut places: Vec<usize> = (0..algorithms.len()).collect();
            random.shuffle(&mut places);
            places.truncate(random.usize(1..=3));
            let key = random.u32(0..20);
            let horizon = [0, 500, 5_000, 200_000][random.usize(0..4)];
            let asks: Vec<_> = places
                .into_iter()
                .map(|it| (it, random.u64(1..=4)))
                .collect();
            let keys: Vec<_> = asks
                .iter()
                .map(|(place, _)| format!("{{g}}:{place}:{key}"))
                .collect();
            let command = pipeline
                .cmd("EVALSHA")
                .arg(&digest)
                .arg(keys.len())
                .arg(keys)
                .arg(horizon);
            for (place, requests) in &asks {
                command.arg(&exact::arguments(&algorithms[*place].0, *requests).unwrap());
            }
            calls.push((asks, key, horizon));
        }
        let answers: Vec<Value> = pipeline.query_async(&mut connection).await.unwrap();
        for ((asks, key, horizon), answer) in calls.into_iter().zip(&answers) {
            let answer = exact::Answer::read(values(answer)).unwrap();
            let demand = |(place, requests): &(usize, u64)| Demand {
                limit: numbers[*place],
                key,
                requests: *requests,
            };
            let demands: Vec<_> = asks.iter().map(demand).collect();
            let decision = core.reserve(&demands, answer.now, Duration::from_nanos(horizon));
            let named = answer.binding.map(|place| numbers[asks[place].0]);
            match decision {
                Decision::Now => {
                    assert_eq!((answer.outcome, answer.at), (Outcome::Now, answer.now))
                }
                Decision::At { at, rule } => {
                    assert_eq!(
                        (answer.outcome, answer.at, named),
                        (Outcome::At, at, Some(rule))
                    );
                }
                Decision::Refused {
                    rule,
                    why: Refusal::Wait { retry_after },
                } => {
                    let expected = (Outcome::Wait, retry_after.as_nanos(), Some(rule));
                    assert_eq!(
                        (answer.outcome, u128::from(answer.retry_after), named),
                        expected
                    );
                }
                Decision::Refused { rule, why } => {
                    assert!(matches!(why, Refusal::TooMany { .. }), "{why:?}");
                    assert_eq!((answer.outcome, named), (Outcome::Many, Some(rule)));
                }
            }
            outcomes[answer.outcome as usize] += 1;
        }
    }
    eprintln!(
        "{operations} decisions are the core's: now, later, refused, for too many: {outcomes:?}"
    );
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

async fn script_is_the_ledger(operations: usize) {
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
            ttl: 30_000,
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
        let mut delayed: Vec<Question> = Vec::new();
        let mut clock = 0;
        for _ in 0..2_000.min(operations) {
            done += 1;
            let index = random.usize(0..members.len());
            match random.u32(0..400) {
                0 => tokio::time::sleep(Duration::from_millis(random.u64(1..60))).await,
                // Its data are lost.
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
                // All are restarted, with other settings.
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
            member.want(
                all.map(|limit| ((*limit).to_owned(), random.u64(0..WHOLE)))
                    .collect::<Vec<_>>(),
            );
            let mut question = match random.u32(0..300) {
                0 => member.leave(),
                _ => member.ask(clock),
            };
            // Some come late, or twice.
            match random.u32(0..40) {
                0 => delayed.push(question.clone()),
                1 if !delayed.is_empty() => {
                    question = delayed.swap_remove(random.usize(0..delayed.len()))
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
                .arg(lease::arguments(&said, &question));
            let answer: Value = command.query_async(&mut connection).await.unwrap();
            let answer = values(&answer);
            let now = whole(&answer[1]);
            clock = now;
            let Value::BulkString(run) = &answer[2] else {
                panic!("{answer:?}")
            };
            let run = std::str::from_utf8(run).unwrap();
            let model = model.get_or_insert_with(|| Ledger::new(said, run, now));
            let expected = model.ask(&said, run, now, &question);
            let found = lease::read(answer).unwrap();
            assert_eq!(found, expected, "{question:?}");
            match &found {
                Answer::Granted(it) if it.is_learning => {
                    learning += 1;
                    renewed += usize::from(is_new);
                    is_new = false;
                }
                Answer::Granted(_) => granted += 1,
                _ => others += 1,
            }
            if random.u32(0..20) > 0 {
                members[index].hear(question.number, found, now);
            }
        }
        let _: Value = redis::cmd("DEL")
            .arg("l")
            .query_async(&mut connection)
            .await
            .unwrap();
    }
    eprintln!(
        "{done} answers are the ledger's: {granted} granted, {learning} while learning, {others} others; {renewed} times by other settings"
    );
    assert!(granted > operations / 20 && learning > operations / 20);
    assert!(others > 0 && renewed > 0);
}

#[tokio::test]
async fn exact_script_decides_as_the_core_does() {
    exact_is_the_core(ORDINARY).await;
}

#[tokio::test]
async fn lease_script_answers_as_the_ledger_does() {
    script_is_the_ledger(ORDINARY).await;
}

#[tokio::test]
#[ignore = "long: a million operations, about two minutes"]
async fn exact_script_decides_as_the_core_does_a_million_times() {
    exact_is_the_core(MILLION).await;
}

#[tokio::test]
#[ignore = "long: a million operations, some minutes"]
async fn lease_script_answers_as_the_ledger_does_a_million_times() {
    script_is_the_ledger(MILLION).await;
}
