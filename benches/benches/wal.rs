//! The log: laying a record out, giving it its place in the ring, and making it durable.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headwater_benches::{append, new_log, ring_memory, shard};
use headwater_wal::{Prepared, spawn_flusher};

const DATA_BYTES: [usize; 3] = [64, 1024, 16 << 10];

/// Before the lock: a copy of the data and a hash over it.
fn prepare(c: &mut Criterion) {
    let mut group = c.benchmark_group("prepare");
    for data_bytes in DATA_BYTES {
        let change = append(shard(1), 1, data_bytes);
        group.throughput(Throughput::Bytes(data_bytes as u64));
        group.bench_function(BenchmarkId::new("data", data_bytes), |b| {
            b.iter(|| Prepared::new(black_box(&change)));
        });
    }
    group.finish();
}

/// Under the lock: the chained checksum and a copy into the ring. No flusher runs: a full ring is exchanged for an empty one,
/// which is not timed.
fn append_to_ring(c: &mut Criterion) {
    let memory = ring_memory();
    let mut group = c.benchmark_group("append");
    for data_bytes in DATA_BYTES {
        let record = Prepared::new(&append(shard(1), 1, data_bytes));
        group.throughput(Throughput::Bytes(record.log_bytes()));
        group.bench_function(BenchmarkId::new("data", data_bytes), |b| {
            b.iter_custom(|appends| {
                let (mut left, mut took) = (appends, Duration::ZERO);
                while left > 0 {
                    let (_dir, wal, mut appender) = new_log(memory.clone());
                    let now = left.min(wal.space_left() / record.log_bytes());
                    let began = Instant::now();
                    for _ in 0..now {
                        black_box(appender.append(black_box(&record)).expect("there is room"));
                    }
                    took += began.elapsed();
                    left -= now;
                }
                took
            });
        });
    }
    group.finish();
}

/// What a commit waits for on the RW: a batch of records appended, written and flushed, and heard of.
fn flush(c: &mut Criterion) {
    let mut group = c.benchmark_group("flush");
    let record = Prepared::new(&append(shard(1), 1, 256));
    for records in [1, 64] {
        let (_dir, wal, mut appender) = new_log(ring_memory());
        let (flushed, heard) = mpsc::channel();
        let on_flushed = move |lsn| flushed.send(lsn).expect("it is waited for");
        let flusher = spawn_flusher(wal, || {}, on_flushed, |error| panic!("{error}")).expect("a thread");
        group.throughput(Throughput::Elements(records));
        group.bench_function(BenchmarkId::new("records", records), |b| {
            b.iter(|| {
                let ends = (0..records).map(|_| appender.append(&record).expect("the ring is large"));
                let end = ends.last().expect("at least one");
                while heard.recv().expect("the flusher runs") < end {}
            });
        });
        flusher.stop();
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    targets = prepare, append_to_ring, flush
}
criterion_main!(benches);
