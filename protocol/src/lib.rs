//! The words of Headwater and the bytes that stand for them: no I/O, no threads.
//!
//! Everything that two processes must agree on is defined here once: positions and names ([`Lsn`], [`Epoch`],
//! [`Seqno`], [`ShardName`]), the frames between a client and a node ([`request`], [`response`], [`frame`]), the
//! messages by which an RO attaches to an RW ([`replication`]), and where the words lie in the memory that they
//! share ([`regions`]).

pub mod limits;
mod lsn;
mod epoch;
mod shard;
mod error;
mod consistency;
mod wire;
pub mod request;
pub mod response;
pub mod frame;
pub mod replication;
pub mod regions;
pub mod status;

pub use consistency::{Consistency, Served};
pub use epoch::{Epoch, EpochStart, History};
pub use error::{Error, ErrorKind};
pub use lsn::Lsn;
pub use shard::{Entry, InvalidName, InvalidSeqno, Seqno, ShardName};
pub use wire::Malformed;
