//! What is done with calls that are over a limit: `mode`, `shape`, `dead_letter`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de::Error};

use crate::rate::{Bytes, Parsed, Time};

/// How calls under a limit are handled by who enforces it. Nothing in this crate does: it decides when a call may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// What is done with what is over; the rest here is of [`Mode::Shape`] only.
    pub mode: Mode,
    /// The longest planned wait. What would wait longer is planned again later.
    pub max_wait: Duration,
    /// The longest time since a call was accepted; then it is a dead letter. At least the maximum wait.
    pub max_age: Duration,
    /// The most bytes that wait, for each key.
    pub queue_bytes: u64,
    /// What is done with dead letters.
    pub requeue: RequeuePolicy,
}

/// What is done with calls that are over their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They pass, and what would have been done with them is counted.
    #[default]
    Observe,
    /// They are dropped.
    Police,
    /// They wait for their moment.
    Shape,
}

/// How dead letters are put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RequeuePolicy {
    /// The delay before the first time; it doubles with each further one.
    #[serde(deserialize_with = "time")]
    pub base: Duration,
    /// The longest delay. At least the base.
    #[serde(deserialize_with = "time")]
    pub cap: Duration,
    /// How often a call is put back before it is parked.
    #[serde(rename = "max_requeues")]
    pub requeues_max: u32,
    /// The most of the rate that calls which are put back may take, in thousandths.
    #[serde(rename = "share", deserialize_with = "permille")]
    pub share_permille: u16,
}

/// How long and in how much space calls wait, as it is written.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Shape {
    #[serde(deserialize_with = "time")]
    max_wait: Duration,
    #[serde(deserialize_with = "time")]
    max_age: Duration,
    queue_bytes: Parsed<Bytes>,
}

impl Default for Handling {
    fn default() -> Self {
        Self::new(Mode::default(), Shape::default(), RequeuePolicy::default())
    }
}

impl Handling {
    pub(super) fn new(mode: Mode, shape: Shape, requeue: RequeuePolicy) -> Self {
        Self {
            mode,
            max_wait: shape.max_wait,
            max_age: shape.max_age,
            queue_bytes: shape.queue_bytes.0.0,
            requeue,
        }
    }

    /// What is wrong with its numbers.
    pub(super) fn errors(&self) -> impl Iterator<Item = &'static str> {
        const HOUR: Duration = Duration::from_secs(3_600);
        const DAY: Duration = Duration::from_secs(86_400);
        let requeue = &self.requeue;
        let has_room = (64 << 10..=16 << 30).contains(&self.queue_bytes);
        let bounds = [
            (self.max_wait <= HOUR, "shape: max_wait is more than 1h"),
            (self.max_age <= DAY, "shape: max_age is more than 1day"),
            (
                self.max_wait <= self.max_age,
                "shape: max_age is less than max_wait",
            ),
            (has_room, "shape: queue_bytes is not 64KiB to 16GiB"),
            (
                requeue.base <= requeue.cap,
                "dead_letter: base is more than the cap",
            ),
            (requeue.cap <= DAY, "dead_letter: cap is more than 1day"),
            (
                requeue.requeues_max <= 64,
                "dead_letter: max_requeues is more than 64",
            ),
        ];
        let broken = bounds.into_iter().filter(|(holds, _)| !holds);
        broken.map(|(_, what)| what)
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(30),
            max_age: Duration::from_secs(60),
            queue_bytes: Parsed(Bytes(64 << 20)),
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

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Parsed::<Time>::deserialize(from).map(|time| time.0.into())
}

/// Whole thousandths: the division rounds as the reader of decimal numbers does, so equal numbers are equal floats.
fn permille<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let share = f64::deserialize(from)?;
    let found = (1..=500).find(|permille| f64::from(*permille) / 1_000.0 == share);
    let wrong = || format!("`{share}` is not a share: write 0.001 to 0.5, in thousandths");
    found.ok_or_else(|| Error::custom(wrong()))
}

impl fmt::Display for Handling {
    /// The mode and its numbers in words.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            Mode::Observe => {
                formatter.write_str("mode observe: what is over passes and is counted")
            }
            Mode::Police => formatter.write_str("mode police: what is over is dropped"),
            Mode::Shape => write!(
                formatter,
                "mode shape: what is over waits, for up to {} at a time and in at most {} for each key; {} after it was \
                 accepted it is a dead letter{}",
                Time::from(self.max_wait),
                Bytes(self.queue_bytes),
                Time::from(self.max_age),
                self.requeue
            ),
        }
    }
}

impl fmt::Display for RequeuePolicy {
    /// What becomes of a dead letter.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [base, cap] = [self.base, self.cap].map(Time::from);
        let most = self.requeues_max;
        if most == 0 {
            return formatter.write_str(" and parked");
        }
        write!(
            formatter,
            ", put back up to {most} times, after {base} to {cap}"
        )?;
        let percent = f64::from(self.share_permille) / 10.0;
        write!(
            formatter,
            " and within {percent} % of the rate, then parked"
        )
    }
}
