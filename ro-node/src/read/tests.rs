use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use headwater_protocol::regions::{log, region};
use headwater_protocol::replication::Applied;
use headwater_protocol::{Epoch, History, Seqno};
use headwater_rdma::{Link, LinkError, Read, Region, RegionId, Transport, Why};
use headwater_shard_log::Change;
use headwater_timestamp::{Table, Words};

use headwater_wal::Receiver;

use super::*;
use crate::apply::Applier;
use crate::intake::Intake;
use crate::upstream::lease_clock_us;

/// A link whose peer's timestamp table is here, and that counts what is read of it.
struct TableLink {
    words: Words,
    closed: AtomicBool,
}

impl Link for TableLink {
    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn write(&self, _: RegionId, _: usize, _: &[u64]) -> Result<(), LinkError> {
        Ok(())
    }

    fn ring(&self, _: RegionId) -> Result<(), LinkError> {
        Ok(())
    }

    fn write_now(&self, _: RegionId, _: usize, _: &[u64]) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn read(&self, id: RegionId, word: usize) -> Read {
        assert_eq!(id, region::TIMESTAMPS);
        if self.closed() {
            return Read::ready(Err(LinkError::Closed { why: Why::Here }));
        }
        Read::ready(Ok((*self.words).as_ref()[word].load(Ordering::SeqCst)))
    }

    fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

/// An RO beside an RW's table: what the RW stamps and what the RO applies are the test's to say.
struct Pair {
    state: Arc<State>,
    table: Table,
}

const FAR_US: u64 = 3600 * 1_000_000;

impl Pair {
    fn new(layout: Layout) -> Pair {
        let state = Arc::new(State::new(String::new()));
        let pair = Pair { table: table(&state, layout, FAR_US), state };
        pair.upstream().renew(lease_clock_us());
        pair
    }

    fn upstream(&self) -> Arc<Upstream> {
        self.state.upstream.borrow().clone().expect("attached")
    }

    fn append(&self, shard: &str, seqno: u64, lsn: u64) -> Change {
        self.table.stamp_append(shard, Seqno::new(seqno).unwrap(), Lsn::new(lsn));
        self.table.stamp_global(Lsn::new(lsn));
        let shard = ShardName::new(shard).unwrap();
        Change::Append { shard, seqno: Seqno::new(seqno).unwrap(), data: Bytes::from_static(b"x") }
    }

    fn truncate(&self, shard: &str, lo: u64, cut: u64, lsn: u64) -> Change {
        let (lo, cut) = (Seqno::new(lo).unwrap(), Seqno::new(cut).unwrap());
        self.table.stamp_truncate(shard, lo..cut, Lsn::new(lsn));
        self.table.stamp_global(Lsn::new(lsn));
        Change::Truncate { shard: ShardName::new(shard).unwrap(), cut }
    }

    fn apply(&self, change: Change, lsn: u64) {
        self.state.log.apply(change, Lsn::new(lsn)).unwrap();
        self.state.applied.advance(Lsn::new(lsn));
    }

