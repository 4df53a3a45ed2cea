//! Segment files: fixed-size pieces of the log's LSN space.
//!
//! The file `<first LSN, 20 digits>.wal` holds a header block of 4,096 bytes and then the bytes of LSNs
//! `[first, first + segment bytes)`; `first` is a multiple of the segment size. Records straddle segments. Every epoch
//! starts at a segment's beginning. Little-endian:
//!
//! | byte | size | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic: `HEADWAL` and a zero |
//! | 8 | 4 | format version: 1 |
//! | 12 | 4 | bytes of the cluster's name, 1 to 64 |
//! | 16 | 16 | cluster id |
//! | 32 | 8 | first LSN |
//! | 40 | 8 | segment bytes |
//! | 48 | 8 | ring bytes of the RW that created it |
//! | 56 | 8 | epoch in which it was created |
//! | 64 | 64 | cluster's name, then zeros |
//! | 128 | 3,960 | zeros |
//! | 4,088 | 8 | XXH3-64 of the bytes before it |
//!
//! A file gets its name only when it is whole: header, space for all its bytes and, in an epoch's first segment, the
//! epoch-start record are durable by then. So a segment file that is too short or has a bad header is damage, never
//! the trace of a crash.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use headwater_protocol::{Epoch, Lsn};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{FileError, OpenError};
use crate::record::WORD_BYTES;

/// Bytes of the log in the smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the log in the largest segment.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a cluster's name.
pub(crate) const CLUSTER_NAME_BYTES_MAX: usize = 64;

const MAGIC: [u8; 8] = *b"HEADWAL\0";
const VERSION: u32 = 1;

const VERSION_AT: usize = MAGIC.len();
const NAME_BYTES_AT: usize = VERSION_AT + size_of::<u32>();
const CLUSTER_ID_AT: usize = NAME_BYTES_AT + size_of::<u32>();
const FIRST_AT: usize = CLUSTER_ID_AT + 16;
const SEGMENT_BYTES_AT: usize = FIRST_AT + WORD_BYTES;
const RING_BYTES_AT: usize = SEGMENT_BYTES_AT + WORD_BYTES;
const EPOCH_AT: usize = RING_BYTES_AT + WORD_BYTES;
const NAME_AT: usize = EPOCH_AT + WORD_BYTES;
const ZEROS_AT: usize = NAME_AT + CLUSTER_NAME_BYTES_MAX;
/// Bytes of a segment file before its first log byte.
pub(crate) const BLOCK_BYTES: usize = 4096;
const CHECKSUM_AT: usize = BLOCK_BYTES - WORD_BYTES;
const _: () = assert!(ZEROS_AT == 128 && CHECKSUM_AT == 4088);

/// What a segment file says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) cluster: String,
    pub(crate) cluster_id: Uuid,
    pub(crate) first: Lsn,
    pub(crate) segment_bytes: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) epoch: Epoch,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(VERSION_AT, &VERSION.to_le_bytes());
        put(NAME_BYTES_AT, &(self.cluster.len() as u32).to_le_bytes());
        put(CLUSTER_ID_AT, self.cluster_id.as_bytes());
        put(FIRST_AT, &self.first.get().to_le_bytes());
        put(SEGMENT_BYTES_AT, &self.segment_bytes.to_le_bytes());
        put(RING_BYTES_AT, &self.ring_bytes.to_le_bytes());
        put(EPOCH_AT, &self.epoch.get().to_le_bytes());
        put(NAME_AT, self.cluster.as_bytes());
        let checksum = xxh3_64(&block[..CHECKSUM_AT]);
        block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// The header in the file's first block. The version is looked at before the checksum, whose place is the
    /// version's business.
    pub(crate) fn decode(block: &[u8; BLOCK_BYTES], file: &Path) -> Result<SegmentHeader, OpenError> {
        let bad = |what| OpenError::Header { file: file.to_owned(), what };
        let word = |at| u64::from_le_bytes(array(block, at));
        let half = |at| u32::from_le_bytes(array(block, at));
        if array(block, 0) != MAGIC {
            return Err(bad("it is not a Headwater log"));
        }
        let checksum_holds = xxh3_64(&block[..CHECKSUM_AT]) == word(CHECKSUM_AT);
        match half(VERSION_AT) {
            VERSION if checksum_holds => {}
            found if found > VERSION => {
                return Err(OpenError::Version { file: file.to_owned(), found, known: VERSION });
            }
            _ => return Err(bad("its checksum is wrong")),
        }
        let name = block[NAME_AT..ZEROS_AT].get(..half(NAME_BYTES_AT) as usize).unwrap_or_default();
        let cluster = std::str::from_utf8(name).unwrap_or_default().to_owned();
        let header = SegmentHeader {
            cluster,
            cluster_id: Uuid::from_bytes(array(block, CLUSTER_ID_AT)),
            first: Lsn::new(word(FIRST_AT)),
            segment_bytes: word(SEGMENT_BYTES_AT),
            ring_bytes: word(RING_BYTES_AT),
            epoch: Epoch::new(word(EPOCH_AT)),
        };
        if header.cluster.is_empty() {
            return Err(bad("the cluster's name is malformed"));
        }
        if !valid_segment_bytes(header.segment_bytes)
            || !header.first.get().is_multiple_of(header.segment_bytes)
        {
            return Err(bad("the segment's size or first LSN is impossible"));
        }
        Ok(header)
    }
}

