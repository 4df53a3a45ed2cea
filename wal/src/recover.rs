//! Reading a log back: every record verified, a torn tail told from a damaged middle.
//!
//! A crash can leave any part of what was not flushed on disk, in any order of sectors. So where the newest epoch's
//! records stop verifying, the log is *torn* and ends there, unless something proves that the bytes there had been
//! durable; then it is *damaged*, and going on would lose acknowledged writes. The proofs:
//!
//! - a later epoch: it began at the end of what was recovered, and its start says where that was;
//! - a later record of the same epoch whose flushed LSN is past the place;
//! - a segment file that is missing or too short: files get their name whole (see `segment.rs`).

use std::path::{Path, PathBuf};

use headwater_protocol::{Epoch, EpochStart, History, Lsn};
use uuid::Uuid;

use crate::cursor::Cursor;
use crate::error::{Damage, FileError, Flaw, OpenError};
use crate::record::{
    BODY_BYTES_MAX, EPOCH_START_BYTES, HEADER_BYTES, HEADER_WORDS, Header, Kind, Record, RecordInfo,
    WORD_BYTES,
};
use crate::record::{body_words, record_bytes};
use crate::segment::{self, Layout, SegmentFile, SegmentWriter};

/// Words that are read from disk at a time.
const CHUNK_WORDS: usize = (1 << 20) / WORD_BYTES;

/// What a log holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The cluster's name.
    pub cluster: String,
    /// The cluster's id.
    pub cluster_id: Uuid,
    /// Its epochs.
    pub history: History,
    /// Valid records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The end of the last valid record.
    pub end: Lsn,
    /// The chained checksum there.
    pub chain: u64,
    /// The log is known to have been durable up to here: the last record says so.
    pub flushed: Lsn,
    /// What lies after the last valid record, if anything: the next start cuts it.
    pub torn: Option<Torn>,
    /// Whether the log was stopped in order: then nothing is missing from its end.
    pub closed: bool,
}

/// A torn tail: bytes after the last valid record that were never durable as far as the log shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The segment file in which it begins.
    pub file: PathBuf,
    /// Byte in that file.
    pub offset: u64,
    /// The same place as a position in the log.
    pub lsn: Lsn,
    /// Bytes from there to the last that is not zero.
    pub bytes: u64,
    /// Why the first of them are no record.
    pub what: Flaw,
}

/// Verifies a log and shows each record with its file and the byte in it. Read-only, takes no lock: of a log in use
/// it sees some moment's state, and may see a record half written as a torn tail.
///
/// Fails as [`Wal::open`](crate::Wal::open) would, at damage after showing the records before it.
pub fn check(
    dir: &Path,
    visit: &mut dyn FnMut(&Path, u64, &RecordInfo, &Record),
) -> Result<Report, OpenError> {
    let log = Found::read(dir)?.ok_or_else(|| OpenError::NoLog(dir.to_owned()))?;
    log.walk(&mut |info, record| {
        visit(&log.layout.path(info.start), log.layout.offset(info.start), &info, &record);
        Ok(())
    })
}

/// One epoch's segment files, by first LSN.
///
/// - They are contiguous from the epoch's start to its end; in the newest epoch all are whole.
struct EpochFiles {
    start: EpochStart,
    ring_bytes: u64,
    files: Vec<SegmentFile>,
}

impl EpochFiles {
    /// The end of the LSN space that its files hold.
    fn end(&self) -> Lsn {
        let last = &self.files[self.files.len() - 1].header;
        last.first.advance(last.segment_bytes)
    }
}

/// A log as its files present themselves: headers and epoch starts verified, no other record looked at.
///
/// - There is at least one epoch; the first starts at LSN 0.
pub(crate) struct Found {
    pub(crate) layout: Layout,
    pub(crate) cluster: String,
    pub(crate) cluster_id: Uuid,
    pub(crate) history: History,
    epochs: Vec<EpochFiles>,
}

