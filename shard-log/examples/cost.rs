//! What a mostly idle shard costs: fills a log with 1,000,000 shards of one small entry each and prints the process's
//! resident memory for each, as Linux counts it.

use std::time::Instant;

use bytes::Bytes;
use headwater_protocol::{Lsn, Seqno, ShardName};
use headwater_shard_log::{Change, ShardLog};

const SHARDS: u64 = 1_000_000;
const DATA_BYTES: usize = 16;

fn main() -> std::io::Result<()> {
    let before = resident_bytes()?;
    let log = ShardLog::new();
    let start = Instant::now();
    let mut name_bytes = 0;
    for i in 0..SHARDS {
        let shard = ShardName::new(&format!("tenant-{:04}/table-{i:07}", i % 1000)).expect("a short name");
        name_bytes += shard.as_str().len() as u64;
        let data = Bytes::from(vec![0; DATA_BYTES]);
        let append = Change::Append { shard, seqno: Seqno::ZERO, data };
        log.apply(append, Lsn::new((i + 1) * 64)).expect("the first write of a shard");
    }
    let elapsed = start.elapsed();
    let cost = (resident_bytes()? - before) / SHARDS;
    println!(
        "{} shards, names of {} bytes, data of {DATA_BYTES}: {cost} bytes a shard, {} ns an append",
        log.len(),
        name_bytes / SHARDS,
        elapsed.as_nanos() / u128::from(SHARDS)
    );
    Ok(())
}

fn resident_bytes() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .expect("Linux says how much is resident");
    Ok(kib * 1024)
}
