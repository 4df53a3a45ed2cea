//! Every byte of a small log changed, cut off or lost: either the log is refused, naming the place, or only records
//! are cut that nothing proves to have been durable. Never is anything else read than what was written.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use headwater_protocol::Lsn;
use headwater_wal::{Damage, Flaw, Kind, OpenError, Record, RecordInfo, Report, check};
use proptest::prelude::*;
use support::*;

const BLOCK_BYTES: u64 = 4096;

struct Written {
    file: PathBuf,
    offset: u64,
    info: RecordInfo,
    record: Record,
}

fn read(dir: &Path) -> (Vec<Written>, Result<Report, OpenError>) {
    let mut records = Vec::new();
    let report = check(dir, &mut |file, offset, info, record| {
        records.push(Written { file: file.to_owned(), offset, info: *info, record: record.clone() });
    });
    (records, report)
}

/// A log of two epochs with a few records each.
fn write_log(dir: &Path, close: bool) {
    for epoch in 0..2 {
        let mut log = Log::open(dir).unwrap();
        // Three in one batch, one that proves them durable, two more that prove nothing or little.
        for i in 0..3 {
            log.append(&change(10 * epoch + i, 20 + 7 * i as usize));
        }
        log.flush();
        log.append_and_flush(&change(10 * epoch + 3, 30));
        log.append(&change(10 * epoch + 4, 0));
        log.append(&change(10 * epoch + 5, 33));
        if close {
            log.close();
        }
    }
}

/// The log as written, its files, and what must happen when bytes of it are lost.
struct Model {
    dir: tempfile::TempDir,
    written: Vec<Written>,
    end: Lsn,
    files: Vec<PathBuf>,
    /// The log bytes of the file that holds the newest epoch's records.
    newest_file: Vec<u8>,
}

impl Model {
    fn new(close: bool) -> Model {
        let dir = tempfile::tempdir().unwrap();
        write_log(dir.path(), close);
        let (written, report) = read(dir.path());
        let mut files: Vec<PathBuf> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "wal"));
        files.sort();
        let newest_file = fs::read(&written.last().unwrap().file).unwrap().split_off(BLOCK_BYTES as usize);
        Model { dir, written, end: report.unwrap().end, files, newest_file }
    }

    /// Whether anything but the lost records themselves proves that the first of them had been durable.
    fn proven(&self, lost: &[usize]) -> bool {
        let (first, newest) = (&self.written[lost[0]].info, self.written.last().unwrap().info.epoch);
        let others = self.written.iter().enumerate().filter(|(i, _)| !lost.contains(i));
        first.epoch < newest
            || first.kind == Kind::EpochStart
            || others.into_iter().any(|(_, other)| other.info.flushed > first.start)
    }

    /// These records are not what they were.
    fn expect_lost(&self, lost: &[usize], what: &str) {
        let (read, report) = read(self.dir.path());
        let first = &self.written[lost[0]];
        for (read, written) in read.iter().zip(&self.written) {
            assert_eq!((&read.info, &read.record), (&written.info, &written.record), "{what}");
        }
        match report {
            Err(OpenError::Damaged(damage)) => {
                assert!(self.proven(lost), "{what}: refused without a proof: {damage:?}");
                let Damage { file, offset, lsn, .. } = *damage;
                assert_eq!(
                    (file, offset, lsn),
                    (first.file.clone(), first.offset, first.info.start),
                    "{what}"
                );
            }
            Err(error) => panic!("{what}: {error}"),
            Ok(report) => {
                assert!(!self.proven(lost), "{what}: a record was dropped that had been durable");
                assert_eq!((read.len(), report.end), (lost[0], first.info.start), "{what}");
                // Nothing but zeros may be left, and that is no torn tail.
                assert!(report.torn.is_none_or(|torn| torn.offset == first.offset), "{what}");
            }
        }
    }
}

