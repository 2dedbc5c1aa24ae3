//! Reads limits from a table, and notes all that is wrong with them.

mod handling;
mod sharing;

use std::{collections::BTreeSet, fmt, time::Duration};

use toml::{Table, Value};

use super::{Mistakes, NamedLimit, Rule, Rules, Unknown};
use crate::{
    algorithm::{Algorithm, Aligned, step_of},
    decision::Limit,
    limits::DEMANDS_MAX,
    rate::{Rate, RateError, parse_count, parse_time},
};

/// Most who keep to limits together.
const PARTS_MAX: u64 = 1000;

/// Reads what is written.
pub(super) fn read(table: Table) -> Result<Rules, Mistakes> {
    let mut reader = Reader {
        mistakes: Vec::new(),
        parts: 1,
    };
    let rules = reader.rules(table);
    if reader.mistakes.is_empty() {
        Ok(rules)
    } else {
        Err(Mistakes(reader.mistakes))
    }
}

/// The path of a key in a table.
fn join(path: &str, key: &str) -> String {
    let parts = [path, key].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".")
}

/// Reads tables, and notes what is wrong with them.
struct Reader {
    mistakes: Vec<String>,
    /// Of how many who keep to the limits together this is one.
    parts: u64,
}

impl Reader {
    fn wrong(&mut self, path: &str, what: impl fmt::Display) {
        self.mistakes.push(format!("{path}: {what}"));
    }

    fn rules(&mut self, mut table: Table) -> Rules {
        let limits = match table.remove("limits") {
            Some(Value::Table(limits)) if !limits.is_empty() => limits,
            _ => {
                self.wrong("limits", "at least one is needed, as [limits.NAME]");
                Table::new()
            }
        };
        self.parts = self.parts(&mut table);
        let sharing = self.sharing(&mut table);
        let unknown = self.text(&mut table, "", "unknown");
        let names: Vec<String> = limits.keys().cloned().collect();
        let unknown = match unknown.as_deref() {
            None | Some("refuse") => Unknown::Refuse,
            Some("unlimited") => Unknown::Unlimited,
            Some(name) => match names.iter().position(|it| it == name) {
                Some(index) => Unknown::Limit(index),
                None => {
                    self.wrong(
                        "unknown",
                        format!("`{name}` is neither refuse nor unlimited nor a limit's name"),
                    );
                    Unknown::Refuse
                }
            },
        };
        self.nothing_else("", &table);
        let stands_in = |index| unknown == Unknown::Limit(index);
        let limits: Vec<NamedLimit> = limits
            .into_iter()
            .enumerate()
            .map(|(index, (name, limit))| self.limit(name, limit, stands_in(index)))
            .collect();
        let mut keys = BTreeSet::new();
        for (limit, key) in limits
            .iter()
            .flat_map(|limit| limit.keys.iter().map(move |key| (limit, key)))
        {
            if !keys.insert(key) {
                self.wrong(
                    &format!("limits.{}", limit.name),
                    format!("the key {key} is another limit's too"),
                );
            }
        }
        let rules = |every_call| {
            let of_kind = limits
                .iter()
                .filter(move |limit| limit.every_call == every_call);
            of_kind.map(|limit| limit.rules.len())
        };
        let most = rules(false).max().unwrap_or(0) + rules(true).sum::<usize>();
        if most > DEMANDS_MAX {
            self.wrong(
                "limits",
                format!("{most} rules for one call are more than {DEMANDS_MAX}"),
            );
        }
        if let Unknown::Limit(index) = unknown
            && limits[index].every_call
        {
            self.wrong(
                "unknown",
                format!("{} is of every call already", limits[index].name),
            );
        }
        Rules {
            limits,
            unknown,
            sharing,
        }
    }

