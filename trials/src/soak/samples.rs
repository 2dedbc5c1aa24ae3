//! What the checks are tested with: records of a consumer, and looks at a producer.

use std::time::Duration;

use bench::{
    memory::Memory,
    observe::{Counts, Observation, Role, Seen},
};
use consumer::losses::{Cause, Loss, Numbered, Page};
use tokio::time::Instant;

/// A gap of the producer `p`.
pub(super) fn gap(epoch: u64, first: u64, last: u64) -> Loss {
    Loss {
        producer: "p".to_owned(),
        epoch,
        first,
        last: Some(last),
        cookies: Some(last + 1 - first),
        exact: true,
        cause: Cause::QueueBound,
        noted_unix_micros: 0,
    }
}

/// The end of an epoch after this sequence, told by the epoch `next`.
pub(super) fn end(epoch: u64, sequence: u64, cookies: Option<u64>, next: u64) -> Loss {
    Loss {
        first: sequence + 1,
        last: None,
        cookies,
        exact: false,
        cause: Cause::Ended {
            told_by: Some(next),
            whole: true,
            watched_from: 1,
            lost_in_gaps: 0,
        },
        ..gap(epoch, 0, 0)
    }
}

/// What a consumer shows that has these on record.
pub(super) fn page(losses: &[Loss]) -> Page {
    let losses = (1..).zip(losses).map(|(number, loss)| Numbered {
        number,
        loss: loss.clone(),
    });
    Page {
        forgotten: 0,
        losses: losses.collect(),
    }
}

/// A look at the producer `p`, whose run began at this second and has accepted so many.
pub(super) fn look(at: Instant, started: u64, appended: u64) -> Observation {
    let mut run = Counts::default();
    (run.started, run.appended) = (started, appended);
    let seen = Seen {
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
        processes: vec![seen],
    }
}
