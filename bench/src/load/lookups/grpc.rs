//! `cookiesync.v1.Lookup/Get`: HTTP/2 frames written by hand, because a client library takes more CPU than the server.

use anyhow::{Context as _, Result};
use prost::Message as _;
use proto::v1::{LookupRequest, LookupResponse};

use super::{
    super::response::{INCOMPLETE, Response, SERVER_ERROR, WRONG},
    LookupMix, Lookups, PLACEHOLDER,
};

/// Stream before the first one of a connection, and the bytes to add to its window: more than a response has.
pub(super) const FIRST: (u32, u32) = (u32::MAX, 1 << 30);

/// The first frame of a connection: a setting that gives each stream the maximum window.
const SETTINGS: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff";
const SETTINGS_ACK: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";
const WINDOW_UPDATE: &[u8] = b"\0\0\x04\x08\0\0\0\0\0";

// Types and flags of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_BYTES_MAX: u16 = 16_384;

/// The frames of a call, without the number of its stream. Headers are not compressed.
pub(super) fn template(host: &str, token: Option<&str>, mix: &LookupMix) -> Result<Vec<u8>> {
    let (timeout, token) = (
        format!("{}m", mix.deadline_ms),
        token.map(|it| format!("Bearer {it}")),
    );
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/cookiesync.v1.Lookup/Get"),
        (":authority", host),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", &timeout),
    ];
    fields.extend(token.as_deref().map(|token| ("authorization", token)));
    let mut headers = Vec::new();
    for (name, value) in fields {
        headers.push(0);
        for text in [name, value] {
            let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
            headers.push(length.context("a header is too long")?);
            headers.extend_from_slice(text.as_bytes());
        }
    }
    let request = LookupRequest {
        user_ids: vec![PLACEHOLDER.to_owned(); mix.batch.get()],
        dsp_ids: (1..=mix.dsps).collect(),
    };
    let length = u32::try_from(request.encoded_len())?.to_be_bytes();
    let message = [&[0], &length[..], &request.encode_to_vec()].concat();
    let frames = [(HEADERS, END_HEADERS, headers), (DATA, END_STREAM, message)];
    let mut template = Vec::new();
    for (kind, flags, payload) in frames {
        let length = u16::try_from(payload.len())
            .ok()
            .filter(|it| *it <= FRAME_BYTES_MAX);
        let [high, low] = length
            .context("--batch is too large for gRPC")?
            .to_be_bytes();
        template.extend_from_slice(&[0, high, low, kind, flags, 0, 0, 0, 0]);
        template.extend_from_slice(&payload);
    }
    Ok(template)
}

impl Lookups {
    /// Begins the next stream, and gives the bytes of the last response back to the window of the connection.
    pub(super) fn begin_stream(&mut self, buffer: &mut Vec<u8>) {
        let (last, received) = self.stream;
        buffer.extend_from_slice(match last {
            u32::MAX => SETTINGS,
            1 => SETTINGS_ACK,
            _ => b"",
        });
        buffer.extend_from_slice(WINDOW_UPDATE);
        buffer.extend_from_slice(&received.max(1).to_be_bytes());
        self.stream = (last.wrapping_add(2), 0);
    }

    /// Sets the stream of the frames of a call.
    pub(super) fn number_frames(&self, mut frames: &mut [u8]) {
        while let [_, high, low, _, _, rest @ ..] = frames {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            rest[..4].copy_from_slice(&self.stream.0.to_be_bytes());
            frames = &mut rest[4 + length..];
        }
    }

    /// Checks the response of the outstanding call; `None` if it is incomplete.
    pub(super) fn check_call(&mut self, bytes: &[u8]) -> Option<Response> {
        let (mut rest, mut message) = (bytes, Vec::new());
        let closes = loop {
            let ([a, b, c, kind, flags, stream @ ..], after) = rest.split_first_chunk::<9>()?;
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let (payload, after) = after.split_at_checked(length)?;
            rest = after;
            if *stream != self.stream.0.to_be_bytes() {
                continue;
            }
            if *kind == DATA {
                message.extend_from_slice(payload);
            }
            if *kind == RST_STREAM || (*kind <= HEADERS && flags & END_STREAM != 0) {
                break *kind == RST_STREAM;
            }
        };
        self.stream.1 = u32::try_from(message.len()).unwrap_or(u32::MAX);
        // After the prefix: a flag and the length.
        let response = message
            .get(5..)
            .and_then(|message| LookupResponse::decode(message).ok());
        let status = response.map_or(SERVER_ERROR, |response| self.compare_message(&response));
        let bytes = bytes.len() - rest.len();
        Some(Response {
            status,
            bytes,
            closes,
            ..Response::default()
        })
    }

    fn compare_message(&self, response: &LookupResponse) -> u16 {
        let mut users = response.users.iter().zip(&self.users);
        let is_correct = users.all(|(found, user)| {
            let dsps = u32::from(self.is_stored(*user)) * self.mix.dsps;
            let mut matches = found.matches.iter().zip(1..);
            found.matches.len() == dsps as usize
                && matches.all(|(it, dsp_id)| {
                    let uid = self.traffic.lasting(*user, dsp_id);
                    (it.dsp_id, &*it.buyer_uid) == (dsp_id, uid.buyer_uid())
                })
        });
        let is_read = response.users.iter().all(|user| user.status == 0);
        match is_read && response.unavailable_dsps.is_empty() {
            false => INCOMPLETE,
            true if is_correct && response.users.len() == self.users.len() => 200,
            true => WRONG,
        }
    }
}
