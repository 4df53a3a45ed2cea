use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use headwater_node::config::{Common, ConfigError, Setting};
use headwater_protocol::limits::{ENTRY_BYTES_MAX, ENTRY_BYTES_MAX_DEFAULT};
use headwater_protocol::replication::{LEASE, RING_BYTES};
use headwater_timestamp::Layout;
use serde::{Deserialize, Serialize};

/// The ring holds at least this many entries of the largest size, so that one never fills it.
const RING_ENTRIES_MIN: u64 = 4;

/// What an RW is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    #[serde(flatten)]
    pub(crate) common: Common,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) segment_bytes: ByteSize,
    pub(crate) ring_bytes: ByteSize,
    pub(crate) entry_bytes_max: ByteSize,
    pub(crate) in_flight_max: usize,
    pub(crate) shard_slots: u32,
    pub(crate) page_slots: u32,
    pub(crate) page_entries: u32,
    #[serde(with = "humantime_serde")]
    pub(crate) lease: Duration,
    pub(crate) rdma: String,
}

impl Config {
    pub(crate) const SETTINGS: [Setting; 10] = [
        Setting("data_dir", "DIR", "where the log is kept (required)"),
        Setting("segment_bytes", "SIZE", "size of a segment file: a power of two from 64KiB to 1GiB"),
        Setting("ring_bytes", "SIZE", "size of the ring, here and on every RO: a power of two"),
        Setting("entry_bytes_max", "SIZE", "bytes of an entry at most"),
        Setting("in_flight_max", "N", "writes in flight at most; past it a write is refused at once"),
        Setting("shard_slots", "N", "slots of the timestamp table for shards"),
        Setting("page_slots", "N", "slots of the timestamp table for pages"),
        Setting("page_entries", "N", "seqnos of a page"),
        Setting("lease", "TIME", "how long an RO may read strongly without hearing from the RW"),
        Setting("rdma", "auto|off|ADDRESS|DEVICE", "the RDMA devices by which ROs may come"),
    ];

    /// The data directory and the layout of the timestamp table, once everything is checked.
    pub(crate) fn validate(&self) -> Result<(PathBuf, Layout), ConfigError> {
        let wrong = |text: String| Err(ConfigError(text));
        self.common.validate()?;
        let Some(data_dir) = self.data_dir.clone() else {
            return wrong("data_dir: missing; say where the log is kept, e.g. --data-dir ./data".into());
        };
        let segment = self.segment_bytes.as_u64();
        if !segment.is_power_of_two() || !(64 << 10..=1 << 30).contains(&segment) {
            return wrong(format!("segment_bytes: a power of two from 64KiB to 1GiB, not {segment}"));
        }
        let entry = self.entry_bytes_max.as_u64();
        if entry == 0 || entry > ENTRY_BYTES_MAX as u64 {
            return wrong(format!("entry_bytes_max: 1 to {ENTRY_BYTES_MAX} bytes, not {entry}"));
        }
        let ring = self.ring_bytes.as_u64();
        if !ring.is_power_of_two() || !RING_BYTES.contains(&ring) {
            return wrong(format!("ring_bytes: a power of two from 64KiB to 16GiB, not {ring}"));
        }
        if ring < entry * RING_ENTRIES_MIN {
            return wrong(format!(
                "ring_bytes: at least {RING_ENTRIES_MIN} times entry_bytes_max ({entry}), not {ring}"
            ));
        }
        if self.in_flight_max == 0 {
            return wrong("in_flight_max: at least 1".into());
        }
        if !LEASE.contains(&self.lease) {
            return wrong(format!("lease: 20ms to 60s, not {:?}", self.lease));
        }
        let layout = Layout {
            shard_slots: self.shard_slots,
            page_slots: self.page_slots,
            page_entries: self.page_entries,
        };
        layout.validate().map_err(|e| ConfigError(e.to_string()))?;
        Ok((data_dir, layout))
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            common: Common::new("rw", "127.0.0.1:7600"),
            data_dir: None,
            segment_bytes: ByteSize::mib(16),
            ring_bytes: ByteSize::mib(64),
            entry_bytes_max: ByteSize(ENTRY_BYTES_MAX_DEFAULT as u64),
            in_flight_max: 8192,
            shard_slots: 16_384,
            page_slots: 65_536,
            page_entries: 64,
            lease: Duration::from_millis(500),
            rdma: "auto".into(),
        }
    }
}
