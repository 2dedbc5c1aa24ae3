//! Hand-written plans: one per guarantee, with faults at critical moments.
//!
//! A bug found by a seed also gets a scenario, because every change to the code that draws plans changes the plans
//! of all seeds.

use std::time::Duration;

use crate::{
    plan::{Fault, FaultClass, FaultKind, Host, Limits, Load, Plan, millis},
    report, run_in_child,
    store::StoreBehavior,
};

const PRODUCER: Host = Host::Producer(0);
const CONSUMER: Host = Host::Consumer(0);

/// The plan of a scenario.
pub(crate) fn plan(name: &str) -> Option<Plan> {
    let (fault_class, faults) = match name {
        "half open" => (
            FaultClass::Network,
            vec![
                fault(
                    3_000,
                    40_000,
                    FaultKind::PartitionOneWay(PRODUCER, CONSUMER),
                ),
                fault(
                    5_000,
                    60_000,
                    FaultKind::PartitionOneWay(Host::Consumer(1), PRODUCER),
                ),
            ],
        ),
        "power loss" => (
            FaultClass::Consumers,
            vec![
                fault(4_000, 1_000, FaultKind::PowerLoss(CONSUMER)),
                fault(7_510, 100, FaultKind::StoreCrash(CONSUMER_AT)),
                fault(
                    9_000,
                    6_000,
                    FaultKind::Store(CONSUMER_AT, StoreBehavior::Slow),
                ),
                fault(11_230, 200, FaultKind::PowerLoss(CONSUMER)),
            ],
        ),
        "nothing durable" => (
            FaultClass::Consumers,
            vec![
                fault(
                    500,
                    9_000,
                    FaultKind::Store(CONSUMER_AT, StoreBehavior::Hanging),
                ),
                fault(8_000, 500, FaultKind::Crash(CONSUMER)),
            ],
        ),
        "delayed messages" => (
            FaultClass::Network,
            vec![
                fault(3_000, 9_000, FaultKind::Delay(PRODUCER, CONSUMER)),
                fault(6_000, 20_000, FaultKind::Delay(PRODUCER, Host::Browsers)),
            ],
        ),
        "killed producer" => (
            FaultClass::All,
            vec![
                fault(6_000, 2_000, FaultKind::PowerLoss(PRODUCER)),
                fault(11_000, 2_000, FaultKind::Crash(PRODUCER)),
            ],
        ),
        "clean restarts" => (
            FaultClass::CleanRestarts,
            vec![
                fault(5_000, 1_000, FaultKind::Restart(PRODUCER)),
                fault(9_000, 1_000, FaultKind::Restart(CONSUMER)),
            ],
        ),
        "queued cookies" => (
            FaultClass::All,
            vec![
                fault(3_000, 0, FaultKind::Limits(PRODUCER_AT, limits(3))),
                fault(5_000, 1_000, FaultKind::Restart(PRODUCER)),
                fault(9_000, 500, FaultKind::Crash(PRODUCER)),
                fault(12_000, 0, FaultKind::Limits(1, limits(20))),
                fault(14_000, 2_000, FaultKind::Restart(Host::Producer(1))),
                fault(17_000, 0, FaultKind::Limits(PRODUCER_AT, limits(60))),
            ],
        ),
        _ => return None,
    };
    Some(Plan {
        limits: (name == "queued cookies").then(|| limits(5)),
        seed: 1,
        fault_class,
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
        has_archive: false,
        follower: None,
        chunk_age: millis(10),
        retention: Duration::from_secs(5),
        flush: millis(200),
        batch_cookies: 100_000,
        buffer_bytes: 16 << 20,
        api_pause_millis: 500,
        floods: false,
        clocks_ahead: vec![Duration::ZERO; 4],
        faults,
    })
}

const CONSUMER_AT: usize = 0;
const PRODUCER_AT: usize = 0;

fn limits(rate: u64) -> Limits {
    Limits {
        rate,
        second_mode: "shape",
        is_spooled: true,
    }
}

fn fault(at_millis: u64, duration_millis: u64, kind: FaultKind) -> Fault {
    Fault {
        at: millis(at_millis),
        duration: millis(duration_millis),
        kind,
    }
}

#[track_caller]
fn check(name: &str) {
    if std::env::var_os("SIM_SEED").is_some() {
        return;
    }
    let output = run_in_child(1, Some(name));
    if !output.status.success() {
        report(&format!("SIM_SEED=1 SIM_SCENARIO='{name}'"), &output);
        panic!("scenario {name} failed");
    }
}

#[test]
fn half_open_connections_of_a_minute_lose_nothing() {
    check("half open");
}

#[test]
fn written_but_uncommitted_cookies_are_redelivered() {
    check("power loss");
}

#[test]
fn consumer_without_durable_cookies_receives_everything_again() {
    check("nothing durable");
}

#[test]
fn delayed_messages_lose_nothing() {
    check("delayed messages");
}

#[test]
fn killed_producer_loses_only_its_tail_and_consumers_report_it() {
    check("killed producer");
}

#[test]
fn clean_restarts_lose_nothing() {
    check("clean restarts");
}

#[test]
fn queued_cookies_survive_a_restart_and_are_lost_only_in_a_crash() {
    check("queued cookies");
}
