//! Tests of responses that scripts of other pages may read.

use super::*;

#[test]
fn json_answer_is_readable_by_listed_origins_only() {
    let contract =
        "[dsp.17]\nanswer = 'json'\norigins = ['https://a.example', 'https://b.example:8443']";
    let with = |origin: &str| {
        let headers = format!("cookie: uid=u/1\r\nOrigin: {origin}\r\n");
        exchange_with(contract, "GET /?d=17&b=x", &headers)
    };
    let allowed = with("https://b.example:8443");
    assert!(allowed.head().ends_with(
        "\r\naccess-control-allow-credentials: true\r\naccess-control-allow-origin: https://b.example:8443"
    ));
    for other in [
        "https://c.example",
        "null",
        "https://b.example",
        "https://a.example.evil.example",
    ] {
        let answer = with(other);
        assert!(!answer.head().contains("access-control"), "{other}");
        assert!(answer.head().contains("vary: origin"));
        assert_eq!(answer.recorded.len(), 1);
    }
}

/// Every response to a sync of a DSP with origins is readable by their scripts, and no other response is.
#[test]
fn refusals_are_readable_by_listed_origins_like_answers() {
    const HEADERS: &str = "vary: origin\r\naccess-control-allow-credentials: true\r\naccess-control-allow-origin: https://a.example";
    let text = "[privacy]\nhost_vendor = 2\n[dsp.17]\nanswer = 'json'\norigins = ['https://a.example']\nuid_bytes_max = 5\n\
                [dsp.18]\nanswer = 'json'\norigins = ['https://a.example']\nstate = 'blocked'\n[dsp.19]\n";
    let defaults = format!(
        "unknown_dsps = 'refuse'\n[defaults]\nanswer = 'json'\norigins = ['https://a.example']\n{text}"
    );
    for (contracts, request, status, is_readable) in [
        (text, "GET /?d=17&b=toolong", 400, true),
        (text, "GET /sync?b=toolong&d=17", 400, true),
        (text, "GET /?d=17&b=$UID", 400, true),
        (text, "GET /?d=17&b=%zz", 400, true),
        (text, "GET /?d=17", 400, true),
        (text, "HEAD /?d=17&b=x&gdpr=1", 451, true),
        (text, "GET /?d=18&b=x", 403, true),
        (text, "POST /?d=17&b=x", 405, true),
        (text, "GET /?d=19&b=%zz", 400, false),
        (text, "GET /?d=20&b=%zz", 400, false),
        (text, "GET /?b=x", 400, false),
        (text, "GET /?d=17&d=17&b=x", 400, false),
        (text, "GET /other?d=17", 404, false),
        (&defaults, "GET /?d=20&b=x", 400, true),
        (&defaults, "GET /?b=x", 400, true),
    ] {
        let with = |origin: &str| {
            let headers = format!("cookie: uid=u/1\r\n{origin}");
            exchange_with(contracts, request, &headers)
        };
        let refused = with("Origin: https://a.example\r\n");
        assert_eq!(refused.status()[..3], status.to_string(), "{request}");
        assert_eq!(refused.head().ends_with(HEADERS), is_readable, "{request}");
        let without = with("");
        let expected = match is_readable {
            true => refused.head().replace(&format!("\r\n{HEADERS}"), ""),
            false => refused.head().to_owned(),
        };
        assert_eq!(
            (without.head(), without.body()),
            (&*expected, refused.body())
        );
        let other = with("Origin: https://b.example\r\n");
        assert_eq!(other.response, without.response, "{request}");
    }
}

#[test]
fn preflight_of_a_listed_origin_permits_reads() {
    let contract = "[dsp.17]\nanswer = 'json'\norigins = ['https://a.example']\n[dsp.18]\n";
    let allowed = "access-control-request-method: GET\r\norigin: https://a.example\r\n";
    let preflight = |request: &str, headers: &str| exchange_with(contract, request, headers);
    let names = "access-control-request-headers: x-a,content-type\r\n";
    let permitted = preflight("OPTIONS /sync?d=17&b=x", &format!("{allowed}{names}"));
    permitted.check("204 No Content", &[], &[]);
    let expected = "HTTP/1.1 204 No Content\r\ncache-control: no-store\r\naccess-control-allow-methods: GET, HEAD\r\n\
                    access-control-max-age: 7200\r\naccess-control-allow-headers: x-a,content-type\r\nvary: origin\r\n\
                    access-control-allow-credentials: true\r\naccess-control-allow-origin: https://a.example";
    assert_eq!((permitted.head(), permitted.body()), (expected, &b""[..]));
    for names in ["x-a(b)", "<x>", &"x".repeat(600)] {
        let headers = format!("{allowed}access-control-request-headers: {names}\r\n");
        let permitted = preflight("OPTIONS /?d=17", &headers);
        assert!(!permitted.head().contains("allow-headers"), "{names}");
    }
    for (request, headers) in [
        (
            "OPTIONS /?d=17&b=x",
            "access-control-request-method: GET\r\n",
        ),
        ("OPTIONS /?d=17&b=x", "origin: https://a.example\r\n"),
        (
            "OPTIONS /?d=17&b=x",
            &*allowed.replace("a.example", "b.example"),
        ),
        ("OPTIONS /?d=18&b=x", allowed),
        ("OPTIONS /optout?d=17", allowed),
    ] {
        let refused = preflight(request, headers);
        assert!(!refused.status().starts_with("204"), "{request} {headers}");
    }
}
