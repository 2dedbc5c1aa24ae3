//! Parses the Prometheus text format, but only the features that our processes use.

use std::collections::BTreeMap;

/// Names of the metrics of producer and consumer, and of metrics whose names depend on a port.
pub mod names {
    pub use metric_defs::{consumer::*, process::*, producer::*};

    /// Producer: open connections of the HTTP port.
    pub const HTTP_CONNECTIONS: &str = "producer_http_connections";
    /// Producer: connections of the HTTP port that it closed, by reason.
    pub const HTTP_CONNECTIONS_CLOSED: &str = "producer_http_connections_closed_total";
}

/// The samples of one scrape.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    samples: Vec<Sample>,
}

#[derive(Debug, Clone)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Cumulative buckets of a histogram: upper bound and count, in ascending order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets(Vec<(f64, f64)>);

impl Samples {
    /// Parses a scrape; skips lines that are not samples.
    pub fn parse(text: &str) -> Self {
        Self {
            samples: text.lines().filter_map(Sample::parse).collect(),
        }
    }

    /// The sum of all samples of `name` with all of `labels`; `None` if there is no such sample.
    pub fn sum(&self, name: impl AsRef<str>, labels: &[(&str, &str)]) -> Option<f64> {
        self.matching(name.as_ref(), labels)
            .map(|sample| sample.value)
            .reduce(|sum, value| sum + value)
    }

    /// Like [`sum`](Self::sum), as a whole number; 0 if there is no such sample.
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
    pub fn count(&self, name: impl AsRef<str>, labels: &[(&str, &str)]) -> u64 {
        self.sum(name, labels).unwrap_or(0.0) as u64
    }

    /// The samples of `name` as whole numbers, each with its value of `label`.
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
    pub fn by_label(&self, name: impl AsRef<str>, label: &str) -> Vec<(String, u64)> {
        self.matching(name.as_ref(), &[])
            .filter_map(|sample| Some((sample.labels.get(label)?.clone(), sample.value as u64)))
            .collect()
    }

    /// The labels of each sample of `name`.
    pub fn label_sets<N: AsRef<str>>(
        &self,
        name: N,
    ) -> impl Iterator<Item = &BTreeMap<String, String>> + use<'_, N> {
        let named = self.samples.iter();
        let named = named.filter(move |it| it.name == name.as_ref());
        named.map(|sample| &sample.labels)
    }

    /// The name of each sample; histogram samples keep their suffix.
    pub fn sample_names(&self) -> impl Iterator<Item = &str> {
        self.samples.iter().map(|sample| sample.name.as_str())
    }

    /// The histogram `name`, summed over all label sets.
    pub fn histogram(&self, name: impl AsRef<str>) -> Buckets {
        self.histogram_of(name, &[])
    }

    /// The histogram `name`, summed over the label sets that contain `labels`.
    pub fn histogram_of(&self, name: impl AsRef<str>, labels: &[(&str, &str)]) -> Buckets {
        let name = name.as_ref();
        let mut buckets = BTreeMap::new();
        for sample in self.matching(&format!("{name}_bucket"), labels) {
            let bound = sample
                .labels
                .get("le")
                .and_then(|le| le.parse::<f64>().ok());
            if let Some(bound) = bound.filter(|bound| *bound >= 0.0) {
                // The bits of non-negative floats sort like their values.
                *buckets.entry(bound.to_bits()).or_insert(0.0) += sample.value;
            }
        }
        Buckets(
            buckets
                .into_iter()
                .map(|(bits, count)| (f64::from_bits(bits), count))
                .collect(),
        )
    }

    fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| {
                    sample.labels.get(*label).map(String::as_str) == Some(*value)
                })
        })
    }
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let (labels, rest) = parse_labels(rest)?;
                (name, labels, rest)
            }
            None => {
                let (name, rest) = line.split_once(' ')?;
                (name, BTreeMap::new(), rest)
            }
        };
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self {
            name: name.to_owned(),
            labels,
            value,
        })
    }
}

/// Parses `a="b",c="d"}`; also returns the rest of the line.
fn parse_labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.chars();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => match characters.next()? {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                character => value.push(character),
            }
        }
        labels.insert(name.to_owned(), value);
        rest = characters.as_str();
    }
}

impl Buckets {
    /// The observations since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, |count, before| count - before)
    }

    /// The observations of both histograms.
    pub fn plus(&self, other: &Self) -> Self {
        if self.0.is_empty() {
            return other.clone();
        }
        self.with(other, |count, more| count + more)
    }

    fn with(&self, other: &Self, combine: fn(f64, f64) -> f64) -> Self {
        let counts = self.0.iter().map(|&(bound, count)| {
            let same = other.0.iter().find(|(same, _)| *same == bound);
            (bound, combine(count, same.map_or(0.0, |(_, count)| *count)))
        });
        Self(counts.collect())
    }

    /// Number of observations.
    pub fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// The `quantile` (0 to 1), interpolated within its bucket like in Prometheus; the last finite bound if it is above.
    /// `None` without observations.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.0.last().map(|(_, count)| *count)?;
        if total <= 0.0 {
            return None;
        }
        let rank = quantile * total;
        let (mut lower_bound, mut lower_count) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= rank && count > lower_count {
                if bound.is_infinite() {
                    return Some(lower_bound);
                }
                let share = (rank - lower_count) / (count - lower_count);
                return Some(lower_bound + (bound - lower_bound) * share);
            }
            (lower_bound, lower_count) = (bound, count);
        }
        Some(lower_bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP a_total Something.
# TYPE a_total counter
a_total{kind="x",name="say \"hi\", {you}"} 3
a_total{kind="y"} 4.5
plain 7
h_seconds_bucket{le="0.1"} 10
h_seconds_bucket{le="1"} 30
h_seconds_bucket{le="+Inf"} 40
h_seconds_sum 12
"#;

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let samples = Samples::parse(TEXT);
        assert_eq!(samples.sum("a_total", &[]), Some(7.5));
        assert_eq!(samples.count("a_total", &[("kind", "x")]), 3);
        let quoted = [("name", "say \"hi\", {you}")];
        assert_eq!(samples.sum("a_total", &quoted), Some(3.0));
        assert_eq!(samples.sum("plain", &[]), Some(7.0));
        assert_eq!(samples.sum("none", &[]), None);
        let by_kind = [("x".to_owned(), 3), ("y".to_owned(), 4)];
        assert_eq!(samples.by_label("a_total", "kind"), by_kind);
    }

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let buckets = Samples::parse(TEXT).histogram("h_seconds");
        assert_eq!(buckets.quantile(0.25), Some(0.1));
        assert!((buckets.quantile(0.5).unwrap() - 0.55).abs() < 1e-9);
        assert_eq!(buckets.quantile(0.99), Some(1.0));
        assert_eq!(buckets.since(&buckets).quantile(0.5), None);
        assert_eq!(buckets.since(&Buckets::default()), buckets);
        assert_eq!(buckets.plus(&buckets).since(&buckets), buckets);
        assert_eq!(Buckets::default().plus(&buckets), buckets);
        assert!((buckets.count() - 40.0).abs() < 1e-9);
        let none = Samples::parse(TEXT).histogram_of("h_seconds", &[("kind", "x")]);
        assert_eq!(none, Buckets::default());
    }
}
