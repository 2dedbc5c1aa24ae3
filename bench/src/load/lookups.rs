//! Lookups in place of sync requests: from a consumer, Redis, or MongoDB.
//!
//! All protocols share one path: a request is a copy of a template into which the ids of the users are written. Users and their
//! buyer uids are functions of the seed, so each response is compared with the expected one: byte by byte for HTTP and
//! Redis, whose servers keep the order of DSPs. A connection has one outstanding request.

mod grpc;
mod mongodb;

use std::num::{NonZeroU64, NonZeroUsize};

use anyhow::{Result, bail, ensure};
use clap::{Args, value_parser};
use http::{Uri, uri::Authority};
use serde_json::{Value, json};

use super::response::{self, INCOMPLETE, MalformedResponse, Response, SERVER_ERROR, WRONG};
use crate::traffic::{DSPS, SyntheticCookie, Traffic, USER_ID_BYTES, nth_word};

/// User id in a template.
const PLACEHOLDER: &str = "placeholder-of-a-uid";

/// Users that are stored and looked up.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Lookups")]
pub struct LookupMix {
    /// Seed of the stored users and their buyer uids.
    #[arg(long, default_value = "1")]
    pub seed: u64,
    /// Number of stored users.
    #[arg(long, default_value = "100000")]
    pub users: NonZeroU64,
    /// Number of DSPs, with ids from 1. Each stored user has a buyer uid of each, and each lookup asks for all. With more, Redis
    /// does not keep their order.
    #[arg(long, default_value_t = DSPS, value_parser = value_parser!(u32).range(1..=128))]
    pub dsps: u32,
    /// Users per lookup. With more than one, HTTP lookups are a `POST /v1/lookup`.
    #[arg(long, default_value = "1")]
    pub batch: NonZeroUsize,
    /// Fraction of the users that are stored, from 0 to 1. The others are unknown.
    #[arg(long, default_value = "0.9")]
    pub hit_share: f64,
    /// Deadline of a lookup over gRPC, or of several users over HTTP, in milliseconds.
    #[arg(long, default_value = "20")]
    pub deadline_ms: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Grpc,
    /// One `HGETALL` per user.
    Redis,
    /// One `find` per DSP.
    Mongodb,
}

/// Lookups of one connection, or requests that store users.
#[derive(Debug, Clone)]
pub struct Lookups {
    protocol: Protocol,
    mix: LookupMix,
    traffic: Traffic,
    /// Number of connections that together store all users.
    fill: Option<u64>,
    template: Vec<u8>,
    /// Positions of the users in the template; MongoDB: repeated for each DSP.
    slots: Vec<usize>,
    /// Users of the outstanding request, by number.
    users: Vec<u64>,
    /// HTTP, Redis: the expected response, without headers.
    expected: String,
    /// gRPC: the stream of the outstanding request, and the bytes of its response.
    stream: (u32, u32),
}

impl Lookups {
    /// Lookups at `url`, with a bearer token if it is a consumer; or, with the number of connections to `fill` it with, requests
    /// that store all users: at the sync port of a producer, in Redis or in MongoDB.
    ///
    /// # Errors
    /// The URL is not supported.
    pub fn new(url: &Uri, token: Option<&str>, mix: &LookupMix, fill: Option<u64>) -> Result<Self> {
        let host = url.authority().map_or("", Authority::as_str);
        let is_plain = url.port_u16().is_some() && !host.contains('@');
        ensure!(is_plain, "a URL needs a port and no credentials");
        let (protocol, template) = match url.scheme_str() {
            Some("http") => (Protocol::Http, http_template(host, token, mix)),
            Some("grpc") if fill.is_none() => (Protocol::Grpc, grpc::template(host, token, mix)?),
            Some("redis") => {
                let read = format!("*2\r\n$7\r\nHGETALL\r\n$20\r\n{PLACEHOLDER}\r\n");
                (Protocol::Redis, read.repeat(mix.batch.get()).into_bytes())
            }
            Some("mongodb") => (Protocol::Mongodb, mongodb::template(mix)?),
            _ => bail!("expected http://, grpc:// (not for --fill), redis:// or mongodb://"),
        };
        let places = template.windows(USER_ID_BYTES).enumerate();
        let places = places.filter(|(_, bytes)| *bytes == PLACEHOLDER.as_bytes());
        Ok(Self {
            protocol,
            mix: mix.clone(),
            traffic: Traffic::new(mix.seed, Some(mix.users)),
            fill,
            slots: places.map(|(at, _)| at).collect(),
            template,
            users: Vec::new(),
            expected: String::new(),
            stream: grpc::FIRST,
        })
    }

