//! What happens when a batch is durable, in the one order that keeps readers honest (W3).
//!
//! ```text
//! 1 stamp     page, shard, global        an RO's strong read sent from here on asks for the batch
//! 2 visible   the RW's shard log         a client of the RW can see it, and tell others
//! 3 publish   flushed LSN to the ROs     a client of an RO can see it, and tell others
//! 4 answer    the writers                they know, and can tell others
//! ```
//!
//! Were 1 after 2, 3 or 4, somebody could know of a write, ask an RO that has not applied it, and the RO would fetch a timestamp
//! from before it: a stale strong read. Were 2 after 3, an RO's reader could see what the RW's next reader does not.
//! Were 4 before 2, a writer would not find its own write on the RW.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use headwater_protocol::Lsn;
use headwater_shard_log::{Change, ShardLog};
use headwater_timestamp::{Position, Table};
use tracing::error;

use crate::replicas::Replicas;
use crate::write::Writer;

/// The steps of W3 and the positions that they move.
pub(crate) struct Commit {
    pub(crate) writer: Arc<Writer>,
    pub(crate) table: Table,
    pub(crate) log: Arc<ShardLog>,
    pub(crate) replicas: Arc<Replicas>,
    published: AtomicU64,
    visible: Position,
}

impl Commit {
    pub(crate) fn new(
        writer: Arc<Writer>,
        table: Table,
        log: Arc<ShardLog>,
        replicas: Arc<Replicas>,
        recovered: Lsn,
    ) -> Commit {
        let published = AtomicU64::new(recovered.get());
        Commit { writer, table, log, replicas, published, visible: Position::new(recovered) }
    }

    /// Durable, stamped and visible up to here; what writers wait for.
    pub(crate) fn visible(&self) -> &Position {
        &self.visible
    }

    /// The flushed LSN that ROs may hear of.
    pub(crate) fn published(&self) -> Lsn {
        Lsn::new(self.published.load(Ordering::Acquire))
    }

    /// Carries every record up to `flushed` through W3. Called by the flusher's thread, one batch after the other. Breaks where
    /// the state machine refuses what was decided: then the log and the state disagree and nothing more may be answered.
    pub(crate) fn flushed(&self, flushed: Lsn) -> ControlFlow<()> {
        let batch = self.writer.take_flushed(flushed);

        for record in &batch {
            match &record.change {
                Change::Append { shard, seqno, .. } => {
                    self.table.stamp_append(shard.as_str(), *seqno, record.lsn);
                }
                Change::Truncate { shard, cut } => {
                    self.table.stamp_truncate(shard.as_str(), record.lo..*cut, record.lsn);
                }
            }
        }
        self.table.stamp_global(flushed);

        let mut visible = Vec::with_capacity(batch.len());
        for record in batch {
            let (Change::Append { shard, .. } | Change::Truncate { shard, .. }) = &record.change;
            visible.push((shard.clone(), record.lsn));
            if let Err(violation) = self.log.apply(record.change, record.lsn) {
                error!(%violation, lsn = %record.lsn, "the state refuses what was decided: this is a fault in Headwater");
                return ControlFlow::Break(());
            }
        }
        self.writer.made_visible(&visible);

        self.published.store(flushed.get(), Ordering::Release);
        // Meets the fence in `Shipper::ship`.
        fence(Ordering::SeqCst);
        self.replicas.publish(flushed);

        self.visible.advance(flushed);
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
