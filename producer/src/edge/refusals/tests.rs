//! Tests of the lines of streams, and of their bounds.

use http_body_util::BodyExt as _;
use tokio_util::sync::DropGuard;

use super::*;

#[track_caller]
fn check_classes(value: &[u8], expected: &[&str]) {
    let signals = Signals::default();
    let line = describe(Rejection::BuyerPattern, Some(value), &signals);
    assert_eq!(line["classes"], json!(expected), "{value:?}");
    assert_eq!(line["length"], value.len(), "{value:?}");
}

#[test]
fn classes_are_those_of_the_bytes_of_a_value() {
    check_classes(b"", &[]);
    check_classes(b"azmazm", &["lower"]);
    check_classes(b"0-aZ9", &["dash", "digit", "lower", "upper"]);
    check_classes(b"%%USER_ID%%", &["percent", "underscore", "upper"]);
    check_classes(b"${uid}", &["lower", "other"]);
    check_classes(b"a b", &["lower", "other"]);
    check_classes(b"1\n\x7f", &["digit", "other"]);
    check_classes("ü".as_bytes(), &["non_ascii"]);
}

#[test]
fn line_has_the_presence_of_signals_but_no_text_of_the_request() {
    let signals = Signals {
        opted_out: true,
        gdpr_consent: "SECRET",
        us_privacy: "SECRET",
        gpp: "SECRET",
        ..Signals::default()
    };
    let mut line = describe(Rejection::UserInvalid, Some(b"SECRET 1"), &signals);
    let time = line["time"].take();
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    assert!(time <= jiff::Timestamp::now());
    let expected = json!({
        "time": null,
        "reason": "uid_invalid",
        "parameter": "cookie uid",
        "length": 8,
        "classes": ["digit", "other", "upper"],
        "signals": ["gdpr_consent", "gpp", "us_privacy", "opt_out_cookie"],
    });
    assert_eq!(line, expected);
    let missing = describe(Rejection::BuyerMissing, None, &Signals::default());
    assert_eq!(missing["length"], Value::Null);
    assert_eq!(missing["classes"], json!([]));
    assert_eq!(missing["signals"], json!([]));
}

/// A stream of DSP 17, and the guard that drains its producer.
fn open(refusals: &Refusals) -> (Reply, DropGuard) {
    let draining = CancellationToken::new();
    let reply = query(refusals, "dsp=17", &draining);
    (reply, draining.drop_guard())
}

fn query(refusals: &Refusals, query: &str, draining: &CancellationToken) -> Reply {
    let uri = format!("{}?{query}", Refusals::PATH).parse().unwrap();
    refusals.page(&uri, draining.clone())
}

/// The next line; `None` after the last one.
async fn line(reply: &mut Reply) -> Option<Value> {
    let frame = reply.body_mut().frame().await?;
    let line = frame.unwrap().into_data().unwrap();
    assert_eq!(line.last(), Some(&b'\n'));
    Some(serde_json::from_slice(&line).unwrap())
}

/// Adds a refusal of DSP 17 with a number.
fn add(refusals: &Refusals, now: Instant, number: u64) {
    refusals.add(DspId(17), now, || json!({ "number": number }));
}

#[tokio::test(start_paused = true)]
async fn stream_ends_after_ten_minutes() {
    let refusals = Refusals::default();
    assert!(!refusals.are_read());
    let (mut stream, _draining) = open(&refusals);
    assert!(refusals.are_read());
    let began = tokio::time::Instant::now();
    add(&refusals, Instant::now(), 1);
    let first = json!({ "number": 1, "left_out": 0 });
    assert_eq!(line(&mut stream).await, Some(first));
    assert_eq!(began.elapsed(), Duration::ZERO);
    let end = json!({ "end": "10 minutes have passed" });
    assert_eq!(line(&mut stream).await, Some(end));
    assert!(began.elapsed() >= DURATION && began.elapsed() < DURATION + Duration::from_secs(1));
    assert_eq!(line(&mut stream).await, None);
    assert!(!refusals.are_read());
}

#[tokio::test(start_paused = true)]
async fn stream_ends_when_the_producer_drains() {
    let refusals = Refusals::default();
    let (mut stream, draining) = open(&refusals);
    drop(draining);
    let end = json!({ "end": "the producer is draining" });
    assert_eq!(line(&mut stream).await, Some(end));
    assert_eq!(line(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn refusals_above_the_rate_and_those_of_other_dsps_are_not_described() {
    let refusals = Refusals::default();
    let (mut stream, _draining) = open(&refusals);
    let now = Instant::now();
    for number in 0..1_000 {
        refusals.add(DspId(18), now, || panic!("nobody reads this DSP"));
        add(&refusals, now, number);
    }
    add(&refusals, now + Duration::from_secs(1), 1_000);
    for number in 0..20 {
        let expected = json!({ "number": number, "left_out": 0 });
        assert_eq!(line(&mut stream).await, Some(expected));
    }
    let next = json!({ "number": 1_000, "left_out": 980 });
    assert_eq!(line(&mut stream).await, Some(next));
}

#[tokio::test(start_paused = true)]
async fn slow_client_loses_the_oldest_refusals_and_learns_their_number() {
    let refusals = Refusals::default();
    let (mut stream, _draining) = open(&refusals);
    let now = Instant::now();
    for number in 0..200 {
        add(&refusals, now + Duration::from_secs(number), number);
    }
    assert_eq!(line(&mut stream).await, Some(json!({ "dropped": 72 })));
    for number in 72..200 {
        let expected = json!({ "number": number, "left_out": 0 });
        assert_eq!(line(&mut stream).await, Some(expected));
    }
}

#[tokio::test]
async fn number_of_streams_is_bounded_and_nothing_is_recorded_without_one() {
    let refusals = Refusals::default();
    let mut open_streams: Vec<_> = (0..STREAMS_MAX).map(|_| open(&refusals)).collect();
    for (stream, _) in &open_streams {
        assert_eq!(stream.status(), StatusCode::OK);
    }
    let (fifth, _draining) = open(&refusals);
    assert_eq!(fifth.status(), StatusCode::TOO_MANY_REQUESTS);
    open_streams.pop();
    let (again, draining) = open(&refusals);
    assert_eq!(again.status(), StatusCode::OK);
    open_streams.push((again, draining));
    assert!(refusals.are_read());
    open_streams.clear();
    assert!(!refusals.are_read());
}

#[tokio::test]
async fn invalid_query_is_an_error() {
    let (refusals, draining) = (Refusals::default(), CancellationToken::new());
    for invalid in [
        "",
        "dsp",
        "dsp=",
        "dsp=0",
        "dsp=x",
        "dsp=+17",
        "dsp=4294967296",
        "dsp=17&dsp=17",
        "dsp=x&dsp=17",
        "d=17",
    ] {
        let reply = query(&refusals, invalid, &draining);
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{invalid}");
        let text = reply.into_body().collect().await.unwrap().to_bytes();
        assert!(text.starts_with(b"use ?dsp=ID "), "{invalid}");
    }
    assert!(!refusals.are_read());
    let reply = query(&refusals, "x=1&dsp=17", &draining);
    assert_eq!(reply.status(), StatusCode::OK);
}
