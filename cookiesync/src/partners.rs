//! What becomes of the syncs of each DSP, from the metrics of all processes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    cluster::{Caller, Cluster},
    report::Report,
};

/// The counts of a DSP since the start of the processes.
#[derive(Debug, Default)]
struct Partner {
    name: Option<String>,
    offered: u64,
    completed: u64,
    accepted: u64,
    /// By reason.
    refused: BTreeMap<String, u64>,
    /// At the node with the most.
    stored: Option<u64>,
    looked_up: u64,
    found: u64,
}

impl Partner {
    /// Adds a sample of a metric.
    fn add(&mut self, metric: &str, outcome: &str, name: &str, value: u64) {
        match (metric, outcome) {
            ("producer_dsp_contract", _) => self.name = Some(name.to_owned()),
            ("producer_plan_dsps_total", "offered") => self.offered += value,
            ("producer_plan_returns_total", "accepted") => self.completed += value,
            ("producer_dsp_cookies_total", "accepted") => self.accepted += value,
            ("producer_dsp_cookies_total", reason) => {
                *self.refused.entry(reason.to_owned()).or_default() += value;
            }
            ("consumer_stored_cookies", _) => self.stored = self.stored.max(Some(value)),
            ("consumer_lookup_pairs_total", "unavailable") => {}
            ("consumer_lookup_pairs_total", outcome) => {
                self.looked_up += value;
                self.found += if outcome == "hit" { value } else { 0 };
            }
            _ => {}
        }
    }

    fn row(&self, dsp: &str) -> Value {
        let refused: u64 = self.refused.values().sum();
        let main = self.refused.iter().max_by_key(|(_, count)| **count);
        let reason = main.map(|(reason, count)| format!("{reason} {}", percent(*count, refused)));
        json!({
            "dsp": dsp,
            "name": self.name,
            "offered": (self.offered > 0).then_some(self.offered),
            "completed": (self.offered > 0).then_some(self.completed),
            "completion": (self.offered > 0).then(|| percent(self.completed, self.offered)),
            "accepted": self.accepted,
            "refused": refused,
            "mostly": reason,
            "stored": self.stored,
            "match_rate": (self.looked_up > 0).then(|| percent(self.found, self.looked_up)),
        })
    }

    /// The completed part of the offers; more than all without offers.
    fn completion(&self) -> f64 {
        match self.offered {
            0 => f64::INFINITY,
            offered => as_f64(self.completed) / as_f64(offered),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

fn percent(part: u64, all: u64) -> String {
    format!("{:.1}%", 100.0 * as_f64(part) / as_f64(all))
}

/// The parts of a line of metrics: the name, the values of its labels `dsp`, `outcome` and `name`, and its value.
fn sample(line: &str) -> Option<(&str, [String; 3], u64)> {
    let (metric, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    let mut found = ["dsp", "outcome", "name"].map(|_| String::new());
    let mut rest = labels;
    while let Some((label, after)) = rest.split_once("=\"") {
        // Quotation marks and backslashes in a value are escaped.
        let mut is_escaped = false;
        let is_end = |(_, it): &(usize, char)| {
            let is_end = *it == '"' && !is_escaped;
            is_escaped = *it == '\\' && !is_escaped;
            is_end
        };
        let (end, _) = after.char_indices().find(is_end)?;
        let names = ["dsp", "outcome", "name"];
        if let Some(at) = names
            .iter()
            .position(|it| *it == label.trim_start_matches(','))
        {
            found[at] = after[..end].replace("\\\"", "\"").replace("\\\\", "\\");
        }
        rest = &after[end + 1..];
    }
    Some((metric, found, value.parse().ok()?))
}

/// A row for each DSP, those with the lowest completion first.
pub(crate) async fn report(cluster: &Cluster) -> Report {
    let mut report = Report::new(
        "dsp name offered completed completion accepted refused mostly stored match_rate",
    );
    let mut partners: BTreeMap<String, Partner> = BTreeMap::new();
    // Only scrapes of Prometheus end the intervals of peak metrics.
    let metrics = async |caller: &Caller| caller.get("/metrics?keep-peaks").await;
    for (port, metrics) in cluster.ask(&cluster.admin, metrics).await {
        match metrics {
            Err(error) => report.problem(format!("{}: no response: {error:#}", port.shown())),
            Ok(metrics) => {
                report.is_answered = true;
                let lines = metrics.as_str().unwrap_or_default().lines();
                for (metric, [dsp, outcome, name], value) in lines.filter_map(sample) {
                    if !dsp.is_empty() {
                        let partner = partners.entry(dsp).or_default();
                        partner.add(metric, &outcome, &name, value);
                    }
                }
            }
        }
    }
    let mut rows: Vec<_> = partners.iter().collect();
    rows.sort_by_key(|(dsp, _)| dsp.len());
    rows.sort_by(|(_, a), (_, b)| a.completion().total_cmp(&b.completion()));
    report.rows = rows.into_iter().map(|(dsp, it)| it.row(dsp)).collect();
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_in_any_order_and_unescaped() {
        let line = r#"producer_dsp_contract{dsp="17",name="a \"b\" \\ c",state="allowed"} 1"#;
        let labels = ["17", "", r#"a "b" \ c"#].map(str::to_owned);
        assert_eq!(sample(line), Some(("producer_dsp_contract", labels, 1)));
        let line = r#"producer_dsp_contract{name="a\\",dsp="17"} 1"#;
        let labels = ["17", "", r"a\"].map(str::to_owned);
        assert_eq!(sample(line), Some(("producer_dsp_contract", labels, 1)));
        for other in ["# HELP a b", "up 1", "a{b=\"c} 1", "a{dsp=\"1\"} 1.5", ""] {
            assert_eq!(sample(other), None, "{other}");
        }
    }

    #[test]
    fn rates_are_those_of_all_processes() {
        let mut partner = Partner::default();
        for (metric, outcome, value) in [
            ("producer_plan_dsps_total", "offered", 30),
            ("producer_plan_dsps_total", "in_sync", 99),
            ("producer_plan_dsps_total", "offered", 10),
            ("producer_plan_returns_total", "accepted", 10),
            ("producer_plan_returns_total", "uid_macro", 5),
            ("producer_dsp_cookies_total", "accepted", 70),
            ("producer_dsp_cookies_total", "uid_macro", 9),
            ("producer_dsp_cookies_total", "privacy", 1),
            ("consumer_stored_cookies", "", 5),
            ("consumer_stored_cookies", "", 6),
            ("consumer_lookup_pairs_total", "hit", 1),
            ("consumer_lookup_pairs_total", "miss", 2),
            ("consumer_lookup_pairs_total", "expired", 1),
            ("consumer_lookup_pairs_total", "unavailable", 50),
        ] {
            partner.add(metric, outcome, "", value);
        }
        let expected = json!({
            "dsp": "17", "name": null, "offered": 40, "completed": 10, "completion": "25.0%", "accepted": 70, "refused": 10,
            "mostly": "uid_macro 90.0%", "stored": 6, "match_rate": "25.0%",
        });
        assert_eq!(partner.row("17"), expected);
        assert_eq!(Partner::default().row("18")["completion"], Value::Null);
    }
}
