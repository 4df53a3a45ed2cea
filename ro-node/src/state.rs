//! What an RO's threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_node::{Counters, Timer};
use headwater_protocol::{Epoch, Lsn};
use headwater_shard_log::ShardLog;
use headwater_timestamp::Position;
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use crate::upstream::{Upstream, lease_clock_us};

/// The RO's state: what reads see, how far it has come, and the RW it follows.
pub(crate) struct State {
    /// This process.
    pub(crate) node: Uuid,
    pub(crate) log: Arc<ShardLog>,
    pub(crate) applied: Position,
    pub(crate) received: AtomicU64,
    pub(crate) flushed: AtomicU64,
    /// The lease clock's time at which the RW's visible state was no newer than what is applied here; 0 if it never was.
    pub(crate) fresh_as_of_us: AtomicU64,
    /// The RW while the RO is attached to it.
    pub(crate) upstream: watch::Sender<Option<Arc<Upstream>>>,
    pub(crate) about: Mutex<About>,
    /// Strong reads that give way before they ask.
    pub(crate) gathering: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) timer: Timer,
}

/// What `status` tells of the RW.
#[derive(Clone, Default)]
pub(crate) struct About {
    pub(crate) cluster_id: Option<Uuid>,
    /// The epoch of the RW that it last attached to.
    pub(crate) epoch: Epoch,
    /// Where writes go, as the RW says; as configured before it was met.
    pub(crate) rw_address: String,
    /// Why not by a better transport, or why not attached.
    pub(crate) why: String,
}

impl State {
    pub(crate) fn new(rw_address: String) -> State {
        State {
            node: Uuid::new_v4(),
            log: Arc::new(ShardLog::new()),
            applied: Position::new(Lsn::ZERO),
            received: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            fresh_as_of_us: AtomicU64::new(0),
            upstream: watch::Sender::new(None),
            about: Mutex::new(About { rw_address, why: "not attached yet".into(), ..About::default() }),
            gathering: AtomicU64::new(0),
            counters: Counters::default(),
            timer: Timer::start(),
        }
    }

    /// Turns to an RW, or away from it, and with that to what `status` tells of it: who finds the one finds the other, if it
    /// looks at the RW while it holds `about`. Nobody locks `about` while it borrows the RW.
    pub(crate) fn turn_to(&self, upstream: Option<Arc<Upstream>>, tell: impl FnOnce(&mut About)) {
        let mut about = self.about.lock();
        tell(&mut about);
        self.upstream.send_replace(upstream);
    }

    /// How old the state may be: µs since it was certainly the RW's; none if it never was.
    pub(crate) fn age_us(&self) -> Option<u64> {
        match self.fresh_as_of_us.load(Ordering::Acquire) {
            0 => None,
            as_of => Some(lease_clock_us().saturating_sub(as_of)),
        }
    }
}