/// Whether segments can have this size.
pub(crate) fn valid_segment_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes)
}

fn array<const N: usize>(block: &[u8; BLOCK_BYTES], at: usize) -> [u8; N] {
    block[at..].first_chunk().copied().expect("every field lies inside the block")
}

/// Where a log's bytes lie on disk.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) dir: PathBuf,
    pub(crate) segment_bytes: u64,
}

/// A segment file found in a log's directory.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFile {
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    /// Bytes of the file, its header block among them.
    pub(crate) file_bytes: u64,
}

/// All segment files of a directory by first LSN, their headers verified.
pub(crate) fn list(dir: &Path) -> Result<Vec<SegmentFile>, OpenError> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir).map_err(FileError::of("list", dir))? {
        let path = entry.map_err(FileError::of("list", dir))?.path();
        if path.extension().is_none_or(|extension| extension != "wal") {
            continue;
        }
        let file = File::open(&path).map_err(FileError::of("open", &path))?;
        let file_bytes = file.metadata().map_err(FileError::of("inspect", &path))?.len();
        let mut block = [0; BLOCK_BYTES];
        if file_bytes < BLOCK_BYTES as u64 {
            return Err(OpenError::Header { file: path, what: "it is shorter than a header" });
        }
        file.read_exact_at(&mut block, 0).map_err(FileError::of("read", &path))?;
        let header = SegmentHeader::decode(&block, &path)?;
        if path.file_name().is_none_or(|name| name != file_name(header.first).as_str()) {
            return Err(OpenError::Header { file: path, what: "its first LSN is not the one in its name" });
        }
        segments.push(SegmentFile { path, header, file_bytes });
    }
    segments.sort_by_key(|segment| segment.header.first);
    Ok(segments)
}

fn file_name(first: Lsn) -> String {
    format!("{:020}.wal", first.get())
}

impl Layout {
    /// First LSN of the segment that holds the byte at `lsn`.
    pub(crate) fn first(&self, lsn: Lsn) -> Lsn {
        Lsn::new(lsn.get() - lsn.get() % self.segment_bytes)
    }

    /// The first segment's beginning at or after `lsn`.
    pub(crate) fn boundary(&self, lsn: Lsn) -> Lsn {
        self.first(lsn.advance(self.segment_bytes - 1))
    }

    /// The file that holds the byte at `lsn`.
    pub(crate) fn path(&self, lsn: Lsn) -> PathBuf {
        self.dir.join(file_name(self.first(lsn)))
    }

