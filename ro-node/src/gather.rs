//! How strong reads come to share a timestamp where fetching one is too quick for others to gather meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headwater_timestamp::Nanos;

use crate::state::State;

/// A fetch is sent for the sake of one in so many clients, if as many have a read that waits; and always for `ENOUGH_MAX`.
const CLIENTS_PER_READ: u64 = 6;
const ENOUGH_MAX: u64 = 32;
/// So many reads that wait are a crowd, whatever the connections they came by; it is worth as many to a fetch.
const CROWD: u64 = 3;
const ENOUGH_IN_A_CROWD: u64 = 16;
/// How often a read gives way at most: alone, and with others. Each turn takes as long as what is ready on the node takes: some µs.
const TURNS_MAX: (u32, u32) = (2, 12);

/// A strong read's place among those that gather; given up when dropped.
pub(crate) struct Gathered {
    state: Arc<State>,
    turns: u32,
}

impl Gathered {
    pub(crate) fn join(state: &Arc<State>) -> Gathered {
        state.gathering.fetch_add(1, Ordering::Relaxed);
        Gathered { state: state.clone(), turns: 0 }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.state.gathering.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    /// Whether a read that has given way should do so again: it would have to fetch, and others can be expected to share what it
    /// fetches. Readers who are few are not kept.
    pub(crate) fn gathers_on(&self, arrival: Nanos, gathered: &mut Gathered) -> bool {
        let waiting = self.gathering.load(Ordering::Relaxed);
        let clients = self.counters.connections.load(Ordering::Relaxed);
        let least = if waiting >= CROWD { ENOUGH_IN_A_CROWD } else { 0 };
        let enough = (clients / CLIENTS_PER_READ).clamp(least, ENOUGH_MAX);
        gathered.turns += 1;
        let turns_max = if waiting > 1 { TURNS_MAX.1 } else { TURNS_MAX.0 };
        if waiting >= enough || gathered.turns >= turns_max {
            return false;
        }
        let upstream = self.upstream.borrow();
        upstream.as_ref().is_some_and(|upstream| upstream.reads_at_once() && !upstream.has_global(arrival))
    }
}
