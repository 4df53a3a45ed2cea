//! What a node answers.

use bytes::{BufMut, Bytes, BytesMut};

use crate::frame::Outgoing;
use crate::wire::{Fields, put_name, put_optional_seqno, put_text};
use crate::{Entry, Error, Lsn, Malformed, Seqno, Served, ShardName};

/// What a read's answer rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reflects {
    /// The LSN that the answer reflects: a later read at least this far sees what this one saw.
    pub lsn: Lsn,
    /// How it was served.
    pub served: Served,
}

/// One answer. A watch is answered many times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// To a head.
    Head {
        /// The head; none if the shard was never written.
        entry: Option<Entry>,
        /// What it rests on.
        reflects: Reflects,
    },
    /// To a scan.
    Scan {
        /// The entries, ascending, without gaps.
        entries: Vec<Entry>,
        /// Whether a limit cut them.
        more: bool,
        /// What it rests on.
        reflects: Reflects,
    },
    /// To a listing.
    Shards {
        /// The names, in order.
        names: Vec<ShardName>,
        /// Whether the limit cut them.
        more: bool,
        /// What it rests on.
        reflects: Reflects,
    },
    /// The write is durable and visible.
    Committed {
        /// The new entry's seqno.
        seqno: Seqno,
        /// The end of its record.
        lsn: Lsn,
    },
    /// `expected` was not the head: an answer, not an error.
    Mismatch {
        /// The head; none if the shard was never written.
        head: Option<Seqno>,
        /// A read at least this far sees that head.
        lsn: Lsn,
    },
    /// To a truncate.
    Truncated {
        /// Entries removed; 0 where none lay below the cut.
        removed: u64,
        /// The end of its record, or the visible LSN where nothing was removed.
        lsn: Lsn,
    },
    /// To a watch: the next entries.
    Watched {
        /// The entries, following the ones before without a gap.
        entries: Vec<Entry>,
        /// The LSN they reflect.
        lsn: Lsn,
    },
    /// A watch ended as asked.
    WatchEnded,
    /// To a status: JSON of [`NodeStatus`](crate::status::NodeStatus).
    Status(Bytes),
    /// The request was refused, or its outcome is unknown.
    Error(Error),
}

mod kind {
    pub(super) const HEAD: u8 = 129;
    pub(super) const SCAN: u8 = 130;
    pub(super) const SHARDS: u8 = 131;
    pub(super) const COMMITTED: u8 = 132;
    pub(super) const MISMATCH: u8 = 133;
    pub(super) const TRUNCATED: u8 = 134;
    pub(super) const WATCHED: u8 = 135;
    pub(super) const WATCH_ENDED: u8 = 136;
    pub(super) const STATUS: u8 = 137;
    pub(super) const ERROR: u8 = 255;
}

impl Response {
    /// Appends the frame to `out`; an entry's data goes as it is, without a copy, where it is long enough to be worth it.
    pub fn encode(&self, id: u64, out: &mut Outgoing) {
        match self {
            Response::Head { entry, reflects } => {
                out.frame(kind::HEAD, id, REFLECTS_BYTES + entries_bytes(entry.as_slice()));
                put_reflects(out, *reflects);
                put_entries(out, entry.as_slice());
            }
            Response::Scan { entries, more, reflects } => {
                out.frame(kind::SCAN, id, REFLECTS_BYTES + 1 + entries_bytes(entries));
                put_reflects(out, *reflects);
                out.buffer().put_u8(u8::from(*more));
                put_entries(out, entries);
            }
            Response::Shards { names, more, reflects } => {
                let names_bytes: usize = names.iter().map(|name| 2 + name.as_str().len()).sum();
                out.frame(kind::SHARDS, id, REFLECTS_BYTES + 1 + 4 + names_bytes);
                put_reflects(out, *reflects);
                let buffer = out.buffer();
                buffer.put_u8(u8::from(*more));
                buffer.put_u32_le(count(names.len()));
                names.iter().for_each(|name| put_name(buffer, name));
            }
            Response::Committed { seqno, lsn } => {
                out.frame(kind::COMMITTED, id, 16);
                out.buffer().put_u64_le(seqno.get());
                out.buffer().put_u64_le(lsn.get());
            }
            Response::Mismatch { head, lsn } => {
                out.frame(kind::MISMATCH, id, 16);
                put_optional_seqno(out.buffer(), *head);
                out.buffer().put_u64_le(lsn.get());
            }
            Response::Truncated { removed, lsn } => {
                out.frame(kind::TRUNCATED, id, 16);
                out.buffer().put_u64_le(*removed);
                out.buffer().put_u64_le(lsn.get());
            }
            Response::Watched { entries, lsn } => {
                out.frame(kind::WATCHED, id, 8 + entries_bytes(entries));
                out.buffer().put_u64_le(lsn.get());
                put_entries(out, entries);
            }
            Response::WatchEnded => out.frame(kind::WATCH_ENDED, id, 0),
            Response::Status(json) => {
                out.frame(kind::STATUS, id, 4 + json.len());
                put_data(out, json);
            }
            Response::Error(error) => {
                let (number, text) = error.parts();
                let mut body = BytesMut::new();
                body.put_u16_le(error.code().0);
                body.put_u64_le(number);
                put_text(&mut body, text);
                out.frame(kind::ERROR, id, body.len());
                out.buffer().put_slice(&body);
            }
        }
    }

