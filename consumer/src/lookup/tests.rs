//! Tests of lookups with an embedded store.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use http_body_util::BodyExt;
use prost::Message as _;
use proto::{v1::LookupResponse, wire::Scope};
use runtime::metrics::Registry;
use serde_json::Value;
use tokio::sync::watch;

use super::{
    answer::{EncodedUsers, JsonUsers},
    port::LookupPort,
    request::BatchRequest,
    why::Why,
    *,
};
use crate::{
    batch::tests::{batch, chunk},
    clock,
    deletions::Deletion,
    store::{Cookies as _, Page, PageQuery, StoreError, embedded::EmbeddedStore},
    ttl::Ttls,
};

/// Lookups in a store whose deletions are loaded.
pub(crate) fn lookups(store: impl Lookup, deletions: Deletions) -> Lookups {
    let producers = Producers::default();
    producers.load(Vec::new());
    Lookups {
        store: Arc::new(store),
        deletions,
        producers,
    }
}

/// The buyer uids of a user.
pub(crate) async fn buyer_uids(lookups: &Lookups, user_id: &str) -> BTreeMap<DspId, String> {
    let page = user::page(lookups, &format!("/v1/users/{user_id}"), "").await;
    let body = page.unwrap().into_body().collect().await.unwrap();
    let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap();
    let uids = body["buyer_uids"].as_object().into_iter().flatten();
    uids.map(|(dsp, uid)| (dsp.parse().unwrap(), uid.as_str().unwrap().to_owned()))
        .collect()
}

async fn open(dir: &tempfile::TempDir) -> EmbeddedStore {
    let ttls = Ttls::new(Duration::from_secs(60), BTreeMap::new());
    let store = EmbeddedStore::open(dir.path().to_path_buf(), ttls, 1 << 20);
    store.await.unwrap()
}

#[tokio::test]
async fn lookup_fails_until_the_deletions_are_loaded() {
    let dir = tempfile::TempDir::new().unwrap();
    let store = open(&dir).await;
    let now = clock::now().0;
    // The job of the DSP has not removed the cookie yet.
    let (cookie, deletion) = ([("u", 1, "b")], [("", 1, "")]);
    let batch = batch(&[chunk(1, now, &cookie), chunk(2, now, &deletion)]);
    store.write(Arc::new(batch)).await.unwrap();
    let deletions = Deletions::default();
    store.load(&deletions).await.unwrap();
    let loaded = lookups(store, deletions);
    let loading = Lookups {
        producers: Producers::default(),
        ..loaded.clone()
    };
    for (lookups, expected) in [(loading, 503), (loaded, 404)] {
        let page = user::page(&lookups, "/v1/users/u", "").await;
        assert_eq!(page.unwrap().status(), expected);
    }
}

