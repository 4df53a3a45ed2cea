//! Writing the log into one RO's ring (S1, S4): one thread for each RO, so that none waits for another and the RW for none.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use headwater_node::Stop;
use headwater_protocol::Lsn;
use headwater_protocol::regions::{log, progress, region, state};
use headwater_rdma::{LinkError, Post};
use headwater_wal::Wal;
use tracing::{info, warn};

use crate::commit::Commit;
use crate::replicas::Replica;

/// Words written in one go: enough to be worth it, little enough that the RO gets to work early.
const CHUNK_WORDS: u64 = 16 << 10;

/// What one shipper works with.
pub(crate) struct Shipper {
    pub(crate) replica: Arc<Replica>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) commit: Arc<Commit>,
    /// Control words are written at least this often, and the RO's clock is given back so often: a quarter of the lease.
    pub(crate) heartbeat: Duration,
    /// The log has its last record: what is published then is the end.
    pub(crate) closing: Stop,
}

impl Shipper {
    /// Ships until the link closes. Never touches what the RO has not taken.
    pub(crate) fn run(self, start: Lsn) {
        let replica = self.replica.clone();
        let (name, transport) = (&replica.name, replica.link.transport());
        info!(ro = %name, %transport, from = %start, why = %replica.why, "an RO is attached");
        let Err(ended) = self.ship(start);
        match ended {
            // It is the RO that leaves, once it has heard that nothing follows: closed from here, the link could end before
            // that word has arrived.
            ShipError::Link(_) if self.has_everything() => {
                info!(ro = %name, "the RO has the whole log; the link is closed");
            }
            ShipError::Link(error) => warn!(ro = %name, %error, "the RO is gone"),
            ShipError::Log(error) => {
                tracing::error!(ro = %name, %error, "the log cannot be read for this RO; its link is closed");
            }
        }
        replica.link.close();
        self.commit.replicas.remove(&replica);
    }

    /// Whether the log has ended and the RO has applied all of it.
    fn has_everything(&self) -> bool {
        let applied = Lsn::new(self.replica.word(progress::APPLIED));
        self.closing.is_stopped() && applied >= self.commit.published()
    }

    /// Ends with the link.
    fn ship(&self, start: Lsn) -> Result<Infallible, ShipError> {
        let Shipper { replica, wal, commit, .. } = self;
        let link = &replica.link;
        let ring_bytes = wal.ring().bytes();
        let mut shipped = start;
        let mut written = [0; log::CONTROL_WORDS];
        let mut beat: Option<Instant> = None;
        let (mut clock, mut echoed) = (0, 0);
        let mut buffer = Vec::with_capacity(CHUNK_WORDS as usize);
        loop {
            let seen = replica.progress.rings();
            if link.closed() {
                // The call gives the reason.
                link.ring(region::LOG)?;
            }
            let now_clock = replica.word(progress::CLOCK);
            if now_clock != clock {
                clock = now_clock;
                *replica.heard.lock() = Instant::now();
            }
            let taken = Lsn::new(replica.word(progress::RECEIVED));

            // The log first, then the words that speak of it (S1).
            let mut news = false;
            let chunk = self.chunk(shipped, taken, ring_bytes);
            buffer.clear();
            let mut place = log::RING;
            if let Some((from, words)) = chunk {
                buffer.resize(words as usize, 0);
                self.read(from, &mut buffer)?;
                place += (from.get() % ring_bytes / 8) as usize;
                shipped = from.advance(buffer.len() as u64 * 8);
                replica.shipped.store(shipped.get(), Ordering::Relaxed);
                news = true;
            }

            let closing = self.closing.is_stopped();
            let flushed = commit.published();
            let stopping = closing && shipped == flushed;
            let state = if stopping { state::STOPPING } else { state::RUNNING };
            // In the order of the words: epoch, tail, flushed, state.
            let control = [wal.epoch().get(), shipped.get(), flushed.get(), state];
            // The first clock at once: without it the RO may not read strongly.
            let first_clock = clock != 0 && echoed == 0;
            let due = first_clock || beat.is_none_or(|beat| beat.elapsed() >= self.heartbeat);
            if control != written || due {
                let clocks = [clock];
                // By a write of its own: who finds this clock also finds a flushed LSN from after it.
                let clocks = if due { &clocks[..] } else { &[] };
                let write = |at_word, words| Post::Write { region: region::LOG, at_word, words };
                link.post(&[
                    write(place, &buffer),
                    write(log::EPOCH, &control),
                    write(log::CLOCK_ECHO, clocks),
                    Post::Ring { region: region::LOG },
                ])?;
                written = control;
                if due {
                    echoed = clock;
                    beat = Some(Instant::now());
                }
                // Meets the fence in `Commit::flushed`: either this finds what was published meanwhile, or the word written
                // there comes after the older one written here.
                fence(Ordering::SeqCst);
            }

            if !news && commit.published() == flushed {
                let since = beat.map_or(self.heartbeat, |beat| beat.elapsed());
                replica.progress.sleep(seen, self.heartbeat.saturating_sub(since));
            }
        }
    }

    /// What to write next: from where, and how many words. Bounded by what is appended, by what the RO has taken (S4), by the
    /// end of the ring and by the end of an epoch.
    fn chunk(&self, shipped: Lsn, taken: Lsn, ring_bytes: u64) -> Option<(Lsn, u64)> {
        let history = self.wal.history();
        let from = history.next_start(shipped);
        // What an RO says it has taken is believed only as far as that can be.
        let window = taken.min(from).advance(ring_bytes);
        let epoch_end = history.end_of_epoch_at(from).unwrap_or_else(|| self.wal.appended());
        let ring_end = from.advance(ring_bytes - from.get() % ring_bytes);
        let end = window.min(epoch_end).min(ring_end).min(from.advance(CHUNK_WORDS * 8));
        (end > from).then(|| (from, end.since(from) / 8))
    }

    /// Fills `out` with log words from the ring, or from segment files where the ring has gone past them; `out` then ends
    /// where the files do.
    fn read(&self, from: Lsn, out: &mut Vec<u64>) -> Result<(), ShipError> {
        let this_epoch = self.wal.history().current().is_some_and(|epoch| from >= epoch.start);
        let in_ring = this_epoch && self.wal.ring().copy_out(from, out).is_ok();
        self.replica.from_segments.store(!in_ring, Ordering::Relaxed);
        if in_ring {
            return Ok(());
        }
        // The ring overwrites only what is flushed, so there is at least one word.
        let flushed_words = self.wal.flushed().since(from) / 8;
        out.truncate(usize::try_from(flushed_words).unwrap_or(usize::MAX));
        self.wal.read(from, out).map_err(|error| ShipError::Log(error.to_string()))
    }
}

/// Why shipping ended.
enum ShipError {
    Link(LinkError),
    Log(String),
}

impl From<LinkError> for ShipError {
    fn from(error: LinkError) -> ShipError {
        ShipError::Link(error)
    }
}
