//! The write-ahead log of the shard log. It knows no network.
//!
//! A change is laid out as a [`Prepared`] record, given its place by the [`Appender`], which copies it into the
//! [`Ring`], written to segment files by the [`Flusher`], read back by [`Wal::open`] and [`check`], and verified on the
//! far side of the ring by a [`Receiver`]. An LSN is a byte position and always the exclusive end of something.
//!
//! Positions on the RW: `flushed <= appended <= reserved`, and `reserved - flushed <= ring bytes` (W6).

#[cfg(not(target_endian = "little"))]
compile_error!("log words are little-endian in memory and on disk");

mod error;
mod record;
mod ring;
mod cursor;
mod segment;
mod wal;
mod append;
mod flush;
mod recover;
mod receive;

pub use append::Appender;
pub use error::{
    AppendError, Damage, FileError, Flaw, FlushError, OpenError, Overwritten, ReadError, Unverified,
};
pub use flush::{Flusher, spawn_flusher};
pub use receive::{Received, Receiver};
pub use record::{HEADER_BYTES, Kind, Prepared, Record, RecordInfo};
pub use recover::{Report, Torn, check};
pub use ring::{Ring, Words};
pub use segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use wal::{Wal, WalOptions};