    /// Where in its file the byte at `lsn` lies.
    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        BLOCK_BYTES as u64 + lsn.get() % self.segment_bytes
    }

    /// Bytes of a whole segment file.
    pub(crate) fn file_bytes(&self) -> u64 {
        BLOCK_BYTES as u64 + self.segment_bytes
    }

    /// Words from `lsn` on that lie in the same segment, at most `words`.
    fn words_until_boundary(&self, lsn: Lsn, words: usize) -> usize {
        let bytes = self.first(lsn).advance(self.segment_bytes).since(lsn);
        words.min(bytes as usize / WORD_BYTES)
    }

    /// Reads the words from `from` on, which must be in segment files.
    pub(crate) fn read(&self, mut from: Lsn, mut out: &mut [u64]) -> Result<(), FileError> {
        while !out.is_empty() {
            let (part, rest) = out.split_at_mut(self.words_until_boundary(from, out.len()));
            let path = self.path(from);
            let file = File::open(&path).map_err(FileError::of("open", &path))?;
            file.read_exact_at(bytemuck::cast_slice_mut(part), self.offset(from))
                .map_err(FileError::of("read", &path))?;
            from = from.advance(size_of_val(part) as u64);
            out = rest;
        }
        Ok(())
    }

    /// Creates a segment file whose log bytes are `records` and then zeros; durable, name and all, when this returns.
    /// After an error there is no such file.
    pub(crate) fn create(&self, header: &SegmentHeader, records: &[u64]) -> Result<(), FileError> {
        let path = self.path(header.first);
        let unnamed = path.with_extension(UNNAMED);
        let created = self
            .fill(&unnamed, header, records)
            .and_then(|()| fs::rename(&unnamed, &path).map_err(FileError::of("name", &path)));
        if let Err(error) = created {
            // It frees the space that was taken; if it fails, the next start removes the file.
            let _ = fs::remove_file(&unnamed);
            return Err(error);
        }
        self.sync_dir()
    }

    fn fill(&self, path: &Path, header: &SegmentHeader, records: &[u64]) -> Result<(), FileError> {
        let file = File::create(path).map_err(FileError::of("create", path))?;
        reserve(&file, self.file_bytes()).map_err(FileError::of("reserve space for", path))?;
        file.write_all_at(&header.encode(), 0).map_err(FileError::of("write", path))?;
        file.write_all_at(bytemuck::cast_slice(records), self.offset(header.first))
            .map_err(FileError::of("write", path))?;
        file.sync_all().map_err(FileError::of("flush", path))
    }

    /// Makes the directory's names durable.
    pub(crate) fn sync_dir(&self) -> Result<(), FileError> {
        sync_dir(&self.dir)
    }

    /// Removes what an interrupted [`Layout::create`] has left.
    pub(crate) fn remove_unnamed(&self) -> Result<(), FileError> {
        for entry in fs::read_dir(&self.dir).map_err(FileError::of("list", &self.dir))? {
            let path = entry.map_err(FileError::of("list", &self.dir))?.path();
            if path.extension().is_some_and(|extension| extension == UNNAMED) {
                fs::remove_file(&path).map_err(FileError::of("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// Extension of a segment file that is not whole yet.
const UNNAMED: &str = "creating";

/// Makes a directory's names durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), FileError> {
    let opened = File::open(dir).map_err(FileError::of("open", dir))?;
    opened.sync_all().map_err(FileError::of("flush", dir))
}

/// Takes the space for a new file of `bytes` zeros, so that writing to it later finds no full disk (W5).
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; 1 << 16];
            let mut at = 0;
            while at < bytes {
                let part = zeros.len().min((bytes - at) as usize);
                file.write_all_at(&zeros[..part], at)?;
                at += part as u64;
            }
            Ok(())
        }
        other => other.map_err(Into::into),
    }
}

/// Writes log bytes to segment files that exist, one file open at a time.
pub(crate) struct SegmentWriter {
    layout: Layout,
    open: Option<(Lsn, PathBuf, File)>,
}

impl SegmentWriter {
    pub(crate) fn new(layout: Layout) -> SegmentWriter {
        SegmentWriter { layout, open: None }
    }

    /// Writes the words at `at`. A file that is left behind on the way is flushed.
    pub(crate) fn write(&mut self, mut at: Lsn, mut words: &[u64]) -> Result<(), FileError> {
        while !words.is_empty() {
            let (part, rest) = words.split_at(self.layout.words_until_boundary(at, words.len()));
            let offset = self.layout.offset(at);
            let (path, file) = self.file(at)?;
            let bytes: &[u8] = bytemuck::cast_slice(part);
            // Not `write_all_at`: a short write is a failure, and nothing is written after a failure (W5).
            let written = file.write_at(bytes, offset).map_err(FileError::of("write", path))?;
            if written != bytes.len() {
                return Err(FileError::of("write all of", path)(std::io::Error::from(
                    std::io::ErrorKind::WriteZero,
                )));
            }
            at = at.advance(bytes.len() as u64);
            words = rest;
        }
        Ok(())
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&mut self) -> Result<(), FileError> {
        match &self.open {
            Some((_, path, file)) => rustix::fs::fdatasync(file).map_err(FileError::of("flush", path)),
            None => Ok(()),
        }
    }

    fn file(&mut self, at: Lsn) -> Result<(&Path, &File), FileError> {
        let first = self.layout.first(at);
        if self.open.as_ref().is_none_or(|(open, ..)| *open != first) {
            self.sync()?;
            let path = self.layout.path(at);
            let file = File::options().write(true).open(&path).map_err(FileError::of("open", &path))?;
            self.open = Some((first, path, file));
        }
        let (_, path, file) = self.open.as_ref().expect("it was opened above");
        Ok((path, file))
    }
}
