//! Which transport: the best that both sides have, or the one that was asked for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_protocol::regions::{log, region};
use headwater_protocol::replication::{Applied, Attach, SILENT_LEASES, STEP_MAX, ToRw, Transport, Welcome};
use headwater_rdma::verbs::{self, Route, Side};
use headwater_rdma::{Access, Export, Link, Region, shm, tcp};
use headwater_timestamp::Layout;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::conversation::{by_tcp, by_unix, join};
use crate::error::AttachError;
use crate::probe::probe;
use crate::{Peer, conversation};

/// How long it may take to find out whether an RDMA device leads to one address.
const ROUTE_MAX: Duration = Duration::from_secs(2);
/// And to all of the RW's addresses.
const ROUTES_MAX: Duration = Duration::from_secs(6);

/// By which transport an RO attaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The best that both sides have: shm, then verbs, then tcp.
    Auto,
    /// Shared memory or nothing.
    Shm,
    /// RDMA or nothing.
    Verbs,
    /// Tcp, whatever there is.
    Tcp,
}

/// A link that is up.
pub struct Attached {
    /// The link.
    pub link: Arc<dyn Link>,
    /// The RO's own region: made for this link, so that an earlier writer's memory is nobody's (E3).
    pub log_region: Arc<Region>,
    /// What the RW says of itself.
    pub welcome: Welcome,
    /// Why it is not on a better transport; empty if there is none.
    pub why: String,
    /// What would be better, best first, and may come to be.
    pub better: Vec<Better>,
}

/// A transport that was not to be had and may come to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Better(Transport);

impl Better {
    /// Tries it out, which takes a few seconds at most.
    pub fn is_there(self, peer: &Peer) -> bool {
        // Without a device of its own a node asks nobody.
        if self.0 == Transport::Verbs && verbs::devices().is_err() {
            return false;
        }
        let Ok(link) = probe(peer, self.0) else { return false };
        futures_executor::block_on(link.read(region::PROBE, headwater_rdma::BELL_WORDS)).is_ok()
    }
}

/// Attaches once.
pub fn attach(peer: &Peer, applied: Applied, choice: Choice) -> Result<Attached, AttachError> {
    let first = by_tcp(&peer.rw, &peer.hello)?;
    let (mut why, mut better) = (Vec::new(), Vec::new());
    let wanted: &[Transport] = match choice {
        Choice::Auto => &[Transport::Shm, Transport::Verbs],
        Choice::Shm => &[Transport::Shm],
        Choice::Verbs => &[Transport::Verbs],
        Choice::Tcp => &[],
    };
    for transport in wanted {
        let tried = match transport {
            Transport::Shm => by_shm(peer, &first.welcome, applied),
            _ => by_verbs(peer, &first.welcome, applied, &why.join("; ")),
        };
        match tried {
            Ok((link, log_region, welcome)) => {
                return Ok(Attached { link, log_region, welcome, why: why.join("; "), better });
            }
            // It is the history or the cluster that does not fit, and it will not by another transport either.
            Err(Not::Now(error @ AttachError::Refused { .. })) => return Err(error),
            Err(not) if choice != Choice::Auto => return Err(not.into()),
            Err(not) => {
                if !matches!(not, Not::Ever(..)) {
                    better.push(Better(*transport));
                }
                why.push(format!("no {}: {not}", name(*transport)));
            }
        }
    }
    if choice == Choice::Tcp {
        why.push("tcp was asked for".into());
    }
    let why = why.join("; ");
    // The first may have waited for too long while the others were tried.
    let mut conversation = if better.is_empty() { first } else { by_tcp(&peer.rw, &peer.hello)? };
    let (log_region, exports) = own_region(&conversation.welcome)?;
    let token = conversation.ask_for(attach_by(Transport::Tcp, applied, &why))?;
    let conversation::Conversation { address, stream, welcome } = conversation;
    let second = join(&address, token)?;
    let silence_max = welcome.lease() * SILENT_LEASES;
    let link = tcp::link(second, stream, exports, silence_max).map_err(AttachError::io(&address))?;
    Ok(Attached { link, log_region, welcome, why, better })
}

