//! Tests of `mode`, `shape` and `requeue`.

use super::*;

/// A file with the limit `a`, one rule, and more lines.
fn with(more: &str) -> String {
    format!("[limits.a]\nrules = [ {{ id = \"one\", rate = \"1/s\" }} ]\n{more}")
}

#[track_caller]
fn check_handling(more: &str, expected: Handling) {
    let rules = Rules::parse(&with(more)).unwrap();
    assert_eq!(rules.limits[0].handling, expected, "{more}");
}

#[test]
fn omitted_keys_have_defaults() {
    let of = |mode| Handling {
        mode,
        ..Handling::default()
    };
    check_handling("", of(Mode::Observe));
    check_handling("mode = \"observe\"", of(Mode::Observe));
    check_handling("mode = \"police\"", of(Mode::Police));
    let shape = Handling {
        mode: Mode::Shape,
        shape: Shape {
            max_wait: Duration::from_secs(30),
            max_age: Duration::from_secs(60),
            queue_bytes: 64 * 1024 * 1024,
        },
        requeue: RequeuePolicy {
            base: Duration::from_secs(30),
            cap: Duration::from_secs(15 * 60),
            requeues_max: 8,
            share_permille: 100,
        },
    };
    check_handling("mode = \"shape\"", shape);
    check_handling("mode = \"shape\"\nshape = {}\nrequeue = {}", shape);
    let written = "mode = \"shape\"\n\
        shape = { max_wait = \"30s\", max_age = \"60s\", queue_bytes = \"64MiB\" }\n\
        requeue = { base = \"30s\", cap = \"15m\", max = 8, share = 0.1 }";
    check_handling(written, shape);
    let requeue = RequeuePolicy {
        requeues_max: 0,
        ..shape.requeue
    };
    check_handling(
        "mode = \"shape\"\n[limits.a.requeue]\nmax = 0",
        Handling { requeue, ..shape },
    );
}

#[test]
fn bounds_are_inclusive() {
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let minimum = Handling {
        mode: Mode::Shape,
        shape: Shape {
            max_wait: Duration::from_nanos(1),
            max_age: Duration::from_nanos(1),
            queue_bytes: 64 << 10,
        },
        requeue: RequeuePolicy {
            base: Duration::from_nanos(1),
            cap: Duration::from_nanos(1),
            requeues_max: 0,
            share_permille: 1,
        },
    };
    check_handling(
        r#"
        mode = "shape"
        shape = { max_wait = "1ns", max_age = "1ns", queue_bytes = 65536 }
        requeue = { base = "1ns", cap = "1ns", max = 0, share = 0.001 }
        "#,
        minimum,
    );
    let maximum = Handling {
        mode: Mode::Shape,
        shape: Shape {
            max_wait: hours(1),
            max_age: hours(24),
            queue_bytes: 16 << 30,
        },
        requeue: RequeuePolicy {
            base: hours(24),
            cap: hours(24),
            requeues_max: 64,
            share_permille: 500,
        },
    };
    check_handling(
        r#"
        mode = "shape"
        [limits.a.shape]
        max_wait = "1h"
        max_age = "24h"
        queue_bytes = "16 GiB"
        [limits.a.requeue]
        base = "1day"
        cap = "1day"
        max = 64
        share = 0.5
        "#,
        maximum,
    );
    for permille in 1..=500_u16 {
        let text = format!("mode = \"shape\"\nrequeue = {{ share = 0.{permille:03} }}");
        let rules = Rules::parse(&with(&text)).unwrap();
        assert_eq!(rules.limits[0].handling.requeue.share_permille, permille);
    }
}

#[test]
fn errors_have_the_path_of_the_table() {
    let check = |more: &str, expected: &[&str]| check_all(&with(more), expected);
    check(
        "mode = \"throttle\"",
        &["limits.a.mode: unknown value `throttle`, expected one of `observe`, `police`, `shape`"],
    );
    for mode in ["", "mode = \"observe\"", "mode = \"police\""] {
        check(
            &format!("{mode}\nshape = {{}}\nrequeue = {{}}"),
            &["limits.a: shape and requeue require mode = \"shape\""],
        );
    }
    check(
        "global = true\nmode = \"shape\"\nshape = {}\nrequeue = {}",
        &["limits.a: a global limit has no mode, shape or requeue"],
    );
    check(
        "mode = \"shape\"\nshape = 3",
        &["limits.a.shape: invalid type: integer `3`, expected a table"],
    );
}

