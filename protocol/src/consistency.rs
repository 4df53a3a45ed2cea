use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Lsn;

/// How fresh a read must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consistency {
    /// Linearizable: everything acknowledged before the read was sent is in it (R1–R6).
    #[default]
    Strong,
    /// Everything up to a position from an earlier reply is in it (read your writes, monotonic reads).
    AtLeast(Lsn),
    /// At most this much older than a strong read would be.
    Bounded(Duration),
    /// Whatever the node has.
    Eventual,
}

/// How a read was served: what let it be as strong as it was asked to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Served {
    /// By the RW, from what is visible there.
    Rw = 0,
    /// By an RO that was asked for no more than it had (`eventual`, or `at-least` a position it had reached).
    Local = 1,
    /// The global timestamp sufficed, and another read's fetch was reused.
    ReusedGlobal = 2,
    /// The global timestamp sufficed, fetched for this read.
    FetchedGlobal = 3,
    /// The shard's timestamp sufficed.
    Shard = 4,
    /// The timestamps of the pages that the read can touch sufficed.
    Page = 5,
    /// It waited until the RO had applied far enough.
    Waited = 6,
}

impl Served {
    /// Every way, in the order of their codes.
    pub const ALL: [Served; 7] = [
        Served::Rw,
        Served::Local,
        Served::ReusedGlobal,
        Served::FetchedGlobal,
        Served::Shard,
        Served::Page,
        Served::Waited,
    ];

    /// The way with that code on the wire.
    pub fn from_code(code: u8) -> Option<Served> {
        Served::ALL.get(usize::from(code)).copied()
    }

    /// Its name, as `status` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Served::Rw => "rw",
            Served::Local => "local",
            Served::ReusedGlobal => "reused-global",
            Served::FetchedGlobal => "fetched-global",
            Served::Shard => "shard",
            Served::Page => "page",
            Served::Waited => "waited",
        }
    }
}
