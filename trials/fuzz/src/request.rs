//! Fuzz target of the edge's HTTP parser.

use std::sync::LazyLock;

use bytes::Bytes;
use futures_util::FutureExt as _;
use producer::{
    contracts::{
        Contracts, file,
        privacy::Signals,
        redirect::{REDIRECT_MACROS, Template, Values},
        rejection::Rejection,
    },
    edge::{
        browser_cookies::BrowserCookies,
        query::{Query, Scratch},
        request::StatedMatch,
        set_uid,
    },
};
use proto::{
    ids::hygiene,
    limits::{BUYER_UID_BYTES_MAX, USER_ID_BYTES_MAX},
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::{self, ChunkHeader, CookieRef, Record, StreamMessage},
};
use runtime::{
    http1::head::{self, HEAD_BYTES_MAX, Head, HeadError},
    listen::proxy::{self, HEADER_BYTES_MAX},
};

/// Parses the first requests in `bytes`. The result must be the same for every split of the bytes, and for another encoding of the
/// cookie.
///
/// # Panics
/// If the property does not hold.
pub fn request(bytes: &[u8]) {
    check_proxy_header(bytes);
    let mut rest = bytes;
    for _ in 0..16 {
        check_splits(rest);
        let mut headers = head::headers();
        let Ok(Some((head, lines))) = head::parse(rest, &mut headers) else {
            return;
        };
        assert!(head.length > 0 && head.length <= HEAD_BYTES_MAX);
        assert!(!head.path.contains('?'), "the path contains a query");
        let cookies: Vec<_> = head::cookies(lines).collect();
        let mut scratch = Scratch::default();
        let query = Query::parse(head.query, &mut scratch);
        check(&query, &cookies, StatedMatch::parse(&query));
        let stated = set_uid::parse(&query, false, &CONTRACTS);
        if let Ok(stated) = stated {
            assert!(stated.dsp_id == DspId(17) && stated.format.is_some());
        }
        let stated = stated.map_err(|(_, rejection)| rejection);
        check(&query, &cookies, stated);
        rest = &rest[head.length..];
    }
}

/// Reads a PROXY header that continues with `bytes`. Its length must be bounded, and each prefix of it must be incomplete.
fn check_proxy_header(bytes: &[u8]) {
    let header = [b"\r\n\r\n\0\r\nQUIT\n", bytes].concat();
    let receive = |end| {
        let mut rest = &header[..end];
        let client = proxy::receive(&mut rest).now_or_never();
        let client = client.expect("all bytes are available").ok();
        client.map(|_| end - rest.len())
    };
    if let Some(length) = receive(header.len()) {
        assert!(length <= HEADER_BYTES_MAX);
        for end in 0..length {
            assert_eq!(receive(end), None, "a part of a header is accepted");
        }
    }
}

/// Names for `/setuid`, without a privacy check.
static CONTRACTS: LazyLock<Contracts> =
    LazyLock::new(|| file::parse("[dsp.17]\nname = 'some DSP'").expect("valid contracts"));

fn check(query: &Query<'_>, cookie_headers: &[&[u8]], stated: Result<StatedMatch<'_>, Rejection>) {
    let user_id = BrowserCookies::default().user_id(cookie_headers.iter().copied());
    match stated.and_then(|stated| stated.cookie(user_id, true)) {
        Ok((buyer_uid, Some(cookie))) => {
            assert_eq!(cookie.buyer_uid, buyer_uid);
            check_cookie(&cookie);
            check_redirect(&cookie, &query.signals);
        }
        Ok((buyer_uid, None)) => assert!(!buyer_uid.is_empty()),
        Err(rejection) => assert!(rejection.reason().ends_with('\n')),
    }
}

/// The headers parsed from the bytes so far.
fn parsed(bytes: &[u8]) -> Result<Option<Head<'_>>, HeadError> {
    let mut headers = head::headers();
    head::parse(bytes, &mut headers).map(|parsed| parsed.map(|(head, _)| head))
}

