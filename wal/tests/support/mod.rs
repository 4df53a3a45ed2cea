//! What the tests of the log share.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "it belongs to tests")]

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use headwater_protocol::{Lsn, Seqno, ShardName};
use headwater_shard_log::Change;
use headwater_wal::{Appender, Flusher, OpenError, Prepared, Wal, WalOptions, Words, spawn_flusher};

pub(crate) const SEGMENT_BYTES: u64 = 64 << 10;
pub(crate) const RING_BYTES: u64 = 4096;
pub(crate) const FIRST_WORD: usize = 5;

/// Far longer than anything here takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn memory(ring_bytes: u64) -> Words {
    Arc::new((0..FIRST_WORD + ring_bytes as usize / 8).map(|_| AtomicU64::new(0)).collect::<Vec<_>>())
}

pub(crate) fn options(dir: &Path) -> WalOptions {
    WalOptions {
        dir: dir.to_owned(),
        cluster: "test".into(),
        segment_bytes: SEGMENT_BYTES,
        lease: Duration::ZERO,
    }
}

/// The `number`th change: its content tells which it is.
pub(crate) fn change(number: u64, data_bytes: usize) -> Change {
    let shard = ShardName::new(&format!("shard-{}", number % 3)).unwrap();
    let seqno = Seqno::new(number).unwrap();
    match number % 5 {
        4 => Change::Truncate { shard, cut: seqno },
        _ => Change::Append { shard, seqno, data: vec![number as u8 | 1; data_bytes].into() },
    }
}

pub(crate) fn number(change: &Change) -> u64 {
    match change {
        Change::Append { seqno, .. } => seqno.get(),
        Change::Truncate { cut, .. } => cut.get(),
    }
}

/// An open log, with what it replayed.
pub(crate) struct Log {
    pub(crate) wal: Arc<Wal>,
    pub(crate) appender: Appender,
    pub(crate) replayed: Vec<(Change, Lsn)>,
    pub(crate) words: Words,
    flusher: Option<(Flusher, mpsc::Receiver<Lsn>)>,
}

impl Log {
    pub(crate) fn open(dir: &Path) -> Result<Log, OpenError> {
        Log::open_with(options(dir), RING_BYTES)
    }

    pub(crate) fn open_with(options: WalOptions, ring_bytes: u64) -> Result<Log, OpenError> {
        let words = memory(ring_bytes);
        let mut replayed = Vec::new();
        let (wal, appender) =
            Wal::open(options, words.clone(), FIRST_WORD, ring_bytes, &mut |change, lsn| {
                replayed.push((change, lsn));
                Ok(())
            })?;
        Ok(Log { wal, appender, replayed, words, flusher: None })
    }

    pub(crate) fn append(&mut self, change: &Change) -> Lsn {
        self.appender.append(&Prepared::new(change)).unwrap()
    }

    pub(crate) fn spawn_flusher(&mut self) {
        let (flushed, received) = mpsc::channel();
        let on_flushed = move |lsn| {
            let _ = flushed.send(lsn);
        };
        let flusher = spawn_flusher(self.wal.clone(), || {}, on_flushed, |error| panic!("{error}")).unwrap();
        self.flusher = Some((flusher, received));
    }

    /// Waits until all that is appended is flushed; the flusher is started if it was not.
    pub(crate) fn flush(&mut self) {
        if self.flusher.is_none() {
            self.spawn_flusher();
        }
        let (_, flushed) = self.flusher.as_ref().unwrap();
        while self.wal.flushed() < self.wal.appended() {
            flushed.recv_timeout(DEADLINE).unwrap();
        }
    }

    pub(crate) fn append_and_flush(&mut self, change: &Change) -> Lsn {
        let lsn = self.append(change);
        self.flush();
        lsn
    }

    /// Every flushed LSN that was announced and not yet waited for.
    pub(crate) fn announced(&self) -> Vec<Lsn> {
        self.flusher.as_ref().unwrap().1.try_iter().collect()
    }

    pub(crate) fn close(mut self) {
        self.flush();
        self.appender.close().unwrap();
    }
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < DEADLINE, "waited too long until {what}");
        std::thread::yield_now();
    }
}
