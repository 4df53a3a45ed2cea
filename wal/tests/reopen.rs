//! Append, flush, stop or crash, open again.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use headwater_protocol::{Epoch, Lsn};
use headwater_wal::{AppendError, Kind, OpenError, Prepared, ReadError, Record, WalOptions, check};
use support::*;

#[test]
fn what_was_flushed_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    assert_eq!(
        (log.replayed.len(), log.wal.epoch(), log.wal.flushed()),
        (0, Epoch::new(1), log.wal.recovered())
    );
    let mut written = Vec::new();
    // Several segments and many rounds of the ring, records of all sizes straddling both.
    for i in 0..300 {
        let change = change(i, (i * 37 % 3000) as usize);
        let lsn = log.append_and_flush(&change);
        written.push((change, lsn));
    }
    assert!(log.wal.flushed() > Lsn::new(4 * SEGMENT_BYTES));
    let cluster_id = log.wal.cluster_id();
    drop(log);

    let log = Log::open(dir.path()).unwrap();
    assert_eq!(log.replayed, written);
    assert_eq!(
        (log.wal.epoch(), log.wal.cluster_id(), log.wal.cluster()),
        (Epoch::new(2), cluster_id, "test")
    );
    assert_eq!(log.wal.oldest(), Lsn::ZERO);
}

/// E3: until the leases given under the epoch before have run out, nothing of the log may be shown.
#[test]
fn a_log_opens_when_the_leases_of_the_epoch_before_have_run_out() {
    let dir = tempfile::tempdir().unwrap();
    let with_lease = |lease| WalOptions { lease, ..options(dir.path()) };
    let leases = [Duration::from_millis(300), Duration::from_millis(20), Duration::ZERO];
    let mut owed = Duration::ZERO;
    for lease in leases {
        let began = Instant::now();
        drop(Log::open_with(with_lease(lease), RING_BYTES).unwrap());
        assert!(began.elapsed() >= owed, "{:?} of {owed:?}", began.elapsed());
        owed = lease * 5 / 4;
    }
}

/// Every RO gets the whole log by its ring.
#[test]
fn a_log_with_a_record_that_the_ring_cannot_carry_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open_with(options(dir.path()), 4 * RING_BYTES).unwrap();
    let lsn = log.append_and_flush(&change(1, RING_BYTES as usize));
    drop(log);
    let refused = Log::open_with(options(dir.path()), RING_BYTES).err().unwrap();
    assert!(
        matches!(refused, OpenError::RingBytes { lsn: at, record_bytes, ring_bytes: RING_BYTES }
            if at == lsn && record_bytes > RING_BYTES),
        "{refused}"
    );
    assert_eq!(Log::open_with(options(dir.path()), 2 * RING_BYTES).unwrap().replayed.len(), 1);
}

#[test]
fn lsns_are_never_used_twice_over_many_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let mut owners: BTreeMap<Lsn, (Epoch, Lsn)> = BTreeMap::new();
    let mut durable = Vec::new();
    for round in 0..12u64 {
        // The ring's size changes from start to start; what counts is that of the epoch before.
        let ring_bytes = RING_BYTES << (round % 6);
        let mut log = Log::open_with(options(dir.path()), ring_bytes).unwrap();
        assert_eq!(log.replayed.iter().map(|(c, _)| number(c)).collect::<Vec<_>>(), durable);
        let start = log.wal.history().current().unwrap().start;
        assert!(start.get().is_multiple_of(SEGMENT_BYTES));
        assert!(
            owners.last_key_value().is_none_or(|(_, (_, end))| *end <= start),
            "{start} was handed out before"
        );
        if round % 3 == 0 {
            log.append_and_flush(&change(round, 100));
            durable.push(round);
        }
        // A ring full that is appended and never flushed: handed out, and lost by the crash.
        if round % 4 != 3 {
            if round % 3 != 0 {
                while log.appender.append(&Prepared::new(&change(1000, 600))) != Err(AppendError::Overloaded)
                {
                }
            }
            owners.insert(start, (log.wal.epoch(), log.wal.appended()));
        } else {
            owners.insert(start, (log.wal.epoch(), log.wal.appended()));
            log.close();
        }
    }
    let report = check(dir.path(), &mut |_, _, _, _| ()).unwrap();
    assert_eq!(report.history.0.len(), 12);
    assert!(report.history.0.windows(2).all(|pair| pair[0].epoch.next() == pair[1].epoch));
}

#[test]
fn a_closed_log_takes_nothing_more_and_says_so_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    log.append(&change(1, 10));
    log.spawn_flusher();
    let end = log.appender.close().unwrap();
    assert_eq!(log.appender.append(&Prepared::new(&change(2, 10))), Err(AppendError::Closed));
    drop(log);
    let mut kinds = Vec::new();
    let report = check(dir.path(), &mut |_, _, info, record| {
        kinds.push(info.kind);
        if *record == Record::Close {
            assert_eq!(info.flushed, info.start, "everything before it was flushed");
        }
    })
    .unwrap();
    assert_eq!(kinds, [Kind::EpochStart, Kind::Append, Kind::Close]);
    assert_eq!((report.closed, report.end, report.records, report.torn), (true, end, 3, None));
}

