//! Memory that other processes read and write while we do, and the crate's only unsafe code.
//!
//! - It is reached as atomics only, never as `&[u8]` or `&mut`: for the compiler another process's access is another
//!   thread's, and between atomics there are no data races.
//! - Its size cannot change while it is mapped: who maps it has checked the seals of the file behind it, so that no
//!   access can fault for want of a page behind it (SIGBUS).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// A file's words, mapped shared; unmapped when dropped. Forked children do not inherit it: they could not tell
/// what they write from what their parent writes.
///
/// - `start` is page-aligned and `words` words long, mapped for as long as this lives, up to the end of its last page: `bytes` in all.
/// - Its words are handed out for writing only if it was mapped writable.
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
    bytes: usize,
    writable: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: all that a shared reference gives are atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words of `file`, which must have that many and be sealed against losing them.
    pub(crate) fn new(file: BorrowedFd<'_>, words: usize, writable: bool) -> io::Result<Mapping> {
        // A file of huge pages can only be mapped, and unmapped, in whole ones.
        let page = usize::try_from(rustix::fs::fstat(file)?.st_blksize).unwrap_or(1).max(1);
        let bytes = words.checked_mul(WORD_BYTES).and_then(|bytes| bytes.checked_next_multiple_of(page));
        let bytes = bytes.ok_or(rustix::io::Errno::OVERFLOW)?;
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh place of the kernel's choice: no memory that anybody uses changes.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0 unasked");
        let mapping = Mapping { start, words, bytes, writable };
        // SAFETY: the range is the one just mapped, and the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(mapping.start.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// The words, to read and write.
    ///
    /// Panics if the mapping is read-only: a store there would be the end of the process anyway.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        assert!(self.writable, "words mapped read-only are not to be written");
        self.all()
    }

    /// Reads one word, after everything that this thread has seen so far.
    pub(crate) fn load(&self, word: usize) -> u64 {
        // Fences around a relaxed load, because that is the only load that Rust promises to work on read-only memory. The
        // first keeps the load from being done ahead of what made us want the value (R1).
        fence(Ordering::SeqCst);
        let value = self.all()[word].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    fn all(&self) -> &[AtomicU64] {
        // SAFETY: by the type's invariants the words are mapped for as long as `self` is borrowed, aligned (a page is),
        // initialised (a file's bytes are), and every bit pattern is a word. Whoever else writes them does so atomically,
        // or is another process, which the hardware makes the same as far as single words go.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nothing borrows from it any longer.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "a range that is mapped can be unmapped");
    }
}

/// Places one write. What is placed by a later call of the same thread is not visible before this is.
///
/// The release fence comes last: it orders every store before it ahead of every store after it, and so whoever
/// acquires one of the later ones finds these. On x86 it costs nothing, on ARM one barrier a write, not one a word.
pub(crate) fn place(place: &[AtomicU64], words: &[u64]) {
    debug_assert_eq!(place.len(), words.len(), "a write fills its place");
    for (place, word) in place.iter().zip(words) {
        place.store(*word, Ordering::Relaxed);
    }
    fence(Ordering::Release);
}

/// The half of `word` that a futex can wait on: its low 32 bits. Only to be handed to the kernel.
pub(crate) fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: on a little-endian machine (the crate builds on no other) the low half is the first four bytes, aligned
    // as the whole is. Rust code does not access it by this reference, so that accesses of two sizes do not meet.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}
