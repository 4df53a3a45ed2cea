use std::io::{self, Read as _};

use super::Shared;
use crate::error::{Violation, Why};
use crate::memory::WORD_BYTES;

/// Hands the peer's answers to the reads that wait for them, until the link ends; says why it did.
pub(super) fn run(shared: &Shared) -> Why {
    let mut buffer = [0u64; 512];
    let mut filled_bytes = 0;
    loop {
        match (&shared.out).read(&mut bytemuck::cast_slice_mut(&mut buffer)[filled_bytes..]) {
            Ok(0) => return Why::PeerGone,
            Ok(n) => filled_bytes += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            // Nobody waits here with a deadline: what has timed out is the acknowledgement of what was sent.
            Err(e) => return Why::of_io(e, Why::Stuck(2 * shared.silence_max)),
        }
        let whole = filled_bytes / WORD_BYTES;
        for &value in &buffer[..whole] {
            let Some(read) = shared.reads.lock().pop_front() else { return Violation::Unasked.into() };
            // Who asked may have lost interest.
            let _ = read.send(Ok(value));
        }
        buffer.copy_within(whole..filled_bytes.div_ceil(WORD_BYTES), 0);
        filled_bytes %= WORD_BYTES;
    }
}
