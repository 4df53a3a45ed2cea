use std::io::{self, Read as _, Write as _};
use std::sync::atomic::Ordering;

use super::Shared;
use super::frame::{FRAME_WORDS_MAX, Frame, HEAD_WORDS};
use crate::closing::Closing;
use crate::error::{LinkError, Violation, Why};
use crate::export::{Export, RegionId};
use crate::memory::{WORD_BYTES, place};

/// Carries out the peer's frames until the link ends; says why it did.
pub(super) fn run(shared: &Shared) -> Why {
    // Whatever arrives begins with a frame's head, and the largest frame fits: so some frame is always completed.
    let mut buffer = vec![0u64; HEAD_WORDS + FRAME_WORDS_MAX];
    let mut filled_bytes = 0;
    let mut answers = Vec::new();
    loop {
        let room = &mut bytemuck::cast_slice_mut(&mut buffer)[filled_bytes..];
        debug_assert!(!room.is_empty(), "a whole buffer holds a whole frame");
        match (&shared.agent).read(room) {
            Ok(0) => return Why::PeerGone,
            Ok(n) => filled_bytes += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Why::of_io(e, Why::Silent(shared.silence_max)),
        }
        let used_words =
            match carry_out_all(&shared.closing, &buffer[..filled_bytes / WORD_BYTES], &mut answers) {
                Ok(words) => words,
                Err(why) => return why,
            };
        buffer.copy_within(used_words..filled_bytes.div_ceil(WORD_BYTES), 0);
        filled_bytes -= used_words * WORD_BYTES;

        if let Err(e) = (&shared.agent).write_all(bytemuck::cast_slice(&answers)) {
            return Why::of_io(e, Why::Stuck(shared.silence_max));
        }
        answers.clear();
    }
}

/// Carries out the frames that are complete in `words`; gives how many words they take.
fn carry_out_all(closing: &Closing, words: &[u64], answers: &mut Vec<u64>) -> Result<usize, Why> {
    let mut used = 0;
    while let Some((head, rest)) = words[used..].split_first_chunk() {
        let frame = Frame::decode(*head)?;
        let Some(payload) = rest.get(..frame.payload_words()) else { break };
        // Looked at before each frame: an owner that has closed the link has its memory back.
        if closing.closed() {
            return Err(Why::Here);
        }
        carry_out(closing.exports(), frame, payload, answers)
            .map_err(|refused| Violation::Access(Box::new(refused)))?;
        used += HEAD_WORDS + payload.len();
    }
    Ok(used)
}

/// Carries out one frame, if it asks for no more than was exported.
///
/// Every write ends in a release fence ([`place`]), and a ring is sequentially consistent: what a frame does is not
/// visible before what the frames before it did.
fn carry_out(
    exports: &[Export],
    frame: Frame,
    payload: &[u64],
    answers: &mut Vec<u64>,
) -> Result<(), LinkError> {
    match frame {
        Frame::Write { region, at_word, count } => {
            let export = find(exports, region)?;
            export.extent().allows_write(at_word, count)?;
            place(&export.region.words()[at_word..at_word + count], payload);
        }
        Frame::Ring { region } => {
            let export = find(exports, region)?;
            export.extent().allows_ring()?;
            export.region.ring();
        }
        Frame::Read { region, word } => {
            let export = find(exports, region)?;
            export.extent().allows_read(word)?;
            answers.push(export.region.words()[word].load(Ordering::SeqCst));
        }
    }
    Ok(())
}

fn find(exports: &[Export], id: RegionId) -> Result<&Export, LinkError> {
    exports.iter().find(|export| export.id == id).ok_or(LinkError::NoSuchRegion { region: id })
}