impl Found {
    /// Looks at a directory. None: there is no log in it.
    pub(crate) fn read(dir: &Path) -> Result<Option<Found>, OpenError> {
        let files = segment::list(dir)?;
        let Some(first) = files.first().map(|file| file.header.clone()) else { return Ok(None) };
        let layout = Layout { dir: dir.to_owned(), segment_bytes: first.segment_bytes };
        for file in &files {
            let same = file.header.cluster_id == first.cluster_id
                && file.header.cluster == first.cluster
                && file.header.segment_bytes == first.segment_bytes;
            if !same {
                return Err(OpenError::Header { file: file.path.clone(), what: "it belongs to another log" });
            }
        }
        let mut log = Found {
            layout,
            cluster: first.cluster,
            cluster_id: first.cluster_id,
            history: History::default(),
            epochs: Vec::new(),
        };
        for files in files.chunk_by(|a, b| a.header.epoch == b.header.epoch) {
            log.add_epoch(files)?;
        }
        log.check_files()?;
        Ok(Some(log))
    }

    /// Reads and verifies the epoch's start; it was durable before its file had a name.
    fn add_epoch(&mut self, files: &[SegmentFile]) -> Result<(), OpenError> {
        let SegmentFile { header, path, file_bytes } = &files[0];
        let damaged = |what| self.damaged(header.first, what);
        if self.epochs.is_empty() && header.first > Lsn::ZERO {
            return Err(self.damaged(Lsn::ZERO, Flaw::Missing));
        }
        if *file_bytes < self.layout.offset(header.first) + EPOCH_START_RECORD_BYTES {
            let expected = self.layout.file_bytes();
            return Err(damaged(Flaw::FileLength { found: *file_bytes, expected }));
        }
        let mut words = [0; EPOCH_START_RECORD_BYTES as usize / WORD_BYTES];
        self.layout.read(header.first, &mut words)?;
        let (head, body) =
            words.split_first_chunk::<HEADER_WORDS>().expect("a record is longer than its header");
        let head = Header::decode(head, header.first, header.epoch).map_err(damaged)?;
        if head.lsn.since(header.first) != EPOCH_START_RECORD_BYTES {
            // An epoch's first segment is missing: this one begins inside the epoch.
            return Err(damaged(Flaw::History));
        }
        let Record::EpochStart(start, cluster_id, ring_bytes) = head.record(body).map_err(damaged)? else {
            return Err(damaged(Flaw::History));
        };
        if !head.continues(start.previous_chain) {
            return Err(damaged(Flaw::Chain));
        }
        if cluster_id != self.cluster_id {
            return Err(OpenError::Header {
                file: path.clone(),
                what: "its epoch start is of another cluster",
            });
        }
        let in_order = start.start == header.first
            && match self.history.current() {
                None => {
                    start.start == Lsn::ZERO && start.previous_end == Lsn::ZERO && start.previous_chain == 0
                }
                Some(before) => {
                    before.epoch < start.epoch
                        && before.start < start.previous_end
                        && start.previous_end <= start.start
                }
            };
        if !in_order {
            return Err(damaged(Flaw::History));
        }
        self.history.0.push(start);
        self.epochs.push(EpochFiles { start, ring_bytes, files: files.to_vec() });
        Ok(())
    }

    /// Checks that every file is there, as long as it must be.
    fn check_files(&self) -> Result<(), OpenError> {
        for epoch in &self.epochs {
            let end = self.history.end_of_epoch_at(epoch.start.start);
            let mut expected = epoch.start.start;
            for file in epoch.files.iter().filter(|file| end.is_none_or(|end| file.header.first < end)) {
                let first = file.header.first;
                if first != expected {
                    return Err(self.damaged(expected, Flaw::Missing));
                }
                expected = first.advance(self.layout.segment_bytes);
                // Of an epoch that ended, the last file is cut to the end.
                let whole = self.layout.file_bytes();
                let needed = match end {
                    Some(end) if end < expected => self.layout.offset(end),
                    _ => whole,
                };
                if file.file_bytes < needed || file.file_bytes > whole {
                    return Err(
                        self.damaged(first, Flaw::FileLength { found: file.file_bytes, expected: needed })
                    );
                }
            }
            if end.is_some_and(|end| expected < end) {
                return Err(self.damaged(expected, Flaw::Missing));
            }
        }
        Ok(())
    }

    fn newest(&self) -> &EpochFiles {
        &self.epochs[self.epochs.len() - 1]
    }

    fn damaged(&self, lsn: Lsn, what: Flaw) -> OpenError {
        let (file, offset) = (self.layout.path(lsn), self.layout.offset(lsn));
        OpenError::Damaged(Box::new(Damage { file, offset, lsn, what }))
    }

