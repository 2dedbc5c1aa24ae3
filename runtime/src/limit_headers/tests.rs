use http::{HeaderName, HeaderValue};

use super::*;

/// 2023-11-14T22:13:20Z.
const NOW: Duration = Duration::from_secs(1_700_000_000);

fn demand(status: u16, fields: &[(&str, &str)]) -> Demand {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    LimitHeaders::of(&headers).demand(status, NOW)
}

/// The windows in seconds, and the names of the ignored fields.
#[track_caller]
fn check(status: u16, fields: &[(&str, &str)], windows: &[(u64, u64)], ignored: &[&str]) {
    let demand = demand(status, fields);
    let seconds = demand
        .windows
        .iter()
        .map(|(requests, time)| (*requests, time.as_secs()));
    assert_eq!(seconds.collect::<Vec<_>>(), windows, "{fields:?}");
    let names: Vec<_> = demand.ignored.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ignored, "{fields:?}");
}

/// Header fields as the documentation of partners shows them. Fields of other names are passed under the names here.
#[test]
fn fields_of_partners_are_parsed() {
    let (remaining, reset) = ("X-RateLimit-Remaining", "X-RateLimit-Reset");
    // GitHub: Unix seconds.
    let fields = [(remaining, "0"), (reset, "1700000030")];
    check(403, &fields, &[(0, 30)], &[]);
    // OpenAI and Groq, x-ratelimit-…-requests: Go durations.
    for (text, seconds) in [
        ("6m0s", 360),
        ("1s", 1),
        ("20ms", 1),
        ("1h2m3s", 3_723),
        ("2m59.56s", 180),
        ("7.66s", 8),
    ] {
        check(
            200,
            &[(remaining, "4999"), (reset, text)],
            &[(4_999, seconds)],
            &[],
        );
    }
    // Azure OpenAI without a limit.
    let fields = [(remaining, "-1"), (reset, "0")];
    check(
        200,
        &fields,
        &[],
        &["x_ratelimit_remaining", "x_ratelimit_reset"],
    );
    // Discord: fractional seconds.
    let fields = [
        ("Retry-After", "64.57"),
        (remaining, "0"),
        (reset, "1700000005.123"),
    ];
    check(429, &fields, &[(0, 65), (0, 6)], &[]);
    // Reddit: fractional requests.
    check(
        200,
        &[(remaining, "598.9"), (reset, "401")],
        &[(598, 401)],
        &[],
    );
    // Twitter, x-rate-limit-…: only the time in a 429.
    check(429, &[(reset, "1700000900")], &[(0, 900)], &[]);
    // Cloudflare and the drafts from 8 on.
    let fields = [("RateLimit", "\"default\";r=50;t=30")];
    check(200, &fields, &[(50, 30)], &[]);
    // Shopify.
    check(429, &[("Retry-After", "2.0")], &[(0, 2)], &[]);
    // Zendesk and the drafts up to 6.
    let fields = [("RateLimit-Remaining", "99"), ("RateLimit-Reset", "41")];
    check(200, &fields, &[(99, 41)], &[]);
    // GitLab.
    let fields = [
        ("RateLimit-Remaining", "0"),
        ("RateLimit-Reset", "1700000060"),
        ("Retry-After", "30"),
    ];
    check(429, &fields, &[(0, 30), (0, 60)], &[]);
    // Draft 7.
    let fields = [("RateLimit", "limit=100, remaining=50, reset=30")];
    check(200, &fields, &[(50, 30)], &[]);
    // Anthropic: RFC 3339.
    let fields = [(remaining, "5"), (reset, "2023-11-14T22:14:20Z")];
    check(200, &fields, &[(5, 60)], &[]);
    // Milliseconds.
    check(
        200,
        &[(remaining, "5"), (reset, "1700000030000")],
        &[(5, 30)],
        &[],
    );
}

#[test]
fn all_windows_apply() {
    let two = "\"hour\";r=0;t=1800, \"peak\";r=0;t=7";
    check(200, &[("RateLimit", two)], &[(0, 1_800), (0, 7)], &[]);
    assert_eq!(
        demand(200, &[("RateLimit", two)]).pause(),
        Some(Duration::from_secs(1_800))
    );
    // Two lines of a field are one list.
    let lines = [
        ("RateLimit", "a;r=9;t=1"),
        ("RateLimit", "b;t=2;r=8;pk=:cQ==:"),
    ];
    check(200, &lines, &[(9, 1), (8, 2)], &[]);
    let names = "\"a;r=9, b=\\\";t=8\";r=0;t=60, \"c,d\";r=1;t=2.5";
    check(200, &[("RateLimit", names)], &[(0, 60), (1, 3)], &[]);
    check(429, &[("Retry-After", "60, 30")], &[(0, 60), (0, 30)], &[]);
    let lists = [
        ("X-RateLimit-Remaining", "99, 0"),
        ("X-RateLimit-Reset", "1, 3600"),
    ];
    check(200, &lists, &[(99, 1), (0, 3_600)], &[]);
    let lists = [
        ("X-RateLimit-Remaining", "99, 0"),
        ("X-RateLimit-Reset", "60"),
    ];
    check(200, &lists, &[(0, 60)], &[]);
}

