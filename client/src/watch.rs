use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::response::Response;
use headwater_protocol::{Entry, Error, Lsn, Seqno, ShardName};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::debug;

use crate::ClientError;
use crate::client::{Client, Retries};
use crate::socket::{self, Frames, expiry};

/// The id of the only request on a watch's connection.
const WATCH_ID: u64 = 1;

/// How long a node may take to accept a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Every entry of a shard from one on, in order.
///
/// - Entries come without gaps and without repeats, also across nodes.
/// - After an error comes nothing more.
/// - Two of a node's messages are held at most: a consumer that is slow stops the reading, not memory.
///
/// Dropping it ends the watch.
pub struct Watch {
    batches: mpsc::Receiver<Result<Batch, ClientError>>,
    entries: VecDeque<Entry>,
    /// Whose session sees what is given out.
    client: Option<Client>,
    task: JoinHandle<()>,
}

struct Batch {
    entries: Vec<Entry>,
    lsn: Lsn,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    /// The next entry, as soon as there is one; none after an error. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Entry, ClientError>> {
        while self.entries.is_empty() {
            match self.batches.recv().await? {
                Ok(batch) => {
                    if let Some(client) = &self.client {
                        client.observe(batch.lsn);
                    }
                    self.entries.extend(batch.entries);
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.entries.pop_front().map(Ok)
    }
}

impl Watch {
    /// A watch on one node; lost with it.
    pub(crate) async fn on_node(address: &str, shard: &ShardName, from: Seqno) -> Result<Watch, ClientError> {
        let mut subscription = Subscription::open(address, shard, from, expiry(OPEN_TIMEOUT)).await?;
        let (out, batches) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            if let Some(error) = subscription.forward(&out).await {
                // The consumer may be gone.
                let _ = out.send(Err(error)).await;
            }
        });
        Ok(Watch { batches, entries: VecDeque::new(), client: None, task })
    }

    /// A watch on whichever node can be read from, resumed on the next one when that is lost.
    pub(crate) fn on_cluster(client: Client, shard: &ShardName, from: Seqno) -> Watch {
        let (out, batches) = mpsc::channel(1);
        let task = tokio::spawn(follow(client.clone(), shard.clone(), from, out));
        Watch { batches, entries: VecDeque::new(), client: Some(client), task }
    }
}

/// Forwards entries from one node after the other, until the consumer is gone or no node can be found within the client's
/// deadline.
async fn follow(
    client: Client,
    shard: ShardName,
    mut from: Seqno,
    out: mpsc::Sender<Result<Batch, ClientError>>,
) {
    let mut retries = Retries::until(client.expiry());
    loop {
        let began = Instant::now();
        let mut last_error = client.no_rw();
        for address in client.readers() {
            let error = match Subscription::open(&address, &shard, from, expiry(OPEN_TIMEOUT)).await {
                Ok(mut subscription) => {
                    let Some(error) = subscription.forward(&out).await else { return };
                    // The time for finding another node runs from the loss of this one. The pauses go on growing where
                    // a node only ever accepts the connection.
                    if subscription.next == from {
                        retries.prolong(client.expiry());
                    } else {
                        retries = Retries::until(client.expiry());
                        from = subscription.next;
                    }
                    error
                }
                Err(error) => error,
            };
            let is_about_the_watch =
                matches!(error, ClientError::Malformed { .. }) || !error.is_of_the_node();
            if is_about_the_watch {
                let _ = out.send(Err(error)).await;
                return;
            }
            debug!(%shard, %from, node = address, %error, "watch lost; resuming elsewhere");
            last_error = error;
        }
        if !retries.pause().await {
            let _ = out.send(Err(last_error)).await;
            return;
        }
        client.nodes().learn_since(began, client.expiry()).await;
    }
}

/// A watch on one node, by a connection of its own.
struct Subscription {
    address: String,
    frames: Frames,
    /// The node takes the end of this half for the end of the watch.
    _socket: OwnedWriteHalf,
    /// The entry that must come next.
    next: Seqno,
}

impl Subscription {
    async fn open(
        address: &str,
        shard: &ShardName,
        from: Seqno,
        expires: Instant,
    ) -> Result<Subscription, ClientError> {
        let (read, mut socket) = socket::open(address, expires).await?.into_split();
        let mut frame = BytesMut::new();
        let request = Request::Watch { shard: shard.clone(), from };
        RequestFrame { id: WATCH_ID, deadline_ms: 0, request }.encode(&mut frame);
        socket.write_all(&frame).await.map_err(|e| lost(address, e.to_string()))?;
        Ok(Subscription { address: address.into(), frames: Frames::new(read), _socket: socket, next: from })
    }

    /// Forwards entries until the node is lost or refuses, and says why; none if the consumer is gone.
    async fn forward(&mut self, out: &mpsc::Sender<Result<Batch, ClientError>>) -> Option<ClientError> {
        loop {
            match self.next_batch().await {
                Ok(batch) => out.send(Ok(batch)).await.ok()?,
                Err(error) => return Some(error),
            }
        }
    }

    async fn next_batch(&mut self) -> Result<Batch, ClientError> {
        let frame = self.frames.next().await.map_err(|why| lost(&self.address, why))?;
        let malformed =
            |why| ClientError::Malformed { address: self.address.clone(), why, in_flight_write: false };
        match Response::decode(frame.kind, frame.body).map_err(|e| malformed(e.to_string()))? {
            Response::Watched { entries, lsn } => {
                let mut next = self.next;
                for entry in &entries {
                    if entry.seqno != next {
                        return Err(malformed(format!(
                            "the watch goes on at {}, not at {next}",
                            entry.seqno
                        )));
                    }
                    next = next.next().ok_or_else(|| malformed("an entry beyond the last seqno".into()))?;
                }
                self.next = next;
                Ok(Batch { entries, lsn })
            }
            Response::Error(error) => Err(ClientError::Refused(error)),
            // Nobody asked for it, so it is the node that ends.
            Response::WatchEnded => Err(ClientError::Refused(Error::Stopping)),
            other => Err(malformed(format!("{other:?} is no answer to a watch"))),
        }
    }
}

fn lost(address: &str, why: String) -> ClientError {
    ClientError::ConnectionLost { address: address.into(), why, in_flight_write: false }
}

#[cfg(test)]
mod tests;
