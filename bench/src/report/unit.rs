//! Units of measurements: scaling and formatting.

use testkit::numbers::{duration, grouped, rate};

/// Bytes in a MiB.
const MEBIBYTE: f64 = (1 << 20) as f64;

/// A unit.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Symbol: `µs`.
    pub(super) name: &'static str,
    /// Factor from raw numbers to this unit.
    pub(super) scale: f64,
    /// Formats a raw number.
    pub(super) format: fn(f64) -> String,
}

/// A count.
pub const COUNT: Unit = unit("", 1.0, |count| grouped(to_u64(count)));
/// A rate. The raw number is per second.
pub const RATE: Unit = unit("/s", 1.0, rate);
/// A time. The raw number is in microseconds; the value is in milliseconds.
pub const MILLIS: Unit = unit("ms", 1e-3, |micros| duration(to_u64(micros)));
/// A CPU time. The raw number is in microseconds.
pub const CPU: Unit = unit("µs of CPU", 1.0, |micros| format!("{micros:.3} µs"));
/// A number with decimals, such as used cores.
pub const DECIMAL: Unit = unit("", 1.0, |number| format!("{number:.2}"));
/// A time. The raw number is in seconds.
pub const SECONDS: Unit = unit("s", 1.0, |seconds| format!("{seconds:.1} s"));
/// A small size. The raw number is in bytes.
pub const BYTES: Unit = unit("B", 1.0, |bytes| format!("{bytes:.1} B"));
/// A size. The raw number is in bytes.
pub const MEBIBYTES: Unit = unit("MiB", 1.0 / MEBIBYTE, |bytes| {
    format!("{:.1} MiB", bytes / MEBIBYTE)
});

const fn unit(name: &'static str, scale: f64, format: fn(f64) -> String) -> Unit {
    Unit {
        name,
        scale,
        format,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
fn to_u64(number: f64) -> u64 {
    number as u64
}
