//! What a client asks of a node.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::frame::{FRAME_FIXED_BYTES, put_frame_start};
use crate::wire::{Fields, put_name, put_optional_seqno, put_text};
use crate::{Consistency, Lsn, Malformed, Seqno, ShardName};

/// One request with what every request carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestFrame {
    /// Chosen by the client, given back in the response; unique among the requests in flight on a connection.
    pub id: u64,
    /// How long the client waits, ms from the request's arrival at the node; 0 is the node's default.
    pub deadline_ms: u32,
    /// What is asked.
    pub request: Request,
}

/// The operations of the contract, and what people need beside them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The entry with the largest seqno.
    Head {
        /// The shard.
        shard: ShardName,
        /// How fresh.
        consistency: Consistency,
    },
    /// Entries with seqno ≥ `from`, ascending.
    Scan {
        /// The shard.
        shard: ShardName,
        /// Lowest seqno wanted.
        from: Seqno,
        /// Entries at most.
        limit: u32,
        /// Bytes of data at most; one entry is given however large.
        bytes_max: u32,
        /// How fresh.
        consistency: Consistency,
    },
    /// Names of shards, in order.
    Shards {
        /// What the names begin with; empty for all.
        prefix: String,
        /// Names after this one; empty for the first page.
        after: String,
        /// Names at most.
        limit: u32,
        /// How fresh.
        consistency: Consistency,
    },
    /// Appends `data` iff `expected` is the head, or the shard was never written and `expected` is none.
    CompareAndSet {
        /// The shard.
        shard: ShardName,
        /// The head that the writer built on.
        expected: Option<Seqno>,
        /// The new entry's bytes.
        data: Bytes,
    },
    /// The administrative first write at a given seqno, for a log that begins past 0. The shard must never have been written.
    Begin {
        /// The shard.
        shard: ShardName,
        /// Where its log begins.
        seqno: Seqno,
        /// The first entry's bytes.
        data: Bytes,
    },
    /// Removes entries below `cut`, never the head.
    Truncate {
        /// The shard.
        shard: ShardName,
        /// The new lowest seqno.
        cut: Seqno,
    },
    /// Every entry from `from` on, as each becomes visible, until [`Request::Unwatch`] or the connection ends.
    Watch {
        /// The shard.
        shard: ShardName,
        /// The first entry wanted.
        from: Seqno,
    },
    /// Ends the watch with that request id. It is answered on that id, with [`Response::WatchEnded`](crate::response::Response::WatchEnded).
    Unwatch {
        /// The watch's request id.
        watch: u64,
    },
    /// What the node is and how it does.
    Status,
}

mod kind {
    pub(super) const HEAD: u8 = 1;
    pub(super) const SCAN: u8 = 2;
    pub(super) const SHARDS: u8 = 3;
    pub(super) const COMPARE_AND_SET: u8 = 4;
    pub(super) const BEGIN: u8 = 5;
    pub(super) const TRUNCATE: u8 = 6;
    pub(super) const WATCH: u8 = 7;
    pub(super) const UNWATCH: u8 = 8;
    pub(super) const STATUS: u8 = 9;
}

