//! How two NICs come to be connected: one side listens, the other asks, and shows a token that it got over the control connection.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};

use super::cm::{Event, Id, Incoming, PRIVATE_BYTES, ReadDepth};
use crate::announce::MAGIC;
use crate::error::{LinkError, Why};

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;

/// Requests for a connection that are neither taken nor turned down, at most; more are turned down.
const REQUESTS_MAX: usize = 16;

/// How long the kernel tries to find a neighbour's address before it looks again whether it has come: it is not always told (seen on Linux
/// 6.1), and would otherwise wait for all of the time that it is given.
const RESOLVE_TRY: Duration = Duration::from_millis(200);

/// What a request carries: this protocol's magic, the token, zeros.
pub(super) fn private_data(token: [u8; TOKEN_BYTES]) -> [u8; PRIVATE_BYTES] {
    let mut private = [0; PRIVATE_BYTES];
    private[..8].copy_from_slice(&MAGIC.to_le_bytes());
    private[8..8 + TOKEN_BYTES].copy_from_slice(&token);
    private
}

/// The token in a request of this protocol's.
fn token(private: &[u8; PRIVATE_BYTES]) -> Option<[u8; TOKEN_BYTES]> {
    let token = private[8..8 + TOKEN_BYTES].try_into().ok()?;
    (*private == private_data(token)).then_some(token)
}

/// Where peers' requests for connections come in.
pub struct Listener {
    id: Id,
    stopped: OwnedFd,
    /// Requests handed out and still undecided.
    undecided: Arc<AtomicUsize>,
}

impl Listener {
    /// Listens at `address`: one of a device's, or a wildcard for all devices of the host. Port 0 has the system choose one. The
    /// ports are rdma_cm's own, not TCP's.
    ///
    /// Errors: [`LinkError::Io`]; [`Unavailable`](super::Unavailable) says better what is missing if there are no devices.
    pub fn bind(address: SocketAddr) -> Result<Listener, LinkError> {
        let id = Id::new().map_err(LinkError::io("use the RDMA connection manager"))?;
        id.bind(address).map_err(LinkError::io("bind to the address for RDMA"))?;
        id.listen(REQUESTS_MAX).map_err(LinkError::io("listen for RDMA connections"))?;
        let stopped = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(LinkError::io("make an event descriptor"))?;
        Ok(Listener { id, stopped, undecided: Arc::default() })
    }

    /// Where it listens.
    ///
    /// Errors: [`LinkError::Io`].
    pub fn address(&self) -> Result<SocketAddr, LinkError> {
        self.id.address().map_err(LinkError::io("find out the address for RDMA"))
    }

    /// Waits for the next request of a peer that speaks this protocol; none once [`stop`](Listener::stop) was called. Others are
    /// turned down, and so are all beyond 16 that are undecided.
    ///
    /// Errors: [`LinkError::Io`] if nothing more will come.
    pub fn accept(&self) -> Result<Option<Request>, LinkError> {
        loop {
            let mut fds = [readable(&self.id), readable(&self.stopped)];
            wait(&mut fds, None).map_err(LinkError::io("wait for RDMA connections"))?;
            if !fds[1].revents().is_empty() {
                return Ok(None);
            }
            match self.id.event().map_err(LinkError::io("wait for RDMA connections"))? {
                Some(Event::Request(Incoming { id, private, depth })) => {
                    let undecided = Undecided::count(&self.undecided);
                    let Some(token) = token(&private) else {
                        tracing::warn!("an RDMA connection is turned down: it is of another protocol");
                        continue;
                    };
                    if self.undecided.load(Ordering::Relaxed) > REQUESTS_MAX {
                        tracing::warn!("an RDMA connection is turned down: {REQUESTS_MAX} are undecided");
                        continue;
                    }
                    return Ok(Some(Request { token, depth, id, undecided }));
                }
                Some(Event::Failed(error)) => tracing::warn!(%error, "an RDMA connection could not be taken"),
                Some(Event::DeviceRemoved) => {
                    return Err(LinkError::Closed { why: Why::DeviceRemoved });
                }
                _ => {}
            }
        }
    }

    /// Ends [`accept`](Listener::accept), now and for ever; from any thread.
    pub fn stop(&self) {
        // Fails only when the count is full, and then it is not 0 either.
        let _ = rustix::io::write(&self.stopped, bytemuck::bytes_of(&1u64));
    }
}

/// Counts one request for as long as it lives.
struct Undecided(Arc<AtomicUsize>);

