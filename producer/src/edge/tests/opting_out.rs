//! Tests of opt-outs: the page, and syncs of browsers that opted out.

use super::*;
use crate::edge::{
    browser_cookies::{AGE_MAX, BrowserCookies},
    opt_out,
};

#[test]
fn browser_that_opted_out_is_not_redirected() {
    let cookies = "cookie: uid=u/1; cookiesync_optout=1\r\n";
    let opted_out = exchange_with(REDIRECT, "GET /?d=17&b=x", cookies);
    opted_out.check("204 No Content", &[], &["17 opted_out"]);
}

#[test]
fn opt_out_cookie_of_another_page_counts_without_a_page_here() {
    let mut producer = Producer::new(None, false, UidMode::Require);
    let other = vec!["optout=1".to_owned()];
    producer.edge.cookies = BrowserCookies::new("uid", AGE_MAX, None, other).unwrap();
    let sync = |cookies: &str| producer.exchange("GET /?d=17&b=x", cookies);
    let opted_out = sync("cookie: uid=u/1; optout=1\r\n");
    opted_out.check("200 OK", &[], &["17 opted_out"]);
    assert_eq!(sync("cookie: uid=u/1\r\n").recorded, ["u/1 17 x"]);
}

#[test]
fn opt_out_page_states_the_cause_of_a_refusal_and_marks_cookies_of_frames() {
    let mut producer = Producer::new(None, true, UidMode::Require);
    producer.edge.cookies = BrowserCookies::new(
        "ex",
        AGE_MAX,
        Some("a.example".to_owned()),
        vec!["optout=1".to_owned()],
    )
    .unwrap();
    let post =
        |query: &str, headers: &str| producer.exchange(&format!("POST /optout?{query}"), headers);
    let same = "sec-fetch-site: same-origin\r\n";
    let opted_out = post(
        "choice=out",
        &format!("{same}cookie: ex=u; uid=no; ex=v; ex=u\r\n"),
    );
    assert_eq!(opted_out.status(), "303 See Other");
    assert_eq!(opted_out.recorded, ["User(\"u\")", "User(\"v\")"]);
    assert_eq!(opted_out.head().matches("\r\nset-cookie: ").count(), 1);
    let in_frame = post("choice=out", &format!("{same}sec-fetch-dest: iframe\r\n"));
    assert!(
        in_frame
            .head()
            .contains("SameSite=None; Domain=a.example; Partitioned")
    );
    assert_eq!(in_frame.head().matches("\r\nset-cookie: ").count(), 2);
    let in_document = post("choice=in", &format!("{same}sec-fetch-dest: document\r\n"));
    assert!(!in_document.head().contains("Partitioned"));
    for (query, headers, cause) in [
        (
            "choice=out",
            "sec-fetch-site: none\r\n",
            "header Sec-Fetch-Site is not same-origin",
        ),
        (
            "choice=out",
            "host: a\r\norigin: https://<b>\r\n",
            "header Origin is missing, or names neither",
        ),
        (
            "choice=<b>",
            same,
            "the query is neither choice=out nor choice=in",
        ),
    ] {
        let refused = post(query, headers);
        assert_eq!(refused.status(), "403 Forbidden");
        let body = str::from_utf8(refused.body()).unwrap();
        assert!(body.starts_with(cause) && !body.contains('<'), "{body}");
    }
    let page = |cookies: &str| {
        let headers = format!("cookie: {cookies}\r\n");
        let page = producer.exchange("GET /optout", &headers);
        assert!(page.head().contains("frame-ancestors 'none'"));
        String::from_utf8(page.body().to_vec()).unwrap()
    };
    assert!(page("ex=u").contains("choice=out"));
    assert!(page("cookiesync_optout=1").contains("choice=in"));
    let elsewhere = page("optout=1; cookiesync_optout=1");
    assert!(elsewhere.contains("on another page") && !elsewhere.contains("choice=in"));
    let sync = |cookies: &str| {
        let sync = producer.exchange("GET /?d=17&b=x", &format!("cookie: {cookies}\r\n"));
        sync.recorded.last().cloned().unwrap()
    };
    assert_eq!(sync("ex=w"), "w 17 x");
    // Not recorded.
    assert_eq!(sync("ex=y; optout=1"), "w 17 x");
}

#[test]
fn listed_pages_may_show_the_opt_out_page_in_a_frame() {
    let mut producer = Producer::new(None, false, UidMode::Require);
    let config = opt_out::Config {
        frame_origins: vec![
            "https://a.example".to_owned(),
            "https://b.example".to_owned(),
        ],
        ..opt_out::Config::default()
    };
    producer.edge.opt_out = Some(opt_out::OptOut::new(config));
    let page = producer.exchange("GET /optout", "");
    let ancestors = "; frame-ancestors 'self' https://a.example https://b.example";
    assert!(page.head().contains(ancestors) && !page.head().contains("x-frame-options"));
}