    /// A shard with entries `0..=head`, each a record of 10 bytes from LSN 10 on, stamped and applied.
    fn written(&self, shard: &str, head: u64) {
        for seqno in 0..=head {
            let change = self.append(shard, seqno, (seqno + 1) * 10);
            self.apply(change, (seqno + 1) * 10);
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.state.timer.nanos(Instant::now()))
    }
}

/// A new RW's table, and the link to it in the RO's state.
fn table(state: &State, layout: Layout, lease_us: u64) -> Table {
    let words: Vec<std::sync::atomic::AtomicU64> = (0..layout.words()).map(|_| Default::default()).collect();
    let words: Words = Arc::new(words);
    let table = Table::new(words.clone(), layout, Epoch::new(1), Lsn::ZERO);
    let link = Arc::new(TableLink { words, closed: AtomicBool::new(false) });
    // Nothing comes in by it: what is applied is the test's to say.
    let region = Region::create("test", log::RING + 512).unwrap();
    let receiver = Receiver::new(region.clone(), log::RING, 4096, History::default(), Lsn::ZERO, 0);
    let intake = Intake::new(region, Epoch::new(1), Applier::new(receiver, Applied::default()));
    let upstream = Upstream::new(link, layout, lease_us, intake);
    state.upstream.send_replace(Some(Arc::new(upstream)));
    table
}

const LAYOUT: Layout = Layout { shard_slots: 1024, page_slots: 4096, page_entries: 4 };

fn head(shard: &str) -> Query {
    Query::Head(ShardName::new(shard).unwrap())
}

fn scan(shard: &str, from: u64, limit: u32) -> Query {
    Query::Scan(ShardName::new(shard).unwrap(), Seqno::new(from).unwrap(), limit, u32::MAX)
}

/// Polls until it is ready or has given way a few times and is waiting for something else.
async fn settle(read: &mut std::pin::Pin<&mut impl Future<Output = Response>>) -> Poll<Response> {
    for _ in 0..8 {
        if let Poll::Ready(response) = read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Poll::Ready(response);
        }
        tokio::task::yield_now().await;
    }
    Poll::Pending
}

fn served(response: &Response) -> Served {
    match response {
        Response::Head { reflects, .. }
        | Response::Scan { reflects, .. }
        | Response::Shards { reflects, .. } => reflects.served,
        other => panic!("not a read's answer: {other:?}"),
    }
}

fn seqnos(response: &Response) -> Vec<u64> {
    let Response::Scan { entries, .. } = response else { panic!("not a scan's answer: {response:?}") };
    entries.iter().map(|entry| entry.seqno.get()).collect()
}

#[tokio::test]
async fn r3_the_first_level_that_suffices_serves() {
    let pair = Pair::new(LAYOUT);
    pair.written("a", 9);
    let now = pair.now();
    assert_eq!(served(&pair.state.strong(&head("a"), now).await), Served::FetchedGlobal);
    assert_eq!(served(&pair.state.strong(&head("a"), now).await), Served::ReusedGlobal);

    // Another shard is written and not applied here: the global timestamp no longer suffices, the shard's does.
    let _ = pair.append("b", 0, 200);
    assert_eq!(served(&pair.state.strong(&head("a"), pair.now()).await), Served::Shard);

    // The shard itself is written, in a page that this scan cannot touch.
    let _ = pair.append("a", 10, 300);
    let response = pair.state.strong(&scan("a", 0, 3), pair.now()).await;
    assert_eq!((served(&response), seqnos(&response)), (Served::Page, vec![0, 1, 2]));

    // What it does touch is waited for: and only the least of it.
    let query = head("a");
    let mut read = pin!(pair.state.strong(&query, pair.now()));
    assert!(settle(&mut read).await.is_pending());
    let change = pair.append("b", 0, 200);
    pair.apply(change, 200);
    assert!(settle(&mut read).await.is_pending());
    let change = pair.append("a", 10, 300);
    let _ = pair.append("b", 1, 400);
    pair.apply(change, 300);
    let Poll::Ready(response) = settle(&mut read).await else { panic!("it waits for what it does not need") };
    assert_eq!(served(&response), Served::Waited);
}

#[test]
fn r3_a_read_that_need_not_wait_does_not() {
    let pair = Pair::new(LAYOUT);
    pair.written("a", 3);
    let at_once = |arrival| pair.state.strong_at_once(&head("a"), arrival).as_ref().map(served);
    let now = pair.now();
    assert_eq!(at_once(now), Some(Served::FetchedGlobal));
    assert_eq!(at_once(now), Some(Served::ReusedGlobal));
    // Anything that is not applied here is for the other levels, which may wait.
    let appended = pair.append("b", 0, 200);
    assert_eq!(at_once(pair.now()), None);
    pair.apply(appended, 200);
    assert!(at_once(pair.now()).is_some());
    pair.upstream().link.close();
    assert_eq!(at_once(pair.now()), None);
}

