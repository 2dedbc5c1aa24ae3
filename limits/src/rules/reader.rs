//! Parses and checks the tables of a limits file. A table that cannot be deserialized is not checked further, because default values
//! would cause misleading errors.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::{Table, Value};

use super::{
    ConfigErrors, Handling, Mode, NamedLimit, RequeuePolicy, Rule, Rules, Shape, Sharing, Unknown,
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
pub(super) fn read(table: Table, mut tables: Tables) -> Result<Rules, ConfigErrors> {
    let rules = read_rules(&mut tables, table);
    tables.finish(rules)
}

fn read_rules(tables: &mut Tables, mut table: Table) -> Rules {
    let limits = match table.remove("limits") {
        Some(Value::Table(limits)) if !limits.is_empty() => limits,
        _ => {
            tables.error("limits", "add at least one table [limits.NAME]");
            Table::new()
        }
    };
    let sharing = table.remove(SHARING);
    let others = ["limits", SHARING];
    let top: Option<(Top, _)> = tables.valid_part("", table.into(), &others);
    let (top, is_complete) = top.unwrap_or_default();
    let unknown = match top.unknown.as_deref() {
        None | Some("refuse") => Unknown::Refuse,
        Some("unlimited") => Unknown::Unlimited,
        Some(name) => match limits.keys().position(|it| it == name) {
            Some(index) => Unknown::Limit(index),
            None => {
                let what = "use \"refuse\", \"unlimited\" or the name of a limit";
                tables.error("unknown", format!("unknown limit `{name}`: {what}"));
                Unknown::Refuse
            }
        },
    };
    let is_default = |index| unknown == Unknown::Limit(index);
    let limits = limits.into_iter().enumerate();
    let rules = Rules {
        limits: limits
            .filter_map(|(index, (name, limit))| read_limit(tables, name, limit, is_default(index)))
            .collect(),
        sharing: sharing.and_then(|sharing| read_sharing(tables, sharing)),
        unknown,
    };
    if is_complete {
        check_limits(tables, &rules.limits);
    }
    rules
}

/// Checks the limits against each other.
fn check_limits(tables: &mut Tables, limits: &[NamedLimit]) {
    let mut limit_of = BTreeMap::new();
    for NamedLimit { name, keys, .. } in limits {
        for key in keys {
            if let Some(first) = limit_of.insert(key, name) {
                let what = format!("key {key} is already in limits.{first}");
                tables.error(&format!("limits.{name}"), what);
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
        tables.error("limits", what);
    }
}

/// Parses a limit; `is_default` for the limit of unlisted keys. `None` if its table is invalid.
fn read_limit(
    tables: &mut Tables,
    name: String,
    value: Value,
    is_default: bool,
) -> Option<NamedLimit> {
    let path = format!("limits.{}", name.escape_debug());
    if name.trim().is_empty() || name.chars().any(char::is_control) {
        tables.error(&path, INVALID_NAME);
    }
    let mut table: Table = tables.table(&path, value, &[])?;
    let rules = table.remove("rules");
    let read = tables.valid_part(&path, table.into(), &["rules"]);
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
    let handling = Handling {
        mode: mode.unwrap_or_default(),
        shape: shape.unwrap_or_default(),
        requeue: requeue.unwrap_or_default(),
    };
    for (field, range) in handling.errors() {
        let what = format!("out of range: use {range}");
        tables.error(&format!("{path}.{field}"), what);
    }
    if !is_complete {
        if let Some(Value::Array(rules)) = rules {
            rules_of(tables, &path, rules);
        }
        return None;
    }
    if global && is_default {
        tables.error("unknown", format!("must not name the global limit {name}"));
    }
    if from_call && (global || is_default) {
        let what = "a limit with from_call cannot be global, and cannot be the limit of unlisted keys (`unknown`)";
        tables.error(&path, what);
    }
    if from_call && (keys.is_some() || rules.is_some()) {
        let what = "a limit with from_call cannot have keys or rules: calls provide them";
        tables.error(&path, what);
    }
    if global && keys.is_some() {
        tables.error(&path, "global and keys are mutually exclusive");
    }
    let keys = match keys {
        Some(keys) if keys.is_empty() => {
            tables.error(&format!("{path}.keys"), "add at least one key");
            Vec::new()
        }
        Some(keys) => keys.into_iter().map(|it| it.0).collect(),
        None if global || is_default || from_call => Vec::new(),
        None => vec![name.clone()],
    };
    if global && is_handled {
        let what = "a global limit has no mode, shape or requeue: set them in the limits with keys";
        tables.error(&path, what);
    } else if mode != Some(Mode::Shape) && is_refined {
        let what = "shape and requeue require mode = \"shape\"";
        tables.error(&path, what);
    }
    Some(NamedLimit {
        rules: match rules {
            Some(Value::Array(rules)) if !rules.is_empty() => rules_of(tables, &path, rules),
            None if from_call => Vec::new(),
            _ => {
                tables.error(&path, "add rules = [ { id = \"…\", rate = \"…\" } ]");
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

fn rules_of(tables: &mut Tables, path: &str, rules: Vec<Value>) -> Vec<Rule> {
    let mut ids = BTreeSet::new();
    let mut read = Vec::new();
    for (index, rule) in rules.into_iter().enumerate() {
        let path = format!("{path}.rules[{index}]");
        if let Some(rule) = read_rule(tables, &path, rule) {
            if !ids.insert(rule.id.clone()) {
                tables.error(&path, format!("duplicate id {}", rule.id));
            }
            read.push(rule);
        }
    }
    read
}

fn read_rule(tables: &mut Tables, path: &str, mut value: Value) -> Option<Rule> {
    if let Value::Table(table) = &mut value {
        table.entry("algorithm").or_insert("token_bucket".into());
    }
    let others = ["id", "rate", "count_refused", "algorithm"];
    let (rule, is_complete): (RuleTable, _) = tables.valid_part(path, value, &others)?;
    let RuleTable {
        id,
        rate: Parsed(rate),
        count_refused,
        options,
    } = rule;
    if id.trim().is_empty() || id.chars().any(char::is_control) {
        tables.error(&format!("{path}.id"), INVALID_NAME);
    }
    if !is_complete {
        return None;
    }
    let algorithm = options.algorithm(rate).checked();
    let algorithm = algorithm.map_err(|error| tables.error(path, error)).ok()?;
    if count_refused && algorithm.window().is_none() {
        tables.error(path, "count_refused requires an algorithm with a window");
    }
    let limit = Limit {
        algorithm,
        count_refused,
    };
    Some(Rule { id, limit })
}

fn read_sharing(tables: &mut Tables, sharing: Value) -> Option<Sharing> {
    let (mut sharing, _): (Sharing, _) = tables.valid_part(SHARING, sharing, &[])?;
    let members_max = sharing.members_max;
    if members_max.is_some_and(|it| !(1..=MEMBERS_MAX).contains(&it)) {
        let what = format!("out of range: use 1 to {MEMBERS_MAX}");
        tables.error("sharing.members_max", what);
    }
    // The group is part of the server's keys.
    let is_valid = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let group = &sharing.group;
    if !(1..=GROUP_CHARS_MAX).contains(&group.len()) || !group.chars().all(is_valid) {
        let what = format!(
            "invalid group: use 1 to {GROUP_CHARS_MAX} letters, digits, dots, hyphens or underscores"
        );
        tables.error("sharing.group", what);
    }
    sharing.set_defaults();
    Some(sharing)
}
