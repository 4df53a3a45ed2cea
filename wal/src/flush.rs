//! Group commit: one thread that writes what was appended to disk, a batch at a time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::sync::Parker;
use headwater_protocol::Lsn;

use crate::error::FlushError;
use crate::record::WORD_BYTES;
use crate::segment::SegmentWriter;
use crate::wal::Wal;

/// Bytes of a batch, unless one record alone is longer: under load, commits are answered at least this often.
const BATCH_BYTES_MAX: u64 = 8 << 20;

/// Words that are copied out of the ring and written at a time.
const WRITE_WORDS: usize = (1 << 20) / WORD_BYTES;

/// How often a full disk, or a process without descriptors, is looked at again while space is wanted.
const SHORTAGE_RETRY: Duration = Duration::from_millis(250);

/// How often the flusher lets others run and looks again before it sleeps, when it was just busy: the commits that it
/// has just answered often bring the next ones.
const YIELDS: usize = 3;

/// The flusher's owner. Dropping it, or [`Flusher::stop`], flushes all that is appended and joins the thread.
#[must_use = "dropping it stops the flusher"]
pub struct Flusher {
    wal: Arc<Wal>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Flushes all that is appended (unless the disk fails), and joins the thread. Later appends are refused.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.wal.flusher.stopping.store(true, Ordering::Release);
        self.wal.bell.ring();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the log's flusher panicked");
        }
    }
}

/// Starts the thread that flushes the log; a log has one, once.
///
/// For each batch it calls `on_batch` before it writes, so that shipping starts at the same time (W2), and `on_flushed`
/// with the new flushed LSN, a record's end, once the batch is durable. When a write or flush fails it calls
/// `on_failed`, and never touches the files again (W5). All of them run on the thread.
///
/// Fails if the thread cannot be started, or was started before.
pub fn spawn_flusher(
    wal: Arc<Wal>,
    on_batch: impl FnMut() + Send + 'static,
    on_flushed: impl FnMut(Lsn) + Send + 'static,
    on_failed: impl FnOnce(FlushError) + Send + 'static,
) -> io::Result<Flusher> {
    let parker = wal.flusher.parker.lock().take();
    let parker =
        parker.ok_or_else(|| io::Error::new(io::ErrorKind::AlreadyExists, "the log has had its flusher"))?;
    let running = Running::new(wal.clone());
    let thread = thread::Builder::new().name("wal-flush".into()).spawn(move || {
        // Dropped last, also when a callback panics.
        let running = running;
        let writer = SegmentWriter::new(running.0.layout.clone());
        let mut task = Task { wal: &running.0, parker, writer, words: Vec::new(), on_batch, on_flushed };
        if let Err(error) = task.run() {
            tracing::error!(%error, flushed = %running.0.flushed(), "flushing failed: no more writes are accepted");
            running.0.flusher.ended.store(true, Ordering::Release);
            on_failed(error);
        }
    })?;
    Ok(Flusher { wal, thread: Some(thread) })
}

/// Says to others that the flusher runs, as long as it lives.
struct Running(Arc<Wal>);

impl Running {
    fn new(wal: Arc<Wal>) -> Running {
        *wal.flusher.running.lock() = true;
        Running(wal)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.flusher.ended.store(true, Ordering::Release);
        *self.0.flusher.running.lock() = false;
        self.0.flusher.progress.notify_all();
    }
}

struct Task<'a, B, F> {
    wal: &'a Wal,
    parker: Parker,
    writer: SegmentWriter,
    words: Vec<u64>,
    on_batch: B,
    on_flushed: F,
}

impl<B: FnMut(), F: FnMut(Lsn)> Task<'_, B, F> {
    fn run(&mut self) -> Result<(), FlushError> {
        let mut disk_full_until = None;
        loop {
            let busy = self.wal.appended() > self.wal.flushed();
            if busy {
                self.flush()?;
            } else if self.wal.flusher.stopping.load(Ordering::Acquire) {
                return Ok(());
            }
            // One segment at a time: a batch that is waiting goes first.
            let wants_space = self.wants_space();
            let may_reserve = disk_full_until.is_none_or(|until| Instant::now() >= until);
            if wants_space && may_reserve {
                self.wal.reserve_segment()?;
                disk_full_until = self.wal.disk_full().then(|| Instant::now() + SHORTAGE_RETRY);
            } else if !(busy && self.more_after_yielding()) {
                self.sleep(disk_full_until.filter(|_| wants_space));
            }
        }
    }

    /// Writes one batch and makes it durable.
    fn flush(&mut self) -> Result<(), FlushError> {
        (self.on_batch)();
        let end = self.wal.ring.record_end_within(self.wal.flushed(), BATCH_BYTES_MAX);
        let mut at = self.wal.flushed();
        while at < end {
            self.words.resize(WRITE_WORDS.min(end.since(at) as usize / WORD_BYTES), 0);
            self.wal.ring.copy_out(at, &mut self.words).expect("unflushed bytes are never overwritten (W6)");
            self.write(at)?;
            at = at.advance((self.words.len() * WORD_BYTES) as u64);
        }
        self.writer.sync()?;
        self.wal.set_flushed(end);
        drop(self.wal.flusher.running.lock());
        self.wal.flusher.progress.notify_all();
        (self.on_flushed)(end);
        Ok(())
    }

    /// Writes the words at `at`. Where the next file cannot be opened for want of descriptors it tries again until it can: the disk
    /// did nothing wrong. Writes are refused meanwhile.
    fn write(&mut self, at: Lsn) -> Result<(), FlushError> {
        let was_short = self.wal.disk_full();
        loop {
            match self.writer.write(at, &self.words) {
                Err(error) if error.is_want_of_files() => self.wal.set_short(Some(&error)),
                written => {
                    if !was_short {
                        self.wal.set_short(None);
                    }
                    return Ok(written?);
                }
            }
            thread::sleep(SHORTAGE_RETRY);
        }
    }

    /// Space is reserved for a whole ring past the flushed LSN, and a segment more for what is appended while the
    /// next one is made: as W6 allows no more in flight, an append is refused for space only when the disk is full.
    fn wants_space(&self) -> bool {
        let ahead = self.wal.ring.bytes() + self.wal.layout.segment_bytes;
        self.wal.space_end() < self.wal.flushed().advance(ahead)
    }

    fn more_after_yielding(&self) -> bool {
        (0..YIELDS).any(|_| {
            thread::yield_now();
            self.wal.appended() > self.wal.flushed()
        })
    }

    /// Sleeps until there is something to flush, it is told to stop, or `until`.
    fn sleep(&self, until: Option<Instant>) {
        self.wal.bell.sleeping.store(true, Ordering::Relaxed);
        // Meets the fence in `Bell::ring`.
        fence(Ordering::SeqCst);
        let idle =
            self.wal.appended() == self.wal.flushed() && !self.wal.flusher.stopping.load(Ordering::Acquire);
        if idle {
            match until {
                Some(until) => self.parker.park_deadline(until),
                None => self.parker.park(),
            }
        }
        self.wal.bell.sleeping.store(false, Ordering::Relaxed);
    }
}