    fn limit(&mut self, name: String, value: Value, stands_in: bool) -> NamedLimit {
        let path = format!("limits.{}", name.escape_debug());
        if name.is_empty() || name.chars().any(char::is_control) {
            self.wrong(&path, "a name is needed, without control characters");
        }
        let mut table = self.table(&path, value);
        let every_call = self.flag(&mut table, &path, "every_call");
        let from_call = self.flag(&mut table, &path, "from_call");
        if from_call && (every_call || stands_in) {
            self.wrong(&path, "from_call excludes every_call, and being `unknown`");
        }
        if from_call && (table.contains_key("keys") || table.contains_key("rules")) {
            self.wrong(
                &path,
                "from_call excludes keys and rules: each call says its rule",
            );
        }
        let given = table.remove("keys");
        if every_call && given.is_some() {
            self.wrong(&path, "every_call and keys exclude each other");
        }
        let keys = match given {
            Some(keys) => self.texts(&format!("{path}.keys"), keys),
            None if every_call || stands_in || from_call => Vec::new(),
            None => vec![name.clone()],
        };
        let rules = match table.remove("rules") {
            Some(Value::Array(rules)) if !rules.is_empty() => rules,
            None if from_call => Vec::new(),
            _ => {
                self.wrong(&path, "needs rules = [ { id = …, rate = … }, … ]");
                Vec::new()
            }
        };
        let mode_given = table.contains_key("mode");
        let handling = self.handling(&mut table, &path, every_call);
        self.nothing_else(&path, &table);
        let mut ids = BTreeSet::new();
        let mut read = Vec::new();
        for (index, rule) in rules.into_iter().enumerate() {
            let path = format!("{path}.rules[{index}]");
            let Some(rule) = self.rule(&path, rule) else {
                continue;
            };
            if !ids.insert(rule.id.clone()) {
                self.wrong(&path, format!("the id {} is another rule's too", rule.id));
            }
            read.push(rule);
        }
        NamedLimit {
            name,
            keys,
            every_call,
            rules: read,
            from_call,
            mode_given,
            handling,
        }
    }

    fn rule(&mut self, path: &str, value: Value) -> Option<Rule> {
        let mut table = self.table(path, value);
        let id = self.needed(&mut table, path, "id");
        let rate = self.needed(&mut table, path, "rate");
        let rate: Option<Rate> = rate.and_then(|rate| self.good(path, "rate", rate.parse()));
        let name = self.text(&mut table, path, "algorithm");
        let algorithm = self.algorithm(&mut table, path, name.as_deref(), rate);
        let count_refused = self.flag(&mut table, path, "count_refused");
        self.nothing_else(path, &table);
        let algorithm = self.good(path, "", algorithm?.checked())?;
        let algorithm = self.good(path, "share", algorithm.part(self.parts))?;
        let is_window = matches!(
            algorithm,
            Algorithm::FixedWindow { .. }
                | Algorithm::SlidingLog { .. }
                | Algorithm::SlidingCounter { .. }
                | Algorithm::StepWindow { .. }
        );
        if count_refused && !is_window {
            self.wrong(path, "count_refused is for windows and logs only");
        }
        Some(Rule {
            id: id?,
            limit: Limit {
                algorithm,
                count_refused,
            },
        })
    }

    /// Takes the options of an algorithm out of its table.
    fn algorithm(
        &mut self,
        table: &mut Table,
        path: &str,
        name: Option<&str>,
        rate: Option<Rate>,
    ) -> Option<Algorithm> {
        let (requests, per) = rate.map_or((1, 1), |rate| rate.written());
        let window = Duration::from_nanos(per);
        let any = Rate::new(1, Duration::from_secs(1)).expect("one a second");
        let given = rate.is_some();
        let rate = rate.unwrap_or(any);
        let limit = requests;
        let algorithm = match name.unwrap_or("token_bucket") {
            "token_bucket" => Algorithm::TokenBucket {
                rate,
                burst: self.count(table, path, "burst").unwrap_or(1),
            },
            "stepped_bucket" => Algorithm::SteppedBucket {
                rate,
                burst: self.count(table, path, "burst").unwrap_or(requests),
            },
            "leaky_bucket" => {
                let capacity = self.count(table, path, "capacity");
                if capacity.is_none() && !table.contains_key("capacity") {
                    self.wrong(path, "a leaky_bucket needs a capacity");
                }
                let capacity = capacity.unwrap_or(1);
                match self.choice(table, path, "when_full", &["queue", "drop"]) {
                    0 => Algorithm::LeakyBucket { rate, capacity },
                    // A token bucket by its other name.
                    _ => Algorithm::TokenBucket {
                        rate,
                        burst: capacity,
                    },
                }
            }
            "spacing" => Algorithm::TokenBucket { rate, burst: 1 },
            "fixed_window" => {
                let aligned = self.choice(table, path, "aligned", &["clock", "first_call"]);
                Algorithm::FixedWindow {
                    limit,
                    window,
                    aligned: [Aligned::Clock, Aligned::FirstCall][aligned],
                }
            }
            "sliding_log" => Algorithm::SlidingLog { limit, window },
            "sliding_counter" => Algorithm::SlidingCounter { limit, window },
            "step_window" => Algorithm::StepWindow {
                limit,
                window,
                step: self
                    .time(table, path, "step")
                    .unwrap_or_else(|| step_of(window).min(window)),
            },
            "warm_up" => {
                let warm_up = self.time(table, path, "warm_up");
                if warm_up.is_none() {
                    self.wrong(
                        path,
                        "a warm_up needs the time that it takes, as in warm_up = \"10s\"",
                    );
                }
                Algorithm::WarmUp {
                    rate,
                    warm_up: warm_up.unwrap_or(window),
                }
            }
            other => {
                self.wrong(path, format!("`{other}` is not an algorithm"));
                return None;
            }
        };
        given.then_some(algorithm)
    }

