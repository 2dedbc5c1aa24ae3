//! The estimated number of cookies of each DSP: the approximate size of the tree, divided as among the cookies of some users.
//!
//! The users are those that follow random keys between the first and the last one, made of bytes that occur in keys. So their ids need not
//! be evenly distributed; it suffices that they say nothing about the DSPs.

use std::collections::BTreeMap;

use proto::units::DspId;

use super::{
    Inner,
    records::{dsp_of, user_of},
};

/// Number of random keys, and of cookies read after each.
const SAMPLES: usize = 64;
const SAMPLE_COOKIES: usize = 200;

impl Inner {
    pub(super) fn estimate_by_dsp(&self) -> fjall::Result<BTreeMap<DspId, u64>> {
        let ends = [
            self.cookies.first_key_value(),
            self.cookies.last_key_value(),
        ];
        let [Some(first), Some(last)] = ends else {
            return Ok(BTreeMap::new());
        };
        let (first, last) = (first.key()?, last.key()?);
        let mut sampled: BTreeMap<DspId, u64> = BTreeMap::new();
        let mut sum = 0;
        let mut bytes = [user_of(&first), user_of(&last)].concat();
        for _ in 0..SAMPLES {
            let key = random_key(&first, &last, &bytes);
            if let Some(next) = self.cookies.range(key..).next() {
                bytes.extend_from_slice(user_of(&next.key()?));
            }
        }
        for _ in 0..SAMPLES {
            let key = random_key(&first, &last, &bytes);
            for pair in self.cookies.range(key..).take(SAMPLE_COOKIES) {
                if let Some(dsp_id) = dsp_of(&pair.key()?) {
                    *sampled.entry(dsp_id).or_default() += 1;
                    sum += 1;
                }
            }
        }
        let all = self.cookies.approximate_len() as u128;
        let scale = |count: u64| u64::try_from(u128::from(count) * all / sum).unwrap_or(u64::MAX);
        Ok(sampled
            .into_iter()
            .map(|(dsp_id, count)| (dsp_id, scale(count)))
            .collect())
    }
}

/// A random key: as `first` up to where it differs from `last`, then random ones of the `bytes`.
fn random_key(first: &[u8], last: &[u8], bytes: &[u8]) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let mut key = first[..common].to_vec();
    if let (Some(from), Some(to)) = (first.get(common), last.get(common)) {
        let next = bytes.iter().filter(|it| (from..=to).contains(it));
        let next: Vec<_> = next.collect();
        key.extend(fastrand::choice(next));
        key.extend((0..8).filter_map(|_| fastrand::choice(bytes)));
    }
    key
}
