use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use headwater_protocol::Lsn;
use parking_lot::Mutex;

/// A growing LSN that tasks can wait for.
///
/// - `wanted` is the smallest LSN in `waiting`, or `u64::MAX` if there is none. It is written under the lock only.
/// - No wake-up is lost: who waits writes `wanted` and then reads `lsn`, who advances writes `lsn` and then reads
///   `wanted`, all of it `SeqCst`. In the one order of these four, a read comes last, and sees the other's write.
pub struct Position {
    lsn: AtomicU64,
    wanted: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Who waits, by the LSN waited for and a number that tells those of the same LSN apart.
    wakers: BTreeMap<(Lsn, u64), Waker>,
    last_number: u64,
}

impl Position {
    /// A position that begins at `lsn`.
    pub fn new(lsn: Lsn) -> Position {
        Position {
            lsn: AtomicU64::new(lsn.get()),
            wanted: AtomicU64::new(u64::MAX),
            waiting: Mutex::default(),
        }
    }

    /// The position. What was done before it was advanced to there has happened (`Acquire`).
    pub fn get(&self) -> Lsn {
        Lsn::new(self.lsn.load(Ordering::Acquire))
    }

    /// Moves the position to `lsn`, or leaves it where it is further, and wakes those whose LSN is reached. Takes no
    /// lock if there are none.
    pub fn advance(&self, lsn: Lsn) {
        self.lsn.fetch_max(lsn.get(), Ordering::SeqCst);
        if self.wanted.load(Ordering::SeqCst) > lsn.get() {
            return;
        }
        let mut reached = Vec::new();
        {
            let mut waiting = self.waiting.lock();
            while let Some(first) = waiting.wakers.first_entry().filter(|first| first.key().0 <= lsn) {
                reached.push(first.remove());
            }
            self.update_wanted(&waiting);
        }
        // Not under the lock: wakers run code of the runtime.
        reached.into_iter().for_each(Waker::wake);
    }

    /// Resolves when the position is at `lsn` or further. Can be dropped at any time.
    pub fn reached(&self, lsn: Lsn) -> Reached<'_> {
        Reached { position: self, lsn, number: None }
    }

    fn update_wanted(&self, waiting: &Waiting) {
        let wanted = waiting.wakers.first_key_value().map_or(u64::MAX, |((lsn, _), _)| lsn.get());
        self.wanted.store(wanted, Ordering::SeqCst);
    }
}

/// The future of [`Position::reached`].
#[must_use = "it waits only when awaited"]
pub struct Reached<'a> {
    position: &'a Position,
    lsn: Lsn,
    /// Its number among those who wait, once it does.
    number: Option<u64>,
}

impl Reached<'_> {
    fn wait(&mut self, waker: Waker) {
        let replaced = {
            let mut waiting = self.position.waiting.lock();
            let number = *self.number.get_or_insert_with(|| {
                waiting.last_number += 1;
                waiting.last_number
            });
            let replaced = waiting.wakers.insert((self.lsn, number), waker);
            self.position.update_wanted(&waiting);
            replaced
        };
        // Not under the lock: this may free a task.
        drop(replaced);
    }
}

impl Future for Reached<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.position.get() >= self.lsn {
            return Poll::Ready(());
        }
        self.wait(context.waker().clone());
        // It may have been reached before this was known to wait.
        if self.position.lsn.load(Ordering::SeqCst) >= self.lsn.get() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Reached<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let removed = {
            let mut waiting = self.position.waiting.lock();
            let removed = waiting.wakers.remove(&(self.lsn, number));
            if removed.is_some() {
                self.position.update_wanted(&waiting);
            }
            removed
        };
        // Not under the lock: this may free a task.
        drop(removed);
    }
}