    /// The N of `share = "1/N"`.
    fn parts(&mut self, table: &mut Table) -> u64 {
        let Some(text) = self.text(table, "", "share") else {
            return 1;
        };
        let parts = text.strip_prefix("1/").and_then(|parts| parts.parse().ok());
        parts
            .filter(|parts| (1..=PARTS_MAX).contains(parts))
            .unwrap_or_else(|| {
                self.wrong(
                    "share",
                    format!("`{text}` is none from \"1/1\" to \"1/{PARTS_MAX}\""),
                );
                1
            })
    }

    fn table(&mut self, path: &str, value: Value) -> Table {
        match value {
            Value::Table(table) => table,
            other => {
                self.wrong(path, format!("a table is needed, not {}", other.type_str()));
                Table::new()
            }
        }
    }

    fn needed(&mut self, table: &mut Table, path: &str, key: &str) -> Option<String> {
        if !table.contains_key(key) {
            self.wrong(path, format!("{key} is missing"));
        }
        let text = self.text(table, path, key)?;
        if text.trim().is_empty() {
            self.wrong(path, format!("{key} is empty"));
            return None;
        }
        if text.chars().any(char::is_control) {
            self.wrong(path, format!("{key} has control characters"));
        }
        Some(text)
    }

    fn text(&mut self, table: &mut Table, path: &str, key: &str) -> Option<String> {
        match table.remove(key)? {
            Value::String(text) => Some(text),
            other => {
                let path = join(path, key);
                self.wrong(&path, format!("a text is needed, not {}", other.type_str()));
                None
            }
        }
    }

    fn texts(&mut self, path: &str, value: Value) -> Vec<String> {
        let texts = match value {
            Value::Array(values) => values
                .into_iter()
                .map(|value| match value {
                    Value::String(text) => Some(text),
                    Value::Integer(number) => Some(number.to_string()),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        texts
            .filter(|texts: &Vec<String>| !texts.is_empty())
            .unwrap_or_else(|| {
                self.wrong(path, "a list of keys is needed");
                Vec::new()
            })
    }

    fn flag(&mut self, table: &mut Table, path: &str, key: &str) -> bool {
        match table.remove(key) {
            None => false,
            Some(Value::Boolean(flag)) => flag,
            Some(other) => {
                self.wrong(
                    &format!("{path}.{key}"),
                    format!("true or false, not {}", other.type_str()),
                );
                false
            }
        }
    }

    fn count(&mut self, table: &mut Table, path: &str, key: &str) -> Option<u64> {
        let count = match table.remove(key)? {
            Value::Integer(number) => {
                u64::try_from(number).map_err(|_| RateError::Count(number.to_string()))
            }
            Value::String(text) => parse_count(&text),
            other => Err(RateError::Count(other.to_string())),
        };
        // What is wrong is said once.
        Some(self.good(path, key, count).unwrap_or(1))
    }

    fn time(&mut self, table: &mut Table, path: &str, key: &str) -> Option<Duration> {
        let text = self.text(table, path, key)?;
        self.good(path, key, parse_time(&text))
    }

    /// The place of what is chosen; the first unless something is.
    fn choice(&mut self, table: &mut Table, path: &str, key: &str, choices: &[&str]) -> usize {
        let Some(text) = self.text(table, path, key) else {
            return 0;
        };
        choices
            .iter()
            .position(|it| *it == text)
            .unwrap_or_else(|| {
                let choices = choices.join(" or ");
                self.wrong(
                    &format!("{path}.{key}"),
                    format!("`{text}` is not {choices}"),
                );
                0
            })
    }

    fn good<T>(&mut self, path: &str, key: &str, value: Result<T, RateError>) -> Option<T> {
        value
            .map_err(|error| self.wrong(&join(path, key), error))
            .ok()
    }

    fn nothing_else(&mut self, path: &str, table: &Table) {
        for key in table.keys() {
            let path = join(path, key);
            self.wrong(&path, "nothing here has this name");
        }
    }
}
