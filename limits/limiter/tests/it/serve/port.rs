//! Tests of the HTTP API: responses, tokens, and bounds for untrusted clients.

use std::fs;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::http::Response;

use crate::serve::harness::{Limiter, body, nanos};

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'peak', rate = '1/s' }]
[limits.b]
rules = [{ id = 'slow', rate = '1/25s', burst = 2 }]
";

#[tokio::test]
async fn responses_and_problems_match_the_api_description() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut client = limiter.client().await?;
    let response = client.get("/v1/limits/a/k%2F1/delay?also=b/x", &[]).await?;
    let response = body(&response, 200);
    assert_eq!(response["at"], response["now"]);
    ensure!(
        response["wait"] == 0.0 && response["binding"].is_null(),
        "{response}"
    );
    let response = client
        .post("/v1/limits/a/k/reserve?also=b/k", &[], "{}")
        .await?;
    body(&response, 200);
    let counted = client
        .post("/v1/limits/b/k/increment", &[], "{\"n\": 1}")
        .await?;
    let counted = body(&counted, 200);
    ensure!(
        counted["counted"] == true && counted["binding"] == "b/slow",
        "{counted}"
    );
    let refused = client
        .post("/v1/limits/a/k/reserve?also=b/k", &[], "{\"max_wait\": 3}")
        .await?;
    let problem = body(&refused, 429);
    assert_eq!(problem["violated-policies"][0], "b/slow");
    let at = problem["at"].as_str().unwrap_or("?");
    let detail = problem["detail"].as_str().unwrap_or_default();
    ensure!(
        detail.contains("b/slow") && detail.contains(at),
        "{problem}"
    );
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    let head = &refused.head;
    let retry_after = head
        .split("retry-after: ")
        .nth(1)
        .and_then(|it| it.split('\r').next());
    let retry_after: u64 = retry_after.unwrap_or_default().parse()?;
    ensure!(
        retry_after * 1_000_000_000 >= nanos(&problem["at"]) - nanos(&problem["now"]),
        "{head}"
    );
    // A body is optional, except from a browser, where a page of another site could send the request.
    let mut client = limiter.client().await?;
    let bare = "POST /v1/limits/a/bare/reserve HTTP/1.1\r\nHost: localhost\r\n";
    for (more, status) in [
        ("", 200),
        ("Content-Length: 0\r\n", 200),
        ("Origin: http://other.example\r\n", 415),
    ] {
        client.send(format!("{bare}{more}\r\n").as_bytes()).await?;
        body(&client.response().await?, status);
    }
    for (path, sent, status, kind) in [
        ("/v1/limits/c/k/reserve", "{}", 404, "unknown-limit"),
        (
            "/v1/limits/a/k/reserve",
            "{\"n\": 7}",
            422,
            "too-many-at-once",
        ),
        (
            "/v1/limits/a/k/reserve",
            "{\"m\": 7}",
            400,
            "invalid-request",
        ),
        ("/v1/limits/a/k/delay", "{}", 405, "method-not-allowed"),
        (
            "/v1/limits/a/k/increment",
            "{\"at\": \"2099-01-01T00:00:00Z\"}",
            422,
            "too-early",
        ),
        ("/v2", "{}", 404, "not-found"),
    ] {
        let response = client.post(path, &[], sent).await?;
        let allow = (status == 405).then_some("get, head");
        assert_eq!(header(&response, "allow"), allow);
        let problem = body(&response, status);
        assert_eq!(problem["type"], format!("/v1/problems/{kind}"));
        let page = client.get(&format!("/v1/problems/{kind}"), &[]).await?;
        ensure!(page.status == 200 && page.body.contains(problem["title"].as_str().unwrap_or("?")));
    }
    limiter.stop().await
}

