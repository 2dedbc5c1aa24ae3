//! Points of a line in JSON, which knows no infinities: what is not finite is written as `null`, and read as NaN.

use serde::{Deserialize, Deserializer};

pub(super) fn points<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let read: Vec<(f64, Option<f64>)> = Vec::deserialize(input)?;
    let points = read.into_iter();
    Ok(points.map(|(x, y)| (x, y.unwrap_or(f64::NAN))).collect())
}
