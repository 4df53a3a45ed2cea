//! The log as the RW holds it: opened, its positions, and reading back what is flushed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam::sync::{Parker, Unparker};
use crossbeam::utils::CachePadded;
use headwater_protocol::{Epoch, EpochStart, History, Lsn};
use headwater_shard_log::Change;
use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use uuid::Uuid;

use crate::append::Appender;
use crate::error::{FileError, OpenError, ReadError};
use crate::record::{
    HEADER_BYTES, HEADER_WORDS, Header, Prepared, Record, RecordInfo, WORD_BYTES, body_words,
};
use crate::recover::Found;
use crate::ring::{Ring, Words};
use crate::segment::{self, CLUSTER_NAME_BYTES_MAX, Layout, SegmentHeader, valid_segment_bytes};

/// Which log to open.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Its directory; created if it is not there.
    pub dir: PathBuf,
    /// The cluster's name, 1 to 64 bytes.
    pub cluster: String,
    /// Bytes of the log in one segment file: a power of two from 64 KiB to 1 GiB, the same for the log's whole life.
    pub segment_bytes: u64,
    /// How long ROs may read strongly without hearing from this RW; kept in the log, for the epoch that follows (E3).
    pub lease: Duration,
}

/// An open log: its positions, its ring, and its bytes on disk.
///
/// - `flushed <= appended`, both only grow, and both always lie on a record's end (W7).
/// - `appended <= space_end`: nothing is appended for which no disk space is reserved (W5).
/// - `appended - flushed <= ring bytes`: no unflushed byte is overwritten (W6).
pub struct Wal {
    pub(crate) layout: Layout,
    cluster: String,
    cluster_id: Uuid,
    history: History,
    start: EpochStart,
    recovered: Lsn,
    pub(crate) ring: Ring,
    flushed: CachePadded<AtomicU64>,
    space_end: CachePadded<AtomicU64>,
    disk_full: AtomicBool,
    pub(crate) bell: Bell,
    pub(crate) flusher: FlusherState,
    /// Held as long as the log is open.
    _lock: File,
}

/// Whether the flusher runs, for those who wait for it.
pub(crate) struct FlusherState {
    /// Told to stop once everything appended is flushed.
    pub(crate) stopping: AtomicBool,
    /// It has ended, in order or by failure: nothing more will be flushed.
    pub(crate) ended: AtomicBool,
    /// It was started and has not ended. Waiters for a flush hold it.
    pub(crate) running: Mutex<bool>,
    /// Rung after each flush and at the end.
    pub(crate) progress: Condvar,
    /// Taken by the one flusher.
    pub(crate) parker: Mutex<Option<Parker>>,
}

/// Wakes the flusher if, and only if, it sleeps.
pub(crate) struct Bell {
    pub(crate) sleeping: CachePadded<AtomicBool>,
    pub(crate) unparker: Unparker,
}

impl Bell {
    /// To be called after what the flusher waits for was stored. Costs no system call while it is busy.
    pub(crate) fn ring(&self) {
        // Meets the fence in the flusher's `sleep`: either it sees what was stored, or its flag is seen here.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            self.unparker.unpark();
        }
    }
}

