use std::time::Duration;

use headwater_protocol::{Consistency, Lsn};

/// Reads `strong`, `eventual`, `at-least:LSN` or `bounded:TIME`.
pub(crate) fn parse(text: &str) -> Result<Consistency, String> {
    let (word, value) = text.split_once(':').map_or((text, None), |(word, value)| (word, Some(value)));
    match (word, value) {
        ("strong", None) => Ok(Consistency::Strong),
        ("eventual", None) => Ok(Consistency::Eventual),
        ("at-least", Some(lsn)) => {
            let lsn = lsn.parse().map_err(|_| {
                format!("at-least takes an LSN, a number from an earlier answer's `lsn`, not {lsn:?}")
            })?;
            Ok(Consistency::AtLeast(Lsn::new(lsn)))
        }
        ("bounded", Some(age)) => {
            let age: Duration = humantime::parse_duration(age).map_err(|e| {
                format!("bounded takes a time with a unit, as in bounded:50ms, not {age:?}: {e}")
            })?;
            Ok(Consistency::Bounded(age))
        }
        ("at-least", None) => Err("at-least needs an LSN, as in at-least:4096".into()),
        ("bounded", None) => Err("bounded needs a time, as in bounded:50ms".into()),
        _ => Err("expected strong, eventual, at-least:LSN or bounded:TIME".into()),
    }
}

/// As [`parse`] reads it.
pub(crate) fn name(consistency: Consistency) -> String {
    match consistency {
        Consistency::Strong => "strong".into(),
        Consistency::Eventual => "eventual".into(),
        Consistency::AtLeast(lsn) => format!("at-least:{lsn}"),
        Consistency::Bounded(age) => format!("bounded:{}", humantime::format_duration(age)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_and_written_alike() {
        for text in ["strong", "eventual", "at-least:4096", "bounded:50ms", "bounded:1s"] {
            assert_eq!(name(parse(text).unwrap()), text);
        }
        assert_eq!(parse("bounded:50ms").unwrap(), Consistency::Bounded(Duration::from_millis(50)));
    }

    #[test]
    fn what_is_wrong_explains_itself() {
        for (text, expected) in [
            ("at-least", "at-least:4096"),
            ("at-least:x", "LSN"),
            ("at-least:-1", "LSN"),
            ("bounded", "bounded:50ms"),
            ("bounded:50", "unit"),
            ("strong:1", "expected strong"),
            ("Strong", "expected strong"),
            ("", "expected strong"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
