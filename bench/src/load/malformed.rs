//! Requests that an edge must refuse: each breaks one rule of the contract, and which one is as much a pure function of
//! its place in the load as a cookie is.

use super::request::{Line, Template};
use crate::traffic::{Chance, SyntheticCookie, nth_word};

/// Keeps what is drawn here apart from the cookies of the same seed.
const MALFORMED: u64 = 0x6a09_e667_f3bc_c909;

/// One more byte than the longest buyer uid and user id of the contract.
const BUYER_UID_TOO_LONG: usize = proto::limits::BUYER_UID_BYTES_MAX + 1;
const USER_ID_TOO_LONG: usize = proto::limits::USER_ID_BYTES_MAX + 1;

/// Which requests are malformed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Malformed {
    seed: u64,
    share: Chance,
}

/// What is wrong with a request: the rule of the contract it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    DspMissing,
    DspEmpty,
    DspNoNumber,
    DspZero,
    DspTooLarge,
    DspTwice,
    BuyerMissing,
    BuyerEmpty,
    BuyerTwice,
    BuyerTooLong,
    BuyerEncoding,
    BuyerNotUtf8,
    BuyerControl,
    UserMissing,
    UserEmpty,
    UserTooLong,
    UserInvalid,
}

impl Fault {
    const ALL: [Self; 17] = [
        Self::DspMissing,
        Self::DspEmpty,
        Self::DspNoNumber,
        Self::DspZero,
        Self::DspTooLarge,
        Self::DspTwice,
        Self::BuyerMissing,
        Self::BuyerEmpty,
        Self::BuyerTwice,
        Self::BuyerTooLong,
        Self::BuyerEncoding,
        Self::BuyerNotUtf8,
        Self::BuyerControl,
        Self::UserMissing,
        Self::UserEmpty,
        Self::UserTooLong,
        Self::UserInvalid,
    ];

    /// The request of `cookie` with this fault.
    pub(super) fn line(self, template: &Template, cookie: &SyntheticCookie) -> Line {
        let (dsp, buyer) = (cookie.dsp_id(), cookie.buyer_uid());
        let query = match self {
            Self::DspMissing => format!("b={buyer}"),
            Self::DspEmpty => format!("d=&b={buyer}"),
            Self::DspNoNumber => format!("d=dsp-{dsp}&b={buyer}"),
            Self::DspZero => format!("d=0&b={buyer}"),
            Self::DspTooLarge => format!("d={}&b={buyer}", u64::from(u32::MAX) + 1),
            Self::DspTwice => format!("d={dsp}&b={buyer}&d={dsp}"),
            Self::BuyerMissing => format!("d={dsp}"),
            Self::BuyerEmpty => format!("d={dsp}&b="),
            Self::BuyerTwice => format!("d={dsp}&b={buyer}&b={buyer}"),
            Self::BuyerTooLong => format!("d={dsp}&b={}", "x".repeat(BUYER_UID_TOO_LONG)),
            Self::BuyerEncoding => format!("d={dsp}&b={buyer}%4"),
            Self::BuyerNotUtf8 => format!("d={dsp}&b={buyer}%ff"),
            Self::BuyerControl => format!("d={dsp}&b={buyer}%0a"),
            _ => format!("d={dsp}&b={buyer}"),
        };
        let user = cookie.user_id();
        let header = match self {
            Self::UserMissing => None,
            Self::UserEmpty => Some("uid=".to_owned()),
            Self::UserTooLong => Some(format!("uid={}", "u".repeat(USER_ID_TOO_LONG))),
            Self::UserInvalid => Some(format!("uid={user},{user}")),
            _ => Some(format!("uid={user}")),
        };
        template.line(&query, header)
    }
}

impl Malformed {
    /// This share of the requests of `seed`, from 0 to 1.
    pub(super) fn new(seed: u64, share: f64) -> Self {
        Self {
            seed: seed ^ MALFORMED,
            share: Chance::new(share),
        }
    }

    /// True when there are none.
    pub(super) fn is_never(&self) -> bool {
        self.share.is_never()
    }

    /// What is wrong with this request; `None` for nothing.
    #[inline]
    pub(super) fn fault(&self, connection: u64, number: u64) -> Option<Fault> {
        if self.is_never() {
            return None;
        }
        let words = nth_word(nth_word(self.seed, connection), number);
        let kinds = Fault::ALL.len() as u64;
        let kind = usize::try_from(nth_word(words, 1) % kinds).expect("it is small");
        self.share
            .hits(nth_word(words, 0))
            .then(|| Fault::ALL[kind])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::traffic::Traffic;

    #[test]
    fn stated_share_is_malformed_in_every_way() {
        let faults = |share| {
            let malformed = Malformed::new(1, share);
            (0..10_000)
                .filter_map(|number| malformed.fault(number % 4, number))
                .collect::<Vec<_>>()
        };
        assert_eq!((faults(0.0).len(), faults(1.0).len()), (0, 10_000));
        // The standard deviation is 30.
        assert!(faults(0.1).len().abs_diff(1_000) < 120);
        let template = Template::new(&"http://a/".parse().unwrap()).unwrap();
        let cookie = Traffic::new(1, None).cookie(0, 0);
        let lines: HashSet<_> = faults(0.1)
            .iter()
            .map(|fault| fault.line(&template, &cookie))
            .map(|line| (line.target, line.cookie))
            .collect();
        assert_eq!(lines.len(), Fault::ALL.len());
        let good = template.line_of(&cookie);
        assert!(!lines.contains(&(good.target, good.cookie)));
    }
}
