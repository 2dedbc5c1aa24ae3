//! The limits file of a producer: checks in addition to those of the parser, and the configuration of leases.

use limits::rules::{Rules, Sharing, SharingMode, Unknown};

use crate::{Address, lease, terms::Terms};

/// Maximum number of DSPs with a limit.
pub const DSPS_MAX: usize = 4096;

/// Maximum number of shares in a group with `members_max`. For each request, the server must process all of them within `timeout`; other
/// requests wait.
const SHARES_MAX: u64 = 4096;

/// Reasons why a producer rejects valid rules; empty if it accepts them.
pub fn check(rules: &Rules) -> Vec<String> {
    let mut errors = Vec::new();
    let mut dsps = 0;
    for limit in &rules.limits {
        if limit.from_call {
            errors.push(format!(
                "limits.{}: from_call is for limiter serve, where calls provide rules: remove it",
                limit.name
            ));
        }
        for key in &limit.keys {
            dsps += 1;
            // Only the canonical form: `017` would be a different key.
            let is_dsp = |dsp: &u32| *dsp > 0 && dsp.to_string() == *key;
            if key.parse().ok().filter(is_dsp).is_none() {
                errors.push(format!(
                    "limits.{}: invalid DSP `{}`: use numbers from 1 to 4294967295, as in keys = [17]",
                    limit.name,
                    key.escape_debug()
                ));
            }
        }
    }
    if rules.unknown == Unknown::Refuse {
        errors.push(
            "unknown: set the limit that all unlisted DSPs share, or \"unlimited\"; \
             to reject unlisted DSPs, set unknown_dsps = \"refuse\""
                .to_owned(),
        );
    }
    if let Some(global) = rules.limits.iter().find(|limit| limit.global)
        && rules.unknown == Unknown::Unlimited
    {
        errors.push(format!(
            "unknown: \"unlimited\" conflicts with the global limit {}: set the limit that all unlisted DSPs share",
            global.name
        ));
    }
    if let Some(sharing) = &rules.sharing {
        check_sharing(rules, sharing, &mut errors);
    }
    if dsps > DSPS_MAX {
        errors.push(format!("too many DSPs: {dsps} exceed {DSPS_MAX}"));
    }
    errors
}

fn check_sharing(rules: &Rules, sharing: &Sharing, errors: &mut Vec<String>) {
    if sharing.mode == SharingMode::Exact {
        let what = "sharing.mode: exact sharing is for limiter serve: use mode = \"lease\"";
        return errors.push(what.to_owned());
    }
    let config = lease_config(sharing, "");
    if let Err(error) = config.and_then(|it| it.server.check()) {
        errors.push(error);
    }
    let count = rules.limits.len();
    if count > lease::LIMITS_MAX {
        let max = lease::LIMITS_MAX;
        errors.push(format!("sharing: too many limits: {count} exceed {max}"));
    }
    let members_max = sharing.members_max.unwrap_or(1);
    let shares = (count as u64).saturating_mul(members_max);
    if shares > SHARES_MAX {
        errors.push(format!(
            "sharing: too many shares: {count} limits times {members_max} members exceed {SHARES_MAX}: split the file into several groups"
        ));
    }
    for limit in &rules.limits {
        for rule in &limit.rules {
            let algorithm = rule.limit.algorithm;
            let (name, id) = (&limit.name, &rule.id);
            match (algorithm.share(1), sharing.members_max) {
                (Some(_), _) => {}
                (None, None) => errors.push(format!(
                    "limits.{name}: {id}: a {} cannot be leased: set sharing.members_max, so that each producer enforces 1/members_max of it",
                    algorithm.name()
                )),
                (None, Some(members)) => {
                    if let Err(error) = algorithm.guaranteed_share(members) {
                        errors.push(format!("limits.{name}: {id}: 1/{members} of this rule is too small: {error}"));
                    }
                }
            }
        }
    }
}

/// The lease configuration of the producer `member`.
///
/// # Errors
/// If the address or the times are invalid.
pub fn lease_config(sharing: &Sharing, member: &str) -> Result<lease::Config, String> {
    let terms = Terms {
        refresh: Terms::micros(sharing.refresh),
        timeout: Terms::micros(sharing.timeout),
        forget_after: Terms::micros(sharing.forget_after),
        members_max: sharing.members_max.unwrap_or(0),
    };
    Ok(lease::Config {
        server: Address::of(sharing)?,
        group: sharing.group.clone(),
        member: member.to_owned(),
        terms: terms
            .checked()
            .map_err(|error| format!("sharing: {error}"))?,
    })
}
