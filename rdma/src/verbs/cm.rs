//! The connection manager's objects, owned: an id with the channel that its events come on.
//!
//! Every event is acknowledged as soon as what it says is copied, because to destroy or move an id waits for that.
#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use rdma_sys::*;
use rustix::fs::OFlags;
use socket2::SockAddr;

/// Bytes of private data that a request for a connection carries at most, over InfiniBand as over Ethernet.
pub(super) const PRIVATE_BYTES: usize = 56;

/// `enum { RDMA_OPTION_ID }` and `enum { RDMA_OPTION_ID_ACK_TIMEOUT }` of rdma_cma.h, which the bindings leave out.
const OPTION_ID: i32 = 0;
const OPTION_ID_ACK_TIMEOUT: i32 = 3;

/// Where events come.
struct Channel(NonNull<rdma_event_channel>);

// SAFETY: librdmacm's calls may be made from any thread.
unsafe impl Send for Channel {}
// SAFETY: they may be made from several at once; the library locks what they share.
unsafe impl Sync for Channel {}

impl Channel {
    fn new() -> io::Result<Channel> {
        // SAFETY: it asks for nothing.
        let channel = Channel(owned(unsafe { rdma_create_event_channel() })?);
        rustix::fs::fcntl_setfl(&channel, OFlags::NONBLOCK)?;
        Ok(channel)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive and nobody else has a reference to it.
        let fd = unsafe { self.0.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the ids that report here are gone or moved.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// What the connection manager has to say.
pub(super) enum Event {
    /// The address leads to a device.
    AddressResolved,
    /// And there is a way.
    RouteResolved,
    /// A peer asks for a connection.
    Request(Incoming),
    /// The connection is there.
    Established,
    /// The peer has closed the connection.
    Disconnected,
    /// The device is going away.
    DeviceRemoved,
    /// What was asked for did not come to be.
    Failed(io::Error),
    /// Nothing of interest.
    Other,
}

/// A peer's request for a connection. Dropping the id turns it down.
pub(super) struct Incoming {
    pub(super) id: Id,
    pub(super) private: [u8; PRIVATE_BYTES],
    /// Reads in flight that the peer asks to bear, and that it bears.
    pub(super) depth: ReadDepth,
}

/// How many reads one connection can have in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadDepth {
    /// The peer's, to be answered here.
    pub(super) theirs: u8,
    /// Ours, to be answered there.
    pub(super) ours: u8,
}

/// One end of a connection, or a listener.
pub(super) struct Id {
    id: NonNull<rdma_cm_id>,
    // Destroyed after the id.
    channel: Channel,
}

// SAFETY: as for channels.
unsafe impl Send for Id {}
// SAFETY: as for channels. What is read of the id's fields does not change once an address is bound or resolved, and the rest is librdmacm's.
unsafe impl Sync for Id {}

impl Id {
    /// A fresh one.
    ///
    /// Errors: `EOPNOTSUPP` where librdmacm is missing, `ENODEV` or `ENOENT` where the kernel has no rdma_cm.
    pub(super) fn new() -> io::Result<Id> {
        let channel = Channel::new()?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel is alive, and outlives the id; there is room for the answer.
        check(unsafe {
            rdma_create_id(channel.0.as_ptr(), &mut id, ptr::null_mut(), rdma_port_space::RDMA_PS_TCP)
        })?;
        Ok(Id { id: owned(id)?, channel })
    }

    /// The library's id, for calls that take it.
    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// The device it is bound to. Lives as long as the id does.
    ///
    /// Errors: `ENODEV` if it is bound to none.
    pub(super) fn context(&self) -> io::Result<NonNull<ibv_context>> {
        // SAFETY: the id is alive; the field is set once, before any event that says so.
        let context = unsafe { (*self.id.as_ptr()).verbs };
        NonNull::new(context).ok_or_else(|| rustix::io::Errno::NODEV.into())
    }

    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        // SAFETY: the library only reads the address, of whose family's size it is.
        check(unsafe { rdma_bind_addr(self.as_ptr(), address.as_ptr().cast_mut().cast()) })
    }

    /// Where it is bound.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        // SAFETY: the id is alive, and its address stands once it is bound.
        let bound = unsafe { &(*self.id.as_ptr()).route.addr.src_addr_union };
        let copy = |storage: *mut _, _: *mut _| {
            // SAFETY: both are storage for an address of any family, the one alive, the other ours alone.
            unsafe { ptr::copy_nonoverlapping(ptr::from_ref(bound).cast(), storage, 1) };
            Ok(())
        };
        // SAFETY: all of the storage is filled, with an address of a family that the library has set.
        let ((), address) = unsafe { SockAddr::try_init(copy) }?;
        address.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    pub(super) fn listen(&self, backlog: usize) -> io::Result<()> {
        // SAFETY: the id is alive.
        check(unsafe { rdma_listen(self.as_ptr(), backlog as i32) })
    }

    /// Looks for the device that leads to `to`; the outcome is an event.
    pub(super) fn resolve_address(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        timeout: Duration,
    ) -> io::Result<()> {
        let (to, from) = (SockAddr::from(to), from.map(SockAddr::from));
        let from = from.as_ref().map_or(ptr::null_mut(), |from| from.as_ptr().cast_mut().cast());
        // SAFETY: the library only reads the addresses, and does so before it returns.
        check(unsafe {
            rdma_resolve_addr(self.as_ptr(), from, to.as_ptr().cast_mut().cast(), millis(timeout))
        })
    }

    /// Looks for the way; the outcome is an event.
    pub(super) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: the id is alive.
        check(unsafe { rdma_resolve_route(self.as_ptr(), millis(timeout)) })
    }

