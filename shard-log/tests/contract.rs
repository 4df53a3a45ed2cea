//! The contract, against a model that does everything the obvious way.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use bytes::Bytes;
use headwater_protocol::{Entry, Lsn, Seqno, ShardName};
use headwater_shard_log::{Applied, Bounds, Change, Scan, ShardLog, Violation};
use proptest::prelude::*;

const MAX: u64 = i64::MAX as u64;

fn seqno(n: u64) -> Seqno {
    Seqno::new(n).unwrap()
}

fn name(shard: &str) -> ShardName {
    ShardName::new(shard).unwrap()
}

fn append(shard: &str, n: u64, data: &[u8]) -> Change {
    Change::Append { shard: name(shard), seqno: seqno(n), data: Bytes::copy_from_slice(data) }
}

fn truncate(shard: &str, cut: u64) -> Change {
    Change::Truncate { shard: name(shard), cut: seqno(cut) }
}

fn log(changes: impl IntoIterator<Item = Change>) -> ShardLog {
    let log = ShardLog::new();
    for (i, change) in changes.into_iter().enumerate() {
        log.apply(change, Lsn::new(8 * (i as u64 + 1))).unwrap();
    }
    log
}

fn seqnos(scan: &Scan) -> Vec<u64> {
    scan.entries.iter().map(|entry| entry.seqno.get()).collect()
}

#[test]
fn a_shard_never_written_is_none() {
    let log = ShardLog::new();
    assert_eq!(log.bounds("a"), None);
    assert_eq!(log.head("a"), None);
    assert_eq!(log.scan("a", Seqno::ZERO, 10, 10), None);
    assert!(log.is_empty());
    let violation = log.apply(truncate("a", 0), Lsn::new(8)).unwrap_err();
    assert_eq!(violation, Violation::NeverWritten { shard: name("a") });
    assert!(log.is_empty(), "a refused change leaves nothing behind");
}

#[test]
fn an_append_goes_one_past_the_head() {
    let log = log([append("a", 0, b""), append("a", 1, b"x")]);
    for n in [0, 1, 3, MAX] {
        let violation = log.apply(append("a", n, b""), Lsn::new(24)).unwrap_err();
        assert_eq!(violation, Violation::NotNext { shard: name("a"), seqno: seqno(n), head: seqno(1) });
    }
    assert_eq!(log.bounds("a"), Some(Bounds { lo: seqno(0), head: seqno(1), lsn: Lsn::new(16) }));
    assert_eq!(log.head("a").unwrap().0, Entry { seqno: seqno(1), data: "x".into() });
}

#[test]
fn an_imported_shard_begins_anywhere() {
    let log = log([append("a", 7, b"x")]);
    assert_eq!(log.bounds("a"), Some(Bounds { lo: seqno(7), head: seqno(7), lsn: Lsn::new(8) }));
    assert_eq!(seqnos(&log.scan("a", Seqno::ZERO, 10, 10).unwrap()), [7]);
}

#[test]
fn nothing_follows_the_largest_seqno() {
    let log = log([append("a", MAX - 1, b""), append("a", MAX, b"")]);
    assert_eq!(seqnos(&log.scan("a", Seqno::ZERO, u32::MAX, u32::MAX).unwrap()), [MAX - 1, MAX]);
    let violation = log.apply(append("a", MAX, b""), Lsn::new(24)).unwrap_err();
    assert_eq!(violation, Violation::NotNext { shard: name("a"), seqno: seqno(MAX), head: seqno(MAX) });
    assert_eq!(log.apply(truncate("a", MAX), Lsn::new(24)), Ok(Applied { removed: 1 }));
    assert_eq!(seqnos(&log.scan("a", seqno(MAX), 1, 0).unwrap()), [MAX]);
}

#[test]
fn a_truncate_removes_what_is_below_and_never_the_head() {
    let log = log((0..5).map(|n| append("a", n, b"xy")));
    let violation = log.apply(truncate("a", 5), Lsn::new(48)).unwrap_err();
    assert_eq!(violation, Violation::PastHead { shard: name("a"), cut: seqno(5), head: seqno(4) });
    assert_eq!((log.entries(), log.data_bytes()), (5, 10));
    assert_eq!(log.apply(truncate("a", 3), Lsn::new(48)), Ok(Applied { removed: 3 }));
    assert_eq!(log.apply(truncate("a", 1), Lsn::new(56)), Ok(Applied { removed: 0 }));
    assert_eq!(log.bounds("a"), Some(Bounds { lo: seqno(3), head: seqno(4), lsn: Lsn::new(56) }));
    assert_eq!(log.apply(truncate("a", 4), Lsn::new(64)), Ok(Applied { removed: 1 }));
    assert_eq!((log.entries(), log.data_bytes()), (1, 2));
}

