//! Checks stores against the requests that were sent: every pair of user and DSP must have its newest value, and no other pair may exist.
//!
//! Sent cookies are generated again from their seed. The requests ([`SentRequests`], 16 bytes each) are sorted by a
//! hash of their pair. For each stored cookie, the requests of its pair are looked up and compared.
//!
//! A stored value is correct if its request may be the newest of the pair, that is, if no accepted request is
//! *certainly* newer. A request is certainly newer if it was sent later on the same connection, or after the response
//! to the other request. Between two producers a margin applies ([`PRODUCER_CLOCK_MARGIN`]), because cookies are sent
//! in chunks that carry only the time of their first cookie. A request without a response may have been accepted: its
//! value may be stored but need not be.
//!
//! Two pairs with the same 64-bit hash could hide one missing pair. The probability is 1 in 370,000 for ten million pairs.

mod check;
mod scan;
mod sent;

pub use self::{
    check::{LossPredicate, StoreCheck, StoreVerdict},
    scan::{embedded, mongodb},
    sent::{
        LostRequest, PRODUCER_CLOCK_MARGIN, RequestHistory, RequestOutcome, SentRequests, Source,
    },
};

#[cfg(test)]
mod tests;
