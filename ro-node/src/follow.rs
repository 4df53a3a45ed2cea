//! The thread that follows the RW: attaches, applies, reports, and begins again when the link is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headwater_attach::{AttachError, Attached, Better, Choice, Peer, attach, layout};
use headwater_protocol::Lsn;
use headwater_protocol::regions::{log, progress, region, state};
use headwater_protocol::replication::Applied;
use headwater_rdma::{LinkError, Region};
use headwater_wal::Receiver;
use parking_lot::Mutex;
use thiserror::Error;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::apply::{Applier, ApplyError};
use crate::intake::Intake;
use crate::state::{About, State};
use crate::upstream::{Upstream, lease_clock_us};

/// Between attempts to attach: doubled each time, from the first to the second, less what [`jitter`] takes.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// After a record the thread looks again this many times, giving way each time, before it sleeps.
const LOOKS: u32 = 64;
/// The RW hears of the room in the ring at the latest when one in so many parts of it has become free.
const ROOM_PARTS: u64 = 4;
/// How often an RO tries whether a better transport has come to be possible: doubled each time it left for one in vain, from the first to the
/// second.
const BETTER_RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(320));
/// Why it leaves then.
const BETTER: &str = "a better transport is to be had";

/// Why the RO cannot go on at all.
#[derive(Debug, Error)]
pub(crate) enum FollowError {
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// What the thread is told.
pub(crate) struct Follow {
    pub(crate) state: Arc<State>,
    pub(crate) peer: Peer,
    pub(crate) transport: Choice,
}

/// The running thread.
pub(crate) struct Follower {
    thread: JoinHandle<Result<(), FollowError>>,
    shared: Arc<Shared>,
}

/// How the thread is asked to stop: the flag, and the bell that it may be asleep on.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    region: Mutex<Option<Arc<Region>>>,
}

impl Follower {
    /// Starts it. `ended` is called when it ends by itself, which it does only on an error that a person must mend.
    pub(crate) fn start(follow: Follow, ended: impl FnOnce() + Send + 'static) -> std::io::Result<Follower> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("follow".into()).spawn(move || {
            let result = follow.run(&theirs);
            if result.is_err() {
                ended();
            }
            result
        })?;
        Ok(Follower { thread, shared })
    }

    /// Ends it, and says whether it had ended by itself.
    pub(crate) fn stop(self) -> Result<(), FollowError> {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(region) = &*self.shared.region.lock() {
            region.ring();
        }
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_else(|_| {
            error!("the follower panicked");
            Ok(())
        })
    }
}

impl Follow {
    fn run(&self, shared: &Shared) -> Result<(), FollowError> {
        let mut applied = Applied::default();
        let (mut retry, mut better_retry) = (RETRY.0, BETTER_RETRY.0);
        let mut left_for_better = false;
        let mut ever = false;
        let mut said = String::new();
        while !shared.stop.load(Ordering::SeqCst) {
            let mut peer = self.peer.clone();
            peer.hello.cluster_id = self.state.about.lock().cluster_id;
            match attach(&peer, applied, self.transport) {
                Ok(attached) => {
                    (ever, retry) = (true, RETRY.0);
                    said.clear();
                    // It was there to be tried out, and then was not: to leave for it again and again would cost strong reads each time.
                    let in_vain = left_for_better && !attached.better.is_empty();
                    better_retry =
                        if in_vain { (better_retry * 2).min(BETTER_RETRY.1) } else { BETTER_RETRY.0 };
                    let (stands, ended) = self.follow(attached, applied, better_retry, shared);
                    applied = stands;
                    left_for_better = ended? == BETTER;
                }
                Err(error) if error.is_divergence() || (error.is_final() && !ever) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != said {
                        warn!(error = %text, "not attached to the RW; trying on");
                        self.state.about.lock().why.clone_from(&text);
                        said = text;
                    }
                    std::thread::park_timeout(retry.mul_f64(jitter()));
                    retry = (retry * 2).min(RETRY.1);
                }
            }
        }
        Ok(())
    }

    /// Follows one link to its end. Gives where the RO then stands, and why it left if it did, or an error if there is no going on.
    fn follow(
        &self,
        attached: Attached,
        applied: Applied,
        better_retry: Duration,
        shared: &Shared,
    ) -> (Applied, Result<&'static str, FollowError>) {
        let Attached { link, log_region, welcome, why, better } = attached;
        let lease = welcome.lease();
        let layout = layout(&welcome);
        let epoch = welcome.epoch().map(|epoch| epoch.epoch).unwrap_or_default();
        info!(
            rw = %welcome.address, transport = %link.transport(), %epoch, from = %applied.lsn, %why,
            "attached to the RW"
        );
        let about = About { cluster_id: Some(welcome.cluster_id), epoch, rw_address: welcome.address, why };
        let receiver = Receiver::new(
            log_region.clone(),
            log::RING,
            welcome.ring_bytes,
            welcome.history,
            applied.lsn,
            applied.chain,
        );
        let lease_us = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX);
        let intake = Intake::new(log_region.clone(), epoch, Applier::new(receiver, applied));
        let upstream = Arc::new(Upstream::new(link, layout, lease_us, intake));
        *shared.region.lock() = Some(log_region.clone());
        self.state.turn_to(Some(upstream.clone()), |told| *told = about);
        let mut following = Following {
            state: &self.state,
            upstream: &upstream,
            region: &log_region,
            received: applied.lsn,
            applied: applied.lsn,
            reported: [0; progress::PROGRESS_WORDS],
            rung_at: applied.lsn,
            ring_bytes: welcome.ring_bytes,
            heartbeat: lease / 4,
            beat: None,
        };
        let ended = following.run(shared, Lookout::new(&self.peer, better, better_retry));
        let stands = upstream.intake.close();
        *shared.region.lock() = None;
        let (why, result) = match ended {
            Ok(end) => (end.to_owned(), Ok(end)),
            Err(Lost::Link(error)) => (error.to_string(), Ok("")),
            Err(Lost::Apply(error @ ApplyError::Unverified(_))) => (error.to_string(), Ok("")),
            Err(Lost::Apply(error)) => (error.to_string(), Err(error.into())),
        };
        info!(%why, applied = %stands.lsn, "the link with the RW is closed");
        self.state.turn_to(None, |told| told.why = why);
        upstream.link.close();
        (stands, result)
    }
}

