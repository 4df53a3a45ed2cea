use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use headwater_protocol::{Entry, Lsn, Seqno, ShardName};
use parking_lot::RwLock;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::change::Change;
use crate::shard::{Bounds, Scan, Shard, Violation};
use crate::watch::{Watch, Watches};

/// Maps among which the shards are spread, each with its own lock. Many, so that a long scan holds up few other
/// shards, and so that a map that grows moves few of them at a time.
const MAPS: usize = 256;

type Map = HashMap<ShardName, Shard, BuildHasherDefault<NameHasher>>;

/// Every shard at one position of the log.
///
/// - One thread applies changes, in the log's order. Any number of threads read meanwhile.
/// - `names` holds the names of all shards in `maps` and no others, for whoever holds its lock. Where both locks are
///   needed, that of `names` is taken first.
/// - `entries` and `data_bytes` count what is in `maps` (a change under way may not be counted yet).
///
/// The maps' locks are [`parking_lot`]'s because under those a waiting writer goes before readers that come later:
/// reads of a popular shard must not keep the one thread from applying.
pub struct ShardLog {
    maps: Box<[RwLock<Map>]>,
    names: RwLock<BTreeSet<ShardName>>,
    entries: AtomicU64,
    data_bytes: AtomicU64,
    watches: Arc<Watches>,
}

/// What a change did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Entries that it removed; 0 for an append.
    pub removed: u64,
}

impl ShardLog {
    /// A log in which no shard was ever written.
    pub fn new() -> ShardLog {
        ShardLog {
            maps: (0..MAPS).map(|_| RwLock::default()).collect(),
            names: RwLock::default(),
            entries: AtomicU64::new(0),
            data_bytes: AtomicU64::new(0),
            watches: Arc::default(),
        }
    }

    /// Applies one change whose record ends at `lsn`. To be called by one thread, in the log's order.
    ///
    /// An append's data is kept as it is: a slice of a larger buffer keeps all of that buffer in memory, so it should
    /// be an allocation of its own.
    ///
    /// Errors: the change breaks the shard's contiguity (an append that is not one past the head, a truncate that
    /// would remove the head or names a shard that was never written). Nothing changed; the caller treats the log
    /// as damaged. A never-written shard accepts any seqno: an imported log begins where it began elsewhere.
    pub fn apply(&self, change: Change, lsn: Lsn) -> Result<Applied, Violation> {
        match change {
            Change::Append { shard, seqno, data } => self.append(shard, seqno, data, lsn),
            Change::Truncate { shard, cut } => self.truncate(shard, cut, lsn),
        }
    }

    /// The shard's bounds, or none if it was never written.
    pub fn bounds(&self, shard: &str) -> Option<Bounds> {
        self.map(shard).read().get(shard).map(Shard::bounds)
    }

    /// The entry with the largest seqno and the shard's bounds at the same instant, or none if it was never written.
    pub fn head(&self, shard: &str) -> Option<(Entry, Bounds)> {
        self.map(shard).read().get(shard).map(|shard| (shard.head_entry(), shard.bounds()))
    }

    /// Entries with a seqno of at least `from` in ascending order: at most `limit` of them, and at most `bytes_max`
    /// bytes of data, except that the first is given however large it is. None if the shard was never written.
    pub fn scan(&self, shard: &str, from: Seqno, limit: u32, bytes_max: u32) -> Option<Scan> {
        self.map(shard).read().get(shard).map(|shard| shard.scan(from, limit, bytes_max))
    }

    /// Names in order: at most `limit` of those that start with `prefix` and come after `after`; and whether there
    /// are more.
    pub fn shards(&self, prefix: &str, after: Option<&str>, limit: u32) -> (Vec<ShardName>, bool) {
        let first = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let names = self.names.read();
        let mut matching = names
            .range::<str, _>((first, Bound::Unbounded))
            .take_while(|name| name.as_str().starts_with(prefix));
        let page = matching.by_ref().take(limit as usize).cloned().collect();
        (page, matching.next().is_some())
    }

