//! Writers and readers that check one another while they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use headwater_client::{Cas, Client, ClientError, Connection};
use headwater_protocol::{Consistency, Entry, Seqno, ShardName};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::load::{Kind, Work};

/// How long one read may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// Every how manieth strong read is a scan.
const SCAN_EVERY: u64 = 4;

/// Entries of such a scan before the acknowledged head.
const SCAN_BACK: u64 = 8;

/// Bytes of an entry, about.
const ENTRY_BYTES: usize = 256;

/// What was acknowledged, and what was seen that must not be.
///
/// - A shard's count is raised after its write was acknowledged, never before; only its one writer writes it.
pub(crate) struct Ledger {
    shards: Vec<(ShardName, AtomicU64)>,
    /// Strong reads that missed a write acknowledged before they were sent.
    pub(crate) stale: AtomicU64,
    /// Entries with other bytes than were written, or out of place.
    pub(crate) wrong: AtomicU64,
    /// Writes acknowledged.
    pub(crate) writes: AtomicU64,
    /// Reads answered.
    pub(crate) reads: AtomicU64,
    first_violation: Mutex<Option<String>>,
}

impl Ledger {
    /// For a writer on each of so many shards.
    pub(crate) fn new(writers: usize) -> Arc<Ledger> {
        let name = |i| ShardName::new(&format!("demo/{i}")).expect("a short name is legal");
        Arc::new(Ledger {
            shards: (0..writers).map(|i| (name(i), AtomicU64::new(0))).collect(),
            stale: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            first_violation: Mutex::new(None),
        })
    }

    /// Each shard of the workload with how many of its entries were acknowledged, from 0 on.
    pub(crate) fn acknowledged(&self) -> impl Iterator<Item = (&ShardName, u64)> {
        self.shards.iter().map(|(shard, count)| (shard, count.load(SeqCst)))
    }

    /// The first thing that must not be, if any was seen.
    pub(crate) fn first_violation(&self) -> Option<String> {
        self.first_violation.lock().clone()
    }

    fn violation(&self, counter: &AtomicU64, what: impl FnOnce() -> String) {
        counter.fetch_add(1, Relaxed);
        self.first_violation.lock().get_or_insert_with(what);
    }

    fn check_bytes(&self, shard: usize, entry: &Entry) {
        if entry.data != payload(shard, entry.seqno) {
            self.violation(&self.wrong, || {
                format!(
                    "version {} of {} has other bytes than were written",
                    entry.seqno, self.shards[shard].0
                )
            });
        }
    }
}

/// What the writer of that shard writes at that seqno: told apart from any other place's by anyone.
pub(crate) fn payload(shard: usize, seqno: Seqno) -> Bytes {
    let mut text = format!("{{\"shard\":\"demo/{shard}\",\"seqno\":{seqno},\"fill\":\"");
    let mut word = shard as u64;
    while text.len() < ENTRY_BYTES {
        word = xxh3_64_with_seed(&seqno.get().to_le_bytes(), word);
        text.push_str(&format!("{word:016x}"));
    }
    text.push_str("\"}\n");
    text.into()
}

/// Writes one shard, an entry after the other.
pub(crate) struct Writer {
    client: Client,
    ledger: Arc<Ledger>,
    shard: usize,
    /// The shard's head, unless a write's outcome is unknown.
    head: Option<Option<Seqno>>,
}

impl Writer {
    /// The writer of that shard, which was never written.
    pub(crate) fn new(client: Client, ledger: Arc<Ledger>, shard: usize) -> Writer {
        Writer { client, ledger, shard, head: Some(None) }
    }
}

