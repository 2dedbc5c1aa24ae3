//! Which limits the server of `[sharing]` can decide on.

use limits::rules::{Rules, Sharing, SharingMode};
use limits_sharing::{Address, exact::ExactRule};

/// Maximum bytes of a rule's id if a server counts.
const RULE_BYTES_MAX: usize = 128;

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
    if sharing.members_max.is_some() {
        errors.push("sharing.members_max: requires mode = \"lease\"".to_owned());
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
        }
    }
    errors
}
