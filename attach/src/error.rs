use std::io;

use headwater_protocol::frame::VERSION;
use headwater_protocol::replication::Refusal;
use headwater_rdma::{LinkError, RegionError};
use thiserror::Error;

/// Why there is no link with the RW.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The connection failed. Try again.
    #[error("{address}: {source}")]
    Io {
        /// Where.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Something else listens there: correct the address.
    #[error("{address} is no Headwater node")]
    NotHeadwater {
        /// Where.
        address: String,
    },
    /// The other side is of another version: use the same on both.
    #[error("{address} speaks version {version} of the protocol, this program speaks {VERSION}")]
    Version {
        /// Where.
        address: String,
        /// What it speaks.
        version: u16,
    },
    /// The RW does not want us.
    #[error("{address} refuses: {message}")]
    Refused {
        /// Where.
        address: String,
        /// Why, for programs.
        refusal: Refusal,
        /// Why, for people.
        message: String,
    },
    /// It does not keep to the conversation.
    #[error("{address} says something else than was asked")]
    Unexpected {
        /// Where.
        address: String,
    },
    /// It offers what no RW can.
    #[error("{address} offers what cannot be: {what}")]
    Nonsense {
        /// Where.
        address: String,
        /// What.
        what: String,
    },
    /// The link could not be made. Try again, or another transport.
    #[error("no link with {address}: {source}")]
    Link {
        /// With whom.
        address: String,
        /// Why.
        source: LinkError,
    },
    /// There is no memory for the ring.
    #[error("shared memory: {0}")]
    Region(#[from] RegionError),
    /// Only a transport will do that cannot be had.
    #[error("{transport} was asked for and cannot be had: {why}")]
    NotToBeHad {
        /// Which.
        transport: &'static str,
        /// Why.
        why: String,
    },
}

impl AttachError {
    pub(crate) fn io(address: &str) -> impl Fn(io::Error) -> AttachError {
        move |source| AttachError::Io { address: address.to_owned(), source }
    }

    pub(crate) fn link(address: &str) -> impl Fn(LinkError) -> AttachError {
        move |source| AttachError::Link { address: address.to_owned(), source }
    }

    /// Whether it will stay so until a person does something.
    pub fn is_final(&self) -> bool {
        match self {
            AttachError::Refused { refusal, .. } => !refusal.is_transient(),
            AttachError::NotHeadwater { .. }
            | AttachError::Version { .. }
            | AttachError::Nonsense { .. }
            | AttachError::NotToBeHad { .. } => true,
            _ => false,
        }
    }

    /// Whether the state here and the RW's log are of different histories (E1).
    pub fn is_divergence(&self) -> bool {
        matches!(self, AttachError::Refused { refusal: Refusal::Diverged, .. })
    }
}
