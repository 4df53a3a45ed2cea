use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::response::Response;
use headwater_protocol::status::NodeStatus;
use headwater_protocol::{Consistency, Lsn, Malformed, Seqno, ShardName};
use parking_lot::Mutex;
use tokio::io;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::ClientError;
use crate::operation::{self, Cas, Head, Operation, Scan, Shards, Truncated};
use crate::socket::{self, Frames, expiry};
use crate::watch::Watch;

/// Requests in flight on a connection are bounded by their bytes together: one of the largest always fits.
const IN_FLIGHT_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// What a request counts for at least: 1,280 small ones are in flight at most.
const REQUEST_BYTES_MIN: usize = 64 << 10;

/// The unit in which the bytes in flight are counted.
const ROOM_BYTES: usize = 1 << 10;

/// Bytes that wait for a socket that takes none. Past [`IN_FLIGHT_BYTES_MAX`] these are requests that nobody waits for any more.
const OUTBOX_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// One connection to one node. Many requests are in flight on it; answers come in any order. It neither retries nor routes.
///
/// Clones share the connection; it closes when the last is dropped. A call whose future is dropped leaves nothing behind,
/// but a write that was sent may still happen.
#[derive(Clone)]
pub struct Connection(Arc<Owner>);

/// Ends the task with the last handle.
struct Owner {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    address: String,
    socket: OwnedWriteHalf,
    calls: Mutex<Calls>,
    outbox: Mutex<Outbox>,
    /// Told when the outbox is left to the task.
    queued: Notify,
    /// Bounds what is in flight, in units of [`ROOM_BYTES`].
    room: Semaphore,
}

/// - Once `lost` is set it stays, and nothing waits.
/// - An id is in `waiting` exactly while its call waits.
#[derive(Default)]
struct Calls {
    last_id: u64,
    waiting: HashMap<u64, oneshot::Sender<Result<Response, Malformed>>>,
    lost: Option<String>,
}

/// - While `busy`, one caller or the task is writing, and only it writes: frames never mix.
/// - `bytes` are behind what the writer has in hand; they are empty unless it is busy.
#[derive(Default)]
struct Outbox {
    bytes: BytesMut,
    busy: bool,
}

impl Outbox {
    /// Takes back what the socket did not take of the writer's bytes. It goes before what came meanwhile.
    fn put_back(&mut self, mut rest: BytesMut) {
        if !rest.is_empty() {
            rest.unsplit(std::mem::take(&mut self.bytes));
            self.bytes = rest;
        }
    }
}

impl Connection {
    /// Connects to `host:port` and makes sure that a node of this version is there. `timeout` covers all of it.
    ///
    /// Every error is determinate: [`ClientError::Unreachable`], [`ClientError::NotHeadwater`], or
    /// [`ClientError::InvalidArgument`] for an address that is none.
    pub async fn open(address: &str, timeout: Duration) -> Result<Connection, ClientError> {
        let (read, write) = socket::open(address, expiry(timeout)).await?.into_split();
        let shared = Arc::new(Shared {
            address: address.into(),
            socket: write,
            calls: Mutex::default(),
            outbox: Mutex::default(),
            queued: Notify::new(),
            room: Semaphore::new(IN_FLIGHT_BYTES_MAX / ROOM_BYTES),
        });
        let task = tokio::spawn(drive(shared.clone(), Frames::new(read)));
        Ok(Connection(Arc::new(Owner { shared, task })))
    }

    /// The address it was opened with.
    pub fn address(&self) -> &str {
        &self.0.shared.address
    }

    /// Whether it is lost. It does not come back: open another one.
    pub fn is_closed(&self) -> bool {
        self.0.shared.calls.lock().lost.is_some()
    }

