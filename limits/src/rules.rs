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
//!
//! [limits.whole]                 # of all calls together
//! every_call = true
//! rules = [ { id = "intake", rate = "2000/s", burst = 50 } ]
//! ```
//!
//! A rule is a token bucket unless `algorithm` says otherwise: `token_bucket` (`burst`), `stepped_bucket` (`burst`),
//! `leaky_bucket` (`capacity`, `when_full = "queue"` or `"drop"`), `spacing`, `fixed_window` (`aligned = "clock"` or `"first_call"`), `sliding_log`,
//! `sliding_counter`, `step_window` (`step`), `warm_up` (`warm_up`). Of windows, `rate = "1000/h"` is a limit of 1000 in a
//! window of an hour. `count_refused = true` counts refused calls too.

use std::{collections::BTreeSet, fmt, time::Duration};

use toml::{Table, Value};

use crate::{
    algorithm::{Algorithm, Aligned, WhenFull, step_of},
    decision::{Limit, LimitId},
    limits::{DEMANDS_MAX, Limits},
    rate::{Rate, RateError, parse_count, parse_time},
};

/// All that a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// In the order of their names.
    pub limits: Vec<NamedLimit>,
    /// What a key gets that no limit names.
    pub unknown: Unknown,
}

/// The rules of some keys, or of every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLimit {
    /// Its name in the file.
    pub name: String,
    /// Whose; empty for every call.
    pub keys: Vec<String>,
    /// Whether it is of all calls together.
    pub every_call: bool,
    /// At least one.
    pub rules: Vec<Rule>,
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
pub struct Mistakes(pub Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

impl Rules {
    /// Reads a file's text.
    ///
    /// # Errors
    /// With everything that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            Mistakes(vec![error.to_string().trim_end().to_owned()])
        })?;
        let mut reader = Reader::default();
        let rules = reader.rules(table);
        if reader.mistakes.is_empty() {
            Ok(rules)
        } else {
            Err(Mistakes(reader.mistakes))
        }
    }

    /// The limits that hold for a key, and whether any of them names it or stands for those that none names. `None` when
    /// its calls are refused.
    #[must_use]
    pub fn of_key(&self, key: &str) -> Option<Vec<usize>> {
        let named = |limit: &NamedLimit| limit.keys.iter().any(|it| it == key);
        let own = self.limits.iter().position(named);
        let own = match (&self.unknown, own) {
            (_, Some(own)) => Some(own),
            (Unknown::Limit(limit), None) => Some(*limit),
            (Unknown::Unlimited, None) => None,
            (Unknown::Refuse, None) => return None,
        };
        let every_call = |index: &usize| self.limits[*index].every_call;
        let whole = (0..self.limits.len()).filter(every_call);
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
        let add = |rule: &Rule| limits.add(rule.limit).expect("it was checked");
        let mut add_all = {
            let mut add = add;
            move |limit: &NamedLimit| limit.rules.iter().map(&mut add).collect()
        };
        self.limits.iter().map(&mut add_all).collect()
    }
}

impl fmt::Display for Rules {
    /// The effective plan in words.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for limit in &self.limits {
            let whose = match (limit.every_call, &*limit.keys) {
                (true, _) => "every call".to_owned(),
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
        }
        match &self.unknown {
            Unknown::Refuse => writeln!(formatter, "calls of other keys are refused"),
            Unknown::Unlimited => writeln!(formatter, "other keys have no limit of their own"),
            Unknown::Limit(limit) => {
                writeln!(formatter, "other keys: as {}", self.limits[*limit].name)
            }
        }
    }
}

/// Whether others can go before a call that waits for another limit.
fn is_paced(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::TokenBucket { .. } | Algorithm::Spacing { .. } | Algorithm::LeakyBucket { .. }
    )
}

/// The path of a key in a table.
fn join(path: &str, key: &str) -> String {
    let parts = [path, key].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".")
}

