//! Parses and checks the tables of a limits file. A table that cannot be deserialized is not checked further, because default values
//! would cause misleading errors.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::{Table, Value};

use super::{
    ConfigErrors, Handling, Mode, NamedLimit, RequeuePolicy, Rule, Rules, Sharing, Unknown,
    handling::Shape,
    tables::{SHARING, Tables},
};
use crate::{
    algorithm::Options,
    decision::Limit,
    limits::DEMANDS_MAX,
    rate::{Parsed, Rate},
};

const INVALID_NAME: &str = "invalid name: use at least one character, and no control characters";

/// Maximum number of processes that share limits.
const MEMBERS_MAX: u64 = 1000;

/// Maximum length of a group's name.
const GROUP_CHARS_MAX: usize = 64;

/// The top-level keys except `limits` and `sharing`.
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
    requeue: Option<RequeuePolicy>,
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

/// Parses and checks the table of a document.
pub(super) fn read(table: Table, tables: Tables) -> Result<Rules, ConfigErrors> {
    let mut reader = Reader { tables, members: 1 };
    let rules = reader.rules(table);
    reader.tables.finish(rules)
}

struct Reader {
    tables: Tables,
    /// Number of processes that enforce the limits, from `share = "1/N"`.
    members: u64,
}

impl Reader {
    fn rules(&mut self, mut table: Table) -> Rules {
        let limits = match table.remove("limits") {
            Some(Value::Table(limits)) if !limits.is_empty() => limits,
            _ => {
                self.tables
                    .error("limits", "add at least one table [limits.NAME]");
                Table::new()
            }
        };
        let sharing = table.remove(SHARING);
        let others = ["limits", SHARING];
        let top: Option<(Top, _)> = self.tables.valid_part("", table.into(), &others);
        let (top, is_complete) = top.unwrap_or_default();
        if let Some(share) = &top.share {
            self.members = self.members_of(share);
            if sharing.is_some() {
                self.tables
                    .error("share", "share and [sharing] are mutually exclusive");
            }
        }
        let unknown = match top.unknown.as_deref() {
            None | Some("refuse") => Unknown::Refuse,
            Some("unlimited") => Unknown::Unlimited,
            Some(name) => match limits.keys().position(|it| it == name) {
                Some(index) => Unknown::Limit(index),
                None => {
                    let what = "use \"refuse\", \"unlimited\" or the name of a limit";
                    self.tables
                        .error("unknown", format!("unknown limit `{name}`: {what}"));
                    Unknown::Refuse
                }
            },
        };
        let is_default = |index| unknown == Unknown::Limit(index);
        let limits = limits.into_iter().enumerate();
        let rules = Rules {
            limits: limits
                .filter_map(|(index, (name, limit))| self.limit(name, limit, is_default(index)))
                .collect(),
            sharing: sharing.and_then(|sharing| self.sharing(sharing)),
            unknown,
        };
        if is_complete {
            self.check(&rules.limits);
        }
        rules
    }

    /// Checks the limits against each other.
    fn check(&mut self, limits: &[NamedLimit]) {
        let mut limit_of = BTreeMap::new();
        for NamedLimit { name, keys, .. } in limits {
            for key in keys {
                if let Some(first) = limit_of.insert(key, name) {
                    let what = format!("key {key} is already in limits.{first}");
                    self.tables.error(&format!("limits.{name}"), what);
                }
            }
        }
        let count = |global| {
            let of_kind = limits.iter().filter(move |it| it.global == global);
            of_kind.map(|limit| limit.rules.len())
        };
        let rules = count(false).max().unwrap_or(0) + count(true).sum::<usize>();
        if rules > DEMANDS_MAX {
            let what = format!("a call can match up to {DEMANDS_MAX} rules, not {rules}");
            self.tables.error("limits", what);
        }
    }

