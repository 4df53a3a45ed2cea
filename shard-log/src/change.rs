use bytes::Bytes;
use headwater_protocol::{Seqno, ShardName};

/// One change of one shard: what the log records, and what RW and ROs apply alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The entry at `seqno` is added: one past the head, or a never-written shard's first (0, or where an imported log begins).
    Append {
        /// The shard.
        shard: ShardName,
        /// The new head.
        seqno: Seqno,
        /// The entry's bytes: an allocation of its own, so that it pins nothing else in memory.
        data: Bytes,
    },
    /// Entries below `cut` are removed.
    Truncate {
        /// The shard.
        shard: ShardName,
        /// The new lowest seqno; at most the head.
        cut: Seqno,
    },
}
