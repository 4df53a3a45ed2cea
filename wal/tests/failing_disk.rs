//! Disks that fail or are full (W5).

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater_protocol::Lsn;
use headwater_wal::{AppendError, Prepared, check, spawn_flusher};
use support::*;

/// Opens a log whose segment file then becomes `device`, flushes, and expects the failure to be final.
fn expect_failure(device: &str, op: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(dir.path()).unwrap();
    let (segment, aside) = (dir.path().join(format!("{:020}.wal", 0)), dir.path().join("aside"));
    let before = log.wal.flushed();
    log.append(&change(0, 10));
    fs::rename(&segment, &aside).unwrap();
    std::os::unix::fs::symlink(device, &segment).unwrap();

    let (batches, flushes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (failed, failures) = std::sync::mpsc::channel();
    let count = |counter: &Arc<AtomicUsize>| {
        let counter = counter.clone();
        move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (on_batch, on_flush) = (count(&batches), count(&flushes));
    let flusher = spawn_flusher(
        log.wal.clone(),
        on_batch,
        move |_| on_flush(),
        move |error| failed.send(error).unwrap(),
    );
    let error = failures.recv_timeout(DEADLINE).unwrap();
    assert_eq!((error.0.op, &error.0.file), (op, &segment), "{error}");
    assert_eq!(log.appender.append(&Prepared::new(&change(1, 10))), Err(AppendError::Closed));
    assert_eq!(log.appender.close(), Err(AppendError::Closed), "and does not wait for ever");
    flusher.unwrap().stop();
    assert!(failures.recv().is_err(), "it is told once");
    assert_eq!((batches.load(Ordering::Relaxed), flushes.load(Ordering::Relaxed)), (1, 0));
    assert_eq!(log.wal.flushed(), before);
}

#[test]
fn a_failed_write_is_final() {
    expect_failure("/dev/full", "write");
}

#[test]
fn a_failed_flush_is_final() {
    // It takes every write, and cannot be flushed.
    expect_failure("/dev/null", "flush");
}

/// A small file system of its own.
struct Tmpfs<'a>(&'a Path);

impl Tmpfs<'_> {
    fn mount(&self, options: &str) -> bool {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.0).output();
        mount.is_ok_and(|output| output.status.success())
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Tmpfs(dir.path());
    if !disk.mount("size=512k") {
        eprintln!("SKIPPED: a full disk cannot be tried, as this user may not mount a tmpfs");
        return;
    }
    let log_dir = disk.0.join("log");
    let mut log = Log::open(&log_dir).unwrap();
    log.spawn_flusher();
    let mut written = 0;
    let mut append_until_full = |log: &mut Log| {
        wait_until("the disk is full", || match log.appender.append(&Prepared::new(&change(written, 500))) {
            Ok(_) => {
                written += 1;
                false
            }
            Err(error) => error == AppendError::DiskFull,
        });
        written
    };
    let first = append_until_full(&mut log);
    assert!(first > 100 && log.wal.disk_full());
    log.flush();
    log.wal.read(Lsn::ZERO, &mut [0; 8000]).unwrap();
    assert!(
        fs::read_dir(&log_dir).unwrap().all(|e| e
            .unwrap()
            .path()
            .extension()
            .is_none_or(|e| e != "creating"))
    );

    // A segment was left to the next start, so that a full disk does not keep it from starting.
    log.close();
    let mut log = Log::open(&log_dir).unwrap();
    assert_eq!(log.replayed.len() as u64, first);
    log.spawn_flusher();
    let second = append_until_full(&mut log);
    assert!(disk.mount("remount,size=2m"));
    wait_until("it heals", || !log.wal.disk_full());
    let third = append_until_full(&mut log);
    assert!(third > second + 500, "{first} {second} {third}");
    log.close();
    let report = check(&log_dir, &mut |_, _, _, _| ()).unwrap();
    assert!(report.closed && report.records > third);
}
