//! Deciding writes: is `expected` the head? The answer rests on what is appended, flushed or not; whether it may be given
//! is for [`commit`](crate::commit) to say.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use headwater_protocol::response::Response;
use headwater_protocol::{Error, Lsn, Seqno, ShardName};
use headwater_shard_log::{Change, ShardLog};
use headwater_wal::{AppendError, Appender, Prepared};
use parking_lot::Mutex;

/// A shard's interval as decided, when that is ahead of what is visible.
#[derive(Clone, Copy)]
struct Tentative {
    lo: Seqno,
    head: Seqno,
    /// The shard's last record: when it is visible, so is this interval.
    lsn: Lsn,
}

/// A record that is appended and not yet visible.
pub(crate) struct InFlight {
    pub(crate) change: Change,
    /// The shard's lowest seqno before the change.
    pub(crate) lo: Seqno,
    pub(crate) lsn: Lsn,
}

/// A response, and the LSN that must be visible before it may be given (W4); zero if it rests on nothing that is not.
pub(crate) struct Decided {
    pub(crate) response: Response,
    pub(crate) after: Lsn,
}

impl Decided {
    fn now(response: Response) -> Decided {
        Decided { response, after: Lsn::ZERO }
    }

    fn refused(error: Error) -> Decided {
        Decided::now(Response::Error(error))
    }
}

/// Orders every write (W1).
///
/// - A decision and its append happen under one lock, so that a shard's order is the log's. One lock serves all shards: records
///   are chained by their checksums, so appends are one at a time whatever the locks, and what is done under it is two
///   look-ups and a copy.
/// - `tentative` holds exactly the shards that have a record in `in_flight`, or one that is being made visible.
/// - `in_flight` is in the order of LSNs, and never longer than `in_flight_max` (W6).
pub(crate) struct Writer {
    log: Arc<ShardLog>,
    in_flight_max: usize,
    entry_bytes_max: usize,
    state: Mutex<State>,
}

struct State {
    appender: Appender,
    tentative: HashMap<ShardName, Tentative>,
    in_flight: VecDeque<InFlight>,
}

impl Writer {
    pub(crate) fn new(
        log: Arc<ShardLog>,
        appender: Appender,
        in_flight_max: usize,
        entry_bytes_max: usize,
    ) -> Writer {
        let state = State { appender, tentative: HashMap::new(), in_flight: VecDeque::new() };
        Writer { log, in_flight_max, entry_bytes_max, state: Mutex::new(state) }
    }

    /// Appends `data` iff `expected` is the head.
    pub(crate) fn compare_and_set(&self, shard: ShardName, expected: Option<Seqno>, data: Bytes) -> Decided {
        let seqno = match expected.map(Seqno::next) {
            None => Seqno::ZERO,
            Some(Some(next)) => next,
            Some(None) => return Decided::refused(invalid(format!("no seqno follows {}", Seqno::MAX))),
        };
        self.append(shard, seqno, data, |interval| match interval {
            None if expected.is_none() => Ok(()),
            Some(interval) if expected == Some(interval.head) => Ok(()),
            None => Err(Response::Mismatch { head: None, lsn: Lsn::ZERO }),
            Some(interval) => Err(Response::Mismatch { head: Some(interval.head), lsn: interval.lsn }),
        })
    }

    /// The administrative first write at a given seqno.
    pub(crate) fn begin(&self, shard: ShardName, seqno: Seqno, data: Bytes) -> Decided {
        self.append(shard, seqno, data, |interval| match interval {
            None => Ok(()),
            Some(interval) => Err(Response::Error(Error::NotEmpty { head: interval.head })),
        })
    }

