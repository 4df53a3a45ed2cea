//! What RDMA devices there are, for people who ask, and to turn a device's name into an address.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

/// An RDMA device of this host.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name, as the kernel gave it: `mlx5_0`, `rxe0`.
    pub name: String,
    /// Its ports, from number 1 on.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct Port {
    /// From 1 on.
    pub number: u8,
    /// Whether it can be used. What it is otherwise: down, initialising, armed.
    pub active: bool,
    /// InfiniBand, else Ethernet (RoCE).
    pub infiniband: bool,
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// The addresses that it has on its own network, by their place in its table.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Copy, Debug)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u32,
    /// Its 16 bytes.
    pub bytes: [u8; 16],
    /// What packets it is used in.
    pub kind: GidKind,
}

/// What packets a [`Gid`] is used in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// InfiniBand's own.
    InfiniBand,
    /// Ethernet frames, which no router passes on.
    RoceV1,
    /// UDP packets. These are what rdma_cm uses.
    RoceV2,
}

impl Gid {
    /// The IP address that it stands for, if it is of RoCE v2.
    pub fn ip(&self) -> Option<IpAddr> {
        (self.kind == GidKind::RoceV2).then(|| Ipv6Addr::from(self.bytes).to_canonical())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            GidKind::InfiniBand => write!(f, "{} (InfiniBand)", Ipv6Addr::from(self.bytes)),
            GidKind::RoceV1 => write!(f, "{} (RoCE v1)", Ipv6Addr::from(self.bytes)),
            GidKind::RoceV2 => write!(f, "{} (RoCE v2)", Ipv6Addr::from(self.bytes).to_canonical()),
        }
    }
}

/// Why there is no RDMA to be had on this host.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// The program was built without RDMA.
    #[error("this program was built without the feature `verbs`")]
    NotBuilt,
    /// A C library is not there; install rdma-core.
    #[error("{0} is not installed (package rdma-core, or libibverbs1, ibverbs-providers and librdmacm1)")]
    Library(&'static str),
    /// The kernel knows no RDMA: load `ib_uverbs`, or use one that has it.
    #[error("the kernel has no RDMA (module ib_uverbs)")]
    Kernel,
    /// The kernel has RDMA, but not its connection manager: load `rdma_ucm`.
    #[error("the RDMA connection manager cannot be used (module rdma_ucm): {0}")]
    ConnectionManager(io::Error),
    /// There is no device.
    #[error("there is no RDMA device")]
    NoDevice,
    /// There are devices, but none can be used now.
    #[error("no RDMA device has an active port: {}", .0.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", "))]
    NoActivePort(Vec<Device>),
    /// There is no device of the name asked for.
    #[error("there is no RDMA device {0}")]
    NoSuchDevice(String),
    /// The device has no address that rdma_cm could use: give its network interface one.
    #[error("the RDMA device {0} has no IP address of its own among its GIDs: give the address instead")]
    NoAddress(String),
    /// The system refused to tell of a device.
    #[error("cannot {doing} the RDMA device {device}: {source}")]
    Device {
        /// What was tried.
        doing: &'static str,
        /// The device.
        device: String,
        /// The system's answer.
        source: io::Error,
    },
}