    /// Shards that were ever written.
    pub fn len(&self) -> usize {
        self.names.read().len()
    }

    /// Whether no shard was ever written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries in all shards.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Bytes of data in all entries.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes.load(Ordering::Relaxed)
    }

    /// Subscribes to changes of one shard, which need not have been written yet. A reader that subscribes first and
    /// reads then misses nothing. Where nobody watches anything this costs a change one atomic load; otherwise a
    /// look-up.
    pub fn watch(&self, shard: &ShardName) -> Watch {
        self.watches.add(shard)
    }

    /// A digest of the whole state: every shard's name, lowest seqno, and entries. Equal for equal states, whatever
    /// changes led there; to compare nodes that stand at the same LSN. It visits everything, and means something only
    /// if nothing is applied meanwhile.
    pub fn digest(&self) -> u64 {
        // A sum, because it is the same in whatever order the maps give their shards.
        let digest_of = |map: &RwLock<Map>| {
            map.read().iter().fold(0u64, |sum, (name, shard)| sum.wrapping_add(shard.digest(name.as_str())))
        };
        self.maps.iter().map(digest_of).fold(0, u64::wrapping_add)
    }

    fn append(&self, name: ShardName, seqno: Seqno, data: Bytes, lsn: Lsn) -> Result<Applied, Violation> {
        let bytes = data.len() as u64;
        let mut map = self.map(name.as_str()).write();
        let watched = if let Some(shard) = map.get_mut(&name) {
            if let Err(head) = shard.append(seqno, data, lsn) {
                return Err(Violation::NotNext { shard: name, seqno, head });
            }
            let watched = self.watches.any();
            drop(map);
            watched
        } else {
            drop(map);
            self.create(&name, Shard::new(seqno, data, lsn))
        };
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.data_bytes.fetch_add(bytes, Ordering::Relaxed);
        if watched {
            self.watches.wake(&name);
        }
        Ok(Applied { removed: 0 })
    }

    /// Adds a shard, and says whether any is watched. Both locks are held together, so that no reader finds the shard
    /// and then misses its name, or the other way round.
    fn create(&self, name: &ShardName, shard: Shard) -> bool {
        let mut names = self.names.write();
        let mut map = self.map(name.as_str()).write();
        let previous = map.insert(name.clone(), shard);
        debug_assert!(previous.is_none(), "shard {name:?} was created meanwhile: two threads apply");
        names.insert(name.clone());
        self.watches.any()
    }

    fn truncate(&self, name: ShardName, cut: Seqno, lsn: Lsn) -> Result<Applied, Violation> {
        let mut map = self.map(name.as_str()).write();
        let Some(shard) = map.get_mut(&name) else {
            return Err(Violation::NeverWritten { shard: name });
        };
        // Dropped at the end, without the lock: freeing a million entries takes a while.
        let removed: VecDeque<Bytes> = match shard.truncate(cut, lsn) {
            Ok(removed) => removed,
            Err(head) => return Err(Violation::PastHead { shard: name, cut, head }),
        };
        let watched = self.watches.any();
        drop(map);
        let count = removed.len() as u64;
        self.entries.fetch_sub(count, Ordering::Relaxed);
        self.data_bytes.fetch_sub(removed.iter().map(|data| data.len() as u64).sum(), Ordering::Relaxed);
        if watched {
            self.watches.wake(&name);
        }
        Ok(Applied { removed: count })
    }

    fn map(&self, shard: &str) -> &RwLock<Map> {
        // Not the lowest bits of the hash and not the highest: the map itself goes by those.
        &self.maps[(xxh3_64(shard.as_bytes()) >> 32) as usize % MAPS]
    }
}

impl Default for ShardLog {
    fn default() -> ShardLog {
        ShardLog::new()
    }
}

/// XXH3 of a name.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // What ends a string, so that several in a row do not run together; a key is a single one.
    fn write_u8(&mut self, _end: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
