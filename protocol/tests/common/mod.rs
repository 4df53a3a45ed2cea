//! Any value of the wire, for property tests.

// Each test file uses its part of it.
#![allow(dead_code)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use headwater_protocol::frame::Outgoing;
use headwater_protocol::limits::SHARD_NAME_BYTES_MAX;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::response::{Reflects, Response};
use headwater_protocol::{Consistency, Entry, Error, Lsn, Seqno, Served, ShardName};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

pub(crate) fn lsn() -> impl Strategy<Value = Lsn> {
    any::<u64>().prop_map(Lsn::new)
}

pub(crate) fn seqno() -> impl Strategy<Value = Seqno> {
    prop_oneof![Just(0), Just(i64::MAX as u64), 0..=i64::MAX as u64]
        .prop_map(|number| Seqno::new(number).unwrap())
}

pub(crate) fn name() -> impl Strategy<Value = ShardName> {
    let text = prop_oneof![".{1,40}", Just("n".repeat(SHARD_NAME_BYTES_MAX))];
    text.prop_map(|text| ShardName::new(&text).unwrap())
}

/// Short data is copied into a buffer on its way out, long data is not: both sides of that border.
pub(crate) fn data() -> impl Strategy<Value = Bytes> {
    prop_oneof![vec(any::<u8>(), 0..64), vec(any::<u8>(), 1000..1050), vec(any::<u8>(), 3000..3001)]
        .prop_map(Bytes::from)
}

pub(crate) fn entries() -> impl Strategy<Value = Vec<Entry>> {
    vec((seqno(), data()).prop_map(|(seqno, data)| Entry { seqno, data }), 0..6)
}

pub(crate) fn consistency() -> impl Strategy<Value = Consistency> {
    prop_oneof![
        Just(Consistency::Strong),
        lsn().prop_map(Consistency::AtLeast),
        any::<u64>().prop_map(|us| Consistency::Bounded(Duration::from_micros(us))),
        Just(Consistency::Eventual),
    ]
}

pub(crate) fn request() -> impl Strategy<Value = RequestFrame> {
    let request =
        prop_oneof![
            (name(), consistency()).prop_map(|(shard, consistency)| Request::Head { shard, consistency }),
            (name(), seqno(), any::<u32>(), any::<u32>(), consistency()).prop_map(
                |(shard, from, limit, bytes_max, consistency)| Request::Scan {
                    shard,
                    from,
                    limit,
                    bytes_max,
                    consistency
                }
            ),
            (".{0,20}", ".{0,20}", any::<u32>(), consistency()).prop_map(
                |(prefix, after, limit, consistency)| Request::Shards { prefix, after, limit, consistency }
            ),
            (name(), option::of(seqno()), data())
                .prop_map(|(shard, expected, data)| Request::CompareAndSet { shard, expected, data }),
            (name(), seqno(), data()).prop_map(|(shard, seqno, data)| Request::Begin { shard, seqno, data }),
            (name(), seqno()).prop_map(|(shard, cut)| Request::Truncate { shard, cut }),
            (name(), seqno()).prop_map(|(shard, from)| Request::Watch { shard, from }),
            any::<u64>().prop_map(|watch| Request::Unwatch { watch }),
            Just(Request::Status),
        ];
    (any::<u64>(), any::<u32>(), request).prop_map(|(id, deadline_ms, request)| RequestFrame {
        id,
        deadline_ms,
        request,
    })
}

pub(crate) fn error() -> impl Strategy<Value = Error> {
    prop_oneof![
        ".{0,40}".prop_map(Error::Overloaded),
        Just(Error::DiskFull),
        ".{0,40}".prop_map(|rw| Error::NotWritable { rw }),
        (lsn(), ".{0,40}").prop_map(|(applied, why)| Error::ReplicaBehind { applied, why }),
        ".{0,40}".prop_map(Error::InvalidArgument),
        Just(Error::UnknownShard),
        seqno().prop_map(|head| Error::CutAboveHead { head }),
        seqno().prop_map(|head| Error::NotEmpty { head }),
        seqno().prop_map(|lo| Error::TooFarBack { lo }),
        Just(Error::Stopping),
        ".{0,40}".prop_map(Error::Unknown),
    ]
}

pub(crate) fn response() -> impl Strategy<Value = Response> {
    let served = (0..Served::ALL.len()).prop_map(|at| Served::ALL[at]);
    let reflects = || (lsn(), served.clone()).prop_map(|(lsn, served)| Reflects { lsn, served });
    let entry = (seqno(), data()).prop_map(|(seqno, data)| Entry { seqno, data });
    prop_oneof![
        (option::of(entry), reflects()).prop_map(|(entry, reflects)| Response::Head { entry, reflects }),
        (entries(), any::<bool>(), reflects()).prop_map(|(entries, more, reflects)| Response::Scan {
            entries,
            more,
            reflects
        }),
        (vec(name(), 0..5), any::<bool>(), reflects()).prop_map(|(names, more, reflects)| Response::Shards {
            names,
            more,
            reflects
        }),
        (seqno(), lsn()).prop_map(|(seqno, lsn)| Response::Committed { seqno, lsn }),
        (option::of(seqno()), lsn()).prop_map(|(head, lsn)| Response::Mismatch { head, lsn }),
        (any::<u64>(), lsn()).prop_map(|(removed, lsn)| Response::Truncated { removed, lsn }),
        (entries(), lsn()).prop_map(|(entries, lsn)| Response::Watched { entries, lsn }),
        Just(Response::WatchEnded),
        data().prop_map(Response::Status),
        error().prop_map(Response::Error),
    ]
}

pub(crate) fn request_bytes(frame: &RequestFrame) -> BytesMut {
    let mut out = BytesMut::new();
    frame.encode(&mut out);
    out
}

pub(crate) fn response_bytes(response: &Response, id: u64) -> BytesMut {
    let mut out = Outgoing::default();
    response.encode(id, &mut out);
    BytesMut::from(out.copy_to_bytes(out.remaining()))
}