    /// Parses a limit; `is_default` for the limit of unlisted keys. `None` if its table is invalid.
    fn limit(&mut self, name: String, value: Value, is_default: bool) -> Option<NamedLimit> {
        let path = format!("limits.{}", name.escape_debug());
        if name.trim().is_empty() || name.chars().any(char::is_control) {
            self.tables.error(&path, INVALID_NAME);
        }
        let mut table: Table = self.tables.table(&path, value, &[])?;
        let rules = table.remove("rules");
        let read = self.tables.valid_part(&path, table.into(), &["rules"]);
        let (read, is_complete): (LimitTable, _) = read.unwrap_or_default();
        let LimitTable {
            global,
            from_call,
            keys,
            mode,
            shape,
            requeue,
        } = read;
        let is_handled = mode.is_some() || shape.is_some() || requeue.is_some();
        let is_refined = shape.is_some() || requeue.is_some();
        let handling = Handling::new(
            mode.unwrap_or_default(),
            shape.unwrap_or_default(),
            requeue.unwrap_or_default(),
        );
        for (field, range) in handling.errors() {
            let what = format!("out of range: use {range}");
            self.tables.error(&format!("{path}.{field}"), what);
        }
        if !is_complete {
            if let Some(Value::Array(rules)) = rules {
                self.rules_of(&path, rules);
            }
            return None;
        }
        if global && is_default {
            self.tables
                .error("unknown", format!("must not name the global limit {name}"));
        }
        if from_call && (global || is_default) {
            self.tables.error(
                &path,
                "a limit with from_call cannot be global, and cannot be the limit of unlisted keys (`unknown`)",
            );
        }
        if from_call && (keys.is_some() || rules.is_some()) {
            let what = "a limit with from_call cannot have keys or rules: calls provide them";
            self.tables.error(&path, what);
        }
        if global && keys.is_some() {
            self.tables
                .error(&path, "global and keys are mutually exclusive");
        }
        let keys = match keys {
            Some(keys) if keys.is_empty() => {
                self.tables
                    .error(&format!("{path}.keys"), "add at least one key");
                Vec::new()
            }
            Some(keys) => keys.into_iter().map(|it| it.0).collect(),
            None if global || is_default || from_call => Vec::new(),
            None => vec![name.clone()],
        };
        if global && is_handled {
            let what =
                "a global limit has no mode, shape or requeue: set them in the limits with keys";
            self.tables.error(&path, what);
        } else if mode != Some(Mode::Shape) && is_refined {
            let what = "shape and requeue require mode = \"shape\"";
            self.tables.error(&path, what);
        }
        Some(NamedLimit {
            rules: match rules {
                Some(Value::Array(rules)) if !rules.is_empty() => self.rules_of(&path, rules),
                None if from_call => Vec::new(),
                _ => {
                    self.tables
                        .error(&path, "add rules = [ { id = \"…\", rate = \"…\" } ]");
                    Vec::new()
                }
            },
            handling,
            name,
            keys,
            global,
            from_call,
        })
    }

    fn rules_of(&mut self, path: &str, rules: Vec<Value>) -> Vec<Rule> {
        let mut ids = BTreeSet::new();
        let mut read = Vec::new();
        for (index, rule) in rules.into_iter().enumerate() {
            let path = format!("{path}.rules[{index}]");
            if let Some(rule) = self.rule(&path, rule) {
                if !ids.insert(rule.id.clone()) {
                    self.tables
                        .error(&path, format!("duplicate id {}", rule.id));
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
        let others = ["id", "rate", "count_refused", "algorithm"];
        let (rule, is_complete): (RuleTable, _) = self.tables.valid_part(path, value, &others)?;
        let RuleTable {
            id,
            rate: Parsed(rate),
            count_refused,
            options,
        } = rule;
        if id.trim().is_empty() || id.chars().any(char::is_control) {
            self.tables.error(&format!("{path}.id"), INVALID_NAME);
        }
        if !is_complete {
            return None;
        }
        let algorithm = options.algorithm(rate).checked();
        let algorithm = algorithm.and_then(|it| it.guaranteed_share(self.members));
        let algorithm = algorithm
            .map_err(|error| self.tables.error(path, error))
            .ok()?;
        if count_refused && algorithm.window().is_none() {
            self.tables
                .error(path, "count_refused requires an algorithm with a window");
        }
        let limit = Limit {
            algorithm,
            count_refused,
        };
        Some(Rule { id, limit })
    }

    /// The N of `share = "1/N"`.
    fn members_of(&mut self, share: &str) -> u64 {
        let members = share.strip_prefix("1/").and_then(|it| it.parse().ok());
        let members = members.filter(|it| (1..=MEMBERS_MAX).contains(it));
        members.unwrap_or_else(|| {
            let what = format!("invalid share `{share}`: use \"1/1\" to \"1/{MEMBERS_MAX}\"");
            self.tables.error("share", what);
            1
        })
    }

    fn sharing(&mut self, sharing: Value) -> Option<Sharing> {
        let (mut sharing, _): (Sharing, _) = self.tables.valid_part(SHARING, sharing, &[])?;
        let members_max = sharing.members_max;
        if members_max.is_some_and(|it| !(1..=MEMBERS_MAX).contains(&it)) {
            let what = format!("out of range: use 1 to {MEMBERS_MAX}");
            self.tables.error("sharing.members_max", what);
        }
        // The group is part of the server's keys.
        let is_valid = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let group = &sharing.group;
        if !(1..=GROUP_CHARS_MAX).contains(&group.len()) || !group.chars().all(is_valid) {
            let what = format!(
                "invalid group: use 1 to {GROUP_CHARS_MAX} letters, digits, dots, hyphens or underscores"
            );
            self.tables.error("sharing.group", what);
        }
        sharing.set_defaults();
        Some(sharing)
    }
}
