//! What clients asked, when, and what they were told: recorded while a test runs, and judged afterwards.
//!
//! All clients of a test are in one process, so that one clock orders what they did: an answer that was there before
//! something was asked came before it, whoever asked whom.

mod check;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_client::{Cas, ClientError, Head, Scan, Truncated};
use headwater_protocol::{Consistency, Entry, Error, ErrorKind, Lsn, Seqno, ShardName};
use std::sync::Mutex;

pub use check::{Counts, Rule, Violation};

/// A recorded history. Its methods take the call that is to be recorded; the call must not have begun.
///
/// - Data is told apart by its bytes: no two writes of one shard may carry the same.
/// - Shards begin at seqno 0, and only by what is recorded here.
pub struct History {
    start: Instant,
    events: Mutex<Vec<Event>>,
}

/// One call from its beginning to its end.
struct Event {
    /// Before it was sent, and after its answer was there, since the history's start.
    began: Duration,
    ended: Duration,
    shard: ShardName,
    what: What,
}

enum What {
    Append { expected: Option<Seqno>, data: Bytes, outcome: Outcome<Cas> },
    Truncate { cut: Seqno, outcome: Outcome<Cut> },
    Read { strong: bool, sees: Sees, lsn: Lsn },
}

/// How a write ended.
enum Outcome<T> {
    Answered(T),
    /// It certainly did not happen.
    Refused,
    /// It may have happened, or may yet.
    Unknown,
}

/// What a truncate was told: both are answers that speak of the shard.
enum Cut {
    Removed(u64),
    AboveHead(Seqno),
}

/// What a read tells of its shard.
enum Sees {
    /// The head's entry, or that there is none.
    Head(Option<Entry>),
    /// Entries from `from` on, and whether they were cut.
    Scan { from: Seqno, entries: Vec<Entry>, more: bool },
}

impl Default for History {
    fn default() -> History {
        History { start: Instant::now(), events: Mutex::default() }
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a history of {} calls", self.lock().len())
    }
}

impl History {
    /// Records a compare-and-set.
    pub async fn compare_and_set(
        &self,
        shard: &ShardName,
        expected: Option<Seqno>,
        data: Bytes,
        call: impl Future<Output = Result<Cas, ClientError>>,
    ) -> Result<Cas, ClientError> {
        let began = self.start.elapsed();
        let result = call.await;
        let outcome = match &result {
            Ok(cas) => Outcome::Answered(*cas),
            Err(error) => Outcome::of(error),
        };
        self.record(began, shard, What::Append { expected, data, outcome });
        result
    }

    /// Records a truncate.
    pub async fn truncate(
        &self,
        shard: &ShardName,
        cut: Seqno,
        call: impl Future<Output = Result<Truncated, ClientError>>,
    ) -> Result<Truncated, ClientError> {
        let began = self.start.elapsed();
        let result = call.await;
        let outcome = match &result {
            Ok(truncated) => Outcome::Answered(Cut::Removed(truncated.removed)),
            Err(ClientError::Refused(Error::CutAboveHead { head })) => {
                Outcome::Answered(Cut::AboveHead(*head))
            }
            Err(error) => Outcome::of(error),
        };
        self.record(began, shard, What::Truncate { cut, outcome });
        result
    }

    /// Records a read of the head.
    pub async fn head(
        &self,
        shard: &ShardName,
        consistency: Consistency,
        call: impl Future<Output = Result<Head, ClientError>>,
    ) -> Result<Head, ClientError> {
        let began = self.start.elapsed();
        let result = call.await;
        if let Ok(Head { entry, reflects }) = &result {
            let sees = Sees::Head(entry.clone());
            let strong = consistency == Consistency::Strong;
            self.record(began, shard, What::Read { strong, sees, lsn: reflects.lsn });
        }
        result
    }

    /// Records a scan.
    pub async fn scan(
        &self,
        shard: &ShardName,
        from: Seqno,
        consistency: Consistency,
        call: impl Future<Output = Result<Scan, ClientError>>,
    ) -> Result<Scan, ClientError> {
        let began = self.start.elapsed();
        let result = call.await;
        if let Ok(Scan { entries, more, reflects }) = &result {
            let sees = Sees::Scan { from, entries: entries.clone(), more: *more };
            let strong = consistency == Consistency::Strong;
            self.record(began, shard, What::Read { strong, sees, lsn: reflects.lsn });
        }
        result
    }

    fn record(&self, began: Duration, shard: &ShardName, what: What) {
        let ended = self.start.elapsed();
        self.lock().push(Event { began, ended, shard: shard.clone(), what });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Event>> {
        self.events.lock().expect("nothing panics while it records")
    }

    /// Judges what was recorded so far; gives every violation that it finds, and what it looked at.
    pub fn check(&self) -> (Counts, Vec<Violation>) {
        check::check(&self.lock())
    }

    /// Judges it, and panics with the violations if there are any.
    pub fn assert_linearizable(&self) -> Counts {
        let (counts, violations) = self.check();
        let text: Vec<String> = violations.iter().take(20).map(Violation::to_string).collect();
        assert!(violations.is_empty(), "{} violations in {counts:?}:\n{}", violations.len(), text.join("\n"));
        counts
    }
}

impl<T> Outcome<T> {
    fn of(error: &ClientError) -> Outcome<T> {
        match error.kind() {
            ErrorKind::Determinate => Outcome::Refused,
            ErrorKind::Indeterminate => Outcome::Unknown,
        }
    }
}
