//! Replays the calls of a trace through limits, and prints the results as a table.

use std::{collections::VecDeque, fmt::Write as _, time::Duration};

use hdrhistogram::Histogram;
use limits::{
    Demand, LimitId, Limits, Rate,
    rate::Time,
    rules::{ConfigErrors, Rules},
};

use crate::trace::Trace;

const SECOND: u64 = 1_000_000_000;

/// One limit for each key, whose rule is in the format of a limits file: `rate = "300/s", algorithm = "spacing"`.
///
/// # Errors
/// When the rule is invalid.
pub fn per_key(rule: &str) -> Result<Rules, ConfigErrors> {
    Rules::parse(&format!(
        "unknown = 'each'\n[limits.each]\nrules = [ {{ id = 'rule', {rule} }} ]"
    ))
}

/// Result of a replay.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Calls released, immediately or later.
    pub released: u64,
    /// Calls released later.
    pub delayed: u64,
    /// Calls refused.
    pub refused: u64,
    /// Maximum number of requests of one key in any window.
    pub worst_window: u64,
    /// Median delay of released calls.
    pub delay_p50: Duration,
    /// 99th percentile of the delay.
    pub delay_p99: Duration,
}

/// Releases of a key in the window that ends with the latest release.
#[derive(Debug, Default)]
struct SlidingWindow {
    releases: VecDeque<(u64, u64)>,
    sum: u64,
}

impl SlidingWindow {
    /// Adds a release, and returns the number of requests in the window that ends with it.
    fn add(&mut self, at: u64, requests: u64, window: u64) -> u64 {
        while let Some((first, count)) = self.releases.front()
            && first.saturating_add(window) <= at
        {
            self.sum -= count;
            self.releases.pop_front();
        }
        match self.releases.back_mut() {
            Some((last, count)) if *last == at => *count += requests,
            _ => self.releases.push_back((at, requests)),
        }
        self.sum += requests;
        self.sum
    }
}

/// Limits with this rate for each algorithm, by name. Algorithms with a burst get the requests of one second.
pub fn all_algorithms(rate: Rate) -> Vec<(&'static str, Result<Rules, ConfigErrors>)> {
    let (requests, time) = rate.written();
    let burst = rate.requests_in(SECOND).max(1);
    let burst_of_step = burst.max(requests);
    let warm_up = Time(time.max(SECOND));
    let queue = rate.requests_in(30 * SECOND).max(1);
    let options = |name: &str| match name {
        "token_bucket" => format!(", burst = {burst}"),
        "stepped_bucket" => format!(", burst = {burst_of_step}"),
        "leaky_bucket" => format!(", capacity = {queue}"),
        "warm_up" => format!(", warm_up = '{warm_up}'"),
        _ => String::new(),
    };
    let limits = |name| {
        let options = options(name);
        let rule = format!("rate = '{rate}', algorithm = '{name}'{options}");
        (name, per_key(&rule))
    };
    limits::ALGORITHMS.map(limits).to_vec()
}

/// Replays a trace with this maximum wait of a call: with 0, calls that would wait are refused. `window` is the length of the
/// windows for [`Outcome::worst_window`].
pub fn replay(trace: &Trace, rules: &Rules, max_wait: Duration, window: Duration) -> Outcome {
    let mut limits = Limits::new(usize::MAX);
    let demands_of = demands(&mut limits, trace, rules);
    let window = Time::from(window).0;
    let mut recent: Vec<SlidingWindow> = trace
        .keys
        .iter()
        .map(|_| SlidingWindow::default())
        .collect();
    // In microseconds, with three significant digits.
    let mut delays = Histogram::<u64>::new_with_bounds(1, 1 << 40, 3).expect("valid bounds");
    let (mut released, mut delayed, mut worst_window) = (0, 0, 0);
    let mut demands: Vec<Demand<u32>> = Vec::new();
    for call in &trace.calls {
        let requests = u64::from(call.requests);
        let Some(of_key) = &demands_of[call.key as usize] else {
            continue;
        };
        demands.clear();
        demands.extend(of_key.iter().map(|(limit, key)| Demand {
            limit: *limit,
            key: *key,
            requests,
        }));
        let decision = limits.reserve(&demands, call.at, max_wait);
        let Some(at) = decision.at(call.at) else {
            continue;
        };
        released += 1;
        delayed += u64::from(at > call.at);
        delays.saturating_record((at - call.at) / 1_000);
        let in_window = recent[call.key as usize].add(at, requests, window);
        worst_window = worst_window.max(in_window);
    }
    let calls = u64::try_from(trace.calls.len()).unwrap_or(u64::MAX);
    let delay = |quantile| Duration::from_micros(delays.value_at_quantile(quantile));
    Outcome {
        released,
        delayed,
        refused: calls - released,
        worst_window,
        delay_p50: delay(0.5),
        delay_p99: delay(0.99),
    }
}

/// Formats a table with a row per outcome and its name.
pub fn table(outcomes: &[(String, Outcome)]) -> String {
    let names = outcomes.iter().map(|(name, _)| name.chars().count());
    let width = names.max().unwrap_or(0).max("limits".len());
    let mut text = format!(
        "{:width$} {:>10} {:>10} {:>10} {:>13} {:>10} {:>10}",
        "limits", "released", "delayed", "refused", "worst window", "delay p50", "delay p99"
    );
    for (name, it) in outcomes {
        let [p50, p99] = [it.delay_p50, it.delay_p99].map(|delay| format!("{delay:?}"));
        let row = write!(
            text,
            "\n{name:width$} {:>10} {:>10} {:>10} {:>13} {p50:>10} {p99:>10}",
            it.released, it.delayed, it.refused, it.worst_window
        );
        row.expect("formatting into a string does not fail");
    }
    text
}

/// The limits of a key, each with the key of the counter; `None` if its calls are rejected.
type KeyLimits = Option<Vec<(LimitId, u32)>>;

/// The limits of each key of the trace.
fn demands(limits: &mut Limits<u32>, trace: &Trace, rules: &Rules) -> Vec<KeyLimits> {
    let added = rules.add_to(limits);
    let of_key = |(number, key): (u32, &String)| {
        let of_limit = |index: usize| {
            let is_global = rules.limits[index].global;
            let key = if is_global { u32::MAX } else { number };
            added[index].iter().map(move |limit| (*limit, key))
        };
        Some(rules.for_key(key)?.into_iter().flat_map(of_limit).collect())
    };
    (0_u32..).zip(&trace.keys).map(of_key).collect()
}
