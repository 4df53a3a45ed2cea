//! Nodes for tests: they speak the protocol and answer as they are told.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use headwater_protocol::frame::{self, CLIENT, OPENING_BYTES, Outgoing};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::response::{Reflects, Response};
use headwater_protocol::status::{NodeStatus, Positions, ReplicaStatus, Role, UpstreamStatus};
use headwater_protocol::{Entry, Epoch, Lsn, Seqno, Served, ShardName};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A deadline that no test reaches unless it waits for what never comes.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// One that a test means to reach.
pub(crate) const SHORT: Duration = Duration::from_millis(150);

pub(crate) fn shard() -> ShardName {
    ShardName::new("orders").unwrap()
}

pub(crate) fn seqno(number: u64) -> Seqno {
    Seqno::new(number).unwrap()
}

pub(crate) fn entry(number: u64) -> Entry {
    Entry { seqno: seqno(number), data: Bytes::from(format!("entry {number}")) }
}

pub(crate) fn head(number: u64, lsn: u64) -> Response {
    let reflects = Reflects { lsn: Lsn::new(lsn), served: Served::Local };
    Response::Head { entry: Some(entry(number)), reflects }
}

pub(crate) fn committed(number: u64, lsn: u64) -> Response {
    Response::Committed { seqno: seqno(number), lsn: Lsn::new(lsn) }
}

pub(crate) fn encoded(id: u64, response: &Response) -> Vec<u8> {
    let mut out = Outgoing::default();
    response.encode(id, &mut out);
    out.copy_to_bytes(out.remaining()).to_vec()
}

/// A server that runs a script on each connection. Dropped, it ends, and its connections with it.
pub(crate) struct Listener {
    pub(crate) address: String,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    /// Hands over each connection as it is accepted.
    pub(crate) async fn raw<F: Future<Output = ()> + Send + 'static>(
        script: impl Fn(TcpStream) -> F + Send + Sync + 'static,
    ) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let stream = listener.accept().await.unwrap().0;
                connections.spawn(script(stream));
            }
        });
        Listener { address, task }
    }

    /// Hands over each connection after the openings.
    pub(crate) async fn greeting<F: Future<Output = ()> + Send + 'static>(
        script: impl Fn(Peer) -> F + Send + Sync + 'static,
    ) -> Listener {
        let script = Arc::new(script);
        Listener::raw(move |mut stream| {
            let script = script.clone();
            async move {
                let mut opening = [0; OPENING_BYTES];
                if stream.read_exact(&mut opening).await.is_ok() {
                    assert_eq!(opening, frame::opening(CLIENT));
                    stream.write_all(&opening).await.unwrap();
                    script(Peer { stream, buffer: BytesMut::new() }).await;
                }
            }
        })
        .await
    }
}

/// The node's end of a connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    buffer: BytesMut,
}

impl Peer {
    /// The next request; none when the client has closed.
    pub(crate) async fn next(&mut self) -> Option<RequestFrame> {
        loop {
            if let Some(frame) = frame::split(&mut self.buffer, FRAME_BYTES_MAX).unwrap() {
                return Some(RequestFrame::decode(frame.kind, frame.id, frame.body).unwrap());
            }
            if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn answer(&mut self, id: u64, response: &Response) {
        // The client may be gone.
        let _ = self.stream.write_all(&encoded(id, response)).await;
    }

    /// Keeps the connection open and says nothing.
    pub(crate) async fn hang(mut self) {
        while self.next().await.is_some() {}
    }
}

/// What a node of a cluster does with a request.
pub(crate) enum Reply {
    Answer(Response),
    /// Answers, and goes on.
    Answers(Vec<Response>),
    /// Answers, and ends the connection.
    AnswerAndClose(Response),
    /// Ends the connection.
    Close,
    /// Says nothing.
    Hang,
}

/// A node of a cluster: a status is answered with what it was given, every other request by `reply`, which is told how many
/// requests came before.
pub(crate) struct Node {
    listener: Listener,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Node {
    pub(crate) async fn start(
        status: NodeStatus,
        reply: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
    ) -> Node {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, reply) = (seen.clone(), Arc::new(reply));
        let listener = Listener::greeting(move |mut peer| {
            let (log, reply, mut status) = (log.clone(), reply.clone(), status.clone());
            async move {
                status.address = peer.stream.local_addr().unwrap().to_string();
                while let Some(RequestFrame { id, request, .. }) = peer.next().await {
                    if request == Request::Status {
                        let json = serde_json::to_vec(&status).unwrap();
                        peer.answer(id, &Response::Status(json.into())).await;
                        continue;
                    }
                    let nth = {
                        let mut log = log.lock();
                        log.push(request.clone());
                        log.len() - 1
                    };
                    match reply(nth, &request) {
                        Reply::Answer(response) => peer.answer(id, &response).await,
                        Reply::Answers(responses) => {
                            for response in responses {
                                peer.answer(id, &response).await;
                            }
                        }
                        Reply::AnswerAndClose(response) => return peer.answer(id, &response).await,
                        Reply::Close => return,
                        Reply::Hang => {}
                    }
                }
            }
        })
        .await;
        Node { listener, seen }
    }

    pub(crate) fn address(&self) -> String {
        self.listener.address.clone()
    }

    /// Every request that came, but for status.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().clone()
    }
}

/// The status of an RW with these ROs.
pub(crate) fn rw(ros: &[&Node]) -> NodeStatus {
    let replicas = ros.iter().map(|ro| ReplicaStatus {
        name: "ro".into(),
        address: ro.address(),
        transport: "tcp".into(),
        why: String::new(),
        shipped: Lsn::ZERO,
        source: "ring".into(),
        received: Lsn::ZERO,
        applied: Lsn::ZERO,
        lag_bytes: 0,
        silent_ms: 0,
    });
    NodeStatus { role: Role::Rw, replicas: replicas.collect(), ..ro() }
}

/// The status of an RO that knows no RW.
pub(crate) fn ro() -> NodeStatus {
    NodeStatus {
        role: Role::Ro,
        name: "node".into(),
        address: String::new(),
        cluster: "test".into(),
        cluster_id: None,
        version: String::new(),
        uptime_s: 0,
        epoch: Epoch::new(1),
        positions: Positions::default(),
        shards: 0,
        entries: 0,
        data_bytes: 0,
        connections: 0,
        served: Default::default(),
        timed_out: 0,
        strong_reads: 0,
        fetches: 0,
        disk_full: false,
        replicas: Vec::new(),
        upstream: None,
    }
}

/// The status of an RO whose RW is there.
pub(crate) fn ro_of(rw: &str) -> NodeStatus {
    let upstream = UpstreamStatus {
        address: rw.into(),
        connected: false,
        transport: String::new(),
        why: String::new(),
        lease_ms: 0,
        lag_bytes: 0,
        lag_ms: None,
    };
    NodeStatus { upstream: Some(upstream), ..ro() }
}