#[test]
fn incomplete_field_is_named_and_hides_no_other() {
    let (remaining, reset) = ("X-RateLimit-Remaining", "X-RateLimit-Reset");
    let incomplete = ("RateLimit", "\"default\";r=0");
    let others = [incomplete, (remaining, "0"), (reset, "60")];
    check(200, &others, &[(0, 60)], &["ratelimit"]);
    let others = [
        incomplete,
        ("RateLimit-Remaining", "3"),
        ("RateLimit-Reset", "60"),
    ];
    check(200, &others, &[(3, 60)], &["ratelimit"]);
    check(
        429,
        &[incomplete, ("Retry-After", "5")],
        &[(0, 5)],
        &["ratelimit"],
    );
    check(
        429,
        &[incomplete, (reset, "60")],
        &[(0, 60)],
        &["ratelimit"],
    );
    let one = [("RateLimit", "\"a\";r=0, \"b\";r=0;t=7")];
    check(200, &one, &[(0, 7)], &["ratelimit"]);
    check(200, &[("RateLimit", "nothing")], &[], &["ratelimit"]);
    check(200, &[(remaining, "5")], &[], &["x_ratelimit_remaining"]);
    check(200, &[(reset, "60")], &[], &["x_ratelimit_reset"]);
    let malformed = [(remaining, "many"), (reset, "60")];
    check(
        200,
        &malformed,
        &[],
        &["x_ratelimit_remaining", "x_ratelimit_reset"],
    );
    // In a 429, a reset time alone is a pause, unless Retry-After states one.
    check(429, &malformed, &[(0, 60)], &["x_ratelimit_remaining"]);
    check(429, &[("RateLimit", "\"default\";t=60")], &[(0, 60)], &[]);
    check(429, &[("RateLimit-Reset", "60")], &[(0, 60)], &[]);
    let both = [("Retry-After", "5"), (reset, "60")];
    check(429, &both, &[(0, 5)], &["x_ratelimit_reset"]);
    check(
        429,
        &[("Retry-After", "0"), (reset, "60")],
        &[(0, 0), (0, 60)],
        &[],
    );
    check(
        429,
        &[("Retry-After", "60, soon")],
        &[(0, 60)],
        &["retry_after"],
    );
}

#[test]
fn retry_after_is_a_number_a_duration_or_a_date() {
    for (text, seconds) in [
        ("120", 120),
        (" 120 ", 120),
        ("292.05", 293),
        ("0.001", 1),
        ("7.000", 7),
        ("6m0s", 360),
        ("1500ms", 2),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", 30),
        ("Tue Nov 14 22:13:50 2023", 30),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("2023-11-14T22:13:50Z", 30),
        ("1700000030", 1_700_000_030),
    ] {
        check(429, &[("Retry-After", text)], &[(0, seconds)], &[]);
    }
}

#[test]
fn hostile_values_are_ignored_or_huge() {
    for invalid in [
        "soon",
        "",
        "-1",
        "+1",
        "-1.5",
        "NaN",
        "inf",
        "1e9",
        "0x10",
        ".5",
        "1.2.3",
        "6m0",
        "m",
        "1 fortnight",
        "999999999999999999999h",
        "١٢",
        ",",
        ";=,;=",
    ] {
        let field = Some(invalid.to_owned());
        let headers = LimitHeaders {
            retry_after: field.clone(),
            ratelimit: Some(format!("a;r={invalid};t={invalid}")),
            x_ratelimit_remaining: field.clone(),
            x_ratelimit_reset: field,
            ..LimitHeaders::default()
        };
        let demand = headers.demand(429, NOW);
        assert_eq!(demand.windows, [], "{invalid:?}");
        assert_eq!(demand.ignored.len(), 4, "{invalid:?}: {:?}", demand.ignored);
    }
    let year = Duration::from_secs(365 * 86_400);
    for far in [
        "18446744073709551616",
        "99999999999999999999999999.9",
        "Fri, 31 Dec 9999 23:59:59 GMT",
    ] {
        let pause = demand(429, &[("Retry-After", far)]).pause();
        assert!(pause > Some(year), "{far}");
        let pause = demand(429, &[("X-RateLimit-Reset", far)]).pause();
        assert!(pause > Some(year), "{far}");
    }
    let long = "1".repeat(1 << 20);
    assert_eq!(demand(429, &[("Retry-After", &long)]), Demand::default());
    let lines = vec![("Retry-After", "60"); 10_000];
    assert_eq!(demand(429, &lines), Demand::default());
}
