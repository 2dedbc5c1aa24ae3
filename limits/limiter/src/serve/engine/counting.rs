//! Where calls are counted: locally, or by the server of `[sharing]`.

use std::num::NonZero;

use limits::{
    Limit,
    rules::{Rules, Sharing, SharingMode},
};
use limits_sharing::{Address, exact::ExactRule};

/// Panic message if validated limits turn out to be invalid.
pub(super) const CHECKED: &str = "limits are validated when they are read";

/// Maximum bytes of a rule's id if a server counts.
const RULE_BYTES_MAX: usize = 128;

/// Where calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// In this process.
    Local,
    /// By the server. While it is unavailable, in this process, within 1/N of each limit.
    GuaranteedShare(NonZero<u64>),
    /// By the server only; calls are refused while it is unavailable.
    Server,
}

impl Counting {
    /// The mode for this `[sharing]` table.
    pub fn of(sharing: Option<&Sharing>) -> Self {
        match exact(sharing) {
            None => Self::Local,
            Some(sharing) => match sharing.members_max.and_then(NonZero::new) {
                Some(members) => Self::GuaranteedShare(members),
                None => Self::Server,
            },
        }
    }

    /// The limit that this process enforces by itself.
    pub(super) fn local_limit(self, mut limit: Limit) -> Limit {
        if let Self::GuaranteedShare(members) = self {
            let share = limit.algorithm.guaranteed_share(members.get());
            limit.algorithm = share.expect(CHECKED);
        }
        limit
    }
}

/// The `[sharing]` table if its mode is exact.
pub fn exact(sharing: Option<&Sharing>) -> Option<&Sharing> {
    sharing.filter(|sharing| sharing.mode == SharingMode::Exact)
}

/// Reasons why the server of `[sharing]` cannot decide on these limits; empty without exact sharing.
pub(super) fn sharing_errors(rules: &Rules) -> Vec<String> {
    let Some(sharing) = exact(rules.sharing.as_ref()) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    if let Err(error) = Address::of(sharing).and_then(|it| it.check()) {
        errors.push(error);
    }
    for limit in &rules.limits {
        if limit.from_call {
            errors.push(format!(
                "limits.{}: `from_call` is not supported in sharing mode `exact`",
                limit.name
            ));
        }
        for rule in &limit.rules {
            let mut add = |error: String| {
                errors.push(format!("limits.{}: {}: {error}", limit.name, rule.id));
            };
            if let Err(error) = ExactRule::new(&rule.limit) {
                add(error);
            }
            if rule.id.len() > RULE_BYTES_MAX {
                add(format!(
                    "the id is too long for sharing mode `exact`: use up to {RULE_BYTES_MAX} bytes"
                ));
            }
            let members = sharing.members_max.unwrap_or(1);
            if let Err(error) = rule.limit.algorithm.guaranteed_share(members) {
                add(format!(
                    "1/{members} of this rule is too small to enforce without the server ({error}); unset sharing.members_max to refuse calls while the server is down"
                ));
            }
        }
    }
    errors
}