/// Reads tables, and notes what is wrong with them.
#[derive(Default)]
struct Reader {
    mistakes: Vec<String>,
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
        Rules { limits, unknown }
    }

    fn limit(&mut self, name: String, value: Value, stands_in: bool) -> NamedLimit {
        let path = format!("limits.{}", name.escape_debug());
        if name.is_empty() || name.chars().any(char::is_control) {
            self.wrong(&path, "a name is needed, without control characters");
        }
        let mut table = self.table(&path, value);
        let every_call = self.flag(&mut table, &path, "every_call");
        let given = table.remove("keys");
        if every_call && given.is_some() {
            self.wrong(&path, "every_call and keys exclude each other");
        }
        let keys = match given {
            Some(keys) => self.texts(&format!("{path}.keys"), keys),
            None if every_call || stands_in => Vec::new(),
            None => vec![name.clone()],
        };
        let rules = match table.remove("rules") {
            Some(Value::Array(rules)) if !rules.is_empty() => rules,
            _ => {
                self.wrong(&path, "needs rules = [ { id = …, rate = … }, … ]");
                Vec::new()
            }
        };
        self.nothing_else(&path, &table);
        let mut ids = BTreeSet::new();
        let mut read = Vec::new();
        for (index, rule) in rules.into_iter().enumerate() {
            let path = format!("{path}.rules[{index}]");
            let Some(rule) = self.rule(&path, rule, every_call) else {
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
        }
    }

    fn rule(&mut self, path: &str, value: Value, shared: bool) -> Option<Rule> {
        let mut table = self.table(path, value);
        let id = self.needed(&mut table, path, "id");
        let rate = self.needed(&mut table, path, "rate");
        let rate: Option<Rate> = rate.and_then(|rate| self.good(path, "rate", rate.parse()));
        let name = self.text(&mut table, path, "algorithm");
        let algorithm = self.algorithm(&mut table, path, name.as_deref(), rate);
        let count_refused = self.flag(&mut table, path, "count_refused");
        self.nothing_else(path, &table);
        let algorithm = self.good(path, "", algorithm?.checked())?;
        let is_window = matches!(
            algorithm,
            Algorithm::FixedWindow { .. }
                | Algorithm::SlidingLog { .. }
                | Algorithm::SlidingCounter { .. }
                | Algorithm::StepWindow { .. }
        );
        if shared && !is_paced(&algorithm) {
            let name = algorithm.name();
            self.wrong(
                path,
                format!("a {name} cannot be of every call: who waits would hold up all others"),
            );
        }
        if count_refused && !is_window {
            self.wrong(path, "count_refused is for windows and logs only");
        }
        Some(Rule {
            id: id?,
            limit: Limit {
                algorithm,
                shared,
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
                let when_full = self.choice(table, path, "when_full", &["queue", "drop"]);
                Algorithm::LeakyBucket {
                    rate,
                    capacity: capacity.unwrap_or(1),
                    when_full: [WhenFull::Queue, WhenFull::Drop][when_full],
                }
            }
            "spacing" => Algorithm::Spacing { rate },
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

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        unknown = "default"
        [limits.default]
        rules = [ { id = "slow", rate = "10/s", burst = 20 } ]
        [limits.dsp-17]
        keys = [17, "117"]
        rules = [
            { id = "peak", rate = "300/s", burst = 300 },
            { id = "hour", rate = "900 000/h", algorithm = "sliding_counter", count_refused = true },
            { id = "min", rate = "1000/60s", algorithm = "step_window" },
        ]
        [limits.whole]
        every_call = true
        rules = [ { id = "queue", rate = "2000/s", algorithm = "leaky_bucket", capacity = 500 } ]
    "#;

    #[test]
    fn plan_is_told_in_words() {
        let rules = Rules::parse(GOOD).unwrap();
        assert_eq!(
            rules.to_string(),
            "default: keys that no limit names, each by itself\n\
             \u{20} slow (token_bucket): 10/s, and bursts of up to 20 after a pause: at most 30 in any second\n\
             dsp-17: keys 17, 117, each by itself\n\
             \u{20} peak (token_bucket): 300/s, and bursts of up to 300 after a pause: at most 600 in any second\n\
             \u{20} hour (sliding_counter): about 900000 in any 1h: counted as if the calls of the window before were spread evenly; refused calls count too\n\
             \u{20} min (step_window): at most 1000 in any 1min, which moves in steps of 100ms\n\
             whole: every call\n\
             \u{20} queue (leaky_bucket): 2000/s, evenly spaced; up to 500 wait, and what comes beyond is refused\n\
             other keys: as default\n"
        );
        assert_eq!(rules.of_key("17"), Some(vec![1, 2]));
        assert_eq!(rules.of_key("anyone"), Some(vec![0, 2]));
        let mut limits = Limits::<u32>::new(1);
        assert_eq!(rules.add_to(&mut limits).len(), 3);
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let Mistakes(mistakes) = Rules::parse(
            r#"
            unknown = "nobody"
            extra = 1
            [limits.a]
            every_call = true
            keys = ["x"]
            rules = [ { rate = "10/x", burst = -1, algorithm = "sliding_log", hurry = true } ]
            [limits.b]
            rules = []
            [limits.c]
            keys = ["x"]
            rules = [
                { id = "one", rate = "1/s", algorithm = "leaky_bucket", when_full = "explode" },
                { id = "one", rate = "2000000/s", algorithm = "sliding_log" },
                { id = "two", rate = "1/s", algorithm = "guess", count_refused = 3 },
                { id = "three", rate = "1/s", algorithm = "warm_up" },
                { id = "four", rate = "1/s", count_refused = true },
                { id = "five", rate = "1/s", burst = 0 },
                { id = "", rate = "" },
            ]
            [limits.d]
            every_call = true
            rules = [ { id = "log", rate = "1/s", algorithm = "sliding_log" } ]
        "#,
        )
        .unwrap_err();
        for expected in [
            "unknown: `nobody` is neither refuse nor unlimited nor a limit's name",
            "extra: nothing here has this name",
            "limits.a: every_call and keys exclude each other",
            "limits.a.rules[0]: id is missing",
            "limits.a.rules[0].rate: `10/x` is not a rate",
            "limits.a.rules[0].burst: nothing here has this name",
            "limits.a.rules[0].hurry: nothing here has this name",
            "limits.b: needs rules",
            "limits.c: the key x is another limit's too",
            "limits.c.rules[0]: a leaky_bucket needs a capacity",
            "limits.c.rules[0].when_full: `explode` is not queue or drop",
            "limits.c.rules[1]: a limit of a sliding log of 2000000 is not allowed",
            "limits.c.rules[2]: `guess` is not an algorithm",
            "limits.c.rules[2].count_refused: true or false, not integer",
            "limits.c.rules[3]: a warm_up needs the time",
            "limits.c.rules[4]: count_refused is for windows and logs only",
            "limits.c.rules[5]: a burst of 0 is not allowed",
            "limits.c.rules[6]: id is empty",
            "limits.c.rules[6]: rate is empty",
            "limits.d.rules[0]: a sliding_log cannot be of every call",
        ] {
            let found = mistakes
                .iter()
                .filter(|mistake| mistake.starts_with(expected));
            assert_eq!(found.count(), 1, "{expected}: {mistakes:#?}");
        }
        assert_eq!(mistakes.len(), 20, "{mistakes:#?}");
        assert!(Rules::parse("").is_err());
        let rule = |number| format!("{{ id = \"{number}\", rate = \"1/s\" }}");
        let rules: Vec<String> = (0..17).map(rule).collect();
        let many = format!("[limits.a]\nrules = [{}]", rules.join(","));
        let Mistakes(mistakes) = Rules::parse(&many).unwrap_err();
        assert_eq!(mistakes, ["limits: 17 rules for one call are more than 16"]);
        assert!(Rules::parse("[limits").is_err());
    }
}
