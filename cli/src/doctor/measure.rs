//! What takes time: the disk and the loopback.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};

use super::Check;
use crate::units;

const FLUSHES: usize = 200;
const BLOCK_BYTES: usize = 4096;
const ROUND_TRIPS: usize = 1000;

/// A flush slower than this makes every write slow.
const FLUSH_P99_MAX: Duration = Duration::from_millis(10);
/// A flush faster than this is no flush: memory, or a disk that says it is done when it is not.
const FLUSH_P50_MIN: Duration = Duration::from_micros(5);
const LOOPBACK_P99_MAX: Duration = Duration::from_millis(1);

/// Half of the times are at most the first, 99% at most the second.
pub(super) fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Times what a commit waits for, on the disk of that folder.
pub(crate) fn fdatasync(dir: &Path) -> Check {
    let check = format!("fdatasync in {}", dir.display());
    match flush_times(dir).map(quantiles) {
        Err(e) => {
            Check::fail(&check, e.to_string(), "an RW cannot keep its log there: check path, owner and room")
        }
        Ok((p50, p99)) => {
            let found = format!("p50 {}, p99 {}", units::time(p50), units::time(p99));
            if p99 > FLUSH_P99_MAX {
                Check::warn(&check, found, "slow: every commit waits for one; use a local SSD or NVMe disk")
            } else {
                let advice = "too fast for a disk: on a tmpfs, or with a cache that lies, a crash of the machine loses commits";
                Check::good_if(p50 >= FLUSH_P50_MIN, &check, found, advice)
            }
        }
    }
}

/// As the log is written: into a preallocated file, a block at a time.
fn flush_times(dir: &Path) -> io::Result<Vec<Duration>> {
    let file = tempfile::tempfile_in(dir)?;
    // Where it is not supported, the flush also pays for the file's growth: measured as it is.
    let _ = fallocate(&file, FallocateFlags::empty(), 0, (FLUSHES * BLOCK_BYTES) as u64);
    file.sync_all()?;
    let block = [0x5a; BLOCK_BYTES];
    (0..FLUSHES)
        .map(|i| {
            let started = Instant::now();
            file.write_all_at(&block, (i * BLOCK_BYTES) as u64)?;
            file.sync_data()?;
            Ok(started.elapsed())
        })
        .collect()
}

/// Times a round trip of one byte over the loopback.
pub(crate) fn loopback() -> Check {
    const CHECK: &str = "tcp loopback round trip";
    match round_trips().map(quantiles) {
        Err(e) => Check::fail(CHECK, e.to_string(), "nothing can connect on this host: check its network"),
        Ok((p50, p99)) => {
            let found = format!("p50 {}, p99 {}", units::time(p50), units::time(p99));
            Check::good_if(p99 <= LOOPBACK_P99_MAX, CHECK, found, "the machine is busy: expect slow answers")
        }
    }
}

fn round_trips() -> io::Result<Vec<Duration>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> io::Result<()> {
            let mut byte = [0];
            for _ in 0..ROUND_TRIPS {
                far.read_exact(&mut byte)?;
                far.write_all(&byte)?;
            }
            Ok(())
        });
        let times = (0..ROUND_TRIPS)
            .map(|_| {
                let started = Instant::now();
                near.write_all(&[1])?;
                near.read_exact(&mut [0])?;
                Ok(started.elapsed())
            })
            .collect();
        // Ends the other side if this one failed.
        drop(near);
        echo.join().map_err(|_| io::Error::other("the echoing thread panicked"))??;
        times
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_fails_and_is_named() {
        let check = fdatasync(Path::new("/nowhere/at/all"));
        assert_eq!(check.verdict, Verdict::Fail);
        assert!(check.check.contains("/nowhere/at/all"));
        assert!(!check.advice.is_empty());
    }

    #[test]
    fn both_give_times() {
        let dir = tempfile::tempdir().unwrap();
        assert_ne!(fdatasync(dir.path()).verdict, Verdict::Fail);
        assert_ne!(loopback().verdict, Verdict::Fail);
    }

    #[test]
    fn quantiles_are_of_the_sorted_times() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(quantiles(times), (Duration::from_micros(101), Duration::from_micros(199)));
    }
}