    /// Number of requests that store all users.
    pub(crate) fn requests(&self) -> u64 {
        let (users, dsps) = (self.mix.users.get(), u64::from(self.mix.dsps));
        match self.protocol {
            Protocol::Http | Protocol::Grpc => users * dsps,
            Protocol::Redis => users,
            Protocol::Mongodb => users.div_ceil(mongodb::GROUP) * dsps,
        }
    }

    /// Appends request `number` of a connection, which becomes the outstanding one.
    pub(super) fn put(&mut self, buffer: &mut Vec<u8>, connection: u64, number: u64) {
        if let Some(connections) = self.fill {
            return self.put_fill(buffer, connections * number + connection);
        }
        let words = nth_word(nth_word(self.mix.seed, connection), number);
        let stored = self.mix.users.get();
        self.users.clear();
        for slot in 0..self.mix.batch.get() as u64 {
            let word = nth_word(words, slot);
            let is_unknown = word as f64 >= self.mix.hit_share * 2_f64.powi(64);
            let user = nth_word(word, 0) % stored;
            self.users.push(user + stored * u64::from(is_unknown));
        }
        if self.protocol == Protocol::Grpc {
            self.begin_stream(buffer);
        }
        let start = buffer.len();
        buffer.extend_from_slice(&self.template);
        for (at, user) in self.slots.iter().zip(self.users.iter().cycle()) {
            let place = &mut buffer[start + at..][..USER_ID_BYTES];
            place.copy_from_slice(&self.traffic.user_id(*user));
        }
        match self.protocol {
            Protocol::Http | Protocol::Redis => self.expected = self.expected(),
            Protocol::Grpc => self.number_frames(&mut buffer[start..]),
            Protocol::Mongodb => {}
        }
    }

    /// Appends a request that stores one cookie, those of a user (Redis), or those of a group of users at one DSP (MongoDB).
    fn put_fill(&mut self, buffer: &mut Vec<u8>, number: u64) {
        let dsps = u64::from(self.mix.dsps);
        let dsp_id = u32::try_from(number % dsps + 1).unwrap_or(u32::MAX);
        let (request, expected) = match self.protocol {
            Protocol::Mongodb => return self.put_insert(buffer, number / dsps, dsp_id),
            Protocol::Redis => {
                let cookies = (1..=self.mix.dsps).map(|id| self.traffic.lasting(number, id));
                let fields = cookies.map(|it| format!(" {} {}", it.dsp_id(), it.buyer_uid()));
                let user = self.traffic.lasting(number, 1);
                let fields = fields.collect::<String>();
                (format!("HMSET {}{fields}\r\n", user.user_id()), "+OK\r\n")
            }
            Protocol::Http | Protocol::Grpc => {
                let cookie = self.traffic.lasting(number / dsps, dsp_id);
                let (user, uid) = (cookie.user_id(), cookie.buyer_uid());
                let head = format!("GET /?d={dsp_id}&b={uid} HTTP/1.1\r\nHost: localhost\r\n");
                (format!("{head}Cookie: uid={user}\r\n\r\n"), "")
            }
        };
        buffer.extend_from_slice(request.as_bytes());
        self.expected.replace_range(.., expected);
    }

    fn is_stored(&self, user: u64) -> bool {
        user < self.mix.users.get()
    }

