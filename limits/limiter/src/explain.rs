//! What limits mean for one key: its rules in words, the windows of a moment, and when calls would go.

use std::{fmt::Write, time::Duration};

use anyhow::Result;
use jiff::Timestamp;
use limits::{Algorithm, Aligned, Decision, Demand, Limits, rate::Time, rules::Rules};

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
            "{key}: no limit names it, so all of its calls are refused"
        )?;
        return Ok(text);
    };
    if of_key.is_empty() {
        writeln!(text, "{key}: no limit holds for it")?;
        return Ok(text);
    }
    writeln!(text, "{key}, at {}:", moment(at)?)?;
    for rule in of_key.iter().flat_map(|index| of(rules, *index)) {
        let (name, algorithm) = rule;
        writeln!(text, "  {name}: {algorithm}")?;
        if let Some((start, end)) = window_at(&algorithm, at) {
            writeln!(
                text,
                "    this window: from {} to {}",
                moment(start)?,
                moment(end)?
            )?;
        }
        let most = [1, 60, 3_600, 86_400].map(|seconds| {
            let most = algorithm.most_in(seconds * 1_000_000_000);
            format!("{most} in {}", Time(seconds * 1_000_000_000))
        });
        writeln!(text, "    at most {}", most.join(", "))?;
    }
    writeln!(
        text,
        "  calls that come all at once, when nothing has been used:"
    )?;
    schedule(&mut text, rules, &of_key, at)?;
    Ok(text)
}

fn of(rules: &Rules, index: usize) -> impl Iterator<Item = (String, Algorithm)> {
    let limit = &rules.limits[index];
    let rules = limit.rules.iter();
    rules.map(|rule| (format!("{}/{}", limit.name, rule.id), rule.limit.algorithm))
}

/// When each of [`SHOWN`] would go, and what it would wait for.
fn schedule(text: &mut String, rules: &Rules, of_key: &[usize], at: u64) -> Result<()> {
    let mut limits = Limits::<u32>::new(64);
    let added = rules.add_to(&mut limits);
    let names: Vec<(limits::LimitId, String)> = of_key
        .iter()
        .flat_map(|index| {
            let ids = added[*index].iter().copied();
            ids.zip(of(rules, *index).map(|(name, _)| name))
        })
        .collect();
    let demands: Vec<Demand<u32>> = names
        .iter()
        .map(|(limit, _)| Demand {
            limit: *limit,
            key: 0,
            requests: 1,
        })
        .collect();
    let name = |limit| {
        names
            .iter()
            .find(|(id, _)| *id == limit)
            .map_or("", |(_, name)| name)
    };
    let (mut now, mut binding) = (at, None);
    for number in 1..=SHOWN[SHOWN.len() - 1] {
        // Each asks when the one before it goes; one that goes with others waited for the same.
        let decision = limits.reserve(&demands, now, PATIENCE);
        if let Decision::At { rule, .. } = decision {
            binding = Some(rule);
        }
        let found = decision.at(now);
        let Some(found) = found.filter(|found| found - at <= nanos(PATIENCE)) else {
            writeln!(
                text,
                "    number {number}: not within {}",
                Time(nanos(PATIENCE))
            )?;
            break;
        };
        now = found;
        if SHOWN.contains(&number) {
            let why = binding.map_or(String::new(), |limit| format!(", for {}", name(limit)));
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
