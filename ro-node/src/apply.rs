//! From the ring into the state that reads see, and never past what is flushed (S3).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use headwater_protocol::Lsn;
use headwater_protocol::replication::Applied;
use headwater_shard_log::{ShardLog, Violation};
use headwater_wal::{Received, Receiver, Record, Unverified};
use thiserror::Error;

/// Records taken from the ring in one go before what is flushed of them is applied.
const BATCH: usize = 1024;
/// How long bytes below the tail may fail to verify before they are fetched again.
const UNVERIFIED_MAX: Duration = Duration::from_secs(1);

/// Why a link cannot be followed any further.
#[derive(Debug, Error)]
pub(crate) enum ApplyError {
    /// Bytes that the RW says are there do not verify and stay so: they are to be fetched again (S2).
    #[error("bytes of the ring do not verify: {0}")]
    Unverified(Unverified),
    /// A verified record does not fit the state: one of the two is wrong for good.
    #[error("the record that ends at LSN {lsn} does not fit the state: {violation}")]
    Violation { lsn: Lsn, violation: Violation },
}

/// One link's records on their way into the state.
///
/// - `pending` holds what is received and verified in this epoch and not yet applied, in order, without a gap.
/// - A record is applied when the flushed LSN heard *on this link* has reached its end. Both sides of that gate are looked
///   at in every step, whichever of them moved (S3).
/// - What is pending when the link ends is dropped: it was never applied (E2).
pub(crate) struct Applier {
    receiver: Receiver,
    pending: VecDeque<Received>,
    applied: Applied,
    unverified_since: Option<Instant>,
}

impl Applier {
    pub(crate) fn new(receiver: Receiver, applied: Applied) -> Applier {
        Applier { receiver, pending: VecDeque::new(), applied, unverified_since: None }
    }

    pub(crate) fn applied(&self) -> Applied {
        self.applied
    }

    /// Where the next record begins: everything before has been copied out of the ring.
    pub(crate) fn received(&self) -> Lsn {
        self.receiver.received()
    }

    /// Takes what is below `tail` out of the ring and applies what is at or below `flushed`. Says whether anything moved.
    pub(crate) fn step(&mut self, tail: Lsn, flushed: Lsn, log: &ShardLog) -> Result<bool, ApplyError> {
        let mut moved = false;
        for _ in 0..BATCH {
            match self.receiver.next(tail) {
                Ok(Some(record)) => {
                    self.unverified_since = None;
                    self.pending.push_back(record);
                    moved = true;
                }
                Ok(None) => break,
                Err(unverified) => {
                    let since = *self.unverified_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNVERIFIED_MAX {
                        return Err(ApplyError::Unverified(unverified));
                    }
                    break;
                }
            }
        }
        while self.pending.front().is_some_and(|record| record.end <= flushed) {
            let Some(Received { record, start, end, epoch, chain }) = self.pending.pop_front() else { break };
            debug_assert!(self.applied.lsn <= start && end <= flushed);
            if let Record::Change(change) = record {
                log.apply(change, end).map_err(|violation| ApplyError::Violation { lsn: end, violation })?;
            }
            self.applied = Applied { lsn: end, start, chain, epoch };
            moved = true;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests;