    /// Verifies every record in order and gives it to `visit`, whose error becomes [`OpenError::Replay`].
    pub(crate) fn walk(
        &self,
        visit: &mut dyn FnMut(RecordInfo, Record) -> Result<(), String>,
    ) -> Result<Report, OpenError> {
        let mut cursor = Cursor::new(self.history.clone(), Lsn::ZERO, 0);
        let mut window = Window { layout: &self.layout, begin: Lsn::ZERO, words: Vec::new() };
        let (mut records, mut bytes, mut flushed, mut closed) = (0, 0, Lsn::ZERO, false);
        let torn = loop {
            let start = cursor.next_start();
            let limit = self.history.end_of_epoch_at(start).unwrap_or(self.newest().end());
            match window.next(&mut cursor, limit)? {
                Ok((info, record)) => {
                    records += 1;
                    bytes += info.end.since(info.start);
                    flushed = info.flushed;
                    closed = info.kind == Kind::Close;
                    visit(info, record).map_err(|what| OpenError::Replay { lsn: info.end, what })?;
                }
                Err(flaw) if start <= self.newest().start.start => return Err(self.damaged(start, flaw)),
                Err(flaw) => break self.judge(start, flaw)?,
            }
        };
        Ok(Report {
            cluster: self.cluster.clone(),
            cluster_id: self.cluster_id,
            history: self.history.clone(),
            records,
            bytes,
            end: cursor.end(),
            chain: cursor.chain(),
            flushed,
            torn,
            closed,
        })
    }

    /// The newest epoch's records end at `end`, where there is `flaw`: is the rest torn, damaged or empty?
    fn judge(&self, end: Lsn, flaw: Flaw) -> Result<Option<Torn>, OpenError> {
        let files_end = self.newest().end();
        let mut last_byte = end;
        let mut words = Vec::new();
        let mut at = end;
        while at < files_end {
            words.resize(CHUNK_WORDS.min(files_end.since(at) as usize / WORD_BYTES), 0);
            self.layout.read(at, &mut words)?;
            for (i, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
                let place = at.advance((i * WORD_BYTES) as u64);
                last_byte =
                    place.advance((word.to_le_bytes().iter().rposition(|b| *b != 0).unwrap_or(0) + 1) as u64);
                if let Some(head) = words[i..].first_chunk()
                    && self.proves(head, place, end)?
                {
                    return Err(self.damaged(end, flaw));
                }
            }
            // Chunks overlap by less than a header, so that each header lies whole in one of them.
            let step = if words.len() == CHUNK_WORDS { CHUNK_WORDS - HEADER_WORDS + 1 } else { words.len() };
            at = at.advance((step * WORD_BYTES) as u64);
        }
        let torn = Torn {
            file: self.layout.path(end),
            offset: self.layout.offset(end),
            lsn: end,
            bytes: last_byte.since(end),
            what: flaw,
        };
        Ok((torn.bytes > 0).then_some(torn))
    }

    /// Whether a record that is consistent in itself begins at `place` and says that the log was durable past `end`.
    fn proves(&self, head: &[u64; HEADER_WORDS], place: Lsn, end: Lsn) -> Result<bool, FileError> {
        let Ok(header) = Header::decode(head, place, self.newest().start.epoch) else { return Ok(false) };
        if header.flushed <= end || header.lsn > self.newest().end() {
            return Ok(false);
        }
        let mut body = vec![0; body_words(header.body_bytes)];
        self.layout.read(place.advance(HEADER_BYTES as u64), &mut body)?;
        Ok(header.verify(&body).is_ok())
    }

    /// Makes what was recovered durable before it is believed (W7).
    ///
    /// What was not known to be flushed is written again first: after a flush that failed, the system may hold those
    /// bytes as clean although the disk never got them, so that flushing alone would do nothing.
    pub(crate) fn make_durable(&self, report: &Report) -> Result<(), FileError> {
        let end = report.end;
        let mut writer = SegmentWriter::new(self.layout.clone());
        let mut words = Vec::new();
        let mut at = report.flushed.max(self.newest().start.start);
        while at < end {
            words.resize(CHUNK_WORDS.min(end.since(at) as usize / WORD_BYTES), 0);
            self.layout.read(at, &mut words)?;
            writer.write(at, &words)?;
            at = at.advance((words.len() * WORD_BYTES) as u64);
        }
        writer.sync()?;
        self.layout.sync_dir()
    }

