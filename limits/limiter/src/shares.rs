//! Who has which share of the limits that several processes keep together, as a table.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, anyhow, ensure};
use limits::rules::{Rules, SharingMode};
use limits_sharing::{
    Address,
    member::State,
    shares::{self, Held},
};
use tokio::runtime::Builder;

/// Asks the server of `[sharing]`, and changes nothing there.
///
/// # Errors
/// When these limits are not shared by lease, or the server does not answer.
pub fn table(rules: &Rules) -> Result<String> {
    let sharing = rules.sharing.as_ref();
    let sharing = sharing.filter(|it| it.mode == SharingMode::Lease);
    let sharing = sharing.context("the file has no [sharing] with mode = \"lease\"")?;
    let server = Address::of(sharing).map_err(|why| anyhow!(why))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let held = runtime
        .block_on(shares::read(&server, &sharing.group))
        .with_context(|| format!("cannot read the group {} of {server}", sharing.group))?;
    let group = &sharing.group;
    ensure!(
        !held.is_empty(),
        "nobody on {server} is in the group {group}"
    );
    Ok(rows(&held))
}

fn rows(held: &[(Held, State)]) -> String {
    let mut text = row("limit", "process", ["share", "could use", "asked", "state"]);
    for of_limit in held.chunk_by(|(one, _), (other, _)| one.limit == other.limit) {
        let mut sum = 0;
        for (it, state) in of_limit {
            sum += it.share;
            let share = percent(it.share);
            text += &match &it.member {
                None => row(&it.limit, "(kept free)", [&share, "", "", ""]),
                Some(member) => {
                    let asked = format!("{:.1} s ago", it.silent.as_secs_f64());
                    let fields = [&*share, &percent(it.demand), &asked, &state.to_string()];
                    row(&it.limit, member, fields)
                }
            };
        }
        text += &row(&of_limit[0].0.limit, "(all)", [&percent(sum), "", "", ""]);
    }
    text
}

fn row(limit: &str, process: &str, [share, demand, asked, state]: [&str; 4]) -> String {
    let mut row = String::new();
    let written = write!(
        row,
        "{limit:<24} {process:<28} {share:>9} {demand:>11} {asked:>12}  {state}"
    );
    written.expect("a text takes all");
    format!("{}\n", row.trim_end())
}

/// Of millionths.
fn percent(share: u64) -> String {
    format!("{}.{:02} %", share / 10_000, share % 10_000 / 100)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_limit_has_its_processes_and_their_sum() {
        let held = |limit: &str, member: Option<&str>, share, state| {
            let held = Held {
                limit: limit.to_owned(),
                member: member.map(ToOwned::to_owned),
                share,
                demand: 1_250_000,
                silent: Duration::from_millis(250),
            };
            (held, state)
        };
        let all = [
            held("a", None, 150_000, State::Ok),
            held("a", Some("producer-1"), 700_049, State::Ok),
            held("a", Some("producer-2"), 149_951, State::Safe),
            held("b", Some("producer-1"), 1_000_000, State::Expired),
        ];
        let text = rows(&all);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|it| it.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["a", "(kept", "free)", "15.00", "%"]);
        let process = [
            "a",
            "producer-1",
            "70.00",
            "%",
            "125.00",
            "%",
            "0.2",
            "s",
            "ago",
            "ok",
        ];
        assert_eq!(lines[2], process);
        assert_eq!(lines[4], ["a", "(all)", "100.00", "%"]);
        assert_eq!(lines[5].last(), Some(&"expired"));
        assert_eq!(lines.len(), 7);
    }
}
