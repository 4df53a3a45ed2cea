//! What one side posts, and what has become of it. All of it under one lock, so that the order of posting is one order.
//!
//! - Requests are numbered as they are posted and end in that order (RC). One in [`SIGNAL_EVERY`], each read, one for each quarter
//!   of the staging memory, and one while no other is under way is signaled: its completion says that all before it have ended too. So
//!   whatever fills the queue or the memory contains one that will be heard of, and neither is ever overrun.
//! - A NIC gives up on a peer that does not answer after so many tries. soft-RoCE does not count them while more is posted: so who posts also looks how
//!   old the oldest signaled request is ([`OVERDUE`]).
//! - Rings need a receive at the peer's. Each side posts [`RECEIVES`]; a ring takes one *credit* of [`RINGS_MAX`], and
//!   the peer gives credits back by the same kind of message once it has taken half of them and posted as many again. A
//!   ring without a credit is *owed*, once a region, and posted when credits come, which wakes this side's thread. So a peer that is
//!   stopped takes no rings and delays nothing else, a missing receive never stalls the queue pair, and no wake-up is lost. The messages that
//!   give credits back need none: each stands for half of [`RINGS_MAX`] at least, so two are under way at most, and these have receives of their own.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::queue_pair::{
    CHAIN_MAX, Completion, CompletionQueue, POLL_MAX, Place, QueuePair, Registration, Work, WorkRequest,
};
use crate::error::{LinkError, Violation, Why};
use crate::export::{Access, EXPORTS_MAX, Export};
use crate::memory;

/// Requests that the send queue holds.
pub(super) const SEND_DEPTH: u32 = 256;
/// Of these, kept free of writes: for reads, rings and credits, which must not wait behind a bulk of writes.
const RESERVED: u64 = 64;
const SIGNAL_EVERY: u64 = 32;

/// A request that has not ended after this long is looked at again after as long; then the peer is taken for dead. Twice, because a first
/// look may come after a standstill of this host's, when the answer is still to be taken.
pub(super) const OVERDUE: Duration = Duration::from_millis(300);

/// A queue pair put out of service is waited for so long.
const FLUSH_MAX: Duration = Duration::from_millis(100);

/// Rings under way at most.
const RINGS_MAX: u32 = 64;
/// Receives posted: one for each ring, and two for messages that give credits back.
pub(super) const RECEIVES: u32 = RINGS_MAX + 2;
/// Marks a message that gives credits back; the rest of it is how many.
const CREDIT: u32 = 1 << 31;

/// Words of the largest request.
pub(super) const CHUNK_WORDS: usize = 8 << 10;
/// Words of the memory that writes are sent from.
pub(super) const STAGING_WORDS: usize = 128 << 10;
const SIGNAL_EVERY_WORDS: u64 = STAGING_WORDS as u64 / 4;

/// Reads under way at the NIC at most.
pub(super) const READS_POSTED_MAX: u8 = 16;
/// Reads asked for and not answered, at most.
pub(super) const READS_MAX: usize = 4096;
/// Words from one read's place to the next: they share no cache line.
const SLOT_WORDS: usize = 8;
/// Words of the memory that reads arrive in.
pub(super) const LANDING_WORDS: usize = SLOT_WORDS * READS_POSTED_MAX as usize;

// A whole write can wait for: the queue is full only with two signaled requests in it, the staging memory with one.
const _: () = assert!(RESERVED + 2 * SIGNAL_EVERY < SEND_DEPTH as u64);
const _: () = assert!(SIGNAL_EVERY_WORDS as usize + 4 * CHUNK_WORDS < STAGING_WORDS);
// What may be due at once, beside writes, fits into what is kept free.
const _: () = assert!(READS_POSTED_MAX as usize + EXPORTS_MAX + 2 < RESERVED as usize);

pub(super) type Answer = oneshot::Sender<Result<u64, LinkError>>;

/// One side's queue pair with all that belongs to it.
pub(super) struct Queue {
    /// Gone once the link is closed.
    pair: Option<QueuePair>,
    /// It, then: out of service, to be destroyed.
    revoked: Option<QueuePair>,
    /// Receives posted whose completion was not taken.
    receiving: usize,
    sends: Arc<CompletionQueue>,
    receives: Arc<CompletionQueue>,
    staging: Registration,
    landing: Registration,

    posted: u64,
    completed: u64,
    /// Requests posted up to the last signaled one.
    signaled_at: u64,
    /// Words of staging memory used so far, modulo its size the next place; and up to the last signaled request; and ended.
    staged: u64,
    staged_signaled_at: u64,
    released: u64,
    /// The signaled requests that have not ended, oldest first.
    signaled: VecDeque<Signaled>,

