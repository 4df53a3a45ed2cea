//! Nodes with RDMA devices (InfiniBand, RoCE, soft-RoCE): the NICs carry out reads and writes, and the owner's CPU takes no part.
//!
//! A pair of nodes has one reliable connected (RC) queue pair, made by rdma_cm, in a protection domain of its own; and a TCP connection, over
//! which they tell each other where their regions are, and which then stays open for nothing but to tell when the peer's process is
//! gone. Each link has one thread. It sleeps until a ring comes, something that somebody waits for completes, or the link ends.
//!
//! # Order
//!
//! - RC delivers the requests of one queue pair in the order posted, each once, and the responder carries them out in that order: the
//!   bytes of a WRITE are placed before those of the next, as long as no region asks for relaxed ordering, which none
//!   does. Strictly the InfiniBand specification promises it to what comes after a completion only; that an 8-byte WRITE is not seen before
//!   the data of the WRITE before it is how the NICs in use place them, and what everybody builds on. Records prove themselves (S2), so
//!   that where it should not hold they are not believed, but waited for.
//! - Within one WRITE there is no order, and nothing longer than an aligned word of 8 bytes is placed or read whole.
//! - A ring is a WRITE WITH IMMEDIATE: the receive that it completes is the completion that the specification speaks of, so what an owner finds when a
//!   ring wakes it is promised without reservation.
//! - The owner's loads are [`Acquire`](std::sync::atomic::Ordering::Acquire): what was placed before the word that it finds is not
//!   read ahead of it. A NIC's accesses are coherent with the CPU's caches on the machines in question, and it takes an aligned word from
//!   memory at one moment; so a READ sees a sequentially consistent store that was done before the read was asked for.
//!
//! # The end
//!
//! An owner that closes the link puts the queue pair out of service, and waits until it carries out nothing any more, before
//! [`close`](crate::Link::close) returns: after that no byte of the peer's lands, however late it resumes (E3). Dropping the link destroys it. A peer whose host or network is down is noticed by what is posted to
//! it and not acknowledged, within half a second (on some NICs two): so each side must write something every quarter of the silence
//! that it bears. A peer that is merely stopped is not noticed: its memory stays readable and writable. Its owner, or whoever watches what it
//! writes, must see to that.

mod about;
mod cm;
mod device;
mod establish;
mod endpoint;
mod handshake;
mod queue;
mod queue_pair;
mod read;

use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::closing::{Closing, Threads};
use crate::error::{LinkError, Violation, Why};
use crate::export::{Export, RegionId};
use crate::{Link, Progress, Read, Transport};
pub use about::{Device, Gid, GidKind, Port, Unavailable};
use cm::{Event, Id, ReadDepth};
pub use device::{address_of, devices};
use endpoint::Endpoint;
pub use establish::{Listener, Request, Route, TOKEN_BYTES, route};
use establish::{private_data, readable, wait};
use handshake::Remote;
use queue::Queue;
use queue_pair::{CompletionChannel, Registration};
pub(crate) use read::ReadInFlight;

/// A write that finds no room looks for it so long before it sleeps.
const LOOK: Duration = Duration::from_micros(50);

/// Which side of a connection this is.
pub enum Side {
    /// The one that asks for it, and the token that it shows.
    Connecting(Route, [u8; TOKEN_BYTES]),
    /// The one that is asked.
    Accepting(Request),
}