/// Checks the error of each option, after `limits.a.`.
#[track_caller]
fn check_options(table: &str, options: &[(&str, &str)]) {
    for (option, expected) in options {
        let more = format!("mode = \"shape\"\n{table} = {{ {option} }}");
        check_all(&with(&more), &[&format!("limits.a.{table}{expected}")]);
    }
}

#[test]
fn each_number_has_bounds() {
    const TIME: &str = "write a number and ns, us, ms, s, min, h or day";
    const SIZE: &str = "write a whole number, without a unit or with KiB, MiB or GiB";
    const QUEUE: &str = ".queue_bytes: out of range: use 64KiB to 16GiB";
    const SHARE: &str = "use 0.001 to 0.5 in steps of 0.001";
    let (time, size) = (
        |text: &str, key: &str| format!(".{key}: invalid time `{text}`: {TIME}"),
        |text: &str| format!(".queue_bytes: invalid size `{text}`: {SIZE}"),
    );
    check_options(
        "shape",
        &[
            (
                "max_wait = \"0s\"",
                ".max_wait: invalid time in nanoseconds 0",
            ),
            ("max_wait = \"-1s\"", &time("-1s", "max_wait")),
            (
                "max_wait = \"3601s\", max_age = \"2h\"",
                ".max_wait: out of range: use up to 1h",
            ),
            ("max_wait = 30", &time("30", "max_wait")),
            (
                "max_wait = \"2m\"",
                ".max_age: out of range: use at least max_wait",
            ),
            (
                "max_age = \"29s\"",
                ".max_age: out of range: use at least max_wait",
            ),
            (
                "max_age = \"0s\"",
                ".max_age: invalid time in nanoseconds 0",
            ),
            (
                "max_age = \"25h\"",
                ".max_age: out of range: use up to 1day",
            ),
            (
                "max_age = \"11000days\"",
                ".max_age: invalid time in nanoseconds",
            ),
            ("queue_bytes = 65535", QUEUE),
            ("queue_bytes = \"17GiB\"", QUEUE),
            ("queue_bytes = 0", QUEUE),
            ("queue_bytes = -1", &size("-1")),
            (
                "queue_bytes = 65536.5",
                ".queue_bytes: expected a string or a whole number",
            ),
            ("queue_bytes = \"64MB\"", &size("64MB")),
            ("depth = 3", ": unknown key `depth`"),
        ],
    );
    let share = |text: &str| format!(".share: invalid share `{text}`: {SHARE}");
    check_options(
        "requeue",
        &[
            ("base = \"0s\"", ".base: invalid time in nanoseconds 0"),
            ("base = \"soon\"", &time("soon", "base")),
            ("base = \"16m\"", ".base: out of range: use up to cap"),
            ("cap = \"29s\"", ".base: out of range: use up to cap"),
            ("cap = \"25h\"", ".cap: out of range: use up to 1day"),
            ("max = 65", ".max: out of range: use up to 64"),
            ("max = -1", ".max: invalid value: integer `-1`"),
            ("max = 1.5", ".max: invalid type: floating point `1.5`"),
            ("share = 0.0", &share("0")),
            ("share = 0.501", &share("0.501")),
            ("share = 0.0005", &share("0.0005")),
            ("share = -0.1", &share("-0.1")),
            ("share = nan", &share("NaN")),
            ("share = 0", &share("0")),
            ("share = 1", &share("1")),
            ("share = \"10%\"", ".share: invalid type: string \"10%\""),
            ("delay = \"1s\"", ": unknown key `delay`"),
        ],
    );
}

#[test]
fn errors_are_reported_together() {
    check_all(
        &with(
            r#"
            mode = "police"
            shape = { max_wait = "2h" }
            requeue = { base = "1h", cap = "1m", max = 99 }
            "#,
        ),
        &[
            "limits.a: shape and requeue require mode = \"shape\"",
            "limits.a.shape.max_wait: out of range",
            "limits.a.shape.max_age: out of range",
            "limits.a.requeue.base: out of range",
            "limits.a.requeue.max: out of range",
        ],
    );
}

#[test]
fn plan_for_a_producer_names_the_mode() {
    for (more, mode) in [
        ("", "observe"),
        ("mode = \"police\"", "police"),
        ("mode = \"shape\"", "shape"),
    ] {
        let rules = Rules::parse(&with(more)).unwrap();
        let expected = format!("  mode {mode}");
        assert_eq!(
            format!("{rules:#}").lines().nth(2),
            Some(&*expected),
            "{more}"
        );
        assert_eq!(
            rules.to_string().lines().nth(2),
            Some("unlisted keys: refused")
        );
    }
}
