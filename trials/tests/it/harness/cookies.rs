//! Cookies that are sent, and what a store then knows.

use std::collections::BTreeMap;

use bench::traffic::Traffic;

/// What stores know, or should: buyer uids by user and DSP.
pub(crate) type Known = BTreeMap<String, BTreeMap<u32, String>>;

/// A cookie that is easy to make again: user, DSP, buyer uid.
pub(crate) fn numbered(number: u64) -> (String, u32, String) {
    let dsp = 1 + u32::try_from(number % 20).unwrap_or(0);
    (format!("user-{number}"), dsp, format!("buyer-{number}"))
}

/// The sync request that carries a cookie whose ids need no encoding.
pub(crate) fn request(user_id: &str, dsp_id: u32, buyer_uid: &str) -> String {
    format!(
        "GET /?d={dsp_id}&b={buyer_uid} HTTP/1.1\r\nHost: test\r\nCookie: uid={user_id}\r\n\r\n"
    )
}

/// What a store knows after the first `count` cookies of one connection: the newest value of each user and DSP.
pub(crate) fn newest(traffic: &Traffic, count: u64) -> Known {
    let mut known = Known::new();
    for number in 0..count {
        let cookie = traffic.cookie(0, number);
        known
            .entry(cookie.user_id().to_owned())
            .or_default()
            .insert(cookie.dsp_id(), cookie.buyer_uid().to_owned());
    }
    known
}