    /// The expected response to the outstanding request, over HTTP or of Redis.
    fn expected(&self) -> String {
        let is_redis = self.protocol == Protocol::Redis;
        let field = |cookie: SyntheticCookie| match (cookie.dsp_id(), cookie.buyer_uid()) {
            (dsp_id, uid) if is_redis => {
                let (digits, bytes) = (dsp_id.ilog10() + 1, uid.len());
                format!("${digits}\r\n{dsp_id}\r\n${bytes}\r\n{uid}\r\n")
            }
            (dsp_id, uid) => format!(r#""{dsp_id}":"{uid}""#),
        };
        let users = self.users.iter().map(|user| {
            let dsps = u32::from(self.is_stored(*user)) * self.mix.dsps;
            let fields = (1..=dsps).map(|dsp_id| field(self.traffic.lasting(*user, dsp_id)));
            let fields: Vec<_> = fields.collect();
            match is_redis {
                true => format!("*{}\r\n{}", 2 * dsps, fields.concat()),
                false => format!("{{{}}}", fields.join(",")),
            }
        });
        let users: Vec<_> = users.collect();
        match self.users[..] {
            _ if is_redis => users.concat(),
            [user] => {
                let (user, uids) = (self.traffic.lasting(user, 1), &users[0]);
                let user_id = user.user_id();
                format!(r#"{{"user_id":"{user_id}","buyer_uids":{uids}}}"#)
            }
            _ => {
                let users = users.join(",");
                format!(r#"{{"complete":true,"users":[{users}],"unavailable":[]}}"#)
            }
        }
    }

    /// Checks the response at the start of `bytes`; `None` if it is incomplete. A correct response has the status 200.
    pub(super) fn parse(&mut self, bytes: &[u8]) -> Result<Option<Response>, MalformedResponse> {
        let mut response = match self.protocol {
            Protocol::Http => self.check_http(bytes)?,
            Protocol::Grpc => self.check_call(bytes),
            Protocol::Redis => self.check_redis(bytes),
            Protocol::Mongodb => self.check_replies(bytes)?,
        };
        if let Some(correct) = response.as_mut().filter(|it| it.status == 200) {
            let hits = self.users.iter().filter(|user| self.is_stored(**user));
            correct.hits = hits.count() as u64;
        }
        Ok(response)
    }

    /// Continues over a new connection.
    pub(super) fn reconnected(&mut self) {
        self.stream = grpc::FIRST;
    }

    fn check_http(&self, bytes: &[u8]) -> Result<Option<Response>, MalformedResponse> {
        let Some(mut response) = response::parse(bytes)? else {
            return Ok(None);
        };
        let body = &bytes[response.head_bytes..response.bytes];
        response.status = match (response.status, &self.users[..]) {
            (200, _) if body.trim_ascii_end() == self.expected.as_bytes() => 200,
            (200, _) if is_partial(body) => INCOMPLETE,
            (404, [user]) if !self.is_stored(*user) => 200,
            (200, _) | (404, [_]) => WRONG,
            (status, _) => status,
        };
        Ok(Some(response))
    }

    /// The end of a wrong response is unknown, so the connection is closed.
    fn check_redis(&self, bytes: &[u8]) -> Option<Response> {
        let expected = self.expected.as_bytes();
        let (status, bytes) = match bytes {
            _ if bytes.starts_with(expected) => (200, expected.len()),
            _ if expected.starts_with(bytes) => return None,
            [b'-', ..] => (SERVER_ERROR, bytes.len()),
            _ => (WRONG, bytes.len()),
        };
        let closes = status != 200;
        Some(Response {
            status,
            bytes,
            closes,
            ..Response::default()
        })
    }
}

/// Whether DSPs or users of an HTTP lookup were not read.
fn is_partial(body: &[u8]) -> bool {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    body["complete"] == false || body["unavailable"].get(0).is_some()
}

fn http_template(host: &str, token: Option<&str>, mix: &LookupMix) -> Vec<u8> {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let headers = format!("HTTP/1.1\r\nHost: {host}\r\n{}", token.unwrap_or_default());
    let dsps: Vec<_> = (1..=mix.dsps).collect();
    if mix.batch.get() == 1 {
        let dsps: Vec<_> = dsps.iter().map(u32::to_string).collect();
        let path = format!("/v1/users/{PLACEHOLDER}?dsps={}", dsps.join(","));
        return format!("GET {path} {headers}\r\n").into_bytes();
    }
    let users = vec![PLACEHOLDER; mix.batch.get()];
    let body = json!({ "users": users, "dsps": dsps, "deadline_ms": mix.deadline_ms }).to_string();
    let length = body.len();
    format!("POST /v1/lookup {headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

#[cfg(test)]
mod tests;
