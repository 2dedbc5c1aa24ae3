//! Problems as statuses of gRPC.

use std::{collections::HashMap, time::Duration};

use http::HeaderMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{
    super::{metrics::Class, problem::Problem},
    v1::Slot,
};

/// Whose reasons they are.
const DOMAIN: &str = "cookiesync.limiter";

/// A problem, with all that HTTP tells of it.
pub(in super::super) fn of(problem: &Problem) -> Status {
    let kind = &problem.kind;
    let mut metadata = HashMap::from([("type".to_owned(), kind.uri())]);
    if let Some(slot) = problem.slot.as_deref() {
        let slot = Slot::from(slot);
        for (name, value) in [
            ("at_unix_micros", slot.at_unix_micros.to_string()),
            ("now_unix_micros", slot.now_unix_micros.to_string()),
            ("wait_micros", slot.wait_micros.to_string()),
            ("binding", slot.binding),
        ] {
            metadata.insert(name.to_owned(), value);
        }
    }
    let reason = kind.name.to_ascii_uppercase().replace('-', "_");
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
    if let Some(seconds) = problem.retry_after {
        details.set_retry_info(Some(Duration::from_secs(seconds)));
    }
    let message = match &*problem.detail {
        "" => kind.title.to_owned(),
        detail => format!("{}: {detail}", kind.title),
    };
    Status::with_error_details(code(kind.status.as_u16()), message, details)
}

/// What a status of HTTP is here.
fn code(status: u16) -> Code {
    match status {
        401 => Code::Unauthenticated,
        403 | 421 => Code::PermissionDenied,
        404 => Code::NotFound,
        408 => Code::DeadlineExceeded,
        413 | 429 => Code::ResourceExhausted,
        422 => Code::FailedPrecondition,
        ..500 => Code::InvalidArgument,
        _ => Code::Unavailable,
    }
}

/// How a call ended, by the head of its answer.
pub(super) fn class(headers: &HeaderMap) -> Class {
    let status = Status::from_header_map(headers);
    match status.map_or(Code::Ok, |status| status.code()) {
        Code::Ok => Class::Good,
        Code::Unknown | Code::Internal | Code::Unavailable | Code::DataLoss => Class::Ours,
        _ => Class::Theirs,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{
            engine::{self, Binding, Refused},
            problem::{KINDS, NO_ROOM, QUOTA_EXCEEDED, refused},
        },
        *,
    };

    #[test]
    fn status_tells_what_the_problem_tells() {
        let now = 1_700_000_000_000_000_000;
        let slot = engine::Slot {
            at: now + 30_000_000_000,
            now,
            binding: Some(Binding::Learned),
        };
        let status = of(&refused(Refused::OverHorizon(slot), now));
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), QUOTA_EXCEEDED.title);
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((&*info.reason, &*info.domain), ("QUOTA_EXCEEDED", DOMAIN));
        assert_eq!(info.metadata["type"], QUOTA_EXCEEDED.uri());
        assert_eq!(info.metadata["wait_micros"], "30000000");
        assert_eq!(info.metadata["binding"], "learned");
        let delay = details.retry_info().unwrap().retry_delay;
        assert!(delay >= Some(Duration::from_secs(30)), "{delay:?}");
    }

    #[test]
    fn every_problem_has_a_class_of_its_own_kind() {
        for kind in KINDS {
            let status = of(&Problem::new(kind, "")).into_http::<()>();
            let expected = Class::from(kind.status);
            assert_eq!(class(status.headers()), expected, "{}", kind.name);
        }
        let status = of(&Problem::new(NO_ROOM, "why"));
        assert!(status.message().ends_with(": why"));
    }
}
