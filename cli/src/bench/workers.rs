use std::time::Duration;

use bytes::Bytes;
use headwater_client::{Cas, Client, ClientError, Connection};
use headwater_protocol::{Consistency, Entry, Seqno, ShardName};

use crate::load::{Kind, Work};

/// An entry's bytes: printable, and not all the same.
pub(crate) fn payload(bytes: usize) -> Bytes {
    (0..bytes).map(|i| b'a' + (i % 26) as u8).collect()
}

/// Where reads go.
pub(crate) enum Target {
    /// Wherever the client sends them.
    Cluster(Client),
    /// To one node.
    Node(Connection),
}

impl Target {
    /// The same, with a position of its own.
    pub(crate) fn session(&self) -> Target {
        match self {
            Target::Cluster(client) => Target::Cluster(client.session()),
            Target::Node(connection) => Target::Node(connection.clone()),
        }
    }
}

/// Writes some shards in turn, each entry built on the one before.
pub(crate) struct Stream {
    client: Client,
    /// Each shard with its head, unless that is not known.
    shards: Vec<(ShardName, Option<Option<Seqno>>)>,
    turn: usize,
    payload: Bytes,
    truncate_every: Option<u64>,
}

impl Stream {
    /// A stream of entries of so many bytes.
    pub(crate) fn new(
        client: Client,
        shards: Vec<ShardName>,
        payload_bytes: usize,
        truncate_every: Option<u64>,
    ) -> Stream {
        let shards = shards.into_iter().map(|shard| (shard, None)).collect();
        Stream { client, shards, turn: 0, payload: payload(payload_bytes), truncate_every }
    }
}

impl Work for Stream {
    async fn step(&mut self) -> Result<Kind, ClientError> {
        let turn = self.turn % self.shards.len();
        self.turn += 1;
        let (shard, known) = &mut self.shards[turn];
        loop {
            // An error below leaves the head unknown: the write may have been done.
            let head = match known.take() {
                Some(head) => head,
                None => self.client.head(shard, Consistency::Strong).await?.entry.map(|entry| entry.seqno),
            };
            match self.client.compare_and_set(shard, head, self.payload.clone()).await? {
                Cas::Committed(seqno, _) => {
                    if self.truncate_every.is_some_and(|every| seqno.get() % every == every - 1) {
                        self.client.truncate(shard, seqno).await?;
                    }
                    *known = Some(Some(seqno));
                    return Ok(Kind::Write);
                }
                Cas::Mismatch { head, .. } => *known = Some(head),
            }
        }
    }
}

/// Reads some shards in turn.
pub(crate) struct Reader {
    target: Target,
    /// Each shard with where its scan begins.
    shards: Vec<(ShardName, Seqno)>,
    turn: usize,
    scan: Option<u32>,
    consistency: Consistency,
    deadline: Duration,
}

impl Reader {
    /// The `index`th reader of these shards: of their heads, or of their last `scan` entries.
    pub(crate) fn new(
        target: Target,
        shards: Vec<ShardName>,
        index: usize,
        scan: Option<u32>,
        consistency: Consistency,
        deadline: Duration,
    ) -> Reader {
        let shards = shards.into_iter().map(|shard| (shard, Seqno::ZERO)).collect();
        Reader { target, shards, turn: index, scan, consistency, deadline }
    }
}

impl Work for Reader {
    async fn step(&mut self) -> Result<Kind, ClientError> {
        let turn = self.turn % self.shards.len();
        self.turn += 1;
        let (shard, from) = &mut self.shards[turn];
        let (consistency, deadline) = (self.consistency, self.deadline);
        match (self.scan, &self.target) {
            (None, Target::Cluster(client)) => drop(client.head(shard, consistency).await?),
            (None, Target::Node(node)) => drop(node.head(shard, consistency, deadline).await?),
            (Some(limit), target) => {
                let page = match target {
                    Target::Cluster(client) => client.scan(shard, *from, limit, consistency).await?,
                    Target::Node(node) => node.scan(shard, *from, limit, consistency, deadline).await?,
                };
                *from = next_scan(*from, &page.entries, page.more, limit);
            }
        }
        Ok(Kind::Read)
    }
}

/// Where the next scan begins so that it reads the last `limit` entries, as far as this one showed where they are.
fn next_scan(from: Seqno, entries: &[Entry], more: bool, limit: u32) -> Seqno {
    let Some(last) = entries.last() else { return from };
    let back = if more { 0 } else { u64::from(limit) - 1 };
    Seqno::new(last.seqno.get().saturating_sub(back)).unwrap_or(from)
}

/// Reads and writes by turns.
pub(crate) struct Mixed {
    stream: Stream,
    reader: Reader,
    /// Reads among a hundred operations.
    reads: u32,
    turn: u32,
}

impl Mixed {
    /// The `index`th client.
    pub(crate) fn new(stream: Stream, reader: Reader, reads: u32, index: usize) -> Mixed {
        Mixed { stream, reader, reads, turn: index as u32 }
    }
}

impl Work for Mixed {
    async fn step(&mut self) -> Result<Kind, ClientError> {
        // 61 has no factor in common with 100: every hundred turns meet every remainder once, well mixed.
        self.turn = (self.turn + 61) % 100;
        if self.turn < self.reads { self.reader.step().await } else { self.stream.step().await }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_follows_the_head() {
        let seqno = |number| Seqno::new(number).unwrap();
        let entries = |range: std::ops::Range<u64>| -> Vec<Entry> {
            range.map(|number| Entry { seqno: seqno(number), data: Bytes::new() }).collect()
        };
        assert_eq!(next_scan(seqno(5), &[], false, 10), seqno(5));
        assert_eq!(next_scan(seqno(0), &entries(0..10), true, 10), seqno(9));
        assert_eq!(next_scan(seqno(90), &entries(90..95), false, 10), seqno(85));
        assert_eq!(next_scan(seqno(0), &entries(0..3), false, 10), seqno(0));
    }
}
