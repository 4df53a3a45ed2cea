//! An RO attaches: who it is, whether its history is a prefix of ours (E1), and over what it is written to.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use headwater_node::{ACCEPT_PAUSE, Stop};
use headwater_protocol::Lsn;
use headwater_protocol::regions::{progress, region};
use headwater_protocol::replication::{
    Attach, Hello, Refusal, SILENT_LEASES, STEP_MAX, ToRo, ToRw, Welcome, receive, send,
};
use headwater_rdma::{Access, Export, Link, Region};
use headwater_wal::Wal;
use parking_lot::Mutex;
use thiserror::Error;
use tracing::{info, warn};
use uuid::Uuid;

use crate::commit::Commit;
use crate::replicas::Replica;
use crate::ship::Shipper;

/// Conversations at once; an RO on tcp has two, the second being short.
const CONVERSING_MAX: usize = 256;

/// Everything an attaching RO is told or connected to.
pub(crate) struct Attacher {
    pub(crate) welcome: Welcome,
    pub(crate) wal: Arc<Wal>,
    pub(crate) table: Arc<Region>,
    pub(crate) commit: Arc<Commit>,
    pub(crate) stop: Stop,
    pub(crate) closing: Stop,
    /// Links of tcp that wait for their second connection.
    pub(crate) joining: Mutex<HashMap<Uuid, SyncSender<TcpStream>>>,
    /// Conversations under way.
    pub(crate) conversing: AtomicUsize,
}

/// Why an RO is not attached.
#[derive(Debug, Error)]
enum AttachError {
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
            ToRw::Join { token } => return self.join(token, stream),
            ToRw::Attach(_) => {
                return self.refuse(&mut stream, Refusal::Invalid, "hello comes first".into());
            }
        };
        if let Some((refusal, message)) = self.stranger(&hello) {
            return self.refuse(&mut stream, refusal, message);
        }
        send(&mut stream, &ToRo::Welcome(Box::new(self.welcome.clone())))?;
        let attach = match receive(&mut stream) {
            Ok(ToRw::Attach(attach)) => attach,
            Ok(_) => return self.refuse(&mut stream, Refusal::Invalid, "attach comes next".into()),
            // It only looked: the conversation goes on elsewhere.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if let Some(message) = self.diverged(&attach) {
            return self.refuse(&mut stream, Refusal::Diverged, message);
        }

        let start = self.wal.history().next_start(attach.applied);
        let progress_region = Region::create("headwater-progress", progress::WORDS)?;
        progress_region.words()[progress::RECEIVED].store(start.get(), Ordering::Release);
        progress_region.words()[progress::APPLIED].store(attach.applied.get(), Ordering::Release);
        let exports = vec![
            Export { id: region::TIMESTAMPS, region: self.table.clone(), access: Access::Read },
            Export { id: region::PROGRESS, region: progress_region.clone(), access: Access::Write },
        ];
        let link = self.link(stream, exports)?;
        self.ship(hello, attach, start, link, progress_region)?;
        Ok(())
    }

    fn link(&self, mut stream: Stream, exports: Vec<Export>) -> Result<Arc<dyn Link>, AttachError> {
        let token = Uuid::new_v4();
        let silence_max = self.welcome.lease() * SILENT_LEASES;
        let (sender, receiver) = sync_channel(1);
        self.joining.lock().insert(token, sender);
        let joined =
            send(&mut stream, &ToRo::Attached { token }).map_err(AttachError::from).and_then(
                |()| match stream {
                    Stream::Unix(stream) => Ok(headwater_rdma::shm::link(stream, exports, STEP_MAX)?),
                    Stream::Tcp(out) => {
                        let agent = receiver.recv_timeout(STEP_MAX).map_err(|_| AttachError::NotJoined)?;
                        Ok(headwater_rdma::tcp::link(out, agent, exports, silence_max)?)
                    }
                },
            );
        self.joining.lock().remove(&token);
        joined
    }

    fn join(&self, token: Uuid, stream: Stream) -> Result<(), AttachError> {
        let waiting = self.joining.lock().remove(&token);
        let (Some(waiting), Stream::Tcp(stream)) = (waiting, stream) else {
            return Err(AttachError::Refused(Refusal::Invalid, "a connection joins no link".into()));
        };
        // Whoever waited has given up if this fails, and says so itself.
        let _ = waiting.send(stream);
        Ok(())
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
    fn diverged(&self, attach: &Attach) -> Option<String> {
        if attach.applied == Lsn::ZERO {
            return None;
        }
        let at = format!("LSN {} of epoch {}", attach.applied, attach.epoch);
        if attach.applied > self.wal.flushed() {
            return Some(format!(
                "the RO has applied up to {at}, the RW's log ends at {}",
                self.wal.flushed()
            ));
        }
        match self.wal.record_at(attach.last_start) {
            Ok(record)
                if record.end == attach.applied
                    && record.epoch == attach.epoch
                    && record.chain == attach.chain =>
            {
                None
            }
            Ok(record) => Some(format!(
                "the RO's last record ends at {at} with checksum {:016x}; the RW's record that begins at {} ends at {} in \
                 epoch {} with checksum {:016x}",
                attach.chain, attach.last_start, record.end, record.epoch, record.chain
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