fn change_byte(file: &Path, offset: u64, mask: u8, then: impl FnOnce()) {
    let handle = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    handle.read_exact_at(&mut byte, offset).unwrap();
    handle.write_all_at(&[byte[0] ^ mask], offset).unwrap();
    then();
    handle.write_all_at(&byte, offset).unwrap();
}

#[test]
fn every_changed_byte_of_a_record_is_found() {
    let model = Model::new(false);
    let mut outcomes = [0, 0];
    for (i, record) in model.written.iter().enumerate() {
        for byte in 0..record.info.end.since(record.info.start) {
            change_byte(&record.file, record.offset + byte, 1 << (byte % 8), || {
                model.expect_lost(&[i], &format!("record {i}, byte {byte}"));
            });
        }
        outcomes[usize::from(model.proven(&[i]))] += 1;
    }
    assert!(outcomes[0] >= 1 && outcomes[1] >= 10, "both outcomes were seen: {outcomes:?}");
}

#[test]
fn every_changed_byte_of_a_header_block_is_found() {
    let model = Model::new(false);
    for file in &model.files {
        for offset in 0..BLOCK_BYTES {
            change_byte(file, offset, 0x04, || match read(model.dir.path()).1 {
                Err(OpenError::Header { file: named, .. } | OpenError::Version { file: named, .. }) => {
                    assert_eq!(&named, file, "byte {offset}");
                }
                other => panic!("byte {offset} of {}: {other:?}", file.display()),
            });
        }
    }
}

#[test]
fn bytes_after_the_end_are_torn_and_cost_nothing() {
    let model = Model::new(false);
    let last = model.written.last().unwrap();
    let end_offset = last.offset + last.info.end.since(last.info.start);
    for offset in
        (end_offset..end_offset + 100).chain((end_offset + 100..BLOCK_BYTES + SEGMENT_BYTES).step_by(997))
    {
        change_byte(&last.file, offset, 0x10, || {
            let (read, report) = read(model.dir.path());
            let report = report.unwrap();
            assert_eq!((read.len(), report.end), (model.written.len(), model.end));
            let torn = report.torn.unwrap();
            assert_eq!((torn.offset, torn.bytes), (end_offset, offset + 1 - end_offset));
        });
    }
}

#[test]
fn after_a_close_nothing_before_it_is_cut() {
    let model = Model::new(true);
    let closing = model.written.len() - 1;
    assert_eq!(model.written[closing].info.kind, Kind::Close);
    for (i, record) in model.written[..closing].iter().enumerate() {
        assert!(model.proven(&[i]));
        for byte in 0..record.info.end.since(record.info.start) {
            change_byte(&record.file, record.offset + byte, 0x20, || {
                model.expect_lost(&[i], &format!("record {i}, byte {byte}"));
            });
        }
    }
}

#[test]
fn a_segment_file_is_whole_or_the_log_is_refused() {
    let model = Model::new(false);
    for file in &model.files {
        let bytes = fs::read(file).unwrap();
        // Every length inside the records, samples elsewhere.
        let short = (0..4090).step_by(61).chain(4090..5200).chain((5200..bytes.len()).step_by(1021));
        let short = short.take_while(|length| *length < bytes.len());
        for length in short {
            File::options().write(true).open(file).unwrap().set_len(length as u64).unwrap();
            match read(model.dir.path()).1 {
                Err(OpenError::Header { file: named, .. }) => {
                    assert_eq!((&named, length < 4096), (file, true))
                }
                Err(OpenError::Damaged(damage)) => assert_eq!(&damage.file, file, "{length}"),
                other => panic!("{length} bytes of {}: {other:?}", file.display()),
            }
            // What was cut off is written back from the end of what is left.
            let handle = File::options().write(true).open(file).unwrap();
            handle.write_all_at(&bytes[length..], length as u64).unwrap();
        }
        let aside = file.with_extension("aside");
        fs::rename(file, &aside).unwrap();
        let missing = read(model.dir.path()).1;
        if file == model.files.last().unwrap() {
            assert!(missing.is_ok(), "space that was reserved and never used");
        } else {
            assert!(matches!(missing, Err(OpenError::Damaged(_))), "{missing:?}");
        }
        fs::rename(&aside, file).unwrap();
    }
    // The newest epoch gone without a trace: the one before was cut to its end, which only a later one does.
    let newest = &model.written.last().unwrap().file;
    for file in model.files.iter().filter(|file| *file >= newest) {
        fs::remove_file(file).unwrap();
    }
    let Err(OpenError::Damaged(damage)) = read(model.dir.path()).1 else { panic!("accepted") };
    assert!(matches!(damage.what, Flaw::FileLength { .. }));
}

