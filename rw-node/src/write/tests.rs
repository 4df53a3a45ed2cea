use std::sync::atomic::AtomicU64;
use std::time::Duration;

use headwater_wal::{Wal, WalOptions, Words};

use super::*;

/// A writer whose log is never flushed unless the test does what a flush would.
struct Unflushed {
    writer: Writer,
    log: Arc<ShardLog>,
    wal: Arc<Wal>,
    _dir: tempfile::TempDir,
}

fn unflushed(in_flight_max: usize, ring_bytes: u64) -> Unflushed {
    let dir = tempfile::tempdir().unwrap();
    let ring: Vec<AtomicU64> = (0..ring_bytes / 8).map(|_| AtomicU64::new(0)).collect();
    let words: Words = Arc::new(ring);
    let options = WalOptions {
        dir: dir.path().into(),
        cluster: "test".into(),
        segment_bytes: 64 << 10,
        lease: Duration::ZERO,
    };
    let (wal, appender) = Wal::open(options, words, 0, ring_bytes, &mut |_, _| Ok(())).unwrap();
    let log = Arc::new(ShardLog::new());
    Unflushed { writer: Writer::new(log.clone(), appender, in_flight_max, 4096), log, wal, _dir: dir }
}

impl Unflushed {
    fn cas(&self, shard: &str, expected: Option<u64>) -> Decided {
        let expected = expected.map(|n| Seqno::new(n).unwrap());
        self.writer.compare_and_set(name(shard), expected, Bytes::from_static(b"x"))
    }

    /// What commit does with the log, without the disk.
    fn make_visible(&self) {
        let mut visible = Vec::new();
        for record in self.writer.take_flushed(self.wal.appended()) {
            let (Change::Append { shard, .. } | Change::Truncate { shard, .. }) = &record.change;
            visible.push((shard.clone(), record.lsn));
            self.log.apply(record.change, record.lsn).unwrap();
        }
        self.writer.made_visible(&visible);
    }
}

fn name(shard: &str) -> ShardName {
    ShardName::new(shard).unwrap()
}

fn seqno(n: u64) -> Seqno {
    Seqno::new(n).unwrap()
}

#[test]
fn w1_a_write_builds_on_one_that_is_not_flushed() {
    let test = unflushed(100, 64 << 10);
    let mut last = Lsn::ZERO;
    for n in 0..5_u64 {
        let decided = test.cas("a", n.checked_sub(1));
        assert_eq!(decided.response, Response::Committed { seqno: seqno(n), lsn: decided.after });
        assert!(decided.after > last, "a shard's order is the log's");
        last = decided.after;
    }
    assert!(test.log.head("a").is_none(), "nothing is visible before it is flushed");
    test.make_visible();
    assert_eq!(test.log.head("a").unwrap().0.seqno, seqno(4));
    assert!(test.writer.state.lock().tentative.is_empty(), "an idle shard costs the writer nothing");
}

#[test]
fn w4_what_rests_on_an_unflushed_record_waits_for_it() {
    let test = unflushed(100, 64 << 10);
    let first = test.cas("a", None).after;
    let mismatch = test.cas("a", None);
    assert_eq!(mismatch.response, Response::Mismatch { head: Some(Seqno::ZERO), lsn: first });
    assert_eq!(mismatch.after, first);
    let above = test.writer.truncate(name("a"), seqno(1));
    assert_eq!(above.response, Response::Error(Error::CutAboveHead { head: Seqno::ZERO }));
    assert_eq!(above.after, first);
    let nothing = test.writer.truncate(name("a"), Seqno::ZERO);
    assert_eq!((nothing.response, nothing.after), (Response::Truncated { removed: 0, lsn: first }, first));
    let begun = test.writer.begin(name("a"), seqno(7), Bytes::new());
    assert_eq!(
        (begun.response, begun.after),
        (Response::Error(Error::NotEmpty { head: Seqno::ZERO }), first)
    );
    // Once it is visible there is nothing to wait for, but the position still covers what beat the writer.
    test.make_visible();
    assert_eq!(test.cas("a", None).response, Response::Mismatch { head: Some(Seqno::ZERO), lsn: first });
}

#[test]
fn the_contract_of_writes() {
    let test = unflushed(100, 64 << 10);
    let never = test.cas("a", Some(0));
    assert_eq!(never.response, Response::Mismatch { head: None, lsn: Lsn::ZERO });
    let unknown = test.writer.truncate(name("a"), Seqno::ZERO);
    assert_eq!(unknown.response, Response::Error(Error::UnknownShard));
    let begun = test.writer.begin(name("a"), Seqno::MAX, Bytes::new());
    assert!(matches!(begun.response, Response::Committed { seqno, .. } if seqno == Seqno::MAX));
    let past = test.writer.compare_and_set(name("a"), Some(Seqno::MAX), Bytes::new());
    assert!(matches!(past.response, Response::Error(Error::InvalidArgument(_))));
    let long = test.writer.compare_and_set(name("b"), None, Bytes::from(vec![0; 4097]));
    assert!(matches!(long.response, Response::Error(Error::InvalidArgument(_))));
    for n in 0..10 {
        assert!(matches!(test.cas("c", u64::checked_sub(n, 1)).response, Response::Committed { .. }));
    }
    let cut = test.writer.truncate(name("c"), seqno(9));
    assert_eq!(cut.response, Response::Truncated { removed: 9, lsn: cut.after });
    test.make_visible();
    let bounds = test.log.bounds("c").unwrap();
    assert_eq!((bounds.lo, bounds.head), (seqno(9), seqno(9)));
}

#[test]
fn w6_past_the_bound_a_write_is_refused_and_later_taken() {
    let test = unflushed(3, 64 << 10);
    for n in 0..3 {
        assert!(matches!(test.cas("a", u64::checked_sub(n, 1)).response, Response::Committed { .. }));
    }
    let refused = test.cas("a", Some(2));
    assert!(matches!(refused.response, Response::Error(Error::Overloaded(_))));
    assert_eq!(refused.after, Lsn::ZERO, "a refusal does not wait");
    test.make_visible();
    assert!(
        matches!(test.cas("a", Some(2)).response, Response::Committed { .. }),
        "the refused write left no trace"
    );
}

#[test]
fn w6_the_ring_is_never_filled_past_what_is_flushed() {
    let test = unflushed(usize::MAX, 4096);
    let mut taken = 0;
    while let Response::Committed { .. } = test.cas("a", u64::checked_sub(taken, 1)).response {
        taken += 1;
    }
    assert!(matches!(test.cas("a", Some(taken - 1)).response, Response::Error(Error::Overloaded(_))));
    assert!(test.wal.appended().since(test.wal.flushed()) <= 4096);
}