#[tokio::test]
async fn r3_pages_that_a_moved_range_newly_touches_are_checked() {
    let pair = Pair::new(LAYOUT);
    pair.written("a", 19);
    // Both truncates are acknowledged before the read arrives; the RO has applied neither.
    let first = pair.truncate("a", 0, 4, 300);
    let second = pair.truncate("a", 4, 8, 400);
    let query = scan("a", 0, 2);
    let mut read = pin!(pair.state.strong(&query, pair.now()));
    assert!(settle(&mut read).await.is_pending());
    // The page that it touched at first is now as fresh as it must be; but the range has moved to the next one.
    pair.apply(first, 300);
    assert!(settle(&mut read).await.is_pending(), "a scan answered from a range that was never checked");
    pair.apply(second, 400);
    let Poll::Ready(response) = settle(&mut read).await else { panic!("everything is applied") };
    assert_eq!(seqnos(&response), [8, 9]);
}

#[tokio::test]
async fn r3_a_scan_past_the_head_waits_for_the_next_append() {
    let pair = Pair::new(LAYOUT);
    pair.written("a", 2);
    let appended = pair.append("a", 3, 300);
    let query = scan("a", 3, 10);
    let mut read = pin!(pair.state.strong(&query, pair.now()));
    assert!(settle(&mut read).await.is_pending());
    pair.apply(appended, 300);
    let Poll::Ready(response) = settle(&mut read).await else { panic!("everything is applied") };
    assert_eq!(seqnos(&response), [3]);
}

#[tokio::test]
async fn r3_a_shard_never_written_here_is_waited_for() {
    let pair = Pair::new(LAYOUT);
    pair.written("a", 0);
    let appended = pair.append("new", 7, 100);
    let query = head("new");
    let mut read = pin!(pair.state.strong(&query, pair.now()));
    assert!(settle(&mut read).await.is_pending());
    pair.apply(appended, 100);
    assert!(settle(&mut read).await.is_ready());
}

#[tokio::test]
async fn r4_one_slot_for_everything_is_still_right() {
    let pair = Pair::new(Layout { shard_slots: 1, page_slots: 1, page_entries: 1 });
    pair.written("a", 3);
    // Everything collides: a read of `a` waits for `b`, and is served when that is applied.
    let appended = pair.append("b", 0, 100);
    let query = scan("a", 0, 1);
    let mut read = pin!(pair.state.strong(&query, pair.now()));
    assert!(settle(&mut read).await.is_pending());
    pair.apply(appended, 100);
    assert!(settle(&mut read).await.is_ready());
}

#[tokio::test]
async fn r6_a_lease_that_ran_out_gives_no_strong_read() {
    let pair = Pair::new(LAYOUT);
    pair.written("a", 0);
    // A new link whose lease lasts no time at all.
    let table = table(&pair.state, LAYOUT, 1);
    table.stamp_global(Lsn::new(5));
    pair.upstream().renew(lease_clock_us().saturating_sub(1000));
    let query = head("a");
    let mut read = pin!(pair.state.strong(&query, pair.now()));
    assert!(settle(&mut read).await.is_pending(), "the lease had run out");
    // What the RW gives back renews it.
    pair.upstream().renew(lease_clock_us() + FAR_US);
    assert!(settle(&mut read).await.is_ready());
}

#[tokio::test]
async fn r6_nothing_fetched_under_an_earlier_epoch_is_used() {
    let pair = Pair::new(LAYOUT);
    pair.written("a", 0);
    let arrival = pair.now();
    assert_eq!(served(&pair.state.strong(&head("a"), arrival).await), Served::FetchedGlobal);
    // The RW comes back with more in its log than the old table said.
    pair.upstream().link.close();
    let query = head("a");
    let mut read = pin!(pair.state.strong(&query, arrival));
    let table = table(&pair.state, LAYOUT, FAR_US);
    table.stamp_global(Lsn::new(1000));
    table.stamp_append("a", Seqno::ZERO, Lsn::new(1000));
    pair.upstream().renew(lease_clock_us());
    assert!(settle(&mut read).await.is_pending(), "answered by a timestamp of the epoch before");
    pair.state.applied.advance(Lsn::new(1000));
    assert!(settle(&mut read).await.is_ready());
}
