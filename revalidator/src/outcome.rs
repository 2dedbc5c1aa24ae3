//! Determines the outcome of a check from the response of the origin. Does no I/O.

mod cookies;

use std::time::Duration;

use bytes::Bytes;
use runtime::limit_headers::LimitHeaders;

use crate::{
    apps::AppSettings,
    digest,
    messages::{Asset, Outcome, VALIDATOR_BYTES_MAX},
};

/// What a request for an asset returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A response.
    Response(Response),
    /// No response: a timeout, a failed connection or name lookup, or a TLS error.
    None,
    /// No request was sent, because the URL or all addresses of its host are not allowed.
    Forbidden,
}

/// A response of an origin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Time to the first byte.
    pub time: Duration,
    /// `ETag`, or empty.
    pub e_tag: String,
    /// `Last-Modified`, or empty.
    pub last_modified: String,
    /// Header fields that demand fewer requests.
    pub limits: Box<LimitHeaders>,
    /// The body of a 2xx.
    pub body: Body,
}

/// The body of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Body {
    /// A complete body.
    Complete(Bytes),
    /// The connection ended early, or a timeout passed.
    Cut,
    /// More bytes than allowed, a content encoding, or no length, so that its end is unknown.
    Unusable,
    /// Not read.
    #[default]
    Unread,
}

/// The outcome of a response, and the asset with its new validators and digest. `has_validators` states whether the request had
/// any; without them a 304 is an error of the origin. With `rewrite`, an equal body counts as changed, and an equal uid is published.
pub fn outcome(
    settings: &AppSettings,
    asset: &Asset,
    answer: &Answer,
    has_validators: bool,
    rewrite: bool,
) -> (Outcome, Asset) {
    let response = match answer {
        Answer::Response(response) => response,
        Answer::None => return (Outcome::Failed, asset.clone()),
        Answer::Forbidden => return (Outcome::Unexpected, asset.clone()),
    };
    if let Some(cookies) = &settings.cookies {
        match response.status {
            200 | 204 => return cookies::uid(cookies.null_means, asset, response, rewrite),
            // The format of these bodies is not defined.
            201..300 => return (Outcome::Unexpected, asset.clone()),
            _ => {}
        }
    }
    let outcome = match response.status {
        304 if has_validators => return (Outcome::Fresh, refreshed(asset, response)),
        304 => Outcome::Failed,
        404 | 410 => Outcome::Gone,
        204..=206 => Outcome::Unexpected,
        200..300 => return content(settings, asset, response, rewrite),
        401 | 403 | 407 => Outcome::Refused,
        429 => Outcome::Throttled,
        503 if response.limits.retry_after.is_some() => Outcome::Throttled,
        500.. => Outcome::Failed,
        _ => Outcome::Unexpected,
    };
    (outcome, asset.clone())
}

/// The outcome of a 2xx.
fn content(
    settings: &AppSettings,
    asset: &Asset,
    response: &Response,
    rewrite: bool,
) -> (Outcome, Asset) {
    let body = match &response.body {
        Body::Complete(body) => body,
        Body::Cut | Body::Unread => return (Outcome::Failed, asset.clone()),
        Body::Unusable => return (Outcome::Unexpected, asset.clone()),
    };
    if body.is_empty() && !digest::is_equal(&asset.hash, b"") {
        return (Outcome::Unexpected, asset.clone());
    }
    let body = digest::normalize(&settings.normalize, body);
    let outcome = match !rewrite && digest::is_equal(&asset.hash, &body) {
        true => Outcome::Fresh,
        false => Outcome::Changed,
    };
    let asset = Asset {
        hash: digest::digest(&body),
        e_tag: validator(&response.e_tag),
        last_modified: validator(&response.last_modified),
        ..asset.clone()
    };
    (outcome, asset)
}

/// The asset with the validators of a 304, which replace its own only if present.
fn refreshed(asset: &Asset, response: &Response) -> Asset {
    let newer = |new: &str, old: &str| match validator(new) {
        new if new.is_empty() => old.to_owned(),
        new => new,
    };
    Asset {
        e_tag: newer(&response.e_tag, &asset.e_tag),
        last_modified: newer(&response.last_modified, &asset.last_modified),
        ..asset.clone()
    }
}

/// A validator that is short enough to be stored, or an empty one.
fn validator(text: &str) -> String {
    let is_short = text.len() <= VALIDATOR_BYTES_MAX;
    String::from(if is_short { text } else { "" })
}

#[cfg(test)]
mod tests;
