//! An RO attaches: who it is, whether its history is a prefix of ours (E1), and over what it is written to.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use headwater_node::{ACCEPT_PAUSE, Stop};
use headwater_protocol::Lsn;
use headwater_protocol::regions::{PROBE_WORDS, progress, region};
use headwater_protocol::replication::{
    Applied, Attach, Hello, Refusal, SILENT_LEASES, STEP_MAX, ToRo, ToRw, Transport, Welcome, receive, send,
};
use headwater_rdma::{Access, Export, Link, Region, verbs};
use headwater_wal::Wal;
use parking_lot::Mutex;
use thiserror::Error;
use tracing::{info, warn};
use uuid::Uuid;

use crate::commit::Commit;
use crate::replicas::Replica;
use crate::ship::Shipper;
use crate::verbs_door::VerbsDoor;

/// Conversations at once; an RO on tcp has two, the second being short.
const CONVERSING_MAX: usize = 256;

/// Links that wait for their second connection, by their tokens.
#[derive(Clone, Default)]
pub(crate) struct Joining(Arc<Mutex<HashMap<Uuid, SyncSender<Second>>>>);

/// The second connection of a link: of a tcp link, or of an RDMA one.
pub(crate) enum Second {
    Tcp(TcpStream),
    Verbs(verbs::Request),
}

impl Joining {
    fn expect(&self, token: Uuid) -> Receiver<Second> {
        let (sender, receiver) = sync_channel(1);
        self.0.lock().insert(token, sender);
        receiver
    }

    fn forget(&self, token: &Uuid) {
        self.0.lock().remove(token);
    }

    /// A second connection has come; it is closed if nobody waits for it.
    pub(crate) fn came(&self, token: Uuid, second: Second) -> Result<(), AttachError> {
        let Some(waiting) = self.0.lock().remove(&token) else { return Err(AttachError::JoinsNothing) };
        // Whoever waited has given up if this fails, and says so itself.
        let _ = waiting.send(second);
        Ok(())
    }
}

/// Everything an attaching RO is told or connected to.
pub(crate) struct Attacher {
    pub(crate) welcome: Welcome,
    pub(crate) wal: Arc<Wal>,
    pub(crate) table: Arc<Region>,
    pub(crate) commit: Arc<Commit>,
    pub(crate) stop: Stop,
    pub(crate) closing: Stop,
    /// Links that wait for their second connection.
    pub(crate) joining: Joining,
    pub(crate) verbs: VerbsDoor,
    /// Conversations under way.
    pub(crate) conversing: AtomicUsize,
}

