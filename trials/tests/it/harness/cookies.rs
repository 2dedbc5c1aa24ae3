//! Cookies for tests, and the store contents that result from them.

use std::{collections::BTreeMap, ops::RangeInclusive};

use bench::traffic::Traffic;

/// Actual or expected contents of a store: buyer uids by user and DSP.
pub(crate) type StoreContents = BTreeMap<String, BTreeMap<u32, String>>;

/// User id, DSP id and buyer uid of cookie `number`.
pub(crate) fn numbered_cookie(number: u64) -> (String, u32, String) {
    let dsp = 1 + u32::try_from(number % 20).unwrap_or(0);
    (format!("user-{number}"), dsp, format!("buyer-{number}"))
}

/// Store contents after these numbered cookies.
pub(crate) fn numbered_contents(numbers: RangeInclusive<u64>) -> StoreContents {
    let mut contents = StoreContents::new();
    for (user, dsp, buyer) in numbers.map(numbered_cookie) {
        contents.entry(user).or_default().insert(dsp, buyer);
    }
    contents
}

/// The sync request of a cookie whose ids need no encoding.
pub(crate) fn sync_request(user_id: &str, dsp_id: u32, buyer_uid: &str) -> String {
    format!(
        "GET /?d={dsp_id}&b={buyer_uid} HTTP/1.1\r\nHost: test\r\nCookie: uid={user_id}\r\n\r\n"
    )
}

/// Expected store contents after the first `count` cookies of one connection: the newest value per user and DSP.
pub(crate) fn expected_contents(traffic: &Traffic, count: u64) -> StoreContents {
    let mut contents = StoreContents::new();
    for number in 0..count {
        let cookie = traffic.cookie(0, number);
        contents
            .entry(cookie.user_id().to_owned())
            .or_default()
            .insert(cookie.dsp_id(), cookie.buyer_uid().to_owned());
    }
    contents
}
