//! The calls that can be made of a limiter over HTTP, and how they are written.

use std::{fmt, io::Write as _, str::FromStr};

use fastrand::Rng;
use serde::Serialize;

/// The limit that all calls are under.
pub(super) const LIMIT: &str = "bench";

/// Its rate and its burst, which let every call go at once.
pub(super) const RATE: u64 = 1_000_000_000;
pub(super) const BURST: u32 = 1_000_000;

/// Largest weight of a call.
const WEIGHT_MAX: u32 = 1_000_000;

/// A call that a limiter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// When could a request go?
    Delay,
    /// A request was made.
    Increment,
    /// A request takes a slot that is now.
    Reserve,
}

/// Which calls are made, each with its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix(Vec<(Call, u32)>);

impl Call {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Delay, Self::Increment, Self::Reserve];

    /// As it is named in paths.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Increment => "increment",
            Self::Reserve => "reserve",
        }
    }

    /// Appends a request for a counter to `into`.
    pub(super) fn write(self, into: &mut Vec<u8>, host: impl fmt::Display, counter: u64) {
        let (method, body) = match self {
            Self::Delay => ("GET", ""),
            Self::Increment => ("POST", "{\"n\":1}"),
            Self::Reserve => ("POST", "{\"horizon\":0}"),
        };
        let written = write!(
            into,
            "{method} /v1/limits/{LIMIT}/{counter}/{} HTTP/1.1\r\nhost: {host}\r\n",
            self.name()
        );
        written.expect("memory can be written to");
        if !body.is_empty() {
            let written = write!(
                into,
                "content-type: application/json\r\ncontent-length: {}\r\n",
                body.len()
            );
            written.expect("memory can be written to");
        }
        into.extend_from_slice(b"\r\n");
        into.extend_from_slice(body.as_bytes());
    }
}

impl Mix {
    /// Nothing but this.
    pub(super) fn of(call: Call) -> Self {
        Self(vec![(call, 1)])
    }

    /// One of them, by its weight.
    pub(super) fn draw(&self, random: &mut Rng) -> Call {
        let (mut last, rest) = match self.0.split_last() {
            Some(((last, _), rest)) if !rest.is_empty() => (*last, rest),
            Some(((only, _), _)) => return *only,
            None => unreachable!("a mix has a call"),
        };
        let mut drawn = random.u32(0..self.weights());
        for (call, weight) in rest {
            if drawn < *weight {
                last = *call;
                break;
            }
            drawn -= weight;
        }
        last
    }

    fn weights(&self) -> u32 {
        self.0.iter().map(|(_, weight)| weight).sum()
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (call, weight)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(formatter, "{comma}{}={weight}", call.name())?;
        }
        Ok(())
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix: Vec<(Call, u32)> = Vec::new();
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let call = Call::ALL.into_iter().find(|call| call.name() == name);
            let call =
                call.ok_or_else(|| format!("{name:?} is not delay, increment or reserve"))?;
            let weight = weight.parse().ok();
            let weight = weight.filter(|weight| (1..=WEIGHT_MAX).contains(weight));
            let weight =
                weight.ok_or_else(|| format!("{part:?}: a weight is from 1 to {WEIGHT_MAX}"))?;
            if mix.iter().any(|(known, _)| *known == call) {
                return Err(format!("{name} is named twice"));
            }
            mix.push((call, weight));
        }
        Ok(Self(mix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_and_drawn_by_their_weights() {
        let mix: Mix = "delay=2,increment".parse().unwrap();
        assert_eq!(mix.to_string(), "delay=2,increment=1");
        for wrong in ["", "delay=0", "delay=x", "put=1", "delay,delay=2"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
        let mut random = Rng::with_seed(1);
        let drawn = (0..30_000).filter(|_| mix.draw(&mut random) == Call::Delay);
        assert!((19_000..21_000).contains(&drawn.count()));
        assert_eq!(Mix::of(Call::Reserve).draw(&mut random), Call::Reserve);
    }

    #[test]
    fn requests_are_whole() {
        let mut bytes = Vec::new();
        Call::Delay.write(&mut bytes, "127.0.0.1:1", 7);
        Call::Reserve.write(&mut bytes, "127.0.0.1:1", 8);
        let expected = "GET /v1/limits/bench/7/delay HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\r\n\
                        POST /v1/limits/bench/8/reserve HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\
                        content-type: application/json\r\ncontent-length: 13\r\n\r\n{\"horizon\":0}";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
