//! A process that may open no more files. Alone in its program: others would be short of them, too.

mod support;

use std::fs::File;
use std::time::Instant;

use headwater_protocol::Lsn;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::*;

/// W5: a file that could not be opened was not touched. The log waits for a descriptor, and goes on.
#[test]
fn the_log_outlives_a_want_of_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let limit = Rlimit { current: Some(64), maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }

    log.spawn_flusher();
    let mut written = vec![change(0, 1000)];
    log.append(&written[0]);
    let began = Instant::now();
    while !log.wal.disk_full() {
        assert!(began.elapsed() < DEADLINE, "it says that it has no room");
        std::thread::yield_now();
    }
    assert_eq!(log.wal.flushed(), log.wal.recovered());
    drop(all);
    log.flush();
    while log.wal.flushed() < Lsn::new(3 * SEGMENT_BYTES) {
        let next = change(written.len() as u64, 1000);
        log.append_and_flush(&next);
        written.push(next);
    }
    drop(log);
    let replayed = Log::open(dir.path()).unwrap().replayed;
    assert_eq!(replayed.into_iter().map(|(change, _)| change).collect::<Vec<_>>(), written);
}
