//! The metrics of limits: read of all rooms at once, so that every scrape adds up.

use metric_defs::{
    MetricDef,
    producer::{
        SHAPING_ACCEPTED, SHAPING_BYTES, SHAPING_DEAD, SHAPING_DEAD_LETTERS, SHAPING_DELAY,
        SHAPING_DROPPED, SHAPING_EXCEEDED, SHAPING_OLDEST, SHAPING_PARKED, SHAPING_QUEUED,
        SHAPING_REFUSED_VERSION, SHAPING_RELEASED, SHAPING_REQUEUED, SHAPING_SPOOLED,
        SHAPING_SUPERSEDED, SHAPING_VERSION, SHARING_MISSED, SHARING_SHARE, SHARING_STATE,
        SHARING_SUM,
    },
};
use prometheus::proto::MetricFamily;
use runtime::metrics::{Registry, family, histograms};

use super::{
    Shaping,
    counters::{DeadReason, Dropped, seconds},
    shaper::Summary,
    sharing::ShareState,
};
use crate::metrics::as_f64;

/// A metric with one series for each limit, and how it is read.
type Row = (MetricDef, fn(&Summary) -> f64);

const ROWS: &[Row] = &[
    (SHAPING_ACCEPTED, |it| as_f64(it.figures.accepted)),
    (SHAPING_SUPERSEDED, |it| as_f64(it.figures.superseded)),
    (SHAPING_SPOOLED, |it| as_f64(it.figures.spooled)),
    (SHAPING_QUEUED, |it| as_f64(it.holding.waiting)),
    (SHAPING_DEAD, |it| as_f64(it.holding.dead)),
    (SHAPING_PARKED, |it| as_f64(it.holding.parked)),
    (SHAPING_BYTES, |it| as_f64(it.holding.bytes)),
    (SHAPING_OLDEST, |it| seconds(it.holding.oldest_nanos)),
    (SHAPING_REQUEUED, |it| as_f64(it.figures.requeued)),
];

/// Registers them; without limits they have no values.
///
/// # Errors
/// When a metric of these names is registered already.
pub(crate) fn register(registry: &Registry, shaping: Option<Shaping>) -> prometheus::Result<()> {
    let figures = ROWS.iter().map(|(figure, _)| *figure).chain([
        SHAPING_RELEASED,
        SHAPING_DROPPED,
        SHAPING_EXCEEDED,
        SHAPING_DEAD_LETTERS,
        SHAPING_DELAY,
        SHAPING_VERSION,
        SHAPING_REFUSED_VERSION,
        SHARING_SHARE,
        SHARING_SUM,
        SHARING_STATE,
        SHARING_MISSED,
    ]);
    registry.read(figures, move || families(shaping.as_ref()))
}

fn families(shaping: Option<&Shaping>) -> Vec<MetricFamily> {
    let summaries = shaping.map(Shaping::summaries).unwrap_or_default();
    let by_limit = ROWS.iter().map(|(figure, value)| {
        let samples = summaries.iter();
        let samples = samples.map(|(limit, it)| ([limit.as_str()], value(it)));
        family(*figure, samples)
    });
    let released = summaries.iter().flat_map(|(limit, it)| {
        let of = |timing, count| ([limit.as_str(), timing], as_f64(count));
        [
            of("scheduled", it.figures.released),
            of("early", it.figures.released_early),
        ]
    });
    let dropped = summaries.iter().flat_map(|(limit, it)| {
        let of = |(why, label)| ([limit.as_str(), label], as_f64(it.figures.dropped(why)));
        Dropped::ALL.map(of)
    });
    let over = summaries.iter().flat_map(|(limit, it)| {
        it.figures.rules.iter().flat_map(|(rule, counted)| {
            let [delayed, refused] = counted.over;
            [("delayed", delayed), ("refused", refused)]
                .map(|(outcome, count)| ([limit.as_str(), rule.as_str(), outcome], as_f64(count)))
        })
    });
    let died = summaries.iter().flat_map(|(limit, it)| {
        it.figures.rules.iter().flat_map(|(rule, counted)| {
            DeadReason::ALL.map(|(why, label)| {
                let count = counted.dead_letters[why as usize];
                ([limit.as_str(), rule.as_str(), label], as_f64(count))
            })
        })
    });
    let delays = summaries.iter().map(|(limit, it)| {
        let delays = &it.figures.delays;
        let sum = seconds(delays.sum_nanos);
        ([limit.as_str()], delays.buckets.to_vec(), sum)
    });
    let of_all = |figure, value: fn(&Shaping) -> f64| {
        let samples = shaping.map(|shaping| ([], value(shaping)));
        family::<[&str; 0]>(figure, samples)
    };
    let sharing = shaping.and_then(Shaping::sharing);
    let shares = || sharing.iter().flat_map(|it| &it.shares);
    let share = shares().map(|(limit, share, _)| ([limit.as_str()], *share));
    let sum = shares().map(|(limit, _, sum)| ([limit.as_str()], *sum));
    let states = sharing.iter().flat_map(|it| {
        ShareState::ALL.map(|(state, name)| ([name], f64::from(u8::from(state == it.state))))
    });
    let missed = sharing.iter().map(|it| ([], as_f64(it.missed)));
    let others = [
        family(SHARING_SHARE, share),
        family(SHARING_SUM, sum),
        family(SHARING_STATE, states),
        family::<[&str; 0]>(SHARING_MISSED, missed),
        family(SHAPING_RELEASED, released),
        family(SHAPING_DROPPED, dropped),
        family(SHAPING_EXCEEDED, over),
        family(SHAPING_DEAD_LETTERS, died),
        histograms(SHAPING_DELAY, delays),
        of_all(SHAPING_VERSION, |it| as_f64(it.version())),
        of_all(SHAPING_REFUSED_VERSION, |it| {
            f64::from(u8::from(it.refused().is_some()))
        }),
    ];
    by_limit.chain(others).collect()
}
