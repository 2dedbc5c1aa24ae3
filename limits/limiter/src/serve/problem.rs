//! What goes wrong: problem types (RFC 9457), and what each means.

use http::StatusCode;

use super::{
    clock::moment,
    engine::{Binding, Refused, Slot},
};

/// Most seconds that are added to Retry-After, so that those who are refused together come back apart.
const SPREAD_SECONDS_MAX: u64 = 4;

/// A kind of problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its name: the end of its type.
    pub name: &'static str,
    /// The status that it comes with.
    pub status: StatusCode,
    /// What it is, in a few words.
    pub title: &'static str,
    /// What to do.
    pub advice: &'static str,
}

const fn kind(name: &'static str, status: u16, title: &'static str, advice: &'static str) -> Kind {
    let Ok(status) = StatusCode::from_u16(status) else {
        panic!("a status");
    };
    Kind {
        name,
        status,
        title,
        advice,
    }
}

/// The call would have to wait for longer than its maximum wait.
pub const QUOTA_EXCEEDED: Kind = kind(
    "quota-exceeded",
    429,
    "No slot is free within the maximum wait",
    "Nothing was taken. The detail names what is used up, and until when. Ask again after Retry-After, or with a longer max_wait. Under a limit of every call nothing is booked more than 30 s \
     ahead, nor more by one token than it leaves to others.",
);
/// No limit has the name.
pub const UNKNOWN_LIMIT: Kind = kind(
    "unknown-limit",
    404,
    "No limit has this name",
    "Limits are set by the operator of the limiter; a counter is made when it is first named.",
);
/// Nothing is at the path.
pub const NOT_FOUND: Kind = kind(
    "not-found",
    404,
    "Nothing is at this path",
    "/v1/openapi.json has all paths.",
);
/// The path has no such method.
pub const METHOD: Kind = kind(
    "method-not-allowed",
    405,
    "The path is not for this method",
    "/v1/openapi.json has all paths with their methods.",
);
/// The request cannot be understood.
pub const INVALID: Kind = kind(
    "invalid-request",
    400,
    "The request cannot be understood",
    "The detail says what is wrong with it; it will fail again as it is.",
);
/// The body is not JSON by its type.
pub const MEDIA_TYPE: Kind = kind(
    "media-type",
    415,
    "The body has to be JSON",
    "Send Content-Type: application/json with a body: pages of other sites cannot.",
);
/// The body is too large.
pub const TOO_LARGE: Kind = kind(
    "too-large",
    413,
    "The body is too large",
    "No request needs a body of this size.",
);
/// The body did not come in time.
pub const SLOW: Kind = kind(
    "too-slow",
    408,
    "The body did not come in time",
    "Send it at once.",
);
/// A rule never lets so many go at once.
pub const TOO_MANY: Kind = kind(
    "too-many-at-once",
    422,
    "A rule never lets so many requests go at once",
    "Ask for fewer at a time; the detail says how many.",
);
/// The limits of the call have too many rules.
pub const TOO_MANY_RULES: Kind = kind(
    "too-many-rules",
    422,
    "The limits of the call have more than 16 rules together",
    "Name fewer limits in one call.",
);
/// The rule of a call.
pub const RULE_OF_CALL: Kind = kind(
    "rule-of-call",
    422,
    "Invalid rule for this counter",
    "A limit with from_call takes interval and requests from each call, and a counter keeps the rule of its first call for as long as it is in use. The detail says what is wrong.",
);
/// The time is in the future.
pub const TOO_EARLY: Kind = kind(
    "too-early",
    422,
    "The call is said to have been made in the future",
    "Compare your clock with `now` of any answer; it was not counted.",
);
/// No token came, or a wrong one.
pub const UNAUTHORIZED: Kind = kind(
    "unauthorized",
    401,
    "A token is needed",
    "Send Authorization: Bearer and a token of the limiter's file.",
);
/// The token does not open this.
pub const FORBIDDEN: Kind = kind(
    "forbidden",
    403,
    "The token does not open this",
    "The operator of the limiter lists in its file of tokens which limits each opens.",
);
/// The port was called by a name that is not this machine's.
pub const MISDIRECTED: Kind = kind(
    "misdirected",
    421,
    "This port answers to localhost and loopback addresses alone",
    "Call it by 127.0.0.1, ::1 or localhost.",
);
/// All counters are in use.
pub const NO_ROOM: Kind = kind(
    "counter-limit-reached",
    503,
    "There are as many counters as there may be",
    "Counters that are not used make room by themselves; --counters says how many there may be.",
);
/// The change is not known to be written.
pub const NOT_SAVED: Kind = kind(
    "not-saved",
    503,
    "The limiter cannot write its state",
    "The change is not known to be written, and may count all the same. Ask again after Retry-After. The limiter's log says why it cannot write.",
);
/// The server that shares the limits is lost.
pub const SERVER_LOST: Kind = kind(
    "sharing-server-unavailable",
    503,
    "The server that shares the limits does not answer",
    "Nothing was allowed. Ask again after Retry-After; calls that were made and could not be counted, with the time when they were. A call that \
     was asked for may have been counted all the same.",
);
/// All kinds.
pub const KINDS: [Kind; 18] = [
    QUOTA_EXCEEDED,
    UNKNOWN_LIMIT,
    NOT_FOUND,
    METHOD,
    INVALID,
    MEDIA_TYPE,
    TOO_LARGE,
    SLOW,
    TOO_MANY,
    TOO_MANY_RULES,
    RULE_OF_CALL,
    TOO_EARLY,
    UNAUTHORIZED,
    FORBIDDEN,
    MISDIRECTED,
    NO_ROOM,
    NOT_SAVED,
    SERVER_LOST,
];

