use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Shared;
use crate::error::LinkError;
use crate::poll_answer;

/// A read is looked for so long before its future sleeps, at most; and at least, since what reads take of late is
/// measured with sleep and all.
const LOOK_MAX: Duration = Duration::from_micros(100);
const LOOK_MIN: Duration = Duration::from_micros(5);

/// A read on its way.
///
/// A NIC answers in a few microseconds, less than it takes to be woken. So the first poll looks for the answer itself, as long as
/// reads take of late; where they take longer than [`LOOK_MAX`] it hardly looks. Then the link's thread takes over.
pub(crate) struct ReadInFlight {
    shared: Weak<Shared>,
    answered: oneshot::Receiver<Result<u64, LinkError>>,
    looked: bool,
}

impl ReadInFlight {
    pub(super) fn new(
        shared: Weak<Shared>,
        answered: oneshot::Receiver<Result<u64, LinkError>>,
    ) -> ReadInFlight {
        ReadInFlight { shared, answered, looked: false }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if !self.looked {
            self.looked = true;
            if let Some(shared) = self.shared.upgrade() {
                self.look(&shared);
            }
        }
        let answer = poll_answer(&mut self.answered, cx);
        if answer.is_ready() {
            return answer;
        }
        // Now that it will be woken by the answer: have the completion noticed, unless it was there before. Asked every time, which
        // is seldom: once asked, events come until no read is left.
        if let Some(shared) = self.shared.upgrade() {
            let _ = shared.with_queue(|queue| {
                queue.want_events()?;
                queue.progress()
            });
        }
        poll_answer(&mut self.answered, cx)
    }

    fn look(&mut self, shared: &Shared) {
        let start = Instant::now();
        let mut limit = LOOK_MIN;
        loop {
            let looked = shared.with_queue(|queue| {
                queue.progress()?;
                Ok(queue.round_trip)
            });
            let Ok(round_trip) = looked else { return };
            if round_trip <= LOOK_MAX {
                limit = (round_trip * 2).clamp(LOOK_MIN, LOOK_MAX);
            }
            if !self.answered.is_empty() || self.answered.is_terminated() || start.elapsed() >= limit {
                return;
            }
            std::hint::spin_loop();
        }
    }
}
