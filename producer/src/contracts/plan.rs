//! The effective contracts, as a table for operators.

use std::{collections::BTreeMap, fmt};

use limits::rules::{NamedLimit, Rules, Unknown};
use proto::ids::hygiene::Flaw;
use runtime::settings::format_time;
use serde::Serialize;

use super::{Contract, Contracts, answer::Answer};

/// The columns, each with its title.
const TITLES: [&str; 11] = [
    "dsp", "name", "vendor", "state", "ids", "refuse", "ttl", "answer", "refused", "limit", "sync",
];

impl fmt::Display for Contracts {
    /// One line for each DSP, and one for all others; then the privacy settings and the rate limits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut listed: Vec<_> = self.listed().collect();
        listed.sort_unstable_by_key(|(dsp_id, _)| *dsp_id);
        let mut rows = vec![TITLES.map(ToOwned::to_owned)];
        for (dsp_id, contract) in listed {
            let dsp = dsp_id.to_string();
            let limit = limit_of(&self.limits, &dsp);
            rows.push(row(dsp, contract, limit));
        }
        let limit = limit_of(&self.limits, "");
        rows.push(row("unlisted".to_owned(), &self.unlisted, limit));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: [usize; TITLES.len()] = std::array::from_fn(|it| width(it).unwrap_or_default());
        for row in &rows {
            let cells = row.iter().zip(widths);
            let line: Vec<_> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            writeln!(formatter, "{}", line.join("  ").trim_end())?;
        }
        if let Some(privacy) = self.privacy() {
            let table = toml::to_string(&BTreeMap::from([("privacy", privacy)]));
            write!(formatter, "\n{}", table.map_err(|_| fmt::Error)?)?;
        }
        if let Some(plan) = &self.plan {
            writeln!(formatter, "\n{plan}")?;
        }
        if !self.limits.limits.is_empty() {
            write!(formatter, "\n{:#}", self.limits)?;
        }
        Ok(())
    }
}

/// The name of the limit of a DSP, apart from global limits.
fn limit_of<'a>(rules: &'a Rules, dsp: &str) -> &'a str {
    let has_dsp = |limit: &&NamedLimit| limit.keys.iter().any(|key| key == dsp);
    let limit = match (rules.limits.iter().find(has_dsp), &rules.unknown) {
        (None, Unknown::Limit(index)) => Some(&rules.limits[*index]),
        (own, _) => own,
    };
    limit.map_or("-", |limit| &limit.name)
}

fn row(dsp: String, contract: &Contract, limit: &str) -> [String; TITLES.len()] {
    let name = match &*contract.names {
        [] => "-".to_owned(),
        names => names.join(", "),
    };
    let vendor = contract.vendor;
    let mut ids = format!("up to {} bytes", contract.uid_bytes_max);
    if let Some(pattern) = &contract.uid_pattern {
        ids = format!("{ids}, {pattern}");
    }
    let flaws = contract.refuse.iter().map(|flaw| match flaw {
        Flaw::Macro => "macro",
        Flaw::Sentinel => "sentinel",
    });
    let refuse: Vec<_> = flaws
        .chain(contract.uid_macro.iter().map(|it| &**it))
        .map(ToOwned::to_owned)
        .chain(contract.refuse_when.names())
        .collect();
    let answer = match (contract.answer, &contract.redirect) {
        (Answer::Redirect, Some(template)) => format!("redirect to {}", template.host()),
        (Answer::Json, _) if !contract.origins.is_empty() => {
            format!("json for {}", contract.origins.join(", "))
        }
        (answer, _) => name_in_file(answer),
    };
    [
        dsp,
        name,
        vendor.map_or("-".to_owned(), |vendor| vendor.to_string()),
        contract.state.name().to_owned(),
        ids,
        refuse.join(", "),
        contract.ttl.map_or("-".to_owned(), format_time),
        answer,
        name_in_file(contract.refused),
        limit.to_owned(),
        contract
            .sync
            .as_ref()
            .map_or("-".to_owned(), |it| it.to_string()),
    ]
}

/// The text of a value in the contracts file.
fn name_in_file(value: impl Serialize) -> String {
    let value = toml::Value::try_from(value).expect("a text");
    value.as_str().expect("a text").to_owned()
}
