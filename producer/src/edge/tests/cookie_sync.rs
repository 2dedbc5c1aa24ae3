//! Tests of requests for a sync plan, and of the hints of browsers.

use serde_json::{Value, json};

use super::*;

const CONTRACTS: &str = "[privacy]
host_vendor = 2
gdpr_when_absent = 'no'
[plan]
base = 'https://match.ssp.example'
origins = ['https://paper.example', 'https://*.mag.example:8443']
[dsp.17]
name = 'Alpha'
vendor = 2
[dsp.17.sync]
image = 'https://a.example/?r={RETURN}'
[dsp.18]
name = 'beta'
[dsp.18.sync]
iframe = 'https://b.example/?r={RETURN}'
[dsp.19]
name = 'without'
";

const USER: &str = "cookie: uid=u\r\n";
const ORIGIN: &str = "origin: https://paper.example\r\n";

/// To purpose 1 and vendor 2.
const CONSENT: &str = "CPGWbY_PGWbY_GYAAAENABCAAIAAAAAAAAAAACEAAAAA";
/// Without purpose 1.
const NO_PURPOSE: &str = "CPGWkCaPGWkCaApAAAENABCAAAAAAAAAAAAAABEAAAAA";

fn producer(uid: UidMode) -> Producer {
    Producer::new(Some(CONTRACTS), true, uid)
}

fn ask(producer: &Producer, headers: &str, body: &str) -> Exchange {
    let headers = format!("{headers}content-length: {}\r\n", body.len());
    producer.exchange_body("POST /cookie_sync", &headers, body)
}

fn answer(exchange: &Exchange) -> Value {
    assert_eq!(exchange.status(), "200 OK");
    serde_json::from_slice(exchange.body()).unwrap()
}

fn header<'a>(exchange: &'a Exchange, name: &str) -> Vec<&'a str> {
    let lines = exchange.head().lines();
    lines
        .filter_map(|it| it.strip_prefix(name)?.strip_prefix(": "))
        .collect()
}

/// The hints that an answer sets, as the header of the next request.
fn hints(exchange: &Exchange) -> Option<String> {
    let cookies = header(exchange, "set-cookie");
    let found = cookies.iter().find_map(|it| it.strip_prefix("sy="))?;
    Some(format!(
        "cookie: uid=u; sy={}\r\n",
        found.split(';').next().unwrap()
    ))
}

#[test]
fn answer_is_that_of_prebid_server() {
    let producer = producer(UidMode::Require);
    let asked = ask(
        &producer,
        &format!("{USER}{ORIGIN}content-type: text/plain\r\n"),
        r#"{"uuid": "x", "account": "y"}"#,
    );
    let mut plan = answer(&asked);
    let list = plan["bidder_status"].as_array_mut().unwrap();
    list.sort_by_key(|it| it["bidder"].to_string());
    let back = |name, format| {
        format!(
            "https%3A%2F%2Fmatch.ssp.example%2Fsetuid%3Fbidder%3D{name}%26gdpr%3D%26gdpr_consent%3D%26us_privacy%3D%26gpp%3D%26gpp_sid%3D%26f%3D{format}%26p%3D1%26uid%3D%24UID"
        )
    };
    assert_eq!(
        plan,
        json!({"status": "no_cookie", "bidder_status": [
            {"bidder": "Alpha", "no_cookie": true, "usersync": {"url": format!("https://a.example/?r={}", back("Alpha", "i")), "type": "redirect"}},
            {"bidder": "beta", "no_cookie": true, "usersync": {"url": format!("https://b.example/?r={}", back("beta", "b")), "type": "iframe"}},
        ]})
    );
    let head = asked.head();
    assert!(
        head.contains("\r\ncontent-type: application/json\r\n"),
        "{head}"
    );
    assert_eq!(header(&asked, "cache-control"), ["no-store"]);
    assert_eq!(header(&asked, "vary"), ["origin"]);
    assert_eq!(
        header(&asked, "access-control-allow-origin"),
        ["https://paper.example"]
    );
    assert_eq!(header(&asked, "access-control-allow-credentials"), ["true"]);
    let cookies = header(&asked, "set-cookie");
    let [cookie] = cookies[..] else {
        panic!("{cookies:?}")
    };
    assert!(cookie.starts_with("sy=AQ"), "{cookie}");
    let attributes = "; Max-Age=2592000; Path=/; Secure; HttpOnly; SameSite=None";
    assert!(cookie.ends_with(attributes), "{cookie}");
}

