//! `GET /v1/users/<user id>`: the stored buyer uids of a user, as JSON.
//!
//! If some DSPs cannot be read, the response contains the results of the other DSPs, and names the failed DSPs. If DSPs
//! failed and there are no results, the response is a 503, because the user may exist. Until the deletions are loaded,
//! every response is a 503, because the store may still have deleted cookies.

use http::StatusCode;
use percent_encoding::percent_decode_str;
use proto::{ids::is_user_id, limits::USER_ID_BYTES_MAX, units::DspId};
use runtime::reply::{Reply, json as reply};
use serde::Serialize;
use serde_json::json as object;

use crate::deletions::Deletions;
use crate::store::{BuyerUids, Lookup, LookupResult};

const PREFIX: &str = "/v1/users/";

#[derive(Serialize)]
struct User<'a> {
    user_id: &'a str,
    buyer_uids: BuyerUids,
    /// DSPs that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unavailable: Vec<DspId>,
}

/// The response to a path of the admin port; `None` if the path is not of a user. `deletions` is `None`
/// until they are loaded.
pub async fn page(lookup: &dyn Lookup, deletions: Option<&Deletions>, path: &str) -> Option<Reply> {
    let encoded = path.strip_prefix(PREFIX)?;
    let decoded = percent_decode_str(encoded).decode_utf8();
    let user_id = match decoded {
        Ok(user_id) if is_user_id(user_id.as_bytes()) => user_id,
        _ => {
            let why = format!(
                "invalid user id; expected 1 to {USER_ID_BYTES_MAX} bytes of printable ASCII without spaces"
            );
            return Some(reply(StatusCode::BAD_REQUEST, &object!({ "error": why })));
        }
    };
    let Some(deletions) = deletions else {
        return Some(unreadable("deletions are not loaded yet"));
    };
    Some(match lookup.lookup(&user_id, deletions).await {
        Ok(found) if !found.buyer_uids.is_empty() => {
            let user = User {
                user_id: &user_id,
                buyer_uids: found.buyer_uids,
                unavailable: found.unavailable,
            };
            reply(StatusCode::OK, &user)
        }
        Ok(LookupResult { why: Some(why), .. }) => unreadable(&why),
        Ok(_) => reply(
            StatusCode::NOT_FOUND,
            &object!({ "error": "unknown user", "user_id": user_id }),
        ),
        Err(error) => unreadable(&error.to_string()),
    })
}

fn unreadable(why: &str) -> Reply {
    let error = format!("cannot read the store: {why}");
    reply(
        StatusCode::SERVICE_UNAVAILABLE,
        &object!({ "error": error }),
    )
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc, time::Duration};

    use http_body_util::BodyExt;

    use super::*;
    use crate::{
        batch::tests::{batch, chunk},
        clock,
        store::{Cookies as _, embedded::EmbeddedStore},
        ttl::Ttls,
    };

    async fn open(dir: &tempfile::TempDir) -> EmbeddedStore {
        let ttls = Ttls::new(Duration::from_secs(60), BTreeMap::new());
        let store = EmbeddedStore::open(dir.path().to_path_buf(), ttls);
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
        let status = async |deletions| {
            let page = page(&store, deletions, "/v1/users/u").await;
            page.unwrap().status()
        };
        assert_eq!(status(None).await, 503);
        store.load(&deletions).await.unwrap();
        assert_eq!(status(Some(&deletions)).await, 404);
    }

    #[tokio::test]
    async fn buyer_uids_are_ordered_by_dsp_and_errors_are_json() {
        let dir = tempfile::TempDir::new().unwrap();
        let store = open(&dir).await;
        let cookies = [("u/1", 100, "b\"ü"), ("u/1", 9, "nine")];
        let batch = Arc::new(batch(&[chunk(1, clock::now().0, &cookies)]));
        store.write(batch).await.unwrap();
        let deletions = Deletions::default();
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
            let reply = page(&store, Some(&deletions), path).await.unwrap();
            assert_eq!(reply.status(), status, "{path}");
            let content = reply.into_body().collect().await.unwrap().to_bytes();
            assert!(content.starts_with(body.as_bytes()), "{path}: {content:?}");
        }
        let elsewhere = page(&store, Some(&deletions), "/v1/elsewhere").await;
        assert!(elsewhere.is_none());
    }
}
