//! Messages: what they ask, and what they answer.

use std::time::Duration;

use limiter_proto::v1::{
    self, DelayRequest, FeedbackRequest, IncrementRequest, ReserveRequest, Slot,
};

use super::super::{
    asked::{Asked, Counter, Feedback, LIMITS_OF_A_CALL_MAX, What, horizon, invalid, requests},
    engine,
    problem::Problem,
};

fn counters(of: &[v1::Counter]) -> Result<Vec<Counter>, Problem> {
    if !(1..=LIMITS_OF_A_CALL_MAX).contains(&of.len()) {
        return Err(invalid(format!("of: 1 to {LIMITS_OF_A_CALL_MAX}")));
    }
    let counters = of.iter().map(|it| Counter::named(&it.limit, &it.counter));
    counters.collect()
}

impl TryFrom<DelayRequest> for Asked {
    type Error = Problem;

    fn try_from(request: DelayRequest) -> Result<Self, Problem> {
        Ok(Self {
            of: counters(&request.of)?,
            what: What::Delay {
                requests: requests(request.n)?,
            },
        })
    }
}

impl TryFrom<ReserveRequest> for Asked {
    type Error = Problem;

    fn try_from(request: ReserveRequest) -> Result<Self, Problem> {
        Ok(Self {
            of: counters(&request.of)?,
            what: What::Reserve {
                requests: requests(request.n)?,
                horizon: horizon(request.horizon_micros.map(Duration::from_micros))?,
                is_held: request.wait,
            },
        })
    }
}

impl TryFrom<IncrementRequest> for Asked {
    type Error = Problem;

    fn try_from(request: IncrementRequest) -> Result<Self, Problem> {
        let at = request.at_unix_micros;
        Ok(Self {
            of: counters(&request.of)?,
            what: What::Increment {
                requests: requests(request.n)?,
                at: at.map(|micros| micros.saturating_mul(1_000)),
            },
        })
    }
}

impl TryFrom<FeedbackRequest> for Asked {
    type Error = Problem;

    fn try_from(request: FeedbackRequest) -> Result<Self, Problem> {
        Ok(Self {
            of: counters(request.of.as_slice())?,
            what: What::Feedback(Feedback {
                status: Some(u16::try_from(request.status).unwrap_or(u16::MAX)),
                retry_after: request.retry_after,
                ratelimit: request.ratelimit,
                x_ratelimit_remaining: request.x_ratelimit_remaining,
                x_ratelimit_reset: request.x_ratelimit_reset,
            }),
        })
    }
}

impl From<&engine::Slot> for Slot {
    fn from(slot: &engine::Slot) -> Self {
        let now_unix_micros = slot.now / 1_000;
        let at_unix_micros = if slot.at > slot.now {
            slot.at.div_ceil(1_000)
        } else {
            slot.at / 1_000
        };
        Self {
            at_unix_micros,
            now_unix_micros,
            wait_micros: at_unix_micros.saturating_sub(now_unix_micros),
            binding: slot
                .binding
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_slot(at: u64, now: u64, expected: (u64, u64, u64)) {
        let slot = engine::Slot {
            at,
            now,
            binding: Some(engine::Binding::Learned),
        };
        let slot = Slot::from(&slot);
        let told = (slot.at_unix_micros, slot.now_unix_micros, slot.wait_micros);
        assert_eq!(told, expected, "{at} {now}");
        assert_eq!(slot.binding, "learned");
    }

    #[test]
    fn no_slot_is_told_early_and_what_may_go_has_no_wait() {
        check_slot(1_999, 1_999, (1, 1, 0));
        check_slot(500, 1_999, (0, 1, 0));
        check_slot(2_000, 1_999, (2, 1, 1));
        check_slot(2_001, 1_999, (3, 1, 2));
        check_slot(1_999, 1_001, (2, 1, 1));
        check_slot(u64::MAX, 0, (u64::MAX / 1_000 + 1, 0, u64::MAX / 1_000 + 1));
    }

    #[test]
    fn messages_are_within_the_bounds_of_calls() {
        let counter = v1::Counter {
            limit: "a".to_owned(),
            counter: "k".to_owned(),
        };
        let delay = |of: Vec<v1::Counter>, n| Asked::try_from(DelayRequest { of, n });
        let asked = delay(vec![counter.clone(); 16], None).unwrap();
        assert!(asked.of.len() == 16 && matches!(asked.what, What::Delay { requests: 1 }));
        assert!(delay(Vec::new(), None).is_err());
        assert!(delay(vec![counter.clone(); 17], None).is_err());
        assert!(delay(vec![v1::Counter::default()], None).is_err());
        assert!(delay(vec![counter], Some(0)).is_err());
        assert!(Asked::try_from(FeedbackRequest::default()).is_err());
    }
}