impl RequestFrame {
    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        let kind = match &self.request {
            Request::Head { .. } => kind::HEAD,
            Request::Scan { .. } => kind::SCAN,
            Request::Shards { .. } => kind::SHARDS,
            Request::CompareAndSet { .. } => kind::COMPARE_AND_SET,
            Request::Begin { .. } => kind::BEGIN,
            Request::Truncate { .. } => kind::TRUNCATE,
            Request::Watch { .. } => kind::WATCH,
            Request::Unwatch { .. } => kind::UNWATCH,
            Request::Status => kind::STATUS,
        };
        let start = out.len();
        put_frame_start(out, kind, self.id, 0);
        out.put_u32_le(self.deadline_ms);
        match &self.request {
            Request::Head { shard, consistency } => {
                put_consistency(out, *consistency);
                put_name(out, shard);
            }
            Request::Scan { shard, from, limit, bytes_max, consistency } => {
                put_consistency(out, *consistency);
                put_name(out, shard);
                out.put_u64_le(from.get());
                out.put_u32_le(*limit);
                out.put_u32_le(*bytes_max);
            }
            Request::Shards { prefix, after, limit, consistency } => {
                put_consistency(out, *consistency);
                put_text(out, prefix);
                put_text(out, after);
                out.put_u32_le(*limit);
            }
            Request::CompareAndSet { shard, expected, data } => {
                put_name(out, shard);
                put_optional_seqno(out, *expected);
                put_data(out, data);
            }
            Request::Begin { shard, seqno, data } => {
                put_name(out, shard);
                out.put_u64_le(seqno.get());
                put_data(out, data);
            }
            Request::Truncate { shard, cut: seqno } | Request::Watch { shard, from: seqno } => {
                put_name(out, shard);
                out.put_u64_le(seqno.get());
            }
            Request::Unwatch { watch } => out.put_u64_le(*watch),
            Request::Status => {}
        }
        let length = u32::try_from(out.len() - start - 4).expect("a request is bounded by FRAME_BYTES_MAX");
        debug_assert!(length as usize >= FRAME_FIXED_BYTES);
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Reads the frame of that kind, id and body (see [`frame::split`](crate::frame::split)).
    pub fn decode(kind: u8, id: u64, body: Bytes) -> Result<RequestFrame, Malformed> {
        let mut f = Fields(body);
        let deadline_ms = f.u32()?;
        let request = match kind {
            kind::HEAD => {
                let consistency = consistency(&mut f)?;
                Request::Head { shard: f.name()?, consistency }
            }
            kind::SCAN => {
                let consistency = consistency(&mut f)?;
                Request::Scan {
                    shard: f.name()?,
                    from: f.seqno()?,
                    limit: f.u32()?,
                    bytes_max: f.u32()?,
                    consistency,
                }
            }
            kind::SHARDS => {
                let consistency = consistency(&mut f)?;
                Request::Shards { prefix: f.text()?, after: f.text()?, limit: f.u32()?, consistency }
            }
            kind::COMPARE_AND_SET => Request::CompareAndSet {
                shard: f.name()?,
                expected: f.optional_seqno()?,
                data: own(&f.data()?),
            },
            kind::BEGIN => Request::Begin { shard: f.name()?, seqno: f.seqno()?, data: own(&f.data()?) },
            kind::TRUNCATE => Request::Truncate { shard: f.name()?, cut: f.seqno()? },
            kind::WATCH => Request::Watch { shard: f.name()?, from: f.seqno()? },
            kind::UNWATCH => Request::Unwatch { watch: f.u64()? },
            kind::STATUS => Request::Status,
            code => return Err(Malformed::Unknown { what: "request", code: code.into() }),
        };
        f.end()?;
        Ok(RequestFrame { id, deadline_ms, request })
    }
}

/// An allocation of its own: an entry lives long and must not pin the connection's read buffer.
fn own(data: &Bytes) -> Bytes {
    Bytes::copy_from_slice(data)
}

fn put_data(out: &mut BytesMut, data: &Bytes) {
    out.put_u32_le(
        u32::try_from(data.len()).expect("an entry is checked against its bound before it is sent"),
    );
    out.put_slice(data);
}

fn put_consistency(out: &mut BytesMut, consistency: Consistency) {
    let (code, number) = match consistency {
        Consistency::Strong => (0, 0),
        Consistency::AtLeast(lsn) => (1, lsn.get()),
        Consistency::Bounded(age) => (2, u64::try_from(age.as_micros()).unwrap_or(u64::MAX)),
        Consistency::Eventual => (3, 0),
    };
    out.put_u8(code);
    out.put_u64_le(number);
}

fn consistency(f: &mut Fields) -> Result<Consistency, Malformed> {
    let (code, number) = (f.u8()?, f.u64()?);
    Ok(match code {
        0 if number == 0 => Consistency::Strong,
        1 => Consistency::AtLeast(Lsn::new(number)),
        2 => Consistency::Bounded(Duration::from_micros(number)),
        3 if number == 0 => Consistency::Eventual,
        code => return Err(Malformed::Unknown { what: "consistency", code: code.into() }),
    })
}
