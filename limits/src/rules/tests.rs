//! Tests of parsing, the displayed plan, and every error of a limits file.

mod handling;

use std::time::Duration;

use super::*;

const VALID: &str = r#"
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
fn plan_lists_limits_with_keys_and_rules() {
    let rules = Rules::parse(VALID).unwrap();
    assert_eq!(
        rules.to_string(),
        "default: each unlisted key\n\
         \u{20} slow (token_bucket): 10/s, up to 20 at once\n\
         dsp-17: each of the keys 17, 117\n\
         \u{20} peak (token_bucket): 300/s, up to 300 at once\n\
         \u{20} hour (sliding_counter): 900000 in 1h; refused calls count\n\
         \u{20} min (step_window): 1000 in 1m\n\
         whole: all calls together\n\
         \u{20} queue (leaky_bucket): 2000/s, up to 1 at once\n\
         unlisted keys: default\n"
    );
    assert_eq!(rules.for_key("17"), Some(vec![1, 2]));
    assert_eq!(rules.for_key("anyone"), Some(vec![0, 2]));
    let mut limits = Limits::<u32>::new(1);
    assert_eq!(rules.add_to(&mut limits).len(), 3);
}

/// The errors of a file, without line numbers.
fn errors_of(text: &str) -> Vec<String> {
    let ConfigErrors(errors) = Rules::parse(text).unwrap_err();
    let without_line = |error: &String| {
        let rest = error
            .strip_prefix("line ")
            .and_then(|it| it.split_once(": "));
        rest.map_or(error.clone(), |(_, rest)| rest.to_owned())
    };
    errors.iter().map(without_line).collect()
}

/// Checks that each error starts with one of these texts, and each text occurs once.
#[track_caller]
fn check_all(text: &str, expected: &[&str]) {
    let errors = errors_of(text);
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
        unknown = "missing"
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
            "unknown: unknown limit `missing`: use \"refuse\"",
            "limits.a: global and keys are mutually exclusive",
            "limits.a.rules[0].rate: invalid rate `10/x`",
            "limits.b: add rules",
            "limits.c: key x is already in limits.a",
            "limits.c.rules[0]: unknown value `explode`, expected one of `queue`, `drop`",
            "limits.c.rules[1]: invalid sliding_log limit 2000000: use 1 to",
            "limits.c.rules[2]: unknown value `guess`, expected one of `token_bucket`",
            "limits.c.rules[3]: missing field `warm_up`",
            "limits.c.rules[4]: count_refused requires an algorithm with a window",
            "limits.c.rules[5]: invalid burst 0: use 1 to",
            "limits.c.rules[6].id: invalid name",
            "limits.c.rules[7].rate: invalid rate ``",
            "limits.c.rules[8]: missing field `id`",
            "limits.c.rules[9]: invalid number `-1`",
            "limits.c.rules[10]: unknown key `hurry`, expected one of `burst`, `id`, `rate`",
            "limits.c.rules[11]: unknown key `burst`",
            "limits.c.rules[12].count_refused: invalid type: integer `3`, expected a boolean",
            "limits.c.rules[13]: missing field `capacity`",
            "limits.c.rules[14]: expected a table, not integer",
            "limits.e: unknown key `hurry`",
            "limits.e.rules[0]: missing field `rate`",
        ],
    );
    check_all(
        "extra = 1\n[limits.a]\nrules = 3",
        &["the file: unknown key `extra`", "limits.a: add rules"],
    );
    let twice = "[limits.a]\nrules = [ { id = \"one\", rate = \"1/s\" }, { id = \"one\", rate = \"2/s\" } ]";
    check_all(twice, &["limits.a.rules[1]: duplicate id one"]);
    assert!(Rules::parse("").is_err());
    let rule = |number| format!("{{ id = \"{number}\", rate = \"1/s\" }}");
    let rules: Vec<String> = (0..17).map(rule).collect();
    let many = format!("[limits.a]\nrules = [{}]", rules.join(","));
    check_all(&many, &["limits: a call can match up to 16 rules, not 17"]);
    assert!(Rules::parse("[limits").is_err());
}

#[test]
fn invalid_table_causes_one_error() {
    let rules = "rules = [ { id = \"one\", rate = \"1/s\" } ]";
    for invalid in [
        "from_call = true\nmode = \"shap\"".to_owned(),
        "mode = \"shap\"\nshape = {}\nglobal = true\nkeys = []".to_owned(),
        format!("keys = [\"c\"]\nhurry = true\n{rules}"),
    ] {
        let text = format!("[limits.a]\n{invalid}\n[limits.b]\nkeys = [\"a\"]\n{rules}");
        check_all(&text, &["limits.a"]);
    }
    let text = format!("limits.a = 3\n[limits.b]\nkeys = [\"a\"]\n{rules}");
    check_all(&text, &["limits.a: expected a table, not integer"]);
    let text = format!(
        "unknown = \"a\"\nhurry = true\n[limits.a]\n{rules}\n[limits.b]\nkeys = [\"a\"]\n{rules}"
    );
    check_all(&text, &["the file: unknown key `hurry`"]);
}

