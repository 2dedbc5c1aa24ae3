//! `consumer_stored_cookies{dsp}`: how many cookies of each DSP the store has.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use metric_defs::consumer;
use parking_lot::Mutex;
use prometheus::Result;
use proto::units::DspId;
use runtime::metrics::{Registry, as_f64, family};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::store::Lookup;

/// Maximum number of DSPs with series.
const SERIES_MAX: usize = 64;

/// Time between two counts.
const INTERVAL: Duration = Duration::from_secs(60);

/// The last count; clones share it.
#[derive(Debug, Clone, Default)]
pub struct StoredCookies(Arc<Mutex<Vec<(String, u64)>>>);

impl StoredCookies {
    /// Registers the metric.
    ///
    /// # Errors
    /// When the name is already registered.
    pub fn register(registry: &Registry) -> Result<Self> {
        let counts = Self::default();
        let last = counts.clone();
        registry.read(move || {
            let counts = last.0.lock();
            let counts = counts.iter().map(|(dsp, count)| ([&**dsp], as_f64(*count)));
            vec![family(consumer::STORED_COOKIES, counts)]
        })?;
        Ok(counts)
    }

    /// The last count, by DSP.
    pub fn counts(&self) -> Vec<(String, u64)> {
        self.0.lock().clone()
    }

    /// Counts the cookies every minute, until `stop` is cancelled. After an error, the last count stays.
    pub async fn run(self, store: Arc<dyn Lookup>, stop: CancellationToken) {
        let counting = async {
            loop {
                match store.stored_cookies().await {
                    Ok(counts) => *self.0.lock() = largest(counts),
                    Err(error) => tracing::debug!(%error, "failed to count the stored cookies"),
                }
                sleep(INTERVAL).await;
            }
        };
        stop.run_until_cancelled(counting).await;
    }
}

/// The DSPs with the most cookies, and the sum of all others.
fn largest(counts: BTreeMap<DspId, u64>) -> Vec<(String, u64)> {
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(_, count)| Reverse(*count));
    let others = counts.split_off(counts.len().min(SERIES_MAX));
    let mut labelled: Vec<_> = counts
        .iter()
        .map(|(dsp_id, count)| (dsp_id.to_string(), *count))
        .collect();
    if !others.is_empty() {
        let sum = others.iter().map(|(_, count)| count).sum();
        labelled.push(("other".to_owned(), sum));
    }
    labelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dsps_with_few_cookies_are_counted_together() {
        let counts = (1..=70).map(|dsp| (DspId(dsp), u64::from(dsp))).collect();
        let labelled = largest(counts);
        assert_eq!(labelled.len(), 65);
        assert_eq!(labelled[0], ("70".to_owned(), 70));
        assert_eq!(labelled[64], ("other".to_owned(), 1 + 2 + 3 + 4 + 5 + 6));
    }
}
