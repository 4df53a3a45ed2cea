//! The client of Headwater: the contract's operations over tokio.
//!
//! - [`Connection`] speaks to one node and nothing more: many requests in flight, no retries, no routing.
//! - [`Client`] knows the cluster: it sends writes to the RW and reads to the ROs, retries where that is safe, fails over,
//!   and keeps a session's position so that a session reads its own writes.
//!
//! A write is never sent again once it may have happened. [`ClientError::kind`] says which errors those are.
//!
//! The bytes of an entry that was read are a slice of what came off the connection, not a copy: who keeps small entries
//! for long copies them.

mod client;
mod connection;
mod error;
mod nodes;
mod operation;
mod session;
mod socket;
mod watch;

#[cfg(test)]
mod scripted;

pub use client::{Client, Options, ReadFrom};
pub use connection::Connection;
pub use error::ClientError;
pub use operation::{Cas, Head, Scan, Shards, Truncated};
pub use watch::Watch;