#[test]
fn scans_stop_at_either_cap_and_say_so() {
    let log = log((0..5).map(|n| append("a", n, b"1234")));
    let scan = |from, limit, bytes_max| {
        let scan = log.scan("a", seqno(from), limit, bytes_max).unwrap();
        (seqnos(&scan), scan.more)
    };
    assert_eq!(scan(0, 10, 100), (vec![0, 1, 2, 3, 4], false));
    assert_eq!(scan(3, 2, 8), (vec![3, 4], false), "both caps just suffice");
    assert_eq!(scan(2, 2, 100), (vec![2, 3], true));
    assert_eq!(scan(2, 10, 11), (vec![2, 3], true));
    assert_eq!(scan(4, 10, 0), (vec![4], false), "one is given however large");
    assert_eq!(scan(2, 10, 3), (vec![2], true));
    assert_eq!(scan(4, 0, 100), (vec![], true));
    assert_eq!(scan(5, 10, 100), (vec![], false));
    assert_eq!(scan(MAX, 0, 0), (vec![], false));
}

#[test]
fn reads_share_the_bytes() {
    let data = Bytes::from(vec![7; 1000]);
    let log = log([Change::Append { shard: name("a"), seqno: Seqno::ZERO, data: data.clone() }]);
    assert_eq!(log.head("a").unwrap().0.data.as_ptr(), data.as_ptr());
    assert_eq!(log.scan("a", Seqno::ZERO, 1, 1).unwrap().entries[0].data.as_ptr(), data.as_ptr());
}

#[test]
fn names_are_paged_in_order() {
    let log = log(["b", "a/2", "a", "a/1", "a0", "é", "a/10"].map(|shard| append(shard, 0, b"")));
    let shards = |prefix, after, limit| {
        let (names, more) = log.shards(prefix, after, limit);
        (names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>().join(" "), more)
    };
    assert_eq!(shards("", None, 10), ("a a/1 a/10 a/2 a0 b é".into(), false));
    assert_eq!(shards("a/", None, 3), ("a/1 a/10 a/2".into(), false));
    assert_eq!(shards("a/", None, 2), ("a/1 a/10".into(), true));
    assert_eq!(shards("a/", Some("a/10"), 2), ("a/2".into(), false));
    assert_eq!(shards("a/", Some("a"), 1), ("a/1".into(), true), "after something before the prefix");
    assert_eq!(shards("a/", Some("b"), 9), ("".into(), false), "after everything with the prefix");
    assert_eq!(shards("", Some("a/11"), 2), ("a/2 a0".into(), true), "after a name that is none");
    assert_eq!(shards("c", None, 9), ("".into(), false));
    assert_eq!(shards("a", None, 0), ("".into(), true));
}

#[test]
fn equal_states_have_equal_digests_whatever_led_there() {
    let direct = log([append("b", 2, b"x"), append("b", 3, b"y"), append("a", 0, b"z")]);
    let roundabout = log([
        append("a", 0, b"z"),
        append("b", 1, b"w"),
        append("b", 2, b"x"),
        append("b", 3, b"y"),
        truncate("b", 2),
    ]);
    assert_eq!(direct.digest(), roundabout.digest());
    let others = [
        log([append("b", 2, b"x"), append("b", 3, b"y"), append("a", 0, b"Z")]),
        log([append("b", 3, b"x"), append("b", 4, b"y"), append("a", 0, b"z")]),
        log([append("b", 2, b"x"), append("b", 3, b"y"), append("c", 0, b"z")]),
        log([append("b", 2, b"x"), append("b", 3, b"y")]),
        log([append("b", 2, b"x"), append("b", 3, b"y"), append("b", 4, b""), append("a", 0, b"z")]),
        ShardLog::new(),
    ];
    for other in others {
        assert_ne!(other.digest(), direct.digest());
    }
}

/// One operation; seqnos are relative to the shard's head, so that many of them are accepted.
#[derive(Clone, Debug)]
enum Op {
    Append { shard: String, first: u64, offset: i64, data: Vec<u8> },
    Truncate { shard: String, offset: i64 },
    Scan { shard: String, offset: i64, limit: u32, bytes_max: u32 },
    Shards { prefix: String, after: Option<String>, limit: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let shard = "[ab]{1,2}";
    let first = prop_oneof![Just(0), 0..5u64, Just(MAX - 3), Just(MAX)];
    let offset = prop_oneof![8 => Just(1i64), 1 => -3..5i64];
    let data = prop::collection::vec(any::<u8>(), 0..9);
    prop_oneof![
        8 => (shard, first, offset, data).prop_map(|(shard, first, offset, data)| Op::Append { shard, first, offset, data }),
        2 => (shard, -6..3i64).prop_map(|(shard, offset)| Op::Truncate { shard, offset }),
        3 => (shard, -9..3i64, prop_oneof![0..9u32, Just(u32::MAX)], 0..40u32)
            .prop_map(|(shard, offset, limit, bytes_max)| Op::Scan { shard, offset, limit, bytes_max }),
        1 => ("[ab]{0,2}", prop::option::of("[abc]{1,2}"), 0..8u32)
            .prop_map(|(prefix, after, limit)| Op::Shards { prefix, after, limit }),
    ]
}

type Entries = Vec<(u64, Vec<u8>)>;

#[derive(Default)]
struct Model {
    shards: BTreeMap<String, (BTreeMap<u64, Vec<u8>>, Lsn)>,
}

impl Model {
    fn head(&self, shard: &str) -> Option<u64> {
        Some(*self.shards.get(shard)?.0.last_key_value()?.0)
    }

