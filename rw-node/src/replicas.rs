//! The ROs that are attached, as the RW sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headwater_protocol::Lsn;
use headwater_protocol::regions::{log, progress, region};
use headwater_protocol::status::ReplicaStatus;
use headwater_rdma::{Link, Region};
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

/// One attached RO.
pub(crate) struct Replica {
    /// The RO's process.
    pub(crate) node: Uuid,
    pub(crate) name: String,
    pub(crate) address: String,
    /// Why it is not on a better transport; empty if there is none.
    pub(crate) why: String,
    pub(crate) link: Arc<dyn Link>,
    /// Its progress words; their bell also wakes its shipper.
    pub(crate) progress: Arc<Region>,
    pub(crate) shipped: AtomicU64,
    pub(crate) from_segments: AtomicBool,
    /// When its clock was last seen to move.
    pub(crate) heard: Mutex<Instant>,
}

impl Replica {
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.progress.words()[word].load(Ordering::Acquire)
    }

    fn status(&self, visible: Lsn) -> ReplicaStatus {
        let applied = Lsn::new(self.word(progress::APPLIED));
        ReplicaStatus {
            name: self.name.clone(),
            address: self.address.clone(),
            transport: self.link.transport().to_string(),
            why: self.why.clone(),
            shipped: Lsn::new(self.shipped.load(Ordering::Relaxed)),
            source: if self.from_segments.load(Ordering::Relaxed) { "segments" } else { "ring" }.into(),
            received: Lsn::new(self.word(progress::RECEIVED)),
            applied,
            lag_bytes: visible.since(applied),
            silent_ms: u64::try_from(self.heard.lock().elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// How long ROs may take to apply the last of the log, and to leave, when the RW stops in order.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// All of them. Each has a shipper thread that ends when its link closes.
#[derive(Default)]
pub(crate) struct Replicas {
    attached: Mutex<Arc<Vec<Arc<Replica>>>>,
    /// One has left.
    left: Condvar,
    shippers: Mutex<Vec<JoinHandle<()>>>,
}

impl Replicas {
    /// Wakes every shipper that sleeps: there is more to write.
    pub(crate) fn ring_all(&self) {
        self.attached.lock().iter().for_each(|replica| replica.progress.ring());
    }

    /// Tells every RO that what ends at `flushed` is durable and visible (S1). Whoever cannot be told without the risk of a wait is told
    /// by its shipper, which is woken for it.
    pub(crate) fn publish(&self, flushed: Lsn) {
        // Not under the lock: who is told may turn out to be gone, and then is parted with.
        let attached = self.attached.lock().clone();
        for replica in attached.iter() {
            let told = replica.link.write_now(region::LOG, log::FLUSHED, &[flushed.get()]);
            if !told.unwrap_or(false) {
                replica.progress.ring();
            }
        }
    }

    /// Adds one, in place of an earlier link of the same process, and starts its shipper.
    pub(crate) fn add(
        &self,
        replica: Arc<Replica>,
        ship: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let mut attached = self.attached.lock();
        let all = Arc::make_mut(&mut *attached);
        let replaced: Vec<_> = all.extract_if(.., |other| other.node == replica.node).collect();
        all.push(replica.clone());
        drop(attached);
        replaced.iter().for_each(|other| other.link.close());
        // After that: the shipper takes the RO off the list when it ends, and finds what was published before it was on it.
        match std::thread::Builder::new().name("ship".into()).spawn(ship) {
            Ok(shipper) => {
                let mut shippers = self.shippers.lock();
                shippers.retain(|shipper| !shipper.is_finished());
                shippers.push(shipper);
                Ok(())
            }
            Err(error) => {
                replica.link.close();
                self.remove(&replica);
                Err(error)
            }
        }
    }

    /// Forgets one whose link is dead.
    pub(crate) fn remove(&self, replica: &Arc<Replica>) {
        Arc::make_mut(&mut *self.attached.lock()).retain(|other| !Arc::ptr_eq(other, replica));
        self.left.notify_all();
    }

    /// Waits until every RO has left, which each does once it has the whole log; closes the links of those that take longer than
    /// [`FAREWELL_MAX`]. Then no shipper runs any more.
    pub(crate) fn part(&self) {
        let until = Instant::now() + FAREWELL_MAX;
        let mut attached = self.attached.lock();
        while !attached.is_empty() && !self.left.wait_until(&mut attached, until).timed_out() {}
        for replica in attached.iter() {
            tracing::warn!(ro = %replica.name, "the RO did not apply the last of the log in time; its link is closed");
            replica.link.close();
        }
        drop(attached);
        let shippers = std::mem::take(&mut *self.shippers.lock());
        for shipper in shippers {
            if shipper.join().is_err() {
                tracing::error!("a shipper panicked");
            }
        }
    }

    /// How each does.
    pub(crate) fn status(&self, visible: Lsn) -> Vec<ReplicaStatus> {
        self.attached.lock().iter().map(|replica| replica.status(visible)).collect()
    }
}
