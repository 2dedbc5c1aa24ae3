//! Reads limits from tables. `serde` reads each table by itself, so that the errors of all tables are reported together. What it
//! cannot read is not checked further: defaults in its place would add errors that the file does not have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::{
    ConfigErrors, Handling, Mode, NamedLimit, RequeuePolicy, Rule, Rules, Sharing, SharingMode,
    Unknown, handling::Shape,
};
use crate::{
    algorithm::Options,
    decision::Limit,
    limits::DEMANDS_MAX,
    rate::{Parsed, Rate, Time},
};

/// Maximum number of processes that keep to limits together.
const PARTS_MAX: u64 = 1000;

/// Longest name of a group.
const GROUP_CHARS_MAX: usize = 64;

/// What a file says beside its limits.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Top {
    unknown: Option<String>,
    share: Option<String>,
}

/// A limit without its rules.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitTable {
    global: bool,
    from_call: bool,
    keys: Option<Vec<Parsed<String>>>,
    mode: Option<Mode>,
    shape: Option<Shape>,
    dead_letter: Option<RequeuePolicy>,
}

#[derive(Deserialize)]
struct RuleTable {
    id: String,
    rate: Parsed<Rate>,
    #[serde(default)]
    count_refused: bool,
    #[serde(flatten)]
    options: Options,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SharingTable {
    mode: SharingMode,
    redis: String,
    group: String,
    tls_ca: Option<String>,
    tls_cert: Option<String>,
    tls_key: Option<String>,
    members_max: Option<u64>,
    refresh: Option<Parsed<Time>>,
    ttl: Option<Parsed<Time>>,
    timeout: Option<Parsed<Time>>,
    forget_after: Option<Parsed<Time>>,
}

/// Reads what is written.
pub(super) fn read(table: Table) -> Result<Rules, ConfigErrors> {
    let mut reader = Reader {
        errors: Vec::new(),
        parts: 1,
    };
    let rules = reader.rules(table);
    if reader.errors.is_empty() {
        Ok(rules)
    } else {
        Err(ConfigErrors(reader.errors))
    }
}

/// Reads tables, and notes what is wrong with them.
struct Reader {
    errors: Vec<String>,
    /// Of how many who keep to the limits together this is one.
    parts: u64,
}

impl Reader {
    fn wrong(&mut self, path: &str, what: impl fmt::Display) {
        self.errors.push(format!("{path}: {what}"));
    }

    /// Reads one table, which may have had the keys of `others` too; `None` when something is wrong with it.
    fn table<T: DeserializeOwned>(
        &mut self,
        path: &str,
        value: Value,
        others: &[&str],
    ) -> Option<T> {
        // What stands in its place may be a password.
        if !value.is_table() {
            self.wrong(path, format!("a table is needed, not {}", value.type_str()));
            return None;
        }
        let wrong = |error: toml::de::Error| {
            let what = error.message();
            let text = error.to_string();
            // The table within it is in a line of its own.
            let within = text.strip_prefix(what).unwrap_or_default();
            let what = unknown_key(what, others).unwrap_or_else(|| what.to_owned());
            self.wrong(path, (what + within).trim_end().replace('\n', " "));
        };
        value.try_into().map_err(wrong).ok()
    }

    fn rules(&mut self, mut table: Table) -> Rules {
        let limits = match table.remove("limits") {
            Some(Value::Table(limits)) if !limits.is_empty() => limits,
            _ => {
                self.wrong("limits", "at least one is needed, as [limits.NAME]");
                Table::new()
            }
        };
        let sharing = table.remove("sharing");
        let top: Option<Top> = self.table("the file", table.into(), &["limits", "sharing"]);
        let is_read = top.is_some();
        let top = top.unwrap_or_default();
        if let Some(share) = &top.share {
            self.parts = self.parts_of(share);
            if sharing.is_some() {
                self.wrong("sharing", "share and [sharing] exclude each other");
            }
        }
        let unknown = match top.unknown.as_deref() {
            None | Some("refuse") => Unknown::Refuse,
            Some("unlimited") => Unknown::Unlimited,
            Some(name) => match limits.keys().position(|it| it == name) {
                Some(index) => Unknown::Limit(index),
                None => {
                    let what = "is neither refuse nor unlimited nor a limit's name";
                    self.wrong("unknown", format!("`{name}` {what}"));
                    Unknown::Refuse
                }
            },
        };
        let stands_in = |index| unknown == Unknown::Limit(index);
        let limits = limits.into_iter().enumerate();
        let rules = Rules {
            limits: limits
                .filter_map(|(index, (name, limit))| self.limit(name, limit, stands_in(index)))
                .collect(),
            sharing: sharing.and_then(|sharing| self.sharing(sharing)),
            unknown,
        };
        if is_read {
            self.check(&rules.limits);
        }
        rules
    }

