//! Reaching an RW as an RO does: the conversation, the choice of the transport, and the link that comes of it.
//!
//! [`attach`] is what an RO does. [`probe`] makes a link that is only tried out: by it an RO finds out that a better transport has come to be,
//! and a person what works between two hosts.

mod conversation;
mod error;
mod choose;
mod probe;

pub use choose::{Attached, Better, Choice, attach, layout};
pub use error::AttachError;
pub use probe::probe;

use std::net::IpAddr;

use headwater_protocol::replication::Hello;
use headwater_rdma::verbs;

/// Who wants to reach which RW, and how.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The RW's address, host and port.
    pub rw: String,
    /// Who asks.
    pub hello: Hello,
    /// The RDMA device to use, by its name or one of its addresses; any that leads to the RW if none is given.
    pub rdma: Option<String>,
}

impl Peer {
    /// The address of the RDMA device to use, if one was given.
    fn rdma_address(&self) -> Result<Option<IpAddr>, String> {
        let Some(device) = &self.rdma else { return Ok(None) };
        let address = device.parse().or_else(|_| verbs::address_of(device));
        address.map(Some).map_err(|unavailable| unavailable.to_string())
    }
}