#[test]
fn unknown_names_are_reported_with_the_known_ones() {
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
            { id = "three", rate = "1/s", algo = "spacing" },
            { id = "four", rate = "1/s", algorithm = "token_buket" },
        ]
        [limits.c]
        mode = "shap"
        rules = [ { id = "one", rate = "1/s" } ]
    "#,
        &[
            "the file: unknown key `unknwon`, expected one of",
            "limits.a: unknown key `rule`, expected one of",
            "limits.b.shape: unknown key `max_agee`, expected one of",
            "limits.b.rules[0]: unknown key `algoritm`, expected one of",
            "limits.b.rules[1]: unknown key `brust`, expected one of",
            "limits.b.rules[2]: unknown key `algo`, expected one of",
            "limits.b.rules[3]: unknown value `token_buket`, expected one of",
            "limits.c.mode: unknown value `shap`, expected one of",
        ],
    );
}

#[test]
fn errors_have_the_line_of_the_key() {
    let text = "
        unknown = 'd'
        [limits.a]
        keys = [
            201,
        ]
        rules = [
            { id = 'one', rate = '1/s' },
            { id = 'two', rate = '1/x' },
        ]
        [limits.b]
        keys = [201]
        mode = 'shape'
        rules = [{ id = 'one', rate = '1/s' }]
        [limits.b.shape]
        max_wait = '1s'
        max_age = '2days'
        [limits.c]
        keys = ['c']
    ";
    let ConfigErrors(errors) = Rules::parse(text).unwrap_err();
    let mut lines: Vec<&str> = errors
        .iter()
        .map(|it| it.split(": ").next().unwrap())
        .collect();
    lines.sort_unstable();
    let expected = ["line 11", "line 17", "line 18", "line 2", "line 9"];
    assert_eq!(lines, expected, "{errors:#?}");
    let ConfigErrors(errors) = Rules::parse(&format!("{VALID}\n[limit.a]")).unwrap_err();
    let expected =
        "line 16: the file: unknown key `limit`, expected one of `unknown`, `limits`, `sharing`";
    assert_eq!(errors, [expected]);
}

#[test]
fn errors_of_sharing_contain_no_passwords() {
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
    assert_eq!(sharing.refresh, Duration::from_secs(1));
    assert!(!format!("{rules:?} {rules}").contains("secret"));
    assert!(rules.to_string().contains("shared by group eu"), "{rules}");
    let unclosed = Rules::parse(&text("[sharing]\nredis = \"redis://me:secret@x")).unwrap_err();
    let unclosed = unclosed.to_string();
    assert!(
        unclosed.contains("line 2") && !unclosed.contains("secret"),
        "{unclosed}"
    );
    for (sharing, expected) in [
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
            "[sharing]\nmode = \"lease\"\nredis = \"x\"\ngroup = \"a b\"",
            "sharing.group: invalid group",
        ),
        (
            "[sharing]\nmode = \"redis://me:secret@x\"",
            "sharing.mode: invalid value, expected `lease` or `exact`",
        ),
        (
            "[sharing]\nmembers_max = \"redis://me:secret@x\"",
            "sharing.members_max: invalid value, expected u64",
        ),
        (
            "[sharing]\nrefresh = \"redis://me:secret@x\"",
            "sharing.refresh: invalid value: write a number and",
        ),
        (
            "[sharing]\nmode = \"lease\"\nredis = \"x\"\ngroup = \"g\"\nmembers_max = 0",
            "sharing.members_max: out of range: use 1 to 1000",
        ),
        (
            "[sharing]\nmember = 3",
            "sharing: unknown key `member`, expected one of",
        ),
        (
            "sharing = \"redis://me:secret@x\"",
            "sharing: expected a table, not string",
        ),
    ] {
        let errors = Rules::parse(&text(sharing)).unwrap_err().to_string();
        assert!(errors.contains(expected), "{sharing}: {errors}");
        assert!(!errors.contains("secret"), "{errors}");
    }
}

#[test]
fn limit_with_from_call_has_neither_keys_nor_rules() {
    let other = "[limits.b]\nrules = [{ id = \"r\", rate = \"1/s\" }]\n";
    let rules = Rules::parse(&format!("{other}[limits.a]\nfrom_call = true")).unwrap();
    let limit = &rules.limits[0];
    assert!(limit.from_call && limit.keys.is_empty() && limit.rules.is_empty());
    assert!(rules.to_string().contains("a: each counter, with the rule"));
    for (top, more, expected) in [
        ("", "keys = [1]", "cannot have keys or rules"),
        (
            "",
            "rules = [{ id = \"r\", rate = \"1/s\" }]",
            "cannot have keys or rules",
        ),
        ("", "global = true", "cannot be global"),
        (
            "unknown = \"a\"\n",
            "",
            "cannot be the limit of unlisted keys",
        ),
    ] {
        let text = format!("{top}{other}[limits.a]\nfrom_call = true\n{more}");
        let errors = Rules::parse(&text).unwrap_err().to_string();
        assert!(errors.contains(expected), "{more}: {errors}");
    }
}