    /// Sends a request and waits for its answer, no longer than `deadline`.
    ///
    /// A refusal is [`ClientError::Refused`]. Once a write was sent, [`ClientError::ConnectionLost`],
    /// [`ClientError::Timeout`] and [`ClientError::Malformed`] are indeterminate.
    pub async fn call(&self, request: Request, deadline: Duration) -> Result<Response, ClientError> {
        operation::check(&request)?;
        let shared = &*self.0.shared;
        let expires = expiry(deadline);
        let is_write = operation::is_write(&request);
        let address = || shared.address.clone();
        let timeout =
            |in_flight_write| ClientError::Timeout { address: address(), after: deadline, in_flight_write };

        let units = operation::bytes(&request).clamp(REQUEST_BYTES_MIN, IN_FLIGHT_BYTES_MAX) / ROOM_BYTES;
        let units = u32::try_from(units).expect("a request is bounded by FRAME_BYTES_MAX");
        let _room = timeout_at(expires, shared.room.acquire_many(units))
            .await
            .map_err(|_| timeout(false))?
            .expect("nobody closes the semaphore");

        let unreachable = |why| ClientError::Unreachable { address: address(), why };
        let mut call = Call::register(shared).map_err(unreachable)?;
        let mut frame = BytesMut::with_capacity(operation::bytes(&request) + 128);
        RequestFrame { id: call.id, deadline_ms: node_deadline_ms(expires), request }.encode(&mut frame);
        shared.send(frame).map_err(unreachable)?;

        match timeout_at(expires, &mut call.answer).await {
            Ok(Ok(Ok(Response::Error(error)))) => Err(ClientError::Refused(error)),
            Ok(Ok(Ok(response))) => Ok(response),
            Ok(Ok(Err(malformed))) => Err(self.malformed(malformed.to_string(), is_write)),
            Ok(Err(_)) => {
                let why = shared.calls.lock().lost.clone().unwrap_or_default();
                Err(ClientError::ConnectionLost { address: address(), why, in_flight_write: is_write })
            }
            Err(_) => Err(timeout(is_write)),
        }
    }

    /// The error of an answer that cannot be.
    fn malformed(&self, why: String, in_flight_write: bool) -> ClientError {
        ClientError::Malformed { address: self.address().into(), why, in_flight_write }
    }

    /// Carries out one operation; gives its answer and the LSN that it reflects, where it does.
    pub(crate) async fn perform<T>(
        &self,
        operation: Operation<T>,
        deadline: Duration,
    ) -> Result<(T, Option<Lsn>), ClientError> {
        let is_write = operation::is_write(&operation.request);
        let response = self.call(operation.request, deadline).await?;
        let lsn = operation::reflected(&response);
        let answer = (operation.answer)(response)
            .ok_or_else(|| self.malformed("it belongs to another request".into(), is_write))?;
        Ok((answer, lsn))
    }

    /// The entry with the largest seqno.
    pub async fn head(
        &self,
        shard: &ShardName,
        consistency: Consistency,
        deadline: Duration,
    ) -> Result<Head, ClientError> {
        Ok(self.perform(operation::head(shard, consistency), deadline).await?.0)
    }

    /// One page of entries with seqno ≥ `from`, at most `limit` of them.
    pub async fn scan(
        &self,
        shard: &ShardName,
        from: Seqno,
        limit: u32,
        consistency: Consistency,
        deadline: Duration,
    ) -> Result<Scan, ClientError> {
        Ok(self.perform(operation::scan(shard, from, limit, consistency), deadline).await?.0)
    }

    /// One page of names that begin with `prefix` and come after `after`, at most `limit` of them.
    pub async fn shards(
        &self,
        prefix: &str,
        after: &str,
        limit: u32,
        consistency: Consistency,
        deadline: Duration,
    ) -> Result<Shards, ClientError> {
        Ok(self.perform(operation::shards(prefix, after, limit, consistency), deadline).await?.0)
    }

    /// Appends `data` iff `expected` is the head, or the shard was never written and `expected` is none.
    pub async fn compare_and_set(
        &self,
        shard: &ShardName,
        expected: Option<Seqno>,
        data: Bytes,
        deadline: Duration,
    ) -> Result<Cas, ClientError> {
        Ok(self.perform(operation::compare_and_set(shard, expected, data), deadline).await?.0)
    }

    /// First write of a shard, at `seqno`. Gives the end of its record.
    pub async fn begin(
        &self,
        shard: &ShardName,
        seqno: Seqno,
        data: Bytes,
        deadline: Duration,
    ) -> Result<Lsn, ClientError> {
        Ok(self.perform(operation::begin(shard, seqno, data), deadline).await?.0)
    }

    /// Removes entries below `cut`, never the head.
    pub async fn truncate(
        &self,
        shard: &ShardName,
        cut: Seqno,
        deadline: Duration,
    ) -> Result<Truncated, ClientError> {
        Ok(self.perform(operation::truncate(shard, cut), deadline).await?.0)
    }

    /// What the node is and how it does.
    pub async fn status(&self, deadline: Duration) -> Result<NodeStatus, ClientError> {
        Ok(self.perform(operation::status(), deadline).await?.0)
    }

