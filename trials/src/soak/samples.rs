//! What the checks are tested with: log lines of a consumer, and looks at a producer.

use std::time::Duration;

use bench::{
    memory::Memory,
    observe::{Observation, ProcessCounts, ProcessSample, Role},
};
use serde_json::json;
use tokio::time::Instant;

/// A gap of the producer `p`, as a consumer logs it.
pub(super) fn gap(epoch: u64, first: u64, last: u64) -> String {
    let gap = json!({
        "message": "gap: cookies lost", "producer": "p", "epoch": epoch,
        "first": first, "last": last, "lost": last + 1 - first, "reason": "LagLimit",
    });
    gap.to_string()
}

/// The end of an epoch after this sequence, known since the epoch `next` began, as a consumer logs it.
pub(super) fn end(epoch: u64, sequence: u64, cookies: Option<u64>, next: u64) -> String {
    let end = json!({
        "message": "producer restarted after an unclean shutdown", "producer": "p", "epoch": epoch,
        "sequence": sequence, "new_epoch": next, "cookies_max": cookies,
    });
    end.to_string()
}

/// A look at the producer `p`, whose run began at this second and has accepted so many.
pub(super) fn look(at: Instant, started: u64, appended: u64) -> Observation {
    let mut run = ProcessCounts::default();
    (run.started, run.appended) = (started, appended);
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
