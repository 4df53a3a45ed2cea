use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use headwater_protocol::limits::SCAN_BYTES_MAX;
use headwater_protocol::response::Response;
use headwater_protocol::{Error, Seqno, ShardName};
use headwater_shard_log::ShardLog;

/// Entries in one answer of a watch.
const ENTRIES_MAX: u32 = 1000;

/// Every entry of `shard` from `from` on, in order and without gaps, as each enters `log`. Ends with an error where the
/// log no longer holds the next one.
pub fn watch(log: Arc<ShardLog>, shard: ShardName, from: Seqno) -> BoxStream<'static, Response> {
    // Subscribed before the first look, so that nothing falls between look and wait.
    let changes = log.watch(&shard);
    stream::unfold(Some((log, changes, from)), move |state| {
        let shard = shard.clone();
        async move {
            let (log, mut changes, from) = state?;
            loop {
                if let Some(scan) = log.scan(shard.as_str(), from, ENTRIES_MAX, SCAN_BYTES_MAX) {
                    if scan.bounds.lo > from {
                        return Some((Response::Error(Error::TooFarBack { lo: scan.bounds.lo }), None));
                    }
                    if let Some(last) = scan.entries.last() {
                        let next = last.seqno.next().map(|next| (log, changes, next));
                        let watched = Response::Watched { entries: scan.entries, lsn: scan.bounds.lsn };
                        return Some((watched, next));
                    }
                }
                changes.changed().await;
            }
        }
    })
    .boxed()
}
