//! Limits files in TOML.
//!
//! ```toml
//! unknown = "default"            # limit of unlisted keys: a limit's name, "refuse" (default) or "unlimited"
//!
//! [limits.default]
//! rules = [ { id = "slow", rate = "10/s", burst = 20 } ]
//!
//! [limits.dsp-17]                # applies to the key of this name, or to each key in `keys`
//! keys = ["17", "117"]
//! rules = [
//!   { id = "peak", rate = "300/s", burst = 300 },
//!   { id = "hour", rate = "900 000/h", algorithm = "sliding_counter" },
//! ]
//! mode = "shape"                 # handling of calls over the limit: "observe" (default), "police" or "shape"
//! shape = { max_wait = "30s", max_age = "60s", queue_bytes = "64MiB" }
//! requeue = { base = "30s", cap = "15m", max = 8, share = 0.1 }
//!
//! [limits.whole]                 # applies to all calls together
//! global = true
//! rules = [ { id = "intake", rate = "2000/s", burst = 50 } ]
//! ```
//!
//! A limit with `from_call = true` has no rules and no keys: `limiter serve` takes the rule from each call.
//!
//! `[sharing]` shares the limits of several processes through a server:
//!
//! ```toml
//! [sharing]
//! mode = "lease"                 # or "exact"
//! redis = "redis://10.0.0.5:6379" # or rediss:// with tls_ca = "FILE", and tls_cert and tls_key for a client certificate
//! group = "eu"                   # processes with the same group share limits of the same name
//! refresh = "1s"                 # defaults from here on; members_max has no default
//! timeout = "50ms"
//! forget_after = "1day"
//! ```
//!
//! The `algorithm` of a rule is one of [`ALGORITHMS`](crate::ALGORITHMS), `token_bucket` by default. Its options have the names of the
//! fields of [`Algorithm`](crate::Algorithm). `leaky_bucket` also has `when_full = "queue"` or `"drop"`, and `spacing` is a token bucket
//! with a burst of 1. For windows, `rate = "1000/h"` is a limit of 1000 in a window of one hour. `count_refused = true` counts refused
//! calls.
//!
//! The process that enforces the limits applies the [`Handling`]; neither this crate nor `limiter` drops or queues calls. All keys of
//! `shape` and `requeue` are optional, with the defaults above.

mod handling;
mod reader;
mod sharing;
mod tables;

use std::fmt;

pub use toml::Table;

pub use self::{
    handling::{Handling, Mode, RequeuePolicy, Shape},
    sharing::{Sharing, SharingMode},
    tables::Tables,
};

use crate::{
    decision::{Limit, LimitId},
    limits::Limits,
};

/// The contents of a limits file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// All limits, by name.
    pub limits: Vec<NamedLimit>,
    /// The limit of unlisted keys.
    pub unknown: Unknown,
    /// How several processes share the limits; `None` if each enforces them independently.
    pub sharing: Option<Sharing>,
}

/// A limit with its keys and rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLimit {
    /// Its name in the file.
    pub name: String,
    /// Its keys; empty for a global limit and for the limit of unlisted keys.
    pub keys: Vec<String>,
    /// Whether it applies to all calls together.
    pub global: bool,
    /// At least one rule, except for a limit with `from_call`.
    pub rules: Vec<Rule>,
    /// Whether `limiter serve` takes its rule from each call.
    pub from_call: bool,
    /// Handling of calls over the limit; the default for a global limit.
    pub handling: Handling,
}

/// One rule of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its id, unique within the limit.
    pub id: String,
    /// Its algorithm and parameters.
    pub limit: Limit,
}

/// The limit of unlisted keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// All calls of unlisted keys are refused.
    Refuse,
    /// Only the global limits apply.
    Unlimited,
    /// The limit with this index in [`Rules::limits`].
    Limit(usize),
}

/// The errors of a limits file, one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigErrors(pub Vec<String>);

