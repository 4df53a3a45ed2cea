//! An entry's bytes: how they come in from a command line, and how they are shown.

use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use headwater_protocol::{Entry, Seqno};
use serde::Serialize;

use crate::failure::Failure;

/// An entry in JSON.
#[derive(Serialize, Debug)]
pub(crate) struct EntryJson {
    /// Its version.
    pub(crate) seqno: Seqno,
    /// How many bytes it has.
    pub(crate) bytes: usize,
    /// The bytes.
    #[serde(flatten)]
    pub(crate) data: DataJson,
}

/// Bytes in JSON without a loss: text under `data` if they are UTF-8, else base64 (RFC 4648, padded) under `data_base64`.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(crate) enum DataJson {
    /// UTF-8.
    #[serde(rename = "data")]
    Text(String),
    /// Anything else.
    #[serde(rename = "data_base64")]
    Base64(String),
}

impl From<&Entry> for EntryJson {
    fn from(entry: &Entry) -> EntryJson {
        let data = match std::str::from_utf8(&entry.data) {
            Ok(text) => DataJson::Text(text.to_owned()),
            Err(_) => DataJson::Base64(STANDARD.encode(&entry.data)),
        };
        EntryJson { seqno: entry.seqno, bytes: entry.data.len(), data }
    }
}

/// One line of at most `width` characters that does nothing to a terminal; bytes that are not text are only counted.
pub(crate) fn preview(data: &[u8], width: usize) -> String {
    let Ok(text) = std::str::from_utf8(data) else {
        return format!("({} bytes that are not text)", data.len());
    };
    let line = || text.trim_end().chars().map(visible);
    if line().nth(width).is_none() {
        return line().collect();
    }
    line().take(width - 1).chain(['…']).collect()
}

fn visible(c: char) -> char {
    match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Where the bytes of a write come from: exactly one of the three.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct DataArgs {
    /// The entry's bytes; `-` reads them from standard input
    data: Option<String>,
    /// A file that holds the entry's bytes
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl DataArgs {
    /// Reads them.
    pub(crate) fn read(&self) -> Result<Bytes, Failure> {
        match (&self.data, &self.file) {
            (Some(dash), _) if dash == "-" => {
                let mut data = Vec::new();
                let name = Path::new("standard input");
                std::io::stdin().lock().read_to_end(&mut data).map_err(Failure::file("read", name))?;
                Ok(data.into())
            }
            (Some(text), _) => Ok(Bytes::copy_from_slice(text.as_bytes())),
            (None, Some(file)) => Ok(std::fs::read(file).map_err(Failure::file("read", file))?.into()),
            (None, None) => {
                Err(Failure::Usage("no data: give it, --file FILE, or - for standard input".into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_every_byte() {
        let json = |data: &'static [u8]| {
            let entry = Entry { seqno: Seqno::new(7).unwrap(), data: Bytes::from_static(data) };
            serde_json::to_string(&EntryJson::from(&entry)).unwrap()
        };
        assert_eq!(json(b"{\"a\":1}\n"), r#"{"seqno":7,"bytes":8,"data":"{\"a\":1}\n"}"#);
        assert_eq!(json(b""), r#"{"seqno":7,"bytes":0,"data":""}"#);
        assert_eq!(json(b"\xff\x00"), r#"{"seqno":7,"bytes":2,"data_base64":"/wA="}"#);
    }

    #[test]
    fn a_preview_is_one_harmless_line() {
        assert_eq!(preview(b"a\nb\n", 10), "a b");
        assert_eq!(preview("€€€€".as_bytes(), 4), "€€€€");
        assert_eq!(preview("€€€€€".as_bytes(), 4), "€€€…");
        assert_eq!(preview(b"\x1b[2J", 10), "\u{fffd}[2J");
        assert_eq!(preview(b"\xff\xfe", 10), "(2 bytes that are not text)");
    }
}
