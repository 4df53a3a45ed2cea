//! Attaching to the RW: the conversation, and the choice of the transport.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use headwater_protocol::frame::{OPENING_BYTES, REPLICATION, VERSION, opening, read_opening};
use headwater_protocol::regions::{log, region};
use headwater_protocol::replication::{
    Attach, Hello, Refusal, SILENT_LEASES, STEP_MAX, ToRo, ToRw, Welcome, receive, send,
};
use headwater_rdma::{Access, Export, Link, LinkError, Region, RegionError, shm, tcp};
use headwater_timestamp::Layout;
use thiserror::Error;
use uuid::Uuid;

use crate::apply::Applied;
use crate::config::TransportChoice;

/// Why an RO is not attached.
#[derive(Debug, Error)]
pub(crate) enum AttachError {
    #[error("{address}: {source}")]
    Io { address: String, source: io::Error },
    #[error("{address} is no Headwater node")]
    NotHeadwater { address: String },
    #[error("{address} speaks version {version} of the protocol, this program speaks {VERSION}")]
    Version { address: String, version: u16 },
    #[error("{address} refuses: {message}")]
    Refused { address: String, refusal: Refusal, message: String },
    #[error("{address} says something else than was asked")]
    Unexpected { address: String },
    #[error("{address} offers what cannot be: {what}")]
    Nonsense { address: String, what: String },
    #[error("no link with {address}: {source}")]
    Link { address: String, source: LinkError },
    #[error("shared memory: {0}")]
    Region(#[from] RegionError),
    #[error("shm was asked for and cannot be had: {0}")]
    NoShm(String),
}

impl AttachError {
    fn io(address: &str) -> impl Fn(io::Error) -> AttachError {
        move |source| AttachError::Io { address: address.to_owned(), source }
    }

    /// Whether it will stay so until a person does something.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            AttachError::Refused { refusal, .. } => !refusal.is_transient(),
            AttachError::NotHeadwater { .. }
            | AttachError::Version { .. }
            | AttachError::Nonsense { .. }
            | AttachError::NoShm(_) => true,
            _ => false,
        }
    }

    /// Whether the state here and the RW's log are of different histories (E1).
    pub(crate) fn is_divergence(&self) -> bool {
        matches!(self, AttachError::Refused { refusal: Refusal::Diverged, .. })
    }
}

/// A link that is up.
pub(crate) struct Attached {
    pub(crate) link: Arc<dyn Link>,
    /// The RO's own region: made for this link, so that an earlier writer's memory is nobody's (E3).
    pub(crate) log_region: Arc<Region>,
    pub(crate) welcome: Welcome,
    /// Why it is not on a better transport; empty if there is none.
    pub(crate) why: String,
    /// The socket by which a better one may come to be.
    pub(crate) better: Option<String>,
}

/// Attaches once.
pub(crate) fn attach(
    address: &str,
    hello: &Hello,
    applied: Applied,
    choice: TransportChoice,
) -> Result<Attached, AttachError> {
    let mut first = dial(address)?;
    let welcome = greet(&mut first, address, hello)?;
    let host = shm::boot_id().map_err(AttachError::io("boot id"))?;
    let (why, better) = match (choice, &welcome.shm_socket) {
        (TransportChoice::Tcp, _) => ("tcp was asked for".to_owned(), None),
        _ if welcome.boot_id != host => ("no shm: the RW is on another host".to_owned(), None),
        (_, None) => ("no shm: the RW does not offer it".to_owned(), None),
        (_, Some(socket)) => match attach_shm(socket, hello, applied) {
            Ok(attached) => return Ok(attached),
            // It is the history or the cluster that does not fit, and it will not by tcp either.
            Err(error @ AttachError::Refused { .. }) => return Err(error),
            Err(error) => (format!("no shm: {error}"), Some(socket.clone())),
        },
    };
    if choice == TransportChoice::Shm {
        return Err(AttachError::NoShm(why));
    }
    let (log_region, exports) = own_region(&welcome)?;
    let token = take_place(&mut first, address, applied, "tcp", &why)?;
    let mut second = dial(address)?;
    send(&mut second, &ToRw::Join { token }).map_err(AttachError::io(address))?;
    let silence_max = welcome.lease() * SILENT_LEASES;
    let link = tcp::link(second, first, exports, silence_max).map_err(AttachError::io(address))?;
    Ok(Attached { link, log_region, welcome, why, better })
}

