//! Limits in a file: what is read, what is told of it, and every error.

use std::time::Duration;

use super::*;
use crate::Algorithm;

const GOOD: &str = r#"
    unknown = "default"
    [limits.default]
    rules = [ { id = "slow", rate = "10/s", burst = 20 } ]
    [limits.dsp-17]
    keys = [17, "117"]
    rules = [
        { id = "peak", rate = "300/s", burst = 300 },
        { id = "hour", rate = "900 000/h", algorithm = "sliding_counter", count_refused = true },
        { id = "min", rate = "1000/60s", algorithm = "step_window" },
    ]
    [limits.whole]
    global = true
    rules = [ { id = "queue", rate = "2000/s", algorithm = "leaky_bucket", capacity = 500 } ]
"#;

#[test]
fn plan_is_told_in_words() {
    let rules = Rules::parse(GOOD).unwrap();
    assert_eq!(
        rules.to_string(),
        "default: keys that no limit names, each by itself\n\
         \u{20} slow (token_bucket): 10/s, and bursts of up to 20 after a pause: at most 30 in any second\n\
         dsp-17: keys 17, 117, each by itself\n\
         \u{20} peak (token_bucket): 300/s, and bursts of up to 300 after a pause: at most 600 in any second\n\
         \u{20} hour (sliding_counter): about 900000 in any 1h: counted as if the calls of the window before were spread evenly; refused calls count too\n\
         \u{20} min (step_window): at most 1000 in any 1min, which moves in steps of 100ms\n\
         whole: every call\n\
         \u{20} queue (leaky_bucket): 2000/s, evenly spaced; up to 500 wait, and what comes beyond is refused\n\
         other keys: as default\n"
    );
    assert_eq!(rules.for_key("17"), Some(vec![1, 2]));
    assert_eq!(rules.for_key("anyone"), Some(vec![0, 2]));
    let mut limits = Limits::<u32>::new(1);
    assert_eq!(rules.add_to(&mut limits).len(), 3);
}

/// Each error begins with one of these, each of which is there once.
#[track_caller]
fn check_all(text: &str, expected: &[&str]) {
    let ConfigErrors(errors) = Rules::parse(text).unwrap_err();
    for expected in expected {
        let found = errors.iter().filter(|it| it.starts_with(expected));
        assert_eq!(found.count(), 1, "{expected}: {errors:#?}");
    }
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
}

#[test]
fn errors_of_all_tables_are_reported_together() {
    check_all(
        r#"
        unknown = "nobody"
        [limits.a]
        global = true
        keys = ["x"]
        rules = [ { id = "one", rate = "10/x" } ]
        [limits.b]
        rules = []
        [limits.c]
        keys = ["x"]
        rules = [
            { id = "one", rate = "1/s", algorithm = "leaky_bucket", capacity = 1, when_full = "explode" },
            { id = "one", rate = "2000000/s", algorithm = "sliding_log" },
            { id = "two", rate = "1/s", algorithm = "guess" },
            { id = "three", rate = "1/s", algorithm = "warm_up" },
            { id = "four", rate = "1/s", count_refused = true },
            { id = "five", rate = "1/s", burst = 0 },
            { id = "", rate = "1/s" },
            { id = "six", rate = "" },
            { rate = "1/s" },
            { id = "seven", rate = "1/s", burst = -1 },
            { id = "eight", rate = "1/s", hurry = true },
            { id = "nine", rate = "1/s", burst = 1, algorithm = "sliding_log" },
            { id = "ten", rate = "1/s", count_refused = 3 },
            { id = "eleven", rate = "1/s", algorithm = "leaky_bucket" },
            7,
        ]
        [limits.d]
        global = true
        rules = [ { id = "log", rate = "1/s", algorithm = "sliding_log" } ]
        [limits.e]
        hurry = true
        rules = [ { id = "log" } ]
    "#,
        &[
            "unknown: `nobody` is neither refuse nor unlimited nor a limit's name",
            "limits.a: global and keys exclude each other",
            "limits.a.rules[0]: `10/x` is not a rate",
            "limits.b: needs rules",
            "limits.c: key x is already in limits.a",
            "limits.c.rules[0]: unknown variant `explode`, expected `queue` or `drop`",
            "limits.c.rules[1]: a limit of a sliding log of 2000000 is not allowed",
            "limits.c.rules[2]: unknown variant `guess`, expected one of `token_bucket`",
            "limits.c.rules[3]: missing field `warm_up`",
            "limits.c.rules[4]: count_refused is for windows and logs only",
            "limits.c.rules[5]: a burst of 0 is not allowed",
            "limits.c.rules[6]: id: a name is needed",
            "limits.c.rules[7]: `` is not a rate",
            "limits.c.rules[8]: missing field `id`",
            "limits.c.rules[9]: `-1` is not a whole number",
            "limits.c.rules[10]: unknown key `hurry`, expected `burst`",
            "limits.c.rules[11]: unknown key `burst`",
            "limits.c.rules[12]: invalid type: integer `3`, expected a boolean in `count_refused`",
            "limits.c.rules[13]: missing field `capacity`",
            "limits.c.rules[14]: a table is needed, not integer",
            "limits.e: unknown key `hurry`",
            "limits.e.rules[0]: missing field `rate`",
        ],
    );
    check_all(
        "extra = 1\n[limits.a]\nrules = 3",
        &["the file: unknown key `extra`", "limits.a: needs rules"],
    );
    let twice = "[limits.a]\nrules = [ { id = \"one\", rate = \"1/s\" }, { id = \"one\", rate = \"2/s\" } ]";
    check_all(
        twice,
        &["limits.a.rules[1]: the id one is another rule's too"],
    );
    assert!(Rules::parse("").is_err());
    let rule = |number| format!("{{ id = \"{number}\", rate = \"1/s\" }}");
    let rules: Vec<String> = (0..17).map(rule).collect();
    let many = format!("[limits.a]\nrules = [{}]", rules.join(","));
    let ConfigErrors(errors) = Rules::parse(&many).unwrap_err();
    assert_eq!(errors, ["limits: 17 rules for one call are more than 16"]);
    assert!(Rules::parse("[limits").is_err());
}

