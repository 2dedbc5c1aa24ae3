//! Tests of the table of deletions.

use super::*;
use crate::clock_offset::ClockOffset;

#[test]
fn deletion_must_cover_cookies_that_were_stored_with_an_increased_time() {
    let table = table(&[]);
    table.load([stored(deletion("u", 1, CLOCK_AHEAD_MICROS_MAX + 10), false)]);
    let after_load = CLOCK_AHEAD_MICROS_MAX + 10 + AFTER_DELETION_MICROS;
    let check = |times: &[(u64, u64)]| {
        for (here, until) in times {
            assert_eq!(table.increased_until(UnixMicros(*here)).0, *until, "{here}");
        }
    };
    check(&[(9, 0), (10, after_load)]);
    let later = after_load + 5;
    for (here, to) in [
        (20, later),
        (30, later + 9),
        (25, later + 3),
        (28, later + 9),
        (40, 7),
    ] {
        table
            .shared
            .table
            .lock()
            .add_increased(UnixMicros(here), UnixMicros(to));
    }
    check(&[
        (10, after_load),
        (20, later),
        (25, later + 3),
        (28, later + 9),
        (99, later + 9),
    ]);
    assert_eq!(table.shared.table.lock().increased.len(), 4);
}

fn deletion(user: &str, dsp_id: u32, until: u64) -> Deletion {
    Deletion {
        scope: Scope::from_ids(user.as_bytes().into(), DspId(dsp_id)),
        until: UnixMicros(until),
    }
}

fn job(dsp_id: u32, until: u64) -> DspDeletion {
    DspDeletion {
        dsp_id: DspId(dsp_id),
        until: UnixMicros(until),
    }
}

fn stored(deletion: Deletion, is_finished: bool) -> StoredDeletion {
    StoredDeletion {
        deletion,
        is_finished,
    }
}

fn table(deletions: &[Deletion]) -> Deletions {
    let table = Deletions::new(1 << 20);
    deletions.iter().for_each(|deletion| table.add(deletion));
    table
}

#[track_caller]
fn check(table: &Deletions, user: &str, dsp_id: u32, until: u64) {
    let user = user.as_bytes();
    assert_eq!(table.until(user, DspId(dsp_id)).0, until);
}

#[test]
fn deletion_covers_its_scope_up_to_its_time() {
    let table = table(&[
        deletion("pair", 1, 10),
        deletion("user", 0, 20),
        deletion("user", 2, 30),
        deletion("", 3, 40),
    ]);
    check(&table, "pair", 1, 10);
    check(&table, "pair", 2, 0);
    check(&table, "user", 1, 20);
    check(&table, "user", 2, 30);
    check(&table, "user", 3, 40);
    check(&table, "other", 3, 40);
    check(&table, "other", 1, 0);
}

#[test]
fn later_deletion_of_the_same_scope_wins_in_any_order() {
    let table = table(&[
        deletion("u", 1, 10),
        deletion("u", 1, 5),
        deletion("u", 1, 12),
    ]);
    check(&table, "u", 1, 12);
}

#[test]
fn removed_deletion_raises_the_floor_that_still_covers_its_cookies() {
    let table = table(&[deletion("u", 1, 10), deletion("v", 1, RETENTION_MICROS + 5)]);
    let floor_at = |micros| {
        table.remove_old(UnixMicros(RETENTION_MICROS + micros));
        table.floor().0
    };
    assert_eq!(floor_at(9), 0);
    check(&table, "u", 1, 10);
    assert_eq!(floor_at(10), 10);
    assert_eq!(table.size().0, 1);
    check(&table, "anybody", 7, 10);
    check(&table, "v", 1, RETENTION_MICROS + 5);
    // Only the times of removed deletions raise the floor.
    assert_eq!(floor_at(1_000), 10);
    // A restart keeps the floor. It covers arriving cookies, but not those in the store.
    let restarted = Deletions::new(1 << 20);
    restarted.load([stored(Deletion::floor(UnixMicros(10)), false)]);
    check(&restarted, "anybody", 7, 10);
    assert_eq!(restarted.deleted_until(b"anybody", DspId(7)).0, 0);
    assert!(restarted.unapplied().is_empty());
}

#[test]
fn full_table_removes_the_oldest_deletions_and_raises_the_floor() {
    let table = Deletions::new(100 * ENTRY_BYTES);
    for number in 1..=1_000 {
        table.add(&deletion(&number.to_string(), 1, number));
    }
    let (size, max) = table.size();
    assert!((80..=100).contains(&size) && max == 100, "{size}");
    for number in 1..=1_000 {
        assert!(table.until(number.to_string().as_bytes(), DspId(1)).0 >= number);
    }
    assert!(table.until(b"other", DspId(1)).0 < 1_000);
}

