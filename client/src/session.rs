use std::sync::atomic::{AtomicU64, Ordering};

use headwater_protocol::{Consistency, Lsn};

/// How far one session has seen.
///
/// - The position only grows, and covers every answer that the session was given.
/// - A read of the session is never asked for less than its position, but a bounded one, whose answer is checked instead.
#[derive(Default)]
pub(crate) struct Session(AtomicU64);

impl Session {
    /// The largest LSN that any answer reflected.
    pub(crate) fn position(&self) -> Lsn {
        Lsn::new(self.0.load(Ordering::Acquire))
    }

    /// Takes in what an answer reflects.
    pub(crate) fn observe(&self, lsn: Lsn) {
        self.0.fetch_max(lsn.get(), Ordering::AcqRel);
    }

    /// What to ask a node for, so that the answer is not older than what the session has seen.
    pub(crate) fn consistency(&self, asked: Consistency) -> Consistency {
        match (asked, self.position()) {
            (Consistency::Eventual, Lsn::ZERO) => Consistency::Eventual,
            (Consistency::Eventual, position) => Consistency::AtLeast(position),
            (Consistency::AtLeast(lsn), position) => Consistency::AtLeast(lsn.max(position)),
            // A strong read sees whatever was acknowledged; a bounded one cannot carry a second condition.
            (Consistency::Strong | Consistency::Bounded(_), _) => asked,
        }
    }
}
