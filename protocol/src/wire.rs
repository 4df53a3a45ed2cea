//! The few shapes that frames are made of: little-endian integers, and strings and byte runs behind their length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::{InvalidName, InvalidSeqno, Lsn, Seqno, ShardName};

/// Bytes that are not what they should be. The connection they came from cannot be trusted any more, except where only a
/// name or a seqno is out of bounds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The frame ends before its fields do.
    #[error("the frame ends {0} bytes too early")]
    Short(usize),
    /// The frame goes on after its last field.
    #[error("{0} bytes follow the frame's last field")]
    Long(usize),
    /// A length word beyond [`FRAME_BYTES_MAX`](crate::limits::FRAME_BYTES_MAX) or below the frame's fixed part.
    #[error("a frame of {0} bytes cannot be")]
    FrameBytes(u64),
    /// A kind or code that this version does not know.
    #[error("unknown {what} {code}")]
    Unknown {
        /// What the code stands for.
        what: &'static str,
        /// The code.
        code: u64,
    },
    /// A shard's name out of bounds.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A seqno out of bounds.
    #[error(transparent)]
    Seqno(#[from] InvalidSeqno),
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
}

impl Malformed {
    /// Whether the frame's borders are sound, so that only this request is refused and the connection goes on.
    pub fn is_argument(&self) -> bool {
        matches!(self, Malformed::Name(_) | Malformed::Seqno(_))
    }
}

/// Reads fields off the front of a frame's body.
pub(crate) struct Fields(pub(crate) Bytes);

impl Fields {
    fn need(&self, bytes: usize) -> Result<(), Malformed> {
        match bytes.checked_sub(self.0.len()) {
            None | Some(0) => Ok(()),
            Some(missing) => Err(Malformed::Short(missing)),
        }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.need(2)?;
        Ok(self.0.get_u16_le())
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.need(4)?;
        Ok(self.0.get_u32_le())
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.need(8)?;
        Ok(self.0.get_u64_le())
    }

    /// One byte, 0 or 1.
    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(Malformed::Unknown { what: "flag", code: code.into() }),
        }
    }

    pub(crate) fn lsn(&mut self) -> Result<Lsn, Malformed> {
        Ok(Lsn::new(self.u64()?))
    }

    pub(crate) fn seqno(&mut self) -> Result<Seqno, Malformed> {
        Ok(Seqno::new(self.u64()?)?)
    }

    /// A seqno, or none as `u64::MAX`.
    pub(crate) fn optional_seqno(&mut self) -> Result<Option<Seqno>, Malformed> {
        match self.u64()? {
            u64::MAX => Ok(None),
            number => Ok(Some(Seqno::new(number)?)),
        }
    }

    fn run(&mut self, bytes: usize) -> Result<Bytes, Malformed> {
        self.need(bytes)?;
        Ok(self.0.split_to(bytes))
    }

    /// Bytes behind a u32: a slice of the frame, not a copy.
    pub(crate) fn data(&mut self) -> Result<Bytes, Malformed> {
        let bytes = self.u32()? as usize;
        self.run(bytes)
    }

    /// Text behind a u16.
    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let bytes = usize::from(self.u16()?);
        String::from_utf8(self.run(bytes)?.to_vec()).map_err(|_| Malformed::NotUtf8)
    }

    pub(crate) fn name(&mut self) -> Result<ShardName, Malformed> {
        let bytes = usize::from(self.u16()?);
        Ok(ShardName::from_bytes(&self.run(bytes)?)?)
    }

    pub(crate) fn end(self) -> Result<(), Malformed> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(Malformed::Long(left)),
        }
    }
}

/// Writes text behind a u16. Text longer than that holds is cut at a character's border: only messages for people can be.
pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    let mut end = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // The cut keeps it within u16.
    out.put_u16_le(end as u16);
    out.put_slice(&text.as_bytes()[..end]);
}

pub(crate) fn put_name(out: &mut BytesMut, name: &ShardName) {
    put_text(out, name.as_str());
}

pub(crate) fn put_optional_seqno(out: &mut BytesMut, seqno: Option<Seqno>) {
    out.put_u64_le(seqno.map_or(u64::MAX, Seqno::get));
}
