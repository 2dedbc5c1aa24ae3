//! Where calls are counted: here, or by the server of `[sharing]`.

use std::num::NonZero;

use limits::{
    Limit,
    rules::{Rules, Sharing, SharingMode},
};
use limits_sharing::{Address, exact::ExactRule};

/// Why a limit can be kept to.
pub(super) const CHECKED: &str = "it was checked when it was read";

/// Most bytes of a rule's name, where a server counts.
const RULE_BYTES_MAX: usize = 128;

/// Where calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Here alone.
    Here,
    /// By a server, and while it is lost here, by one of so many parts of each limit.
    Part(NonZero<u64>),
    /// By a server alone.
    Elsewhere,
}

impl Counting {
    /// What a file says.
    #[must_use]
    pub fn of(sharing: Option<&Sharing>) -> Self {
        match exact(sharing) {
            None => Self::Here,
            Some(sharing) => match sharing.members_max.and_then(NonZero::new) {
                Some(parts) => Self::Part(parts),
                None => Self::Elsewhere,
            },
        }
    }

    /// What is kept to here of a limit.
    pub(super) fn part(self, limit: Limit) -> Limit {
        match self {
            Self::Part(parts) => Limit {
                algorithm: limit.algorithm.static_share(parts.get()).expect(CHECKED),
                ..limit
            },
            Self::Here | Self::Elsewhere => limit,
        }
    }
}

/// What a file says of a server that decides.
#[must_use]
pub fn exact(sharing: Option<&Sharing>) -> Option<&Sharing> {
    sharing.filter(|sharing| sharing.mode == SharingMode::Exact)
}

/// What the server of `[sharing]` cannot decide on, if one is to; sentences that say what is wrong.
#[must_use]
pub fn unfit(rules: &Rules) -> Vec<String> {
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
                "limits.{}: a limit with from_call cannot be exact",
                limit.name
            ));
        }
        for rule in &limit.rules {
            let mut wrong = |what: String| {
                errors.push(format!("limits.{}: {}: {what}", limit.name, rule.id));
            };
            if let Err(error) = ExactRule::new(&rule.limit) {
                wrong(error.to_string());
            }
            if rule.id.len() > RULE_BYTES_MAX {
                wrong(format!(
                    "an id has up to {RULE_BYTES_MAX} bytes where a server counts"
                ));
            }
            let members = sharing.members_max.unwrap_or(1);
            if let Err(error) = rule.limit.algorithm.static_share(members) {
                wrong(format!(
                    "1/{members} of this rule is too small to enforce without the server ({error}); unset sharing.members_max to refuse calls while the server is down"
                ));
            }
        }
    }
    errors
}
