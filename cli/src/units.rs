//! Quantities as people read them.

use std::time::Duration;

use bytesize::ByteSize;

/// Bytes, as in `3.1 KiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// A number with its thousands apart, as in `12,345`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate a second.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}/s") } else { format!("{}/s", count(per_second as u64)) }
}

/// A time, as in `850 µs`, `1.25 ms`, `3.10 s`, `1h 2m 3s`.
pub(crate) fn time(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{:.2} ms", micros as f64 / 1e3),
        1_000_000..120_000_000 => format!("{:.2} s", micros as f64 / 1e6),
        _ => humantime::format_duration(Duration::from_secs(time.as_secs())).to_string(),
    }
}

/// One thing or several, as in `1 entry`, `3 entries`.
pub(crate) fn of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(3174), "3.1 KiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(rate(12.34), "12.3/s");
        assert_eq!(rate(12_345.6), "12,345/s");
        assert_eq!(time(Duration::from_micros(850)), "850 µs");
        assert_eq!(time(Duration::from_micros(1_250)), "1.25 ms");
        assert_eq!(time(Duration::from_millis(3_100)), "3.10 s");
        assert_eq!(time(Duration::from_secs(3_600)), "1h");
        assert_eq!(of(1, "entry", "entries"), "1 entry");
    }
}
