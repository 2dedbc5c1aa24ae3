//! What is done with calls that are over a limit: `mode`, `shape`, `dead_letter`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de::Error};

use crate::rate::{Bytes, Parsed, Time};

const REQUEUES_MAX: u32 = 64;

/// How calls under a limit are handled by who enforces it. Nothing in this crate does: it decides when a call may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// What is done with what is over; the rest here is of [`Mode::Shape`] only.
    pub mode: Mode,
    /// The longest planned wait. What would wait longer is planned again later.
    pub horizon: Duration,
    /// The longest time since a call was accepted; then it is a dead letter. At least the horizon.
    pub max_age: Duration,
    /// The most bytes that wait, for each key.
    pub queue_bytes: u64,
    /// What is done with dead letters.
    pub revive: Revive,
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
#[serde(default, deny_unknown_fields)]
pub struct Revive {
    /// The delay before the first time; it doubles with each further one.
    #[serde(deserialize_with = "up_to_a_day")]
    pub base: Duration,
    /// The longest delay. At least the base.
    #[serde(deserialize_with = "up_to_a_day")]
    pub cap: Duration,
    /// How often a call is put back before it is parked.
    #[serde(rename = "max_requeues", deserialize_with = "requeues")]
    pub requeues_max: u32,
    /// The most of the rate that calls which are put back may take, in thousandths.
    #[serde(rename = "share", deserialize_with = "permille")]
    pub share_permille: u16,
}

/// How long and in how much space calls wait, as it is written.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Shape {
    #[serde(deserialize_with = "up_to_an_hour")]
    pub(super) horizon: Duration,
    #[serde(deserialize_with = "up_to_a_day")]
    pub(super) max_age: Duration,
    #[serde(deserialize_with = "queue_bytes")]
    pub(super) queue_bytes: u64,
}

impl Default for Handling {
    fn default() -> Self {
        Self::new(Mode::default(), &Shape::default(), Revive::default())
    }
}

impl Handling {
    pub(super) fn new(mode: Mode, shape: &Shape, revive: Revive) -> Self {
        Self {
            mode,
            horizon: shape.horizon,
            max_age: shape.max_age,
            queue_bytes: shape.queue_bytes,
            revive,
        }
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            horizon: Duration::from_secs(30),
            max_age: Duration::from_secs(60),
            queue_bytes: 64 << 20,
        }
    }
}

impl Default for Revive {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(30),
            cap: Duration::from_secs(15 * 60),
            requeues_max: 8,
            share_permille: 100,
        }
    }
}

fn up_to_an_hour<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    up_to(from, Duration::from_secs(3_600))
}

fn up_to_a_day<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    up_to(from, Duration::from_secs(86_400))
}

fn up_to<'de, D: Deserializer<'de>>(from: D, most: Duration) -> Result<Duration, D::Error> {
    let Parsed::<Time>(time) = Parsed::deserialize(from)?;
    let time = Duration::from(time);
    if time > most {
        let [time, most] = [time, most].map(Time::from);
        return Err(Error::custom(format!("{time} is more than {most}")));
    }
    Ok(time)
}

fn queue_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let [least, most] = [Bytes(64 << 10), Bytes(16 << 30)];
    let Parsed::<Bytes>(bytes) = Parsed::deserialize(from)?;
    match bytes.0 {
        count if (least.0..=most.0).contains(&count) => Ok(count),
        _ => Err(Error::custom(format!("{bytes} is not {least} to {most}"))),
    }
}

fn requeues<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let count = u32::deserialize(from)?;
    match count {
        0..=REQUEUES_MAX => Ok(count),
        _ => Err(Error::custom(format!(
            "{count} is more than {REQUEUES_MAX}"
        ))),
    }
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
                Time::from(self.horizon),
                Bytes(self.queue_bytes),
                Time::from(self.max_age),
                self.revive
            ),
        }
    }
}

impl fmt::Display for Revive {
    /// What becomes of a dead letter.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [base, cap] = [self.base, self.cap].map(Time::from);
        match self.requeues_max {
            0 => return formatter.write_str(" and parked"),
            1 => write!(formatter, ", put back once, after {base}")?,
            most => write!(
                formatter,
                ", put back up to {most} times, after {base} to {cap}"
            )?,
        }
        let percent = f64::from(self.share_permille) / 10.0;
        write!(
            formatter,
            " and within {percent} % of the rate, then parked"
        )
    }
}