/// Value of a header field.
fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    let mut lines = response.head.split("\r\n");
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn rate_limit_headers_have_the_remaining_quota_of_the_binding_rule() -> Result<()> {
    let limits = "
[limits.day]
rules = [{ id = 'quota', rate = '5/100days', algorithm = 'fixed_window', aligned = 'first_call' }]
[limits.hour]
rules = [{ id = 'burst', rate = '3/1000h', burst = 3 }]
";
    let mut limiter = Limiter::start(limits, &[]).await?;
    let mut client = limiter.client().await?;
    let quota = |response: &Response| {
        let names = ["limit", "remaining", "reset"];
        names.map(|name| {
            let value = header(response, &format!("x-ratelimit-{name}"));
            value.and_then(|it| it.parse::<u64>().ok())
        })
    };
    let response = client.get("/v1/limits/day/k/delay", &[]).await?;
    assert_eq!(quota(&response), [Some(5), Some(5), Some(0)]);
    let both = "/v1/limits/day/k/reserve?also=hour/k";
    let response = client.post(both, &[], "{\"n\": 2}").await?;
    let [limit, remaining, reset] = quota(&response);
    assert_eq!([limit, remaining], [Some(3), Some(1)], "{}", response.head);
    ensure!(reset > Some(1_000_000), "{}", response.head);
    let refused = client.post(both, &[], "{\"n\": 2}").await?;
    assert_eq!(body(&refused, 429)["binding"], "hour/burst");
    assert_eq!(quota(&refused)[..2], [Some(3), Some(1)], "{}", refused.head);
    let retry_after = header(&refused, "retry-after").and_then(|it| it.parse().ok());
    ensure!(retry_after >= quota(&refused)[2], "{}", refused.head);
    let feedback = "{\"status\": 429, \"retry_after\": \"3000\"}";
    let feedback = client
        .post("/v1/limits/day/new/feedback", &[], feedback)
        .await?;
    let [limit, remaining, reset] = quota(&feedback);
    assert_eq!([limit, remaining], [Some(5), Some(0)], "{}", feedback.head);
    ensure!(reset <= Some(3_000), "{}", feedback.head);
    let feedback = "{\"status\": 200, \"ratelimit\": \"\\\"p\\\";r=2;t=3000\"}";
    let feedback = client
        .post("/v1/limits/day/few/feedback", &[], feedback)
        .await?;
    assert_eq!(
        quota(&feedback)[..2],
        [Some(5), Some(2)],
        "{}",
        feedback.head
    );
    for (fields, wait, ignored) in [
        (
            r#""ratelimit": "\"hour\";r=0;t=1800, \"peak\";r=0;t=7""#,
            1_800,
            None,
        ),
        (r#""retry_after": "292.05""#, 293, None),
        (r#""retry_after": "60, 30""#, 60, None),
        (r#""x_ratelimit_reset": "6m0s""#, 360, None),
        (
            r#""ratelimit": "a;r=0", "ratelimit_reset": "50""#,
            50,
            Some("ratelimit"),
        ),
        (
            r#""retry_after": "soon", "ratelimit": "a;r=0;t=9""#,
            9,
            Some("retry_after"),
        ),
    ] {
        let path = format!("/v1/limits/day/{wait}/feedback");
        let fields = format!("{{\"status\": 429, {fields}}}");
        let response = body(&client.post(&path, &[], &fields).await?, 200);
        let found = response["wait"].as_f64().map(f64::ceil);
        assert_eq!(found, Some(f64::from(wait)), "{response}");
        let names = response["ignored"]
            .as_object()
            .map(|it| it.keys().map(String::as_str));
        let names: Option<Vec<_>> = names.map(Iterator::collect);
        assert_eq!(names, Some(Vec::from_iter(ignored)), "{response}");
    }
    for remaining in [1, 0] {
        let few = "/v1/limits/day/few/reserve";
        let response = client.post(few, &[], "{}").await?;
        let [limit, found, reset] = quota(&response);
        assert_eq!(
            [limit, found],
            [Some(5), Some(remaining)],
            "{}",
            response.head
        );
        ensure!(reset <= Some(3_000), "{}", response.head);
    }
    let unknown = client.get("/v1/limits/nothing/k/delay", &[]).await?;
    assert_eq!(quota(&unknown), [None; 3]);
    limiter.stop().await?;

    let flags = ["--ratelimit-fields=ratelimit"];
    let mut limiter = Limiter::start(limits, &flags).await?;
    let mut client = limiter.client().await?;
    let response = client.get("/v1/limits/day/k/delay", &[]).await?;
    assert_eq!(quota(&response), [None; 3]);
    assert_eq!(
        header(&response, "ratelimit"),
        Some("\"day/quota\";r=5;t=0")
    );
    let policy = header(&response, "ratelimit-policy");
    assert_eq!(policy, Some("\"day/quota\";q=5;w=8640000"));
    limiter.stop().await
}

#[tokio::test]
async fn token_grants_access_to_its_limits_only() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("tokens");
    fs::write(&file, "one one-token-of-16b a\nall all-token-of-16b *\n")?;
    let flag = format!("--token-file={}", file.display());
    let mut limiter = Limiter::start(LIMITS, &[&flag]).await?;
    let mut client = limiter.client().await?;
    let with = |token: &'static str| [("Authorization", token)];
    let (one, all) = (
        with("Bearer one-token-of-16b"),
        with("Bearer all-token-of-16b"),
    );
    body(&client.get("/v1/limits/a/k/delay", &one).await?, 200);
    body(&client.get("/v1/limits/b/k/delay", &all).await?, 200);
    for (path, headers, status) in [
        ("/v1/limits/a/k/delay", &[][..], 401),
        (
            "/v1/limits/a/k/delay",
            &with("Bearer another-token-16b"),
            401,
        ),
        ("/v1/limits/b/k/delay", &one, 403),
        ("/v1/limits/a/k/delay?also=b/k", &one, 403),
        ("/v1/limits/unknown/k/delay", &one, 403),
        ("/v1/limits/unknown/k/delay", &all, 404),
    ] {
        body(&client.get(path, headers).await?, status);
    }
    limiter.stop().await
}

#[tokio::test]
async fn token_leaves_slots_of_a_global_limit_to_others() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("tokens");
    fs::write(&file, "one one-token-of-16b *\ntwo two-token-of-16b *\n")?;
    let flag = format!("--token-file={}", file.display());
    let limits = "[limits.a]\nrules = [{ id = 'r', rate = '1000/s' }]\n\
                  [limits.whole]\nglobal = true\nrules = [{ id = 'r', rate = '1/10s' }]";
    let mut limiter = Limiter::start(limits, &[&flag]).await?;
    let mut client = limiter.client().await?;
    let mut status = Vec::new();
    for token in ["Bearer one-token-of-16b"; 9]
        .into_iter()
        .chain(["Bearer two-token-of-16b"])
    {
        let headers = [("Authorization", token)];
        let day = "{\"max_wait\": 86400}";
        let response = client.post("/v1/limits/a/k/reserve", &headers, day).await?;
        status.push(response.status);
    }
    ensure!(
        status.contains(&429) && status.last() == Some(&200),
        "{status:?}"
    );
    limiter.stop().await
}

#[tokio::test]
async fn resources_of_untrusted_clients_are_bounded() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &["--counters=2"]).await?;
    let mut client = limiter.client().await?;
    let large = format!("{{\"n\": 1{}}}", " ".repeat(70_000));
    let response = client.post("/v1/limits/a/k/reserve", &[], &large).await?;
    assert_eq!(response.status, 413);
    // A page of another site, and DNS rebinding.
    let mut client = limiter.client().await?;
    let other = [("Sec-Fetch-Site", "cross-site")];
    body(&client.get("/v1/limits/a/k/delay", &other).await?, 421);
    let mut plain = limiter.client().await?;
    let host = "Host: rebound.example\r\n\r\n";
    plain
        .send(format!("GET /v1/limits/a/k/delay HTTP/1.1\r\n{host}").as_bytes())
        .await?;
    body(&plain.response().await?, 421);
    let text = "POST /v1/limits/a/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}";
    plain.send(text.as_bytes()).await?;
    body(&plain.response().await?, 415);
    for _ in 0..2 {
        body(
            &client.post("/v1/limits/b/k/reserve", &[], "{}").await?,
            200,
        );
    }
    let mut waiter = limiter.client().await?;
    let wait = "POST /v1/limits/b/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"wait\": true}";
    waiter.send(wait.as_bytes()).await?;
    limiter.wait_metric("limiter_waiting", 1).await?;
    // A client that disconnects does not release its slot.
    drop(waiter);
    limiter.wait_metric("limiter_waiting", 0).await?;
    let next = body(&client.get("/v1/limits/b/k/delay", &[]).await?, 200);
    ensure!(next["wait"].as_f64() > Some(25.0), "{next}");
    // The number of counters is bounded.
    body(
        &client.post("/v1/limits/b/l/reserve", &[], "{}").await?,
        200,
    );
    let full = client.post("/v1/limits/b/m/reserve", &[], "{}").await?;
    ensure!(header(&full, "retry-after").is_some(), "{}", full.body);
    assert_eq!(
        body(&full, 503)["type"],
        "/v1/problems/counter-limit-reached"
    );
    let metrics = testkit::admin::get(&limiter.admin, "/metrics").await?.body;
    ensure!(
        metrics.contains("\nlimiter_clock_behind_seconds 0"),
        "{metrics}"
    );
    for (problem, count) in [("counter-limit-reached", 1), ("misdirected", 2)] {
        let line = format!("limiter_problems_total{{problem=\"{problem}\"}} {count}\n");
        ensure!(metrics.contains(&line), "{metrics}");
    }
    limiter.stop().await
}
