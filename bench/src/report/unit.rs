//! Units of figures: how a raw number is compared and drawn, and how it is written for a person.

use launcher::numbers::{duration, grouped, rate};

/// Bytes.
const MEBIBYTE: f64 = (1 << 20) as f64;

/// How the figures of a kind are written.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// As it stands behind a value: `µs`.
    pub(super) name: &'static str,
    /// What raw numbers are multiplied with to be in that unit.
    pub(super) scale: f64,
    /// A raw number for a person.
    pub(super) write: fn(f64) -> String,
}

/// Name of the unit of [`CPU`], which varies less than other times do.
pub(crate) const CPU_MICROS: &str = "µs of CPU";

/// A plain count.
pub const COUNT: Unit = unit("", 1.0, |count| grouped(to_u64(count)));
/// Raw: so many a second.
pub const RATE: Unit = unit("/s", 1.0, rate);
/// Raw: microseconds; compared and drawn in milliseconds.
pub const MILLIS: Unit = unit("ms", 1e-3, |micros| duration(to_u64(micros)));
/// Raw: microseconds of CPU time.
pub const CPU: Unit = unit(CPU_MICROS, 1.0, |micros| format!("{micros:.3} µs"));
/// A number that is not a count, such as of processors in use.
pub const DECIMAL: Unit = unit("", 1.0, |number| format!("{number:.2}"));
/// Raw: seconds.
pub const SECONDS: Unit = unit("s", 1.0, |seconds| format!("{seconds:.1} s"));
/// Raw: bytes of which there are few.
pub const BYTES: Unit = unit("B", 1.0, |bytes| format!("{bytes:.1} B"));
/// Raw: bytes.
pub const MEBIBYTES: Unit = unit("MiB", 1.0 / MEBIBYTE, |bytes| {
    format!("{:.1} MiB", bytes / MEBIBYTE)
});

const fn unit(name: &'static str, scale: f64, write: fn(f64) -> String) -> Unit {
    Unit { name, scale, write }
}

#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
fn to_u64(number: f64) -> u64 {
    number as u64
}
