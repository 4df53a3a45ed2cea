//! What the benchmarks share. Each measures one part by itself; `headwater bench` measures a running cluster.
//!
//! Run them with `cargo bench -p headwater-benches`; a word after `--` picks those whose name contains it. Logs are written below
//! `TMPDIR`: point it at the disk that is to be measured.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use headwater_protocol::{Lsn, Seqno, ShardName};
use headwater_shard_log::{Change, ShardLog};
use headwater_wal::{Appender, Wal, WalOptions};
use tempfile::TempDir;

/// Bytes of a log's ring, and of its segments.
pub const RING_BYTES: u64 = 64 << 20;

/// A name as long as those in use: 19 bytes.
pub fn shard(number: usize) -> ShardName {
    ShardName::new(&format!("warehouse/table-{number:03}")).expect("a short name")
}

/// A seqno.
pub fn seqno(number: u64) -> Seqno {
    Seqno::new(number).expect("a benchmark does not count so far")
}

/// An append of `data_bytes` bytes.
pub fn append(shard: ShardName, number: u64, data_bytes: usize) -> Change {
    Change::Append { shard, seqno: seqno(number), data: vec![7; data_bytes].into() }
}

/// Shards that each hold that many entries of `data_bytes` bytes.
pub fn filled(shards: usize, entries: u64, data_bytes: usize) -> ShardLog {
    let log = ShardLog::new();
    for number in 0..entries {
        for n in 0..shards {
            log.apply(append(shard(n), number, data_bytes), Lsn::new(8)).expect("one past the head");
        }
    }
    log
}

/// A ring's memory, every page of it touched.
pub fn ring_memory() -> Arc<Vec<AtomicU64>> {
    Arc::new((0..RING_BYTES / 8).map(|_| AtomicU64::new(1)).collect())
}

/// A new log in a directory of its own, which goes with the [`TempDir`].
pub fn new_log(memory: Arc<Vec<AtomicU64>>) -> (TempDir, Arc<Wal>, Appender) {
    let dir = TempDir::new().expect("TMPDIR can be written");
    let options = WalOptions {
        dir: dir.path().into(),
        cluster: "bench".into(),
        segment_bytes: RING_BYTES,
        lease: Duration::ZERO,
    };
    let opened = Wal::open(options, memory, 0, RING_BYTES, &mut |_, _| Ok(()));
    let (wal, appender) = opened.expect("TMPDIR has room for a log");
    (dir, wal, appender)
}
