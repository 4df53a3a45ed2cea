//! All that a node holds, to be compared with another node's.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_client::{ClientError, Connection};
use headwater_protocol::{Consistency, Entry, Seqno, ShardName};

/// Every shard with its entries, ascending.
pub type Snapshot = BTreeMap<ShardName, Vec<Entry>>;

/// Reads everything, page by page. The pages are of one state only if nobody writes meanwhile.
pub async fn snapshot(
    node: &Connection,
    consistency: Consistency,
    deadline: Duration,
) -> Result<Snapshot, ClientError> {
    let mut snapshot = Snapshot::new();
    let mut after = String::new();
    loop {
        let page = node.shards("", &after, 1000, consistency, deadline).await?;
        for name in page.names {
            after = name.as_str().to_owned();
            let entries = entries(node, &name, consistency, deadline).await?;
            snapshot.insert(name, entries);
        }
        if !page.more {
            return Ok(snapshot);
        }
    }
}

/// All entries of one shard.
pub async fn entries(
    node: &Connection,
    shard: &ShardName,
    consistency: Consistency,
    deadline: Duration,
) -> Result<Vec<Entry>, ClientError> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let from = entries.last().map_or(Some(Seqno::ZERO), |last| last.seqno.next());
        let Some(from) = from else { return Ok(entries) };
        let page = node.scan(shard, from, 10_000, consistency, deadline).await?;
        entries.extend(page.entries);
        if !page.more {
            return Ok(entries);
        }
    }
}
