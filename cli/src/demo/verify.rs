//! At the end: whether every acknowledged write is there, and whether all nodes hold the same bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_client::{ClientError, Connection};
use headwater_protocol::limits::{SCAN_ENTRIES_MAX, SHARDS_NAMES_MAX};
use headwater_protocol::{Consistency, Entry, Seqno, ShardName};
use xxhash_rust::xxh3::Xxh3Default;

use super::workload::{Ledger, payload};

/// How long one read may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// What a node holds.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Content(BTreeMap<ShardName, ShardContent>);

#[derive(PartialEq, Eq, Debug)]
struct ShardContent {
    lo: Seqno,
    entries: u64,
    /// Of every seqno, length and byte.
    hash: u128,
}

impl Content {
    /// Reads all that a node holds, as a strong reader sees it.
    pub(crate) async fn of(node: &Connection) -> Result<Content, ClientError> {
        let mut content = BTreeMap::new();
        let mut after = String::new();
        loop {
            let page = node.shards("", &after, SHARDS_NAMES_MAX, Consistency::Strong, DEADLINE).await?;
            for shard in &page.names {
                let mut lo = None;
                let (mut entries, mut hash) = (0, Xxh3Default::new());
                each_entry(node, shard, |entry| {
                    lo.get_or_insert(entry.seqno);
                    entries += 1;
                    hash.update(&entry.seqno.get().to_le_bytes());
                    hash.update(&(entry.data.len() as u64).to_le_bytes());
                    hash.update(&entry.data);
                })
                .await?;
                let lo = lo.unwrap_or_default();
                content.insert(shard.clone(), ShardContent { lo, entries, hash: hash.digest128() });
            }
            match page.names.last() {
                Some(last) if page.more => after = last.as_str().to_owned(),
                _ => return Ok(Content(content)),
            }
        }
    }

    /// Shards that are not the same in both.
    pub(crate) fn differences(&self, other: &Content) -> Vec<String> {
        let names = self.0.keys().chain(other.0.keys().filter(|name| !self.0.contains_key(*name)));
        names.filter(|name| self.0.get(*name) != other.0.get(*name)).map(ToString::to_string).collect()
    }

    /// Shards and entries.
    pub(crate) fn count(&self) -> (u64, u64) {
        (self.0.len() as u64, self.0.values().map(|shard| shard.entries).sum())
    }
}

/// Acknowledged writes that the node does not have as they were written.
pub(crate) async fn lost_writes(node: &Connection, ledger: &Ledger) -> Result<u64, ClientError> {
    let mut lost = 0;
    for (index, (shard, acknowledged)) in ledger.acknowledged().enumerate() {
        let mut right = 0;
        each_entry(node, shard, |entry| {
            let is_right = entry.seqno.get() < acknowledged && entry.data == payload(index, entry.seqno);
            right += u64::from(is_right);
        })
        .await?;
        lost += acknowledged - right;
    }
    Ok(lost)
}

async fn each_entry(
    node: &Connection,
    shard: &ShardName,
    mut visit: impl FnMut(&Entry),
) -> Result<(), ClientError> {
    let mut from = Seqno::ZERO;
    loop {
        let page = node.scan(shard, from, SCAN_ENTRIES_MAX, Consistency::Strong, DEADLINE).await?;
        page.entries.iter().for_each(&mut visit);
        match page.entries.last().and_then(|entry| entry.seqno.next()) {
            Some(next) if page.more => from = next,
            _ => return Ok(()),
        }
    }
}
