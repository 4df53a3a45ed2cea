use std::sync::Arc;

use headwater_protocol::replication::{STEP_MAX, ToRw, Transport};
use headwater_rdma::verbs::{self, Side};
use headwater_rdma::{Link, shm, tcp};

use crate::Peer;
use crate::choose::{route, shm_socket};
use crate::conversation::{by_tcp, by_unix, join};
use crate::error::AttachError;

/// Makes a link with the RW by `transport` and nothing else, on which only the region
/// [`PROBE`](headwater_protocol::regions::region::PROBE) can be read. The RW keeps it for a few seconds.
pub fn probe(peer: &Peer, transport: Transport) -> Result<Arc<dyn Link>, AttachError> {
    let mut first = by_tcp(&peer.rw, &peer.hello)?;
    let ask = ToRw::Probe { transport };
    match transport {
        Transport::Shm => {
            let socket = shm_socket(&first.welcome)?;
            let mut conversation = by_unix(socket, &peer.hello)?;
            conversation.ask_for(ask)?;
            shm::link(conversation.stream, Vec::new(), STEP_MAX).map_err(AttachError::link(socket))
        }
        Transport::Verbs => {
            let route = route(peer, &first.welcome)?;
            let token = first.ask_for(ask)?;
            verbs::link(Side::Connecting(route, token.into_bytes()), first.stream, Vec::new(), STEP_MAX)
                .map_err(AttachError::link(&first.address))
        }
        Transport::Tcp => {
            let token = first.ask_for(ask)?;
            let second = join(&first.address, token)?;
            tcp::link(second, first.stream, Vec::new(), STEP_MAX).map_err(AttachError::io(&first.address))
        }
    }
}
