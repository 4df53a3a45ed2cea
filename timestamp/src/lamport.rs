use std::sync::Arc;

use headwater_protocol::Lsn;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Nanoseconds of some monotonic clock of this node, the same for all that deal with one [`Lamport`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Nanos(pub u64);

/// What a fetch brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The word's value: everything visible when the fetch was sent has at most this LSN, as far as the word covers it.
    pub lsn: Lsn,
    /// When the fetch was sent.
    pub sent_at: Nanos,
}

/// One word's timestamps on an RO, shared by all reads: a linear Lamport timestamp.
///
/// - At most one fetch is under way (R2). The read that sends it leads; others wait for its end.
/// - A fetch serves a read if it was *sent* at or after the read's arrival (R1). When it *completed* says nothing:
///
///   ```text
///   fetch   sent, 50 | word read: 50 |                              | completes: 50
///   RW                               | stamps 60, answers its client |
///   read                                                             | arrives, must see 60
///   ```
/// - The cached value and its send time are replaced together, after the value is in (R2). The send time never falls.
///
/// It belongs to one epoch; a new epoch needs new ones (R6). There is one for each slot of the table, so it is small.
pub struct Lamport {
    state: Mutex<State>,
}

const _: () = assert!(size_of::<Lamport>() <= 64);

struct State {
    cached: Option<Stamp>,
    /// The fetch under way; told when it has ended, with or without a value.
    fetch: Option<Arc<Notify>>,
}

impl Lamport {
    /// A word that was never fetched.
    pub const fn new() -> Lamport {
        Lamport { state: Mutex::new(State { cached: None, fetch: None }) }
    }

    /// What the last fetch that completed brought.
    pub fn cached(&self) -> Option<Stamp> {
        self.state.lock().cached
    }

    /// A timestamp whose fetch was sent at or after `arrival` (R1), and whether it is another read's: the cached one, or
    /// that of a fetch sent by this call.
    ///
    /// `now` is the clock that `arrival` was read from. It is called once if this call leads, under the word's lock,
    /// just before `fetch` is called and its future polled.
    ///
    /// Errors: those of `fetch`, to the call that led. Calls that waited for it go on, one of them leading; the same
    /// if the one that leads is dropped.
    pub async fn get<E, F: Future<Output = Result<u64, E>>>(
        &self,
        arrival: Nanos,
        now: impl Fn() -> Nanos,
        fetch: impl FnOnce() -> F,
    ) -> Result<(Stamp, bool), E> {
        let (lead, sent_at) = loop {
            let over = {
                let mut state = self.state.lock();
                if let Some(stamp) = state.cached.filter(|stamp| stamp.sent_at >= arrival) {
                    return Ok((stamp, true));
                }
                match &state.fetch {
                    None => {
                        state.fetch = Some(Arc::default());
                        break (Lead { lamport: self }, now());
                    }
                    // Under the lock, so that the fetch's end is not missed.
                    Some(fetch) => Arc::clone(fetch).notified_owned(),
                }
            };
            // If it was sent before this read arrived, its end makes room for the next, which will do.
            over.await;
        };
        debug_assert!(sent_at >= arrival, "sent at {sent_at:?}, before the read arrived at {arrival:?}");
        let stamp = Stamp { lsn: Lsn::new(fetch().await?), sent_at };
        lead.complete(stamp);
        Ok((stamp, false))
    }
}

impl Default for Lamport {
    fn default() -> Lamport {
        Lamport::new()
    }
}

/// The duty to end the fetch under way, kept also by a leader that fails or is dropped.
struct Lead<'a> {
    lamport: &'a Lamport,
}

impl Lead<'_> {
    /// Publishes what the fetch brought, and ends it.
    fn complete(self, stamp: Stamp) {
        let mut state = self.lamport.state.lock();
        debug_assert!(state.cached.is_none_or(|cached| cached.sent_at <= stamp.sent_at));
        state.cached = Some(stamp);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let fetch = self.lamport.state.lock().fetch.take();
        // Not under the lock: wakers run code of the runtime.
        if let Some(fetch) = fetch {
            fetch.notify_waiters();
        }
    }
}
