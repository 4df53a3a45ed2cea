//! What a session does for each request besides answering it: requests in, answers out.

use std::hint::black_box;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use headwater_benches::{seqno, shard};
use headwater_protocol::frame::{Outgoing, split};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::response::{Reflects, Response};
use headwater_protocol::{Entry, Lsn, Served};

const DATA_BYTES: usize = 256;

fn request(c: &mut Criterion) {
    let frame = RequestFrame {
        id: 1,
        deadline_ms: 5000,
        request: Request::CompareAndSet {
            shard: shard(1),
            expected: Some(seqno(41)),
            data: vec![7; DATA_BYTES].into(),
        },
    };
    let mut encoded = BytesMut::new();
    frame.encode(&mut encoded);
    let mut group = c.benchmark_group(format!("request/cas/data={DATA_BYTES}"));
    group.throughput(Throughput::Elements(1));
    let mut out = BytesMut::new();
    group.bench_function("encode", |b| {
        b.iter(|| {
            out.clear();
            black_box(&frame).encode(&mut out);
        });
    });
    group.bench_function("split-and-decode", |b| {
        b.iter_batched(
            || encoded.clone(),
            |mut bytes| {
                let frame = split(&mut bytes, FRAME_BYTES_MAX).expect("well-formed").expect("whole");
                RequestFrame::decode(frame.kind, frame.id, frame.body).expect("well-formed")
            },
            criterion::BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn response(c: &mut Criterion) {
    for (entries, data_bytes) in [(1, DATA_BYTES), (100, DATA_BYTES), (100, 4096)] {
        let data = Bytes::from(vec![7; data_bytes]);
        let entries: Vec<_> = (0..entries).map(|n| Entry { seqno: seqno(n), data: data.clone() }).collect();
        let name = format!("response/scan/entries={}/data={data_bytes}", entries.len());
        let reflects = Reflects { lsn: Lsn::new(64), served: Served::ReusedGlobal };
        let response = Response::Scan { entries, more: false, reflects };
        let mut encoded = Outgoing::default();
        response.encode(1, &mut encoded);
        let encoded = encoded.copy_to_bytes(encoded.remaining());
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes(encoded.len() as u64));
        group.bench_function("encode", |b| {
            b.iter(|| {
                let mut out = Outgoing::default();
                black_box(&response).encode(1, &mut out);
                out
            });
        });
        group.bench_function("decode", |b| {
            let (kind, body) = (encoded[4], encoded.slice(13..));
            b.iter(|| Response::decode(kind, black_box(body.clone())).expect("well-formed"));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    targets = request, response
}
criterion_main!(benches);
