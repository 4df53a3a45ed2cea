//! Clients that write and read without pause, whatever happens to the nodes, and record what they are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headwater_client::{Cas, Client, ClientError};
use headwater_protocol::{Consistency, Seqno, ShardName};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::Node;
use crate::history::History;

/// How long one call of these clients may take: an RW that is started again meanwhile answers within it.
const DEADLINE: Duration = Duration::from_secs(5);
/// Entries that a truncating writer leaves, and how often it cuts.
const KEPT: u64 = 32;
/// Entries that a reader scans at most.
const SCAN_LIMIT: u32 = 20;

/// Running clients.
pub struct Load {
    history: Arc<History>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
    shards: Vec<ShardName>,
    progress: Arc<Progress>,
}

/// What the clients have achieved, for tests that wait for some of it.
#[derive(Default)]
pub struct Progress {
    committed: AtomicU64,
    strong_reads: AtomicU64,
}

impl Progress {
    /// Writes acknowledged.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Strong reads answered.
    pub fn strong_reads(&self) -> u64 {
        self.strong_reads.load(Ordering::Relaxed)
    }
}

impl Load {
    /// No clients yet; those to come use so many shards, and their writes meet in them.
    pub fn new(shards: usize) -> Load {
        let shards = (0..shards).map(|n| ShardName::new(&format!("load/{n}")).expect("a good name"));
        Load {
            history: Arc::default(),
            stop: watch::Sender::new(false),
            clients: JoinSet::new(),
            shards: shards.collect(),
            progress: Arc::default(),
        }
    }

    /// What is recorded.
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// What is achieved.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Adds a client that writes through `rw`, its entries `bytes` long, and truncates now and then.
    pub async fn writer(&mut self, rw: &Node, bytes: usize) {
        let name = self.clients.len();
        let shard = self.shards[name % self.shards.len()].clone();
        let client = rw.client(DEADLINE).await;
        let (history, progress, stop) = (self.history.clone(), self.progress.clone(), self.stop.subscribe());
        self.clients.spawn(async move {
            let mut head = None;
            for n in 0u64.. {
                if *stop.borrow() {
                    return;
                }
                let mut data = format!("{name}/{n}/").into_bytes();
                data.resize(data.len().max(bytes), b'.');
                let data = Bytes::from(data);
                let write = client.compare_and_set(&shard, head, data.clone());
                match history.compare_and_set(&shard, head, data, write).await {
                    Ok(Cas::Committed(seqno, _)) => {
                        progress.committed.fetch_add(1, Ordering::Relaxed);
                        head = Some(seqno);
                        truncate(&history, &client, &shard, seqno).await;
                    }
                    Ok(Cas::Mismatch { head: actual, .. }) => head = actual,
                    Err(error) => ask_again(&error).await,
                }
            }
        });
    }

    /// Adds a client that reads from `node`, strongly, heads and scans in turn.
    pub async fn reader(&mut self, node: &Node) {
        let shards = self.shards.clone();
        let client = node.client(DEADLINE).await;
        let (history, progress, stop) = (self.history.clone(), self.progress.clone(), self.stop.subscribe());
        self.clients.spawn(async move {
            for shard in shards.iter().cycle() {
                if *stop.borrow() {
                    return;
                }
                match read(&history, &client, shard).await {
                    Ok(reads) => drop(progress.strong_reads.fetch_add(reads, Ordering::Relaxed)),
                    Err(error) => ask_again(&error).await,
                }
            }
        });
    }

    /// Ends the clients, each after the call that it is in.
    pub async fn stop(mut self) -> Arc<History> {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("a client does not panic");
        }
        self.history
    }
}

async fn truncate(history: &History, client: &Client, shard: &ShardName, head: Seqno) {
    if head.get() > KEPT && head.get().is_multiple_of(KEPT / 2) {
        let cut = Seqno::new(head.get() - KEPT).expect("below a seqno");
        // Whatever comes of it is recorded.
        let _ = history.truncate(shard, cut, client.truncate(shard, cut)).await;
    }
}

async fn read(history: &History, client: &Client, shard: &ShardName) -> Result<u64, ClientError> {
    let strong = Consistency::Strong;
    let head = history.head(shard, strong, client.head(shard, strong)).await?;
    let whole = Seqno::ZERO;
    history.scan(shard, whole, strong, client.scan(shard, whole, 10 * KEPT as u32, strong)).await?;
    let Some(entry) = head.entry else { return Ok(2) };
    let near = Seqno::new(entry.seqno.get().saturating_sub(3)).expect("below a seqno");
    history.scan(shard, near, strong, client.scan(shard, near, SCAN_LIMIT, strong)).await?;
    Ok(3)
}

/// A client whose node is away gives it a moment, so that it does not fill the history with refusals.
async fn ask_again(error: &ClientError) {
    assert!(
        error.is_transient() || error.kind() == headwater_protocol::ErrorKind::Indeterminate,
        "a load's calls are sound: {error}"
    );
    tokio::time::sleep(Duration::from_millis(5)).await;
}
