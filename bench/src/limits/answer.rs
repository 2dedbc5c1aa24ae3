//! Whether a limiter's answer over HTTP is what it must be: every call goes now.

use serde::Deserialize;

use super::Call;

/// When a call may go, as the limiter says it.
#[derive(Deserialize)]
struct Slot<'a> {
    at: &'a str,
    now: &'a str,
    wait: f64,
    #[serde(borrow)]
    binding: Option<&'a str>,
    counted: Option<bool>,
}

/// # Errors
/// With what is wrong.
pub(super) fn check(call: Call, status: u16, body: &[u8]) -> Result<(), String> {
    let is_right = |slot: &Slot<'_>| {
        let goes = slot.wait == 0.0 && slot.binding.is_none() && slot.at <= slot.now;
        goes && slot.counted == (call == Call::Increment).then_some(true)
    };
    let slot = serde_json::from_slice(body).ok();
    match slot.filter(is_right) {
        Some(_) if status == 200 => Ok(()),
        _ => Err(format!(
            "{} was answered by {status} with {}",
            call.name(),
            String::from_utf8_lossy(body).trim()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: &str = r#""at":"2023-11-14T22:13:20.000000001Z","now":"2023-11-14T22:13:20.000000002Z","wait":0.0,"binding":null"#;

    #[track_caller]
    fn check_of(call: Call, status: u16, body: &str, is_right: bool) {
        let checked = check(call, status, body.as_bytes());
        assert_eq!(checked.is_ok(), is_right, "{body}: {checked:?}");
    }

    #[test]
    fn only_what_goes_now_is_right() {
        let slot = format!("{{{SLOT}}}\n");
        let counted = format!("{{\"counted\":true,{SLOT}}}");
        check_of(Call::Delay, 200, &slot, true);
        check_of(Call::Reserve, 200, &slot, true);
        check_of(Call::Increment, 200, &counted, true);
        check_of(Call::Increment, 200, &slot, false);
        check_of(
            Call::Increment,
            200,
            &counted.replace("true", "false"),
            false,
        );
        check_of(Call::Delay, 429, &slot, false);
        check_of(Call::Delay, 200, &slot.replace("0.0", "0.5"), false);
        check_of(
            Call::Delay,
            200,
            &slot.replace("null", "\"bench/all\""),
            false,
        );
        check_of(Call::Delay, 200, &slot.replace("01Z", "03Z"), false);
        check_of(Call::Delay, 200, "", false);
    }
}
