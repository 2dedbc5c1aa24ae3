//! Which calls are answered: those within their connection's rate, with a token where one is asked for, within the
//! rate of all and the budget of bytes; in this order, so that whoever has no token takes nothing from whoever has one.

use std::{net::IpAddr, sync::Arc};

use http::Request;
use tokio::time::Instant;
use tonic::Status;

use super::{
    budget::{Grant, Kind, Share},
    rates::ConnectionCalls,
};
use crate::security::guard::Guard;

/// What stands between the calls of one connection and the services.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) calls: ConnectionCalls,
    pub(super) guard: Option<Arc<Guard>>,
    pub(super) peer: IpAddr,
}

impl Admission {
    /// What a call holds that is answered.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn admit<B>(&mut self, request: &Request<B>, now: Instant) -> Result<Grant, Status> {
        self.calls.admit_own(now)?;
        if let Some(guard) = &self.guard {
            let admitted = guard.admit(request, self.peer);
            admitted.inspect_err(|_| self.calls.refused())?;
        }
        let kind = Kind::of(request.uri().path());
        self.calls.admit_among_all(kind, now)?;
        self.calls.admit_bytes(kind, now)
    }

    /// What of the budget of bytes is for this connection's calls.
    pub(super) fn share(&self) -> Share {
        self.calls.share()
    }

    /// Whether the client goes on whatever it is told.
    pub(super) fn is_abused(&self) -> bool {
        self.calls.is_abused()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use runtime::metrics::Registry;
    use tonic::Code;

    use super::{super::rates::Calls, *};
    use crate::security::guard::tests::guard;

    #[test]
    fn calls_without_a_token_take_nothing_from_those_with_one() {
        let calls = Calls::register(&Registry::new()).unwrap();
        let guard = Arc::new(guard("the-only-good-token\n"));
        // When every bucket is full.
        let now = Instant::now() + Duration::from_secs(1);
        let of_a_connection = || Admission {
            calls: calls.of_connection(Ipv4Addr::LOCALHOST.into()),
            guard: Some(Arc::clone(&guard)),
            peer: Ipv4Addr::LOCALHOST.into(),
        };
        let refusal = |stranger: &mut Admission| {
            let refused = stranger.admit(&Request::new(()), now);
            refused.unwrap_err().code()
        };
        // All of them at one moment: more than all connections may make.
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
