//! `GET /v1/users/<user id>`: the buyer uids of one user, as JSON, at all DSPs or at those of the query.
//!
//! If some DSPs cannot be read, the response contains the results of the other DSPs, and names the failed DSPs. If DSPs
//! failed and there are no results, the response is a 503, because the user may exist. Until the deletions are loaded,
//! every response is a 503, because the store may still have deleted cookies.

use std::borrow::Cow;

use http::{HeaderValue, StatusCode, header};
use runtime::reply::{Reply, content, json};
use serde_json::json as object;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    Lookups,
    answer::{JsonUsers, put_number, put_string},
    request::{AskedUser, DEADLINE_MAX, Rejection, dsps_of_query, user_id_of_path},
};

/// The beginning of the paths of users.
pub const PREFIX: &str = "/v1/users/";

/// The response to the path of a user on the admin port; `None` if the path is not of a user.
pub async fn page(lookups: &Lookups, path: &str, query: &str) -> Option<Reply> {
    let encoded = path.strip_prefix(PREFIX)?;
    let mut body = Vec::new();
    Some(
        match answer(lookups, encoded, query, || Ok(None), &mut body).await {
            Ok(status) => content(status, "application/json", body),
            Err(rejection) => refused(&rejection),
        },
    )
}

/// The response to a user's path that is not answered.
pub(super) fn refused(rejection: &Rejection) -> Reply {
    let (status, error) = match rejection {
        Rejection::Invalid(why) | Rejection::TooLarge(why) => {
            (StatusCode::BAD_REQUEST, why.clone())
        }
        Rejection::Busy => (
            StatusCode::TOO_MANY_REQUESTS,
            "too many requests in progress".to_owned(),
        ),
        Rejection::Unavailable(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("cannot read the store: {why}"),
        ),
    };
    let mut reply = json(status, &object!({ "error": error }));
    if matches!(rejection, Rejection::Busy | Rejection::Unavailable(_)) {
        let one_second = HeaderValue::from_static("1");
        reply.headers_mut().insert(header::RETRY_AFTER, one_second);
    }
    reply
}

/// Writes the body of the response, and returns its status. `begin` is called if the store must be read.
///
/// # Errors
/// When nothing was read.
pub(super) async fn answer(
    lookups: &Lookups,
    encoded: &str,
    query: &str,
    begin: impl FnOnce() -> Result<Option<OwnedSemaphorePermit>, Rejection>,
    body: &mut Vec<u8>,
) -> Result<StatusCode, Rejection> {
    let user_id = user_id_of_path(encoded)?;
    let dsps = dsps_of_query(query)?;
    let users = [AskedUser::Valid(Cow::Borrowed(&*user_id))];
    let deadline = Instant::now() + DEADLINE_MAX;
    let found = lookups.find(&users, dsps.clone(), deadline, begin).await?;
    let selection = lookups.selection(dsps);
    body.extend_from_slice(b"{\"user_id\":");
    put_string(body, user_id.as_bytes());
    body.extend_from_slice(b",\"buyer_uids\":");
    let start = body.len();
    let mut uids = JsonUsers::new(body);
    let tally = lookups
        .write(&users, &found.users, &selection, &mut uids)
        .await;
    let has_matches = body.len() > start + 2;
    if !has_matches && (tally.users == 0 || !found.unavailable.is_empty()) {
        let why = found
            .why
            .unwrap_or_else(|| "no response in time".to_owned());
        return Err(Rejection::Unavailable(why));
    }
    if !has_matches {
        body.clear();
        body.extend_from_slice(b"{\"error\":\"unknown user\",\"user_id\":");
        put_string(body, user_id.as_bytes());
    }
    if !found.unavailable.is_empty() {
        body.extend_from_slice(b",\"unavailable\":");
        put_numbers(body, found.unavailable.iter().map(|it| it.0));
    }
    body.extend_from_slice(b"}\n");
    Ok(match has_matches {
        true => StatusCode::OK,
        false => StatusCode::NOT_FOUND,
    })
}

/// Appends a JSON array of numbers.
pub(super) fn put_numbers(output: &mut Vec<u8>, numbers: impl Iterator<Item = u32>) {
    output.push(b'[');
    for (at, number) in numbers.enumerate() {
        if at > 0 {
            output.push(b',');
        }
        put_number(output, number);
    }
    output.push(b']');
}
