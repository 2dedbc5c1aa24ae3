//! Tests of the bodies of requests.

use super::*;

fn counter(limit: &str, counter: &str) -> Target {
    target(limit, counter).unwrap()
}

fn call(endpoint: Endpoint, query: &str, body: &[u8]) -> Result<LimitedCall, Problem> {
    LimitedCall::read(endpoint, counter("a", "k"), Query::of(query)?, body, 0)
}

#[test]
fn paths_and_queries_name_limits_and_counters() {
    let path = Path::Call(Endpoint::Delay, counter("a b", "c/d"));
    assert_eq!(Path::of("/v1/limits/a%20b/c%2Fd/delay").unwrap(), path);
    for other in [
        "/",
        "/v1",
        "/v1/limits",
        "/v1/limits/a",
        "/v1/limits/a/b",
        "/v1/limits/a/b/c",
        "/v1/limitsx",
    ] {
        let path = Path::of(other).unwrap();
        assert!(!matches!(path, Path::Call(..)), "{other}");
    }
    for invalid in [
        "/v1/limits//c/delay",
        "/v1/limits/a/%00/delay",
        "/v1/limits/%ff/c/delay",
    ] {
        assert!(Path::of(invalid).is_err(), "{invalid}");
    }
    let query = Query::of("also=x/y%2Fz&n=3&also=whole/1").unwrap();
    assert_eq!(query.also, [counter("x", "y/z"), counter("whole", "1")]);
    assert_eq!(query.n, Some(3));
    for invalid in ["also=x", "n=-1", "m=1", "also=/c", "n=1&n=1"] {
        assert!(Query::of(invalid).is_err(), "{invalid}");
    }
}

#[test]
fn unknown_fields_and_invalid_values_are_rejected() {
    let reserve: Reserve = read(b"{\"max_wait\": 0.25, \"wait\": true}").unwrap();
    assert_eq!(reserve.max_wait().unwrap(), Duration::from_millis(250));
    assert_eq!(
        read::<Reserve>(b" ").unwrap().max_wait().unwrap(),
        Duration::from_secs(30)
    );
    assert!(read::<Reserve>(b"{\"max_wiat\": 1}").is_err());
    for invalid in ["{\"max_wait\": -1}", "{\"max_wait\": 1e9}"] {
        assert!(call(Endpoint::Reserve, "", invalid.as_bytes()).is_err());
    }
    let increment: Increment = read(b"{\"at\": \"2023-11-14T22:13:20Z\"}").unwrap();
    assert_eq!(increment.at().unwrap(), Some(1_700_000_000_000_000_000));
    for (at, expected) in [
        ("\"2600-01-01T00:00:00Z\"", u64::MAX),
        ("\"1960-01-01T00:00:00Z\"", 0),
        ("\"2023-11-14T23:13:20.5+01:00\"", 1_700_000_000_500_000_000),
    ] {
        let body = format!("{{\"at\": {at}}}");
        let increment: Increment = read(body.as_bytes()).unwrap();
        assert_eq!(increment.at().unwrap(), Some(expected), "{at}");
    }
    for invalid in [
        "\"now\"",
        "\"1700000000\"",
        "\"\"",
        "1700000000",
        "true",
        "[]",
    ] {
        let body = format!("{{\"at\": {invalid}}}");
        assert!(
            call(Endpoint::Increment, "", body.as_bytes()).is_err(),
            "{invalid}"
        );
    }
    for endpoint in [Endpoint::Reserve, Endpoint::Increment, Endpoint::Feedback] {
        for invalid in ["[]", "[200]", "[null, null, null]", "1", "null", " [1]"] {
            assert!(call(endpoint, "", invalid.as_bytes()).is_err(), "{invalid}");
        }
    }
    assert!(call(Endpoint::Increment, "n=1", b"").is_err());
    for invalid in [
        "interval=1",
        "requests=1",
        "interval=0&requests=1",
        "interval=1&requests=0",
        "interval=2678401&requests=1",
        "interval=1&requests=1000000000001",
    ] {
        assert!(call(Endpoint::Delay, invalid, b"").is_err(), "{invalid}");
    }
    for endpoint in [Endpoint::Delay, Endpoint::Reserve, Endpoint::Increment] {
        let call = call(endpoint, "interval=60&requests=100", b"").unwrap();
        assert_eq!(call.rule, Some(CallRule::new(60, 100).unwrap()));
    }
}

#[test]
fn values_out_of_range_are_rejected() {
    assert_eq!(number_of_requests(None).unwrap(), 1);
    assert!(number_of_requests(Some(0)).is_err() && number_of_requests(Some(u64::MAX)).is_err());
    let longer = b"{\"max_wait\": 86400.001}";
    assert!(call(Endpoint::Reserve, "", longer).is_err());
    assert!(call(Endpoint::Feedback, "", b"{}").is_err());
    for (limit, counter) in [("", "c"), ("a/b", "c"), ("a", ""), ("a", "\n")] {
        assert!(target(limit, counter).is_err(), "{limit}/{counter}");
    }
    assert!(target("a", &"c".repeat(COUNTER_BYTES_MAX + 1)).is_err());
}