    /// `offset` from the head, as far as there are seqnos.
    fn near_head(&self, shard: &str, offset: i64) -> u64 {
        self.head(shard).unwrap_or(0).saturating_add_signed(offset).min(MAX)
    }

    fn append(&mut self, shard: &str, n: u64, data: &[u8], lsn: Lsn) -> bool {
        let accepted = self.head(shard).is_none_or(|head| head + 1 == n);
        if accepted {
            let (entries, last) = self.shards.entry(shard.to_owned()).or_default();
            entries.insert(n, data.to_vec());
            *last = lsn;
        }
        accepted
    }

    fn truncate(&mut self, shard: &str, cut: u64, lsn: Lsn) -> Option<u64> {
        self.head(shard).filter(|&head| cut <= head)?;
        let (entries, last) = self.shards.get_mut(shard)?;
        let before = entries.len();
        entries.retain(|&n, _| n >= cut);
        *last = lsn;
        Some((before - entries.len()) as u64)
    }

    fn scan(&self, shard: &str, from: u64, limit: u32, bytes_max: u32) -> Option<(Entries, bool)> {
        let (entries, _) = self.shards.get(shard)?;
        let all: Vec<_> =
            entries.iter().filter(|(n, _)| **n >= from).map(|(n, data)| (*n, data.clone())).collect();
        let mut given = all.clone();
        given.truncate(limit as usize);
        while given.len() > 1 && given.iter().map(|(_, data)| data.len()).sum::<usize>() > bytes_max as usize
        {
            given.pop();
        }
        let more = given.len() < all.len();
        Some((given, more))
    }

    fn shards(&self, prefix: &str, after: Option<&str>, limit: u32) -> (Vec<String>, bool) {
        let matching =
            |name: &&String| name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after);
        let all: Vec<_> = self.shards.keys().filter(matching).cloned().collect();
        let given: Vec<_> = all.iter().take(limit as usize).cloned().collect();
        let more = given.len() < all.len();
        (given, more)
    }
}

proptest! {
    #[test]
    fn does_what_the_model_does(ops in prop::collection::vec(op(), 1..80)) {
        let (log, mut model) = (ShardLog::new(), Model::default());
        for (i, op) in ops.into_iter().enumerate() {
            let lsn = Lsn::new(8 * (i as u64 + 1));
            match op {
                Op::Append { shard, first, offset, data } => {
                    let n = if model.head(&shard).is_some() { model.near_head(&shard, offset) } else { first };
                    let applied = log.apply(append(&shard, n, &data), lsn);
                    prop_assert_eq!(applied.is_ok(), model.append(&shard, n, &data, lsn));
                }
                Op::Truncate { shard, offset } => {
                    let cut = model.near_head(&shard, offset);
                    let applied = log.apply(truncate(&shard, cut), lsn).ok().map(|applied| applied.removed);
                    prop_assert_eq!(applied, model.truncate(&shard, cut, lsn));
                }
                Op::Scan { shard, offset, limit, bytes_max } => {
                    let from = model.near_head(&shard, offset);
                    let scan = log.scan(&shard, seqno(from), limit, bytes_max).map(|scan| {
                        let entries = scan.entries.into_iter().map(|e| (e.seqno.get(), e.data.to_vec())).collect();
                        (entries, scan.more)
                    });
                    prop_assert_eq!(scan, model.scan(&shard, from, limit, bytes_max));
                }
                Op::Shards { prefix, after, limit } => {
                    let (names, more) = log.shards(&prefix, after.as_deref(), limit);
                    let names = names.iter().map(|name| name.as_str().to_owned()).collect();
                    prop_assert_eq!((names, more), model.shards(&prefix, after.as_deref(), limit));
                }
            }
        }
        prop_assert_eq!(log.len(), model.shards.len());
        let all = || model.shards.values().flat_map(|(entries, _)| entries.values());
        prop_assert_eq!(log.entries(), all().count() as u64);
        prop_assert_eq!(log.data_bytes(), all().map(|data| data.len() as u64).sum::<u64>());
        let copy = ShardLog::new();
        for (shard, (entries, lsn)) in &model.shards {
            let (lo, head) = (*entries.first_key_value().unwrap().0, *entries.last_key_value().unwrap().0);
            prop_assert_eq!(log.bounds(shard), Some(Bounds { lo: seqno(lo), head: seqno(head), lsn: *lsn }));
            prop_assert_eq!(&log.head(shard).unwrap().0.data[..], &entries[&head][..]);
            for (n, data) in entries {
                copy.apply(append(shard, *n, data), *lsn).unwrap();
            }
        }
        prop_assert_eq!(log.digest(), copy.digest());
    }
}
