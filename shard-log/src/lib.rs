//! The shard log's state machine: the same code on RW and RO.
//!
//! A [`ShardLog`] holds what every [`Change`] up to some LSN made of every shard, in memory. One thread applies the
//! changes in the log's order; any number of threads read. It knows no disk, no network and no clock.
//!
//! # Memory
//!
//! A shard of one entry of 16 bytes under a name of 25 bytes costs 318 bytes, measured at 1,000,000 shards as resident
//! memory (`cargo run -p headwater-shard-log --release --example cost`): of these 136 in the table, which is half empty
//! at that size, and the rest in four allocations (name, entry, queue of entries, place in the index of names).

mod change;
mod shard;
mod watch;
mod log;

pub use change::Change;
pub use log::{Applied, ShardLog};
pub use shard::{Bounds, Scan, Violation};
pub use watch::Watch;
