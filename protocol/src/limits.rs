//! Every bound that both sides of a wire rely on, and how they relate.

/// Bytes of a shard's name.
pub const SHARD_NAME_BYTES_MAX: usize = 1024;

/// Bytes of an entry unless a node is configured otherwise: 16 MiB.
pub const ENTRY_BYTES_MAX_DEFAULT: usize = 16 << 20;

/// Bytes of an entry that no configuration can exceed: 64 MiB.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;

/// Bytes of any frame between client and node, the length word not counted.
pub const FRAME_BYTES_MAX: usize = 80 << 20;

/// Entries of one scan.
pub const SCAN_ENTRIES_MAX: u32 = 100_000;

/// Bytes of data in one scan's answer. One entry is always given, however large.
pub const SCAN_BYTES_MAX: u32 = 8 << 20;

/// Names of one listing.
pub const SHARDS_NAMES_MAX: u32 = 10_000;

// A frame carries one entry of the largest size beside a name and a few words, or a scan's worth of entries whose
// last one may exceed the byte cap.
const _: () = assert!(ENTRY_BYTES_MAX + SCAN_BYTES_MAX as usize + 4096 < FRAME_BYTES_MAX);
const _: () = assert!(SHARDS_NAMES_MAX as usize * (SHARD_NAME_BYTES_MAX + 2) < FRAME_BYTES_MAX);
