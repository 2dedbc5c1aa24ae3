//! The rules of a file of limits that a producer can go by: limits of DSPs, kept alone or on lease.

use limits::rules::{Rules, Sharing, SharingMode, Unknown};

use crate::{Address, lease, terms::Terms};

/// Most DSPs that a file may name.
pub const DSPS_MAX: usize = 4096;

/// Most shares of a group whose members are known: the server goes over all of them for each question, in the time of `timeout`, and does nothing else
/// meanwhile.
const SHARES_MAX: u64 = 4096;

/// What a producer cannot go by, though the rules are in order.
#[must_use]
pub fn check(rules: &Rules) -> Vec<String> {
    let mut errors = Vec::new();
    let mut dsps = 0;
    for limit in &rules.limits {
        if limit.from_call {
            errors.push(format!(
                "limits.{}: from_call is for limiter serve: a producer gets no rules from calls",
                limit.name
            ));
        }
        for key in &limit.keys {
            dsps += 1;
            // The number as it is written elsewhere too: `017` would be another key.
            let is_dsp = |dsp: &u32| *dsp > 0 && dsp.to_string() == *key;
            if key.parse().ok().filter(is_dsp).is_none() {
                errors.push(format!(
                    "limits.{}: `{}` is not a DSP, which is a number from 1 to 4294967295: name them, as in keys = [17]",
                    limit.name,
                    key.escape_debug()
                ));
            }
        }
    }
    if rules.unknown == Unknown::Refuse {
        errors.push(
            "unknown: name the limit that all other DSPs share, or \"unlimited\"; \
             who is to refuse unknown DSPs sets --unknown-dsps"
                .to_owned(),
        );
    }
    if let Some(whole) = rules.limits.iter().find(|limit| limit.global)
        && rules.unknown == Unknown::Unlimited
    {
        errors.push(format!(
            "unknown: what is unlimited would not count under {}, which is of every cookie: name the limit that all other DSPs share",
            whole.name
        ));
    }
    if let Some(sharing) = &rules.sharing {
        check_sharing(rules, sharing, &mut errors);
    }
    if dsps > DSPS_MAX {
        errors.push(format!("{dsps} DSPs are more than {DSPS_MAX}"));
    }
    errors
}

fn check_sharing(rules: &Rules, sharing: &Sharing, errors: &mut Vec<String>) {
    if sharing.mode == SharingMode::Exact {
        let what = "sharing: mode: exact sharing is for limiter serve: use mode = \"lease\"";
        return errors.push(what.to_owned());
    }
    let config = lease_config(sharing, "");
    if let Err(error) = config.and_then(|it| it.server.check()) {
        errors.push(error);
    }
    let count = rules.limits.len();
    if count > lease::LIMITS_MAX {
        let most = lease::LIMITS_MAX;
        errors.push(format!("sharing: {count} limits are more than {most}"));
    }
    let members_max = sharing.members_max.unwrap_or(1);
    let shares = count as u64 * members_max;
    if shares > SHARES_MAX {
        errors.push(format!(
            "sharing: {count} limits of {members_max} members are {shares} shares, more than {SHARES_MAX}: spread them over several groups, with a file each"
        ));
    }
    for limit in &rules.limits {
        for rule in &limit.rules {
            let algorithm = rule.limit.algorithm;
            let (name, id) = (&limit.name, &rule.id);
            match (algorithm.share(1), sharing.members_max) {
                (Some(_), _) => {}
                (None, None) => errors.push(format!(
                    "limits.{name}: {id}: shares of a {} cannot move within its window: set sharing.members_max, and each has its part of it",
                    algorithm.name()
                )),
                (None, Some(parts)) => {
                    if let Err(error) = algorithm.static_share(parts) {
                        errors.push(format!("limits.{name}: {id}: its part is too small: {error}"));
                    }
                }
            }
        }
    }
}

/// What a producer of this name needs to take part in shared limits.
///
/// # Errors
/// When the address or the times are wrong.
pub fn lease_config(sharing: &Sharing, member: &str) -> Result<lease::Config, String> {
    let terms = Terms {
        refresh: Terms::micros(sharing.refresh),
        ttl: Terms::micros(sharing.ttl),
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