/// Links with a peer: connects the queue pairs, and tells each other over `stream`, a TCP connection past any handshake and with nothing
/// unread, where the `exports` are. It then keeps the stream to tell when the peer is gone.
///
/// Both sides call this, with a [`Route`] and the [`Request`] that came of it, and both succeed or, but for a peer that dies at the last
/// moment, neither does. It takes `timeout` at most.
///
/// Errors: [`LinkError::Io`], [`LinkError::Locked`], [`LinkError::Refused`], [`LinkError::Closed`] (the peer went away).
/// Panics if `exports` has more than [`EXPORTS_MAX`](crate::EXPORTS_MAX) regions or one number twice.
pub fn link(
    side: Side,
    stream: TcpStream,
    exports: Vec<Export>,
    timeout: Duration,
) -> Result<Arc<dyn Link>, LinkError> {
    let deadline = Instant::now() + timeout;
    stream.set_nonblocking(false).map_err(LinkError::io("use the stream"))?;
    let endpoint = match side {
        Side::Connecting(Route(id), token) => {
            let endpoint = Endpoint::new(id, &exports)?;
            let depth = endpoint.limits.reads;
            endpoint
                .id
                .connect(&private_data(token), depth)
                .map_err(LinkError::io("ask the peer for a connection"))?;
            endpoint
        }
        Side::Accepting(Request { id, depth: asked, .. }) => {
            let endpoint = Endpoint::new(id, &exports)?;
            let depth = endpoint.limits.reads;
            let depth =
                ReadDepth { theirs: asked.theirs.min(depth.theirs), ours: asked.ours.min(depth.ours) };
            endpoint.id.accept(depth).map_err(LinkError::io("take the peer's connection"))?;
            endpoint
        }
    };
    handshake::give(&stream, &exports, &endpoint.registered, deadline)?;
    establish::established(&endpoint.id, stream.as_fd(), deadline)?;
    let peer = handshake::take(&stream, deadline)?;
    stream
        .set_write_timeout(None)
        .and_then(|()| stream.set_nonblocking(true))
        .map_err(LinkError::io("use the stream"))?;

    let Endpoint { id, channel, registered, parts, .. } = endpoint;
    let queue = Queue::new(parts).map_err(LinkError::io("use the connection"))?;
    let closing = Closing::new(Transport::Verbs, exports);
    let shared = Arc::new(Shared {
        queue: Mutex::new(queue),
        room: Condvar::new(),
        closing,
        peer,
        stream,
        channel,
        id,
        _registered: registered,
    });
    let mut link = VerbsLink { shared, threads: Threads::default() };
    let shared = link.shared.clone();
    link.threads
        .spawn("rdma-verbs", move || {
            shared.close(watch(&shared));
        })
        .map_err(LinkError::io("start a thread"))?;
    Ok(Arc::new(link))
}

/// The handle. Only it owns the thread, and the thread does not own it: so its end can be the thread's.
struct VerbsLink {
    shared: Arc<Shared>,
    threads: Threads,
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        // The thread is joined after this, as the fields go.
        self.shared.close(Why::Here);
    }
}

/// What the handle, the thread and the reads in flight share.
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when there may be room again, or the link is closed.
    room: Condvar,
    closing: Closing,
    peer: Vec<Remote>,
    stream: TcpStream,
    channel: Arc<CompletionChannel>,
    id: Arc<Id>,
    _registered: Vec<Registration>,
}

impl Shared {
    /// Does `body` with the queue. Afterwards answers the reads that have ended meanwhile, without the lock: whoever waits for one may
    /// do anything, and drop the link's last handle too.
    fn with_queue<R>(&self, body: impl FnOnce(&mut Queue) -> Result<R, Why>) -> Result<R, LinkError> {
        self.done(body, self.queue.lock())
    }

    fn done<R>(
        &self,
        body: impl FnOnce(&mut Queue) -> Result<R, Why>,
        mut queue: MutexGuard<'_, Queue>,
    ) -> Result<R, LinkError> {
        self.closing.check()?;
        let result = body(&mut queue);
        let answered = std::mem::take(&mut queue.answered);
        if queue.sleepers > 0 && queue.has_room() {
            self.room.notify_all();
        }
        drop(queue);
        for (answer, value) in answered {
            // Who asked may have lost interest.
            let _ = answer.send(Ok(value));
        }
        result.map_err(|why| self.close(why))
    }