#[test]
fn stopping_the_flusher_flushes_what_is_appended() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    log.append(&change(1, 10));
    let end = log.append(&change(2, 10));
    let flusher = headwater_wal::spawn_flusher(log.wal.clone(), || {}, |_| {}, |e| panic!("{e}")).unwrap();
    assert!(
        headwater_wal::spawn_flusher(log.wal.clone(), || {}, |_| {}, |_| {}).is_err(),
        "one flusher only"
    );
    flusher.stop();
    assert_eq!(log.wal.flushed(), end);
    assert_eq!(log.appender.append(&Prepared::new(&change(3, 1))), Err(AppendError::Closed));
}

#[test]
fn batches_are_bounded_and_end_with_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let options = WalOptions { segment_bytes: 64 << 20, ..options(dir.path()) };
    let mut log = Log::open_with(options, 64 << 20).unwrap();
    let ends: Vec<Lsn> =
        [3 << 20, 3 << 20, 3 << 20, 9 << 20, 100].map(|bytes| log.append(&change(1, bytes))).into();
    let before = log.wal.flushed();
    log.spawn_flusher();
    wait_until("all is flushed", || log.wal.flushed() == log.wal.appended());
    let last = *ends.last().unwrap();
    let mut batches = Vec::new();
    wait_until("the last batch is announced", || {
        batches.extend(log.announced());
        batches.last() == Some(&last)
    });
    assert_eq!(batches, [ends[1], ends[2], ends[3], ends[4]], "of {ends:?} from {before}");
}

#[test]
fn past_the_ring_an_append_is_refused_and_accepted_again_after_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let record = Prepared::new(&change(1, 900));
    let mut accepted = 0;
    while log.appender.append(&record).is_ok() {
        accepted += 1;
    }
    assert_eq!(accepted, RING_BYTES / record.log_bytes());
    assert_eq!(log.appender.append(&record), Err(AppendError::Overloaded));
    log.flush();
    log.appender.append(&record).unwrap();
}

#[test]
fn a_log_has_one_owner_one_name_and_one_segment_size() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path()).unwrap();
    assert!(matches!(Log::open(dir.path()), Err(OpenError::InUse(_))));
    drop(log);
    let other = WalOptions { cluster: "other".into(), ..options(dir.path()) };
    assert!(matches!(Log::open_with(other, RING_BYTES), Err(OpenError::OtherCluster { .. })));
    let other = WalOptions { segment_bytes: 2 * SEGMENT_BYTES, ..options(dir.path()) };
    assert!(matches!(Log::open_with(other, RING_BYTES), Err(OpenError::SegmentBytes { .. })));
    for (cluster, segment_bytes) in [("", SEGMENT_BYTES), (&*"x".repeat(65), SEGMENT_BYTES), ("test", 65_535)]
    {
        let bad = WalOptions { cluster: cluster.into(), segment_bytes, ..options(dir.path()) };
        assert!(matches!(Log::open_with(bad, RING_BYTES), Err(OpenError::InvalidOptions(_))));
    }
    assert!(Log::open(dir.path()).is_ok(), "nothing was changed by the refusals");
}

#[test]
fn an_unwritable_place_and_an_empty_one_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(check(dir.path(), &mut |_, _, _, _| ()), Err(OpenError::NoLog(_))));
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(Log::open(&file.join("log")), Err(OpenError::Unwritable { .. })));
}

#[test]
fn what_the_state_machine_refuses_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let lsn = log.append_and_flush(&change(1, 10));
    drop(log);
    let refused = headwater_wal::Wal::open(
        options(dir.path()),
        memory(RING_BYTES),
        FIRST_WORD,
        RING_BYTES,
        &mut |_, _| Err("no".into()),
    );
    assert!(matches!(refused, Err(OpenError::Replay { lsn: at, what }) if at == lsn && what == "no"));
}

#[test]
fn flushed_bytes_are_read_back_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let old_end = log.append_and_flush(&change(0, 500));
    drop(log);
    let mut log = Log::open(dir.path()).unwrap();
    let start = log.wal.recovered();
    let end = log.append_and_flush(&change(1, 1000));

    let mut from_ring = vec![0; end.since(start) as usize / 8];
    let mut from_disk = from_ring.clone();
    log.wal.ring().copy_out(start, &mut from_ring).unwrap();
    log.wal.read(start, &mut from_disk).unwrap();
    assert_eq!(from_ring, from_disk);

    let info = log.wal.record_at(start).unwrap();
    assert_eq!((info.kind, info.start, info.end, info.epoch), (Kind::Append, start, end, Epoch::new(2)));
    assert_eq!(log.wal.record_at(Lsn::ZERO).unwrap().kind, Kind::EpochStart);
    assert!(matches!(log.wal.record_at(start.advance(8)), Err(ReadError::NotARecord { .. })));
    // Past the flushed end, past the old epoch's end, not on a word, and absurd.
    for from in [end, end.advance(8), old_end, start.advance(4), Lsn::new(u64::MAX - 7)] {
        assert!(matches!(log.wal.record_at(from), Err(ReadError::OutOfRange { .. })), "{from}");
    }
    log.append(&change(2, 10));
}