impl Wal {
    /// Opens the log, or begins one, and starts a new epoch in it.
    ///
    /// Every change that is read back is given to `replay` with its LSN, in order; its error ends the opening. A torn
    /// tail is cut. What was read back is made durable before it is believed (W7). The new epoch begins past anything
    /// that the one before can have handed out (E2), and its start is durable and in the ring when this returns.
    ///
    /// That start is written no earlier than an RO's right to read strongly under the epoch before has run out: until then nothing of what was
    /// recovered may be shown to anybody, as that RO may not have it (E3). So this takes 1.25 leases of the epoch before, a
    /// quarter for clocks that run apart, less what recovery takes. The log's lock says that the process before is gone.
    ///
    /// The ring takes `ring_bytes` (a power of two, at least 4,096) of `ring_words` from `first_word` on; panics if
    /// the memory is too small. See [`OpenError`] for why a log is not opened; at [`OpenError::Damaged`], changes
    /// before the damage may have been replayed already.
    pub fn open(
        options: WalOptions,
        ring_words: Words,
        first_word: usize,
        ring_bytes: u64,
        replay: &mut dyn FnMut(Change, Lsn) -> Result<(), String>,
    ) -> Result<(Arc<Wal>, Appender), OpenError> {
        let WalOptions { dir, cluster, segment_bytes, lease } = options;
        if !(1..=CLUSTER_NAME_BYTES_MAX).contains(&cluster.len()) {
            return Err(OpenError::InvalidOptions("a cluster's name has 1 to 64 bytes"));
        }
        if !valid_segment_bytes(segment_bytes) {
            return Err(OpenError::InvalidOptions("segment bytes are a power of two from 64 KiB to 1 GiB"));
        }
        let lock = lock(&dir)?;
        let locked = Instant::now();
        let layout = Layout { dir, segment_bytes };
        let found = Found::read(&layout.dir)?;
        if let Some(found) = &found {
            let file = || found.layout.path(Lsn::ZERO);
            if found.cluster != cluster {
                return Err(OpenError::OtherCluster {
                    file: file(),
                    found: found.cluster.clone(),
                    expected: cluster,
                });
            }
            if found.layout.segment_bytes != segment_bytes {
                let found = found.layout.segment_bytes;
                return Err(OpenError::SegmentBytes { file: file(), found, expected: segment_bytes });
            }
        }
        let start = match &found {
            Some(found) => recover(found, lease, ring_bytes, replay)?,
            None => EpochStart {
                epoch: Epoch::new(1),
                start: Lsn::ZERO,
                previous_end: Lsn::ZERO,
                previous_chain: 0,
                lease_ms: lease_ms(lease),
            },
        };
        let cluster_id = found.as_ref().map_or_else(Uuid::new_v4, |found| found.cluster_id);
        let mut history = found.as_ref().map(|found| found.history.clone()).unwrap_or_default();
        // In the old epoch's name: a process that ends while it waits leaves the wait to the next.
        if let Some(before) = history.current() {
            let lease = Duration::from_millis(before.lease_ms);
            let left = (lease + lease / 4).saturating_sub(locked.elapsed());
            tracing::info!(?left, "waiting until no RO can read strongly under the epoch before");
            std::thread::sleep(left);
        }
        history.0.push(start);

        let ring = Ring::new(ring_words, first_word, ring_bytes, start.start);
        let record = Prepared::epoch_start(&start, cluster_id, ring_bytes);
        let head = record.header(start.start, start.epoch, start.previous_end, start.previous_chain);
        let segment = SegmentHeader {
            cluster: cluster.clone(),
            cluster_id,
            first: start.start,
            segment_bytes,
            ring_bytes,
            epoch: start.epoch,
        };
        layout.remove_unnamed()?;
        layout.create(&segment, &[&head.encode(), record.body()].concat())?;
        ring.append(&head.encode(), record.body());
        if let Some(found) = &found {
            found.cut(start.previous_end)?;
        }
        tracing::info!(dir = %layout.dir.display(), epoch = %start.epoch, start = %start.start, "log opened");

        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        let wal = Arc::new(Wal {
            layout,
            cluster,
            cluster_id,
            history,
            start,
            recovered: head.lsn,
            ring,
            flushed: CachePadded::new(AtomicU64::new(head.lsn.get())),
            space_end: CachePadded::new(AtomicU64::new(start.start.advance(segment_bytes).get())),
            disk_full: AtomicBool::new(false),
            bell: Bell { sleeping: CachePadded::new(AtomicBool::new(false)), unparker },
            flusher: FlusherState {
                stopping: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                running: Mutex::new(false),
                progress: Condvar::new(),
                parker: Mutex::new(Some(parker)),
            },
            _lock: lock,
        });
        let appender = Appender::new(wal.clone(), head.chain);
        Ok((wal, appender))
    }