    /// How long an acknowledgement may take until the NIC sends again: 4.096 µs · 2^`exponent`. To be set before connecting.
    pub(super) fn set_ack_timeout(&self, mut exponent: u8) -> io::Result<()> {
        // SAFETY: the option's value is one byte.
        check(unsafe {
            rdma_set_option(
                self.as_ptr(),
                OPTION_ID,
                OPTION_ID_ACK_TIMEOUT,
                ptr::from_mut(&mut exponent).cast(),
                1,
            )
        })
    }

    /// Asks the peer for a connection; the outcome is an event.
    pub(super) fn connect(&self, private: &[u8; PRIVATE_BYTES], depth: ReadDepth) -> io::Result<()> {
        let mut parameters = parameters(private, depth);
        // SAFETY: the parameters and the private data that they point to are read before it returns.
        check(unsafe { rdma_connect(self.as_ptr(), &mut parameters) })
    }

    /// Takes the peer's request; the outcome is an event.
    pub(super) fn accept(&self, depth: ReadDepth) -> io::Result<()> {
        let mut parameters = parameters(&[], depth);
        // SAFETY: the parameters are read before it returns.
        check(unsafe { rdma_accept(self.as_ptr(), &mut parameters) })
    }

    /// Tells the peer that the connection is over.
    pub(super) fn disconnect(&self) {
        // Fails when the peer was first, which is just as well.
        // SAFETY: the id is alive.
        let _ = unsafe { rdma_disconnect(self.as_ptr()) };
    }

    /// The next event, if there is one.
    pub(super) fn event(&self) -> io::Result<Option<Event>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive; there is room for the answer.
        match check(unsafe { rdma_get_cm_event(self.channel.0.as_ptr(), &mut event) }) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            other => other?,
        }
        let event = owned(event)?;
        // SAFETY: the event is ours until it is acknowledged.
        let about = unsafe { event.as_ref() };
        let (kind, status, id) = (about.event, about.status, about.id);
        let request = (kind == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST).then(|| {
            // SAFETY: an event of this kind carries these parameters.
            let conn = unsafe { &about.param.conn };
            let mut private = [0; PRIVATE_BYTES];
            let count = usize::from(conn.private_data_len).min(PRIVATE_BYTES);
            if !conn.private_data.is_null() {
                // SAFETY: so many bytes are there, and there is room for them.
                unsafe {
                    ptr::copy_nonoverlapping(conn.private_data.cast(), private.as_mut_ptr(), count);
                }
            }
            (private, ReadDepth { theirs: conn.responder_resources, ours: conn.initiator_depth })
        });
        // SAFETY: acknowledged once, and not looked at afterwards.
        check(unsafe { rdma_ack_cm_event(event.as_ptr()) })?;

        use rdma_cm_event_type::*;
        Ok(Some(match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
            RDMA_CM_EVENT_ESTABLISHED => Event::Established,
            RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
            RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoved,
            RDMA_CM_EVENT_REJECTED => Event::Failed(io::ErrorKind::ConnectionRefused.into()),
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE => Event::Failed(if status < 0 {
                io::Error::from_raw_os_error(-status)
            } else {
                io::ErrorKind::HostUnreachable.into()
            }),
            RDMA_CM_EVENT_CONNECT_REQUEST => match request {
                Some((private, depth)) => match Id::adopt(id) {
                    Ok(id) => Event::Request(Incoming { id, private, depth }),
                    Err(error) => Event::Failed(error),
                },
                None => Event::Other,
            },
            _ => Event::Other,
        }))
    }

    /// Takes over a request's id, and has its events come on a channel of its own.
    fn adopt(id: *mut rdma_cm_id) -> io::Result<Id> {
        let id = owned(id)?;
        let channel = Channel::new().inspect_err(|_| {
            // SAFETY: ours since the event, and its events are acknowledged.
            unsafe { rdma_destroy_id(id.as_ptr()) };
        })?;
        let id = Id { id, channel };
        // SAFETY: both are alive, the channel outlives the id, and no event of the id's is unacknowledged.
        check(unsafe { rdma_migrate_id(id.as_ptr(), id.channel.0.as_ptr()) })?;
        Ok(id)
    }
}

impl AsFd for Id {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: whatever was made on it keeps it alive, so nothing of that is left, and its events are acknowledged.
        unsafe { rdma_destroy_id(self.id.as_ptr()) };
    }
}

/// How a connection is to be.
fn parameters(private: &[u8], depth: ReadDepth) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: depth.theirs,
        initiator_depth: depth.ours,
        flow_control: 1,
        // Not 7, the most: some take that for "for ever" (soft-RoCE in Linux 6.1).
        retry_count: 6,
        // A ring is posted only where the peer has a receive for it: one that finds none is a fault of ours.
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
}

/// What a call of librdmacm says: 0, or -1 with `errno`.
pub(super) fn check(answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a call that makes something says: it, or NULL with `errno`.
pub(super) fn owned<T>(made: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(made).ok_or_else(io::Error::last_os_error)
}
