//! Where the words lie in the memory that RW and ROs write and read in each other (S1, S4).
//!
//! Each region is a run of little-endian 64-bit words; the numbers here are word indexes. Its first
//! [`BELL_WORDS`] words belong to the transport (the bell by which a sleeping owner is woken). The layout of the
//! third region, the timestamp table, is in the crate `timestamp`.

/// Words at the start of every region that belong to the transport.
pub const BELL_WORDS: usize = 8;

/// Words of the region of a link that is only tried out.
pub const PROBE_WORDS: usize = 512;

/// A region's number on a link.
pub mod region {
    /// On the RO: control words and the ring. The RW writes.
    pub const LOG: u32 = 1;
    /// On the RW: the timestamp table. ROs read.
    pub const TIMESTAMPS: u32 = 2;
    /// On the RW: one RO's progress. That RO writes.
    pub const PROGRESS: u32 = 3;
    /// On the RW, on a link that is only tried out: [`PROBE_WORDS`](super::PROBE_WORDS) words of zeros. Whoever tries it reads.
    pub const PROBE: u32 = 4;
}

/// The log region: control words in the first page, then the ring, a record at `LSN mod ring size`.
///
/// The control words are written after the ring bytes that they speak of: four of them in one go, the clock by a write of its own after them, and
/// the flushed LSN also alone, as soon as it moves.
pub mod log {
    use super::BELL_WORDS;

    /// The writer's epoch. Always the one of the handshake; checked, not believed (S3).
    pub const EPOCH: usize = BELL_WORDS;
    /// End of the bytes written into the ring.
    pub const TAIL: usize = EPOCH + 1;
    /// The flushed LSN as published: durable, stamped and visible on the RW (W3).
    pub const FLUSHED: usize = EPOCH + 2;
    /// One of the values of [`state`](super::state).
    pub const STATE: usize = EPOCH + 3;
    /// Control words that are written in one go, from [`EPOCH`] on.
    pub const CONTROL_WORDS: usize = 4;
    /// The RO's clock as last seen in its progress words, sent back: the lease runs from there (E3, R6). Written after
    /// the control words, by a write of its own: who finds a clock here also finds a flushed LSN that was published
    /// after the RO wrote that clock.
    pub const CLOCK_ECHO: usize = EPOCH + CONTROL_WORDS;
    /// First word of the ring.
    pub const RING: usize = 512;

    const _: () = assert!(CLOCK_ECHO < RING);
}

/// What the RW says of itself in [`log::STATE`].
pub mod state {
    /// Nothing written yet.
    pub const UNSET: u64 = 0;
    /// It runs.
    pub const RUNNING: u64 = 1;
    /// It stops in order; nothing follows [`super::log::TAIL`].
    pub const STOPPING: u64 = 2;
}

/// The progress region of one RO, written in one go.
pub mod progress {
    use super::BELL_WORDS;

    /// End of what was received and verified without a gap: everything before it may be overwritten in the ring.
    pub const RECEIVED: usize = BELL_WORDS;
    /// End of what reads on the RO see.
    pub const APPLIED: usize = RECEIVED + 1;
    /// End of what is on the RO's own disk; 0 while ROs keep nothing there.
    pub const PERSISTED: usize = RECEIVED + 2;
    /// The RO's clock, µs, when it wrote these words. The RW gives it back unread.
    pub const CLOCK: usize = RECEIVED + 3;
    /// Words written in one go, from [`RECEIVED`] on.
    pub const PROGRESS_WORDS: usize = 4;
    /// Words of the whole region.
    pub const WORDS: usize = 512;

    const _: () = assert!(RECEIVED + PROGRESS_WORDS <= WORDS);
}