    /// A signaled request that was found overdue, and when.
    overdue: Option<(u64, Instant)>,

    credits: u32,
    /// Bit i: a ring of the peer's region i is owed.
    owed: u32,
    /// Rings taken whose credits were not given back.
    taken: u32,

    slots: Vec<usize>,
    /// Reads that found no slot.
    waiting: VecDeque<WaitingRead>,

    /// Reads that have ended, for whoever gives back the lock to answer.
    pub(super) answered: Vec<(Answer, u64)>,
    /// Threads that sleep until there is room.
    pub(super) sleepers: usize,
    /// Whether somebody sleeps until something completes: then every completion is to wake the link's thread.
    events_wanted: bool,
    /// What a read takes of late.
    pub(super) round_trip: Duration,
}

struct Signaled {
    number: u64,
    posted: Instant,
    /// Words of staging memory used when it was posted.
    staged: u64,
    read: Option<PostedRead>,
}

struct PostedRead {
    answer: Answer,
    slot: usize,
}

struct WaitingRead {
    answer: Answer,
    from: Place,
}

/// What a queue is made of.
pub(super) struct Parts {
    pub(super) pair: QueuePair,
    pub(super) sends: Arc<CompletionQueue>,
    pub(super) receives: Arc<CompletionQueue>,
    pub(super) staging: Registration,
    pub(super) landing: Registration,
}

impl Queue {
    /// The queue of a connection that is made, on a device that can so much. Its receives are posted.
    pub(super) fn new(parts: Parts) -> io::Result<Queue> {
        let Parts { pair, sends, receives, staging, landing } = parts;
        let reads = pair.read_depth()?.min(usize::from(READS_POSTED_MAX));
        Ok(Queue {
            pair: Some(pair),
            revoked: None,
            receiving: RECEIVES as usize,
            sends,
            receives,
            staging,
            landing,
            posted: 0,
            completed: 0,
            signaled_at: 0,
            staged: 0,
            staged_signaled_at: 0,
            released: 0,
            signaled: VecDeque::new(),
            overdue: None,
            credits: RINGS_MAX,
            owed: 0,
            taken: 0,
            slots: (0..reads).collect(),
            waiting: VecDeque::new(),
            answered: Vec::new(),
            sleepers: 0,
            events_wanted: false,
            round_trip: Duration::ZERO,
        })
    }

    /// Posts what there is room for of a write of `words` to `to`; gives how many words that was.
    pub(super) fn write(&mut self, to: Place, words: &[u64]) -> Result<usize, Why> {
        self.progress()?;
        let mut chain = Vec::with_capacity(words.len().div_ceil(CHUNK_WORDS).min(CHAIN_MAX));
        let mut done = 0;
        while done < words.len() && chain.len() < CHAIN_MAX && self.has_room() {
            let chunk = &words[done..words.len().min(done + CHUNK_WORDS)];
            let work = self.stage(to.plus(done), chunk);
            chain.push(self.request(work, None));
            done += chunk.len();
        }
        self.post(&chain)?;
        Ok(done)
    }

    /// Posts a write and a ring of the peer's region `index` after it; or nothing, if either would have to wait.
    pub(super) fn write_and_ring(&mut self, to: Place, words: &[u64], index: usize) -> Result<bool, Why> {
        self.progress()?;
        if words.len() > CHUNK_WORDS || !self.has_room() || self.credits == 0 {
            return Ok(false);
        }
        let write = self.stage(to, words);
        let write = self.request(write, None);
        self.credits -= 1;
        self.owed &= !(1 << index);
        let ring = self.request(Work::Ring { immediate: index as u32 }, None);
        self.post(&[write, ring])?;
        Ok(true)
    }

    /// Rings the peer's region `index`, after what was posted before; now or as soon as there is a credit.
    pub(super) fn ring(&mut self, index: usize) -> Result<(), Why> {
        self.owed |= 1 << index;
        self.progress()
    }

    /// Reads the word at `from`, now or as soon as a slot is free. False if so many reads are under way that no more are taken.
    pub(super) fn read(&mut self, from: Place, answer: Answer) -> Result<bool, Why> {
        if self.waiting.len() >= READS_MAX {
            return Ok(false);
        }
        self.waiting.push_back(WaitingRead { answer, from });
        self.progress()?;
        if !self.waiting.is_empty() && !self.events_wanted {
            // It follows when another is answered, which nobody may wait for.
            self.want_events()?;
            self.progress()?;
        }
        Ok(true)
    }

    /// Whether a request of the largest size may be posted as a write.
    pub(super) fn has_room(&self) -> bool {
        // What does not fit in one piece before the end of the staging memory begins anew: so twice its size may go.
        let staging_free = STAGING_WORDS as u64 - (self.staged - self.released);
        self.free() > RESERVED && staging_free >= 2 * CHUNK_WORDS as u64
    }