    /// Checks limits against each other.
    fn check(&mut self, limits: &[NamedLimit]) {
        let mut limit_of = BTreeMap::new();
        for NamedLimit { name, keys, .. } in limits {
            for key in keys {
                if let Some(first) = limit_of.insert(key, name) {
                    let what = format!("key {key} is already in limits.{first}");
                    self.wrong(&format!("limits.{name}"), what);
                }
            }
        }
        let count = |global| {
            let of_kind = limits.iter().filter(move |it| it.global == global);
            of_kind.map(|limit| limit.rules.len())
        };
        let most = count(false).max().unwrap_or(0) + count(true).sum::<usize>();
        if most > DEMANDS_MAX {
            let what = format!("{most} rules for one call are more than {DEMANDS_MAX}");
            self.wrong("limits", what);
        }
    }

    /// Reads a limit; `None` when its table cannot be read.
    fn limit(&mut self, name: String, value: Value, stands_in: bool) -> Option<NamedLimit> {
        let path = format!("limits.{}", name.escape_debug());
        if name.is_empty() || name.chars().any(char::is_control) {
            self.wrong(&path, "a name is needed, without control characters");
        }
        let mut table: Table = self.table(&path, value, &[])?;
        let rules = table.remove("rules");
        let read: Option<LimitTable> = self.table(&path, table.into(), &["rules"]);
        let Some(read) = read else {
            if let Some(Value::Array(rules)) = rules {
                self.rules_of(&path, rules);
            }
            return None;
        };
        let LimitTable {
            global,
            from_call,
            keys,
            mode,
            shape,
            dead_letter,
        } = read;
        if global && stands_in {
            self.wrong("unknown", format!("{name} is of every call already"));
        }
        if from_call && (global || stands_in) {
            self.wrong(&path, "from_call excludes global, and being `unknown`");
        }
        if from_call && (keys.is_some() || rules.is_some()) {
            let what = "from_call excludes keys and rules: each call says its rule";
            self.wrong(&path, what);
        }
        if global && keys.is_some() {
            self.wrong(&path, "global and keys exclude each other");
        }
        let keys = match keys {
            Some(keys) if keys.is_empty() => {
                self.wrong(&path, "keys is empty");
                Vec::new()
            }
            Some(keys) => keys.into_iter().map(|it| it.0).collect(),
            None if global || stands_in || from_call => Vec::new(),
            None => vec![name.clone()],
        };
        let is_handled = mode.is_some() || shape.is_some() || dead_letter.is_some();
        if global && is_handled {
            let what = "mode, shape and dead_letter are not for a limit of every call, which has no calls of its own";
            self.wrong(&path, what);
        } else if mode != Some(Mode::Shape) && (shape.is_some() || dead_letter.is_some()) {
            let what = "shape and dead_letter are for mode = \"shape\" only";
            self.wrong(&path, what);
        }
        let handling = Handling::new(
            mode.unwrap_or_default(),
            shape.unwrap_or_default(),
            dead_letter.unwrap_or_default(),
        );
        for what in handling.errors() {
            self.wrong(&path, what);
        }
        Some(NamedLimit {
            rules: match rules {
                Some(Value::Array(rules)) if !rules.is_empty() => self.rules_of(&path, rules),
                None if from_call => Vec::new(),
                _ => {
                    self.wrong(&path, "needs rules = [ { id = …, rate = … }, … ]");
                    Vec::new()
                }
            },
            handling,
            name,
            keys,
            global,
            from_call,
            has_explicit_mode: mode.is_some(),
        })
    }

