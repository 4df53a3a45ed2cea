use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use headwater_protocol::Served;
use headwater_protocol::status::NodeStatus;

/// What a node counts, for `status`.
#[derive(Debug, Default)]
pub struct Counters {
    served: [AtomicU64; Served::ALL.len()],
    /// Reads that were not served in time.
    pub timed_out: AtomicU64,
    /// Strong reads answered.
    pub strong_reads: AtomicU64,
    /// Timestamps fetched from the RW.
    pub fetches: AtomicU64,
    /// Clients' connections that are open.
    pub connections: AtomicU64,
}

impl Counters {
    /// Counts a read that was served so.
    pub fn served(&self, served: Served) {
        self.served[served as usize].fetch_add(1, Relaxed);
    }

    /// Writes the counts into a status.
    pub fn report(&self, status: &mut NodeStatus) {
        status.served = Served::ALL
            .iter()
            .map(|way| (way.name().to_owned(), self.served[*way as usize].load(Relaxed)))
            .collect::<BTreeMap<_, _>>();
        status.timed_out = self.timed_out.load(Relaxed);
        status.strong_reads = self.strong_reads.load(Relaxed);
        status.fetches = self.fetches.load(Relaxed);
        status.connections = self.connections.load(Relaxed);
    }
}

/// A clock that starts with the process: what an RO's reads and fetches are ordered by (R1), and a node's uptime.
#[derive(Clone, Copy, Debug)]
pub struct Timer(Instant);

impl Timer {
    /// A clock that starts now.
    pub fn start() -> Timer {
        Timer(Instant::now())
    }

    /// Nanoseconds since the start, of an instant not before it.
    pub fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whole seconds since the start.
    pub fn seconds(&self) -> u64 {
        self.0.elapsed().as_secs()
    }
}
