//! The RO's side: the RW's ring, copied into another memory word by word, torn, stale or whole.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use headwater_protocol::{History, Lsn};
use headwater_wal::{Flaw, Received, Receiver, Record, Words};
use support::*;

fn receiver(words: &Words, history: History, position: Lsn, chain: u64) -> Receiver {
    Receiver::new(words.clone(), FIRST_WORD, RING_BYTES, history, position, chain)
}

fn word(ring: &Words, lsn: Lsn) -> &AtomicU64 {
    &(**ring).as_ref()[FIRST_WORD + (lsn.get() % RING_BYTES) as usize / 8]
}

/// What the RW does from afar: the bytes `[from, to)` into the same place of the RO's ring.
fn ship(log: &Log, ro: &Words, from: Lsn, to: Lsn) {
    let mut words = vec![0; to.since(from) as usize / 8];
    log.wal.ring().copy_out(from, &mut words).expect("the newest bytes");
    for (i, value) in words.into_iter().enumerate() {
        word(ro, from.advance(i as u64 * 8)).store(value, Ordering::Relaxed);
    }
}

fn changes(received: &[Received]) -> Vec<u64> {
    let change = |r: &Received| match &r.record {
        Record::Change(change) => Some(number(change)),
        _ => None,
    };
    received.iter().filter_map(change).collect()
}

#[test]
fn records_arrive_in_order_over_many_rounds_of_the_ring() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let ro = memory(RING_BYTES);
    let mut receiver = receiver(&ro, log.wal.history().clone(), Lsn::ZERO, 0);
    let mut received = Vec::new();
    for i in 0..200 {
        let change = change(i, (i * 53 % 1500) as usize);
        let end = log.append_and_flush(&change);
        ship(&log, &ro, receiver.received(), end);
        while let Some(next) = receiver.next(end).unwrap() {
            assert_eq!(log.wal.record_at(next.start).unwrap().chain, next.chain);
            received.push(next);
        }
        assert_eq!(receiver.received(), end);
        assert_eq!(received.last().unwrap().record, Record::Change(change));
    }
    assert_eq!(changes(&received), (0..200).collect::<Vec<_>>());
    assert!(matches!(&received[0].record, Record::EpochStart(start, id, RING_BYTES)
        if Some(start) == log.wal.history().current() && *id == log.wal.cluster_id()));
    assert!(received.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn nothing_past_the_tail_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let ro = memory(RING_BYTES);
    let (start, end) = (log.wal.recovered(), log.append(&change(1, 100)));
    ship(&log, &ro, Lsn::ZERO, end);
    let mut receiver = receiver(&ro, log.wal.history().clone(), Lsn::ZERO, 0);
    assert!(receiver.next(Lsn::ZERO).unwrap().is_none());
    assert!(receiver.next(end).unwrap().is_some());
    for tail in (start.get()..end.get()).step_by(8) {
        assert!(receiver.next(Lsn::new(tail)).unwrap().is_none(), "{tail} of {end}");
    }
    assert_eq!(receiver.next(end).unwrap().unwrap().end, end);
    assert!(receiver.next(end).unwrap().is_none());
}

#[test]
fn no_torn_or_stale_word_is_accepted_and_the_whole_record_is_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let ro = memory(RING_BYTES);
    let mut receiver = receiver(&ro, log.wal.history().clone(), Lsn::ZERO, 0);
    // A round of the ring first, so that what is stale is records of this very log.
    let mut end = log.wal.recovered();
    ship(&log, &ro, Lsn::ZERO, end);
    receiver.next(end).unwrap().unwrap();
    for i in 0..12 {
        let start = end;
        end = log.append_and_flush(&change(5 * i, 800));
        let words = end.since(start) / 8;
        for missing in 0..words {
            // All but one word have arrived; that one is of the round before.
            let stale = word(&ro, start.advance(missing * 8)).load(Ordering::Relaxed);
            ship(&log, &ro, start, end);
            let fresh = word(&ro, start.advance(missing * 8)).swap(stale, Ordering::Relaxed);
            if stale != fresh {
                let refused = receiver.next(end).unwrap_err();
                assert_eq!(refused.at, start, "word {missing}: {}", refused.what);
                assert_eq!(receiver.received(), start);
            }
            // The ring as it was before, for the next word's turn.
            for i in 0..words {
                word(&ro, start.advance(i * 8)).store(0, Ordering::Relaxed);
            }
        }
        ship(&log, &ro, start, end);
        assert_eq!(receiver.next(end).unwrap().unwrap().end, end);
    }
}

#[test]
fn an_overwritten_record_is_not_taken_for_the_one_expected() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let ro = memory(RING_BYTES);
    let mut receiver = receiver(&ro, log.wal.history().clone(), Lsn::ZERO, 0);
    let mut end = log.wal.recovered();
    ship(&log, &ro, Lsn::ZERO, end);
    receiver.next(end).unwrap().unwrap();
    for _ in 0..8 {
        let start = end;
        end = log.append_and_flush(&change(1, 900));
        ship(&log, &ro, start, end);
    }
    let refused = receiver.next(end).unwrap_err();
    assert_eq!(refused.at, log.wal.recovered());
}

#[test]
fn the_jump_to_the_next_epoch_is_followed_and_its_start_believed_only_if_the_history_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let ro = memory(RING_BYTES);
    let mut log = Log::open(dir.path()).unwrap();
    let old_end = log.append_and_flush(&change(0, 50));
    ship(&log, &ro, Lsn::ZERO, old_end);
    let mut first = receiver(&ro, log.wal.history().clone(), Lsn::ZERO, 0);
    while first.next(old_end).unwrap().is_some() {}
    let chain = first.chain();
    drop(log);
    let mut log = Log::open(dir.path()).unwrap();
    let start = log.wal.history().current().unwrap().start;
    assert!(start > old_end);
    let end = log.append_and_flush(&change(1, 50));

    let mut second = receiver(&ro, log.wal.history().clone(), old_end, chain);
    assert_eq!(second.received(), start, "after a jump: the next epoch's start");
    assert!(second.next(old_end).unwrap().is_none(), "the tail is still the old one");
    assert!(second.next(end).is_err(), "nothing of the new epoch has arrived");
    ship(&log, &ro, start, end);
    assert!(matches!(second.next(end).unwrap().unwrap().record, Record::EpochStart(..)));
    assert_eq!(changes(&[second.next(end).unwrap().unwrap()]), [1]);

    // The same bytes under a history that differs in one word are refused.
    let what = |history: History, chain| receiver(&ro, history, old_end, chain).next(end).unwrap_err().what;
    let with = |edit: fn(&mut headwater_protocol::EpochStart)| {
        let mut history = log.wal.history().clone();
        edit(history.0.last_mut().unwrap());
        history
    };
    let later = with(|e| e.epoch = e.epoch.next());
    assert!(matches!(what(later, chain), Flaw::Epoch { .. }));
    assert_eq!(what(with(|e| e.previous_chain ^= 1), chain), Flaw::History);
    assert_eq!(what(log.wal.history().clone(), chain ^ 1), Flaw::Chain);
    // One that does not know of the new epoch finds no record of the old one there.
    let old = History(log.wal.history().0[..1].to_vec());
    ship(&log, &ro, start, end);
    assert!(receiver(&ro, old, old_end, chain).next(end).is_err());
}
