//! `/setuid`: a match as DSPs send it to a Prebid Server, with its parameters and status codes.
//!
//! `bidder` is the name of a contract, without regard to case, and `uid` the buyer uid; an empty one deletes the match. `f`
//! selects the response. `account` is ignored. The checks are in the order of `endpoints/setuid.go` of Prebid Server: of
//! several errors, the first one decides the status.

use super::{
    contracts::Contracts,
    privacy::{self, GdprWhenAbsent, GpcScope, Outcome, Signals},
    request::{self, Rejection, StatedMatch},
    response::Answer,
};

/// The path of these requests.
pub(super) const PATH: &str = "/setuid";

/// No name of a DSP is longer when it is encoded as UTF-8.
const NAME_BYTES_MAX: usize = 256;

/// Parses a query. Returns the match, and the answer if it is accepted.
///
/// # Errors
/// The DSP if it is known, and the first rejection.
pub(super) fn parse<'a>(
    query: &'a str,
    opted_out: bool,
    contracts: &Contracts,
) -> Result<(StatedMatch<'a>, Answer), (Option<u32>, Rejection)> {
    let parameter = |name| request::parameter(query, name).unwrap_or_default();
    let bidder = request::percent_decoded(parameter("bidder").as_bytes());
    let bidder = String::from_utf8(bidder.take(NAME_BYTES_MAX).collect());
    let dsp_id = bidder
        .ok()
        .and_then(|name| contracts.named(&name.to_lowercase()));
    if opted_out {
        return Err((dsp_id, Rejection::OptedOut));
    }
    let known = dsp_id.ok_or((None, Rejection::DspUnknown))?;
    let answer = match parameter("f") {
        "" => Answer::Empty,
        "b" | "B" => Answer::Html,
        "i" | "I" => Answer::Png,
        _ => return Err((dsp_id, Rejection::FormatInvalid)),
    };
    if !are_valid(Signals::in_query(query)) {
        return Err((dsp_id, Rejection::SignalsInvalid));
    }
    let stated = StatedMatch {
        dsp_id: known,
        buyer_uid: Some(parameter("uid")).filter(|uid| !uid.is_empty()),
    };
    Ok((stated, answer))
}

/// Whether a Prebid Server reads the signals without an error, also without a privacy gate.
fn are_valid(signals: Signals<'_>) -> bool {
    let config = privacy::Config {
        gdpr_when_absent: GdprWhenAbsent::No,
        gpc: GpcScope::Ignore,
        ..privacy::Config::default()
    };
    let signals = Signals {
        us_privacy: "",
        ..signals
    };
    let outcome = config.decide(&signals, None);
    let invalid = [
        Outcome::Malformed,
        Outcome::ConsentMissing,
        Outcome::ConsentVersion,
    ];
    !invalid.contains(&outcome)
}
