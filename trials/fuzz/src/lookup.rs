//! Fuzz target of the consumer's admin port: paths of requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use consumer::{
    deletions::Deletions,
    lookup::{Lookups, user},
    producers::Producers,
    store::{Lookup, LookupQuery, LookupResult, Page, PageQuery, StoreError, UserMatches},
    ttl::Ttls,
};
use futures_util::FutureExt;
use http::StatusCode;
use http_body_util::BodyExt;
use proto::units::DspId;

/// A store without cookies.
#[derive(Debug)]
struct EmptyStore;

#[async_trait]
impl Lookup for EmptyStore {
    fn in_memory(&self, _: &str) -> Option<UserMatches> {
        Some([].into_iter().collect())
    }

    async fn lookup(&self, _: LookupQuery) -> Result<LookupResult, StoreError> {
        unreachable!("every user is in memory")
    }

    async fn stored_cookies(&self) -> Result<BTreeMap<DspId, u64>, StoreError> {
        Ok(BTreeMap::new())
    }

    fn dsps(&self) -> BTreeSet<DspId> {
        BTreeSet::new()
    }

    fn ttls(&self) -> &Ttls {
        static TTLS: LazyLock<Ttls> = LazyLock::new(|| Ttls::new(Duration::MAX, [].into()));
        &TTLS
    }

    async fn page(&self, _: &PageQuery, _: &Deletions) -> Result<Page, StoreError> {
        Ok(Page::default())
    }
}

/// Requests a path. A user path must get a JSON response, because the user is invalid or unknown. Other paths must get no
/// response.
///
/// # Panics
/// If the property does not hold.
pub fn lookup(bytes: &[u8]) {
    let Ok(path) = std::str::from_utf8(bytes) else {
        return;
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let lookups = Lookups {
        store: Arc::new(EmptyStore),
        deletions: Deletions::default(),
        producers: Producers::default(),
    };
    lookups.producers.load(Vec::new());
    let answer = user::page(&lookups, path, query).now_or_never();
    let answer = answer.expect("no store delays the response");
    let is_user_path = path.starts_with("/v1/users/");
    let Some(answer) = answer else {
        return assert!(!is_user_path);
    };
    assert!(is_user_path);
    let status = answer.status();
    let body = answer.into_body().collect().now_or_never();
    let body = body
        .expect("the body is complete")
        .expect("it is in memory");
    let body = body.to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).expect("the body is JSON");
    match status {
        StatusCode::NOT_FOUND => {
            let user_id = body["user_id"].as_str().expect("user_id is a string");
            assert!((1..=64).contains(&user_id.len()));
            assert!(user_id.bytes().all(|byte| byte.is_ascii_graphic()));
        }
        StatusCode::BAD_REQUEST => assert!(body["error"].is_string()),
        other => panic!("{other}"),
    }
}
