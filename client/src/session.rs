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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_read_is_never_asked_for_less_than_the_position() {
        let session = Session::default();
        assert_eq!(session.consistency(Consistency::Eventual), Consistency::Eventual);
        session.observe(Lsn::new(16));
        session.observe(Lsn::new(8));
        assert_eq!(session.position(), Lsn::new(16));
        let at_least = |lsn| Consistency::AtLeast(Lsn::new(lsn));
        assert_eq!(session.consistency(Consistency::Eventual), at_least(16));
        assert_eq!(session.consistency(at_least(8)), at_least(16));
        assert_eq!(session.consistency(at_least(24)), at_least(24));
        for same in [Consistency::Strong, Consistency::Bounded(Duration::from_secs(1))] {
            assert_eq!(session.consistency(same), same);
        }
    }
}