    /// Waits until a write may find room.
    fn wait_for_room(&self) -> Result<(), LinkError> {
        let start = Instant::now();
        while start.elapsed() < LOOK {
            let room = self.with_queue(|queue| {
                queue.progress()?;
                Ok(queue.has_room())
            })?;
            if room {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // From here on every completion wakes the link's thread, and it notifies. In this order: while nobody sleeps the thread may
        // find that nobody waits.
        self.with_queue(|queue| {
            queue.sleepers += 1;
            queue.want_events()?;
            queue.progress()
        })?;
        let mut queue = self.queue.lock();
        let full = |queue: &mut Queue| !queue.has_room() && !self.closing.closed();
        while self.room.wait_while_for(&mut queue, full, queue::OVERDUE).timed_out() {
            // Nobody else may look whether the peer is alive.
            self.done(Queue::progress, queue)?;
            queue = self.queue.lock();
        }
        queue.sleepers -= 1;
        drop(queue);
        self.closing.check()
    }

    /// Closes the link, unless it is closed already: takes the peer's access back before anything else, then fails what waits here.
    fn close(&self, why: Why) -> LinkError {
        let mut error = None;
        let unanswered = self.queue.lock().end(|| error = Some(self.closing.close(why)));
        let error = error.unwrap_or(LinkError::Closed { why: Why::Here });
        self.room.notify_all();
        self.id.disconnect();
        // Ends the watch, here and there. Fails when the peer was first, which is just as well.
        let _ = self.stream.shutdown(Shutdown::Both);
        for answer in unanswered {
            let _ = answer.send(Err(error.clone()));
        }
        error
    }

    /// The peer's region of that number, and its place in the peer's list.
    fn region(&self, id: RegionId) -> Result<(usize, &Remote), LinkError> {
        self.closing.check()?;
        let found = self.peer.iter().enumerate().find(|(_, remote)| remote.extent.id == id);
        found.ok_or(LinkError::NoSuchRegion { region: id })
    }
}

/// Rings, and takes what completes, until the link ends; says why it did.
fn watch(shared: &Shared) -> Why {
    let exports = shared.closing.exports();
    loop {
        let rung = match shared.with_queue(|queue| queue.turn(exports)) {
            Ok(rung) => rung,
            // Closed with its reason.
            Err(_) => return Why::Here,
        };
        for (_, export) in exports.iter().enumerate().filter(|(i, _)| rung & 1 << i != 0) {
            export.region.ring();
        }
        let mut fds = [readable(&*shared.channel), readable(&*shared.id), readable(&shared.stream)];
        if let Err(error) = wait(&mut fds, None).and_then(|()| shared.channel.take_events()) {
            return Why::io(error);
        }
        match shared.id.event() {
            Ok(Some(Event::Disconnected)) => return Why::PeerGone,
            Ok(Some(Event::DeviceRemoved)) => return Why::DeviceRemoved,
            Ok(_) => {}
            Err(error) => return Why::io(error),
        }
        match (&shared.stream).read(&mut [0]) {
            Ok(0) => {
                // A failure that both sides noticed comes this way too. What it was is the reason, and is there by now.
                let _ = shared.with_queue(Queue::progress);
                return Why::PeerGone;
            }
            Ok(_) => return Violation::Unasked.into(),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Why::of_io(e, Why::PeerGone),
        }
    }
}

impl Link for VerbsLink {
    fn transport(&self) -> Transport {
        Transport::Verbs
    }

    fn write(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<(), LinkError> {
        let (_, remote) = self.shared.region(region)?;
        remote.extent.allows_write(at_word, words.len())?;
        let (mut to, mut rest) = (remote.place.plus(at_word), words);
        while !rest.is_empty() {
            let posted = self.shared.with_queue(|queue| queue.write(to, rest))?;
            (to, rest) = (to.plus(posted), &rest[posted..]);
            if posted == 0 {
                self.shared.wait_for_room()?;
            }
        }
        Ok(())
    }

    fn ring(&self, region: RegionId) -> Result<(), LinkError> {
        let (index, remote) = self.shared.region(region)?;
        remote.extent.allows_ring()?;
        self.shared.with_queue(|queue| queue.ring(index))
    }

    fn write_now(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<bool, LinkError> {
        let (index, remote) = self.shared.region(region)?;
        remote.extent.allows_write(at_word, words.len())?;
        let Some(queue) = self.shared.queue.try_lock() else { return Ok(false) };
        let to = remote.place.plus(at_word);
        self.shared.done(|queue| queue.write_and_ring(to, words, index), queue)
    }

    fn read(&self, region: RegionId, word: usize) -> Read {
        let read = || {
            let (_, remote) = self.shared.region(region)?;
            remote.extent.allows_read(word)?;
            let (answer, answered) = oneshot::channel();
            let taken = self.shared.with_queue(|queue| queue.read(remote.place.plus(word), answer))?;
            if !taken {
                return Err(LinkError::TooManyReads(queue::READS_MAX));
            }
            Ok(ReadInFlight::new(Arc::downgrade(&self.shared), answered))
        };
        read().map_or_else(|error| Read::ready(Err(error)), |read| Read(Progress::Verbs(read)))
    }

    fn closed(&self) -> bool {
        self.shared.closing.closed()
    }

    fn close(&self) {
        self.shared.close(Why::Here);
    }
}
