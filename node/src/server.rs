//! The listener: accepts, learns from the opening who is there, and hands the connection on.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headwater_protocol::frame::{CLIENT, OPENING_BYTES, REPLICATION, VERSION, opening, read_opening};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::config::Common;
use crate::limits::connections_max;
use crate::session::{self, Limits};
use crate::{Service, Stop};

/// How long a stranger may take to say which protocol it speaks.
const OPENING_MAX: Duration = Duration::from_secs(5);
/// Connections beyond the clients' that may be under way at once: ROs that attach, and whoever has not said yet what it is.
const OTHERS_MAX: usize = 64;
/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 4096;
/// How long accepting rests when the process is out of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a node does not listen.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address is none, or cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The file that says where the node listens cannot be written.
    #[error("cannot write the ready file {path}: {source}")]
    ReadyFile {
        /// As configured.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

/// A bound address on which nothing listens yet: whoever connects is refused, and knows at once that the node is not up.
pub struct Server {
    socket: TcpSocket,
    address: SocketAddr,
}

/// A node that listens.
pub struct Listener(TcpListener);

impl Server {
    /// Binds `address`, so that a wrong one, or one that somebody listens at, is found out early.
    pub async fn bind(address: &str) -> Result<Server, ServerError> {
        let failed = |source| ServerError::Listen { address: address.to_owned(), source };
        let resolved = tokio::net::lookup_host(address).await.map_err(failed)?.next();
        let resolved = resolved.ok_or_else(|| failed(io::Error::other("the name has no address")))?;
        let bind = || {
            let socket = if resolved.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.set_reuseaddr(true)?;
            socket.bind(resolved)?;
            let address = socket.local_addr()?;
            Ok(Server { socket, address })
        };
        bind().map_err(failed)
    }

    /// Where it will listen, the port as the system gave it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets clients and ROs connect, from here on. They are served by [`Listener::run`].
    pub fn listen(self) -> Result<Listener, ServerError> {
        let Server { socket, address } = self;
        let failed = |source| ServerError::Listen { address: address.to_string(), source };
        socket.listen(BACKLOG).map(Listener).map_err(failed)
    }
}

impl Listener {
    /// Accepts until `stop`, then waits until every session has answered what was in flight.
    pub async fn run<S: Service>(self, service: Arc<S>, common: &Common, entry_bytes_max: usize, stop: Stop) {
        let limits = Arc::new(Limits {
            frame_bytes_max: (entry_bytes_max + 4096).min(FRAME_BYTES_MAX),
            deadline: common.deadline,
        });
        let clients_max = connections_max(common.connections_max);
        let clients = Arc::new(Semaphore::new(clients_max));
        let mut sessions = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.stopped() => break,
                Some(_) = sessions.join_next(), if !sessions.is_empty() => {
                    service.connections(sessions.len() as u64);
                    continue;
                }
                accepted = self.0.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection; raise the limit of open files if it is that");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if sessions.len() >= clients_max + OTHERS_MAX {
                warn!(%peer, clients_max, "too many connections: one is turned away");
                continue;
            }
            let (theirs, clients) = (service.clone(), clients.clone());
            let (limits, stop) = (limits.clone(), stop.clone());
            sessions.spawn(async move {
                if let Err(error) = greet(stream, theirs, clients, limits, stop).await {
                    debug!(%peer, %error, "a connection ended");
                }
            });
            service.connections(sessions.len() as u64);
        }
        drop(self.0);
        let left = sessions.len();
        if left > 0 {
            info!(sessions = left, "waiting for what is in flight");
        }
        while sessions.join_next().await.is_some() {}
    }
}

async fn greet<S: Service>(
    mut stream: TcpStream,
    service: Arc<S>,
    clients: Arc<Semaphore>,
    limits: Arc<Limits>,
    stop: Stop,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; OPENING_BYTES];
    tokio::select! {
        read = tokio::time::timeout(OPENING_MAX, stream.read_exact(&mut bytes)) => drop(read??),
        () = stop.stopped() => return Ok(()),
    }
    let (protocol, version) = read_opening(&bytes);
    if protocol != CLIENT && protocol != REPLICATION {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the opening is of no protocol of ours"));
    }
    // An RO finds its place however many clients there are.
    let _place = if protocol == CLIENT {
        let Ok(place) = clients.try_acquire() else {
            warn!("too many clients: one is turned away");
            return Ok(());
        };
        Some(place)
    } else {
        None
    };
    // Also to another version, so that the peer can say which one it met.
    stream.write_all(&opening(protocol)).await?;
    if version != VERSION {
        stream.shutdown().await?;
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("version {version}, we speak {VERSION}"),
        ));
    }
    if protocol == CLIENT {
        return session::run(stream, service, limits, stop).await;
    }
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    service.attach(stream);
    Ok(())
}

/// Writes `address` into the file at `path`, whole or not at all: whoever sees the file may connect.
pub fn write_ready_file(path: &Path, address: &str) -> Result<(), ServerError> {
    let failed = |source| ServerError::ReadyFile { path: path.display().to_string(), source };
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    std::fs::write(&draft, format!("{address}\n")).map_err(failed)?;
    std::fs::rename(&draft, path).map_err(failed)
}
