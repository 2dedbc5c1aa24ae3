//! Problem details of HTTP APIs (RFC 9457), which explain why a request failed.

use http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};

use crate::reply::{Reply, content};

/// A problem type.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Last segment of the type's URI; empty for `about:blank`, which means only the status.
    pub name: &'static str,
    /// HTTP status.
    pub status: StatusCode,
    /// Short description; if empty, the reason phrase of the status is used.
    pub title: &'static str,
    /// How to resolve the problem; may be empty.
    pub advice: &'static str,
}

/// Defines a constant for each problem type, and `KINDS` with all of them.
#[macro_export]
macro_rules! problem_kinds {
    ($($id:ident $status:ident $($name:literal $title:literal $($advice:literal)?)?)+) => {
        $(
            #[doc = concat!("A problem with the status ", stringify!($status), $(": ", $title)?)]
            pub const $id: &$crate::problem::Kind = &$crate::problem::Kind {
                name: concat!($($name)?),
                status: ::http::StatusCode::$status,
                title: concat!($($title)?),
                advice: concat!($($($advice)?)?),
            };
        )+
        /// All problem types.
        pub const KINDS: &[&$crate::problem::Kind] = &[$($id),+];
    };
}

impl Kind {
    /// URI reference of the type: the registered one if there is one, otherwise a path of the API.
    pub fn uri(&self) -> String {
        match self.name {
            name @ "quota-exceeded" => {
                format!("https://iana.org/assignments/http-problem-types#{name}")
            }
            name => format!("/v1/problems/{name}"),
        }
    }
}

/// A problem of one request.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Its type.
    pub kind: &'static Kind,
    /// Details of this request; may be empty.
    pub detail: String,
    /// Retry-After in whole seconds.
    pub retry_after: Option<u64>,
    /// Further headers.
    pub headers: Box<HeaderMap>,
    /// Further members of the body.
    pub members: Map<String, Value>,
    /// Data for the API, which the response does not contain.
    pub extensions: Extensions,
}

impl Problem {
    /// Creates a problem of this type.
    pub fn new(kind: &'static Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            retry_after: None,
            headers: Box::default(),
            members: Map::new(),
            extensions: Extensions::new(),
        }
    }

    /// Adds a `Retry-After` in seconds.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Adds a member to the body.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// The response. A 401 has the header `WWW-Authenticate: Bearer`.
    pub fn reply(&self) -> Reply {
        let status = self.kind.status;
        let mut body = self.members.clone();
        if self.kind.name.is_empty() {
            body.insert("title".to_owned(), status.canonical_reason().into());
        } else {
            body.insert("type".to_owned(), self.kind.uri().into());
            body.insert("title".to_owned(), self.kind.title.into());
        }
        body.insert("status".to_owned(), status.as_u16().into());
        if !self.detail.is_empty() {
            body.insert("detail".to_owned(), self.detail.as_str().into());
        }
        let body = format!("{}\n", Value::from(body));
        let mut reply = content(status, "application/problem+json", body);
        let headers = reply.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        headers.extend((*self.headers).clone());
        if status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        reply
    }
}
