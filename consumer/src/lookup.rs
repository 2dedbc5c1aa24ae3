//! `GET /v1/users/<user id>`: what the store knows of a user, as JSON.
//!
//! Where some DSPs cannot be asked, the others' answer is given and these are named; where nobody knows the user and some
//! cannot be asked, it is not known whether the user is.

use http::StatusCode;
use percent_encoding::percent_decode_str;
use proto::{ids::is_user_id, limits::USER_ID_BYTES_MAX};
use runtime::reply::{Reply, json};
use serde::Serialize;
use serde_json::json as object;

use crate::store::{BuyerUids, LookupResult, Store};

const PREFIX: &str = "/v1/users/";

#[derive(Serialize)]
struct User<'a> {
    user_id: &'a str,
    buyer_uids: BuyerUids,
    /// DSPs that may know the user and could not be asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unavailable: Vec<u32>,
}

/// Answers a path of the admin port; `None` when it is none of a user.
pub async fn page(store: &dyn Store, path: &str) -> Option<Reply> {
    let encoded = path.strip_prefix(PREFIX)?;
    let decoded = percent_decode_str(encoded).decode_utf8();
    let user_id = match decoded {
        Ok(user_id) if is_user_id(user_id.as_bytes()) => user_id,
        _ => {
            let why = format!(
                "a user id has 1 to {USER_ID_BYTES_MAX} bytes of printable ASCII without spaces"
            );
            return Some(reply(StatusCode::BAD_REQUEST, &object!({ "error": why })));
        }
    };
    Some(match store.lookup(&user_id).await {
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
    let error = format!("the store cannot be read: {why}");
    reply(
        StatusCode::SERVICE_UNAVAILABLE,
        &object!({ "error": error }),
    )
}

fn reply(status: StatusCode, body: &impl Serialize) -> Reply {
    let mut body = serde_json::to_vec(body).expect("maps of strings are JSON");
    body.push(b'\n');
    json(status, body)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc, time::Duration};

    use http_body_util::BodyExt;
    use runtime::unix_micros;

    use super::*;
    use crate::{
        batch::tests::{batch, chunk},
        store::embedded::EmbeddedStore,
        ttl::Ttls,
    };

    #[tokio::test]
    async fn user_is_found_in_order_of_dsps_and_others_are_answered_in_json() {
        let dir = tempfile::TempDir::new().unwrap();
        let ttls = Ttls::new(Duration::from_secs(60), BTreeMap::new());
        let store = EmbeddedStore::open(dir.path().to_path_buf(), ttls);
        let store = store.await.unwrap();
        let cookies = [("u/1", 100, "b\"ü"), ("u/1", 9, "nine")];
        let batch = Arc::new(batch(&[chunk(1, unix_micros(), &cookies)]));
        store.write(batch).await.unwrap();
        let long = format!("/v1/users/{}", "u".repeat(65));
        for (path, status, body) in [
            (
                "/v1/users/u%2F1",
                200,
                r#"{"user_id":"u/1","buyer_uids":{"9":"nine","100":"b\"ü"}}"#,
            ),
            (
                "/v1/users/nobody",
                404,
                r#"{"error":"unknown user","user_id":"nobody"}"#,
            ),
            ("/v1/users/", 400, r#"{"error":"a user id has"#),
            ("/v1/users/a%00b", 400, r#"{"error":"a user id has"#),
            ("/v1/users/%ff", 400, r#"{"error":"a user id has"#),
            (&long, 400, r#"{"error":"a user id has"#),
        ] {
            let reply = page(&store, path).await.unwrap();
            assert_eq!(reply.status(), status, "{path}");
            let answered = reply.into_body().collect().await.unwrap().to_bytes();
            assert!(
                answered.starts_with(body.as_bytes()),
                "{path}: {answered:?}"
            );
        }
        assert!(page(&store, "/v1/elsewhere").await.is_none());
    }
}
