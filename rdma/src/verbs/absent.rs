//! The transport verbs of a program that was built without it: there is none, and every question is answered so.

mod about;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

pub use about::{Device, Gid, GidKind, Port, Unavailable};

use crate::Link;
use crate::error::LinkError;
use crate::export::Export;

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;

/// None can be made.
pub struct Route(Infallible);

/// None ever comes.
pub struct Request {
    /// What the peer would show.
    pub token: [u8; TOKEN_BYTES],
    _none: Infallible,
}

/// None can be made.
pub struct Listener(Infallible);

/// Which side of a connection it would be.
pub enum Side {
    /// The one that asks.
    Connecting(Route, [u8; TOKEN_BYTES]),
    /// The one that is asked.
    Accepting(Request),
}

/// [`Unavailable::NotBuilt`].
pub fn devices() -> Result<Vec<Device>, Unavailable> {
    Err(Unavailable::NotBuilt)
}

/// [`Unavailable::NotBuilt`].
pub fn address_of(_: &str) -> Result<IpAddr, Unavailable> {
    Err(Unavailable::NotBuilt)
}

/// [`Unavailable::NotBuilt`].
pub fn route(_: SocketAddr, _: Option<IpAddr>, _: Duration) -> Result<Route, LinkError> {
    Err(not_built())
}

/// Cannot be called: there is no side.
pub fn link(side: Side, _: TcpStream, _: Vec<Export>, _: Duration) -> Result<Arc<dyn Link>, LinkError> {
    match side {
        Side::Connecting(Route(none), _) => match none {},
        Side::Accepting(Request { _none: none, .. }) => match none {},
    }
}

impl Listener {
    /// [`Unavailable::NotBuilt`].
    pub fn bind(_: SocketAddr) -> Result<Listener, LinkError> {
        Err(not_built())
    }

    /// Cannot be called: there is none.
    pub fn address(&self) -> Result<SocketAddr, LinkError> {
        match self.0 {}
    }

    /// Cannot be called: there is none.
    pub fn accept(&self) -> Result<Option<Request>, LinkError> {
        match self.0 {}
    }

    /// Cannot be called: there is none.
    pub fn stop(&self) {
        match self.0 {}
    }
}

fn not_built() -> LinkError {
    LinkError::io("use RDMA")(std::io::Error::other(Unavailable::NotBuilt))
}
