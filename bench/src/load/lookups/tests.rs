//! Tests of requests, and of correct and wrong responses.

use super::*;

/// A stored user with two DSPs.
fn lookups(scheme: &str, batch: usize, hit_share: f64) -> Lookups {
    let mix = LookupMix {
        seed: 3,
        users: NonZeroU64::MIN,
        dsps: 2,
        batch: batch.try_into().unwrap(),
        hit_share,
        deadline_ms: 7,
    };
    let url = format!("{scheme}://h:1").parse().unwrap();
    Lookups::new(&url, Some("t"), &mix, None).unwrap()
}

fn request(lookups: &mut Lookups) -> String {
    let mut request = Vec::new();
    lookups.put(&mut request, 0, 0);
    String::from_utf8(request).unwrap()
}

fn values(lookups: &Lookups) -> [String; 3] {
    let user = lookups.traffic.user_id(lookups.users[0]);
    let uids = [1, 2].map(|dsp_id| lookups.traffic.lasting(0, dsp_id));
    let [one, two] = uids.map(|cookie| cookie.buyer_uid().to_owned());
    [String::from_utf8(user.to_vec()).unwrap(), one, two]
}

/// Checks the status and hits of a response, and that each part of it is incomplete.
#[track_caller]
fn check(lookups: &mut Lookups, response: &str, expected: (u16, u64)) {
    let mut parse = |bytes| lookups.parse(bytes).unwrap();
    let parsed = parse(response.as_bytes()).unwrap();
    assert_eq!((parsed.status, parsed.hits), expected, "{response}");
    assert_eq!(parsed.bytes, response.len());
    for end in 0..response.len() {
        let part = parse(&response.as_bytes()[..end]);
        assert!(part.is_none() || part.unwrap().closes, "{end}: {response}");
    }
}

fn answer(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[test]
fn user_is_looked_up_over_http() {
    let mut lookups = lookups("http", 1, 1.0);
    let request = request(&mut lookups);
    let [user, one, two] = values(&lookups);
    let head = "HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer t\r\n\r\n";
    assert_eq!(request, format!("GET /v1/users/{user}?dsps=1,2 {head}"));
    let uids = format!(r#""buyer_uids":{{"1":"{one}","2":"{two}"}}"#);
    let found = format!(r#"{{"user_id":"{user}",{uids}}}"#);
    check(&mut lookups, &answer(200, &found), (200, 1));
    check(&mut lookups, &answer(200, &format!("{found}\n")), (200, 1));
    check(
        &mut lookups,
        &answer(200, &found.replace(&two, &one)),
        (WRONG, 0),
    );
    check(&mut lookups, &answer(200, "?"), (WRONG, 0));
    check(&mut lookups, &answer(404, ""), (WRONG, 0));
    check(&mut lookups, &answer(503, ""), (503, 0));
    let part = format!(r#"{{"user_id":"{user}","buyer_uids":{{}},"unavailable":[1]}}"#);
    check(&mut lookups, &answer(200, &part), (INCOMPLETE, 0));
}

#[test]
fn unknown_user_must_not_be_found() {
    let mut lookups = lookups("http", 1, 0.0);
    request(&mut lookups);
    check(&mut lookups, &answer(404, "{}"), (200, 0));
    check(&mut lookups, &answer(200, "{}"), (WRONG, 0));
    check(&mut lookups, &answer(200, ""), (WRONG, 0));
}

#[test]
fn users_are_looked_up_over_http() {
    let mut lookups = lookups("http", 2, 1.0);
    let request = request(&mut lookups);
    let [user, one, two] = values(&lookups);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/lookup HTTP/1.1\r\n"), "{head}");
    let length = format!("Content-Length: {}", body.len());
    assert!(head.ends_with(&length), "{head}");
    let expected = json!({ "users": [user, user], "dsps": [1, 2], "deadline_ms": 7 });
    assert_eq!(serde_json::from_str::<Value>(body).unwrap(), expected);
    let uids = format!(r#"{{"1":"{one}","2":"{two}"}}"#);
    let found = format!(r#"{{"complete":true,"users":[{uids},{uids}],"unavailable":[]}}"#);
    check(&mut lookups, &answer(200, &found), (200, 2));
    check(
        &mut lookups,
        &answer(200, &found.replace(&uids, "{}")),
        (WRONG, 0),
    );
    check(
        &mut lookups,
        &answer(200, &found.replace("true", "false")),
        (INCOMPLETE, 0),
    );
    check(&mut lookups, &answer(404, ""), (404, 0));
}

#[test]
fn users_are_looked_up_in_redis() {
    let mut known = lookups("redis", 1, 1.0);
    let request_text = request(&mut known);
    let [user, one, two] = values(&known);
    assert_eq!(
        request_text,
        format!("*2\r\n$7\r\nHGETALL\r\n$20\r\n{user}\r\n")
    );
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let uids = ["1", &one, "2", &two].map(bulk);
    check(&mut known, &format!("*4\r\n{}", uids.concat()), (200, 1));
    check(&mut known, "*0\r\n", (WRONG, 0));
    check(&mut known, "-LOADING\r\n", (SERVER_ERROR, 0));
    let mut unknown = lookups("redis", 1, 0.0);
    request(&mut unknown);
    check(&mut unknown, "*0\r\n", (200, 0));
}