/// Where `quota-exceeded` is registered; the types of all others are paths here.
const QUOTA_EXCEEDED_TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

impl Kind {
    /// Its type, a URI reference.
    #[must_use]
    pub fn uri(&self) -> String {
        if *self == QUOTA_EXCEEDED {
            return QUOTA_EXCEEDED_TYPE.to_owned();
        }
        format!("/v1/problems/{}", self.name)
    }
}

/// What went wrong.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Its kind.
    pub kind: Kind,
    /// What about this request.
    pub detail: String,
    /// When the call could go, where that is known.
    pub slot: Option<Box<Slot>>,
    /// Whole seconds after which the call could go, rounded up.
    pub retry_after: Option<u64>,
}

impl Problem {
    /// Of this kind.
    #[must_use]
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            slot: None,
            retry_after: None,
        }
    }
}

/// A request that cannot be understood, and why.
pub(super) fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(INVALID, detail)
}

/// A few seconds, not the same for all.
fn soon(now: u64) -> u64 {
    1 + now % (SPREAD_SECONDS_MAX + 1)
}

/// No call of `now` can be decided on without the server that shares the limits.
pub(super) fn server_lost(now: u64) -> Problem {
    Problem {
        retry_after: Some(soon(now)),
        ..Problem::new(SERVER_LOST, "")
    }
}

/// What a call of `now` would change cannot be written.
pub(super) fn not_saved(now: u64) -> Problem {
    Problem {
        retry_after: Some(soon(now)),
        ..Problem::new(NOT_SAVED, "")
    }
}

/// Why a call that was made at `now` got no answer.
pub(super) fn refused(refused: Refused, now: u64) -> Problem {
    match refused {
        Refused::UnknownLimit(name) => {
            Problem::new(UNKNOWN_LIMIT, format!("there is no limit {name:?}"))
        }
        Refused::RuleOfCall(why) => Problem::new(RULE_OF_CALL, why),
        Refused::TooManyRules => Problem::new(TOO_MANY_RULES, ""),
        Refused::TooEarly => Problem::new(TOO_EARLY, ""),
        Refused::NoRoom => Problem::new(NO_ROOM, ""),
        Refused::TooMany { binding, most } => {
            let which = binding.map_or_else(|| "a rule".to_owned(), |it| it.to_string());
            let detail = format!("{which} lets {most} go at once at most");
            Problem::new(TOO_MANY, detail)
        }
        Refused::OverMaxWait(slot) => {
            let seconds = slot.at.saturating_sub(slot.now).div_ceil(1_000_000_000);
            let spread = (now % (SPREAD_SECONDS_MAX + 1)).min(seconds / 10 + 1);
            let at = moment(slot.at);
            let detail = match &slot.binding {
                Some(Binding::Learned) => format!("a partner's answer allows no call before {at}"),
                Some(rule) => format!("{rule} allows no further call before {at}"),
                None => format!("no call is allowed before {at}"),
            };
            Problem {
                retry_after: Some(seconds.max(1).saturating_add(spread)),
                slot: Some(Box::new(slot)),
                ..Problem::new(QUOTA_EXCEEDED, detail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::http::OPENAPI, *};

    #[test]
    fn every_kind_of_problem_is_in_the_description() {
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let types = &description["components"]["schemas"]["Problem"]["properties"]["type"]["enum"];
        let types: Vec<&str> = types
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(types, KINDS.map(|kind| kind.uri()));
    }

    #[test]
    fn retry_after_is_never_before_the_slot() {
        let start = 1_700_000_000_000_000_000;
        for (wait, spread, expected) in [
            (1, 0, 1),
            (999_999_999, 0, 1),
            (1_000_000_000, 0, 1),
            (1_000_000_001, 0, 2),
            (30_000_000_000, 4, 34),
            (1_000_000_000, 4, 2),
        ] {
            let now = start + spread;
            let slot = Slot {
                at: now + wait,
                now,
                binding: Some(Binding::Learned),
            };
            let problem = refused(Refused::OverMaxWait(slot), now);
            assert_eq!(problem.retry_after, Some(expected), "{wait} {spread}");
        }
    }
}