/// Why not by one transport.
#[derive(Debug, Error)]
pub(crate) enum Not {
    /// The RW and this node cannot have it in common.
    #[error("{1}")]
    Ever(Transport, String),
    /// One of them lacks it, until somebody does something.
    #[error("{1}")]
    Here(Transport, String),
    /// They have it, and yet it failed.
    #[error(transparent)]
    Now(#[from] AttachError),
}

impl From<Not> for AttachError {
    fn from(not: Not) -> AttachError {
        match not {
            Not::Ever(transport, why) | Not::Here(transport, why) => {
                AttachError::NotToBeHad { transport: name(transport), why }
            }
            Not::Now(error) => error,
        }
    }
}

type Up = (Arc<dyn Link>, Arc<Region>, Welcome);

fn by_shm(peer: &Peer, welcome: &Welcome, applied: Applied) -> Result<Up, Not> {
    let socket = shm_socket(welcome)?;
    let mut conversation = by_unix(socket, &peer.hello)?;
    let (log_region, exports) = own_region(&conversation.welcome)?;
    conversation.ask_for(attach_by(Transport::Shm, applied, ""))?;
    let link = shm::link(conversation.stream, exports, STEP_MAX).map_err(AttachError::link(socket))?;
    Ok((link, log_region, conversation.welcome))
}

/// The socket by which an RO on the RW's host reaches it, or why there is none.
pub(crate) fn shm_socket(welcome: &Welcome) -> Result<&str, Not> {
    let never = |why: String| Not::Ever(Transport::Shm, why);
    let host = shm::boot_id().map_err(|error| never(format!("this host's boot has no name: {error}")))?;
    if welcome.boot_id != host {
        return Err(never("the RW is on another host".into()));
    }
    welcome.shm_socket.as_deref().ok_or_else(|| never("the RW does not offer it".into()))
}

fn by_verbs(peer: &Peer, welcome: &Welcome, applied: Applied, why: &str) -> Result<Up, Not> {
    let route = route(peer, welcome)?;
    let mut conversation = by_tcp(&peer.rw, &peer.hello)?;
    let (log_region, exports) = own_region(&conversation.welcome)?;
    let token = conversation.ask_for(attach_by(Transport::Verbs, applied, why))?;
    let silence_max = conversation.welcome.lease() * SILENT_LEASES;
    let side = Side::Connecting(route, token.into_bytes());
    let link = verbs::link(side, conversation.stream, exports, silence_max)
        .map_err(AttachError::link(&conversation.address))?;
    Ok((link, log_region, conversation.welcome))
}

/// A way to one of the RW's RDMA addresses, or why there is none.
pub(crate) fn route(peer: &Peer, welcome: &Welcome) -> Result<Route, Not> {
    let here = |why: String| Not::Here(Transport::Verbs, why);
    verbs::devices().map_err(|unavailable| here(unavailable.to_string()))?;
    let from = peer.rdma_address().map_err(here)?;
    let mut not = here(format!("the RW offers none: {}", welcome.no_verbs));
    let deadline = Instant::now() + ROUTES_MAX;
    for to in in_order(&welcome.verbs, &peer.rw) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match verbs::route(to, from, ROUTE_MAX.min(left)) {
            Ok(route) => return Ok(route),
            Err(error) => not = AttachError::link(&to.to_string())(error).into(),
        }
    }
    Err(not)
}

/// First the address that the RW is known by, as it is the one that was meant to be used.
fn in_order(addresses: &[SocketAddr], rw: &str) -> Vec<SocketAddr> {
    let meant = rw.parse().map(|rw: SocketAddr| rw.ip()).ok();
    let mut addresses = addresses.to_vec();
    addresses.sort_by_key(|address| Some(address.ip()) != meant);
    addresses
}

fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Shm => "shm",
        Transport::Verbs => "verbs",
        Transport::Tcp => "tcp",
    }
}

fn attach_by(transport: Transport, applied: Applied, why: &str) -> ToRw {
    ToRw::Attach(Attach { applied, transport, why: why.into() })
}

/// How the RW's timestamp table is laid out.
pub fn layout(welcome: &Welcome) -> Layout {
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