#[tokio::test]
async fn buyer_uids_are_ordered_by_dsp_and_errors_are_json() {
    let dir = tempfile::TempDir::new().unwrap();
    let store = open(&dir).await;
    let cookies = [("u/1", 100, "b\"ü"), ("u/1", 9, "nine")];
    let batch = Arc::new(batch(&[chunk(1, clock::now().0, &cookies)]));
    store.write(batch).await.unwrap();
    let lookups = lookups(store, Deletions::default());
    let long = format!("/v1/users/{}", "u".repeat(65));
    for (path, status, body) in [
        (
            "/v1/users/u%2F1",
            200,
            r#"{"user_id":"u/1","buyer_uids":{"9":"nine","100":"b\"ü"}}"#,
        ),
        (
            "/v1/users/unknown",
            404,
            r#"{"error":"unknown user","user_id":"unknown"}"#,
        ),
        ("/v1/users/", 400, r#"{"error":"invalid user id"#),
        ("/v1/users/a%00b", 400, r#"{"error":"invalid user id"#),
        ("/v1/users/%ff", 400, r#"{"error":"invalid user id"#),
        (&long, 400, r#"{"error":"invalid user id"#),
    ] {
        let reply = user::page(&lookups, path, "").await.unwrap();
        assert_eq!(reply.status(), status, "{path}");
        let content = reply.into_body().collect().await.unwrap().to_bytes();
        assert!(content.starts_with(body.as_bytes()), "{path}: {content:?}");
    }
    let elsewhere = user::page(&lookups, "/v1/elsewhere", "").await;
    assert!(elsewhere.is_none());
}

/// A store with one match per entry: user, DSP, acceptance and buyer uid.
#[derive(Debug)]
struct FakeStore {
    matches: Vec<(&'static str, u32, u64, &'static str)>,
    unavailable: Vec<DspId>,
    /// Whether lookups wait for their deadline.
    hangs: bool,
    ttls: Ttls,
}

/// The time of the fake store, in which cookies live for 60 s.
const NOW: UnixMicros = UnixMicros(1_700_000_000_000_000);

impl FakeStore {
    fn new(matches: &[(&'static str, u32, u64, &'static str)]) -> Self {
        Self {
            matches: matches.to_vec(),
            unavailable: Vec::new(),
            hangs: false,
            ttls: Ttls::new(Duration::from_secs(60), BTreeMap::new()),
        }
    }
}

#[async_trait]
impl Lookup for FakeStore {
    fn in_memory(&self, user_id: &str) -> Option<UserMatches> {
        user_id
            .starts_with("memory")
            .then(|| [].into_iter().collect())
    }

    async fn lookup(&self, query: LookupQuery) -> Result<LookupResult, StoreError> {
        if self.hangs {
            tokio::time::sleep_until(query.deadline).await;
        }
        let of_user = |user_id: &str| {
            let of_user = self.matches.iter().filter(|it| it.0 == user_id);
            of_user
                .map(|(_, dsp_id, accepted, buyer_uid)| StoredMatch {
                    dsp_id: DspId(*dsp_id),
                    accepted: UnixMicros(*accepted),
                    buyer_uid: buyer_uid.as_bytes(),
                })
                .collect()
        };
        let users = query.user_ids.iter();
        Ok(LookupResult {
            users: users.map(|it| (!self.hangs).then(|| of_user(it))).collect(),
            unavailable: self.unavailable.clone(),
            why: self.unavailable.first().map(|_| "it fails".to_owned()),
        })
    }

    async fn page(&self, _: &PageQuery, _: &Deletions) -> Result<Page, StoreError> {
        Ok(Page::default())
    }

    async fn stored_cookies(&self) -> Result<BTreeMap<DspId, u64>, StoreError> {
        Ok(BTreeMap::new())
    }

    fn dsps(&self) -> BTreeSet<DspId> {
        self.matches.iter().map(|it| DspId(it.1)).collect()
    }

    fn ttls(&self) -> &Ttls {
        &self.ttls
    }

    fn now(&self) -> UnixMicros {
        NOW
    }
}

fn port(store: FakeStore) -> LookupPort {
    let metrics = metrics::Metrics::register(&Registry::new(), &BTreeSet::new()).unwrap();
    let lookups = lookups(store, Deletions::default());
    LookupPort::new(lookups, metrics, None, None, true)
}

fn request(users: &[&'static str], dsps: &[u32]) -> BatchRequest<'static> {
    let users: Vec<_> = users.iter().map(|user| (*user).into()).collect();
    BatchRequest::new(users.into_iter(), dsps, Duration::from_millis(1)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn request_beyond_the_limit_of_waiting_ones_is_rejected_at_once() {
    let port = port(FakeStore {
        hangs: true,
        ..FakeStore::new(&[])
    });
    let (slow, quick) = (request(&["a"], &[1]), request(&["memory"], &[1]));
    let waiting: Vec<_> = (0..64).map(|_| port.begin().unwrap()).collect();
    let read = async |request| port.read(request, Instant::now(), None).await.map(drop);
    assert_eq!(read(&slow).await, Err(Rejection::Busy));
    assert_eq!(read(&quick).await, Ok(()), "it does not wait");
    drop(waiting);
    let why = "no response by the deadline".to_owned();
    assert_eq!(read(&slow).await, Err(Rejection::Unavailable(why)));
}

#[tokio::test]
async fn large_answers_in_progress_are_limited() {
    let port = port(FakeStore::new(&[]));
    let charged: Vec<_> = (0..).map_while(|_| port.charge(5 << 20).ok()).collect();
    assert_eq!(charged.len(), 64 / 5);
    assert_eq!(port.charge(5 << 20).unwrap_err(), Rejection::Busy);
    drop(charged);
    assert!(port.charge(64 << 20).is_ok());
}

#[tokio::test]
async fn degraded_answer_names_what_was_not_read() {
    let at = NOW.0 - 1;
    let port = port(FakeStore {
        unavailable: vec![DspId(2)],
        ..FakeStore::new(&[
            ("a", 1, at, "x"),
            ("a", 3, at, "not asked"),
            ("b", 1, NOW.0 - 61_000_000, "old"),
        ])
    });
    let request = request(&["a", "b", "in valid", "a"], &[2, 1]);
    let result = port.read(&request, Instant::now(), None).await.unwrap();
    assert!(!result.is_complete(&request));
    let mut json = Vec::new();
    port.write(&request, &result, &mut JsonUsers::new(&mut json))
        .await;
    let expected = r#"{"1":"x"},{},{"error":"invalid"},{"1":"x"}"#;
    assert_eq!(String::from_utf8(json).unwrap(), expected);
    let mut encoded = EncodedUsers::default();
    port.write(&request, &result, &mut encoded).await;
    let message = LookupResponse::decode(&*encoded.output).unwrap();
    assert_eq!(message.encode_to_vec(), encoded.output);
    assert_eq!(message.users[0].matches[0].accepted_unix_micros, at);
    let statuses: Vec<_> = message.users.iter().map(|it| it.status).collect();
    assert_eq!(statuses, [0, 0, 1, 0]);
}

#[test]
fn requests_beyond_the_limits_are_rejected_without_their_content() {
    let parse = |body: &str| BatchRequest::parse(body.as_bytes()).map(drop);
    let is_invalid = |body: &str| match parse(body) {
        Err(Rejection::Invalid(why)) => !why.contains("secret"),
        _ => false,
    };
    for body in [
        "",
        "null",
        "secret",
        r#"{"users":["secret"]}"#,
        r#"{"users":"secret","dsps":[1]}"#,
        r#"{"users":["secret"],"dsps":["secret"]}"#,
        r#"{"users":["secret"],"dsps":[]}"#,
        r#"{"users":[],"dsps":[1]}"#,
        r#"{"users":["secret"],"dsps":[0]}"#,
        r#"{"users":["secret"],"dsps":[-1]}"#,
        r#"{"users":["secret"],"dsps":[4294967296]}"#,
        r#"{"users":["secret"],"dsps":[1],"secret":1}"#,
        r#"{"users":["secret"],"dsps":[1],"deadline_ms":0}"#,
        r#"{"users":["secret"],"dsps":[1],"deadline_ms":1001}"#,
    ] {
        assert!(is_invalid(body), "{body}: {:?}", parse(body));
    }
    let sized = |users: usize, dsps: usize| {
        let users = vec!["\"u\""; users].join(",");
        let dsps = vec!["1"; dsps].join(",");
        parse(&format!("{{\"users\":[{users}],\"dsps\":[{dsps}]}}"))
    };
    for (users, dsps) in [(1_001, 1), (1, 257), (1_000, 21)] {
        assert!(matches!(sized(users, dsps), Err(Rejection::TooLarge(_))));
    }
    assert_eq!(sized(1_000, 20), Ok(()));
    assert_eq!(sized(78, 256), Ok(()));
    let escaped = r#"{"users":["a\"b","\u0061"],"dsps":[2,1,2]}"#;
    let parsed = BatchRequest::parse(escaped.as_bytes()).unwrap();
    let users: Vec<_> = parsed.users.iter().map(AskedUser::valid).collect();
    assert_eq!(users, [Some("a\"b"), Some("a")]);
    assert_eq!(*parsed.dsps, [DspId(1), DspId(2)]);
}

#[tokio::test]
async fn why_states_each_reason() {
    let (recent, old) = (NOW.0 - 1_000_000, NOW.0 - 61_000_000);
    let store = FakeStore {
        unavailable: vec![DspId(9)],
        ..FakeStore::new(&[
            ("a", 1, recent, "x"),
            ("a", 2, old, "x"),
            ("a", 3, recent, "x"),
            ("b", 1, recent, "x"),
        ])
    };
    let deletions = Deletions::default();
    for scope in [
        Scope::Match("a", DspId(3)),
        Scope::User("b"),
        Scope::Dsp(DspId(4)),
    ] {
        let scope = scope.map(|user: &str| user.as_bytes().into());
        deletions.add(&Deletion { scope, until: NOW });
    }
    let registry = Registry::new();
    let metrics = crate::metrics::Metrics::register(&registry).unwrap();
    let why = Why {
        lookups: lookups(store, deletions),
        listed: [DspId(1), DspId(5)].into(),
        rejected: watch::channel([DspId(6)].into()).1,
        lost: metrics.subscription.lost,
        uncertain_loss: metrics.subscription.uncertain_loss_cookies,
        slots: [metrics.sink.dsp_slots, metrics.sink.dsp_slots_max],
    };
    let ask = async |user: &str, query: &str| {
        let page = why
            .page(&format!("/v1/users/{user}/why"), query)
            .await
            .unwrap();
        let status = page.status().as_u16();
        let body = page.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    for (user, dsp, reason, field, value) in [
        ("a", 1, "found", "expires_at", "2023-11-14T22:14:19.000Z"),
        ("a", 2, "expired", "accepted_at", "2023-11-14T22:12:19.000Z"),
        ("a", 3, "deleted", "scope", "match"),
        ("b", 1, "deleted", "scope", "user"),
        ("c", 4, "deleted", "until", "2023-11-14T22:13:20.000Z"),
        ("a", 6, "dsp_rejected", "reason", "dsp_rejected"),
        ("a", 7, "dsp_unknown", "reason", "dsp_unknown"),
        ("a", 9, "unavailable", "cause", "it fails"),
        ("c", 5, "not_stored", "reason", "not_stored"),
    ] {
        let (status, body) = ask(user, &format!("dsp={dsp}")).await;
        assert_eq!((status, &body["reason"]), (200, &reason.into()), "{body}");
        assert_eq!(body[field], value, "{body}");
        assert!(!body.to_string().contains("\"x\""), "no buyer uid");
    }
    let (_, body) = ask("c", "dsp=5").await;
    assert_eq!(body["causes"].as_array().map(Vec::len), Some(7));
    assert_eq!(body["producers_known"], 0);
    for query in ["", "dsp=", "dsp=0", "dsp=1,2", "dsp=1&dsp=2", "d=1"] {
        assert_eq!(ask("a", query).await.0, 400, "{query}");
    }
    assert_eq!(ask("a%00", "dsp=1").await.0, 400);
    assert!(why.page("/v1/users/a", "dsp=1").await.is_none());
}