#[test]
fn table_that_cannot_be_read_adds_no_further_errors() {
    let rules = "rules = [ { id = \"one\", rate = \"1/s\" } ]";
    for wrong in [
        "from_call = true\nmode = \"shap\"".to_owned(),
        "mode = \"shap\"\nshape = {}\nglobal = true\nkeys = []".to_owned(),
        format!("keys = [\"c\"]\nhurry = true\n{rules}"),
    ] {
        let text = format!("[limits.a]\n{wrong}\n[limits.b]\nkeys = [\"a\"]\n{rules}");
        check_all(&text, &["limits.a: unknown "]);
    }
    let text = format!("limits.a = 3\n[limits.b]\nkeys = [\"a\"]\n{rules}");
    check_all(&text, &["limits.a: a table is needed, not integer"]);
    let text = format!(
        "unknown = \"a\"\nhurry = true\n[limits.a]\n{rules}\n[limits.b]\nkeys = [\"a\"]\n{rules}"
    );
    check_all(&text, &["the file: unknown key `hurry`"]);
}

#[test]
fn unknown_key_is_told_with_the_one_that_may_be_meant() {
    check_all(
        r#"
        unknwon = "a"
        [limits.a]
        rule = [ { id = "one", rate = "1/s" } ]
        [limits.b]
        mode = "shape"
        shape = { max_agee = "60s" }
        rules = [
            { id = "one", rate = "1/s", algoritm = "spacing" },
            { id = "two", rate = "1/s", brust = 3 },
        ]
    "#,
        &[
            "the file: unknown key `unknwon`: did you mean `unknown`?",
            "limits.a: unknown key `rule`: did you mean `rules`?",
            "limits.b: unknown key `max_agee`: did you mean `max_age`? in `shape`",
            "limits.b.rules[0]: unknown key `algoritm`: did you mean `algorithm`?",
            "limits.b.rules[1]: unknown key `brust`: did you mean `burst`?",
        ],
    );
}

/// A limit named `a` with one rule, and what else it says.
fn with(more: &str) -> String {
    format!("[limits.a]\nrules = [ {{ id = \"one\", rate = \"1/s\" }} ]\n{more}")
}

#[track_caller]
fn check_handling(more: &str, expected: Handling) {
    let rules = Rules::parse(&with(more)).unwrap();
    assert_eq!(rules.limits[0].handling, expected, "{more}");
    assert_eq!(
        rules.limits[0].has_explicit_mode,
        more.contains("mode"),
        "{more}"
    );
}

