use std::sync::Arc;

use crate::bell::BELL_WORDS;
use crate::error::LinkError;
use crate::region::Region;

/// A region's number on a link.
pub type RegionId = u32;

/// Regions that one side exports on one link at most.
pub const EXPORTS_MAX: usize = 8;

/// What a peer may do to a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Write its words (the bell's excepted) and ring its bell.
    Write,
    /// Read its words. Over shm a region once exported so can never again be exported for writing, to anybody.
    Read,
}

/// A region as offered to the peer of one link.
#[derive(Clone, Debug)]
pub struct Export {
    /// The number by which the peer names it; unique on the link.
    pub id: RegionId,
    /// The region.
    pub region: Arc<Region>,
    /// What the peer may do to it.
    pub access: Access,
}

impl Export {
    /// What the peer is told of it.
    pub(crate) fn extent(&self) -> Extent {
        Extent { id: self.id, words: self.region.words().len(), access: self.access }
    }
}

/// What may be reached of a region from afar. Who posts an access asks it first; an agent asks again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) id: RegionId,
    pub(crate) words: usize,
    pub(crate) access: Access,
}

impl Extent {
    /// Whether `count` words from `at_word` on may be written.
    pub(crate) fn allows_write(&self, at_word: usize, count: usize) -> Result<(), LinkError> {
        self.allows_ring()?;
        self.bounds(BELL_WORDS, at_word, count)
    }

    /// Whether `word` may be read.
    pub(crate) fn allows_read(&self, word: usize) -> Result<(), LinkError> {
        self.allows(Access::Read)?;
        self.bounds(0, word, 1)
    }

    /// Whether the bell may be rung: it is a write.
    pub(crate) fn allows_ring(&self) -> Result<(), LinkError> {
        self.allows(Access::Write)
    }

    fn allows(&self, asked: Access) -> Result<(), LinkError> {
        if self.access == asked { Ok(()) } else { Err(LinkError::NotAllowed { region: self.id, asked }) }
    }

    fn bounds(&self, first: usize, at_word: usize, count: usize) -> Result<(), LinkError> {
        let inside = at_word >= first && at_word.checked_add(count).is_some_and(|end| end <= self.words);
        if inside {
            Ok(())
        } else {
            let (region, end) = (self.id, self.words);
            Err(LinkError::OutOfBounds { region, at_word, count, first, end })
        }
    }
}