impl Undecided {
    fn count(all: &Arc<AtomicUsize>) -> Undecided {
        all.fetch_add(1, Ordering::Relaxed);
        Undecided(all.clone())
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A peer that wants to be connected. [`link`](super::link) takes it; dropping it turns it down.
pub struct Request {
    /// What the peer shows to say which of the peers it is.
    pub token: [u8; TOKEN_BYTES],
    pub(super) depth: ReadDepth,
    // Turned down by the kernel when it goes without having been taken.
    pub(super) id: Id,
    #[expect(dead_code, reason = "counts as long as it lives")]
    undecided: Undecided,
}

/// A way to a peer, not yet a connection. [`link`](super::link) makes it one.
pub struct Route(pub(super) Id);

/// Finds the device that leads to a listener at `to`, from the address `from` if there is one.
/// Takes `timeout` at most.
///
/// Errors: [`LinkError::Io`]: no device leads there, or the address does not answer.
pub fn route(to: SocketAddr, from: Option<IpAddr>, timeout: Duration) -> Result<Route, LinkError> {
    let deadline = Instant::now() + timeout;
    loop {
        match resolve(to, from, deadline) {
            Err(Why::Io(error)) if error.kind() == ErrorKind::TimedOut && Instant::now() < deadline => {}
            resolved => return resolved.map_err(named("find an RDMA device that leads to the peer")),
        }
    }
}

/// One try of the kernel's.
fn resolve(to: SocketAddr, from: Option<IpAddr>, deadline: Instant) -> Result<Route, Why> {
    let id = Id::new().map_err(Why::io)?;
    let from = from.map(|ip| SocketAddr::new(ip, 0));
    id.resolve_address(to, from, RESOLVE_TRY).map_err(Why::io)?;
    await_event(&id, None, deadline, |event| matches!(event, Event::AddressResolved))?;
    id.resolve_route(RESOLVE_TRY).map_err(Why::io)?;
    await_event(&id, None, deadline, |event| matches!(event, Event::RouteResolved))?;
    Ok(Route(id))
}

/// Waits until the connection that was asked for, or taken, is there. `stream` is the control connection, by which a peer
/// that gives up is noticed.
pub(super) fn established(id: &Id, stream: BorrowedFd<'_>, deadline: Instant) -> Result<(), LinkError> {
    await_event(id, Some(stream), deadline, |event| matches!(event, Event::Established))
        .map_err(named("connect to the peer's RDMA device"))
}

/// Waits for one event, `awaited`; whatever else happens is a failure.
fn await_event(
    id: &Id,
    stream: Option<BorrowedFd<'_>>,
    deadline: Instant,
    awaited: impl Fn(&Event) -> bool,
) -> Result<(), Why> {
    loop {
        match id.event().map_err(Why::io)? {
            Some(event) if awaited(&event) => return Ok(()),
            Some(Event::Failed(error)) => return Err(Why::io(error)),
            Some(Event::Disconnected) => return Err(Why::PeerGone),
            Some(Event::DeviceRemoved) => return Err(Why::DeviceRemoved),
            Some(_) => continue,
            None => {}
        }
        // What the peer sends meanwhile stays for later; only its end is of interest.
        let mut fds = vec![readable(id)];
        fds.extend(stream.map(|stream| PollFd::from_borrowed_fd(stream, PollFlags::RDHUP)));
        wait(&mut fds, Some(deadline)).map_err(Why::io)?;
        if fds.get(1).is_some_and(|stream| !stream.revents().is_empty()) {
            return Err(Why::PeerGone);
        }
    }
}

/// Says what was tried, where only the system's answer is known.
fn named(doing: &'static str) -> impl FnOnce(Why) -> LinkError {
    move |why| match why {
        Why::Io(source) => LinkError::Io { doing, source },
        why => LinkError::Closed { why },
    }
}

/// Something to wait for.
pub(super) fn readable(fd: &impl AsFd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}

/// Waits until one of `fds` is ready.
///
/// Errors: [`TimedOut`](ErrorKind::TimedOut) at the deadline.
pub(super) fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A timeout of more seconds than the kernel can count is none.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, timeout.as_ref()) {
            Ok(0) if left.is_some() => return Err(ErrorKind::TimedOut.into()),
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_of_another_protocol_has_no_token() {
        let ours = private_data([7; TOKEN_BYTES]);
        assert_eq!(token(&ours), Some([7; TOKEN_BYTES]));
        // Every byte but the token's is looked at.
        for i in (0..8).chain(8 + TOKEN_BYTES..PRIVATE_BYTES) {
            let mut other = ours;
            other[i] ^= 1;
            assert_eq!(token(&other), None, "byte {i}");
        }
        assert_eq!(token(&[0; PRIVATE_BYTES]), None);
    }
}