    /// Every entry of the shard from `from` on, as each becomes visible, until this node is lost.
    ///
    /// The watch has a connection of its own to the same node, so that a slow consumer holds up nothing but its watch.
    pub async fn watch(&self, shard: &ShardName, from: Seqno) -> Result<Watch, ClientError> {
        Watch::on_node(self.address(), shard, from).await
    }
}

/// What the node is told to wait at most, ms: a little less than the caller does, so that its word on why comes in time.
fn node_deadline_ms(expires: Instant) -> u32 {
    let left = expires.saturating_duration_since(Instant::now());
    let left = left - (left / 10).min(Duration::from_millis(50));
    // 0 would be the node's default.
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
}

/// A call that waits for its answer. Dropped, it waits no more, and an answer that comes late is dropped too.
struct Call<'a> {
    shared: &'a Shared,
    id: u64,
    answer: oneshot::Receiver<Result<Response, Malformed>>,
}

impl Call<'_> {
    /// Says why not if the connection is lost.
    fn register(shared: &Shared) -> Result<Call<'_>, String> {
        let mut calls = shared.calls.lock();
        if let Some(why) = &calls.lost {
            return Err(why.clone());
        }
        calls.last_id += 1;
        let id = calls.last_id;
        let (sender, answer) = oneshot::channel();
        calls.waiting.insert(id, sender);
        Ok(Call { shared, id, answer })
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.shared.calls.lock().waiting.remove(&self.id);
    }
}

impl Shared {
    /// Writes the frame, or leaves it to whoever is writing. An error says that nothing of this frame was sent.
    ///
    /// With nobody else writing the frame goes out here, by one call of the kernel and without waking another task.
    fn send(&self, mut frame: BytesMut) -> Result<(), String> {
        {
            let mut outbox = self.outbox.lock();
            if outbox.bytes.len() + frame.len() > OUTBOX_BYTES_MAX {
                return Err("its socket takes nothing any more".into());
            }
            if outbox.busy {
                outbox.bytes.unsplit(frame);
                return Ok(());
            }
            debug_assert!(outbox.bytes.is_empty());
            outbox.busy = true;
        }
        match self.socket.try_write(&frame) {
            Ok(written) => frame.advance(written),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                self.lose(e.to_string());
                return Err(e.to_string());
            }
        }
        let mut outbox = self.outbox.lock();
        outbox.put_back(frame);
        if outbox.bytes.is_empty() {
            outbox.busy = false;
        } else {
            self.queued.notify_one();
        }
        Ok(())
    }

    /// Writes what callers left, all that has gathered at once. Ends with the connection.
    async fn write_queued(&self) -> io::Error {
        loop {
            self.queued.notified().await;
            loop {
                let mut batch = {
                    let mut outbox = self.outbox.lock();
                    debug_assert!(outbox.busy);
                    if outbox.bytes.is_empty() {
                        outbox.busy = false;
                        break;
                    }
                    std::mem::take(&mut outbox.bytes)
                };
                while !batch.is_empty() {
                    let written = match self.socket.writable().await {
                        Ok(()) => self.socket.try_write(&batch),
                        Err(e) => Err(e),
                    };
                    match written {
                        Ok(written) => batch.advance(written),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) => return e,
                    }
                }
            }
        }
    }

    /// Hands answers to their calls. Ends with the connection, and says why.
    async fn read_answers(&self, frames: &mut Frames) -> String {
        loop {
            let frame = match frames.next().await {
                Ok(frame) => frame,
                Err(why) => return why,
            };
            let answer = Response::decode(frame.kind, frame.body);
            let broken =
                answer.as_ref().err().filter(|malformed| !malformed.is_argument()).map(ToString::to_string);
            // None waits where the call was given up.
            if let Some(call) = self.calls.lock().waiting.remove(&frame.id) {
                let _ = call.send(answer);
            }
            if let Some(why) = broken {
                return why;
            }
        }
    }

    /// From here on no call is taken, and those that wait are told.
    fn lose(&self, why: String) {
        debug!(address = self.address, why, "connection lost");
        let mut calls = self.calls.lock();
        calls.lost.get_or_insert(why);
        calls.waiting.clear();
    }
}

async fn drive(shared: Arc<Shared>, mut frames: Frames) {
    let why = tokio::select! {
        why = shared.read_answers(&mut frames) => why,
        error = shared.write_queued() => error.to_string(),
    };
    shared.lose(why);
}

#[cfg(test)]
mod tests;
