//! The RW as an RO knows it on one link: its timestamps, and how long they may be believed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_protocol::Lsn;
use headwater_protocol::regions::region;
use headwater_rdma::{Link, LinkError, Transport};
use headwater_timestamp::{Lamport, Layout, Nanos, Stamp};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use crate::intake::Intake;

/// Why a timestamp cannot be used.
#[derive(Debug)]
pub(crate) enum NoTimestamp {
    /// The link is gone; another may come.
    LinkGone,
    /// The RO's right to read strongly has run out (E3, R6); it may be renewed.
    NoRight,
    /// More fetches are under way than the link takes.
    Busy,
}

/// µs on a clock that goes on while the host sleeps: a lease must not outlive a suspended machine.
pub(crate) fn lease_clock_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let us = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
    u64::try_from(us).unwrap_or(0)
}

/// One link's timestamps and lease.
///
/// - Everything cached here was fetched over this link, so under this epoch (R6): with the link, the caches go.
/// - A stamp is returned only while the lease holds *after* its word was sampled: no RW that follows has acknowledged
///   anything before the lease's end, so at that moment this RW's table was the truth (E3).
pub(crate) struct Upstream {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) layout: Layout,
    /// Where its log comes in.
    pub(crate) intake: Intake,
    lamports: Box<[Lamport]>,
    lease_us: u64,
    lease_until_us: AtomicU64,
    renewed: Notify,
}

impl Upstream {
    pub(crate) fn new(link: Arc<dyn Link>, layout: Layout, lease_us: u64, intake: Intake) -> Upstream {
        Upstream {
            link,
            intake,
            lamports: (0..layout.words()).map(|_| Lamport::new()).collect(),
            layout,
            lease_us,
            lease_until_us: AtomicU64::new(0),
            renewed: Notify::new(),
        }
    }

    /// The RW gave back the clock `echo_us` of this RO; 0 is none.
    pub(crate) fn renew(&self, echo_us: u64) {
        if echo_us == 0 {
            return;
        }
        let until = echo_us + self.lease_us;
        if self.lease_until_us.fetch_max(until, Ordering::AcqRel) < until {
            self.renewed.notify_waiters();
        }
    }

    /// µs for which the RO may still read strongly.
    pub(crate) fn lease_left_us(&self) -> u64 {
        self.lease_until_us.load(Ordering::Acquire).saturating_sub(lease_clock_us())
    }

    /// Returns at the next renewal; at once if the lease holds.
    pub(crate) async fn renewed(&self) {
        let renewal = self.renewed.notified();
        tokio::pin!(renewal);
        // Listening before looking, so that no renewal falls between.
        renewal.as_mut().enable();
        if self.lease_left_us() == 0 {
            renewal.await;
        }
    }

    /// The newest LSN that reads have learnt to be visible on the RW.
    pub(crate) fn known(&self) -> Lsn {
        self.lamports[self.layout.global()].cached().map(|stamp| stamp.lsn).unwrap_or_default()
    }

    /// Whether the global timestamp for a read that arrived then is to be had without waiting: it is here, or a fetch is a load.
    pub(crate) fn has_global_at_once(&self, arrival: Nanos) -> bool {
        self.reads_at_once() || self.has_global(arrival)
    }

    /// Whether a fetch is a load and takes no time of its own.
    pub(crate) fn reads_at_once(&self) -> bool {
        self.link.transport() == Transport::Shm
    }

    /// Whether a global timestamp is here that will do for a read that arrived then.
    pub(crate) fn has_global(&self, arrival: Nanos) -> bool {
        self.lamports[self.layout.global()].cached().is_some_and(|stamp| stamp.sent_at >= arrival)
    }

    /// The timestamp in `word`, by a fetch sent at or after `arrival` (R1), and whether it was somebody else's.
    pub(crate) async fn timestamp(
        &self,
        word: usize,
        arrival: Nanos,
        now: impl Fn() -> Nanos,
        fetches: &AtomicU64,
    ) -> Result<(Stamp, bool), NoTimestamp> {
        let fetch = || {
            fetches.fetch_add(1, Ordering::Relaxed);
            self.link.read(region::TIMESTAMPS, word)
        };
        let stamp = self.lamports[word].get(arrival, now, fetch).await;
        let stamp = stamp.map_err(|error| match error {
            LinkError::TooManyReads(_) => NoTimestamp::Busy,
            _ => NoTimestamp::LinkGone,
        })?;
        // After the sample, never before.
        if self.lease_left_us() == 0 { Err(NoTimestamp::NoRight) } else { Ok(stamp) }
    }
}
