//! Body of `feedback`: the response of a partner.

use runtime::limit_headers::{Demand, LimitHeaders};
use serde::Deserialize;

use super::problem::{Problem, invalid};

/// Status and header fields as the partner sent them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FeedbackBody {
    status: Option<u16>,
    #[serde(flatten)]
    headers: LimitHeaders,
}

impl FeedbackBody {
    /// The status, and what the fields demand `now` nanoseconds after 1970.
    pub(super) fn read(&self, now: u64) -> Result<(u16, Demand), Problem> {
        let status = self.status.ok_or_else(|| invalid("missing `status`"))?;
        if !(100..=599).contains(&status) {
            return Err(invalid(format!("`status` is {status}: use 100 to 599")));
        }
        let now = std::time::Duration::from_nanos(now);
        Ok((status, self.headers.demand(status, now)))
    }
}
