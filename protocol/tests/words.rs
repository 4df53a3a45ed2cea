//! Positions, names, errors and histories.

mod common;

use common::error;
use headwater_protocol::limits::SHARD_NAME_BYTES_MAX;
use headwater_protocol::{
    Epoch, EpochStart, Error, ErrorKind, History, InvalidName, InvalidSeqno, Lsn, Seqno, Served, ShardName,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn only_an_unknown_outcome_is_indeterminate(error in error()) {
        prop_assert_eq!(error.kind() == ErrorKind::Indeterminate, matches!(error, Error::Unknown(_)));
        prop_assert!(!(error.is_transient() && error.kind() == ErrorKind::Indeterminate));
        prop_assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_name_has_its_bounds() {
    assert_eq!(ShardName::new(""), Err(InvalidName::Empty));
    assert_eq!(ShardName::new("n").unwrap().as_str(), "n");
    assert!(ShardName::new(&"n".repeat(SHARD_NAME_BYTES_MAX)).is_ok());
    let too_long = SHARD_NAME_BYTES_MAX + 1;
    assert_eq!(ShardName::new(&"n".repeat(too_long)), Err(InvalidName::TooLong(too_long)));
    assert_eq!(ShardName::from_bytes(b"ab\xff"), Err(InvalidName::NotUtf8(2)));
}

#[test]
fn a_seqno_has_its_bounds() {
    let last = Seqno::new(i64::MAX as u64).unwrap();
    assert_eq!((last, last.next()), (Seqno::MAX, None));
    assert_eq!(Seqno::ZERO.next().map(Seqno::get), Some(1));
    assert_eq!(Seqno::new(1 << 63), Err(InvalidSeqno(1 << 63)));
}

#[test]
fn positions_are_measured_from_earlier_to_later() {
    assert_eq!(Lsn::new(24).since(Lsn::new(8)), 16);
    assert_eq!(Lsn::new(8).since(Lsn::new(24)), 0);
    assert_eq!(Lsn::new(8).advance(16), Lsn::new(24));
}

#[test]
#[should_panic(expected = "last LSN")]
fn no_position_follows_the_last() {
    let _ = Lsn::new(u64::MAX).advance(8);
}

#[test]
fn ways_of_serving_have_their_codes() {
    for (code, served) in Served::ALL.into_iter().enumerate() {
        assert_eq!(Served::from_code(code as u8), Some(served));
        assert_eq!(serde_json::to_string(&served).unwrap(), format!("{:?}", served.name()));
    }
    assert_eq!(Served::from_code(Served::ALL.len() as u8), None);
}

/// Two epochs that follow each other at once, and one that begins past a gap.
fn history() -> History {
    let start = |epoch, start, previous_end| EpochStart {
        epoch: Epoch::new(epoch),
        start: Lsn::new(start),
        previous_end: Lsn::new(previous_end),
        previous_chain: 0,
        lease_ms: 500,
    };
    History(vec![start(1, 0, 0), start(2, 100 << 3, 100 << 3), start(5, 300 << 3, 200 << 3)])
}

#[test]
fn a_history_jumps_where_an_epoch_begins_past_the_end() {
    let history = history();
    let next = |end: u64| history.next_start(Lsn::new(end << 3)).get() >> 3;
    assert_eq!([next(0), next(100), next(150), next(200), next(300)], [0, 100, 150, 300, 300]);
    assert_eq!(history.current().map(|start| start.epoch), Some(Epoch::new(5)));
    assert_eq!(History::default().next_start(Lsn::new(8)), Lsn::new(8));
}

#[test]
fn a_record_belongs_to_the_epoch_it_begins_in() {
    let history = history();
    let epoch = |start: u64| history.epoch_at(Lsn::new(start << 3)).map(|epoch| epoch.epoch.get());
    assert_eq!([epoch(0), epoch(99), epoch(100), epoch(299), epoch(300)], [1, 1, 2, 2, 5].map(Some));
    let end = |start: u64| history.end_of_epoch_at(Lsn::new(start << 3)).map(|end| end.get() >> 3);
    assert_eq!([end(0), end(100), end(300)], [Some(100), Some(200), None]);
    assert_eq!(History::default().epoch_at(Lsn::ZERO), None);
}
