//! Nodes on one host map each other's regions: a write is a store, a read is a load, and nobody is woken unless asked.
//!
//! The regions' memfds are handed over on a UNIX stream, which then stays open for nothing but to tell when the peer is gone. A peer that
//! is merely stopped is not noticed here: that is for whoever watches what it writes.
//!
//! Mapped memory cannot be taken back: see the crate's front page.

mod handover;

use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::closing::{Closing, Threads};
use crate::error::{LinkError, Violation, Why};
use crate::export::{Export, RegionId};
use crate::{Link, Read, Transport, bell, memory};
use handover::Handed;

/// Links with a peer of this host: hands over `exports` and takes the peer's on a connected UNIX stream, past any handshake and with nothing
/// unread, then keeps the stream to tell when the peer is gone.
///
/// Both sides call this, and both succeed or, but for a peer that dies at the last moment, neither does. It takes `timeout` at most.
///
/// Errors: [`LinkError::Io`], [`LinkError::Refused`] (what the peer offers is not safe to map), [`LinkError::Closed`]
/// (the peer went away or did not take ours). Panics if `exports` has more than [`EXPORTS_MAX`](crate::EXPORTS_MAX) regions or one
/// number twice.
pub fn link(stream: UnixStream, exports: Vec<Export>, timeout: Duration) -> Result<Arc<dyn Link>, LinkError> {
    stream.set_nonblocking(false).map_err(LinkError::io("use the stream"))?;
    let peer = handover::exchange(&stream, &exports, Instant::now() + timeout)?;
    stream
        .set_read_timeout(None)
        .and_then(|()| stream.set_write_timeout(None))
        .map_err(LinkError::io("use the stream"))?;

    let shared = Arc::new(Shared { stream, closing: Closing::new(Transport::Shm, exports) });
    let mut link = ShmLink { peer, shared, threads: Threads::default() };
    let shared = link.shared.clone();
    link.threads
        .spawn("rdma-watch", move || {
            shared.close(watch(&shared.stream));
        })
        .map_err(LinkError::io("start a thread"))?;
    Ok(Arc::new(link))
}

/// How this host, since it was booted, is told from all others: two nodes that read the same here can link by shm.
///
/// Errors: those of reading `/proc/sys/kernel/random/boot_id`.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The handle. The peer's regions stay mapped as long as it lives.
struct ShmLink {
    peer: Vec<Handed>,
    shared: Arc<Shared>,
    threads: Threads,
}

/// What the handle and the thread that watches the peer share.
struct Shared {
    stream: UnixStream,
    closing: Closing,
}

impl Shared {
    fn close(&self, why: Why) {
        self.closing.close(why);
        // Ends the watch, here and there. Fails when the peer was first, which is just as well.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Waits until the peer is gone, or this side shuts the stream down.
fn watch(mut stream: &UnixStream) -> Why {
    loop {
        match stream.read(&mut [0]) {
            Ok(0) => return Why::PeerGone,
            Ok(_) => return Violation::Unasked.into(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Why::of_io(e, Why::PeerGone),
        }
    }
}

impl ShmLink {
    /// The peer's region of that number, if the link is open.
    fn region(&self, id: RegionId) -> Result<&Handed, LinkError> {
        self.shared.closing.check()?;
        self.peer.iter().find(|handed| handed.extent.id == id).ok_or(LinkError::NoSuchRegion { region: id })
    }

    fn load(&self, region: RegionId, word: usize) -> Result<u64, LinkError> {
        let handed = self.region(region)?;
        handed.extent.allows_read(word)?;
        Ok(handed.mapping.load(word))
    }
}

impl Link for ShmLink {
    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn write(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<(), LinkError> {
        let handed = self.region(region)?;
        handed.extent.allows_write(at_word, words.len())?;
        memory::place(&handed.mapping.words()[at_word..at_word + words.len()], words);
        Ok(())
    }

    fn ring(&self, region: RegionId) -> Result<(), LinkError> {
        let handed = self.region(region)?;
        handed.extent.allows_ring()?;
        bell::ring(handed.mapping.words());
        Ok(())
    }

    fn write_now(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<bool, LinkError> {
        self.write(region, at_word, words)?;
        self.ring(region)?;
        Ok(true)
    }

    fn read(&self, region: RegionId, word: usize) -> Read {
        Read::ready(self.load(region, word))
    }

    fn closed(&self) -> bool {
        self.shared.closing.closed()
    }

    fn close(&self) {
        self.shared.close(Why::Here);
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        // The thread is joined after this, as the fields go.
        self.close();
    }
}

#[cfg(test)]
mod tests;
