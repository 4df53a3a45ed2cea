use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headwater_protocol::{History, Seqno, ShardName};
use headwater_shard_log::Change;
use headwater_wal::{Appender, Flusher, Prepared, Wal, WalOptions, Words, spawn_flusher};

use super::*;

const RING_BYTES: u64 = 64 << 10;

/// An RW's log whose ring is at the same time the RO's.
struct Rw {
    wal: Arc<Wal>,
    appender: Appender,
    words: Words,
    _flusher: Flusher,
    _dir: tempfile::TempDir,
}

impl Rw {
    fn new() -> Rw {
        let dir = tempfile::tempdir().unwrap();
        let ring: Vec<AtomicU64> = (0..RING_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let words: Words = Arc::new(ring);
        let options = WalOptions {
            dir: dir.path().into(),
            cluster: "test".into(),
            segment_bytes: 64 << 10,
            lease: Duration::ZERO,
        };
        let (wal, appender) = Wal::open(options, words.clone(), 0, RING_BYTES, &mut |_, _| Ok(())).unwrap();
        let flusher = spawn_flusher(wal.clone(), || {}, |_| {}, |error| panic!("{error}")).unwrap();
        Rw { wal, appender, words, _flusher: flusher, _dir: dir }
    }

    fn append(&mut self, seqno: u64) -> Lsn {
        let change = Change::Append {
            shard: ShardName::new("a").unwrap(),
            seqno: Seqno::new(seqno).unwrap(),
            data: Bytes::from_static(b"data"),
        };
        self.appender.append(&Prepared::new(&change)).unwrap()
    }

    fn applier(&self, history: &History) -> Applier {
        let receiver = Receiver::new(self.words.clone(), 0, RING_BYTES, history.clone(), Lsn::ZERO, 0);
        Applier::new(receiver, Applied::default())
    }

    fn word_at(&self, lsn: Lsn) -> &AtomicU64 {
        &(*self.words).as_ref()[(lsn.get() % RING_BYTES / 8) as usize]
    }
}

#[test]
fn s3_nothing_is_applied_past_the_flushed_lsn_in_either_order_of_arrival() {
    let mut rw = Rw::new();
    let (start, first) = (rw.wal.recovered(), rw.append(0));
    let second = rw.append(1);
    let log = ShardLog::new();

    // Bytes first: they are received, and wait.
    let mut applier = rw.applier(rw.wal.history());
    assert!(applier.step(second, start, &log).unwrap());
    assert_eq!((applier.received(), applier.applied().lsn), (second, start));
    assert!(log.head("a").is_none());
    assert!(!applier.step(second, start, &log).unwrap());
    assert!(applier.step(second, first, &log).unwrap());
    assert_eq!((applier.applied().lsn, log.head("a").unwrap().0.seqno), (first, Seqno::ZERO));

    // The flushed LSN first: it gives nothing without the bytes.
    let log = ShardLog::new();
    let mut applier = rw.applier(rw.wal.history());
    applier.step(start, second, &log).unwrap();
    assert_eq!((applier.received(), applier.applied().lsn), (start, start));
    assert!(applier.step(second, second, &log).unwrap());
    assert_eq!(applier.applied().lsn, second);
}

#[test]
fn s3_a_high_flushed_lsn_over_bytes_of_another_epoch_applies_nothing() {
    let mut rw = Rw::new();
    let start = rw.wal.recovered();
    let end = rw.append(0);
    // The RO knows that the log goes on in a later epoch; what lies in its ring is of the earlier one.
    let mut history = rw.wal.history().clone();
    let mut later = history.0[0];
    later.epoch = later.epoch.next();
    history.0[0] = later;
    let log = ShardLog::new();
    let mut applier = rw.applier(&history);
    let _ = applier.step(end, end.advance(1 << 20), &log);
    assert_eq!(applier.applied().lsn, Lsn::ZERO);
    assert!(log.is_empty(), "applied bytes of an epoch that is over");
    let _ = start;
}

#[test]
fn s2_a_record_that_does_not_verify_is_waited_for() {
    let mut rw = Rw::new();
    let start = rw.wal.recovered();
    let end = rw.append(0);
    let log = ShardLog::new();
    let mut applier = rw.applier(rw.wal.history());
    applier.step(start, start, &log).unwrap();
    // Torn: its last word has not arrived, though the tail says so.
    let last = rw.word_at(Lsn::new(end.get() - 8));
    let word = last.swap(!0, Ordering::SeqCst);
    assert!(!applier.step(end, end, &log).unwrap());
    assert!(log.is_empty());
    last.store(word, Ordering::SeqCst);
    assert!(applier.step(end, end, &log).unwrap());
    assert_eq!(log.head("a").unwrap().0.seqno, Seqno::ZERO);
}

#[test]
fn e2_what_is_pending_is_dropped_with_the_link() {
    let mut rw = Rw::new();
    let first = rw.append(0);
    let second = rw.append(1);
    let log = ShardLog::new();
    let mut applier = rw.applier(rw.wal.history());
    applier.step(second, first, &log).unwrap();
    let stands = applier.applied();
    assert_eq!(stands.lsn, first);
    drop(applier);
    // The next link goes on from what was applied.
    let receiver =
        Receiver::new(rw.words.clone(), 0, RING_BYTES, rw.wal.history().clone(), stands.lsn, stands.chain);
    let mut applier = Applier::new(receiver, stands);
    applier.step(second, second, &log).unwrap();
    assert_eq!(log.head("a").unwrap().0.seqno, Seqno::new(1).unwrap());
}