impl Rules {
    /// Parses a limits file.
    ///
    /// ```
    /// use limits::rules::Rules;
    ///
    /// let rules = Rules::parse("[limits.alpha]\nrules = [ { id = 'peak', rate = '300/s', burst = 30 } ]")?;
    /// assert_eq!(rules.for_key("alpha"), Some(vec![0]));
    /// assert_eq!(rules.for_key("beta"), None, "calls of unlisted keys are refused by default");
    ///
    /// let errors = Rules::parse("[limits.alpha]\nrules = [ { id = 'peak', rate = '300/s', brust = 30 } ]").unwrap_err();
    /// assert_eq!(errors.to_string(), "line 2: limits.alpha.rules[0]: unknown key `brust`, expected one of `burst`, `id`, `rate`, `count_refused`, `algorithm`");
    /// # Ok::<(), limits::rules::ConfigErrors>(())
    /// ```
    ///
    /// # Errors
    /// All errors of the file, with line numbers.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let (table, tables) = Tables::parse(text)?;
        Self::read(table, tables)
    }

    /// Reads the tables of a limits file, which may be a part of another file.
    ///
    /// # Errors
    /// All errors, including those that `tables` already contains.
    pub fn read(table: toml::Table, tables: Tables) -> Result<Self, ConfigErrors> {
        reader::read(table, tables)
    }

    /// The indexes of the limits that apply to a key, or `None` if its calls are refused.
    pub fn for_key(&self, key: &str) -> Option<Vec<usize>> {
        let is_listed = |limit: &NamedLimit| limit.keys.iter().any(|it| it == key);
        let own = match (&self.unknown, self.limits.iter().position(is_listed)) {
            (_, Some(own)) => Some(own),
            (Unknown::Limit(limit), None) => Some(*limit),
            (Unknown::Unlimited, None) => None,
            (Unknown::Refuse, None) => return None,
        };
        let is_global = |index: &usize| self.limits[*index].global;
        let global = (0..self.limits.len()).filter(is_global);
        Some(own.into_iter().chain(global).collect())
    }

    /// Adds all rules to `limits`. Returns the id of each rule, indexed by limit and rule.
    ///
    /// # Panics
    /// If there are 2^32 limits.
    pub fn add_to<K: std::hash::Hash + Eq + Clone>(
        &self,
        limits: &mut Limits<K>,
    ) -> Vec<Vec<LimitId>> {
        let mut add = |rule: &Rule| limits.add(rule.limit).expect("a checked limit");
        let limits = self.limits.iter();
        limits
            .map(|limit| limit.rules.iter().map(&mut add).collect())
            .collect()
    }
}

impl fmt::Display for Rules {
    /// A description of all limits. The alternate form (`{:#}`) is for a producer, which applies modes, and where all
    /// unlisted keys share one limit.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for limit in &self.limits {
            let keys = match (limit.global, &*limit.keys) {
                (true, _) => "all calls together".to_owned(),
                (false, []) if limit.from_call => {
                    "each counter, with the rule in its calls".to_owned()
                }
                (false, []) if formatter.alternate() => "all unlisted keys together".to_owned(),
                (false, []) => "each unlisted key".to_owned(),
                (false, [key]) => format!("key {key}"),
                (false, keys) => format!("each of the keys {}", keys.join(", ")),
            };
            writeln!(formatter, "{}: {keys}", limit.name)?;
            for Rule { id, limit } in &limit.rules {
                let (algorithm, name) = (limit.algorithm, limit.algorithm.name());
                let refused = ["", "; refused calls count"][usize::from(limit.count_refused)];
                writeln!(formatter, "  {id} ({name}): {algorithm}{refused}")?;
            }
            if formatter.alternate() && !limit.global {
                writeln!(formatter, "  mode {}", limit.handling.mode)?;
            }
        }
        if let Some(sharing) = &self.sharing {
            writeln!(formatter, "{sharing}")?;
        }
        match &self.unknown {
            Unknown::Refuse => writeln!(formatter, "unlisted keys: refused"),
            Unknown::Unlimited => writeln!(formatter, "unlisted keys: unlimited"),
            Unknown::Limit(limit) => {
                writeln!(formatter, "unlisted keys: {}", self.limits[*limit].name)
            }
        }
    }
}

#[cfg(test)]
mod tests;
