use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use thiserror::Error;

use crate::bell::{self, BELL_WORDS};
use crate::memory::{Mapping, WORD_BYTES};

/// Words of the largest region: its bytes can be counted by an `isize`, as Rust asks of every object.
pub(crate) const REGION_WORDS_MAX: usize = isize::MAX as usize / WORD_BYTES;

/// Bytes of a huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// What every region is sealed against: its size never changes, so that who maps it can rely on it.
pub(crate) const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A run of words that this process owns and lets peers write or read.
///
/// - Page-aligned and backed by a memfd of its size, sealed so that neither changes: it can be handed to a
///   process of this host, and registered with a NIC.
/// - In huge pages of 2 MiB where it is that large and the system has so many free: a NIC then looks up fewer addresses. The memfd
///   is then of whole pages.
/// - Its pages are there from the start: no later store fails for want of memory.
/// - All words are 0 at first. The first [`BELL_WORDS`] are the bell and the transport's own.
pub struct Region {
    file: OwnedFd,
    mapping: Mapping,
}

/// Why a region could not be made.
#[derive(Debug, Error)]
pub enum RegionError {
    /// No region can be this small or this large; ask for another size.
    #[error("a region has {BELL_WORDS} to {REGION_WORDS_MAX} words, not {words}")]
    Size {
        /// The words asked for.
        words: usize,
    },
    /// The machine has not the memory; ask for less, or free some.
    #[error("a region of {words} words takes {bytes} bytes, and the machine has {available} available")]
    Memory {
        /// The words asked for.
        words: usize,
        /// The bytes that they take.
        bytes: u64,
        /// The bytes that the kernel says are available.
        available: u64,
    },
    /// The kernel refused; mostly for want of descriptors (`EMFILE`).
    #[error("cannot {doing} a region of {words} words: {source}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// The words asked for.
        words: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Region {
    /// Makes a region of `words` words, the bell's included. `name` is for people: it shows in `/proc/<pid>/maps`.
    ///
    /// Errors: [`RegionError`].
    pub fn create(name: &str, words: usize) -> Result<Arc<Region>, RegionError> {
        if !(BELL_WORDS..=REGION_WORDS_MAX).contains(&words) {
            return Err(RegionError::Size { words });
        }
        let failed = |doing| move |source: io::Error| RegionError::Os { doing, words, source };
        let bytes = (words * WORD_BYTES) as u64;
        // Asked first, because the kernel does not refuse what it has not: it allocates, and kills processes to go on.
        let available = available_bytes().map_err(failed("find out the memory for"))?;
        if bytes > available {
            return Err(RegionError::Memory { words, bytes, available });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let huge = || {
            let file =
                rustix::fs::memfd_create(name, flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).ok()?;
            let whole = bytes.next_multiple_of(HUGE_PAGE_BYTES);
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, whole).ok()?;
            Some(file)
        };
        let file = match (bytes >= HUGE_PAGE_BYTES).then(huge).flatten() {
            Some(file) => file,
            None => {
                let file = rustix::fs::memfd_create(name, flags).map_err(|e| failed("create")(e.into()))?;
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
                    .map_err(|e| failed("allocate")(e.into()))?;
                file
            }
        };
        rustix::fs::fcntl_add_seals(&file, SIZE_SEALS).map_err(|e| failed("seal")(e.into()))?;
        let mapping = Mapping::new(file.as_fd(), words, true).map_err(failed("map"))?;
        Ok(Arc::new(Region { file, mapping }))
    }

    /// The words, the bell's included. Peers may write them at any time: load each once, and believe only what proves itself.
    pub fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }

    /// Count of rings so far; take it **before** looking for news, then [`sleep`](Region::sleep) with it.
    pub fn rings(&self) -> u32 {
        bell::rings(self.words())
    }

    /// Sleeps until somebody has rung after `seen` was counted, at most `timeout`. May return early: look for news and
    /// call again.
    ///
    /// The timeout is also what bounds the harm of a peer that scribbles over the bell.
    pub fn sleep(&self, seen: u32, timeout: Duration) {
        bell::sleep(self.words(), seen, timeout);
    }

    /// Wakes whoever sleeps on this region, here or in another process. Costs no system call when nobody does.
    pub fn ring(&self) {
        bell::ring(self.words());
    }

    /// The memfd behind it.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRef<[AtomicU64]> for Region {
    fn as_ref(&self) -> &[AtomicU64] {
        self.words()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("words", &self.words().len()).finish_non_exhaustive()
    }
}

/// Bytes of memory that the kernel thinks can be had without harm to anybody.
fn available_bytes() -> io::Result<u64> {
    let about = std::fs::read_to_string("/proc/meminfo")?;
    let kib = about.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(kib << 10)
}
