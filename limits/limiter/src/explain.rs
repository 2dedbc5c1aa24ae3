//! What limits mean for one key: its rules in words, the windows of a moment, and when calls would go.

use std::{fmt::Write, time::Duration};

use anyhow::Result;
use jiff::Timestamp;
use limits::{Algorithm, Aligned, Decision, Demand, LimitId, Limits, rate::Time, rules::Rules};

/// Calls of which the moment is shown.
const SHOWN: [u64; 7] = [1, 2, 5, 10, 100, 1_000, 10_000];

/// No call is waited for longer.
const PATIENCE: Duration = Duration::from_secs(7 * 86_400);

/// Explains the rules of a key, as they are at `at`, in nanoseconds since the Unix epoch, when nothing has been used.
///
/// # Errors
/// When a time cannot be shown.
pub fn explain(rules: &Rules, key: &str, at: u64) -> Result<String> {
    let mut text = String::new();
    let Some(of_key) = rules.of_key(key) else {
        writeln!(
            text,
            "{key}: no limit names it, so all of its calls are rejected"
        )?;
        return Ok(text);
    };
    if of_key.is_empty() {
        writeln!(text, "{key}: no limit holds for it")?;
        return Ok(text);
    }
    writeln!(text, "{key}, at {}:", moment(at)?)?;
    let mut limits = Limits::<u32>::new(64);
    let mut under = Vec::new();
    for limit in of_key.iter().map(|index| &rules.limits[*index]) {
        for rule in &limit.rules {
            let name = format!("{}/{}", limit.name, rule.id);
            let algorithm = rule.limit.algorithm;
            writeln!(text, "  {name}: {algorithm}")?;
            if let Some((start, end)) = window_at(&algorithm, at) {
                let (start, end) = (moment(start)?, moment(end)?);
                writeln!(text, "    this window: from {start} to {end}")?;
            }
            let most = [1, 60, 3_600, 86_400].map(|seconds| {
                let time = seconds * 1_000_000_000;
                format!("{} in {}", algorithm.most_in(time), Time(time))
            });
            writeln!(text, "    at most {}", most.join(", "))?;
            under.push((limits.add(rule.limit)?, name));
        }
    }
    writeln!(
        text,
        "  calls that come all at once, when nothing has been used:"
    )?;
    schedule(&mut text, &mut limits, &under, at)?;
    Ok(text)
}

/// When each of [`SHOWN`] would go, and what it would wait for.
fn schedule(
    text: &mut String,
    limits: &mut Limits<u32>,
    under: &[(LimitId, String)],
    at: u64,
) -> Result<()> {
    let demand = |(limit, _): &(LimitId, String)| Demand {
        limit: *limit,
        key: 0,
        requests: 1,
    };
    let demands: Vec<Demand<u32>> = under.iter().map(demand).collect();
    let (mut now, mut why) = (at, String::new());
    for number in 1..=SHOWN[SHOWN.len() - 1] {
        // Each asks when the one before it goes; one that goes with others waited for the same.
        let decision = limits.reserve(&demands, now, PATIENCE);
        if let Decision::At { rule, .. } = decision {
            let name = under.iter().find(|(id, _)| *id == rule);
            why = name.map_or(String::new(), |(_, name)| format!(", for {name}"));
        }
        let found = decision.at(now);
        let Some(found) = found.filter(|found| found - at <= nanos(PATIENCE)) else {
            let patience = Time(nanos(PATIENCE));
            writeln!(text, "    number {number}: not within {patience}")?;
            break;
        };
        now = found;
        if SHOWN.contains(&number) {
            writeln!(text, "    number {number}: after {}{why}", Time(found - at))?;
        }
    }
    Ok(())
}

/// The window by the clock that `at` is in.
fn window_at(algorithm: &Algorithm, at: u64) -> Option<(u64, u64)> {
    let length = match algorithm {
        Algorithm::FixedWindow {
            window,
            aligned: Aligned::Clock,
            ..
        }
        | Algorithm::SlidingCounter { window, .. } => nanos(*window),
        Algorithm::StepWindow { step, .. } => nanos(*step),
        _ => return None,
    };
    let start = at - at % length;
    Some((start, start.saturating_add(length)))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn moment(nanos: u64) -> Result<Timestamp> {
    Ok(Timestamp::from_nanosecond(i128::from(nanos))?)
}
