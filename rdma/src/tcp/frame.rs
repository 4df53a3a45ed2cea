//! What is sent on a connection after the announcement: frames one way, answers the other, all of 64-bit little-endian words.
//!
//! A frame is a head of two words, then its payload; an answer is the word that was read, and nothing else.
//!
//! | word | bits | |
//! | --- | --- | --- |
//! | 0 | 0–7 | operation: 1 write, 2 ring, 3 read |
//! | 0 | 8–31 | words of payload: of a write at most [`FRAME_WORDS_MAX`], else 0 |
//! | 0 | 32–63 | region |
//! | 1 | 0–63 | the first word to write, or the word to read; 0 for a ring |

use crate::error::Violation;
use crate::export::RegionId;

/// Words of a frame's head.
pub(super) const HEAD_WORDS: usize = 2;

/// Words of a frame's payload at most: 64 KiB, so that it is stored while still in the cache, and one read
/// takes many small frames.
pub(super) const FRAME_WORDS_MAX: usize = 8192;

const COUNT_BITS: u32 = 24;
const _: () = assert!(FRAME_WORDS_MAX < 1 << COUNT_BITS);

const WRITE: u8 = 1;
const RING: u8 = 2;
const READ: u8 = 3;

/// A frame's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    /// The `count` words that follow go to `at_word` and on.
    Write { region: RegionId, at_word: usize, count: usize },
    /// The region's bell is rung.
    Ring { region: RegionId },
    /// The word is to be sent back.
    Read { region: RegionId, word: usize },
}

impl Frame {
    pub(super) fn encode(self) -> [u64; HEAD_WORDS] {
        let (operation, region, count, at) = match self {
            Frame::Write { region, at_word, count } => (WRITE, region, count, at_word),
            Frame::Ring { region } => (RING, region, 0, 0),
            Frame::Read { region, word } => (READ, region, 0, word),
        };
        debug_assert!(count <= FRAME_WORDS_MAX, "a frame's payload is bounded");
        [u64::from(operation) | (count as u64) << 8 | u64::from(region) << 32, at as u64]
    }

    pub(super) fn decode(head: [u64; HEAD_WORDS]) -> Result<Frame, Violation> {
        let (operation, region, at) = (head[0] as u8, (head[0] >> 32) as RegionId, head[1] as usize);
        let count = (head[0] >> 8) as usize & ((1 << COUNT_BITS) - 1);
        match operation {
            WRITE if count <= FRAME_WORDS_MAX => Ok(Frame::Write { region, at_word: at, count }),
            RING if count == 0 => Ok(Frame::Ring { region }),
            READ if count == 0 => Ok(Frame::Read { region, word: at }),
            WRITE | RING | READ => Err(Violation::FrameSize(count)),
            unknown => Err(Violation::Operation(unknown)),
        }
    }

    /// Words of payload that follow.
    pub(super) fn payload_words(self) -> usize {
        match self {
            Frame::Write { count, .. } => count,
            Frame::Ring { .. } | Frame::Read { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_have_the_documented_bits() {
        let write = Frame::Write { region: 7, at_word: 0x1234, count: 3 };
        assert_eq!(write.encode(), [0x0000_0007_0000_0301, 0x1234]);
        assert_eq!(Frame::Ring { region: 7 }.encode(), [0x0000_0007_0000_0002, 0]);
        assert_eq!(Frame::Read { region: u32::MAX, word: 9 }.encode(), [0xffff_ffff_0000_0003, 9]);
        for frame in [write, Frame::Ring { region: 7 }, Frame::Read { region: u32::MAX, word: 9 }] {
            assert_eq!(Frame::decode(frame.encode()).unwrap(), frame);
        }
    }

    #[test]
    fn what_is_no_head_is_refused() {
        let too_large = [u64::from(WRITE) | (FRAME_WORDS_MAX as u64 + 1) << 8, 8];
        assert!(matches!(Frame::decode(too_large), Err(Violation::FrameSize(_))));
        assert!(matches!(Frame::decode([u64::from(READ) | 1 << 8, 8]), Err(Violation::FrameSize(1))));
        assert!(matches!(Frame::decode([0, 0]), Err(Violation::Operation(0))));
        assert!(matches!(Frame::decode([u64::MAX, 0]), Err(Violation::Operation(255))));
    }
}
