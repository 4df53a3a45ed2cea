use headwater_protocol::status::NodeStatus;
use headwater_protocol::{self as protocol};
use serde::Serialize;

/// What nodes counted, together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Counters {
    /// Strong reads answered.
    pub(crate) strong_reads: u64,
    /// Timestamps fetched from the RW.
    pub(crate) fetches: u64,
    /// Reads that were not served in time.
    pub(crate) timed_out: u64,
    /// Reads by how they were served.
    pub(crate) served: Served,
}

/// Reads by how they were served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Served {
    /// By the RW.
    pub(crate) rw: u64,
    /// By an RO that was asked for no more than it had.
    pub(crate) local: u64,
    /// By the global timestamp of another read's fetch.
    pub(crate) reused: u64,
    /// By the global timestamp, fetched for the read.
    pub(crate) global: u64,
    /// By the shard's timestamp.
    pub(crate) shard: u64,
    /// By the pages' timestamps.
    pub(crate) page: u64,
    /// After waiting until the RO had applied far enough.
    pub(crate) waited: u64,
}

impl Counters {
    /// The sum over nodes.
    pub(crate) fn of<'a>(nodes: impl IntoIterator<Item = &'a NodeStatus>) -> Counters {
        let mut sum = Counters::default();
        for node in nodes {
            let served = |way: protocol::Served| node.served.get(way.name()).copied().unwrap_or(0);
            sum.strong_reads += node.strong_reads;
            sum.fetches += node.fetches;
            sum.timed_out += node.timed_out;
            sum.served.rw += served(protocol::Served::Rw);
            sum.served.local += served(protocol::Served::Local);
            sum.served.reused += served(protocol::Served::ReusedGlobal);
            sum.served.global += served(protocol::Served::FetchedGlobal);
            sum.served.shard += served(protocol::Served::Shard);
            sum.served.page += served(protocol::Served::Page);
            sum.served.waited += served(protocol::Served::Waited);
        }
        sum
    }

    /// What was counted since `before`. A node that restarted meanwhile counts from 0 again: never less than nothing.
    pub(crate) fn since(self, before: Counters) -> Counters {
        let (now, then) = (self.served, before.served);
        Counters {
            strong_reads: self.strong_reads.saturating_sub(before.strong_reads),
            fetches: self.fetches.saturating_sub(before.fetches),
            timed_out: self.timed_out.saturating_sub(before.timed_out),
            served: Served {
                rw: now.rw.saturating_sub(then.rw),
                local: now.local.saturating_sub(then.local),
                reused: now.reused.saturating_sub(then.reused),
                global: now.global.saturating_sub(then.global),
                shard: now.shard.saturating_sub(then.shard),
                page: now.page.saturating_sub(then.page),
                waited: now.waited.saturating_sub(then.waited),
            },
        }
    }

    /// Fetches for each strong read; none if there was no strong read.
    pub(crate) fn fetches_per_strong_read(&self) -> Option<f64> {
        (self.strong_reads > 0).then(|| self.fetches as f64 / self.strong_reads as f64)
    }
}
