//! What can go wrong, and what the caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

use headwater_protocol::{Epoch, Lsn};
use rustix::io::Errno;
use thiserror::Error;

/// What is wrong with the bytes at a place where a record, or a segment of records, should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Flaw {
    /// Nothing but zeros.
    #[error("no record: only zeros")]
    Zeros,
    /// A kind of record that this version does not know.
    #[error("unknown kind of record: {0}")]
    Kind(u8),
    /// A length that no record of its kind has.
    #[error("impossible length of {0} bytes")]
    Length(u64),
    /// Bytes that must be zero are not.
    #[error("bytes that must be zero are not")]
    NotZero,
    /// The record says that it ends elsewhere.
    #[error("it belongs to another place: it says that it ends at LSN {0}")]
    Lsn(Lsn),
    /// The record is of another epoch.
    #[error("it belongs to epoch {found}, not {expected}")]
    Epoch {
        /// The epoch that it carries.
        found: Epoch,
        /// The epoch that the log is in at this place.
        expected: Epoch,
    },
    /// It says that bytes after its own start were flushed before it was appended.
    #[error("it claims a flushed LSN of {0}, after its own start")]
    Flushed(Lsn),
    /// The chained checksum does not continue that of the record before it.
    #[error("its header does not continue the chained checksum")]
    Chain,
    /// The body does not have the checksum that the header says.
    #[error("its body does not have the checksum in its header")]
    Body,
    /// The checksums hold, but the body means nothing.
    #[error("its body is malformed")]
    Content,
    /// An epoch-start record that disagrees with the log's history, or one at a place where no epoch starts.
    #[error("it does not agree with the log's history of epochs")]
    History,
    /// It would reach past the end of the log's bytes.
    #[error("it reaches past the end of the log's bytes")]
    PastEnd,
    /// A segment file is not there.
    #[error("this segment file is missing")]
    Missing,
    /// A segment file has the wrong length.
    #[error("the segment file has {found} bytes, not {expected}")]
    FileLength {
        /// Bytes that it has.
        found: u64,
        /// Bytes that it should have.
        expected: u64,
    },
}

/// An operation on one file failed.
#[derive(Debug, Error)]
#[error("cannot {op} {}: {source}", file.display())]
pub struct FileError {
    /// What was tried: a verb.
    pub op: &'static str,
    /// The file or directory.
    pub file: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`: names the operation and the file.
    pub(crate) fn of<E: Into<io::Error>>(op: &'static str, file: &Path) -> impl FnOnce(E) -> FileError {
        move |source| FileError { op, file: file.to_owned(), source: source.into() }
    }

    /// Whether the disk, or a quota on it, is full, or the process may open no more files: nothing is wrong with the disk, and
    /// somebody may make room.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            || self.is_want_of_files()
    }

    /// Whether a file was not opened because no more can be: it was not touched.
    pub(crate) fn is_want_of_files(&self) -> bool {
        let errno = self.source.raw_os_error().map(Errno::from_raw_os_error);
        matches!(self.op, "open" | "create")
            && matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }
}

/// Bytes that had been durable are not what they were. Boxed in errors: it is large and rare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The segment file.
    pub file: PathBuf,
    /// Byte in that file.
    pub offset: u64,
    /// The same place as a position in the log.
    pub lsn: Lsn,
    /// What is wrong there.
    pub what: Flaw,
}

/// Why a log was not opened. Nothing in it was changed.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The options make no sense: correct the configuration.
    #[error("invalid option: {0}")]
    InvalidOptions(&'static str),
    /// Another process has the log open: stop it, or use another directory.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The directory cannot be created or written: correct its path, owner or mode.
    #[error("{} is not writable: {source}", dir.display())]
    Unwritable {
        /// The log's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no log in this directory (only [`check`](crate::check) says so).
    #[error("there is no log in {}", .0.display())]
    NoLog(PathBuf),
    /// The log is another cluster's: correct the directory or the name.
    #[error("{} belongs to the cluster '{found}', not '{expected}'", file.display())]
    OtherCluster {
        /// The file that says so.
        file: PathBuf,
        /// The name in it.
        found: String,
        /// The name in the options.
        expected: String,
    },
    /// The log was made with segments of another size: configure that size.
    #[error("{} was made with segments of {found} bytes, not {expected}", file.display())]
    SegmentBytes {
        /// The file that says so.
        file: PathBuf,
        /// The size in it, bytes.
        found: u64,
        /// The size in the options, bytes.
        expected: u64,
    },
    /// A later version of Headwater wrote it: use that version.
    #[error("{} has format version {found}; this program knows version {known}", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this program reads and writes.
        known: u32,
    },
    /// A segment file's header is damaged, or is not of this log: restore the file.
    #[error("{} does not begin with a valid segment header: {what}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The log is damaged where it had been durable: restore it, or rebuild from another node. Starting anyway
    /// would lose acknowledged writes.
    #[error(
        "the log is damaged at LSN {} (byte {} of {}): {}; these bytes had been durable, so the log is not opened; \
         `headwater wal check` shows more", .0.lsn, .0.offset, .0.file.display(), .0.what
    )]
    Damaged(Box<Damage>),
    /// A record in the log is larger than the ring, by which every RO gets it: configure a larger one.
    #[error(
        "the log has a record of {record_bytes} bytes at LSN {lsn}, and a ring of {ring_bytes} cannot carry it to ROs"
    )]
    RingBytes {
        /// The record's LSN.
        lsn: Lsn,
        /// Its bytes.
        record_bytes: u64,
        /// The ring's size in the options, bytes.
        ring_bytes: u64,
    },
    /// A change in the log was not accepted: the log and the program disagree.
    #[error("the record that ends at LSN {lsn} cannot be applied: {what}")]
    Replay {
        /// The record's LSN.
        lsn: Lsn,
        /// What the state machine said.
        what: String,
    },
    /// The disk or the file system failed.
    #[error(transparent)]
    Io(#[from] FileError),
}

/// A determinate refusal: nothing was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AppendError {
    /// As much is in flight as is allowed (W6): try again later.
    #[error("the log has as many unflushed bytes as it allows")]
    Overloaded,
    /// No disk space is left for it (W5): it heals by itself when there is room.
    #[error("the log has no room to grow")]
    DiskFull,
    /// The log was closed, or its disk failed: this process appends no more.
    #[error("the log is closed")]
    Closed,
}

/// A write or flush failed: nothing more will be flushed by this process (W5). What was appended and not flushed
/// may or may not be found by a restart.
#[derive(Debug, Error)]
#[error("the log can no longer be written: {0}")]
pub struct FlushError(#[from] pub FileError);

/// Why log bytes were not read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The range is not wholly inside the flushed bytes of one epoch.
    #[error("the log has no flushed bytes from LSN {from} to {to} in one epoch")]
    OutOfRange {
        /// Where the range begins.
        from: Lsn,
        /// Where it ends.
        to: Lsn,
    },
    /// No record begins there.
    #[error("no record begins at LSN {at}: {what}")]
    NotARecord {
        /// The place.
        at: Lsn,
        /// What is wrong there.
        what: Flaw,
    },
    /// The disk or the file system failed.
    #[error(transparent)]
    Io(#[from] FileError),
}

/// The bytes were, or may have been, overwritten in the ring while they were copied (S5), or were never in it: read
/// them from the segment files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the ring no longer holds these bytes")]
pub struct Overwritten;

/// Bytes in the ring that should be a record are none (S2): wait, or have them written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("no valid record at LSN {at}: {what}")]
pub struct Unverified {
    /// Where the record should begin.
    pub at: Lsn,
    /// What is wrong there.
    pub what: Flaw,
}
