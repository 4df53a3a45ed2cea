//! A write that writes less than it was told (W5). Alone in its program: the limit that causes it is the process's.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

mod support;

use std::sync::mpsc;

use headwater_wal::{AppendError, Prepared, spawn_flusher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::*;

/// No file of this process grows past the limit as long as this lives. Then it is lifted again: what the test reports may go to a
/// file too.
struct FileLimit(Rlimit);

impl FileLimit {
    fn set(bytes: u64) -> FileLimit {
        let before = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), maximum: before.maximum }).unwrap();
        FileLimit(before)
    }
}

impl Drop for FileLimit {
    fn drop(&mut self) {
        setrlimit(Resource::Fsize, self.0).unwrap();
    }
}

#[test]
fn a_short_write_is_final_and_not_continued() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    log.append(&change(0, 1000));
    let limit = 4096 + log.wal.recovered().get() + 100;
    // Past the limit a second write would end this process with SIGXFSZ; the first is cut short by it.
    let _limit = FileLimit::set(limit);
    let before = log.wal.flushed();
    let (failed, failures) = mpsc::channel();
    let flusher = spawn_flusher(
        log.wal.clone(),
        || {},
        |lsn| panic!("{lsn} flushed"),
        move |error| failed.send(error).unwrap(),
    );
    assert_eq!(failures.recv_timeout(DEADLINE).unwrap().0.op, "write all of");
    flusher.unwrap().stop();
    assert_eq!(log.wal.flushed(), before);
    assert_eq!(log.appender.append(&Prepared::new(&change(1, 1))), Err(AppendError::Closed));
}
