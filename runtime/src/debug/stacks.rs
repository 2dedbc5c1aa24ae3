//! Stacks with what was measured of each: a profile, in the form of `pprof` or as a picture.

mod encode;
mod flames;

use std::time::Duration;

use http::{StatusCode, header};

use crate::answer::{Answer, content};

/// The form of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// For pprof, speedscope and others.
    Protobuf,
    /// A flame graph, for a browser.
    Svg,
}

/// What was measured.
#[derive(Debug)]
pub(super) struct Profile {
    /// Name and unit of the figures of each stack; the second is the one that is looked at.
    pub(super) sample_types: [(&'static str, &'static str); 2],
    /// Of what there is one sample for so much.
    pub(super) period_type: (&'static str, &'static str),
    /// How much.
    pub(super) period: u64,
    /// How long it took; zero for what is at one moment.
    pub(super) duration: Duration,
    /// Each that was found.
    pub(super) stacks: Vec<Stack>,
}

/// One stack, and what was measured of it.
#[derive(Debug)]
pub(super) struct Stack {
    /// The calls, the one that was made last first.
    pub(super) lines: Vec<Line>,
    /// The name of its thread, if that matters.
    pub(super) thread: Option<String>,
    /// As the profile's `sample_types` say.
    pub(super) values: [u64; 2],
}

/// A function, and where in its file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) function: String,
    pub(super) file: String,
    pub(super) number: u32,
}

impl Format {
    /// The one that this part of a query asks for; that of `pprof` if it is empty.
    pub(super) fn read(part: &str) -> Option<Self> {
        match part {
            "" | "format=proto" => Some(Self::Protobuf),
            "format=svg" => Some(Self::Svg),
            _ => None,
        }
    }
}

impl Profile {
    /// The profile in this form.
    pub(super) fn answer(&self, format: Format) -> Answer {
        if format == Format::Svg {
            return content(StatusCode::OK, "image/svg+xml", flames::svg(self));
        }
        let bytes = encode::profile(self);
        let mut answer = content(StatusCode::OK, "application/octet-stream", bytes);
        let name = header::HeaderValue::from_static("attachment; filename=\"profile.pb\"");
        answer
            .headers_mut()
            .insert(header::CONTENT_DISPOSITION, name);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile of these stacks: functions, the one that was called last first, and how often they were found.
    pub(super) fn profile(stacks: &[(&[&str], u64)]) -> Profile {
        let line = |function: &&str| Line {
            function: (*function).to_owned(),
            file: "file.rs".to_owned(),
            number: 1,
        };
        let stacks = stacks.iter().map(|(functions, samples)| Stack {
            lines: functions.iter().map(line).collect(),
            thread: Some("worker".to_owned()),
            values: [*samples, samples * 1000],
        });
        Profile {
            sample_types: [("samples", "count"), ("cpu", "nanoseconds")],
            period_type: ("cpu", "nanoseconds"),
            period: 1000,
            duration: Duration::from_secs(2),
            stacks: stacks.collect(),
        }
    }

    #[test]
    fn form_is_read_and_says_what_it_is() {
        assert_eq!(Format::read("format=html"), None);
        for (part, kind) in [
            ("", "application/octet-stream"),
            ("format=svg", "image/svg+xml"),
        ] {
            let answer = profile(&[]).answer(Format::read(part).unwrap());
            assert_eq!(answer.headers()[header::CONTENT_TYPE], kind);
        }
    }
}
