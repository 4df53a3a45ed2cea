//! How each side tells the other which regions it exports, the same on every transport.
//!
//! A message of [`WORDS`] words, whatever the number of regions:
//!
//! | word | |
//! | --- | --- |
//! | 0 | [`MAGIC`] |
//! | 1 | number of regions |
//! | 2 + 2i | region i: its number in the low half, its access (1 write, 2 read) in the high half |
//! | 3 + 2i | region i: its size in words |
//!
//! What is left over is 0.

use crate::bell::BELL_WORDS;
use crate::error::Violation;
use crate::export::{Access, EXPORTS_MAX, Export, Extent, RegionId};
use crate::region::REGION_WORDS_MAX;

/// Words of the message.
pub(crate) const WORDS: usize = 2 + 2 * EXPORTS_MAX;

/// The bytes "hwrdma" and the protocol's version, 1.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"hwrdma\0\x01");

/// The message that announces `exports`.
///
/// Panics if they are more than [`EXPORTS_MAX`], or two have the same number: a mistake in the program.
pub(crate) fn encode(exports: &[Export]) -> [u64; WORDS] {
    assert!(exports.len() <= EXPORTS_MAX, "a link exports at most {EXPORTS_MAX} regions");
    let mut message = [0; WORDS];
    message[0] = MAGIC;
    message[1] = exports.len() as u64;
    for (i, export) in exports.iter().enumerate() {
        let Extent { id, words, access } = export.extent();
        assert!(exports[..i].iter().all(|earlier| earlier.id != id), "region {id} is exported twice");
        let access: u64 = match access {
            Access::Write => 1,
            Access::Read => 2,
        };
        message[2 + 2 * i] = u64::from(id) | access << 32;
        message[3 + 2 * i] = words as u64;
    }
    message
}

/// What a peer's message announces.
pub(crate) fn decode(message: &[u64; WORDS]) -> Result<Vec<Extent>, Violation> {
    if message[0] != MAGIC {
        return Err(Violation::Magic { found: message[0] });
    }
    let count = message[1];
    if count > EXPORTS_MAX as u64 {
        return Err(Violation::TooManyExports(count));
    }
    let mut extents: Vec<Extent> = Vec::with_capacity(count as usize);
    for region in message[2..].chunks_exact(2).take(count as usize) {
        let (id, words) = (region[0] as RegionId, region[1] as usize);
        let access = match region[0] >> 32 {
            1 => Access::Write,
            2 => Access::Read,
            _ => return Err(Violation::Extent { region: id }),
        };
        let twice = extents.iter().any(|earlier| earlier.id == id);
        if twice || !(BELL_WORDS..=REGION_WORDS_MAX).contains(&words) {
            return Err(Violation::Extent { region: id });
        }
        extents.push(Extent { id, words, access });
    }
    Ok(extents)
}
