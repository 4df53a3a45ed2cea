//! The shard log's state machine: the same code on RW and RO.

mod change;

pub use change::Change;
