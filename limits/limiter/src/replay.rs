//! A trace through limits: what would have become of each call.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use limits::{Algorithm, Aligned, Demand, LimitId, Limits, Rate, rules::Rules, step_of};
use serde::Serialize;

use crate::trace::Trace;

/// The parts of time that a picture has.
pub const BINS: usize = 600;

/// Who is under which limits.
#[derive(Debug, Clone)]
pub enum Under {
    /// Each key under a limit of its own.
    Each(Algorithm),
    /// As a file has it.
    Rules(Rules),
}

/// Something that calls are replayed through.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What tables call it.
    pub name: String,
    /// The limits.
    pub under: Under,
}

/// How a trace is replayed.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// The longest that a call may wait; 0 to refuse all that would have to.
    pub horizon: Duration,
    /// The length of the windows of which the fullest is looked for.
    pub window: Duration,
}

/// What became of a trace.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The candidate.
    pub name: String,
    /// What it promises.
    pub words: String,
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
    /// The median of how long the calls that went waited, in seconds.
    pub delay_p50: f64,
    /// The same of 99 in 100.
    pub delay_p99: f64,
    /// What the limits keep, in bytes.
    pub memory_bytes: usize,
    /// How long the replay took, in seconds.
    pub took: f64,
    /// Requests that came and went in each part of time.
    #[serde(skip)]
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

/// All algorithms at one rate, with what they need beside it.
#[must_use]
pub fn all_algorithms(rate: Rate, burst: u64) -> Vec<(String, Algorithm)> {
    let (limit, window) = rate.written();
    let window = Duration::from_nanos(window);
    let queue = rate.requests_in(30_000_000_000).max(1);
    let all = [
        ("token bucket", Algorithm::TokenBucket { rate, burst }),
        (
            "stepped bucket",
            Algorithm::SteppedBucket {
                rate,
                burst: burst.max(limit),
            },
        ),
        (
            "leaky bucket, queue (see --horizon)",
            Algorithm::LeakyBucket {
                rate,
                capacity: queue,
            },
        ),
        ("spacing", Algorithm::TokenBucket { rate, burst: 1 }),
        (
            "fixed window",
            Algorithm::FixedWindow {
                limit,
                window,
                aligned: Aligned::Clock,
            },
        ),
        ("sliding log", Algorithm::SlidingLog { limit, window }),
        (
            "sliding counter",
            Algorithm::SlidingCounter { limit, window },
        ),
        (
            "step window",
            Algorithm::StepWindow {
                limit,
                window,
                step: step_of(window).min(window),
            },
        ),
        (
            "warm-up",
            Algorithm::WarmUp {
                rate,
                warm_up: window.max(Duration::from_secs(1)),
            },
        ),
    ];
    all.map(|(name, algorithm)| (name.to_owned(), algorithm))
        .to_vec()
}

/// Replays a trace.
#[must_use]
pub fn replay(trace: &Trace, candidate: &Candidate, how: How) -> Outcome {
    let began = Instant::now();
    let mut limits = Limits::new(usize::MAX);
    let (words, demands_of) = demands(&mut limits, trace, &candidate.under);
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
                limits.reserve(&demands, call.at, how.horizon)
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
    let seconds =
        |quantile| Duration::from_micros(delays.value_at_quantile(quantile)).as_secs_f64();
    Outcome {
        name: candidate.name.clone(),
        words,
        calls,
        released,
        delayed,
        refused: calls - released,
        worst_window,
        delay_p50: seconds(0.5),
        delay_p99: seconds(0.99),
        memory_bytes: limits.memory_bytes(),
        took: began.elapsed().as_secs_f64(),
        flow,
    }
}

/// The limits of a key, each with the key under which it counts there.
type OfKey = Option<Vec<(LimitId, u32)>>;

/// The words of what was added, and the limits of each key of the trace; none for a key whose calls are refused.
fn demands(limits: &mut Limits<u32>, trace: &Trace, under: &Under) -> (String, Vec<OfKey>) {
    let keys = (0_u32..).zip(&trace.keys);
    match under {
        Under::Each(algorithm) => {
            let limit = limits.add(*algorithm).expect("it was checked");
            let of_each = keys.map(|(number, _)| Some(vec![(limit, number)]));
            (algorithm.to_string(), of_each.collect())
        }
        Under::Rules(rules) => {
            let added = rules.add_to(limits);
            let of_limit = |number, index: usize| {
                let key = if rules.limits[index].every_call {
                    u32::MAX
                } else {
                    number
                };
                added[index].iter().map(move |limit| (*limit, key))
            };
            let of_each = keys.map(|(number, key)| {
                let of_key = rules.of_key(key)?;
                Some(
                    of_key
                        .into_iter()
                        .flat_map(|index| of_limit(number, index))
                        .collect(),
                )
            });
            let of_each = of_each.collect();
            (rules.to_string(), of_each)
        }
    }
}