#[test]
fn a_refused_log_is_not_touched_and_a_cut_one_goes_on() {
    let model = Model::new(false);
    let contents = || model.files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>();
    let proven = &model.written[2];
    change_byte(&proven.file, proven.offset + 9, 1, || {
        let before = contents();
        let Err(OpenError::Damaged(damage)) = Log::open(model.dir.path()) else { panic!("accepted") };
        assert_eq!(damage.lsn, proven.info.start);
        assert!(before == contents());
    });

    let last = model.written.last().unwrap();
    let handle = File::options().write(true).open(&last.file).unwrap();
    handle.write_all_at(&[0xee], last.offset + 60).unwrap();
    let changes = model.written.iter().filter(|w| matches!(w.record, Record::Change(_))).count();
    for round in 0..2 {
        let log = Log::open(model.dir.path()).unwrap();
        assert_eq!(log.replayed.len(), changes - 1);
        let (_, report) = read(model.dir.path());
        assert_eq!(report.unwrap().torn, None);
        assert_eq!(log.wal.history().0.len(), 3 + round);
        assert_eq!(fs::metadata(&last.file).unwrap().len(), last.offset, "cut to the last valid record");
    }
}

#[test]
fn a_crash_while_the_next_epoch_begins_is_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    log.append_and_flush(&change(0, 40));
    let end = log.append_and_flush(&change(1, 40));
    wait_until("space is reserved ahead", || log.wal.space_left() > SEGMENT_BYTES);
    drop(log);
    // A torn tail, and reserved segments after it.
    let first = dir.path().join(format!("{:020}.wal", 0));
    let handle = File::options().write(true).open(&first).unwrap();
    handle.write_all_at(&[0xaa; 300], BLOCK_BYTES + end.get()).unwrap();
    let names: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let before: Vec<(PathBuf, Vec<u8>)> =
        names.into_iter().map(|n| (n.clone(), fs::read(n).unwrap())).collect();
    assert!(before.len() >= 3);

    let opened = Log::open(dir.path()).unwrap();
    let (epoch, start) = (opened.wal.epoch(), opened.wal.history().current().unwrap().start);
    assert!(start.get() >= (before.len() as u64 - 1) * SEGMENT_BYTES, "past all space that was reserved");
    drop(opened);
    // As if it had crashed after the new epoch was durable, before anything was cut or removed.
    for (name, bytes) in &before {
        fs::write(name, bytes).unwrap();
    }
    fs::write(dir.path().join("00000000000000999424.creating"), b"half a segment").unwrap();
    let (_, report) = read(dir.path());
    assert_eq!(report.unwrap().torn, None, "the new epoch says where the old one ended");
    let log = Log::open(dir.path()).unwrap();
    assert_eq!(log.replayed.iter().map(|(c, _)| number(c)).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(log.wal.epoch(), epoch.next());
    assert_eq!(fs::metadata(&first).unwrap().len(), BLOCK_BYTES + end.get());
    assert!(
        fs::read_dir(dir.path()).unwrap().all(|e| e
            .unwrap()
            .path()
            .extension()
            .is_none_or(|e| e != "creating"))
    );
}

