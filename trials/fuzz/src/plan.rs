//! Fuzz target of requests for sync plans, and of the hints of browsers.

use std::{fmt::Write as _, sync::LazyLock};

use fastrand::Rng;
use producer::{
    contracts::{Contracts, file},
    edge::cookie_sync,
    plan::{self, Context, Hints, Request},
};
use proto::units::DspId;
use serde_json::Value;

const USER: &str = "u";

/// Maximum size of an answer, and of the URLs in it.
const ANSWER_BYTES: usize = 14 << 10;
const URLS_BYTES: usize = 4 << 10;

/// More DSPs than hints have entries.
static CONTRACTS: LazyLock<Contracts> = LazyLock::new(|| {
    let mut text = "[privacy]\nmode = 'observe'\ngdpr_when_absent = 'no'\n[plan]\nbase = 'https://match.example'\n".to_owned();
    for dsp in 1..=120 {
        let name = format!(r#"{dsp} "quoted" \"#);
        let table = format!(
            "[dsp.{dsp}]\nname = '{name}'\n[dsp.{dsp}.sync]\nimage = 'https://d.example/?r={{RETURN}}&c={{GPP}}'\n"
        );
        text.write_str(&table).expect("a string");
    }
    file::parse(&text).expect("valid contracts")
});

/// Reads the bytes as the body of a request and as hints, and as offers and matches from which hints follow. The answer must be
/// JSON, an error one line, and written hints short and readable.
///
/// # Panics
/// If the property does not hold.
pub fn plan(bytes: &[u8]) {
    let day = bytes.first().copied().unwrap_or_default();
    check_hints(Hints::read(Some(bytes), USER), day);
    let mut hints = Hints::new(USER);
    for event in bytes.chunks_exact(2) {
        let dsp_id = DspId(u32::from(event[0] % 128));
        match event[1] {
            age @ ..128 => {
                hints.accept(dsp_id, day.wrapping_sub(age % 40));
            }
            age => hints.offer(dsp_id, day.wrapping_sub(age % 3)),
        }
    }
    check_hints(hints.clone(), day);
    match Request::parse(bytes, &CONTRACTS) {
        Ok(request) => check_answer(&request, hints, day),
        Err(error) => assert!(!error.contains(char::is_control), "{error:?}"),
    }
}

fn check_hints(hints: Hints, day: u8) {
    let text = hints.write(day, &CONTRACTS);
    assert!(text.len() <= 803, "{text}");
    let again = Hints::read(Some(text.as_bytes()), USER);
    assert_eq!(again.write(day, &CONTRACTS), text);
}

fn check_answer(request: &Request<'_>, mut hints: Hints, day: u8) {
    let context = Context {
        contracts: &CONTRACTS,
        request,
        signals: &request.signals(),
        day,
        bytes_max: URLS_BYTES,
    };
    let plan = plan::plan(&context, &mut hints, &mut Rng::with_seed(u64::from(day)));
    let json = cookie_sync::json(&plan, request.debug, ANSWER_BYTES);
    assert!(json.len() <= ANSWER_BYTES, "{}", json.len());
    let answer: Value = serde_json::from_slice(&json).expect("JSON");
    let status = if plan.is_in_sync { "ok" } else { "no_cookie" };
    assert_eq!(answer["status"], status);
    let offers = answer["bidder_status"].as_array().expect("an array");
    assert_eq!(offers.len(), plan.offers.len());
    for offer in offers {
        let url = offer["usersync"]["url"].as_str().expect("a URL");
        assert!(url.starts_with("https://d.example/?r=https%3A%2F%2Fmatch.example%2Fsetuid%3F"));
        assert_eq!(url.matches('&').count(), 1, "{url}");
        let name = offer["bidder"].as_str().expect("a name");
        assert!(name.ends_with(r#" "quoted" \"#), "{name}");
    }
    check_hints(hints, day);
}
