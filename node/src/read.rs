use headwater_protocol::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, SHARDS_NAMES_MAX};
use headwater_protocol::request::Request;
use headwater_protocol::response::{Reflects, Response};
use headwater_protocol::{Consistency, Lsn, Seqno, Served, ShardName};
use headwater_shard_log::{Bounds, ShardLog};

/// What a read asks for, its limits brought within the protocol's.
#[derive(Clone, Debug)]
pub enum Query {
    /// The head of a shard.
    Head(ShardName),
    /// Entries of a shard: from, entries at most, bytes at most.
    Scan(ShardName, Seqno, u32, u32),
    /// Names: prefix, after, names at most.
    Shards(String, String, u32),
}

impl Query {
    /// The read that a request is and how fresh it must be, or the request given back if it is none.
    pub fn of(request: Request) -> Result<(Query, Consistency), Request> {
        Ok(match request {
            Request::Head { shard, consistency } => (Query::Head(shard), consistency),
            Request::Scan { shard, from, limit, bytes_max, consistency } => {
                let (limit, bytes_max) = (limit.min(SCAN_ENTRIES_MAX), bytes_max.min(SCAN_BYTES_MAX));
                (Query::Scan(shard, from, limit, bytes_max), consistency)
            }
            Request::Shards { prefix, after, limit, consistency } => {
                (Query::Shards(prefix, after, limit.min(SHARDS_NAMES_MAX)), consistency)
            }
            other => return Err(other),
        })
    }

    /// The shard that is read, if it is one.
    pub fn shard(&self) -> Option<&ShardName> {
        match self {
            Query::Head(shard) | Query::Scan(shard, ..) => Some(shard),
            Query::Shards(..) => None,
        }
    }

    /// Answers from `log` as it is now, and gives the shard's bounds in the very state that was read. `position` was
    /// read before: every record up to it is in the log.
    pub fn answer(&self, log: &ShardLog, position: Lsn, served: Served) -> (Response, Option<Bounds>) {
        // A shard may be ahead of the position, which moves after it; what was seen is then reflected too.
        let reflects = |bounds: Option<&Bounds>| Reflects {
            lsn: bounds.map_or(position, |bounds| bounds.lsn.max(position)),
            served,
        };
        match self {
            Query::Head(shard) => {
                let (entry, bounds) = log.head(shard.as_str()).unzip();
                (Response::Head { entry, reflects: reflects(bounds.as_ref()) }, bounds)
            }
            Query::Scan(shard, from, limit, bytes_max) => {
                match log.scan(shard.as_str(), *from, *limit, *bytes_max) {
                    Some(scan) => {
                        let reflects = reflects(Some(&scan.bounds));
                        (
                            Response::Scan { entries: scan.entries, more: scan.more, reflects },
                            Some(scan.bounds),
                        )
                    }
                    None => {
                        let reflects = reflects(None);
                        (Response::Scan { entries: Vec::new(), more: false, reflects }, None)
                    }
                }
            }
            Query::Shards(prefix, after, limit) => {
                let after = (!after.is_empty()).then_some(after.as_str());
                let (names, more) = log.shards(prefix, after, *limit);
                (Response::Shards { names, more, reflects: reflects(None) }, None)
            }
        }
    }
}