#[test]
fn what_a_mode_leaves_out_has_a_default() {
    let of = |mode| Handling {
        mode,
        ..Handling::default()
    };
    check_handling("", of(Mode::Observe));
    check_handling("mode = \"observe\"", of(Mode::Observe));
    check_handling("mode = \"police\"", of(Mode::Police));
    let shape = Handling {
        mode: Mode::Shape,
        max_wait: Duration::from_secs(30),
        max_age: Duration::from_secs(60),
        queue_bytes: 64 * 1024 * 1024,
        requeue: RequeuePolicy {
            base: Duration::from_secs(30),
            cap: Duration::from_secs(15 * 60),
            requeues_max: 8,
            share_permille: 100,
        },
    };
    check_handling("mode = \"shape\"", shape);
    check_handling("mode = \"shape\"\nshape = {}\ndead_letter = {}", shape);
    let written = "mode = \"shape\"\n\
        shape = { max_wait = \"30s\", max_age = \"60s\", queue_bytes = \"64MiB\" }\n\
        dead_letter = { base = \"30s\", cap = \"15m\", max_requeues = 8, share = 0.1 }";
    check_handling(written, shape);
    let requeue = RequeuePolicy {
        requeues_max: 0,
        ..shape.requeue
    };
    check_handling(
        "mode = \"shape\"\n[limits.a.dead_letter]\nmax_requeues = 0",
        Handling { requeue, ..shape },
    );
}

#[test]
fn bounds_of_a_handling_are_allowed() {
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let least = Handling {
        mode: Mode::Shape,
        max_wait: Duration::from_nanos(1),
        max_age: Duration::from_nanos(1),
        queue_bytes: 64 << 10,
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
        dead_letter = { base = "1ns", cap = "1ns", max_requeues = 0, share = 0.001 }
        "#,
        least,
    );
    let most = Handling {
        mode: Mode::Shape,
        max_wait: hours(1),
        max_age: hours(24),
        queue_bytes: 16 << 30,
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
        [limits.a.dead_letter]
        base = "1day"
        cap = "1day"
        max_requeues = 64
        share = 0.5
        "#,
        most,
    );
    for permille in 1..=500_u16 {
        let text = format!("mode = \"shape\"\ndead_letter = {{ share = 0.{permille:03} }}");
        let rules = Rules::parse(&with(&text)).unwrap();
        assert_eq!(rules.limits[0].handling.requeue.share_permille, permille);
    }
}

#[test]
fn each_error_of_a_handling_is_told_with_its_path() {
    let check = |more: &str, expected: &[&str]| check_all(&with(more), expected);
    check(
        "mode = \"throttle\"",
        &["limits.a: unknown variant `throttle`, expected one of `observe`, `police`, `shape`"],
    );
    for mode in ["", "mode = \"observe\"", "mode = \"police\""] {
        check(
            &format!("{mode}\nshape = {{}}\ndead_letter = {{}}"),
            &["limits.a: shape and dead_letter are for mode = \"shape\" only"],
        );
    }
    check(
        "global = true\nmode = \"shape\"\nshape = {}\ndead_letter = {}",
        &["limits.a: mode, shape and dead_letter are not for a limit of every call"],
    );
    check(
        "mode = \"shape\"\nshape = 3",
        &["limits.a: invalid type: integer `3`, expected a table in `shape`"],
    );
}

/// Each value, and what is told of it after `limits.a: `.
#[track_caller]
fn check_options(table: &str, options: &[(&str, &str)]) {
    for (option, expected) in options {
        let more = format!("mode = \"shape\"\n{table} = {{ {option} }}");
        check_all(&with(&more), &[&format!("limits.a: {expected}")]);
    }
}

