//! Tests of the clock of a restored engine.

use limiter::serve::engine::Feedback;

use super::{Disk, HOUR, OPTIONS, SECOND, SEVERAL, START, fresh, of, slot};

#[test]
fn clock_is_restored_without_usage() {
    let engine = fresh(SEVERAL);
    engine.tidy(START + SECOND);
    let (_, now) = Disk::of(&engine).start(OPTIONS, SEVERAL, START);
    assert_eq!(now, START + SECOND);
}

/// Makes 4 calls of 10 per day `ahead` of a restart. Returns the time after the restart, the calls possible then, and the
/// time of the next one.
fn restart_after(ahead: u64) -> (u64, usize, u64) {
    let text = "[limits.day]\nrules = [{ id = 'r', rate = '10/day', algorithm = 'fixed_window', aligned = 'clock' }]";
    let then = START + ahead;
    let before = fresh(text);
    for _ in 0..4 {
        assert_eq!(slot(&before, &[of("day", "k")], then).at, then);
    }
    let refused = Feedback {
        status: 429,
        windows: vec![(0, HOUR / 2)],
    };
    let applied = before.apply_feedback(&of("day", "restricted"), &refused, then);
    assert_eq!(applied, Ok(true));
    let disk = Disk::of(&before);
    let (after, now) = disk.start(OPTIONS, text, START);
    let restricted = after
        .delay(&[of("day", "restricted")], 1, true, now)
        .expect("a slot");
    assert_eq!(restricted.at, now + 1_800 * SECOND);
    let mut calls = 0;
    loop {
        let at = after
            .delay(&[of("day", "k")], 1, true, now)
            .expect("a slot")
            .at;
        if at > now {
            return (now, calls, at);
        }
        slot(&after, &[of("day", "k")], now);
        calls += 1;
    }
}

#[test]
fn clock_far_ahead_is_not_restored_but_the_usage_is() {
    const DAY: u64 = 86_400 * SECOND;
    let midnight = START.next_multiple_of(DAY);
    for ahead in [61 * SECOND, 3_600 * SECOND, DAY, 400 * DAY] {
        assert_eq!(restart_after(ahead), (START, 6, midnight), "{ahead}");
    }
    for ahead in [0, 59 * SECOND] {
        let expected = (START + ahead, 6, midnight);
        assert_eq!(restart_after(ahead), expected, "{ahead}");
    }
}
