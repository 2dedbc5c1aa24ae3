//! What one connection is to do in a load.

use std::{net::SocketAddr, sync::Arc};

use super::{request::Template, schedule::Schedule};
use crate::traffic::{Chance, Traffic, nth_word};

/// Keeps the draw of malformed requests apart from the cookies of the same seed.
const MALFORMED: u64 = 0x6a09_e667_f3bc_c909;

/// No DSP has this number, so that the edge must refuse a request with it.
const MALFORMED_DSP: u32 = 0;

/// What a connection is to do.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// Its stream among all of the traffic.
    pub(super) connection: u64,
    pub(super) address: SocketAddr,
    pub(super) template: Arc<Template>,
    pub(super) traffic: Traffic,
    /// Share of the requests that must be refused.
    pub(super) malformed: Chance,
    /// Most requests without an answer.
    pub(super) pipeline: u64,
    /// When requests leave; without one, as soon as the pipeline allows.
    pub(super) schedule: Option<Schedule>,
    /// How many requests to send; `u64::MAX` for no end.
    pub(super) requests: u64,
    /// The fate of each request is kept, not only their number.
    pub(super) keeps_history: bool,
}

impl Task {
    /// Appends request `number`.
    #[inline]
    pub(super) fn put(&self, buffer: &mut Vec<u8>, number: u64) {
        let cookie = self.traffic.cookie(self.connection, number);
        let dsp_id = if self.is_malformed(number) {
            MALFORMED_DSP
        } else {
            cookie.dsp_id()
        };
        self.template.put(buffer, dsp_id, &cookie);
    }

    /// True when request `number` is to be refused: as much a pure function of its place in the load as a cookie is.
    #[inline]
    pub(super) fn is_malformed(&self, number: u64) -> bool {
        let draw = || {
            let stream = nth_word(self.traffic.seed() ^ MALFORMED, self.connection);
            nth_word(nth_word(stream, number), 0)
        };
        !self.malformed.is_never() && self.malformed.hits(draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_share_is_malformed() {
        let count = |share| {
            let task = Task {
                connection: 3,
                address: ([127, 0, 0, 1], 1).into(),
                template: Arc::new(Template::new(&"http://a/".parse().unwrap()).unwrap()),
                traffic: Traffic::new(1, None),
                malformed: Chance::new(share),
                pipeline: 1,
                schedule: None,
                requests: u64::MAX,
                keeps_history: false,
            };
            let requests = (0..10_000).filter(|number| {
                let mut request = Vec::new();
                task.put(&mut request, *number);
                let is_refused = request.starts_with(b"GET /?d=0&");
                assert_eq!(is_refused, task.is_malformed(*number));
                is_refused
            });
            requests.count()
        };
        assert_eq!((count(0.0), count(1.0)), (0, 10_000));
        // The standard deviation is 30.
        assert!(count(0.1).abs_diff(1_000) < 120);
    }
}
