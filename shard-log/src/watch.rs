use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater_protocol::ShardName;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The shards that somebody watches.
///
/// - `count` is the length of `shards`, readable without its lock.
/// - A shard is there if and only if it has a [`Watch`].
#[derive(Default)]
pub(crate) struct Watches {
    count: AtomicUsize,
    shards: Mutex<HashMap<ShardName, watch::Sender<()>>>,
}

impl Watches {
    pub(crate) fn add(self: &Arc<Watches>, shard: &ShardName) -> Watch {
        let mut shards = self.shards.lock();
        let changes = shards.entry(shard.clone()).or_default().subscribe();
        self.count.store(shards.len(), Ordering::Relaxed);
        Watch { shard: shard.clone(), changes: Some(changes), watches: Arc::clone(self) }
    }

    /// Whether any shard is watched. To be asked under the lock of the shard that changes: a watcher that reads the
    /// shard before the change has then released that lock, and its registration, which it made earlier still, is
    /// seen here. One that reads the shard after the change needs no waking.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Wakes those who watch `shard`. To be called without any lock: wakers run code of the runtime.
    pub(crate) fn wake(&self, shard: &ShardName) {
        let changes = self.shards.lock().get(shard).cloned();
        if let Some(changes) = changes {
            changes.send_replace(());
        }
    }
}

/// A subscription to one shard's changes. It ends when dropped.
pub struct Watch {
    shard: ShardName,
    /// None only while it is dropped.
    changes: Option<watch::Receiver<()>>,
    watches: Arc<Watches>,
}

impl Watch {
    /// Returns when a change was applied to the shard since the last call, or since the subscription for the first
    /// call. Several changes count as one. Loses nothing when cancelled.
    ///
    /// To follow a shard without gaps: subscribe, then read, then wait, then read again, and so on.
    pub async fn changed(&mut self) {
        if let Some(changes) = &mut self.changes {
            changes.changed().await.expect("the sender stays registered as long as this watch");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut shards = self.watches.shards.lock();
        // Under the lock: of several that end together the last one finds that it is the last.
        self.changes = None;
        if shards.get(&self.shard).is_some_and(|changes| changes.receiver_count() == 0) {
            shards.remove(&self.shard);
            self.watches.count.store(shards.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn watches_that_end_together_leave_nothing_behind() {
        let watches = Arc::new(Watches::default());
        let shard = ShardName::new("s").unwrap();
        for _ in 0..1000 {
            let ending: Vec<Watch> = (0..8).map(|_| watches.add(&shard)).collect();
            let together = Barrier::new(ending.len());
            thread::scope(|scope| {
                for watch in ending {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        drop(watch);
                    });
                }
            });
            assert!(!watches.any());
        }
    }
}
