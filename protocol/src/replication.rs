//! How an RO attaches to an RW: a conversation in JSON behind a length, once per connection; then the link takes over.
//!
//! ```text
//! RO                                   RW
//! opening (REPLICATION)        ->
//!                              <-      opening
//! Hello                        ->
//!                              <-      Welcome | Refused
//! Attach                       ->
//!                              <-      Attached | Refused
//! ```
//!
//! On tcp the RO then opens a second connection and says [`ToRw::Join`] on it; on shm the two exchange their regions over
//! the UNIX socket on which they spoke; on verbs the RO connects to the RW's RDMA address with the token, and the two exchange their
//! regions over the TCP connection on which they spoke.
//!
//! With [`ToRw::Probe`] in place of Attach the same makes a link that is only tried out.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Epoch, EpochStart, History, Lsn};

/// How long the other side may take for each step of the conversation.
pub const STEP_MAX: Duration = Duration::from_secs(5);
/// On a link, a peer that says nothing for this many leases is dead.
pub const SILENT_LEASES: u32 = 6;
/// Bytes that a ring can have, a power of two.
pub const RING_BYTES: RangeInclusive<u64> = 64 << 10..=16 << 30;
/// How long a lease can be.
pub const LEASE: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(60);
/// Bytes of one message at most.
const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// What an RO says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToRw {
    /// Who it is.
    Hello(Hello),
    /// Where it stands, and by which transport it goes on.
    Attach(Attach),
    /// It only wants to try out a transport.
    Probe {
        /// Which.
        transport: Transport,
    },
    /// The second connection of a tcp link.
    Join {
        /// From [`ToRo::Attached`].
        token: Uuid,
    },
}

/// Who an RO is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// This process; a node that meets itself knows it by this.
    pub node: Uuid,
    /// Its name, for people.
    pub name: String,
    /// Where its clients reach it.
    pub address: String,
    /// The cluster's name, as configured.
    pub cluster: String,
    /// The cluster that its state is of, if it has any.
    pub cluster_id: Option<Uuid>,
}

/// Where an RO stands: the last record that it applied (E1). All zero if it has none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// Its end.
    pub lsn: Lsn,
    /// Where it begins.
    pub start: Lsn,
    /// The chained checksum after it.
    pub chain: u64,
    /// The epoch that wrote it.
    pub epoch: Epoch,
}

/// How an RO attaches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attach {
    /// Where it stands.
    pub applied: Applied,
    /// By which transport it goes on.
    pub transport: Transport,
    /// Why not a better one; empty if there is none.
    pub why: String,
}

/// What a link is carried by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Shared memory, on one host.
    Shm,
    /// RDMA.
    Verbs,
    /// TCP.
    Tcp,
}

/// What an RW says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToRo {
    /// What there is to attach to.
    Welcome(Box<Welcome>),
    /// The link can be made.
    Attached {
        /// Names the link on its second connection.
        token: Uuid,
    },
    /// It cannot.
    Refused {
        /// Why, as the RO should take it.
        refusal: Refusal,
        /// Why, for people.
        message: String,
    },
}

/// What there is to attach to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The RW's process.
    pub node: Uuid,
    /// Its name, for people.
    pub name: String,
    /// Where clients reach it.
    pub address: String,
    /// The cluster's name.
    pub cluster: String,
    /// The cluster.
    pub cluster_id: Uuid,
    /// Every epoch up to the RW's own.
    pub history: History,
    /// Bytes of the ring, the same on both sides.
    pub ring_bytes: u64,
    /// Slots of the timestamp table for shards.
    pub shard_slots: u32,
    /// Slots of the timestamp table for pages.
    pub page_slots: u32,
    /// Seqnos of a page.
    pub page_entries: u32,
    /// The boot of the RW's host: the same as the RO's where both are on one host.
    pub boot_id: String,
    /// The UNIX socket by which the RO reaches the RW on that host.
    pub shm_socket: Option<String>,
    /// Where the RW takes RDMA connections: addresses of its devices' ports, to be tried in this order. The port is rdma_cm's, not TCP's.
    pub verbs: Vec<SocketAddr>,
    /// Why there are none, if so.
    pub no_verbs: String,
}

impl Welcome {
    /// What in it cannot be, for people; none if it makes sense. The layout of the timestamp table is not looked at.
    pub fn nonsense(&self) -> Option<String> {
        let in_order = self.history.0.is_sorted_by(|a, b| a.epoch < b.epoch && a.start < b.start);
        if self.history.0.is_empty() || !in_order {
            Some("its history of epochs is none".into())
        } else if !RING_BYTES.contains(&self.ring_bytes) || !self.ring_bytes.is_power_of_two() {
            Some(format!("a ring cannot have {} bytes", self.ring_bytes))
        } else if !LEASE.contains(&self.lease()) {
            Some(format!("a lease cannot be {:?}", self.lease()))
        } else {
            None
        }
    }

    /// The RW's epoch; none of a peer that makes no sense.
    pub fn epoch(&self) -> Option<&EpochStart> {
        self.history.current()
    }

    /// How long an RO may read strongly after the clock that the RW last gave back to it (E3, R6).
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.epoch().map_or(0, |epoch| epoch.lease_ms))
    }
}

/// Why an RO may not attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The node is no RW.
    NotRw,
    /// The node is the RO itself.
    Itself,
    /// Another cluster.
    OtherCluster,
    /// The RO's history is not a prefix of the RW's (E1).
    Diverged,
    /// Something in the message cannot be.
    Invalid,
    /// The RW is stopping.
    Stopping,
}

impl Refusal {
    /// Whether asking again can end otherwise without anyone doing anything.
    pub fn is_transient(self) -> bool {
        matches!(self, Refusal::Stopping)
    }
}

/// Writes one message; none of it if it is longer than what is received.
pub fn send<M: Serialize>(stream: &mut impl Write, message: &M) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    check_length(length)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&json);
    stream.write_all(&bytes)
}

/// Reads one message.
pub fn receive<M: DeserializeOwned>(stream: &mut impl Read) -> io::Result<M> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    check_length(length)?;
    let mut json = vec![0; length as usize];
    stream.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

fn check_length(length: u32) -> io::Result<()> {
    if length > MESSAGE_BYTES_MAX {
        let why = format!("a message of {length} bytes cannot be");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(())
}
