//! The contract's operations: what each asks, and what its answer is taken for.

use bytes::Bytes;
use headwater_protocol::limits::{ENTRY_BYTES_MAX, SCAN_BYTES_MAX, SHARD_NAME_BYTES_MAX};
use headwater_protocol::request::Request;
use headwater_protocol::response::{Reflects, Response};
use headwater_protocol::status::NodeStatus;
use headwater_protocol::{Consistency, Entry, Lsn, Seqno, ShardName};

use crate::ClientError;

/// The answer to a head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The entry with the largest seqno; none if the shard was never written.
    pub entry: Option<Entry>,
    /// What the answer rests on.
    pub reflects: Reflects,
}

/// One page of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// The entries, ascending, without gaps.
    pub entries: Vec<Entry>,
    /// Whether the limit or the byte cap cut them.
    pub more: bool,
    /// What the answer rests on.
    pub reflects: Reflects,
}

/// One page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shards {
    /// The names, in order.
    pub names: Vec<ShardName>,
    /// Whether the limit cut them.
    pub more: bool,
    /// What the answer rests on.
    pub reflects: Reflects,
}

/// The answer to a compare-and-set. A mismatch is an answer, not an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cas {
    /// The entry is durable and visible at that seqno; the LSN is the end of its record.
    Committed(Seqno, Lsn),
    /// The expected seqno was not the head; nothing was written.
    Mismatch {
        /// The head; none if the shard was never written.
        head: Option<Seqno>,
        /// A read at least this far sees that head.
        lsn: Lsn,
    },
}

/// The answer to a truncate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated {
    /// Entries removed; 0 where none lay below the cut.
    pub removed: u64,
    /// A read at least this far sees the shard without them.
    pub lsn: Lsn,
}

/// A request, and how its answer is read: none where a node must not answer so.
pub(crate) struct Operation<T> {
    pub(crate) request: Request,
    pub(crate) answer: fn(Response) -> Option<T>,
}

pub(crate) fn head(shard: &ShardName, consistency: Consistency) -> Operation<Head> {
    Operation {
        request: Request::Head { shard: shard.clone(), consistency },
        answer: |response| match response {
            Response::Head { entry, reflects } => Some(Head { entry, reflects }),
            _ => None,
        },
    }
}

pub(crate) fn scan(shard: &ShardName, from: Seqno, limit: u32, consistency: Consistency) -> Operation<Scan> {
    Operation {
        request: Request::Scan { shard: shard.clone(), from, limit, bytes_max: SCAN_BYTES_MAX, consistency },
        answer: |response| match response {
            Response::Scan { entries, more, reflects } => Some(Scan { entries, more, reflects }),
            _ => None,
        },
    }
}

pub(crate) fn shards(prefix: &str, after: &str, limit: u32, consistency: Consistency) -> Operation<Shards> {
    Operation {
        request: Request::Shards { prefix: prefix.into(), after: after.into(), limit, consistency },
        answer: |response| match response {
            Response::Shards { names, more, reflects } => Some(Shards { names, more, reflects }),
            _ => None,
        },
    }
}

pub(crate) fn compare_and_set(shard: &ShardName, expected: Option<Seqno>, data: Bytes) -> Operation<Cas> {
    Operation {
        request: Request::CompareAndSet { shard: shard.clone(), expected, data },
        answer: |response| match response {
            Response::Committed { seqno, lsn } => Some(Cas::Committed(seqno, lsn)),
            Response::Mismatch { head, lsn } => Some(Cas::Mismatch { head, lsn }),
            _ => None,
        },
    }
}

pub(crate) fn begin(shard: &ShardName, seqno: Seqno, data: Bytes) -> Operation<Lsn> {
    Operation {
        request: Request::Begin { shard: shard.clone(), seqno, data },
        answer: |response| match response {
            Response::Committed { lsn, .. } => Some(lsn),
            _ => None,
        },
    }
}

pub(crate) fn truncate(shard: &ShardName, cut: Seqno) -> Operation<Truncated> {
    Operation {
        request: Request::Truncate { shard: shard.clone(), cut },
        answer: |response| match response {
            Response::Truncated { removed, lsn } => Some(Truncated { removed, lsn }),
            _ => None,
        },
    }
}

pub(crate) fn status() -> Operation<NodeStatus> {
    Operation {
        request: Request::Status,
        answer: |response| match response {
            Response::Status(json) => serde_json::from_slice(&json).ok(),
            _ => None,
        },
    }
}

/// Whether it changes anything: if so, it may have happened once it was sent.
pub(crate) fn is_write(request: &Request) -> bool {
    matches!(request, Request::CompareAndSet { .. } | Request::Begin { .. } | Request::Truncate { .. })
}

/// Bytes of the request that grow with what the caller gave.
pub(crate) fn bytes(request: &Request) -> usize {
    match request {
        Request::CompareAndSet { data, .. } | Request::Begin { data, .. } => data.len(),
        _ => 0,
    }
}

/// Refuses what no frame can carry.
pub(crate) fn check(request: &Request) -> Result<(), ClientError> {
    let invalid = |why: String| Err(ClientError::InvalidArgument(why));
    match request {
        Request::CompareAndSet { data, .. } | Request::Begin { data, .. } if data.len() > ENTRY_BYTES_MAX => {
            invalid(format!("an entry has at most {ENTRY_BYTES_MAX} bytes, this one has {}", data.len()))
        }
        Request::Shards { prefix, after, .. } if prefix.len().max(after.len()) > SHARD_NAME_BYTES_MAX => {
            invalid(format!("a shard's name has at most {SHARD_NAME_BYTES_MAX} bytes"))
        }
        _ => Ok(()),
    }
}

/// The LSN that an answer reflects, where it reflects one.
pub(crate) fn reflected(response: &Response) -> Option<Lsn> {
    match response {
        Response::Head { reflects, .. }
        | Response::Scan { reflects, .. }
        | Response::Shards { reflects, .. } => Some(reflects.lsn),
        Response::Committed { lsn, .. }
        | Response::Mismatch { lsn, .. }
        | Response::Truncated { lsn, .. }
        | Response::Watched { lsn, .. } => Some(*lsn),
        Response::WatchEnded | Response::Status(_) | Response::Error(_) => None,
    }
}
