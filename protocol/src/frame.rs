//! Framing: a connection's opening, and the frames that follow.
//!
//! ```text
//! opening, both ways    8 bytes  which protocol: CLIENT or REPLICATION
//!                       u16      version: the one the opener speaks; in the answer the one the node speaks
//!                       6 bytes  zero
//! frame                 u32      bytes that follow this word
//!                       u8       kind
//!                       u64      request id
//!                       ...      body
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Malformed;
use crate::limits::FRAME_BYTES_MAX;

/// Bytes of the opening.
pub const OPENING_BYTES: usize = 16;
/// The opening's first bytes on a client's connection.
pub const CLIENT: [u8; 8] = *b"HDWTRCLI";
/// The opening's first bytes on an RO's connection to an RW.
pub const REPLICATION: [u8; 8] = *b"HDWTRREP";
/// The version of both protocols.
pub const VERSION: u16 = 1;

/// Bytes of kind and id, which the length word counts.
pub(crate) const FRAME_FIXED_BYTES: usize = 1 + 8;

/// The opening for a protocol.
pub fn opening(protocol: [u8; 8]) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..8].copy_from_slice(&protocol);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Protocol and version of an opening.
pub fn read_opening(bytes: &[u8; OPENING_BYTES]) -> ([u8; 8], u16) {
    let mut protocol = [0; 8];
    protocol.copy_from_slice(&bytes[..8]);
    (protocol, u16::from_le_bytes([bytes[8], bytes[9]]))
}

/// A frame split off a connection's bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: u8,
    /// The request's id.
    pub id: u64,
    /// The rest.
    pub body: Bytes,
}

/// Splits the first frame off `bytes`; none if it is not whole yet. `frame_bytes_max` bounds what is waited for.
pub fn split(bytes: &mut BytesMut, frame_bytes_max: usize) -> Result<Option<Frame>, Malformed> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length < FRAME_FIXED_BYTES || length > frame_bytes_max.min(FRAME_BYTES_MAX) {
        return Err(Malformed::FrameBytes(length as u64));
    }
    if bytes.len() < 4 + length {
        // The whole frame's room at once; a bounded step for what only claims to be long.
        bytes.reserve((4 + length - bytes.len()).min(1 << 20));
        return Ok(None);
    }
    bytes.advance(4);
    let mut frame = bytes.split_to(length).freeze();
    Ok(Some(Frame { kind: frame.get_u8(), id: frame.get_u64_le(), body: frame }))
}

/// The id of the first frame in `bytes` and its whole length, if it is one that could be but is longer than
/// `frame_bytes_max`. Whoever does not take it can then say so on that id, and pass over it.
pub fn oversized(bytes: &[u8], frame_bytes_max: usize) -> Option<(u64, usize)> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    let id = u64::from_le_bytes(*bytes.get(5..)?.first_chunk()?);
    (length > frame_bytes_max && length <= FRAME_BYTES_MAX).then_some((id, 4 + length))
}

pub(crate) fn put_frame_start(out: &mut BytesMut, kind: u8, id: u64, body_bytes: usize) {
    let length = FRAME_FIXED_BYTES + body_bytes;
    debug_assert!(length <= FRAME_BYTES_MAX);
    out.put_u32_le(u32::try_from(length).expect("a frame is bounded by FRAME_BYTES_MAX"));
    out.put_u8(kind);
    out.put_u64_le(id);
}

/// Data of at least this many bytes goes out as it is; below it a copy costs less than another entry in the list of buffers.
const UNCOPIED_BYTES_MIN: usize = 1024;

/// Bytes on their way out of a connection: short things gathered in one buffer, long data shared, not copied.
#[derive(Default)]
pub struct Outgoing {
    /// What goes first.
    chunks: VecDeque<Bytes>,
    /// What goes last.
    tail: BytesMut,
    /// Bytes in `chunks`.
    chunk_bytes: usize,
}

impl Outgoing {
    pub(crate) fn frame(&mut self, kind: u8, id: u64, body_bytes: usize) {
        put_frame_start(&mut self.tail, kind, id, body_bytes);
    }

    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    pub(crate) fn data(&mut self, data: &Bytes) {
        if data.len() < UNCOPIED_BYTES_MIN {
            self.tail.put_slice(data);
        } else {
            let before = self.tail.split().freeze();
            for chunk in [before, data.clone()] {
                self.chunk_bytes += chunk.len();
                self.chunks.push_back(chunk);
            }
        }
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.chunk_bytes + self.tail.len()
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&self.tail, |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let chunks = self.chunks.iter().map(|chunk| &chunk[..]).chain([&self.tail[..]]);
        slices
            .iter_mut()
            .zip(chunks.filter(|chunk| !chunk.is_empty()))
            .map(|(slice, chunk)| *slice = IoSlice::new(chunk))
            .count()
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some(chunk) = self.chunks.front_mut() {
            let step = bytes.min(chunk.len());
            chunk.advance(step);
            self.chunk_bytes -= step;
            bytes -= step;
            if !chunk.is_empty() {
                return;
            }
            self.chunks.pop_front();
        }
        self.tail.advance(bytes);
    }
}