    /// The first LSN that the epoch before can never have handed out (E2), for a log that ends at `end`.
    ///
    /// It had at most a ring in flight past what was flushed (W6), and nothing past the space it had reserved.
    pub(crate) fn next_epoch_start(&self, end: Lsn) -> Lsn {
        self.layout.boundary(end.advance(self.newest().ring_bytes)).max(self.newest().end())
    }

    /// The epoch after the newest.
    pub(crate) fn next_epoch(&self) -> Epoch {
        self.newest().start.epoch.next()
    }

    /// Removes the segment files of each epoch past its end, `end` being the newest one's. Last files first: what is
    /// left by a crash on the way is still without gaps.
    pub(crate) fn remove_unused(&self, end: Lsn) -> Result<(), FileError> {
        for epoch in &self.epochs {
            let end = self.history.end_of_epoch_at(epoch.start.start).unwrap_or(end);
            for file in epoch.files.iter().rev().take_while(|file| file.header.first >= end) {
                remove_if_there(&file.path)?;
            }
        }
        Ok(())
    }

    /// Cuts the newest epoch's last file to its end. Only after the next epoch is durable, which says where the end
    /// is: until then a short file is damage.
    pub(crate) fn cut(&self, end: Lsn) -> Result<(), FileError> {
        for epoch in &self.epochs {
            let end = self.history.end_of_epoch_at(epoch.start.start).unwrap_or(end);
            let needed = self.layout.offset(end);
            let last = epoch.files.iter().rfind(|file| file.header.first < end);
            if let Some(last) = last
                && self.layout.first(end) == last.header.first
                && last.file_bytes > needed
            {
                let file = std::fs::File::options().write(true).open(&last.path);
                file.and_then(|file| file.set_len(needed).and_then(|()| file.sync_all()))
                    .map_err(FileError::of("cut", &last.path))?;
            }
        }
        Ok(())
    }
}

fn remove_if_there(path: &Path) -> Result<(), FileError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::of("remove", path)(error))
        }
        _ => Ok(()),
    }
}

const EPOCH_START_RECORD_BYTES: u64 = record_bytes(EPOCH_START_BYTES);

/// A stretch of the log's words in memory, read ahead.
struct Window<'a> {
    layout: &'a Layout,
    begin: Lsn,
    words: Vec<u64>,
}

impl Window<'_> {
    /// The cursor's next record, if it lies before `limit` and verifies; the outer error is the disk's.
    fn next(
        &mut self,
        cursor: &mut Cursor,
        limit: Lsn,
    ) -> Result<Result<(RecordInfo, Record), Flaw>, FileError> {
        let start = cursor.next_start();
        if limit.since(start) < HEADER_BYTES as u64 {
            return Ok(Err(Flaw::PastEnd));
        }
        let words = self.get(start, HEADER_WORDS, limit)?;
        let head = words.first_chunk().expect("as many words as were asked for");
        let header = match cursor.header(head) {
            Ok(header) if header.lsn > limit => return Ok(Err(Flaw::PastEnd)),
            Ok(header) => header,
            Err(flaw) => return Ok(Err(flaw)),
        };
        let body = self.get(start.advance(HEADER_BYTES as u64), body_words(header.body_bytes), limit)?;
        Ok(cursor.step(&header, body).map(|record| (header.info(), record)))
    }

    /// The words `[from, from + count)`, which lie before `limit`. The count is bounded: it is a header's, or comes
    /// from one that was verified.
    fn get(&mut self, from: Lsn, count: usize, limit: Lsn) -> Result<&[u64], FileError> {
        debug_assert!(count <= BODY_BYTES_MAX.div_ceil(WORD_BYTES), "{count}");
        let until = self.begin.advance((self.words.len() * WORD_BYTES) as u64);
        if from < self.begin || from.advance((count * WORD_BYTES) as u64) > until {
            self.words.resize(CHUNK_WORDS.min(limit.since(from) as usize / WORD_BYTES).max(count), 0);
            self.layout.read(from, &mut self.words)?;
            self.begin = from;
        }
        let skip = from.since(self.begin) as usize / WORD_BYTES;
        Ok(&self.words[skip..skip + count])
    }
}
