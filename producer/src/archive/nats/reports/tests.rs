use std::{io::Write as _, sync::Arc};

use proto::{
    archive::node_subject,
    units::{DspId, Epoch},
    v1::{Cursor, NodePositions},
    wire::CookieRef,
};
use runtime::{
    reload::{NamedFile, Reloader},
    token,
};

use super::*;
use crate::{
    log::{self, AppendBatch, Log, tests::seal},
    streams::subscribers::{Call, Confirmed, HERE, StreamStart, Subscribers},
};

const TOKEN: &str = "the-token-of-all-nodes";
const RETENTION: Duration = Duration::from_secs(60);

/// The end of the log.
const LAST: u64 = 100;

/// A producer with these tokens, whose log has records up to [`LAST`].
fn intake(tokens: &[&str]) -> ReportIntake {
    let log = Log::new(log::Config {
        epoch: Epoch(7),
        bytes_max: 1 << 20,
        chunk_bytes: 64 << 10,
        chunk_age: Duration::from_secs(3600),
        idle_after: Duration::from_secs(3600),
    });
    let mut batch = AppendBatch::default();
    for _ in 0..LAST {
        batch.push(&CookieRef {
            user_id: "user",
            dsp_id: DspId(7),
            buyer_uid: "b",
            age_micros: 0,
        });
    }
    log.append(&mut batch).unwrap();
    seal(&log);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(tokens.join("\n").as_bytes()).unwrap();
    let path = file.path().display().to_string();
    let file = NamedFile::from_flag("--token-file", &path).unwrap();
    let load = || Arc::new(Reloader::load(token::File::new(file)).unwrap());
    ReportIntake {
        producer_id: "p".to_owned(),
        log,
        subscribers: Subscribers::new(RETENTION, 100),
        tokens: (!tokens.is_empty()).then(load),
    }
}

/// A durable and applied position.
fn position(durable: u64, applied: u64) -> NodePosition {
    NodePosition {
        durable: Some(Cursor {
            producer_id: "p".to_owned(),
            epoch: 7,
            sequence: durable,
        }),
        applied_sequence: applied,
        first_sequence: 1,
        lost_until: 0,
    }
}

/// A report of the node `n`, sent this number of seconds from now.
fn positions(intake: &ReportIntake, seconds: i64, positions: Vec<NodePosition>) -> NodePositions {
    NodePositions {
        name: "n".to_owned(),
        unix_micros: intake.log.now().offset_by(seconds * 1_000_000).0,
        positions,
    }
}

fn apply_with(
    intake: &ReportIntake,
    report: &NodePositions,
    token: Option<&str>,
) -> Option<Outcome> {
    intake.apply(&node_subject("n"), report::seal(report, token).into())
}

/// Applies a report of the node `n` with the right token.
fn apply(intake: &ReportIntake, seconds: i64, position: NodePosition) -> Option<Outcome> {
    let report = positions(intake, seconds, vec![position]);
    apply_with(intake, &report, Some(TOKEN))
}

/// The state of a deletion on the node `n`.
fn state(intake: &ReportIntake, sequence: u64) -> Option<Confirmed> {
    let sequence = Sequence(sequence);
    let (states, _) = intake.subscribers.confirmed(sequence, sequence);
    states.get("n").copied()
}

#[test]
fn report_confirms_what_its_node_has_applied() {
    let intake = intake(&["another-token-of-nodes", TOKEN]);
    let alive = positions(&intake, 0, Vec::new());
    assert_eq!(state(&intake, 50), None);
    let counted = Some(Outcome::Counted);
    assert_eq!(apply_with(&intake, &alive, Some(TOKEN)), counted);
    assert_eq!(state(&intake, 50), Some(Confirmed::NotYet));
    assert_eq!(apply(&intake, 1, position(60, 50)), counted);
    assert_eq!(state(&intake, 50), Some(Confirmed::Yes));
    assert_eq!(state(&intake, 51), Some(Confirmed::NotYet));
    // It is not a confirmation of a stream: a deletion does not wait for it.
    let durable = intake.subscribers.wait_durable(Sequence(1), Sequence(1), 1);
    assert_eq!(log::tests::now(durable), None);
    assert_eq!(intake.subscribers.reporting().verified, 1);
}

#[test]
fn report_without_a_valid_code_is_shown_and_not_counted() {
    let with_token = intake(&[TOKEN]);
    let without = intake(&[]);
    for (intake, token) in [
        (&with_token, None),
        (&with_token, Some("another-token-of-nodes")),
        (&without, None),
        (&without, Some(TOKEN)),
    ] {
        let report = positions(intake, 0, vec![position(60, 60)]);
        let outcome = apply_with(intake, &report, token);
        assert_eq!(outcome, Some(Outcome::Unverified), "{token:?}");
        assert_eq!(state(intake, 50), None);
        let reporting = intake.subscribers.reporting();
        assert_eq!(
            (reporting.verified, reporting.unverified),
            (0, vec!["n".to_owned()])
        );
    }
    // The code is of all positions.
    let report = positions(&with_token, 0, vec![position(60, 60)]);
    let report = report::seal(&report, Some(TOKEN));
    for at in 0..report.len() {
        let mut forged = report.clone();
        forged[at] ^= 1;
        let outcome = with_token.apply(&node_subject("n"), forged.into());
        assert_ne!(outcome, Some(Outcome::Counted), "byte {at}");
    }
    assert_eq!(state(&with_token, 50), None);
}