#[test]
fn a_missing_segment_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    while log.wal.flushed().get() < 3 * SEGMENT_BYTES {
        log.append_and_flush(&change(1, 3000));
    }
    drop(log);
    for segment in 0..3 {
        let file = dir.path().join(format!("{:020}.wal", segment * SEGMENT_BYTES));
        let aside = file.with_extension("aside");
        fs::rename(&file, &aside).unwrap();
        let Err(OpenError::Damaged(damage)) = read(dir.path()).1 else { panic!("{segment} is missing") };
        assert_eq!((damage.file, damage.what), (file.clone(), Flaw::Missing));
        fs::rename(&aside, &file).unwrap();
    }
    assert!(read(dir.path()).1.is_ok());
}

/// The search for a proof goes through the log a chunk at a time; a header across two chunks must not be missed.
#[test]
fn a_proof_is_found_wherever_it_begins() {
    const CHUNK_BYTES: u64 = 1 << 20;
    for words_before in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let options = headwater_wal::WalOptions { segment_bytes: 4 << 20, ..options(dir.path()) };
        let mut log = Log::open_with(options, 2 << 20).unwrap();
        let lost = log.wal.recovered();
        let filler = log.append(&change(0, 40)).advance(48 + 8 + 7);
        let proof = lost.advance(CHUNK_BYTES - 8 * words_before);
        let bytes = proof.since(filler) as usize;
        assert_eq!(log.append(&change(1, bytes)), proof);
        log.flush();
        let end = log.append_and_flush(&change(2, 40));
        drop(log);
        let (records, report) = read(dir.path());
        assert_eq!((records.len(), report.unwrap().end), (4, end));
        let file = dir.path().join(format!("{:020}.wal", 0));
        change_byte(&file, BLOCK_BYTES + lost.get() + 50, 1, || {
            let Err(OpenError::Damaged(damage)) = read(dir.path()).1 else {
                panic!("{words_before} words before")
            };
            assert_eq!(damage.lsn, lost);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// What a crash leaves when sectors of the last batches were not written, in any place and of any size.
    #[test]
    fn lost_stretches_are_torn_or_proven_damaged(from: prop::sample::Index, words in 1..120usize, garbage: bool) {
        thread_local!(static MODEL: Model = Model::new(false));
        MODEL.with(|model| {
            let newest: Vec<usize> = (0..model.written.len())
                .filter(|i| model.written[*i].info.epoch == model.written.last().unwrap().info.epoch)
                .collect();
            let (start, end) = (model.written[newest[0]].info.end, model.end);
            let from = start.advance(from.index(end.since(start) as usize / 8) as u64 * 8);
            let to = from.advance(words as u64 * 8).min(end);
            let file = &model.written[newest[0]].file;
            let offset = BLOCK_BYTES + from.get() % SEGMENT_BYTES;
            let handle = File::options().read(true).write(true).open(file).unwrap();
            let mut was = vec![0; to.since(from) as usize];
            // From memory, not from the file: a case before may have failed and left it changed.
            handle.write_all_at(&model.newest_file, BLOCK_BYTES).unwrap();
            handle.read_exact_at(&mut was, offset).unwrap();
            let lost: Vec<u8> = was.iter().map(|byte| if garbage { !byte } else { 0 }).collect();
            handle.write_all_at(&lost, offset).unwrap();
            let touched = |i: &usize| {
                let info = &model.written[*i].info;
                let (a, b) = (from.max(info.start), to.min(info.end));
                a < b && {
                    let part = a.since(from) as usize..b.since(from) as usize;
                    was[part.clone()] != lost[part]
                }
            };
            let hit: Vec<usize> = newest.iter().copied().filter(|i| touched(i)).collect();
            if !hit.is_empty() {
                model.expect_lost(&hit, &format!("lost from {from} to {to}"));
            }
        });
    }
}
