//! A trace through limits: what would have become of each call.

use std::{collections::VecDeque, time::Duration};

use hdrhistogram::Histogram;
use limits::{
    Demand, LimitId, Limits, Rate,
    rate::Time,
    rules::{ConfigErrors, Rules},
};

use crate::trace::Trace;

/// The parts of time that a picture has.
pub const BINS: usize = 600;

/// Something that calls are replayed through.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What tables call it.
    pub name: String,
    /// The limits.
    pub rules: Rules,
}

impl Candidate {
    /// Each key under a limit of its own, of one rule in the form of a file: `rate = "300/s", algorithm = "spacing"`.
    ///
    /// # Errors
    /// When the rule has errors.
    pub fn each(name: &str, rule: &str) -> Result<Self, ConfigErrors> {
        let text =
            format!("unknown = 'each'\n[limits.each]\nrules = [ {{ id = 'rule', {rule} }} ]");
        Ok(Self {
            name: name.to_owned(),
            rules: Rules::parse(&text)?,
        })
    }
}

/// How a trace is replayed.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// The longest that a call may wait; 0 to refuse all that would have to.
    pub max_wait: Duration,
    /// The length of the windows of which the fullest is looked for.
    pub window: Duration,
}

/// What became of a trace.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The candidate.
    pub name: String,
    /// Calls.
    pub calls: u64,
    /// Calls that went, at once or later.
    pub released: u64,
    /// Those of them that had to wait.
    pub delayed: u64,
    /// Calls that did not go.
    pub refused: u64,
    /// Most requests of one key in any window of the length that was asked for.
    pub worst_window: u64,
    /// The median of how long the calls that went waited.
    pub delay_p50: Duration,
    /// The same of 99 in 100.
    pub delay_p99: Duration,
    /// Requests that came and went in each part of time.
    pub flow: Flow,
}

/// Requests in each part of time.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The length of a part, in nanoseconds.
    pub bin: u64,
    /// Requests that came.
    pub came: Vec<u64>,
    /// Requests that went.
    pub went: Vec<u64>,
}

impl Flow {
    fn new(span: Duration) -> Self {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let bins = u64::try_from(BINS).expect("a few");
        // Whole seconds where these are few enough, and nice fractions of them where they are not.
        let nice = [1, 2, 5].map(|digit| move |power: u32| digit * 10_u64.pow(power));
        let mut sizes = (6..=18).flat_map(|power| nice.iter().map(move |size| size(power)));
        let bin = sizes.find(|size| span / size < bins).unwrap_or(span);
        Self {
            bin,
            came: Vec::new(),
            went: Vec::new(),
        }
    }

    fn add(counts: &mut Vec<u64>, index: u64, requests: u64) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        // What goes long after the last came is not in the picture.
        if index < 2 * BINS {
            if counts.len() <= index {
                counts.resize(index + 1, 0);
            }
            counts[index] += requests;
        }
    }
}

/// One key's releases in the window that ends now.
#[derive(Debug, Default)]
struct Recent {
    releases: VecDeque<(u64, u64)>,
    sum: u64,
}

impl Recent {
    /// Returns how many are in the window that ends with this one.
    fn add(&mut self, at: u64, requests: u64, window: u64) -> u64 {
        while let Some((first, of)) = self.releases.front()
            && first.saturating_add(window) <= at
        {
            self.sum -= of;
            self.releases.pop_front();
        }
        match self.releases.back_mut() {
            Some((last, of)) if *last == at => *of += requests,
            _ => self.releases.push_back((at, requests)),
        }
        self.sum += requests;
        self.sum
    }
}

/// All algorithms at one rate, each as the rule of a file, with what they need beside it.
#[must_use]
pub fn all_algorithms(rate: Rate, burst: u64) -> Vec<(&'static str, String)> {
    let (requests, time) = rate.written();
    let burst_of_step = burst.max(requests);
    let warm_up = Time(time.max(1_000_000_000));
    let queue = rate.requests_in(30_000_000_000).max(1);
    let options = |name: &str| match name {
        "token_bucket" => format!(", burst = {burst}"),
        "stepped_bucket" => format!(", burst = {burst_of_step}"),
        "leaky_bucket" => format!(", capacity = {queue}"),
        "warm_up" => format!(", warm_up = '{warm_up}'"),
        _ => String::new(),
    };
    let rule = |name| {
        let options = options(name);
        (
            name,
            format!("rate = '{rate}', algorithm = '{name}'{options}"),
        )
    };
    limits::ALGORITHMS.map(rule).to_vec()
}

/// Replays a trace.
#[must_use]
pub fn replay(trace: &Trace, candidate: &Candidate, how: How) -> Outcome {
    let mut limits = Limits::new(usize::MAX);
    let demands_of = demands(&mut limits, trace, &candidate.rules);
    let first = trace.calls.first().map_or(0, |call| call.at);
    let window = u64::try_from(how.window.as_nanos()).unwrap_or(u64::MAX);
    let mut flow = Flow::new(trace.span());
    let mut recent: Vec<Recent> = trace.keys.iter().map(|_| Recent::default()).collect();
    // From a microsecond, and to three digits.
    let mut delays = Histogram::<u64>::new_with_bounds(1, 1 << 40, 3).expect("good bounds");
    let (mut released, mut delayed, mut worst_window) = (0, 0, 0);
    let mut demands: Vec<Demand<u32>> = Vec::new();
    for call in &trace.calls {
        let requests = u64::from(call.requests);
        Flow::add(&mut flow.came, (call.at - first) / flow.bin, requests);
        let decision = match &demands_of[call.key as usize] {
            None => continue,
            Some(of_key) => {
                demands.clear();
                let of_call = of_key.iter().map(|(limit, key)| Demand {
                    limit: *limit,
                    key: *key,
                    requests,
                });
                demands.extend(of_call);
                limits.reserve(&demands, call.at, how.max_wait)
            }
        };
        let Some(at) = decision.at(call.at) else {
            continue;
        };
        released += 1;
        delayed += u64::from(at > call.at);
        delays.saturating_record((at - call.at) / 1_000);
        Flow::add(&mut flow.went, (at - first) / flow.bin, requests);
        let in_window = recent[call.key as usize].add(at, requests, window);
        worst_window = worst_window.max(in_window);
    }
    let calls = u64::try_from(trace.calls.len()).unwrap_or(u64::MAX);
    let delay = |quantile| Duration::from_micros(delays.value_at_quantile(quantile));
    Outcome {
        name: candidate.name.clone(),
        calls,
        released,
        delayed,
        refused: calls - released,
        worst_window,
        delay_p50: delay(0.5),
        delay_p99: delay(0.99),
        flow,
    }
}

/// The limits of a key, each with the key under which it counts there.
type OfKey = Option<Vec<(LimitId, u32)>>;

/// The limits of each key of the trace; none for a key whose calls are rejected.
fn demands(limits: &mut Limits<u32>, trace: &Trace, rules: &Rules) -> Vec<OfKey> {
    let added = rules.add_to(limits);
    let of_key = |(number, key): (u32, &String)| {
        let of_limit = |index: usize| {
            let whole = rules.limits[index].global;
            let key = if whole { u32::MAX } else { number };
            added[index].iter().map(move |limit| (*limit, key))
        };
        Some(rules.for_key(key)?.into_iter().flat_map(of_limit).collect())
    };
    (0_u32..).zip(&trace.keys).map(of_key).collect()
}