#[test]
fn earlier_reports_and_those_of_other_nodes_and_from_the_future_are_rejected() {
    let intake = intake(&[TOKEN]);
    let first = positions(&intake, 0, vec![position(60, 60)]);
    assert!(apply_with(&intake, &first, Some(TOKEN)).is_some());
    assert!(apply(&intake, 1, position(40, 40)).is_some());
    assert_eq!(apply_with(&intake, &first, Some(TOKEN)), None, "a replay");
    assert_eq!(state(&intake, 50), Some(Confirmed::NotYet));
    let other = report::seal(&positions(&intake, 2, vec![position(60, 60)]), Some(TOKEN));
    assert_eq!(intake.apply(&node_subject("m"), other.into()), None);
    assert_eq!(apply(&intake, 360, position(60, 60)), None);
    assert!(apply(&intake, 240, position(60, 60)).is_some());
    assert_eq!(state(&intake, 50), Some(Confirmed::Yes));
}

#[test]
fn invalid_messages_are_rejected() {
    let intake = intake(&[TOKEN]);
    let report = report::seal(&positions(&intake, 0, vec![position(60, 60)]), Some(TOKEN));
    for length in 0..report.len() {
        let truncated = Bytes::copy_from_slice(&report[..length]);
        let outcome = intake.apply(&node_subject("n"), truncated);
        assert_ne!(outcome, Some(Outcome::Counted), "{length} bytes");
    }
    for bytes in [1 << 20, 1 << 10] {
        let zeros = Bytes::from(vec![0; bytes]);
        assert_eq!(intake.apply(&node_subject("n"), zeros), None);
    }
    for subject in ["cookies-nodes", "cookies-nodes.a.b", "cookies.n.1"] {
        assert_eq!(intake.apply(subject, report.clone().into()), None);
    }
    let too_many = vec![position(60, 60); CURSORS_MAX + 1];
    let too_many = positions(&intake, 0, too_many);
    assert_eq!(apply_with(&intake, &too_many, Some(TOKEN)), None);
    let beyond = position(LAST + 1, 1);
    let applied_beyond = position(60, 61);
    let without_first = NodePosition {
        first_sequence: 0,
        ..position(60, 60)
    };
    for invalid in [beyond, applied_beyond, without_first] {
        assert_eq!(apply(&intake, 0, invalid), None);
    }
    assert_eq!(state(&intake, 50), None);
    // Nothing has counted, not even the time.
    assert!(apply(&intake, -10, position(60, 60)).is_some());
}

#[test]
fn names_without_a_code_are_bounded() {
    let intake = intake(&[]);
    let report = |name: &str| {
        let report = NodePositions {
            name: name.to_owned(),
            ..positions(&intake, 0, Vec::new())
        };
        intake.apply(&node_subject(name), report::seal(&report, None).into())
    };
    let shown = (0..1_000).filter(|it| report(&format!("node-{it}")).is_some());
    assert_eq!(shown.count(), 100);
    assert!(report("node-1").is_some(), "a known name");
    assert_eq!(intake.subscribers.reporting().unverified.len(), 100);
}

#[test]
fn positions_in_other_logs_and_lost_records_confirm_nothing() {
    let intake = intake(&[TOKEN]);
    let mut others = [position(60, 60), position(60, 60)];
    others[0].durable.as_mut().unwrap().producer_id = "q".to_owned();
    others[1].durable.as_mut().unwrap().epoch = 6;
    let others = positions(&intake, 0, others.to_vec());
    assert!(apply_with(&intake, &others, Some(TOKEN)).is_some());
    assert_eq!(state(&intake, 50), Some(Confirmed::NotYet));

    let lost = |durable, first_sequence, lost_until| NodePosition {
        first_sequence,
        lost_until,
        ..position(durable, durable)
    };
    let check = |seconds, report, unknown: &[u64], confirmed: &[u64]| {
        assert!(apply(&intake, seconds, report).is_some());
        for (numbers, expected) in [(unknown, Confirmed::Unknown), (confirmed, Confirmed::Yes)] {
            for number in numbers {
                assert_eq!(state(&intake, *number), Some(expected), "{number}");
            }
        }
    };
    // It began inside the epoch.
    check(1, lost(20, 11, 0), &[1, 10], &[11, 20]);
    // A restarted node continues at its position, another one behind it.
    check(2, lost(40, 21, 0), &[1, 10], &[11, 20, 21, 40]);
    check(3, lost(60, 51, 0), &[10, 41, 50], &[11, 40, 51, 60]);
    check(4, lost(80, 51, 70), &[10, 50, 60, 70], &[71, 80]);
    // It has lost a part of its store, and the records were evicted meanwhile.
    check(5, lost(90, 75, 85), &[74, 80, 85], &[86, 90]);
}

#[test]
fn old_report_shows_that_its_node_may_have_missed_a_deletion() {
    let intake = intake(&[TOKEN]);
    assert!(apply(&intake, -70, position(60, 60)).is_some());
    assert_eq!(state(&intake, 50), Some(Confirmed::Yes));
    assert_eq!(state(&intake, 61), Some(Confirmed::Unknown));
    assert_eq!(intake.subscribers.reporting().verified, 0);
    assert!(apply(&intake, -50, position(60, 60)).is_some());
    assert_eq!(state(&intake, 61), Some(Confirmed::NotYet));
}

#[test]
fn node_with_a_stream_is_not_overridden() {
    let intake = intake(&[TOKEN]);
    let subscribers = &intake.subscribers;
    let start = |_| StreamStart::fresh(Sequence(1));
    let lease = subscribers.join(Call::Subscribe, "n", HERE, start).unwrap();
    assert!(apply(&intake, 0, position(60, 60)).is_some());
    assert_eq!(state(&intake, 50), Some(Confirmed::NotYet));
    drop(lease);
    assert!(apply(&intake, 1, position(60, 60)).is_some());
    assert_eq!(state(&intake, 50), Some(Confirmed::Yes));
}