    /// The cluster's id, drawn when its log was begun.
    pub fn cluster_id(&self) -> Uuid {
        self.cluster_id
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// All epochs, the one that this process began last.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The epoch that this process began.
    pub fn epoch(&self) -> Epoch {
        self.start.epoch
    }

    /// The newest bytes in memory.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The end of what was appended.
    pub fn appended(&self) -> Lsn {
        self.ring.appended()
    }

    /// The end of what is durable on this disk.
    pub fn flushed(&self) -> Lsn {
        Lsn::new(self.flushed.load(Ordering::Acquire))
    }

    /// Only the flusher calls it, once the disk has everything before `to`.
    pub(crate) fn set_flushed(&self, to: Lsn) {
        debug_assert!(
            self.flushed() <= to && to <= self.appended(),
            "{} {to} {}",
            self.flushed(),
            self.appended()
        );
        self.flushed.store(to.get(), Ordering::Release);
    }

    /// Where this process's own log begins: the end of its epoch-start record. Everything recovered lies before it.
    pub fn recovered(&self) -> Lsn {
        self.recovered
    }

    /// The oldest byte on disk.
    pub fn oldest(&self) -> Lsn {
        self.history.0[0].start
    }

    /// The end of the disk space that is reserved.
    pub(crate) fn space_end(&self) -> Lsn {
        Lsn::new(self.space_end.load(Ordering::Acquire))
    }

    /// How far the log can grow into the reserved space. On a full disk its last segment is left to the next start,
    /// which needs one for its epoch.
    pub(crate) fn usable_end(&self) -> Lsn {
        let kept = if self.disk_full() { self.layout.segment_bytes } else { 0 };
        Lsn::new(self.space_end().get() - kept)
    }

    /// Bytes that can be appended before more disk space must be reserved, which happens ahead of need.
    pub fn space_left(&self) -> u64 {
        self.usable_end().since(self.appended())
    }

    /// Whether the last attempt to reserve disk space found the disk full (W5).
    pub fn disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Reserves the next segment's space. Only the flusher calls it. Whether the disk is full is no error.
    pub(crate) fn reserve_segment(&self) -> Result<(), FileError> {
        let first = self.space_end();
        let header = SegmentHeader {
            cluster: self.cluster.clone(),
            cluster_id: self.cluster_id,
            first,
            segment_bytes: self.layout.segment_bytes,
            ring_bytes: self.ring.bytes(),
            epoch: self.start.epoch,
        };
        match self.layout.create(&header, &[]) {
            Ok(()) => {
                self.space_end.store(first.advance(self.layout.segment_bytes).get(), Ordering::Release);
                self.set_short(None);
            }
            Err(error) if error.is_shortage() => self.set_short(Some(&error)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Says that the log has no room to grow, and why, or that it has. Only the flusher calls it.
    pub(crate) fn set_short(&self, why: Option<&FileError>) {
        let was_short = self.disk_full.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(error) if !was_short => {
                tracing::warn!(%error, space_left = self.space_left(), "no room for the log: writes will be refused");
            }
            None if was_short => tracing::info!("the log has room again: writes are accepted"),
            _ => {}
        }
    }

    /// Reads the log's words from `from` on from segment files, for an RO that is a ring behind (S4).
    ///
    /// [`ReadError::OutOfRange`] unless all of them are flushed and of one epoch; [`ReadError::Io`] if the disk fails.
    pub fn read(&self, from: Lsn, out: &mut [u64]) -> Result<(), ReadError> {
        let to = Lsn::new(from.get().saturating_add(size_of_val(out) as u64));
        let limit = self.history.end_of_epoch_at(from).unwrap_or_else(|| self.flushed());
        if to > limit || !from.get().is_multiple_of(WORD_BYTES as u64) {
            return Err(ReadError::OutOfRange { from, to });
        }
        Ok(self.layout.read(from, out)?)
    }

    /// The record that begins at `start`, from disk, checked for being consistent in itself: what a handshake compares
    /// with what an RO holds (E1).
    ///
    /// [`ReadError::NotARecord`] if none begins there, else as [`Wal::read`].
    pub fn record_at(&self, start: Lsn) -> Result<RecordInfo, ReadError> {
        let not_a_record = |what| ReadError::NotARecord { at: start, what };
        let mut words = [0; HEADER_WORDS];
        self.read(start, &mut words)?;
        let epoch = self.history.epoch_at(start).map_or(Epoch::NONE, |epoch| epoch.epoch);
        let header = Header::decode(&words, start, epoch).map_err(not_a_record)?;
        let mut body = vec![0; body_words(header.body_bytes)];
        self.read(start.advance(HEADER_BYTES as u64), &mut body)?;
        header.verify(&body).map_err(not_a_record)?;
        Ok(header.info())
    }
}

/// Replays what was found, makes it durable, and says how the next epoch starts.
fn recover(
    found: &Found,
    lease: Duration,
    ring_bytes: u64,
    replay: &mut dyn FnMut(Change, Lsn) -> Result<(), String>,
) -> Result<EpochStart, OpenError> {
    let (mut largest, mut largest_lsn) = (0, Lsn::ZERO);
    let report = found.walk(&mut |info, record| {
        let record_bytes = info.end.since(info.start);
        if record_bytes > largest {
            (largest, largest_lsn) = (record_bytes, info.end);
        }
        match record {
            Record::Change(change) => replay(change, info.end),
            Record::EpochStart(..) | Record::Close => Ok(()),
        }
    })?;
    if largest > ring_bytes {
        return Err(OpenError::RingBytes { lsn: largest_lsn, record_bytes: largest, ring_bytes });
    }
    match &report.torn {
        Some(torn) => tracing::warn!(
            file = %torn.file.display(), offset = torn.offset, lsn = %torn.lsn, bytes = torn.bytes, what = %torn.what,
            "torn tail cut: these bytes were never flushed, as far as the log shows"
        ),
        None => {
            tracing::info!(end = %report.end, closed = report.closed, records = report.records, "log read back")
        }
    }
    found.make_durable(&report)?;
    found.remove_unused(report.end)?;
    Ok(EpochStart {
        epoch: found.next_epoch(),
        start: found.next_epoch_start(report.end),
        previous_end: report.end,
        previous_chain: report.chain,
        lease_ms: lease_ms(lease),
    })
}

fn lease_ms(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}

/// Creates the directory if need be, and locks it for this process.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let unwritable = |source: io::Error| OpenError::Unwritable { dir: dir.to_owned(), source };
    if !dir.exists() {
        fs::create_dir_all(dir).map_err(unwritable)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            segment::sync_dir(parent)?;
        }
    }
    let path = dir.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(unwritable)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse(dir.to_owned())),
        Err(error) => Err(unwritable(error.into())),
    }
}