    /// Reads the frame of that kind and body (see [`frame::split`](crate::frame::split)). Entries are slices of the frame.
    pub fn decode(kind: u8, body: Bytes) -> Result<Response, Malformed> {
        let mut f = Fields(body);
        let response = match kind {
            kind::HEAD => {
                let reflects = reflects(&mut f)?;
                let mut entries = entries(&mut f)?;
                if entries.len() > 1 {
                    return Err(Malformed::Unknown { what: "number of heads", code: entries.len() as u64 });
                }
                Response::Head { entry: entries.pop(), reflects }
            }
            kind::SCAN => {
                let (reflects, more) = (reflects(&mut f)?, f.flag()?);
                Response::Scan { entries: entries(&mut f)?, more, reflects }
            }
            kind::SHARDS => {
                let (reflects, more, count) = (reflects(&mut f)?, f.flag()?, f.u32()?);
                let names = (0..count).map(|_| f.name()).collect::<Result<_, _>>()?;
                Response::Shards { names, more, reflects }
            }
            kind::COMMITTED => Response::Committed { seqno: f.seqno()?, lsn: f.lsn()? },
            kind::MISMATCH => Response::Mismatch { head: f.optional_seqno()?, lsn: f.lsn()? },
            kind::TRUNCATED => Response::Truncated { removed: f.u64()?, lsn: f.lsn()? },
            kind::WATCHED => {
                let lsn = f.lsn()?;
                Response::Watched { entries: entries(&mut f)?, lsn }
            }
            kind::WATCH_ENDED => Response::WatchEnded,
            kind::STATUS => Response::Status(f.data()?),
            kind::ERROR => {
                let (code, number, text) = (f.u16()?, f.u64()?, f.text()?);
                let unknown = Malformed::Unknown { what: "error", code: code.into() };
                Response::Error(Error::from_parts(code, number, text).ok_or(unknown)?)
            }
            code => return Err(Malformed::Unknown { what: "response", code: code.into() }),
        };
        f.end()?;
        Ok(response)
    }
}

const REFLECTS_BYTES: usize = 9;

fn put_reflects(out: &mut Outgoing, reflects: Reflects) {
    out.buffer().put_u64_le(reflects.lsn.get());
    out.buffer().put_u8(reflects.served as u8);
}

fn reflects(f: &mut Fields) -> Result<Reflects, Malformed> {
    let (lsn, code) = (f.lsn()?, f.u8()?);
    let served =
        Served::from_code(code).ok_or(Malformed::Unknown { what: "way of serving", code: code.into() })?;
    Ok(Reflects { lsn, served })
}

fn entries_bytes(entries: &[Entry]) -> usize {
    4 + entries.iter().map(|entry| 8 + 4 + entry.data.len()).sum::<usize>()
}

fn put_entries(out: &mut Outgoing, entries: &[Entry]) {
    out.buffer().put_u32_le(count(entries.len()));
    for entry in entries {
        out.buffer().put_u64_le(entry.seqno.get());
        put_data(out, &entry.data);
    }
}

fn put_data(out: &mut Outgoing, data: &Bytes) {
    out.buffer().put_u32_le(count(data.len()));
    out.data(data);
}

fn count(items: usize) -> u32 {
    u32::try_from(items).expect("a response is bounded by FRAME_BYTES_MAX")
}

fn entries(f: &mut Fields) -> Result<Vec<Entry>, Malformed> {
    let count = f.u32()?;
    // Collected one by one: the count is not believed before the bytes are there.
    (0..count).map(|_| Ok(Entry { seqno: f.seqno()?, data: f.data()? })).collect()
}