#[test]
fn without_settings_of_plans_the_paths_are_unknown() {
    let contracts = "[privacy]\n[dsp.17]\nname = 'Alpha'\n";
    let producer = Producer::new(Some(contracts), true, UidMode::Require);
    assert_eq!(ask(&producer, USER, "{}").status(), "404 Not Found");
    assert_eq!(
        producer.exchange("GET /sync.html", "").status(),
        "404 Not Found"
    );
    let accepted = producer.exchange("GET /setuid?bidder=alpha&uid=1&p=1", USER);
    accepted.check("200 OK", &["u 17 1"], &["17 accepted", "privacy: allowed"]);
    assert!(header(&accepted, "set-cookie").is_empty());
}

#[test]
fn method_is_post_and_preflights_of_listed_origins_are_answered() {
    let producer = producer(UidMode::Require);
    for method in ["GET", "HEAD", "PUT"] {
        let refused = producer.exchange(&format!("{method} /cookie_sync"), ORIGIN);
        assert_eq!(refused.status(), "405 Method Not Allowed");
        assert_eq!(header(&refused, "allow"), ["POST, OPTIONS"]);
        assert_eq!(header(&refused, "access-control-allow-origin").len(), 1);
    }
    let request =
        "access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n";
    let permitted = producer.exchange("OPTIONS /cookie_sync", &format!("{ORIGIN}{request}"));
    assert_eq!(permitted.status(), "204 No Content");
    assert_eq!(header(&permitted, "access-control-allow-methods"), ["POST"]);
    assert_eq!(
        header(&permitted, "access-control-allow-headers"),
        ["content-type"]
    );
    assert_eq!(header(&permitted, "access-control-max-age"), ["600"]);
    assert_eq!(
        header(&permitted, "access-control-allow-origin"),
        ["https://paper.example"]
    );
}

#[test]
fn only_listed_origins_and_that_of_the_page_get_a_plan() {
    let producer = producer(UidMode::Mint);
    for origin in [
        "https://paper.example",
        "https://match.ssp.example",
        "https://www.mag.example:8443",
        "https://a.b.mag.example:8443",
    ] {
        let asked = ask(&producer, &format!("{USER}origin: {origin}\r\n"), "{}");
        assert_eq!(header(&asked, "access-control-allow-origin"), [origin]);
        assert_eq!(asked.status(), "200 OK");
    }
    for origin in [
        "null",
        "",
        "https://paper.example.evil.example",
        "https://evilpaper.example",
        "https://paper.example:444",
        "http://paper.example",
        "https://PAPER.example",
        "https://mag.example:8443",
        "https://evilmag.example:8443",
        "https://.mag.example:8443",
        "http://www.mag.example:8443",
        "https://www.mag.example",
        "https://www.mag.example:8443.evil.example",
        "https://match.ssp.example.evil.example",
        "https://x.paper.example",
        "\u{fc}",
    ] {
        for method in ["POST", "OPTIONS", "GET"] {
            let headers = format!("origin: {origin}\r\ncontent-length: 2\r\n");
            let refused = producer.exchange_body(&format!("{method} /cookie_sync"), &headers, "{}");
            assert_eq!(refused.status(), "403 Forbidden", "{origin}");
            let head = refused.head();
            assert!(
                !head.contains("set-cookie") && !head.contains("access-control"),
                "{head}"
            );
        }
    }
    let without = ask(&producer, USER, "{}");
    assert_eq!(without.status(), "200 OK");
    assert!(!without.head().contains("access-control"));
    assert_eq!(header(&without, "vary"), ["origin"]);
}