fn attach_shm(socket: &str, hello: &Hello, applied: Applied) -> Result<Attached, AttachError> {
    let io = AttachError::io(socket);
    let mut stream = UnixStream::connect(socket).map_err(&io)?;
    stream.set_read_timeout(Some(STEP_MAX)).map_err(&io)?;
    stream.set_write_timeout(Some(STEP_MAX)).map_err(&io)?;
    let welcome = greet(&mut stream, socket, hello)?;
    let (log_region, exports) = own_region(&welcome)?;
    take_place(&mut stream, socket, applied, "shm", "")?;
    let link = shm::link(stream, exports, STEP_MAX)
        .map_err(|source| AttachError::Link { address: socket.to_owned(), source })?;
    Ok(Attached { link, log_region, welcome, why: String::new(), better: None })
}

/// How the RW's timestamp table is laid out.
pub(crate) fn layout(welcome: &Welcome) -> Layout {
    Layout {
        shard_slots: welcome.shard_slots,
        page_slots: welcome.page_slots,
        page_entries: welcome.page_entries,
    }
}

fn own_region(welcome: &Welcome) -> Result<(Arc<Region>, Vec<Export>), AttachError> {
    let words = log::RING + (welcome.ring_bytes / 8) as usize;
    let log_region = Region::create("headwater-ring", words)?;
    let export = Export { id: region::LOG, region: log_region.clone(), access: Access::Write };
    Ok((log_region, vec![export]))
}

/// Connects and exchanges openings.
fn dial(address: &str) -> Result<TcpStream, AttachError> {
    let io = AttachError::io(address);
    let mut failure = io::Error::other("the name has no address");
    for resolved in address.to_socket_addrs().map_err(&io)? {
        match TcpStream::connect_timeout(&resolved, STEP_MAX) {
            Ok(stream) => return open(stream, address),
            Err(error) => failure = error,
        }
    }
    Err(io(failure))
}

fn open(mut stream: TcpStream, address: &str) -> Result<TcpStream, AttachError> {
    let io = AttachError::io(address);
    stream.set_nodelay(true).map_err(&io)?;
    stream.set_read_timeout(Some(STEP_MAX)).map_err(&io)?;
    stream.set_write_timeout(Some(STEP_MAX)).map_err(&io)?;
    stream.write_all(&opening(REPLICATION)).map_err(&io)?;
    let mut answer = [0; OPENING_BYTES];
    match stream.read_exact(&mut answer) {
        Ok(()) => {}
        // It hung up on us, or waits for us to speak its own protocol.
        Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WouldBlock) => {
            return Err(AttachError::NotHeadwater { address: address.to_owned() });
        }
        Err(error) => return Err(io(error)),
    }
    match read_opening(&answer) {
        (REPLICATION, VERSION) => Ok(stream),
        (REPLICATION, version) => Err(AttachError::Version { address: address.to_owned(), version }),
        _ => Err(AttachError::NotHeadwater { address: address.to_owned() }),
    }
}

fn greet(stream: &mut (impl Read + Write), address: &str, hello: &Hello) -> Result<Welcome, AttachError> {
    match ask(stream, address, &ToRw::Hello(hello.clone()))? {
        ToRo::Welcome(welcome) => {
            let layout = layout(&welcome).validate().err().map(|error| error.to_string());
            match welcome.nonsense().or(layout) {
                None => Ok(*welcome),
                Some(what) => Err(AttachError::Nonsense { address: address.to_owned(), what }),
            }
        }
        _ => Err(AttachError::Unexpected { address: address.to_owned() }),
    }
}

/// Says where the RO stands; the RW's token for the link is the answer.
fn take_place(
    stream: &mut (impl Read + Write),
    address: &str,
    applied: Applied,
    transport: &str,
    why: &str,
) -> Result<Uuid, AttachError> {
    let attach = Attach {
        applied: applied.lsn,
        last_start: applied.start,
        chain: applied.chain,
        epoch: applied.epoch,
        transport: transport.into(),
        why: why.into(),
    };
    match ask(stream, address, &ToRw::Attach(attach))? {
        ToRo::Attached { token } => Ok(token),
        _ => Err(AttachError::Unexpected { address: address.to_owned() }),
    }
}

fn ask(stream: &mut (impl Read + Write), address: &str, message: &ToRw) -> Result<ToRo, AttachError> {
    let io = AttachError::io(address);
    send(stream, message).map_err(&io)?;
    match receive(stream).map_err(&io)? {
        ToRo::Refused { refusal, message } => {
            Err(AttachError::Refused { address: address.to_owned(), refusal, message })
        }
        answer => Ok(answer),
    }
}
