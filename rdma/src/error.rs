use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::export::{Access, EXPORTS_MAX, RegionId};

/// Why something asked of a link was not done.
#[derive(Debug, Clone, Error)]
pub enum LinkError {
    /// The link is dead, or never came to be. Make a new one; where the peer stands only a handshake tells.
    #[error("the link is closed: {why}")]
    Closed {
        /// What ended it.
        why: Why,
    },
    /// The peer exports no such region on this link. A mistake of the caller's; nothing happened.
    #[error("the peer exports no region {region} on this link")]
    NoSuchRegion {
        /// The region asked for.
        region: RegionId,
    },
    /// The peer exports the region for another use. A mistake of the caller's; nothing happened.
    #[error("region {region} was not exported for this: {asked:?}")]
    NotAllowed {
        /// The region asked for.
        region: RegionId,
        /// The access that it would take.
        asked: Access,
    },
    /// The access is not within the region. A mistake of the caller's; nothing happened.
    #[error(
        "words {at_word} and on, {count} of them, are not within words {first} to {end} of region {region}"
    )]
    OutOfBounds {
        /// The region asked for.
        region: RegionId,
        /// First word asked for.
        at_word: usize,
        /// How many words.
        count: usize,
        /// First word that may be reached so.
        first: usize,
        /// The word after the last that may.
        end: usize,
    },
    /// So many reads are in flight that no more are taken; nothing happened. Wait for one of them.
    #[error("{0} reads are in flight, no more are taken")]
    TooManyReads(usize),
    /// The link could not be set up: the operating system refused. Another transport may work.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The operating system's answer.
        source: Arc<io::Error>,
    },
    /// The link could not be set up: the NIC may not lock the memory that it is to reach. Raise the limit, or use another
    /// transport.
    #[error(
        "cannot register {bytes} bytes with the RDMA device: {source}. It locks them in memory, and RLIMIT_MEMLOCK is {}: raise it \
         (`ulimit -l`, `LimitMEMLOCK=` of a systemd unit, memlock in limits.conf) or give the capability CAP_IPC_LOCK",
        .limit.map_or_else(|| "unlimited".into(), |limit| format!("{limit} bytes"))
    )]
    Locked {
        /// Bytes to be registered.
        bytes: usize,
        /// RLIMIT_MEMLOCK of this process in bytes, if there is any.
        limit: Option<u64>,
        /// The kernel's answer.
        source: Arc<io::Error>,
    },
    /// The link could not be set up: what the peer offered was not taken. Another transport may work.
    #[error("what the peer offers is not taken: {0}")]
    Refused(#[from] Violation),
}

impl LinkError {
    /// Turns an I/O error met while trying to `doing` into ours.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> LinkError {
        move |e| LinkError::Io { doing, source: Arc::new(e.into()) }
    }
}

/// What ended a link.
#[derive(Debug, Clone, Error)]
pub enum Why {
    /// It was closed, or dropped, on this side.
    #[error("it was closed on this side")]
    Here,
    /// The peer closed it or died.
    #[error("the peer closed it or died")]
    PeerGone,
    /// The peer said nothing for this long.
    #[error("the peer said nothing for {0:?}")]
    Silent(Duration),
    /// The peer took nothing of what was sent for this long.
    #[error("the peer took nothing of what was sent for {0:?}")]
    Stuck(Duration),
    /// The peer's NIC acknowledges nothing: the host or the network between is down, or the peer has closed its end.
    #[error("the peer's NIC does not answer")]
    NoAnswer,
    /// The peer's NIC refused an access that the peer had exported.
    #[error("the peer has taken back the right to its memory")]
    AccessRefused,
    /// This host's RDMA device is gone.
    #[error("the RDMA device is gone")]
    DeviceRemoved,
    /// The queue pair is out of service, for a reason that only its provider knows or that the peer's requests gave.
    #[error("the queue pair failed: {meaning} (status {status})")]
    QueuePair {
        /// The `ibv_wc_status`.
        status: u32,
        /// The library's words for it.
        meaning: String,
    },
    /// The peer does not keep to the protocol.
    #[error("the peer does not keep to the protocol: {0}")]
    Violation(#[from] Violation),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(Arc<io::Error>),
}

impl Why {
    /// An I/O error that tells nothing more.
    #[cfg(feature = "verbs")]
    pub(crate) fn io(error: io::Error) -> Why {
        Why::Io(Arc::new(error))
    }

    /// The reason behind a failed call on a connection. `timed_out` is what it means that a call took too long.
    pub(crate) fn of_io(error: io::Error, timed_out: Why) -> Why {
        use io::ErrorKind::*;
        match error.kind() {
            WouldBlock | TimedOut => timed_out,
            ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof => Why::PeerGone,
            _ => Why::Io(Arc::new(error)),
        }
    }
}

/// What a peer did that the protocol does not know: another program, another version, or a fault in one of us.
#[derive(Debug, Clone, Error)]
pub enum Violation {
    /// Its first words are not those of this protocol's version.
    #[error("it begins with {found:#018x}, this version of the protocol does not")]
    Magic {
        /// The first word.
        found: u64,
    },
    /// It announced more regions than a link can have.
    #[error("it announced {0} regions, a link has at most {EXPORTS_MAX}")]
    TooManyExports(u64),
    /// It announced a region that cannot be: an impossible size or access, or a number twice.
    #[error("it announced region {region} with impossible properties")]
    Extent {
        /// The region's number.
        region: RegionId,
    },
    /// It handed over another number of descriptors than of regions.
    #[error("it handed over {found} descriptors for {announced} regions")]
    Descriptors {
        /// Regions announced.
        announced: usize,
        /// Descriptors that came.
        found: usize,
    },
    /// A region's file does not have the announced size.
    #[error("region {region} has {found} bytes, {announced} were announced")]
    Size {
        /// The region's number.
        region: RegionId,
        /// Bytes announced.
        announced: u64,
        /// Bytes found.
        found: u64,
    },
    /// A region's file is not sealed against changing its size: to map it would put our own life in the peer's hands.
    #[error("region {region} is not sealed against changing its size")]
    NotSealed {
        /// The region's number.
        region: RegionId,
    },
    /// A frame with an operation that there is none of.
    #[error("a frame with the unknown operation {0}")]
    Operation(u8),
    /// A frame larger than any may be.
    #[error("a frame of {0} words")]
    FrameSize(usize),
    /// A frame that asks for what was not exported.
    #[error("a frame asks for what it must not: {0}")]
    Access(Box<LinkError>),
    /// An answer, or anything else, that nobody asked for.
    #[error("it sent what nobody asked for")]
    Unasked,
}