#[test]
fn removed_deletion_hides_stored_cookies_until_it_has_taken_effect() {
    let table = table(&[deletion("u", 1, 10), deletion("", 2, 10)]);
    table.begin_jobs(&[deletion("", 2, 10)]);
    table.set_queued([(DspId(1), Some(1))].into(), 1);
    table.remove_old(UnixMicros(RETENTION_MICROS + 10));
    let hidden = |dsp_id| table.deleted_until(b"u", DspId(dsp_id)).0;
    assert_eq!([hidden(1), hidden(2), hidden(3)], [10, 10, 0]);
    table.set_queued(BTreeMap::new(), 1);
    table.finish_job(&job(2, 10));
    assert_eq!([hidden(1), hidden(2)], [0, 0]);
}

#[test]
fn oldest_deletion_without_effect_is_in_the_retry_queue_or_has_a_job() {
    let table = table(&[]);
    assert_eq!(table.unapplied(), 1..1);
    let queued = [(1, Some(5)), (2, None), (3, Some(7))].map(|(id, at)| (DspId(id), at));
    table.set_queued(queued.into(), 8);
    assert_eq!(table.unapplied(), 5..9);
    table.begin_jobs(&[deletion("", 4, 40)]);
    table.begin_jobs(&[deletion("", 4, 50)]);
    table.set_queued(BTreeMap::new(), 8);
    assert_eq!(table.unapplied(), 9..11, "the job covers both deletions");
    table.finish_job(&job(4, 40));
    assert_eq!(table.unapplied(), 9..11);
    table.finish_job(&job(4, 50));
    assert_eq!(table.unapplied(), 11..11);
}

#[test]
fn job_of_a_dsp_begins_after_the_retries_of_its_cookies() {
    let table = table(&[]);
    let jobs = [2, 3].map(|dsp_id| job(dsp_id, 40));
    table.begin_jobs(&jobs.map(Deletion::from));
    table.set_queued([(DspId(2), None)].into(), 1);
    assert_eq!(table.due_jobs(), jobs[1..]);
    assert_eq!(table.jobs(), jobs);
    table.set_queued(BTreeMap::new(), 1);
    assert_eq!(table.due_jobs(), jobs);
}

#[test]
fn job_of_a_dsp_continues_until_it_is_finished_also_after_a_restart() {
    let table = table(&[deletion("", 3, 40)]);
    assert_eq!(table.jobs(), [], "the deletion is not durable yet");
    table.begin_jobs(&[deletion("u", 1, 40), deletion("", 3, 40)]);
    assert_eq!(table.jobs(), [job(3, 40)]);
    table.begin_jobs(&[deletion("", 3, 50)]);
    table.finish_job(&job(3, 40));
    assert_eq!(table.jobs(), [job(3, 50)]);
    table.finish_job(&job(3, 50));
    assert_eq!(table.jobs(), []);
    table.load([
        stored(deletion("", 2, 60), true),
        stored(job(3, 50).into(), false),
    ]);
    assert_eq!(table.jobs(), [job(3, 50)]);
    check(&table, "u", 2, 60);
}

#[test]
fn floor_of_another_node_covers_only_delayed_cookies_of_streams_until_the_copy_ends() {
    let table = table(&[deletion("u", 1, 10)]);
    let producer: Arc<str> = "p".into();
    let admits = |accepted, is_delayed| {
        let arriving = Arriving {
            producer: &producer,
            offset: None,
            accepted: UnixMicros(accepted),
            is_delayed,
        };
        table.admit(b"v", DspId(1), &arriving).is_some()
    };
    table.begin_copy();
    assert!(table.is_copying() && admits(5, false));
    assert!(!admits(u64::MAX - 1, true), "the floor is unknown");
    table.raise_copied_floor(UnixMicros(50));
    // A second node has a lower floor.
    table.raise_copied_floor(UnixMicros(40));
    assert!(!admits(50, true) && admits(51, true));
    // Copied cookies are compared with the deletions only, which stay in the table.
    check(&table, "v", 1, 0);
    table.remove_old(UnixMicros(RETENTION_MICROS + 10));
    check(&table, "u", 1, 10);
    table.add_copied(&deletion("u", 1, 9));
    check(&table, "u", 1, 10);
    table.add_copied(&deletion("u", 1, 11));
    check(&table, "u", 1, 11);
    table.end_copy();
    assert!(!table.is_copying() && !admits(50, false) && admits(51, false));
    check(&table, "v", 1, 50);
}

#[test]
fn floor_covers_delayed_cookies_of_a_clock_that_is_ahead() {
    let table = table(&[]);
    table.add(&Deletion::floor(UnixMicros(50)));
    let admits = |accepted, is_delayed| {
        let arriving = Arriving {
            producer: &"p".into(),
            offset: Some(ClockOffset { min: -10, max: 0 }),
            accepted: UnixMicros(accepted),
            is_delayed,
        };
        table.admit(b"v", DspId(1), &arriving).is_some()
    };
    assert!(!admits(50, false) && admits(51, false));
    assert!(!admits(60, true) && admits(61, true));
}
