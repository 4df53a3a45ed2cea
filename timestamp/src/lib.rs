//! How fresh is fresh: by what an RO knows that what it has applied is enough for a strong read. No I/O, no clock.
//!
//! The RW stamps, for every change that became durable and before anybody can see it, the change's LSN into the words
//! of its pages, its shard and the log as a whole ([`Table`], W3). An RO serves a strong read that arrived at `a` so:
//!
//! 1. Take the global word's timestamp, sent for at or after `a` ([`Lamport`], R1). Applied up to it? Answer.
//! 2. Else take the shard's word in the same way. Applied up to it? Answer.
//! 3. Else take the words of every page that the read can touch ([`Layout::scan_pages`]). Applied up to all? Answer.
//! 4. Else wait until the smallest of these sufficient LSNs is applied ([`Position`]), and answer (R3).
//! 5. Where the shard's bounds moved since, the pages that are newly touched are checked too, before the answer.
//!
//! Words are shared by hash and only grow, so a collision makes a read wait for a change it need not have waited for,
//! and never the other way round (R4).

mod layout;
mod table;
mod lamport;
mod position;

pub use lamport::{Lamport, Nanos, Stamp};
pub use layout::{InvalidLayout, Layout, SLOTS_MAX};
pub use position::{Position, Reached};
pub use table::{Table, Words};
