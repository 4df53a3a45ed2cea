//! The fallback: reads and writes are frames on TCP, carried out by a thread of the owner's (its *agent*).
//!
//! A pair of nodes has two connections. Each carries the frames of one side and the answers to them, so that one
//! side's bulk writes never delay the other's reads:
//!
//! ```text
//!     this side                                            the peer
//!     initiator  -- out:   frames -->  <-- answers --      agent
//!     agent      -- agent: answers -->  <-- frames --      initiator
//! ```
//!
//! A region's owner that calls [`close`](crate::Link::close) takes its memory back: its agent carries out no frame that it
//! has not begun.

mod agent;
mod answers;
mod frame;

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::sync::oneshot;

use crate::closing::{Closing, Threads};
use crate::error::{LinkError, Why};
use crate::export::{Export, Extent, RegionId};
use crate::{Link, Post, Read, Transport, announce};
use frame::{FRAME_WORDS_MAX, Frame};

/// A payload up to this is copied to be sent together with what comes before and after it: 8 KiB.
const COPIED_WORDS_MAX: usize = 1024;
/// Reads in flight on one link at most.
const READS_MAX: usize = 4096;

/// Links with a peer over two connections: `out` for what this side asks of the peer's regions, `agent` for what the peer
/// asks of ours. What `out` is here is `agent` there. Both are past any handshake, with nothing unread.
///
/// Both sides call this; each tells the other its exports first, and waits for the other's, `silence_max` at most.
///
/// From then on a peer that says nothing for `silence_max`, or takes nothing of what is sent for as long, is taken
/// for dead. So each side must write something at least every quarter of it.
///
/// Errors: those of the sockets, and [`InvalidData`](io::ErrorKind::InvalidData) with a [`Violation`](crate::Violation) inside if the peer
/// is no such peer. Panics if `exports` has more than [`EXPORTS_MAX`](crate::EXPORTS_MAX) regions or one number twice.
pub fn link(
    out: TcpStream,
    agent: TcpStream,
    exports: Vec<Export>,
    silence_max: Duration,
) -> io::Result<Arc<dyn Link>> {
    for socket in [&out, &agent] {
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(silence_max))?;
        socket.set_write_timeout(Some(silence_max))?;
        // For what no call waits for any more. Later than the calls' own deadlines, so that these name the reason.
        SockRef::from(socket).set_tcp_user_timeout(Some(silence_max.saturating_mul(2)))?;
    }
    (&agent).write_all(bytemuck::cast_slice(&announce::encode(&exports)))?;
    let mut announced = [0; announce::WORDS];
    (&out).read_exact(bytemuck::cast_slice_mut(&mut announced))?;
    let peer = announce::decode(&announced)
        .map_err(|violation| io::Error::new(io::ErrorKind::InvalidData, violation))?;
    // Answers come only when something was asked; a peer that is dead is found out by its silence on the other connection.
    out.set_read_timeout(None)?;

    let closing = Closing::new(Transport::Tcp, exports);
    let shared = Arc::new(Shared {
        out,
        agent,
        silence_max,
        peer,
        closing,
        posting: Mutex::default(),
        reads: Mutex::default(),
    });
    let mut link = TcpLink { shared, threads: Threads::default() };
    for (name, body) in [("rdma-agent", agent::run as fn(&Shared) -> Why), ("rdma-answers", answers::run)] {
        let shared = link.shared.clone();
        link.threads.spawn(name, move || {
            shared.close(body(&shared));
        })?;
    }
    Ok(Arc::new(link))
}

/// The handle. Only it owns the threads, and they do not own it: so its end can be theirs.
struct TcpLink {
    shared: Arc<Shared>,
    threads: Threads,
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        // The threads are joined after this, as the fields go.
        self.shared.close(Why::Here);
    }
}

/// What the handle and the threads share.
///
/// - Whoever holds `posting`, where frames are put together, sends whole ones and leaves it empty; a link on which a frame was sent in part is closed.
/// - `reads` are the reads sent and not answered, oldest first: as the agent answers in order, an answer is the first one's.
///   It grows only under `posting` (so its order is that of the frames) and only while the link is open (so
///   that closing leaves no read behind).
struct Shared {
    out: TcpStream,
    agent: TcpStream,
    silence_max: Duration,
    peer: Vec<Extent>,
    closing: Closing,
    posting: Mutex<Vec<u64>>,
    reads: Mutex<VecDeque<Answer>>,
}

