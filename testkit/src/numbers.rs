//! Formats numbers for people.

/// A duration in a suitable unit: `1.23 ms`.
pub fn duration(micros: u64) -> String {
    let value = micros as f64;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.2} ms", value / 1e3),
        10_000..1_000_000 => format!("{:.1} ms", value / 1e3),
        _ => format!("{:.2} s", value / 1e6),
    }
}

/// A number with grouped thousands: `1 234 567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// A rounded rate: `12 345/s`.
pub fn rate(per_second: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
    let rounded = per_second.round() as u64;
    format!("{}/s", grouped(rounded))
}

/// `count` per second; 0 if no time has passed.
pub fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(
            [0, 12, 123, 1_234, 1_234_567].map(grouped),
            ["0", "12", "123", "1 234", "1 234 567"]
        );
        assert_eq!(
            [7, 1_234, 56_789, 2_500_000].map(duration),
            ["7 µs", "1.23 ms", "56.8 ms", "2.50 s"]
        );
        assert_eq!(rate(1_234.5), "1 235/s");
    }
}
