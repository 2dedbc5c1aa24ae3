//! Handling of calls over a limit: `mode`, `shape` and `requeue`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de::Error};

use crate::rate::{Bytes, Parsed, Time};

/// How the process that enforces a limit handles calls over it. This crate only decides when a call may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handling {
    /// The mode. The other fields apply only to [`Mode::Shape`].
    pub mode: Mode,
    /// Queues of waiting calls.
    pub shape: Shape,
    /// Requeueing of overdue calls.
    pub requeue: RequeuePolicy,
}

/// Handling of calls over their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The calls pass and are counted.
    #[default]
    Observe,
    /// The calls are dropped.
    Police,
    /// The calls wait for their slot.
    Shape,
}

/// How overdue calls are requeued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RequeuePolicy {
    /// Delay before the first requeue. It doubles each time.
    #[serde(deserialize_with = "time")]
    pub base: Duration,
    /// Maximum delay, at least `base`.
    #[serde(deserialize_with = "time")]
    pub cap: Duration,
    /// Number of requeues before a call is parked: kept, but not requeued again.
    #[serde(rename = "max")]
    pub requeues_max: u32,
    /// Maximum share of the rate for requeued calls, in thousandths.
    #[serde(rename = "share", deserialize_with = "permille")]
    pub share_permille: u16,
}

/// How calls wait for their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Shape {
    /// Maximum wait of a reservation. Calls that would wait longer are rescheduled later.
    #[serde(deserialize_with = "time")]
    pub max_wait: Duration,
    /// Age at which a waiting call becomes overdue, at least `max_wait`.
    #[serde(deserialize_with = "time")]
    pub max_age: Duration,
    /// Queue capacity of each key.
    #[serde(deserialize_with = "bytes")]
    pub queue_bytes: u64,
}

impl Handling {
    /// The fields that are out of range, and their valid ranges.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        const HOUR: Duration = Duration::from_secs(3_600);
        const DAY: Duration = Duration::from_secs(86_400);
        let (shape, requeue) = (&self.shape, &self.requeue);
        let has_valid_queue = (64 << 10..=16 << 30).contains(&shape.queue_bytes);
        let has_valid_count = requeue.requeues_max <= 64;
        let has_valid_age = shape.max_wait <= shape.max_age;
        let bounds = [
            (shape.max_wait <= HOUR, "shape.max_wait", "up to 1h"),
            (shape.max_age <= DAY, "shape.max_age", "up to 1day"),
            (has_valid_age, "shape.max_age", "at least max_wait"),
            (has_valid_queue, "shape.queue_bytes", "64KiB to 16GiB"),
            (requeue.base <= requeue.cap, "requeue.base", "up to cap"),
            (requeue.cap <= DAY, "requeue.cap", "up to 1day"),
            (has_valid_count, "requeue.max", "up to 64"),
        ];
        let broken = bounds.into_iter().filter(|(holds, ..)| !holds);
        broken.map(|(_, field, range)| (field, range))
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(30),
            max_age: Duration::from_secs(60),
            queue_bytes: 64 << 20,
        }
    }
}

impl Default for RequeuePolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(30),
            cap: Duration::from_secs(15 * 60),
            requeues_max: 8,
            share_permille: 100,
        }
    }
}

pub(super) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Parsed::<Time>::deserialize(from).map(|time| time.0.into())
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Parsed::<Bytes>::deserialize(from).map(|bytes| bytes.0.0)
}

/// Whole thousandths. The division rounds like the parser of decimal numbers, so that equal numbers are equal floats.
fn permille<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let share = f64::deserialize(from)?;
    let found = (1..=500).find(|permille| f64::from(*permille) / 1_000.0 == share);
    let error = || format!("invalid share `{share}`: use 0.001 to 0.5 in steps of 0.001");
    found.ok_or_else(|| Error::custom(error()))
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Observe => "observe",
            Self::Police => "police",
            Self::Shape => "shape",
        })
    }
}