    fn rules_of(&mut self, path: &str, rules: Vec<Value>) -> Vec<Rule> {
        let mut ids = BTreeSet::new();
        let mut read = Vec::new();
        for (index, rule) in rules.into_iter().enumerate() {
            let path = format!("{path}.rules[{index}]");
            if let Some(rule) = self.rule(&path, rule) {
                if !ids.insert(rule.id.clone()) {
                    self.wrong(&path, format!("the id {} is another rule's too", rule.id));
                }
                read.push(rule);
            }
        }
        read
    }

    fn rule(&mut self, path: &str, mut value: Value) -> Option<Rule> {
        if let Value::Table(table) = &mut value {
            table.entry("algorithm").or_insert("token_bucket".into());
        }
        let RuleTable {
            id,
            rate: Parsed(rate),
            count_refused,
            options,
        } = self.table(path, value, &["id", "rate", "count_refused", "algorithm"])?;
        if id.trim().is_empty() || id.chars().any(char::is_control) {
            self.wrong(path, "id: a name is needed, without control characters");
        }
        let algorithm = options.algorithm(rate).checked();
        let algorithm = algorithm.and_then(|it| it.static_share(self.parts));
        let algorithm = algorithm.map_err(|error| self.wrong(path, error)).ok()?;
        if count_refused && algorithm.window().is_none() {
            self.wrong(path, "count_refused is for windows and logs only");
        }
        let limit = Limit {
            algorithm,
            count_refused,
        };
        Some(Rule { id, limit })
    }

    /// The N of `share = "1/N"`.
    fn parts_of(&mut self, share: &str) -> u64 {
        let parts = share.strip_prefix("1/").and_then(|it| it.parse().ok());
        let parts = parts.filter(|parts| (1..=PARTS_MAX).contains(parts));
        parts.unwrap_or_else(|| {
            let what = format!("`{share}` is none from \"1/1\" to \"1/{PARTS_MAX}\"");
            self.wrong("share", what);
            1
        })
    }

    /// None when each keeps to the limits for itself.
    fn sharing(&mut self, sharing: Value) -> Option<Sharing> {
        const PATH: &str = "sharing";
        let read: SharingTable = self.table(PATH, sharing, &[])?;
        let members_max = read.members_max;
        if members_max.is_some_and(|it| !(1..=PARTS_MAX).contains(&it)) {
            self.wrong(PATH, format!("members_max is 1 to {PARTS_MAX}"));
        }
        // It is a part of a key's name, and of the slot in which it is.
        let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let group = read.group;
        if group.is_empty() || group.len() > GROUP_CHARS_MAX || !group.chars().all(is_name) {
            let what = format!(
                "group is 1 to {GROUP_CHARS_MAX} letters, digits, dots, hyphens or underscores: \
                 all that name the same group on this server share the limits of the same names"
            );
            self.wrong(PATH, what);
        }
        let time =
            |given: Option<Parsed<Time>>, unless_set| given.map_or(unless_set, |it| it.0.into());
        let refresh = time(read.refresh, Duration::from_secs(1));
        Some(Sharing {
            mode: read.mode,
            redis: read.redis,
            tls_ca: read.tls_ca,
            tls_cert: read.tls_cert,
            tls_key: read.tls_key,
            group,
            members_max,
            refresh,
            ttl: time(read.ttl, refresh * 3),
            timeout: time(read.timeout, Duration::from_millis(50).min(refresh / 2)),
            forget_after: time(read.forget_after, Duration::from_secs(86_400)),
        })
    }
}

/// The text for a key that `serde` does not know, which lists those that it expects; `others` may be meant too.
fn unknown_key(error: &str, others: &[&str]) -> Option<String> {
    let rest = error.strip_prefix("unknown field `")?;
    let (unknown, expected) = rest.split_once('`')?;
    let known = expected.split('`').skip(1).step_by(2);
    let known = known.chain(others.iter().copied());
    let nearest = known
        .map(|known| (strsim::damerau_levenshtein(unknown, known), known))
        .min()
        .filter(|(slips, known)| *slips <= (known.len() / 4).max(1));
    Some(match nearest {
        Some((_, known)) => format!("unknown key `{unknown}`: did you mean `{known}`?"),
        None => format!("unknown key `{unknown}`{expected}"),
    })
}