/// Why an RO is not attached.
#[derive(Debug, Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{1}")]
    Refused(Refusal, String),
    #[error(transparent)]
    Link(#[from] headwater_rdma::LinkError),
    #[error(transparent)]
    Region(#[from] headwater_rdma::RegionError),
    #[error("the second connection of the link did not come within {STEP_MAX:?}")]
    NotJoined,
    #[error("a connection joins no link")]
    JoinsNothing,
    #[error("the transport that was asked for does not go by the connections that came")]
    OtherTransport,
}

/// The connection on which the RO speaks: what it is decides the transport.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn patience(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Attacher {
    /// Holds the conversation on a thread of its own; each of its steps is bounded in time, and so is how many there are.
    pub(crate) fn spawn(self: &Arc<Self>, stream: Stream) {
        if self.conversing.fetch_add(1, Ordering::Relaxed) >= CONVERSING_MAX {
            self.conversing.fetch_sub(1, Ordering::Relaxed);
            warn!("{CONVERSING_MAX} conversations with ROs are under way; one more is turned away");
            return;
        }
        let attacher = self.clone();
        let spawned = std::thread::Builder::new().name("attach".into()).spawn(move || {
            if let Err(error) = attacher.converse(stream) {
                warn!(%error, "an RO is not attached");
            }
            attacher.conversing.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = spawned {
            self.conversing.fetch_sub(1, Ordering::Relaxed);
            warn!(%error, "no thread for an RO that wants to attach");
        }
    }

    fn converse(self: &Arc<Self>, mut stream: Stream) -> Result<(), AttachError> {
        stream.patience(Some(STEP_MAX))?;
        let hello = match receive(&mut stream)? {
            ToRw::Hello(hello) => hello,
            ToRw::Join { token } => {
                let Stream::Tcp(stream) = stream else { return Err(AttachError::JoinsNothing) };
                return self.joining.came(token, Second::Tcp(stream));
            }
            ToRw::Attach(_) | ToRw::Probe { .. } => {
                return self.refuse(&mut stream, Refusal::Invalid, "hello comes first".into());
            }
        };
        if let Some((refusal, message)) = self.stranger(&hello) {
            return self.refuse(&mut stream, refusal, message);
        }
        let mut welcome = self.welcome.clone();
        (welcome.verbs, welcome.no_verbs) = self.verbs.offer();
        send(&mut stream, &ToRo::Welcome(Box::new(welcome)))?;
        let attach = match receive(&mut stream) {
            Ok(ToRw::Attach(attach)) => attach,
            Ok(ToRw::Probe { transport }) => return self.probe(stream, transport),
            Ok(_) => return self.refuse(&mut stream, Refusal::Invalid, "attach comes next".into()),
            // It only looked: the conversation goes on elsewhere.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WouldBlock) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(message) = self.diverged(&attach.applied) {
            return self.refuse(&mut stream, Refusal::Diverged, message);
        }

        let start = self.wal.history().next_start(attach.applied.lsn);
        let progress_region = Region::create("headwater-progress", progress::WORDS)?;
        progress_region.words()[progress::RECEIVED].store(start.get(), Ordering::Release);
        progress_region.words()[progress::APPLIED].store(attach.applied.lsn.get(), Ordering::Release);
        let exports = vec![
            Export { id: region::TIMESTAMPS, region: self.table.clone(), access: Access::Read },
            Export { id: region::PROGRESS, region: progress_region.clone(), access: Access::Write },
        ];
        let silence_max = self.welcome.lease() * SILENT_LEASES;
        let link = self.link(stream, attach.transport, exports, silence_max)?;
        self.ship(hello, attach, start, link, progress_region)?;
        Ok(())
    }

    /// Makes the link over which the peer goes on.
    fn link(
        &self,
        mut stream: Stream,
        transport: Transport,
        exports: Vec<Export>,
        silence_max: Duration,
    ) -> Result<Arc<dyn Link>, AttachError> {
        let token = Uuid::new_v4();
        let second = self.joining.expect(token);
        let joined = send(&mut stream, &ToRo::Attached { token }).map_err(AttachError::from).and_then(|()| {
            let second = || second.recv_timeout(STEP_MAX).map_err(|_| AttachError::NotJoined);
            match (transport, stream) {
                (Transport::Shm, Stream::Unix(stream)) => {
                    Ok(headwater_rdma::shm::link(stream, exports, STEP_MAX)?)
                }
                (Transport::Tcp, Stream::Tcp(out)) => match second()? {
                    Second::Tcp(agent) => Ok(headwater_rdma::tcp::link(out, agent, exports, silence_max)?),
                    Second::Verbs(_) => Err(AttachError::OtherTransport),
                },
                (Transport::Verbs, Stream::Tcp(stream)) => match second()? {
                    Second::Verbs(request) => {
                        let side = verbs::Side::Accepting(request);
                        Ok(verbs::link(side, stream, exports, silence_max)?)
                    }
                    Second::Tcp(_) => Err(AttachError::OtherTransport),
                },
                _ => Err(AttachError::OtherTransport),
            }
        });
        self.joining.forget(&token);
        joined
    }

    /// A link that somebody only tries out: kept until it closes, for as long as a step may take.
    fn probe(&self, stream: Stream, transport: Transport) -> Result<(), AttachError> {
        let words = Region::create("headwater-probe", PROBE_WORDS)?;
        let export = Export { id: region::PROBE, region: words.clone(), access: Access::Read };
        let link = self.link(stream, transport, vec![export], STEP_MAX)?;
        let until = Instant::now() + STEP_MAX;
        loop {
            let seen = words.rings();
            let left = until.saturating_duration_since(Instant::now());
            if link.closed() || left.is_zero() {
                return Ok(());
            }
            words.sleep(seen, left);
        }
    }

    fn ship(
        &self,
        hello: Hello,
        attach: Attach,
        start: Lsn,
        link: Arc<dyn Link>,
        progress: Arc<Region>,
    ) -> io::Result<()> {
        let replica = Arc::new(Replica {
            node: hello.node,
            name: hello.name,
            address: hello.address,
            why: attach.why,
            link,
            progress,
            shipped: AtomicU64::new(start.get()),
            from_segments: AtomicBool::new(false),
            heard: Mutex::new(Instant::now()),
        });
        let shipper = Shipper {
            replica: replica.clone(),
            wal: self.wal.clone(),
            commit: self.commit.clone(),
            heartbeat: self.welcome.lease() / 4,
            closing: self.closing.clone(),
        };
        self.commit.replicas.add(replica, move || shipper.run(start))
    }

    fn refuse(&self, stream: &mut Stream, refusal: Refusal, message: String) -> Result<(), AttachError> {
        send(stream, &ToRo::Refused { refusal, message: message.clone() })?;
        Err(AttachError::Refused(refusal, message))
    }

    /// Why whoever says hello is not one of ours.
    fn stranger(&self, hello: &Hello) -> Option<(Refusal, String)> {
        let ours = &self.welcome;
        if self.stop.is_stopped() {
            return Some((Refusal::Stopping, "the RW is stopping".into()));
        }
        if hello.node == ours.node {
            return Some((Refusal::Itself, "this is the node itself".into()));
        }
        if hello.cluster != ours.cluster {
            let message = format!("this is cluster {:?}, not {:?}", ours.cluster, hello.cluster);
            return Some((Refusal::OtherCluster, message));
        }
        if hello.cluster_id.is_some_and(|id| id != ours.cluster_id) {
            let message = format!(
                "this is another cluster of the same name {:?}: its id is {}, the RO's state is of {}",
                ours.cluster,
                ours.cluster_id,
                hello.cluster_id.unwrap_or_default()
            );
            return Some((Refusal::OtherCluster, message));
        }
        None
    }

    /// Where the RO's history is no prefix of ours (E1, E2), exactly; none if it is one.
    fn diverged(&self, applied: &Applied) -> Option<String> {
        if applied.lsn == Lsn::ZERO {
            return None;
        }
        let at = format!("LSN {} of epoch {}", applied.lsn, applied.epoch);
        if applied.lsn > self.wal.flushed() {
            return Some(format!(
                "the RO has applied up to {at}, the RW's log ends at {}",
                self.wal.flushed()
            ));
        }
        match self.wal.record_at(applied.start) {
            Ok(record)
                if record.end == applied.lsn
                    && record.epoch == applied.epoch
                    && record.chain == applied.chain =>
            {
                None
            }
            Ok(record) => Some(format!(
                "the RO's last record ends at {at} with checksum {:016x}; the RW's record that begins at {} ends at {} in \
                 epoch {} with checksum {:016x}",
                applied.chain, applied.start, record.end, record.epoch, record.chain
            )),
            Err(error) => Some(format!("the RO's last record ends at {at}; the RW has none there: {error}")),
        }
    }
}

/// Takes ROs of this host on the UNIX socket until `stop`.
pub(crate) fn listen_on_host(listener: std::os::unix::net::UnixListener, attacher: &Arc<Attacher>) {
    for stream in listener.incoming() {
        if attacher.stop.is_stopped() {
            info!("no more ROs are taken on this host");
            return;
        }
        match stream {
            Ok(stream) => attacher.spawn(Stream::Unix(stream)),
            Err(error) => {
                warn!(%error, "cannot accept an RO on this host");
                // It is the process's resources that are short, and not for want of asking.
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}
