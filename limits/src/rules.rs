//! Limits in a file, as TOML: who is under which.
//!
//! ```toml
//! unknown = "default"            # what a key gets that no limit names: a limit, "refuse" (which it is unless set), or "unlimited"
//!
//! [limits.default]
//! rules = [ { id = "slow", rate = "10/s", burst = 20 } ]
//!
//! [limits.dsp-17]                # of the key of this name, or of all in `keys`, each by itself
//! keys = ["17", "117"]
//! rules = [
//!   { id = "peak", rate = "300/s", burst = 300 },
//!   { id = "hour", rate = "900 000/h", algorithm = "sliding_counter" },
//! ]
//! mode = "shape"                 # what is done with what is over: "observe" (unless set), "police" or "shape"
//! shape = { max_wait = "30s", max_age = "60s", queue_bytes = "64MiB" }
//! dead_letter = { base = "30s", cap = "15m", max_requeues = 8, share = 0.1 }
//!
//! [limits.whole]                 # of all calls together
//! global = true
//! rules = [ { id = "intake", rate = "2000/s", burst = 50 } ]
//! ```
//!
//! A limit with `from_call = true` has no rules and no keys: the program `limiter` takes its rule from each call.
//!
//! `share = "1/3"` at the top is for one of three who have the same file and each keep to a third of every limit. `[sharing]` is for those who
//! share the limits by way of a server, as the load is:
//!
//! ```toml
//! [sharing]
//! mode = "lease"                 # or "exact"
//! redis = "redis://10.0.0.5:6379" # with TLS rediss://, and tls_ca = "FILE"; tls_cert and tls_key for a server that wants them
//! group = "eu"                   # all that name the same group on this server share the limits of the same names
//! refresh = "1s"                 # these are the defaults from here on; members_max has none
//! ttl = "3s"
//! timeout = "50ms"
//! forget_after = "1day"
//! ```
//!
//! A rule is a token bucket unless `algorithm` says otherwise: `token_bucket` (`burst`), `stepped_bucket` (`burst`),
//! `leaky_bucket` (`capacity`, `when_full = "queue"` or `"drop"`), `spacing`, `fixed_window` (`aligned = "clock"` or `"first_call"`), `sliding_log`,
//! `sliding_counter`, `step_window` (`step`), `warm_up` (`warm_up`). Of windows, `rate = "1000/h"` is a limit of 1000 in a
//! window of an hour. `count_refused = true` counts refused calls too.
//!
//! A [`Handling`] is for who enforces the limits: nothing here, nor the program `limiter`, drops, holds or puts back a call. All
//! of `shape` and `dead_letter` may be left out; the numbers above are what they are then.

mod document;
mod handling;
mod reader;
mod sharing;

use std::fmt;

pub use self::{
    document::{Document, LimitDefinition},
    handling::{Handling, Mode, RequeuePolicy},
    sharing::{Sharing, SharingMode},
};

use crate::{
    decision::{Limit, LimitId},
    limits::Limits,
};

/// All that a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// In the order of their names.
    pub limits: Vec<NamedLimit>,
    /// What a key gets that no limit names.
    pub unknown: Unknown,
    /// How several who have this file keep to it together; none when each does for itself.
    pub sharing: Option<Sharing>,
}

/// The rules of some keys, or of every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLimit {
    /// Its name in the file.
    pub name: String,
    /// Whose; empty for every call.
    pub keys: Vec<String>,
    /// Whether it is of all calls together.
    pub global: bool,
    /// At least one, unless each call says its rule.
    pub rules: Vec<Rule>,
    /// Whether the program `limiter` takes its rule from each call: no key is under it.
    pub from_call: bool,
    /// Whether the file says the mode; the plan in words does only then.
    pub has_explicit_mode: bool,
    /// What is done with what is over them; of a limit of every call, and unless the file says it, the default.
    pub handling: Handling,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its name within its limit.
    pub id: String,
    /// What it is.
    pub limit: Limit,
}

/// What a key gets that no limit names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// None of its calls may go.
    Refuse,
    /// Only the limits of every call hold for it.
    Unlimited,
    /// The limit of this place in [`Rules::limits`].
    Limit(usize),
}

/// All that is wrong with a file, a sentence each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl Rules {
    /// Reads a file's text.
    ///
    /// # Errors
    /// With everything that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        Document::parse(text)?.rules()
    }

    /// The limits that hold for a key, and whether any of them names it or stands for those that none names. `None` when
    /// its calls are rejected.
    #[must_use]
    pub fn for_key(&self, key: &str) -> Option<Vec<usize>> {
        let named = |limit: &NamedLimit| limit.keys.iter().any(|it| it == key);
        let own = self.limits.iter().position(named);
        let own = match (&self.unknown, own) {
            (_, Some(own)) => Some(own),
            (Unknown::Limit(limit), None) => Some(*limit),
            (Unknown::Unlimited, None) => None,
            (Unknown::Refuse, None) => return None,
        };
        let global = |index: &usize| self.limits[*index].global;
        let whole = (0..self.limits.len()).filter(global);
        Some(own.into_iter().chain(whole).collect())
    }

    /// Adds all rules to `limits`: the numbers that they have there, by the place of their limit and their own.
    ///
    /// # Panics
    /// When there are 2^32 limits.
    pub fn add_to<K: std::hash::Hash + Eq + Clone>(
        &self,
        limits: &mut Limits<K>,
    ) -> Vec<Vec<LimitId>> {
        let mut add = |rule: &Rule| limits.add(rule.limit).expect("it was checked");
        let limits = self.limits.iter();
        limits
            .map(|limit| limit.rules.iter().map(&mut add).collect())
            .collect()
    }
}

impl fmt::Display for Rules {
    /// The effective plan in words; with `#` as a producer goes by it, in which all keys that no limit names are one.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for limit in &self.limits {
            let whose = match (limit.global, &*limit.keys) {
                (true, _) => "every call".to_owned(),
                (false, []) if limit.from_call => {
                    "each counter by the rule of its calls".to_owned()
                }
                (false, []) if formatter.alternate() => {
                    "all keys that no limit names, together".to_owned()
                }
                (false, []) => "keys that no limit names, each by itself".to_owned(),
                (false, [key]) => format!("key {key}"),
                (false, keys) => format!("keys {}, each by itself", keys.join(", ")),
            };
            writeln!(formatter, "{}: {whose}", limit.name)?;
            for rule in &limit.rules {
                let refused = if rule.limit.count_refused {
                    "; refused calls count too"
                } else {
                    ""
                };
                let algorithm = rule.limit.algorithm;
                writeln!(
                    formatter,
                    "  {} ({}): {algorithm}{refused}",
                    rule.id,
                    algorithm.name()
                )?;
            }
            if limit.has_explicit_mode {
                writeln!(formatter, "  {}", limit.handling)?;
            }
        }
        if let Some(sharing) = &self.sharing {
            writeln!(formatter, "{sharing}")?;
        }
        match &self.unknown {
            Unknown::Refuse => writeln!(formatter, "calls of other keys are refused"),
            Unknown::Unlimited => writeln!(formatter, "other keys have no limit of their own"),
            Unknown::Limit(limit) => {
                let others = match formatter.alternate() {
                    true => "all other keys together",
                    false => "other keys",
                };
                let limit = &self.limits[*limit].name;
                writeln!(formatter, "{others}: as {limit}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
