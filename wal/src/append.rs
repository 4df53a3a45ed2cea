//! Giving records their place in the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headwater_protocol::Lsn;

use crate::error::AppendError;
use crate::record::Prepared;
use crate::wal::Wal;

/// The log's single writer. The RW keeps it inside its own lock, and that orders the log (W1).
///
/// - `chain` is the chained checksum at [`Wal::appended`].
pub struct Appender {
    wal: Arc<Wal>,
    chain: u64,
    closed: bool,
}

impl Appender {
    pub(crate) fn new(wal: Arc<Wal>, chain: u64) -> Appender {
        Appender { wal, chain, closed: false }
    }

    /// Copies the record into the ring and returns its LSN. Wakes the flusher only if it sleeps.
    ///
    /// Nothing was appended after an [`AppendError`]. A record must fit into the ring, or it is refused for ever as
    /// [`AppendError::Overloaded`]; whoever accepts entries bounds them so.
    pub fn append(&mut self, record: &Prepared) -> Result<Lsn, AppendError> {
        self.append_below(self.wal.usable_end(), record)
    }

    fn append_below(&mut self, space_end: Lsn, record: &Prepared) -> Result<Lsn, AppendError> {
        let wal = &*self.wal;
        if self.closed || wal.flusher.ended.load(Ordering::Acquire) {
            return Err(AppendError::Closed);
        }
        let start = wal.appended();
        let flushed = wal.flushed();
        let end = start.advance(record.log_bytes());
        if end > space_end {
            return Err(if wal.disk_full() { AppendError::DiskFull } else { AppendError::Overloaded });
        }
        if end.since(flushed) > wal.ring.bytes() {
            return Err(AppendError::Overloaded);
        }
        let header = record.header(start, wal.epoch(), flushed, self.chain);
        wal.ring.append(&header.encode(), record.body());
        self.chain = header.chain;
        wal.bell.ring();
        debug_assert_eq!(wal.appended(), end);
        Ok(end)
    }

    /// Appends the close record, which proves that nothing is missing before it; later appends are refused.
    ///
    /// So it waits first until all before it is flushed, if a flusher runs. Errors are those of [`Appender::append`];
    /// the log is closed all the same.
    pub fn close(&mut self) -> Result<Lsn, AppendError> {
        {
            let mut running = self.wal.flusher.running.lock();
            while *running && self.wal.flushed() < self.wal.appended() {
                self.wal.flusher.progress.wait(&mut running);
            }
        }
        let closed = self.append_below(self.wal.space_end(), &Prepared::close());
        self.closed = true;
        closed
    }
}
