//! Numbers of a report in JSON, which knows no infinities: what is not finite is written as `null`, and read as NaN.

use serde::{Deserialize, Deserializer};

/// One number.
pub(super) fn number<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    Option::deserialize(input).map(from_option)
}

/// Many numbers.
pub(super) fn numbers<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<f64>, D::Error> {
    let read: Vec<Option<f64>> = Vec::deserialize(input)?;
    Ok(read.into_iter().map(from_option).collect())
}

/// Points of a line.
pub(super) fn points<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let read: Vec<(Option<f64>, Option<f64>)> = Vec::deserialize(input)?;
    let points = read.into_iter();
    Ok(points
        .map(|(x, y)| (from_option(x), from_option(y)))
        .collect())
}

fn from_option(number: Option<f64>) -> f64 {
    number.unwrap_or(f64::NAN)
}
