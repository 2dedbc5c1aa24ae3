//! Units of figures: how a number is written in a table, and as what it is compared and drawn.

use launcher::numbers::{duration, grouped, rate};

/// Bytes.
const MEBIBYTE: f64 = (1 << 20) as f64;

/// How the figures of a kind are written.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// As it stands behind a figure that is compared: `µs`.
    pub(super) name: &'static str,
    /// What raw numbers are multiplied with to be in that unit.
    pub(super) scale: f64,
    /// Cells of a table hold the number alone, and the heading names the unit.
    pub(super) is_in_heading: bool,
    /// A raw number in a table.
    pub(super) write: fn(f64) -> String,
}

/// A plain count.
pub const COUNT: Unit = in_cells("", 1.0, |count| grouped(to_u64(count)));
/// Raw: so many a second.
pub const RATE: Unit = in_cells("/s", 1.0, rate);
/// Raw: microseconds; compared in microseconds.
pub const MICROS: Unit = in_cells("µs", 1.0, |micros| duration(to_u64(micros)));
/// Raw: microseconds; compared and drawn in milliseconds.
pub const MILLIS: Unit = in_cells("ms", 1e-3, |micros| duration(to_u64(micros)));
/// Raw: a share, 0 to 1.
pub const PERCENT: Unit = in_cells("%", 100.0, |share| format!("{:.0} %", 100.0 * share));
/// A mean count.
pub const MEAN: Unit = in_cells("", 1.0, |mean| format!("{mean:.0}"));
/// Raw: microseconds of CPU time.
pub const CPU: Unit = in_heading("µs", 1.0, |micros| format!("{micros:.3}"));
/// Raw: microseconds, and parts of them.
pub const FINE_MICROS: Unit = in_heading("µs", 1.0, |micros| format!("{micros:.3}"));
/// A plain number that is not a count, such as of processors in use.
pub const DECIMAL: Unit = in_cells("", 1.0, |number| format!("{number:.2}"));
/// Raw: seconds.
pub const SECONDS: Unit = in_heading("s", 1.0, |seconds| format!("{seconds:.1}"));
/// Raw: bytes of which there are few.
pub const BYTES: Unit = in_heading("B", 1.0, |bytes| format!("{bytes:.1}"));
/// Raw: bytes.
pub const MEBIBYTES: Unit = in_heading("MiB", 1.0 / MEBIBYTE, |bytes| {
    format!("{:.1}", bytes / MEBIBYTE)
});

const fn in_cells(name: &'static str, scale: f64, write: fn(f64) -> String) -> Unit {
    Unit {
        name,
        scale,
        is_in_heading: false,
        write,
    }
}

const fn in_heading(name: &'static str, scale: f64, write: fn(f64) -> String) -> Unit {
    Unit {
        name,
        scale,
        is_in_heading: true,
        write,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
fn to_u64(number: f64) -> u64 {
    number as u64
}