    fn append(
        &self,
        shard: ShardName,
        seqno: Seqno,
        data: Bytes,
        check: impl FnOnce(Option<Tentative>) -> Result<(), Response>,
    ) -> Decided {
        if data.len() > self.entry_bytes_max {
            return Decided::refused(invalid(format!(
                "an entry has at most {} bytes, this one has {}",
                self.entry_bytes_max,
                data.len()
            )));
        }
        let change = Change::Append { shard: shard.clone(), seqno, data };
        let record = Prepared::new(&change);
        let mut state = self.state.lock();
        let interval = state.interval(&self.log, &shard);
        if let Err(response) = check(interval) {
            return Decided { response, after: interval.map_or(Lsn::ZERO, |interval| interval.lsn) };
        }
        let lo = interval.map_or(seqno, |interval| interval.lo);
        match state.append(change, &record, lo, self.in_flight_max) {
            Ok(lsn) => {
                debug_assert!(interval.is_none_or(|before| before.head.next() == Some(seqno)));
                state.tentative.insert(shard, Tentative { lo, head: seqno, lsn });
                Decided { response: Response::Committed { seqno, lsn }, after: lsn }
            }
            Err(error) => Decided::refused(error),
        }
    }

    /// Removes entries below `cut`.
    pub(crate) fn truncate(&self, shard: ShardName, cut: Seqno) -> Decided {
        let change = Change::Truncate { shard: shard.clone(), cut };
        let record = Prepared::new(&change);
        let mut state = self.state.lock();
        let Some(Tentative { lo, head, lsn: after }) = state.interval(&self.log, &shard) else {
            return Decided::refused(Error::UnknownShard);
        };
        if cut > head {
            return Decided { response: Response::Error(Error::CutAboveHead { head }), after };
        }
        if cut <= lo {
            return Decided { response: Response::Truncated { removed: 0, lsn: after }, after };
        }
        match state.append(change, &record, lo, self.in_flight_max) {
            Ok(lsn) => {
                state.tentative.insert(shard, Tentative { lo: cut, head, lsn });
                Decided { response: Response::Truncated { removed: cut.get() - lo.get(), lsn }, after: lsn }
            }
            Err(error) => Decided::refused(error),
        }
    }

    /// Takes the records that end at or before `flushed` out of flight, in order.
    pub(crate) fn take_flushed(&self, flushed: Lsn) -> Vec<InFlight> {
        let mut state = self.state.lock();
        let count = state.in_flight.partition_point(|record| record.lsn <= flushed);
        state.in_flight.drain(..count).collect()
    }

    /// Says that these records are visible: what was decided by them is now in the shard log.
    pub(crate) fn made_visible(&self, records: &[(ShardName, Lsn)]) {
        let mut state = self.state.lock();
        for (shard, lsn) in records {
            if state.tentative.get(shard).is_some_and(|tentative| tentative.lsn == *lsn) {
                state.tentative.remove(shard);
            }
        }
    }

    /// Appends the close record; every later write is refused. Returns the log's end. Everything appended must be visible:
    /// the log waits until it is flushed, and this holds the lock that making it visible needs.
    pub(crate) fn close(&self) -> Result<Lsn, AppendError> {
        self.state.lock().appender.close()
    }
}

impl State {
    /// The shard's interval as decided so far. Its LSN is that of its last record, visible or not.
    fn interval(&self, log: &ShardLog, shard: &ShardName) -> Option<Tentative> {
        if let Some(tentative) = self.tentative.get(shard) {
            return Some(*tentative);
        }
        log.bounds(shard.as_str()).map(|b| Tentative { lo: b.lo, head: b.head, lsn: b.lsn })
    }

    fn append(
        &mut self,
        change: Change,
        record: &Prepared,
        lo: Seqno,
        in_flight_max: usize,
    ) -> Result<Lsn, Error> {
        if self.in_flight.len() >= in_flight_max {
            return Err(Error::Overloaded(format!("{in_flight_max} writes are in flight")));
        }
        let lsn = self.appender.append(record).map_err(|error| match error {
            AppendError::Overloaded => {
                Error::Overloaded("the ring is full of what is not yet flushed".into())
            }
            AppendError::DiskFull => Error::DiskFull,
            AppendError::Closed => Error::Stopping,
        })?;
        debug_assert!(self.in_flight.back().is_none_or(|last| last.lsn < lsn));
        self.in_flight.push_back(InFlight { change, lo, lsn });
        Ok(lsn)
    }
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

#[cfg(test)]
mod tests;
