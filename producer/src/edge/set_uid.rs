//! `/setuid`: accepts a match as Prebid Server does, with the same parameters and status codes.
//!
//! `bidder` is the name of a contract, case-insensitive, and `uid` the buyer uid. `f` selects the response. `account` is
//! ignored. The checks are in the order of `endpoints/setuid.go` of Prebid Server: if a request contains several errors,
//! the first one determines the status. Without a `[privacy]` table, the privacy signals are checked here.

use proto::units::DspId;

use super::{
    query::{Query, Value},
    request::StatedMatch,
};
use crate::contracts::{
    Contracts,
    answer::Answer,
    privacy::{Outcome, Signals},
    rejection::Rejection,
};

/// The path of these requests.
pub(super) const PATH: &str = "/setuid";

/// Parses a query.
///
/// # Errors
/// The DSP if it is known, and the first rejection.
pub fn parse<'a>(
    query: &Query<'a>,
    opted_out: bool,
    contracts: &Contracts,
) -> Result<StatedMatch<'a>, (Option<DspId>, Rejection)> {
    let bidder = query.bidder.map_or("", |it| it.text).to_lowercase();
    let dsp_id = contracts.by_name.get(&bidder).copied();
    if opted_out {
        return Err((dsp_id, Rejection::OptedOut));
    }
    let known = dsp_id.ok_or((None, Rejection::DspUnknown))?;
    let format = match query.format.map_or("", |it| it.text) {
        "" => Answer::Empty,
        "b" | "B" => Answer::Html,
        "i" | "I" => Answer::Png,
        _ => return Err((dsp_id, Rejection::FormatInvalid)),
    };
    if contracts.privacy().is_none() && !query.signals.are_complete() {
        return Err((dsp_id, Rejection::SignalsInvalid));
    }
    Ok(StatedMatch {
        dsp_id: known,
        buyer_uid: query.uid.unwrap_or(Value::plain("")),
        format: Some(format),
    })
}

/// The rejection of a refused match. As in Prebid Server, some outcomes of the privacy check are invalid parameters.
pub(super) fn refusal(rejection: Rejection, outcome: Outcome, signals: &Signals<'_>) -> Rejection {
    let states_gdpr = !signals.gdpr.is_empty() || !signals.gpp_sid.is_empty();
    match outcome {
        _ if rejection != Rejection::Privacy => rejection,
        Outcome::Malformed | Outcome::ConsentVersion => Rejection::SignalsInvalid,
        Outcome::ConsentMissing if states_gdpr => Rejection::SignalsInvalid,
        _ => rejection,
    }
}
