//! Where the requests of one connection come from: the traffic of a seed, or a recording.

use std::sync::Arc;

use super::{
    malformed::Malformed,
    recording::Recording,
    request::{Line, Template},
};
use crate::traffic::Traffic;

/// The requests of one connection, by number.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// Made from the seed.
    Made {
        traffic: Traffic,
        malformed: Malformed,
        /// Its stream among those of the traffic.
        connection: u64,
    },
    /// Read from a file.
    Recorded {
        recording: Arc<Recording>,
        /// Which of its lines, in turn.
        lines: Arc<[u32]>,
    },
}

impl Source {
    /// Appends request `number`.
    #[inline]
    pub(super) fn put(&self, template: &Template, buffer: &mut Vec<u8>, number: u64) {
        match self {
            Self::Made {
                traffic,
                malformed,
                connection,
            } => {
                let cookie = traffic.cookie(*connection, number);
                match malformed.fault(*connection, number) {
                    None => template.put(buffer, &cookie),
                    Some(fault) => {
                        let line = fault.line(template, &cookie);
                        template.put_line(buffer, &line.target, line.cookie.as_deref());
                    }
                }
            }
            Self::Recorded { recording, lines } => {
                let line = recording.line(lines[index(number)]);
                template.put_line(buffer, line.target, line.cookie);
            }
        }
    }

    /// Request `number` as text.
    pub(super) fn line(&self, template: &Template, number: u64) -> Line {
        match self {
            Self::Made {
                traffic,
                malformed,
                connection,
            } => {
                let cookie = traffic.cookie(*connection, number);
                match malformed.fault(*connection, number) {
                    None => template.line_of(&cookie),
                    Some(fault) => fault.line(template, &cookie),
                }
            }
            Self::Recorded { recording, lines } => {
                let line = recording.line(lines[index(number)]);
                Line {
                    target: line.target.to_owned(),
                    cookie: line.cookie.map(str::to_owned),
                }
            }
        }
    }

    /// True when some of its requests are to be refused.
    pub(super) fn has_malformed(&self) -> bool {
        match self {
            Self::Made { malformed, .. } => !malformed.is_never(),
            Self::Recorded { recording, .. } => recording.has_malformed(),
        }
    }

    /// True when request `number` is to be refused.
    #[inline]
    pub(super) fn is_malformed(&self, number: u64) -> bool {
        match self {
            Self::Made {
                malformed,
                connection,
                ..
            } => malformed.fault(*connection, number).is_some(),
            Self::Recorded { recording, lines } => {
                recording.line(lines[index(number)]).is_malformed
            }
        }
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a recording fits into memory")
}