    /// Takes what has completed, and posts what waited for it.
    pub(super) fn progress(&mut self) -> Result<(), Why> {
        loop {
            self.take_completions()?;
            self.look_for_overdue()?;
            self.post_due()?;
            if !self.due() || self.events_wanted {
                return Ok(());
            }
            // There is no room for what is due, and nobody may ever look again: so the thread must be woken.
            self.want_events()?;
        }
    }

    /// Has the link's thread woken by every completion from now on, until nobody waits for one any more. What has completed before is
    /// not noticed so: look after asking.
    pub(super) fn want_events(&mut self) -> Result<(), Why> {
        self.events_wanted = true;
        self.sends.arm(false).map_err(Why::io)
    }

    /// The thread's turn: asks to be woken again, then takes what is there. Gives the regions of ours that were rung, as bits.
    pub(super) fn turn(&mut self, exports: &[Export]) -> Result<u32, Why> {
        if self.pair.is_none() {
            return Ok(0);
        }
        self.receives.arm(true).map_err(Why::io)?;
        // A failure flushes both queues. What it was, the sends say, if it was one of theirs.
        let rung = self.take_receives(exports).or_else(|why| self.take_completions().and(Err(why)))?;
        self.progress()?;
        let waited_for = self.sleepers > 0 || self.due() || self.signaled.iter().any(|s| s.read.is_some());
        self.events_wanted &= waited_for;
        // Failures wake it in any case.
        self.sends.arm(!self.events_wanted).map_err(Why::io)?;
        self.progress()?;
        Ok(rung)
    }

    /// Ends it, at once: takes back what the peer may do, then calls `revoked`, and hands over the reads that nobody will answer.
    pub(super) fn end(&mut self, revoked: impl FnOnce()) -> Vec<Answer> {
        if let Some(pair) = self.pair.take() {
            pair.revoke();
            self.revoked = self.flushed().then_some(pair);
        }
        revoked();
        let posted = self.signaled.drain(..).filter_map(|signaled| Some(signaled.read?.answer));
        let waiting = self.waiting.drain(..).map(|read| read.answer);
        posted.chain(waiting).collect()
    }

    /// Waits until a revoked queue pair has given back its receives. What carries out the peer's requests also does this, so that it has
    /// nothing under way any more: no byte lands from then on. False if it takes too long: then only destroying the queue pair says
    /// the same, which soft-RoCE delays until its own packets are gone, for seconds if the network is down.
    fn flushed(&mut self) -> bool {
        let start = Instant::now();
        let mut completions = [Completion::default(); POLL_MAX];
        while self.receiving > 0 && start.elapsed() < FLUSH_MAX {
            match self.receives.poll(&mut completions) {
                Ok(0) => std::thread::yield_now(),
                Ok(count) => self.receiving -= count.min(self.receiving),
                Err(_) => return false,
            }
        }
        self.receiving == 0
    }

    /// Requests that the send queue has room for.
    fn free(&self) -> u64 {
        u64::from(SEND_DEPTH) - (self.posted - self.completed)
    }

