//! Timestamps: what a write pays to stamp, and what a strong read pays when another's fetch serves it.

use std::convert::Infallible;
use std::future::ready;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use headwater_benches::{seqno, shard};
use headwater_protocol::{Epoch, Lsn};
use headwater_timestamp::{Lamport, Layout, Nanos, Position, Table};

const SHARDS: usize = 1000;

fn stamp(c: &mut Criterion) {
    let layout = Layout { shard_slots: 16_384, page_slots: 65_536, page_entries: 64 };
    let memory: Arc<Vec<AtomicU64>> = Arc::new((0..layout.words()).map(|_| AtomicU64::new(0)).collect());
    let table = Table::new(memory, layout, Epoch::new(1), Lsn::ZERO);
    let names: Vec<_> = (0..SHARDS).map(shard).collect();
    let mut lsn = Lsn::ZERO;
    let mut next = names.iter().cycle();
    c.bench_function("stamp/append", |b| {
        b.iter(|| {
            lsn = lsn.advance(64);
            table.stamp_append(next.next().expect("endless").as_str(), seqno(lsn.get() / 64), lsn);
        });
    });
    c.bench_function("stamp/truncate/pages=100", |b| {
        b.iter(|| {
            lsn = lsn.advance(64);
            let shard = next.next().expect("endless");
            table.stamp_truncate(shard.as_str(), seqno(0)..seqno(6400), lsn);
        });
    });
    c.bench_function("stamp/global", |b| {
        b.iter(|| {
            lsn = lsn.advance(64);
            table.stamp_global(lsn);
        });
    });
}

/// A read that takes a timestamp that is ready.
fn get(lamport: &Lamport, arrival: Nanos) -> (Lsn, bool) {
    let fetch = || ready(Ok::<u64, Infallible>(64));
    let get = pin!(lamport.get(arrival, || arrival, fetch));
    match get.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok((stamp, reused))) => (stamp.lsn, reused),
        Poll::Pending => unreachable!("nothing is waited for"),
    }
}

fn lamport(c: &mut Criterion) {
    let lamport = Lamport::new();
    get(&lamport, Nanos(1));
    c.bench_function("lamport/reused", |b| {
        b.iter(|| {
            let (lsn, reused) = get(black_box(&lamport), Nanos(1));
            assert!(reused);
            lsn
        });
    });
    let mut now = 1;
    c.bench_function("lamport/fetched", |b| {
        b.iter(|| {
            now += 1;
            get(black_box(&lamport), Nanos(now))
        });
    });
}

fn position(c: &mut Criterion) {
    let position = Position::new(Lsn::ZERO);
    let mut lsn = Lsn::ZERO;
    c.bench_function("position/advance/waiting=0", |b| {
        b.iter(|| {
            lsn = lsn.advance(64);
            position.advance(lsn);
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    targets = stamp, lamport, position
}
criterion_main!(benches);
