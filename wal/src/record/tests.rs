use proptest::prelude::*;

use super::*;

const EPOCH: Epoch = Epoch::new(3);

/// The record's words at `start`, as they lie in the log.
fn lay_out(record: &Prepared, start: Lsn, flushed: Lsn, chain: u64) -> Vec<u64> {
    [&record.header(start, EPOCH, flushed, chain).encode(), record.body()].concat()
}

fn read_back(words: &[u64], start: Lsn, chain: u64) -> Result<(Header, Record), Flaw> {
    let (head, body) = words.split_first_chunk().expect("as laid out");
    let header = Header::decode(head, start, EPOCH)?;
    if !header.continues(chain) {
        return Err(Flaw::Chain);
    }
    header.record(body).map(|record| (header, record))
}

fn change() -> impl Strategy<Value = Change> {
    let shard = "[a-zA-Zäß/]{1,40}".prop_map(|name| ShardName::new(&name).unwrap());
    let seqno = (0..=i64::MAX as u64).prop_map(|number| Seqno::new(number).unwrap());
    let data = proptest::collection::vec(any::<u8>(), 0..200);
    (shard, seqno, proptest::option::of(data)).prop_map(|(shard, seqno, data)| match data {
        Some(data) => Change::Append { shard, seqno, data: data.into() },
        None => Change::Truncate { shard, cut: seqno },
    })
}

proptest! {
    #[test]
    fn a_change_is_read_back_as_it_was_written(change in change(), start in 0..1u64 << 40, chain: u64) {
        let start = Lsn::new(start * 8);
        let record = Prepared::new(&change);
        let words = lay_out(&record, start, start, chain);
        prop_assert_eq!(size_of_val(&words[..]) as u64, record.log_bytes());
        let (header, read) = read_back(&words, start, chain).unwrap();
        prop_assert_eq!(read, Record::Change(change));
        prop_assert_eq!(header.info().start, start);
        prop_assert_eq!(header.info().end, start.advance(record.log_bytes()));
    }

    #[test]
    fn no_changed_bit_is_accepted(change in change(), bit: proptest::sample::Index, chain: u64) {
        let start = Lsn::new(4096);
        let mut words = lay_out(&Prepared::new(&change), start, start, chain);
        let bit = bit.index(words.len() * 64);
        words[bit / 64] ^= 1 << (bit % 64);
        prop_assert!(read_back(&words, start, chain).is_err());
    }

    #[test]
    fn garbage_is_refused_without_a_panic(words in proptest::collection::vec(any::<u64>(), 6..40), kind in 0..6u64) {
        let mut words = words;
        // Mostly plausible lengths and place, so that the checks behind the first are reached too.
        let body_bytes = (words.len() - 6) * 8;
        words[0] = body_bytes as u64 | kind << 32 | (words[0] >> 48).min(30) << 48;
        words[1] = 4096 + size_of_val(&words[..]) as u64;
        words[2] = EPOCH.get();
        words[3] %= 4097;
        prop_assert!(read_back(&words, Lsn::new(4096), 7).is_err());
    }
}

#[test]
fn another_chain_place_or_epoch_is_refused() {
    let record = Prepared::close();
    let words = lay_out(&record, Lsn::new(800), Lsn::new(800), 1);
    assert!(read_back(&words, Lsn::new(800), 1).is_ok());
    assert_eq!(read_back(&words, Lsn::new(800), 2).unwrap_err(), Flaw::Chain);
    assert_eq!(read_back(&words, Lsn::new(808), 1).unwrap_err(), Flaw::Lsn(Lsn::new(848)));
    let head = words.first_chunk().unwrap();
    let other = Header::decode(head, Lsn::new(800), EPOCH.next()).unwrap_err();
    assert_eq!(other, Flaw::Epoch { found: EPOCH, expected: EPOCH.next() });
}

#[test]
fn data_is_an_allocation_of_its_own_size() {
    let shard = ShardName::new("s").unwrap();
    let change = Change::Append { shard, seqno: Seqno::ZERO, data: Bytes::from_static(&[7; 1000]) };
    let words = lay_out(&Prepared::new(&change), Lsn::ZERO, Lsn::ZERO, 0);
    let (_, Record::Change(Change::Append { data, .. })) = read_back(&words, Lsn::ZERO, 0).unwrap() else {
        panic!()
    };
    assert_eq!(Vec::from(data).capacity(), 1000);
}

/// The format is a promise: these bytes must be written and read so for ever.
#[test]
fn the_bytes_are_those_of_the_format() {
    let shard = ShardName::new("ab").unwrap();
    let change = Change::Append { shard, seqno: Seqno::new(5).unwrap(), data: Bytes::from_static(b"xyz") };
    let words = lay_out(&Prepared::new(&change), Lsn::new(0x1000), Lsn::new(0x800), 0x1122_3344);
    let body = [5, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'x', b'y', b'z'];
    let mut expected = vec![13, 0, 0, 0, 1, 0, 2, 0];
    expected.extend(0x1040u64.to_le_bytes());
    expected.extend(3u64.to_le_bytes());
    expected.extend(0x800u64.to_le_bytes());
    expected.extend(xxh3_64(&body).to_le_bytes());
    expected.extend(xxh3_64_with_seed(&expected, 0x1122_3344).to_le_bytes());
    expected.extend(body);
    expected.extend([0; 3]);
    assert_eq!(bytemuck::cast_slice::<u64, u8>(&words), expected);
}