#[test]
fn body_has_a_length_of_up_to_16_kib() {
    let producer = producer(UidMode::Require);
    let refused =
        |headers: &str| producer.exchange("POST /cookie_sync", &format!("{ORIGIN}{headers}"));
    for (headers, status) in [
        ("content-length: 16385\r\n", "413 Content Too Large"),
        ("", "411 Length Required"),
        ("transfer-encoding: chunked\r\n", "411 Length Required"),
        (
            "content-length: 2\r\ntransfer-encoding: chunked\r\n",
            "411 Length Required",
        ),
        (
            "content-length: 2\r\ncontent-length: 2\r\n",
            "411 Length Required",
        ),
        ("content-length: x\r\n", "411 Length Required"),
    ] {
        let refused = refused(headers);
        assert_eq!(refused.status(), status, "{headers}");
        assert_eq!(header(&refused, "connection"), ["close"]);
        assert_eq!(header(&refused, "access-control-allow-origin").len(), 1);
    }
    let longest = format!("{{\"x\": \"{}\"}}", "y".repeat((16 << 10) - 9));
    assert_eq!(longest.len(), 16 << 10);
    assert_eq!(ask(&producer, USER, &longest).status(), "200 OK");
}

#[test]
fn invalid_body_is_rejected_in_one_line() {
    let producer = producer(UidMode::Mint);
    for body in [
        "",
        "no",
        "[]",
        "{\"gdpr\": \"1\"}",
        "{\"gdpr\": 3}",
        "{\"filterSettings\": {\"image\": {\"filter\": \"x\"}}}",
    ] {
        let refused = ask(&producer, &format!("{USER}{ORIGIN}"), body);
        assert_eq!(refused.status(), "400 Bad Request", "{body}");
        assert_eq!(header(&refused, "access-control-allow-origin").len(), 1);
        assert!(header(&refused, "set-cookie").is_empty());
        let text = std::str::from_utf8(refused.body()).unwrap();
        assert_eq!(text.find('\n'), Some(text.len() - 1), "{text}");
    }
}

#[test]
fn browser_that_opted_out_gets_401() {
    let producer = producer(UidMode::Mint);
    let asked = ask(&producer, "cookie: uid=u; cookiesync_optout=1\r\n", "{}");
    assert_eq!(asked.status(), "401 Unauthorized");
    assert!(header(&asked, "set-cookie").is_empty());
}

#[test]
fn invalid_signals_and_missing_consent_are_400() {
    for mode in ["enforce", "observe"] {
        let contracts = CONTRACTS.replace("[privacy]", &format!("[privacy]\nmode = '{mode}'"));
        let producer = Producer::new(Some(&contracts), true, UidMode::Mint);
        for body in [
            json!({"gdpr": 1}),
            json!({"gdpr": 1, "gdpr_consent": "x"}),
            json!({"gpp_sid": "2"}),
            json!({"gpp_sid": "x"}),
            json!({"gpp": "x"}),
            json!({"us_privacy": "x"}),
        ] {
            let refused = ask(&producer, USER, &body.to_string());
            assert_eq!(refused.status(), "400 Bad Request", "{body}");
        }
    }
}