type Answer = oneshot::Sender<Result<u64, LinkError>>;

impl Shared {
    /// Closes the link, unless it is closed already: ends what blocks on the sockets, fails the reads in flight.
    fn close(&self, why: Why) -> LinkError {
        let error = self.closing.close(why);
        for socket in [&self.out, &self.agent] {
            // Fails when the connection is no longer one, which is just as well.
            let _ = socket.shutdown(Shutdown::Both);
        }
        let reads = std::mem::take(&mut *self.reads.lock());
        for read in reads {
            let _ = read.send(Err(error.clone()));
        }
        error
    }

    /// The peer's region of that number.
    fn region(&self, id: RegionId) -> Result<&Extent, LinkError> {
        self.peer.iter().find(|extent| extent.id == id).ok_or(LinkError::NoSuchRegion { region: id })
    }

    /// Sends what `frames` holds, and after it `payload`. The caller holds `posting`, whose content `frames` is.
    fn send(&self, frames: &mut Vec<u64>, payload: &[u64]) -> Result<(), LinkError> {
        debug_assert!(self.posting.is_locked(), "frames are sent one after the other");
        self.closing.check()?;
        let mut parts =
            [IoSlice::new(bytemuck::cast_slice(frames)), IoSlice::new(bytemuck::cast_slice(payload))];
        let mut rest = &mut parts[..];
        while rest.iter().any(|part| !part.is_empty()) {
            match (&self.out).write_vectored(rest) {
                Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.close(Why::of_io(e, Why::Stuck(self.silence_max)))),
            }
        }
        frames.clear();
        Ok(())
    }

    /// Sends a read and gives where its answer will come.
    fn send_read(
        &self,
        region: RegionId,
        word: usize,
    ) -> Result<oneshot::Receiver<Result<u64, LinkError>>, LinkError> {
        self.closing.check()?;
        self.region(region)?.allows_read(word)?;
        let mut frames = self.posting.lock();
        let (answer, answered) = oneshot::channel();
        {
            let mut reads = self.reads.lock();
            // Looked at under the lock: a link that closes from now on finds the read and fails it.
            self.closing.check()?;
            if reads.len() == READS_MAX {
                return Err(LinkError::TooManyReads(READS_MAX));
            }
            reads.push_back(answer);
        }
        frames.extend(Frame::Read { region, word }.encode());
        self.send(&mut frames, &[])?;
        Ok(answered)
    }
}

impl Link for TcpLink {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn write(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<(), LinkError> {
        self.post(&[Post::Write { region, at_word, words }])
    }

    fn ring(&self, region: RegionId) -> Result<(), LinkError> {
        self.post(&[Post::Ring { region }])
    }

    fn post(&self, posts: &[Post<'_>]) -> Result<(), LinkError> {
        self.shared.closing.check()?;
        for post in posts {
            match *post {
                Post::Write { region, at_word, words } => {
                    self.shared.region(region)?.allows_write(at_word, words.len())?;
                }
                Post::Ring { region } => self.shared.region(region)?.allows_ring()?,
            }
        }
        let mut frames = self.shared.posting.lock();
        for post in posts {
            match *post {
                Post::Write { region, at_word, words } => {
                    for (i, payload) in words.chunks(FRAME_WORDS_MAX).enumerate() {
                        let at_word = at_word + i * FRAME_WORDS_MAX;
                        frames.extend(Frame::Write { region, at_word, count: payload.len() }.encode());
                        // Small ones are copied, to go in one call with the next; large ones are not.
                        if payload.len() <= COPIED_WORDS_MAX {
                            frames.extend_from_slice(payload);
                        } else {
                            self.shared.send(&mut frames, payload)?;
                        }
                    }
                }
                Post::Ring { region } => frames.extend(Frame::Ring { region }.encode()),
            }
        }
        self.shared.send(&mut frames, &[])
    }

    fn write_now(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<bool, LinkError> {
        self.shared.closing.check()?;
        self.shared.region(region)?.allows_write(at_word, words.len())?;
        // Any frame may have to wait until the peer takes what was sent before.
        Ok(false)
    }

    fn read(&self, region: RegionId, word: usize) -> Read {
        match self.shared.send_read(region, word) {
            Ok(answered) => Read::waiting(answered),
            Err(e) => Read::ready(Err(e)),
        }
    }

    fn closed(&self) -> bool {
        self.shared.closing.closed()
    }

    fn close(&self) {
        self.shared.close(Why::Here);
    }
}
