//! Which calls are answered. A call must be within the rate of its connection, have a token if tokens are required, and
//! be within the rates of its address and of all calls, and within the call budget. The order matters: a client without
//! a token takes nothing from clients that have one.

use std::{net::IpAddr, sync::Arc};

use http::Request;
use tokio::time::Instant;
use tonic::Status;

use super::{
    call_budget::{AddressShare, CallKind, Grant},
    call_rates::ConnectionLimits,
};
use crate::security::tokens::TokenCheck;

/// What every call of one connection must pass.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) limits: ConnectionLimits,
    pub(super) tokens: Option<Arc<TokenCheck>>,
    pub(super) peer: IpAddr,
}

impl Admission {
    /// Admits a call and returns what it holds of the budget.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn admit<B>(&mut self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        self.limits.admit_own(now)?;
        if let Some(tokens) = &self.tokens {
            let admitted = tokens.admit(request, self.peer);
            admitted.inspect_err(|_| self.limits.refused())?;
        }
        let kind = CallKind::of(request.uri().path());
        self.limits.admit_among_all(kind, now)?;
        self.limits.admit_bytes(kind, now)
    }

    /// The share of the call budget that this connection's calls draw on.
    pub(super) fn share(&self) -> AddressShare {
        self.limits.share()
    }

    /// Whether the client was refused so often that its connection is to be closed.
    pub(super) fn is_abused(&self) -> bool {
        self.limits.is_abused()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use runtime::metrics::Registry;
    use tonic::Code;

    use super::{super::call_rates::CallLimits, *};
    use crate::security::tokens::tests::token_check;

    #[test]
    fn calls_without_a_token_take_nothing_from_those_with_one() {
        let limits = CallLimits::register(&Registry::new()).unwrap();
        let tokens = Arc::new(token_check("the-only-good-token\n"));
        // By then every bucket is full.
        let now = Instant::now() + Duration::from_secs(1);
        let of_a_connection = || Admission {
            limits: limits.of_connection(Ipv4Addr::LOCALHOST.into()),
            tokens: Some(Arc::clone(&tokens)),
            peer: Ipv4Addr::LOCALHOST.into(),
        };
        let refusal = |stranger: &mut Admission| {
            let refused = stranger.admit(&Request::new(()), now);
            refused.unwrap_err().code()
        };
        // All at one moment, and more calls than all connections together may make.
        for _ in 0..100 {
            let mut stranger = of_a_connection();
            assert!((0..200).all(|_| refusal(&mut stranger) == Code::Unauthenticated));
            assert_eq!(refusal(&mut stranger), Code::ResourceExhausted);
        }
        let mut known = Request::new(());
        let token = "Bearer the-only-good-token".parse().unwrap();
        known.headers_mut().insert("authorization", token);
        assert!(of_a_connection().admit(&known, now).is_ok());
    }
}
