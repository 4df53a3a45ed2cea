//! What a link needs of the NIC, made before there is a connection.

use std::io;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::cm::Id;
use super::queue::{LANDING_WORDS, Parts, RECEIVES, SEND_DEPTH, STAGING_WORDS};
use super::queue_pair::{CompletionChannel, CompletionQueue, Domain, Limits, QueuePair, Registration, Right};
use crate::error::LinkError;
use crate::export::{Access, Export};
use crate::region::{Region, RegionError};

/// A NIC that gets no acknowledgement sends again after 4.096 µs · 2^this, seven times in all: 67 ms and half a second, up to four times as
/// long where a NIC takes the liberty that it has.
const ACK_TIMEOUT_EXPONENT: u8 = 14;

/// One side of a connection to be. Its receives are posted: whatever the peer sends first finds one.
pub(super) struct Endpoint {
    pub(super) id: Arc<Id>,
    pub(super) channel: Arc<CompletionChannel>,
    /// The exports, in their order.
    pub(super) registered: Vec<Registration>,
    pub(super) parts: Parts,
    pub(super) limits: Limits,
}

impl Endpoint {
    /// Makes one on the device of `id`, which has an address but is not connected.
    pub(super) fn new(id: Id, exports: &[Export]) -> Result<Endpoint, LinkError> {
        let making = |doing| LinkError::io::<io::Error>(doing);
        id.set_ack_timeout(ACK_TIMEOUT_EXPONENT).map_err(making("set the device's timeout"))?;
        let id = Arc::new(id);
        let domain = Domain::new(id.clone()).map_err(making("make a protection domain"))?;
        let domain = Arc::new(domain);
        let limits = domain.limits().map_err(making("find out what the device can do"))?;
        if limits.queue < SEND_DEPTH {
            return Err(making("make queues as long as are needed")(io::ErrorKind::Unsupported.into()));
        }
        let registered = exports
            .iter()
            .map(|export| {
                let right = match export.access {
                    Access::Write => Right::PeerWrites,
                    Access::Read => Right::PeerReads,
                };
                register(&domain, export.region.clone(), right)
            })
            .collect::<Result<_, _>>()?;
        let staging = register(&domain, private("rdma-staging", STAGING_WORDS)?, Right::Source)?;
        let landing = register(&domain, private("rdma-landing", LANDING_WORDS)?, Right::Landing)?;

        let channel = CompletionChannel::new(id.clone()).map_err(making("make a completion channel"))?;
        let channel = Arc::new(channel);
        let queue = |depth| CompletionQueue::new(&channel, depth).map_err(making("make a completion queue"));
        let (sends, receives) = (Arc::new(queue(SEND_DEPTH)?), Arc::new(queue(RECEIVES)?));
        let pair = QueuePair::new(&domain, &sends, &receives, SEND_DEPTH, RECEIVES)
            .map_err(making("make a queue pair"))?;
        pair.post_receives(RECEIVES as usize).map_err(making("post receives"))?;
        let parts = Parts { pair, sends, receives, staging, landing };
        Ok(Endpoint { id, channel, registered, parts, limits })
    }
}

/// Memory of this side alone.
fn private(name: &str, words: usize) -> Result<Arc<Region>, LinkError> {
    Region::create(name, words).map_err(|error| match error {
        RegionError::Os { source, .. } => LinkError::io(PRIVATE)(source),
        error => LinkError::io(PRIVATE)(io::Error::new(io::ErrorKind::OutOfMemory, error)),
    })
}

const PRIVATE: &str = "make a region to send from and to read into";

fn register(domain: &Arc<Domain>, region: Arc<Region>, right: Right) -> Result<Registration, LinkError> {
    let bytes = size_of_val(region.words());
    Registration::new(domain, region, right).map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::PermissionDenied => {
            let limit = getrlimit(Resource::Memlock).current;
            LinkError::Locked { bytes, limit, source: Arc::new(error) }
        }
        _ => LinkError::io("register memory with the device")(error),
    })
}
