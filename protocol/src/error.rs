use thiserror::Error;

use crate::{Lsn, Seqno};

/// Whether a failed operation may have happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// It did not happen and will not: it can be retried freely.
    Determinate,
    /// It may have happened, or may yet: look before it is done again.
    Indeterminate,
}

/// A node's refusal. [`Error::kind`] says whether the operation may have happened all the same.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Error {
    /// Too much is in flight (W6). Retry after a moment.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The RW has no room on disk for another record (W5). Reads go on; writes resume when there is room.
    #[error("the disk of the RW is full: writes are refused until there is room")]
    DiskFull,
    /// This node takes no writes. `rw` is the address that does, if it is known.
    #[error("{}", not_writable(.rw))]
    NotWritable {
        /// The RW's address; empty if unknown.
        rw: String,
    },
    /// The read could not be made as fresh as asked before its deadline. Retry, ask another node, or ask for less.
    #[error("the replica has applied up to LSN {applied} and could not serve this read in time: {why}")]
    ReplicaBehind {
        /// What the RO has applied.
        applied: Lsn,
        /// What it waited for.
        why: String,
    },
    /// The request is wrong in itself. The text says how.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// A truncate of a shard that was never written.
    #[error("the shard was never written")]
    UnknownShard,
    /// A truncate above the head. Nothing was removed.
    #[error("the cut lies above the head, which is {head}; nothing was removed")]
    CutAboveHead {
        /// The shard's head.
        head: Seqno,
    },
    /// A first write at a given seqno of a shard that was written before.
    #[error("the shard was written before; its head is {head}")]
    NotEmpty {
        /// The shard's head.
        head: Seqno,
    },
    /// A watch from before the log's beginning.
    #[error("the shard's log begins at {lo}: earlier entries were truncated")]
    TooFarBack {
        /// The shard's lowest seqno.
        lo: Seqno,
    },
    /// The node is stopping. Ask another one, or again later.
    #[error("the node is stopping")]
    Stopping,
    /// The write is in the log, but was not known to be durable before the deadline (W8).
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

fn not_writable(rw: &str) -> String {
    if rw.is_empty() {
        "this node takes no writes, and it does not know the RW's address".into()
    } else {
        format!("this node takes no writes: the RW is at {rw}")
    }
}

impl Error {
    /// Whether the operation may have happened.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Unknown(_) => ErrorKind::Indeterminate,
            _ => ErrorKind::Determinate,
        }
    }

    /// Whether the same request may succeed later, unchanged.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Overloaded(_) | Error::DiskFull | Error::ReplicaBehind { .. } | Error::Stopping)
    }

    /// The error's code on the wire and its name in `--json` output.
    pub fn code(&self) -> (u16, &'static str) {
        match self {
            Error::Overloaded(_) => (1, "overloaded"),
            Error::DiskFull => (2, "disk-full"),
            Error::NotWritable { .. } => (3, "not-writable"),
            Error::ReplicaBehind { .. } => (4, "replica-behind"),
            Error::InvalidArgument(_) => (5, "invalid-argument"),
            Error::UnknownShard => (6, "unknown-shard"),
            Error::CutAboveHead { .. } => (7, "cut-above-head"),
            Error::NotEmpty { .. } => (8, "not-empty"),
            Error::TooFarBack { .. } => (9, "too-far-back"),
            Error::Stopping => (10, "stopping"),
            Error::Unknown(_) => (11, "unknown"),
        }
    }

    /// The number and the text that go with the code on the wire.
    pub(crate) fn parts(&self) -> (u64, &str) {
        match self {
            Error::Overloaded(text) | Error::InvalidArgument(text) | Error::Unknown(text) => (0, text),
            Error::NotWritable { rw } => (0, rw),
            Error::ReplicaBehind { applied, why } => (applied.get(), why),
            Error::CutAboveHead { head: seqno }
            | Error::NotEmpty { head: seqno }
            | Error::TooFarBack { lo: seqno } => (seqno.get(), ""),
            Error::DiskFull | Error::UnknownShard | Error::Stopping => (0, ""),
        }
    }

    pub(crate) fn from_parts(code: u16, number: u64, text: String) -> Option<Error> {
        let seqno = || Seqno::new(number).ok();
        Some(match code {
            1 => Error::Overloaded(text),
            2 => Error::DiskFull,
            3 => Error::NotWritable { rw: text },
            4 => Error::ReplicaBehind { applied: Lsn::new(number), why: text },
            5 => Error::InvalidArgument(text),
            6 => Error::UnknownShard,
            7 => Error::CutAboveHead { head: seqno()? },
            8 => Error::NotEmpty { head: seqno()? },
            9 => Error::TooFarBack { lo: seqno()? },
            10 => Error::Stopping,
            11 => Error::Unknown(text),
            _ => return None,
        })
    }
}