#[test]
fn each_number_of_a_handling_has_bounds() {
    const TIME: &str = "is not a time: write a number and ns, us, ms, s, min, h or day";
    const BYTES: &str =
        "is not a number of bytes: write a whole number, alone or with KiB, MiB or GiB";
    const QUEUE: &str = "shape: queue_bytes is not 64KiB to 16GiB";
    const SHARE: &str = "is not a share: write 0.001 to 0.5, in thousandths";
    check_options(
        "shape",
        &[
            ("max_wait = \"0s\"", "a time in nanoseconds of 0"),
            (
                "max_wait = \"-1s\"",
                &format!("`-1s` {TIME} in `shape.max_wait`"),
            ),
            (
                "max_wait = \"3601s\", max_age = \"2h\"",
                "shape: max_wait is more than 1h",
            ),
            ("max_wait = 30", &format!("`30` {TIME} in `shape.max_wait`")),
            ("max_wait = \"2m\"", "shape: max_age is less than max_wait"),
            ("max_age = \"29s\"", "shape: max_age is less than max_wait"),
            ("max_age = \"0s\"", "a time in nanoseconds of 0"),
            ("max_age = \"25h\"", "shape: max_age is more than 1day"),
            ("max_age = \"11000days\"", "a time in nanoseconds of"),
            ("queue_bytes = 65535", QUEUE),
            ("queue_bytes = \"17GiB\"", QUEUE),
            ("queue_bytes = 0", QUEUE),
            ("queue_bytes = -1", &format!("`-1` {BYTES}")),
            ("queue_bytes = 65536.5", "expected a text or a whole number"),
            ("queue_bytes = \"64MB\"", &format!("`64MB` {BYTES}")),
            ("depth = 3", "unknown key `depth`"),
        ],
    );
    check_options(
        "dead_letter",
        &[
            ("base = \"0s\"", "a time in nanoseconds of 0"),
            (
                "base = \"soon\"",
                &format!("`soon` {TIME} in `dead_letter.base`"),
            ),
            ("base = \"16m\"", "dead_letter: base is more than the cap"),
            ("cap = \"29s\"", "dead_letter: base is more than the cap"),
            ("cap = \"25h\"", "dead_letter: cap is more than 1day"),
            (
                "max_requeues = 65",
                "dead_letter: max_requeues is more than 64",
            ),
            ("max_requeues = -1", "invalid value: integer `-1`"),
            ("max_requeues = 1.5", "invalid type: floating point `1.5`"),
            (
                "share = 0.0",
                &format!("`0` {SHARE} in `dead_letter.share`"),
            ),
            ("share = 0.501", &format!("`0.501` {SHARE}")),
            ("share = 0.0005", &format!("`0.0005` {SHARE}")),
            ("share = -0.1", &format!("`-0.1` {SHARE}")),
            ("share = nan", &format!("`NaN` {SHARE}")),
            ("share = 0", &format!("`0` {SHARE}")),
            ("share = 1", &format!("`1` {SHARE}")),
            ("share = \"10%\"", "invalid type: string \"10%\""),
            ("delay = \"1s\"", "unknown key `delay`"),
        ],
    );
}

#[test]
fn errors_of_a_handling_are_reported_together() {
    check_all(
        &with(
            r#"
            mode = "police"
            shape = { max_wait = "2h" }
            dead_letter = { base = "1h", cap = "1m", max_requeues = 99 }
            "#,
        ),
        &[
            "limits.a: shape and dead_letter are for mode = \"shape\" only",
            "limits.a: shape: max_wait is more than 1h",
            "limits.a: shape: max_age is less than max_wait",
            "limits.a: dead_letter: base is more than the cap",
            "limits.a: dead_letter: max_requeues is more than 64",
        ],
    );
}

#[track_caller]
fn check_words(more: &str, expected: &str) {
    let rules = Rules::parse(&with(more)).unwrap();
    let plan = rules.to_string();
    let handling = plan.lines().nth(2).unwrap();
    assert_eq!(handling, expected, "{more}");
}

#[test]
fn handling_is_told_in_words_where_a_mode_is_given() {
    check_words("", "calls of other keys are refused");
    check_words(
        "mode = \"observe\"",
        "  mode observe: what is over passes and is counted",
    );
    check_words(
        "mode = \"police\"",
        "  mode police: what is over is dropped",
    );
    check_words(
        "mode = \"shape\"",
        "  mode shape: what is over waits, for up to 30s at a time and in at most 64MiB for each key; 1min after it was \
         accepted it is a dead letter, put back up to 8 times, after 30s to 15min and within 10 % of the rate, then parked",
    );
    check_words(
        "mode = \"shape\"\nshape = { queue_bytes = 100_000 }\ndead_letter = { share = 0.125, max_requeues = 1 }",
        "  mode shape: what is over waits, for up to 30s at a time and in at most 100000 bytes for each key; 1min after it was \
         accepted it is a dead letter, put back up to 1 times, after 30s to 15min and within 12.5 % of the rate, then parked",
    );
    check_words(
        "mode = \"shape\"\ndead_letter = { max_requeues = 0 }",
        "  mode shape: what is over waits, for up to 30s at a time and in at most 64MiB for each key; 1min after it was \
         accepted it is a dead letter and parked",
    );
}