#[test]
fn privacy_signals_that_refuse_everything_leave_the_plan_empty() {
    for mode in ["enforce", "observe"] {
        let contracts = CONTRACTS.replace("[privacy]", &format!("[privacy]\nmode = '{mode}'"));
        let producer = Producer::new(Some(&contracts), true, UidMode::Mint);
        let gdpr = format!("{{\"gdpr\": 1, \"gdpr_consent\": \"{NO_PURPOSE}\", \"debug\": true}}");
        for (headers, body) in [
            ("sec-gpc: 1\r\n", r#"{"debug": true}"#),
            ("", r#"{"us_privacy": "1YYN", "debug": true}"#),
            ("", &gdpr),
        ] {
            // Neither hints nor a new user id.
            for user in [USER, ""] {
                let asked = ask(&producer, &format!("{user}{headers}"), body);
                let plan = answer(&asked);
                assert_eq!(plan["status"], "no_cookie");
                assert_eq!(plan["bidder_status"], json!([]));
                assert_eq!(plan["debug"].as_array().unwrap().len(), 2);
                assert_eq!(plan["debug"][0]["error"], "Rejected by privacy");
                assert!(header(&asked, "set-cookie").is_empty());
            }
        }
    }
}

#[test]
fn dsp_without_consent_is_left_out() {
    let producer = producer(UidMode::Require);
    let body = format!("{{\"gdpr\": 1, \"gdpr_consent\": \"{CONSENT}\", \"debug\": true}}");
    let plan = answer(&ask(&producer, USER, &body));
    assert_eq!(plan["bidder_status"][0]["bidder"], "Alpha");
    assert_eq!(
        plan["debug"],
        json!([{"bidder": "beta", "error": "Rejected by privacy"}])
    );
}

#[test]
fn browser_without_a_user_id_gets_one_and_no_dsps() {
    for (uid, cookie, minted) in [
        (UidMode::Require, "", None),
        (UidMode::Mint, "", Some(false)),
        (UidMode::Mint, "cookie: uid=\r\n", Some(false)),
        (UidMode::MintPartitioned, "", Some(true)),
        (UidMode::Mint, "cookie: uid=a b\r\n", None),
    ] {
        let asked = ask(
            &producer(uid),
            &format!("{cookie}{ORIGIN}"),
            r#"{"debug": true}"#,
        );
        let plan = answer(&asked);
        assert_eq!(plan["status"], "no_cookie");
        assert_eq!(plan["bidder_status"], json!([]));
        assert_eq!(plan["debug"][1]["error"], "No user id");
        let cookies = header(&asked, "set-cookie");
        assert_eq!(cookies.len(), usize::from(minted.is_some()), "{uid:?}");
        if let Some(is_partitioned) = minted {
            assert!(cookies[0].starts_with("uid="), "{cookies:?}");
            assert_eq!(cookies[0].ends_with("; Partitioned"), is_partitioned);
        }
    }
}

#[test]
fn matches_make_the_next_plan_empty() {
    let producer = producer(UidMode::Require);
    let offered = hints(&ask(&producer, USER, "{}")).unwrap();
    // Two offers a day.
    let offered = hints(&ask(&producer, &offered, "{}")).unwrap();
    let asked = ask(&producer, &offered, r#"{"debug": true}"#);
    assert_eq!(answer(&asked)["debug"][0]["error"], "Daily limit reached");
    assert!(header(&asked, "set-cookie").is_empty());
    let returned = producer.exchange("GET /setuid?bidder=alpha&uid=1&f=i&p=1", &offered);
    assert_eq!(returned.recorded, ["u 17 1"]);
    let one = hints(&returned).unwrap();
    let again = producer.exchange("GET /setuid?bidder=alpha&uid=1&f=i&p=1", &one);
    assert!(header(&again, "set-cookie").is_empty());
    let both = hints(&producer.exchange("GET /?d=18&b=x", &one)).unwrap();
    let plan = answer(&ask(&producer, &both, r#"{"debug": true}"#));
    assert_eq!(plan["status"], "ok");
    assert_eq!(plan["bidder_status"], json!([]));
    for entry in plan["debug"].as_array().unwrap() {
        assert_eq!(entry["error"], "Already in sync");
    }
    let other = both.replace("uid=u", "uid=v");
    let plan = answer(&ask(&producer, &other, "{}"));
    assert_eq!(plan["bidder_status"].as_array().unwrap().len(), 2);
}

#[test]
fn hint_follows_only_recorded_matches_of_dsps_with_syncs() {
    let producer = producer(UidMode::Require);
    let answer = producer.exchange("GET /?d=17&b=x", USER);
    let head = answer.head();
    assert!(
        head.starts_with(
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncache-control: no-store\r\nset-cookie: sy="
        ),
        "{head}"
    );
    assert!(answer.body().is_empty());
    for refused in [
        producer.exchange("GET /?d=19&b=x", USER),
        producer.exchange("GET /?d=17&b=", USER),
        producer.exchange("GET /?d=17&b=x", ""),
        producer.exchange("GET /?d=17&b=x", &format!("{USER}sec-gpc: 1\r\n")),
    ] {
        assert!(header(&refused, "set-cookie").is_empty());
    }
    let contracts = CONTRACTS.replace("[privacy]", "[privacy]\nmode = 'observe'");
    let observing = Producer::new(Some(&contracts), true, UidMode::Require);
    let recorded = observing.exchange("GET /?d=17&b=x", &format!("{USER}sec-gpc: 1\r\n"));
    assert_eq!(recorded.recorded, ["u 17 x"]);
    assert!(header(&recorded, "set-cookie").is_empty());
    for (answer, status) in [("gif", "200 OK"), ("none", "204 No Content")] {
        let contracts = CONTRACTS.replace(
            "vendor = 2\n[dsp.17.sync]",
            &format!("answer = '{answer}'\n[dsp.17.sync]"),
        );
        let producer = Producer::new(Some(&contracts), true, UidMode::MintPartitioned);
        let accepted = producer.exchange("GET /?d=17&b=x", USER);
        assert_eq!(accepted.status(), status);
        let cookies = header(&accepted, "set-cookie");
        assert!(cookies[0].starts_with("sy=") && cookies[0].ends_with("; Partitioned"));
    }
}

#[test]
fn opting_out_removes_the_hints() {
    let producer = producer(UidMode::Require);
    let opted_out = producer.exchange(
        "POST /optout?choice=out",
        &format!("{USER}sec-fetch-site: same-origin\r\ncontent-length: 0\r\n"),
    );
    let cookies = header(&opted_out, "set-cookie");
    assert!(
        cookies.iter().any(|it| it.starts_with("sy=; Max-Age=0; ")),
        "{cookies:?}"
    );
}

#[test]
fn invalid_hints_count_as_none() {
    let producer = producer(UidMode::Require);
    for forged in ["", "x", "AQ", "====", &"A".repeat(4_000), "\u{fc}", "AgAA"] {
        let asked = ask(&producer, &format!("cookie: uid=u; sy={forged}\r\n"), "{}");
        let plan = answer(&asked);
        assert_eq!(
            plan["bidder_status"].as_array().unwrap().len(),
            2,
            "{forged}"
        );
    }
}

#[test]
fn page_permits_its_own_script_only_and_sets_no_cookie() {
    let producer = producer(UidMode::Mint);
    let page = producer.exchange("GET /sync.html?limit=3", "");
    assert_eq!(page.status(), "200 OK");
    assert_eq!(header(&page, "cache-control"), ["public, max-age=3600"]);
    assert!(header(&page, "set-cookie").is_empty());
    let policy = header(&page, "content-security-policy");
    for part in [
        "default-src 'none'; script-src 'sha256-",
        "frame-ancestors https:",
    ] {
        assert!(policy[0].contains(part), "{policy:?}");
    }
    let head = producer.exchange("HEAD /sync.html", "");
    assert_eq!(
        header(&head, "content-length"),
        header(&page, "content-length")
    );
    assert!(head.body().is_empty());
    assert_eq!(
        producer.exchange("POST /sync.html", "").status(),
        "405 Method Not Allowed"
    );
}
