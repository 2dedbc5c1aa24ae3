//! `/readyz`: whether a process can do its work, and if not, which part of it cannot and why.

use http::StatusCode;
use serde::Serialize;

use crate::answer::{Answer, json};

/// A part of a process that must work for the whole to be ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Its name, which stays.
    pub part: &'static str,
    /// Whether it works.
    pub ready: bool,
    /// How it is, in one line; when it does not work, why.
    pub state: String,
}

/// Why a process is not ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The name of the part that does not work.
    pub part: &'static str,
    /// Why, in one line.
    pub why: String,
}

/// What `/readyz` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether every part works. Decides the status: 200, or 503.
    pub ready: bool,
    /// The parts that do not.
    pub reasons: Vec<Reason>,
    /// All of them.
    pub parts: Vec<Part>,
}

impl Part {
    /// A part that works (`Ok`) or does not, and how it is; line ends become spaces.
    #[must_use]
    pub fn new(part: &'static str, state: Result<String, String>) -> Self {
        let ready = state.is_ok();
        let (Ok(state) | Err(state)) = state;
        Self {
            part,
            ready,
            state: state.replace(['\n', '\r'], " "),
        }
    }
}

/// Whether a process was told to stop, as the part `drain`.
#[must_use]
pub fn drain(is_draining: bool) -> Part {
    let drain = if is_draining {
        Err("draining".to_owned())
    } else {
        Ok("not draining".to_owned())
    };
    Part::new("drain", drain)
}

impl Readiness {
    /// What these parts come to.
    #[must_use]
    pub fn of(parts: &[Part]) -> Self {
        let failing = parts.iter().filter(|part| !part.ready);
        let reasons = failing.map(|part| Reason {
            part: part.part,
            why: part.state.clone(),
        });
        Self {
            ready: parts.iter().all(|part| part.ready),
            reasons: reasons.collect(),
            parts: parts.to_vec(),
        }
    }
}

/// Says whether a process with these parts is ready.
pub(crate) fn answer(parts: &[Part]) -> Answer {
    let readiness = Readiness::of(parts);
    let status = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut body = serde_json::to_vec(&readiness).expect("texts and truth values are JSON");
    body.push(b'\n');
    json(status, body)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn not_ready_says_which_part_and_why_and_ready_says_how_each_is() {
        let works = Part::new("producers", Ok("2 of 3 connected".to_owned()));
        let fails = Part::new("store", Err("gone\naway".to_owned()));
        for (parts, status, said) in [
            (
                vec![works.clone(), fails],
                503,
                r#"{"ready":false,"reasons":[{"part":"store","why":"gone away"}],"parts":[{"part":"producers","ready":true,"state":"2 of 3 connected"},{"part":"store","ready":false,"state":"gone away"}]}"#,
            ),
            (
                vec![works],
                200,
                r#"{"ready":true,"reasons":[],"parts":[{"part":"producers","ready":true,"state":"2 of 3 connected"}]}"#,
            ),
        ] {
            let answer = answer(&parts);
            assert_eq!(answer.status(), status);
            assert_eq!(answer.headers()["content-type"], "application/json");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, format!("{said}\n"));
        }
    }
}
