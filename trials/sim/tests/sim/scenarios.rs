//! Plans written by hand: the faults that the promises name, each where it hurts most. What the seeds find and is
//! fixed gets one here as well, because a seed draws another plan as soon as the drawing changes.

use std::time::Duration;

use crate::{
    plan::{Fault, Host, Kind, Limits, Load, Plan, What, millis},
    report, run_apart,
    store::Mood,
};

const PRODUCER: Host = Host::Producer(0);
const CONSUMER: Host = Host::Consumer(0);

/// The plan of a scenario.
pub(crate) fn plan(name: &str) -> Option<Plan> {
    let (kind, faults) = match name {
        "half open" => (
            Kind::Network,
            vec![
                fault(3_000, 40_000, What::CutOneWay(PRODUCER, CONSUMER)),
                fault(5_000, 60_000, What::CutOneWay(Host::Consumer(1), PRODUCER)),
            ],
        ),
        "power" => (
            Kind::Nodes,
            vec![
                fault(4_000, 1_000, What::LosePower(CONSUMER)),
                fault(7_510, 100, What::StoreCrash(CONSUMER_AT)),
                fault(9_000, 6_000, What::Store(CONSUMER_AT, Mood::Slow)),
                fault(11_230, 200, What::LosePower(CONSUMER)),
            ],
        ),
        "nothing stored" => (
            Kind::Nodes,
            vec![
                fault(500, 9_000, What::Store(CONSUMER_AT, Mood::Hanging)),
                fault(8_000, 500, What::Crash(CONSUMER)),
            ],
        ),
        "late" => (
            Kind::Network,
            vec![
                fault(3_000, 9_000, What::Hold(PRODUCER, CONSUMER)),
                fault(6_000, 20_000, What::Hold(PRODUCER, Host::Browsers)),
            ],
        ),
        "killed producer" => (
            Kind::Everything,
            vec![
                fault(6_000, 2_000, What::LosePower(PRODUCER)),
                fault(11_000, 2_000, What::Crash(PRODUCER)),
            ],
        ),
        "restarts" => (
            Kind::Orderly,
            vec![
                fault(5_000, 1_000, What::Restart(PRODUCER)),
                fault(9_000, 1_000, What::Restart(CONSUMER)),
            ],
        ),
        "waiting" => (
            Kind::Everything,
            vec![
                fault(3_000, 0, What::Limits(PRODUCER_AT, limits(3))),
                fault(5_000, 1_000, What::Restart(PRODUCER)),
                fault(9_000, 500, What::Crash(PRODUCER)),
                fault(12_000, 0, What::Limits(1, limits(20))),
                fault(14_000, 2_000, What::Restart(Host::Producer(1))),
                fault(17_000, 0, What::Limits(PRODUCER_AT, limits(60))),
            ],
        ),
        _ => return None,
    };
    Some(Plan {
        limits: (name == "waiting").then(|| limits(5)),
        seed: 1,
        kind,
        producers: 2,
        consumers: 2,
        tick: millis(20),
        latency_max: millis(10),
        load: Load {
            until: Duration::from_secs(16),
            users: 60,
            burst: 8,
            pause_millis: 100,
        },
        queue_cookies: None,
        chunk_age: millis(10),
        retention: Duration::from_secs(5),
        flush: millis(200),
        batch_cookies: 100_000,
        buffer_bytes: 16 << 20,
        faults,
    })
}

const CONSUMER_AT: usize = 0;
const PRODUCER_AT: usize = 0;

fn limits(rate: u64) -> Limits {
    Limits {
        rate,
        second: "shape",
        is_spooled: true,
    }
}

fn fault(at_millis: u64, lasts_millis: u64, what: What) -> Fault {
    Fault {
        at: millis(at_millis),
        lasts: millis(lasts_millis),
        what,
    }
}

#[track_caller]
fn check(name: &str) {
    if std::env::var_os("SIM_SEED").is_some() {
        return;
    }
    let output = run_apart(1, Some(name));
    if !output.status.success() {
        report(&format!("SIM_SEED=1 SIM_SCENARIO='{name}'"), &output);
        panic!("{name} went wrong");
    }
}

#[test]
fn half_open_connections_of_a_minute_lose_nothing() {
    check("half open");
}

#[test]
fn written_but_uncommitted_cookies_are_redelivered() {
    check("power");
}

#[test]
fn consumer_without_durable_cookies_receives_everything_again() {
    check("nothing stored");
}

#[test]
fn delayed_messages_lose_nothing() {
    check("late");
}

#[test]
fn killed_producer_loses_only_its_tail_and_consumers_report_it() {
    check("killed producer");
}

#[test]
fn clean_restarts_lose_nothing() {
    check("restarts");
}

#[test]
fn queued_cookies_survive_a_restart_and_are_lost_only_in_a_crash() {
    check("waiting");
}
