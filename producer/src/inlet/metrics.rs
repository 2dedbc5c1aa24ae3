//! Metrics of the DSP limits, read from all queues at one moment, so that the counts balance in every scrape.

use metric_defs::producer::{
    DSP_LIMITS_BECAME_OVERDUE, DSP_LIMITS_DELAY, DSP_LIMITS_DROPPED, DSP_LIMITS_EXCEEDED,
    DSP_LIMITS_RELEASED, SHARING_SHARE, SHARING_STATE, SHARING_SUM,
};
use runtime::metrics::{Family, Registry, as_f64, family, histograms};

use super::{
    Inlet,
    counters::{CookieOutcome, ROWS, RuleEvent, seconds},
    sharing::ShareState,
};

/// Registers the metrics; without limits they have no values.
///
/// # Errors
/// When one of these metrics is registered already.
pub(crate) fn register(registry: &Registry, inlet: Inlet) -> prometheus::Result<()> {
    registry.read(move || families(&inlet))
}

fn families(inlet: &Inlet) -> Vec<Family> {
    let summaries = inlet.summaries();
    let by_limit = ROWS.iter().map(|(metric, of)| {
        let samples = summaries.iter();
        let samples = samples.map(|(limit, it)| ([limit.as_str()], of(it)));
        family(*metric, samples)
    });
    let released = summaries.iter().flat_map(|(limit, it)| {
        let of = |timing, outcome| ([limit.as_str(), timing], it.count(outcome));
        [
            of("scheduled", CookieOutcome::Released),
            of("early", CookieOutcome::ReleasedEarly),
        ]
    });
    let dropped = summaries.iter().flat_map(|(limit, it)| {
        let of = |(outcome, label)| ([limit.as_str(), label], it.count(outcome));
        CookieOutcome::DROPPED.map(of)
    });
    let rules = |events: [(RuleEvent, &'static str); 2]| {
        summaries.iter().flat_map(move |(limit, it)| {
            it.counters.rules.iter().flat_map(move |(rule, counts)| {
                events.map(|(event, label)| {
                    let count = as_f64(counts[event as usize]);
                    ([limit.as_str(), rule.as_str(), label], count)
                })
            })
        })
    };
    let delays = summaries.iter().map(|(limit, it)| {
        let delays = &it.counters.delays;
        let sum = seconds(delays.sum_nanos);
        ([limit.as_str()], delays.buckets.to_vec(), sum)
    });
    let sharing = inlet.sharing();
    let shares = || sharing.iter().flat_map(|it| &it.shares);
    let share = shares().map(|(limit, share, _)| ([limit.as_str()], *share));
    let sum = shares().map(|(limit, _, sum)| ([limit.as_str()], *sum));
    let states = sharing.iter().flat_map(|it| {
        ShareState::ALL.map(|state| ([state.name()], f64::from(u8::from(state == it.state))))
    });
    let others = [
        family(SHARING_SHARE, share),
        family(SHARING_SUM, sum),
        family(SHARING_STATE, states),
        family(DSP_LIMITS_RELEASED, released),
        family(DSP_LIMITS_DROPPED, dropped),
        family(DSP_LIMITS_EXCEEDED, rules(RuleEvent::EXCEEDED)),
        family(DSP_LIMITS_BECAME_OVERDUE, rules(RuleEvent::OVERDUE)),
        histograms(DSP_LIMITS_DELAY, delays),
    ];
    by_limit.chain(others).collect()
}