    /// A write of `words`: taken along if they are few, else from a copy.
    fn stage<'a>(&mut self, to: Place, words: &'a [u64]) -> Work<'a> {
        let inline_bytes = self.pair.as_ref().map_or(0, |pair| pair.inline_bytes);
        if size_of_val(words) <= inline_bytes {
            return Work::WriteInline { words, to };
        }
        let size = STAGING_WORDS as u64;
        let mut at = (self.staged % size) as usize;
        if at + words.len() > STAGING_WORDS {
            self.staged += size - at as u64;
            at = 0;
        }
        memory::place(&self.staging.region().words()[at..at + words.len()], words);
        self.staged += words.len() as u64;
        Work::Write { from: self.staging.local(at), words: words.len(), to }
    }

    /// The next request. It must be posted.
    fn request<'a>(&mut self, work: Work<'a>, read: Option<PostedRead>) -> WorkRequest<'a> {
        let number = self.posted;
        self.posted += 1;
        let signaled = read.is_some()
            || self.signaled.is_empty()
            || self.posted - self.signaled_at >= SIGNAL_EVERY
            || self.staged - self.staged_signaled_at >= SIGNAL_EVERY_WORDS;
        if signaled {
            (self.signaled_at, self.staged_signaled_at) = (self.posted, self.staged);
            self.signaled.push_back(Signaled { number, posted: Instant::now(), staged: self.staged, read });
        }
        WorkRequest { number, signaled, work }
    }

    fn post(&mut self, chain: &[WorkRequest<'_>]) -> Result<(), Why> {
        debug_assert!(self.posted - self.completed <= u64::from(SEND_DEPTH), "the send queue is not overrun");
        match &self.pair {
            Some(pair) => pair.post(chain).map_err(Why::io),
            None => Err(Why::Here),
        }
    }

    fn take_completions(&mut self) -> Result<(), Why> {
        let mut completions = [Completion::default(); POLL_MAX];
        loop {
            let count = self.sends.poll(&mut completions).map_err(Why::io)?;
            for completion in &completions[..count] {
                completion.check()?;
                self.complete(completion.number)?;
            }
            if count < POLL_MAX {
                return Ok(());
            }
        }
    }

    /// Fails if the oldest signaled request is not answered for too long.
    fn look_for_overdue(&mut self) -> Result<(), Why> {
        let Some(oldest) = self.signaled.front() else { return Ok(()) };
        match self.overdue {
            _ if oldest.posted.elapsed() < OVERDUE => {}
            Some((number, found)) if number == oldest.number => {
                if found.elapsed() >= OVERDUE {
                    return Err(Why::NoAnswer);
                }
            }
            _ => self.overdue = Some((oldest.number, Instant::now())),
        }
        Ok(())
    }

    /// Takes note that a signaled request has ended well.
    fn complete(&mut self, number: u64) -> Result<(), Why> {
        let ended = self.signaled.pop_front().filter(|ended| ended.number == number);
        let Some(Signaled { number, posted, staged, read }) = ended else {
            return Err(Violation::Unasked.into());
        };
        (self.completed, self.released) = (number + 1, staged);
        if let Some(PostedRead { answer, slot }) = read {
            self.round_trip = (self.round_trip * 7 + posted.elapsed()) / 8;
            let value = self.landing.region().words()[slot * SLOT_WORDS].load(Ordering::Acquire);
            self.slots.push(slot);
            self.answered.push((answer, value));
        }
        Ok(())
    }

    /// Whether something could be posted but for want of room.
    fn due(&self) -> bool {
        self.taken >= RINGS_MAX / 2
            || (self.owed != 0 && self.credits > 0)
            || (!self.waiting.is_empty() && !self.slots.is_empty())
    }

    /// Posts what is due, as far as there is room.
    fn post_due(&mut self) -> Result<(), Why> {
        while self.due() && self.free() > 0 {
            let mut chain = Vec::with_capacity(CHAIN_MAX);
            while self.due() && self.free() > 0 && chain.len() < CHAIN_MAX {
                chain.push(self.next_due());
            }
            self.post(&chain)?;
        }
        Ok(())
    }

    /// The first thing due.
    fn next_due(&mut self) -> WorkRequest<'static> {
        if self.taken >= RINGS_MAX / 2 {
            let credits = std::mem::take(&mut self.taken);
            return self.request(Work::Ring { immediate: CREDIT | credits }, None);
        }
        if self.owed != 0 && self.credits > 0 {
            let index = self.owed.trailing_zeros();
            self.owed &= !(1 << index);
            self.credits -= 1;
            return self.request(Work::Ring { immediate: index }, None);
        }
        let read = self.waiting.pop_front().expect("only called when something is due");
        let slot = self.slots.pop().expect("only called when something is due");
        let to = self.landing.local(slot * SLOT_WORDS);
        let posted = PostedRead { answer: read.answer, slot };
        self.request(Work::Read { from: read.from, to }, Some(posted))
    }

    /// Takes the peer's messages; gives the regions that they ring, as bits.
    fn take_receives(&mut self, exports: &[Export]) -> Result<u32, Why> {
        let mut completions = [Completion::default(); POLL_MAX];
        let mut rung = 0;
        loop {
            let count = self.receives.poll(&mut completions).map_err(Why::io)?;
            self.receiving -= count;
            for completion in &completions[..count] {
                completion.check()?;
                let message = completion.immediate;
                if message & CREDIT != 0 {
                    let credits = message & !CREDIT;
                    if credits > RINGS_MAX - self.credits {
                        return Err(Violation::Unasked.into());
                    }
                    self.credits += credits;
                } else {
                    let rings = exports.get(message as usize).filter(|export| export.access == Access::Write);
                    if rings.is_none() {
                        return Err(Violation::Unasked.into());
                    }
                    rung |= 1 << message;
                    self.taken += 1;
                }
            }
            // Before the credits are given back: they say that the receives are there.
            if let Some(pair) = &self.pair {
                pair.post_receives(count).map_err(Why::io)?;
                self.receiving += count;
            }
            if count < POLL_MAX {
                return Ok(rung);
            }
        }
    }
}