#[test]
fn share_divides_rates_and_windows() {
    let text = "share = \"1/3\"\n\
        [limits.a]\n\
        rules = [ { id = \"even\", rate = \"300/s\", burst = 10 }, { id = \"odd\", rate = \"100/s\" }, \
        { id = \"hour\", rate = \"1000/h\", algorithm = \"sliding_counter\" } ]\n";
    let rules = Rules::parse(text).unwrap();
    let algorithms: Vec<_> = rules.limits[0]
        .rules
        .iter()
        .map(|rule| rule.limit.algorithm)
        .collect();
    let expected = [
        Algorithm::token_bucket("100/s", 4).unwrap(),
        Algorithm::token_bucket("100/3s", 1).unwrap(),
        Algorithm::SlidingCounter {
            limit: 333,
            window: Duration::from_secs(3600),
        },
    ];
    assert_eq!(algorithms, expected);
    for bad in ["3", "1/0", "2/3", "1/1001", ""] {
        let text = text.replace("1/3", bad);
        let errors = Rules::parse(&text).unwrap_err();
        assert!(errors.0[0].starts_with("share: "), "{errors}");
    }
    let few = "share = \"1/3\"\n[limits.a]\n\
        rules = [ { id = \"few\", rate = \"2/h\", algorithm = \"sliding_log\" } ]\n";
    assert!(Rules::parse(few).is_err());
}

#[test]
fn sharing_is_read_and_its_password_is_not_shown() {
    let text = |sharing: &str| {
        format!("{sharing}\n[limits.a]\nrules = [ {{ id = \"r\", rate = \"1/s\" }} ]\n")
    };
    let rules = Rules::parse(&text(
        "[sharing]\nmode = \"lease\"\nredis = \"redis://me:secret@10.0.0.5\"\ngroup = \"eu\"\nmembers_max = 4",
    ))
    .unwrap();
    let sharing = rules.sharing.clone().unwrap();
    assert_eq!(sharing.mode, SharingMode::Lease);
    assert_eq!((&*sharing.group, sharing.members_max), ("eu", Some(4)));
    assert_eq!(sharing.ttl, Duration::from_secs(3));
    assert!(!format!("{rules:?} {rules}").contains("secret"));
    assert!(
        rules.to_string().contains("shared by the group eu"),
        "{rules}"
    );
    let unclosed = Rules::parse(&text("[sharing]\nredis = \"redis://me:secret@x")).unwrap_err();
    let unclosed = unclosed.to_string();
    assert!(
        unclosed.contains("line 2") && !unclosed.contains("secret"),
        "{unclosed}"
    );
    for (sharing, wrong) in [
        (
            "[sharing]\nmode = \"lease\"",
            "sharing: missing field `redis`",
        ),
        (
            "[sharing]\nmode = \"lease\"\nredis = \"x\"",
            "sharing: missing field `group`",
        ),
        (
            "[sharing]\nredis = \"x\"\ngroup = \"g\"",
            "sharing: missing field `mode`",
        ),
        (
            "share = \"1/2\"\n[sharing]\nmode = \"lease\"",
            "exclude each other",
        ),
        (
            "[sharing]\nmode = \"lease\"\nredis = \"x\"\ngroup = \"a b\"",
            "sharing: group is",
        ),
        (
            "[sharing]\nmode = \"some\"",
            "sharing: unknown variant `some`",
        ),
        (
            "[sharing]\nmode = \"lease\"\nredis = \"x\"\ngroup = \"g\"\nmembers_max = 0",
            "sharing: members_max",
        ),
        ("[sharing]\nmember = 3", "sharing: unknown key `member`"),
        (
            "sharing = \"redis://me:secret@x\"",
            "sharing: a table is needed, not string",
        ),
    ] {
        let errors = Rules::parse(&text(sharing)).unwrap_err().to_string();
        assert!(errors.contains(wrong), "{sharing}: {errors}");
        assert!(!errors.contains("secret"), "{errors}");
    }
}

#[test]
fn limit_of_calls_has_neither_keys_nor_rules() {
    let other = "[limits.b]\nrules = [{ id = \"r\", rate = \"1/s\" }]\n";
    let rules = Rules::parse(&format!("{other}[limits.a]\nfrom_call = true")).unwrap();
    let limit = &rules.limits[0];
    assert!(limit.from_call && limit.keys.is_empty() && limit.rules.is_empty());
    assert!(rules.to_string().contains("a: each counter by the rule"));
    for (top, more, wrong) in [
        ("", "keys = [1]", "excludes keys and rules"),
        (
            "",
            "rules = [{ id = \"r\", rate = \"1/s\" }]",
            "excludes keys and rules",
        ),
        ("", "global = true", "excludes global"),
        ("unknown = \"a\"\n", "", "being `unknown`"),
    ] {
        let text = format!("{top}{other}[limits.a]\nfrom_call = true\n{more}");
        let errors = Rules::parse(&text).unwrap_err().to_string();
        assert!(errors.contains(wrong), "{more}: {errors}");
    }
}
