//! The state machine: what a read takes of it, and what applying takes.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headwater_benches::{append, filled, seqno, shard};
use headwater_protocol::Lsn;
use headwater_protocol::limits::SCAN_BYTES_MAX;
use headwater_shard_log::Change;

const SHARDS: usize = 1000;
const ENTRIES: u64 = 128;
const DATA_BYTES: usize = 256;

fn read(c: &mut Criterion) {
    let log = filled(SHARDS, ENTRIES, DATA_BYTES);
    let names: Vec<_> = (0..SHARDS).map(shard).collect();
    let mut next = names.iter().cycle();
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Elements(1));
    group.bench_function("head", |b| {
        b.iter(|| log.head(black_box(next.next().expect("endless").as_str())));
    });
    for limit in [1, 100] {
        group.throughput(Throughput::Elements(u64::from(limit)));
        group.bench_function(BenchmarkId::new("scan", limit), |b| {
            b.iter(|| {
                let shard = next.next().expect("endless").as_str();
                log.scan(black_box(shard), seqno(8), limit, SCAN_BYTES_MAX)
            });
        });
    }
    group.finish();
}

/// One append and one truncate, so that the log stays as large as it is. Making the changes is not timed.
fn apply(c: &mut Criterion) {
    let log = filled(SHARDS, ENTRIES, DATA_BYTES);
    let mut step = 0;
    let mut group = c.benchmark_group("apply");
    group.throughput(Throughput::Elements(2));
    group.bench_function("append-and-truncate", |b| {
        b.iter_batched(
            || {
                let (name, number) = (shard(step % SHARDS), ENTRIES + (step / SHARDS) as u64);
                step += 1;
                let cut = seqno(number + 1 - ENTRIES);
                (append(name.clone(), number, DATA_BYTES), Change::Truncate { shard: name, cut })
            },
            |(append, truncate)| {
                log.apply(append, Lsn::new(8)).expect("one past the head");
                log.apply(truncate, Lsn::new(8)).expect("below the head");
            },
            criterion::BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    targets = read, apply
}
criterion_main!(benches);