impl Work for Writer {
    async fn step(&mut self) -> Result<Kind, ClientError> {
        let (name, acknowledged) = &self.ledger.shards[self.shard];
        loop {
            let head = match self.head.take() {
                Some(head) => head,
                None => self.client.head(name, Consistency::Strong).await?.entry.map(|entry| entry.seqno),
            };
            let next = head.map_or(Some(Seqno::ZERO), Seqno::next).expect("no demo lasts that long");
            match self.client.compare_and_set(name, head, payload(self.shard, next)).await? {
                Cas::Committed(seqno, _) => {
                    acknowledged.fetch_max(seqno.get() + 1, SeqCst);
                    self.ledger.writes.fetch_add(1, Relaxed);
                    self.head = Some(Some(seqno));
                    return Ok(Kind::Write);
                }
                // An earlier write of this writer, of unknown outcome, was in after all.
                Cas::Mismatch { head, .. } => self.head = Some(head),
            }
        }
    }
}

/// Reads all shards of one node in turn, strongly, and checks that nothing acknowledged is missing.
pub(crate) struct StrongReader {
    node: Connection,
    ledger: Arc<Ledger>,
    step: u64,
}

impl StrongReader {
    /// The `index`th reader of that node.
    pub(crate) fn new(node: Connection, ledger: Arc<Ledger>, index: u64) -> StrongReader {
        StrongReader { node, ledger, step: index }
    }
}

impl Work for StrongReader {
    async fn step(&mut self) -> Result<Kind, ClientError> {
        self.step += 1;
        let shard = (self.step % self.ledger.shards.len() as u64) as usize;
        let (name, acknowledged) = &self.ledger.shards[shard];
        // Looked at before the read is sent: from here on the answer must have all of these.
        let acknowledged = acknowledged.load(SeqCst);
        let is_scan = (self.step / self.ledger.shards.len() as u64).is_multiple_of(SCAN_EVERY);
        let from =
            if is_scan { acknowledged.saturating_sub(SCAN_BACK) } else { acknowledged.saturating_sub(1) };
        let entries = if is_scan {
            let from = Seqno::new(from).expect("below a seqno that was written");
            let limit = 2 * SCAN_BACK as u32;
            self.node.scan(name, from, limit, Consistency::Strong, DEADLINE).await?.entries
        } else {
            let head = self.node.head(name, Consistency::Strong, DEADLINE).await?;
            head.entry.into_iter().collect()
        };
        self.ledger.reads.fetch_add(1, Relaxed);
        let reached = entries.last().map_or(0, |entry| entry.seqno.get() + 1);
        if reached < acknowledged {
            self.ledger.violation(&self.ledger.stale, || {
                format!(
                    "a strong read at {} reached {reached} entries of {name}; {acknowledged} were acknowledged before",
                    self.node.address()
                )
            });
        }
        for (i, entry) in entries.iter().enumerate() {
            if is_scan && entry.seqno.get() != from + i as u64 {
                self.ledger.violation(&self.ledger.wrong, || {
                    format!("a scan of {name} from {from} has {} in place {i}", entry.seqno)
                });
            }
            self.ledger.check_bytes(shard, entry);
        }
        Ok(Kind::Read)
    }
}

/// Reads all shards of one node in turn, whatever it has, and checks that what it has is right.
pub(crate) struct EventualReader {
    node: Connection,
    ledger: Arc<Ledger>,
    step: u64,
}

impl EventualReader {
    /// The `index`th reader of that node.
    pub(crate) fn new(node: Connection, ledger: Arc<Ledger>, index: u64) -> EventualReader {
        EventualReader { node, ledger, step: index }
    }
}

impl Work for EventualReader {
    async fn step(&mut self) -> Result<Kind, ClientError> {
        self.step += 1;
        let shard = (self.step % self.ledger.shards.len() as u64) as usize;
        let head = self.node.head(&self.ledger.shards[shard].0, Consistency::Eventual, DEADLINE).await?;
        self.ledger.reads.fetch_add(1, Relaxed);
        if let Some(entry) = &head.entry {
            self.ledger.check_bytes(shard, entry);
        }
        Ok(Kind::Read)
    }
}
