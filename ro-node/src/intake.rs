//! One link's log on its way into the state: moved on by the follower, and by a reader that finds the state behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headwater_protocol::regions::log;
use headwater_protocol::replication::Applied;
use headwater_protocol::{Epoch, Lsn};
use headwater_rdma::Region;
use parking_lot::Mutex;

use crate::apply::{Applier, ApplyError};
use crate::state::State;

/// The RO's own region on one link, and what reads it.
///
/// - What a step finds is applied under the lock, so that records enter the state in order whoever takes the step.
/// - After [`Intake::close`] nothing enters the state by this link any more: the next one goes on from there.
pub(crate) struct Intake {
    region: Arc<Region>,
    epoch: Epoch,
    inner: Mutex<Inner>,
}

struct Inner {
    applier: Applier,
    closed: bool,
    /// What a reader's step ran into; the follower's next step ends the link by it.
    failed: Option<ApplyError>,
    /// A flushed LSN and the clock after which it was published, until it is applied.
    freshness: Option<(Lsn, u64)>,
}

/// What came of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stepped {
    /// Whether anything was received or applied.
    pub(crate) moved: bool,
    /// Where the next record begins.
    pub(crate) received: Lsn,
    /// The end of the last record applied.
    pub(crate) applied: Lsn,
    /// This RO's clock as the RW gave it back; 0 if it did not yet.
    pub(crate) echo_us: u64,
}

impl Intake {
    pub(crate) fn new(region: Arc<Region>, epoch: Epoch, applier: Applier) -> Intake {
        let inner = Inner { applier, closed: false, failed: None, freshness: None };
        Intake { region, epoch, inner: Mutex::new(inner) }
    }

    /// One look at the control words and the ring.
    pub(crate) fn step(&self, state: &State) -> Result<Stepped, ApplyError> {
        let mut inner = self.inner.lock();
        match inner.failed.take() {
            Some(error) => Err(error),
            None => self.locked_step(&mut inner, state),
        }
    }

    /// A step by a reader, unless somebody is at it already.
    pub(crate) fn help(&self, state: &State) {
        let Some(mut inner) = self.inner.try_lock() else { return };
        if !inner.closed
            && inner.failed.is_none()
            && let Err(error) = self.locked_step(&mut inner, state)
        {
            inner.failed = Some(error);
        }
    }

    /// Ends it, and says where the state stands.
    pub(crate) fn close(&self) -> Applied {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.applier.applied()
    }

    fn locked_step(&self, inner: &mut Inner, state: &State) -> Result<Stepped, ApplyError> {
        let (mut moved, mut echo_us) = (false, 0);
        if self.word(log::EPOCH) == self.epoch.get() {
            // The clock first: what is read after it was published after it.
            echo_us = self.word(log::CLOCK_ECHO);
            let flushed = Lsn::new(self.word(log::FLUSHED));
            let tail = Lsn::new(self.word(log::TAIL));
            moved = inner.applier.step(tail, flushed, &state.log)?;
            inner.show(state, flushed, echo_us);
        }
        let (received, applied) = (inner.applier.received(), inner.applier.applied().lsn);
        Ok(Stepped { moved, received, applied, echo_us })
    }

    fn word(&self, word: usize) -> u64 {
        self.region.words()[word].load(Ordering::Acquire)
    }
}

impl Inner {
    /// Lets readers see how far the state has come.
    fn show(&mut self, state: &State, flushed: Lsn, echo_us: u64) {
        let applied = self.applier.applied().lsn;
        state.received.store(self.applier.received().get(), Ordering::Relaxed);
        state.flushed.store(flushed.get(), Ordering::Relaxed);
        if applied > state.applied.get() {
            state.applied.advance(applied);
        }
        if echo_us > 0 {
            self.freshness.get_or_insert((flushed, echo_us));
        }
        if let Some((lsn, as_of_us)) = self.freshness
            && applied >= lsn
        {
            state.fresh_as_of_us.fetch_max(as_of_us, Ordering::AcqRel);
            self.freshness = None;
        }
    }
}