fn check_splits(bytes: &[u8]) {
    let whole = parsed(bytes);
    // All splits of a short request, and some splits of a long request.
    let step = bytes.len() / 256 + 1;
    for end in (0..bytes.len()).step_by(step) {
        match (parsed(&bytes[..end]), whole) {
            (Ok(None), Ok(Some(head))) => {
                assert!(end < head.length, "the parser waits for more bytes")
            }
            (Ok(None), _) => {}
            (Ok(Some(part)), whole) => {
                assert_eq!(Ok(Some(part)), whole, "more bytes changed the result")
            }
            (Err(_), whole) => assert!(whole.is_err(), "more bytes made a rejected request valid"),
        }
    }
}

fn check_cookie(cookie: &CookieRef<'_>) {
    assert!((1..=USER_ID_BYTES_MAX).contains(&cookie.user_id.len()));
    assert!((1..=BUYER_UID_BYTES_MAX).contains(&cookie.buyer_uid.len()));
    assert!(cookie.user_id.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!cookie.user_id.contains([',', ';']));
    assert!(!cookie.buyer_uid.chars().any(char::is_control));
    assert!(cookie.dsp_id.is_valid());

    let escaped = |byte| format!("%{byte:02x}");
    let buyer_uid: String = cookie.buyer_uid.bytes().map(escaped).collect();
    if !cookie.buyer_uid.contains('%') && buyer_uid.len() <= BUYER_UID_BYTES_MAX {
        let flaw = hygiene::flaw(cookie.buyer_uid, &[]);
        assert_eq!(hygiene::flaw(&buyer_uid, &[]), flaw, "percent-encoded");
    }
    let query = format!("x&%62={buyer_uid}&d=000{}", cookie.dsp_id);
    let header = format!("a=b; uid={}", cookie.user_id);
    let mut scratch = Scratch::default();
    let headers = [&b"uidx"[..], header.as_bytes()];
    let again = StatedMatch::parse(&Query::parse(&query, &mut scratch));
    let user_id = BrowserCookies::default().user_id(headers.into_iter());
    let again = again.and_then(|it| it.cookie(user_id, false));
    assert_eq!(again, Ok((cookie.buyer_uid, Some(*cookie))));
    check_chunk(cookie);
}

/// Checks that a redirect has the host of its template, and that its URL adds no header and no other parameter.
fn check_redirect(cookie: &CookieRef<'_>, signals: &Signals<'_>) {
    const BEGIN: &str = "https://sync.example/?u=";
    let template = format!("{BEGIN}{{UID}}&x={{DSP_UID}}&g={{GPP}}");
    let template = Template::parse(&template, REDIRECT_MACROS);
    let values = Values {
        user_id: cookie.user_id,
        buyer_uid: cookie.buyer_uid,
        return_url: "",
        signals: *signals,
    };
    let mut url = Vec::new();
    let is_short = template.expect("a valid URL").render(&values, &mut url);
    let url = String::from_utf8(url).expect("percent-encoded values");
    let values = url.strip_prefix(BEGIN).expect("the host of the template");
    let is_value = |it: char| it.is_ascii_alphanumeric() || "-._~%&=".contains(it);
    assert!(values.chars().all(is_value), "{url}");
    assert!(!is_short || url.matches('&').count() == 2, "{url}");
}

/// Checks that encoding and decoding as a chunk does not change a cookie.
pub(crate) fn check_chunk(cookie: &CookieRef<'_>) {
    let mut buffer = vec![0; wire::HEADROOM_BYTES];
    wire::put_cookie(&mut buffer, cookie);
    let header = ChunkHeader {
        epoch: Epoch(1),
        first_sequence: Sequence(1),
        count: 1,
        accepted: UnixMicros(1),
    };
    let at = wire::seal(&mut buffer, &header) + wire::FRAME_PREFIX_BYTES;
    let Ok(StreamMessage::Chunk(chunk)) = StreamMessage::decode(Bytes::from(buffer).slice(at..))
    else {
        panic!("the sealed bytes are not a chunk");
    };
    let cookies: Vec<_> = chunk.records().collect();
    assert_eq!(cookies, [Ok(Record::Set(*cookie))]);
}
