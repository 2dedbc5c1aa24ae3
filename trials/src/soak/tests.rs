//! Test data for unit tests: log messages of a consumer, and observations of a producer.

use std::time::Duration;

use serde_json::json;
use testkit::{
    memory::Memory,
    observe::{Observation, ProcessCounts, ProcessSample, Role},
    scrape::names,
};
use tokio::time::Instant;

/// The log message of a gap of producer `p`.
pub(super) fn gap(epoch: u64, first: u64, last: u64) -> String {
    let gap = json!({
        "message": "gap: cookies lost", "producer": "p", "epoch": epoch,
        "first": first, "last": last, "lost": last + 1 - first, "reason": "LagLimit",
    });
    gap.to_string()
}

/// The log message of an epoch end after `sequence`, at the start of epoch `next`.
pub(super) fn end(epoch: u64, sequence: u64, cookies: Option<u64>, next: u64) -> String {
    let end = json!({
        "message": "producer restarted after an unclean shutdown", "producer": "p", "epoch": epoch,
        "sequence": sequence, "new_epoch": next, "cookies_max": cookies,
    });
    end.to_string()
}

/// An observation of producer `p`, which started at `started` and has accepted `appended` cookies.
pub(super) fn observation(at: Instant, started: u64, appended: u64) -> Observation {
    let mut run = ProcessCounts::default();
    run.set(names::STARTED.name, started);
    run.set(names::APPENDED.name, appended);
    let observed = ProcessSample {
        role: Role::Producer,
        name: "p".to_owned(),
        at,
        cpu: Duration::ZERO,
        memory: Memory::default(),
        counts: run.clone(),
        run,
    };
    Observation {
        at,
        processes: vec![observed],
    }
}
