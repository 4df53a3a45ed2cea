//! The bell: the first words of a region, by which its sleeping owner is woken, from another process too.
//!
//! Ringing counts, then looks for sleepers; a sleeper announces itself, then lets the kernel compare the count with
//! what it saw. All of these are sequentially consistent, so one of the two always sees the other: either the ringer
//! sees the sleeper and wakes it, or the sleeper's count is out of date and it does not sleep. Nobody is
//! asked to wake nobody: without a sleeper a ring is an addition and a load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{Timespec, futex};

use crate::memory::low_half;

/// Words at the start of every region that are its bell (one cache line).
pub const BELL_WORDS: usize = 8;

/// Word that counts the rings; the futex is its low half.
const RINGS: usize = 0;
/// Word that counts the threads asleep, or about to be.
const SLEEPERS: usize = 1;

const _: () = assert!(SLEEPERS < BELL_WORDS);

/// Rings so far, modulo 2^32.
pub(crate) fn rings(words: &[AtomicU64]) -> u32 {
    words[RINGS].load(Ordering::SeqCst) as u32
}

/// Sleeps until somebody rings after `seen` was counted, at most `timeout`; now and then it returns without either.
pub(crate) fn sleep(words: &[AtomicU64], seen: u32, timeout: Duration) {
    // A timeout of more seconds than the kernel can count is none.
    let timeout = Timespec::try_from(timeout).ok();
    words[SLEEPERS].fetch_add(1, Ordering::SeqCst);
    // The kernel's answer (woken, count out of date, timed out, interrupted) does not matter: the caller looks for news anyway.
    let _ = futex::wait(low_half(&words[RINGS]), futex::Flags::empty(), seen, timeout.as_ref());
    words[SLEEPERS].fetch_sub(1, Ordering::SeqCst);
}

/// Counts one more ring and wakes the sleepers, if any.
pub(crate) fn ring(words: &[AtomicU64]) {
    words[RINGS].fetch_add(1, Ordering::SeqCst);
    if words[SLEEPERS].load(Ordering::SeqCst) != 0 {
        // Waking cannot fail on memory that is mapped.
        let _ = futex::wake(low_half(&words[RINGS]), futex::Flags::empty(), i32::MAX as u32);
    }
}