/// From a half to 1, so that ROs that lost their RW together do not all come back together.
fn jitter() -> f64 {
    0.5 + f64::from(Uuid::new_v4().as_bytes()[0]) / 510.0
}

/// What ended a link against the RO's will.
enum Lost {
    Link(LinkError),
    Apply(ApplyError),
}

impl From<LinkError> for Lost {
    fn from(error: LinkError) -> Lost {
        Lost::Link(error)
    }
}

/// Tries out better transports now and then, beside the link that there is.
struct Lookout {
    peer: Peer,
    better: Vec<Better>,
    retry: Duration,
    at: Instant,
    trying: Option<JoinHandle<bool>>,
}

impl Lookout {
    fn new(peer: &Peer, better: Vec<Better>, retry: Duration) -> Lookout {
        Lookout { peer: peer.clone(), better, retry, at: Instant::now() + retry, trying: None }
    }

    /// Whether one is to be had. Takes no time.
    fn has_found(&mut self) -> bool {
        if self.better.is_empty() {
            return false;
        }
        if self.trying.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.trying.take().is_some_and(|trying| trying.join().unwrap_or(false));
        }
        if self.trying.is_none() && self.at <= Instant::now() {
            let (peer, better) = (self.peer.clone(), self.better.clone());
            let look = move || better.into_iter().any(|better| better.is_there(&peer));
            // It ends by itself, in bounded time, also when nobody waits for it any more.
            self.at = Instant::now() + self.retry;
            self.trying = std::thread::Builder::new().name("lookout".into()).spawn(look).ok();
        }
        false
    }
}

struct Following<'a> {
    state: &'a State,
    upstream: &'a Upstream,
    region: &'a Region,
    /// As of the last step.
    received: Lsn,
    applied: Lsn,
    /// Progress words as last written.
    reported: [u64; progress::PROGRESS_WORDS],
    /// What was received when the RW's bell was last rung.
    rung_at: Lsn,
    ring_bytes: u64,
    heartbeat: Duration,
    beat: Option<Instant>,
}

impl Following<'_> {
    /// Follows until there is a reason to leave, which it gives.
    fn run(&mut self, shared: &Shared, mut lookout: Lookout) -> Result<&'static str, Lost> {
        let mut looks = 0;
        loop {
            let seen = self.region.rings();
            if shared.stop.load(Ordering::SeqCst) {
                self.report()?;
                return Ok("this node is stopping");
            }
            if self.upstream.link.closed() {
                // The call gives the reason.
                self.upstream.link.ring(region::PROGRESS)?;
            }
            if self.step()? {
                looks = LOOKS;
                continue;
            }
            let stopping = self.word(log::STATE) == state::STOPPING;
            if stopping && self.applied.get() >= self.word(log::TAIL) {
                self.report()?;
                return Ok("the RW stopped in order");
            }
            if lookout.has_found() {
                return Ok(BETTER);
            }
            if looks > 0 {
                looks -= 1;
                std::thread::yield_now();
            } else {
                let since = self.beat.map_or(self.heartbeat, |beat| beat.elapsed());
                self.region.sleep(seen, self.heartbeat.saturating_sub(since).max(Duration::from_millis(1)));
            }
        }
    }

    fn word(&self, word: usize) -> u64 {
        self.region.words()[word].load(Ordering::Acquire)
    }

    /// One look at the ring and the control words. Says whether anything moved.
    fn step(&mut self) -> Result<bool, Lost> {
        let stepped = self.upstream.intake.step(self.state).map_err(Lost::Apply)?;
        self.upstream.renew(stepped.echo_us);
        (self.received, self.applied) = (stepped.received, stepped.applied);
        let due = self.beat.is_none_or(|beat| beat.elapsed() >= self.heartbeat);
        // What is only received is worth a word when it makes room in the ring.
        let makes_room = self.received.get().saturating_sub(self.reported[0]) >= self.ring_bytes / ROOM_PARTS;
        if due || makes_room || self.applied.get() != self.reported[1] {
            self.report()?;
        }
        Ok(stepped.moved)
    }

    /// Writes the progress words (S4); wakes the RW's shipper at the first, which it waits for, and when a good part of the ring has become free.
    fn report(&mut self) -> Result<(), LinkError> {
        let received = self.received;
        let words = [received.get(), self.applied.get(), 0, lease_clock_us()];
        let link = &self.upstream.link;
        link.write(region::PROGRESS, progress::RECEIVED, &words)?;
        self.reported = words;
        let first = self.beat.replace(Instant::now()).is_none();
        if first || received.since(self.rung_at) >= self.ring_bytes / ROOM_PARTS {
            self.rung_at = received;
            link.ring(region::PROGRESS)?;
        }
        Ok(())
    }
}
