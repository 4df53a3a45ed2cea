//! What every transport promises: one body of tests, run for each.

#![allow(clippy::unwrap_used)]

mod common;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Instant;

use common::{Connect, DEADLINE, value, wait_for};
use headwater_rdma::{Access, BELL_WORDS, Export, Link, LinkError, Post, Region, Transport, Why};

/// The region that a peer may write.
const LOG: u32 = 1;
/// The region that a peer may read.
const TABLE: u32 = 2;

fn log(words: usize) -> Export {
    Export { id: LOG, region: Region::create("log", words).unwrap(), access: Access::Write }
}

fn table(words: usize) -> Export {
    Export { id: TABLE, region: Region::create("table", words).unwrap(), access: Access::Read }
}

fn writes_arrive_where_they_are_posted(connect: Connect) {
    let log = log(64);
    let (_owner, writer) = connect(vec![log.clone()], vec![]);
    writer.write(LOG, BELL_WORDS, &[1, 2, 3]).unwrap();
    writer.write(LOG, 63, &[u64::MAX]).unwrap();
    writer.write(LOG, BELL_WORDS + 1, &[]).unwrap();
    let word = |i: usize| log.region.words()[i].load(Ordering::Acquire);
    wait_for("the last write", || word(63) == u64::MAX);
    let mut expected = [0; 64];
    expected[BELL_WORDS..BELL_WORDS + 3].copy_from_slice(&[1, 2, 3]);
    expected[63] = u64::MAX;
    assert_eq!((0..64).map(word).collect::<Vec<_>>(), expected);
}

fn writes_become_visible_in_the_order_posted(connect: Connect) {
    const WRITES: u64 = 100_000;
    let (counter, data) = (BELL_WORDS, 64);
    let log = log(128);
    let (_owner, writer) = connect(vec![log.clone()], vec![]);
    let writing = thread::spawn(move || {
        for i in 1..=WRITES {
            writer.write(LOG, data, &[i; 4]).unwrap();
            writer.write(LOG, counter, &[i]).unwrap();
        }
        writer
    });
    let words = log.region.words();
    let mut seen = 0;
    while seen < WRITES {
        seen = words[counter].load(Ordering::Acquire);
        for word in &words[data..data + 4] {
            let found = word.load(Ordering::Relaxed);
            assert!(found >= seen, "the count says {seen}, the data before it {found}");
        }
        thread::yield_now();
    }
    drop(writing.join().unwrap());
}

fn a_write_larger_than_a_frame_is_one_write(connect: Connect) {
    let words = 300_000;
    let log = log(BELL_WORDS + words + 1);
    let (_owner, writer) = connect(vec![log.clone()], vec![]);
    let data: Vec<u64> = (1..=words as u64).collect();
    writer.write(LOG, BELL_WORDS, &data).unwrap();
    writer.write(LOG, BELL_WORDS + words, &[7]).unwrap();
    let placed = &log.region.words()[BELL_WORDS..];
    wait_for("the write after it", || placed[words].load(Ordering::Acquire) == 7);
    assert!(placed.iter().zip(&data).all(|(word, expected)| word.load(Ordering::Relaxed) == *expected));
}

fn what_is_posted_together_is_done_in_that_order(connect: Connect) {
    const ROUNDS: u64 = 500;
    let sizes = [1, 3, 1000, 1024, 1025, 9000];
    let most = sizes[sizes.len() - 1];
    let log = log(16 + most);
    let (owner, writer) = connect(vec![log.clone()], vec![]);
    let writing = thread::spawn(move || {
        for round in 1..=ROUNDS {
            let data = vec![round; sizes[round as usize % sizes.len()]];
            let write = |at_word, words| Post::Write { region: LOG, at_word, words };
            // The last word first, then the rest, then what says that all is there.
            let last = [round];
            let posts = [
                write(16 + data.len() - 1, &last),
                write(16, &data[1..]),
                write(BELL_WORDS, &[]),
                write(BELL_WORDS, &last),
                Post::Ring { region: LOG },
            ];
            writer.post(&posts).unwrap();
        }
        writer
    });
    let words = log.region.words();
    let mut seen = 0;
    while seen < ROUNDS {
        let rings = log.region.rings();
        seen = words[BELL_WORDS].load(Ordering::Acquire);
        let size = sizes[seen as usize % sizes.len()];
        for word in &words[16..16 + if seen == 0 { 0 } else { size }] {
            let found = word.load(Ordering::Relaxed);
            assert!(found >= seen, "round {seen} is there, and a word of round {found}");
        }
        if seen < ROUNDS && words[BELL_WORDS].load(Ordering::Acquire) == seen {
            // Its own ring ends every wait.
            log.region.sleep(rings, DEADLINE);
        }
    }
    let writer = writing.join().unwrap();
    let posts = [Post::Ring { region: LOG }, Post::Write { region: 3, at_word: 8, words: &[1] }];
    assert!(matches!(writer.post(&posts), Err(LinkError::NoSuchRegion { region: 3 })));
    assert!(!writer.closed() && !owner.closed());
}

fn a_write_now_is_a_write_and_a_ring_or_nothing(connect: Connect) {
    let log = log(64);
    let (_owner, writer) = connect(vec![log.clone()], vec![]);
    let mut done = 0;
    for i in 1..=1_000 {
        if writer.write_now(LOG, 8, &[i]).unwrap() {
            done = i;
        }
    }
    assert_eq!(done == 0, writer.transport() == Transport::Tcp, "tcp never can, others can at times");
    wait_for("the last write", || log.region.words()[8].load(Ordering::Acquire) == done);
    wait_for("a ring", || (log.region.rings() > 0) == (done > 0));

    assert!(matches!(writer.write_now(LOG, 63, &[1, 1]), Err(LinkError::OutOfBounds { .. })));
    assert!(matches!(writer.write_now(3, 8, &[1]), Err(LinkError::NoSuchRegion { .. })));
    writer.close();
    assert!(matches!(writer.write_now(LOG, 8, &[1]), Err(LinkError::Closed { why: Why::Here })));
}

fn reads_return_what_is_there(connect: Connect) {
    let table = table(64);
    let (_owner, reader) = connect(vec![table.clone()], vec![]);
    for i in 0..2_000 {
        table.region.words()[63].store(i, Ordering::SeqCst);
        assert_eq!(value(reader.read(TABLE, 63)).unwrap(), i);
    }
}

fn reads_in_flight_get_each_its_own_answer(connect: Connect) {
    let table = table(1032);
    for (i, word) in table.region.words().iter().enumerate().skip(BELL_WORDS) {
        word.store(i as u64, Ordering::SeqCst);
    }
    let (_owner, reader) = connect(vec![table.clone()], vec![]);
    let mut reads: Vec<_> = (BELL_WORDS..1032).map(|i| (i, reader.read(TABLE, i))).collect();
    // Who loses interest in a read must not shift the answers of the others.
    let mut i = 0;
    reads.retain(|_| {
        i += 1;
        i % 3 != 0
    });
    for (i, read) in reads {
        assert_eq!(value(read).unwrap(), i as u64);
    }
}

fn both_sides_reach_each_other(connect: Connect) {
    let (log, table) = (log(64), table(64));
    let (table_owner, log_owner) = connect(vec![table.clone()], vec![log.clone()]);
    table.region.words()[9].store(5, Ordering::SeqCst);
    table_owner.write(LOG, 9, &[6]).unwrap();
    assert_eq!(value(log_owner.read(TABLE, 9)).unwrap(), 5);
    wait_for("the write", || log.region.words()[9].load(Ordering::Acquire) == 6);
}

fn what_was_not_exported_is_refused_and_nothing_happens(connect: Connect) {
    let (log, table) = (log(64), table(64));
    let (_owner, peer) = connect(vec![log.clone(), table.clone()], vec![]);
    let out_of_bounds = |result| matches!(result, Err(LinkError::OutOfBounds { .. }));
    assert!(out_of_bounds(peer.write(LOG, 64, &[1])));
    assert!(out_of_bounds(peer.write(LOG, 63, &[1, 1])));
    assert!(out_of_bounds(peer.write(LOG, usize::MAX, &[1, 1])));
    assert!(out_of_bounds(peer.write(LOG, BELL_WORDS - 1, &[1, 1])), "the bell is not to be written");
    assert!(out_of_bounds(value(peer.read(TABLE, 64)).map(drop)));

    let not_allowed = |result| matches!(result, Err(LinkError::NotAllowed { .. }));
    assert!(not_allowed(peer.write(TABLE, 8, &[1])));
    assert!(not_allowed(peer.ring(TABLE)));
    assert!(not_allowed(value(peer.read(LOG, 8)).map(drop)));

    let no_such = |result| matches!(result, Err(LinkError::NoSuchRegion { region: 3 }));
    assert!(no_such(peer.write(3, 8, &[1])));
    assert!(no_such(peer.ring(3)));
    assert!(no_such(value(peer.read(3, 8)).map(drop)));

    assert_eq!(value(peer.read(TABLE, 8)).unwrap(), 0);
    assert!(!peer.closed());
    for region in [&log.region, &table.region] {
        assert!(region.words().iter().all(|word| word.load(Ordering::SeqCst) == 0));
    }
}

fn a_ring_wakes_the_sleeper_after_the_writes_before_it(connect: Connect) {
    let log = log(64);
    let (_owner, writer) = connect(vec![log.clone()], vec![]);
    let region = log.region.clone();
    let sleeper = thread::spawn(move || {
        loop {
            let seen = region.rings();
            if region.words()[8].load(Ordering::Acquire) == 1 {
                return region.rings();
            }
            let start = Instant::now();
            region.sleep(seen, DEADLINE);
            assert!(start.elapsed() < DEADLINE, "nobody woke the sleeper");
        }
    });
    wait_for("the sleeper", || log.region.words()[1].load(Ordering::SeqCst) == 1);
    writer.write(LOG, 8, &[1]).unwrap();
    writer.ring(LOG).unwrap();
    assert!(sleeper.join().unwrap() <= 1);
    wait_for("the sleeper signs off", || log.region.words()[1].load(Ordering::SeqCst) == 0);
}

/// Two owners that ring each other in turn. One lost wake-up, and somebody sleeps until the deadline.
fn no_wake_up_is_lost(connect: Connect) {
    let (left_log, right_log) = (log(64), log(64));
    let (left, right) = connect(vec![left_log.clone()], vec![right_log.clone()]);
    // soft-RoCE in an emulated machine takes milliseconds for each.
    let rounds = if left.transport() == Transport::Verbs { 2_000 } else { 50_000 };
    let play = |own: Arc<Region>, peer: Arc<dyn Link>, serves: bool| {
        move || {
            for round in 1..=rounds {
                if serves {
                    peer.write(LOG, 8, &[round]).unwrap();
                    peer.ring(LOG).unwrap();
                }
                loop {
                    let seen = own.rings();
                    if own.words()[8].load(Ordering::Acquire) == round {
                        break;
                    }
                    let start = Instant::now();
                    own.sleep(seen, DEADLINE);
                    assert!(start.elapsed() < DEADLINE / 2, "round {round}: a wake-up was lost");
                }
                if !serves {
                    peer.write(LOG, 8, &[round]).unwrap();
                    peer.ring(LOG).unwrap();
                }
            }
            peer
        }
    };
    let server = thread::spawn(play(left_log.region, left, true));
    let other = thread::spawn(play(right_log.region, right, false));
    // Both links live until both are done.
    let _links = (server.join().unwrap(), other.join().unwrap());
}

/// Sleeps on `region` until `link` is closed.
fn sleep_until_closed(region: &Region, link: &dyn Link) {
    loop {
        let seen = region.rings();
        if link.closed() {
            return;
        }
        let start = Instant::now();
        region.sleep(seen, DEADLINE);
        assert!(start.elapsed() < DEADLINE, "the link died, and the sleeper was not told");
    }
}

fn the_end_of_a_peer_wakes_the_sleeping_owner(connect: Connect) {
    let log = log(64);
    let (owner, peer) = connect(vec![log.clone()], vec![]);
    let sleeper = {
        let (log, owner) = (log.region.clone(), owner.clone());
        thread::spawn(move || sleep_until_closed(&log, &*owner))
    };
    wait_for("the sleeper", || log.region.words()[1].load(Ordering::SeqCst) == 1);
    drop(peer);
    sleeper.join().unwrap();
    assert!(matches!(owner.write(LOG, 8, &[1]), Err(LinkError::Closed { why: Why::PeerGone })));
}

fn close_wakes_the_sleeping_owner(connect: Connect) {
    let log = log(64);
    let (owner, peer) = connect(vec![log.clone()], vec![]);
    let sleeper = {
        let (log, owner) = (log.region.clone(), owner.clone());
        thread::spawn(move || sleep_until_closed(&log, &*owner))
    };
    wait_for("the sleeper", || log.region.words()[1].load(Ordering::SeqCst) == 1);
    owner.close();
    sleeper.join().unwrap();
    wait_for("the peer hears of it", || peer.closed());
}

fn after_close_all_is_refused(connect: Connect) {
    let (log, table) = (log(64), table(64));
    let (_owner, peer) = connect(vec![log.clone(), table], vec![]);
    peer.close();
    peer.close();
    let closed = |result| matches!(result, Err(LinkError::Closed { why: Why::Here }));
    assert!(peer.closed());
    assert!(closed(peer.write(LOG, 8, &[1])));
    assert!(closed(peer.ring(LOG)));
    assert!(closed(value(peer.read(TABLE, 8)).map(drop)));
    assert_eq!(log.region.words()[8].load(Ordering::SeqCst), 0);
}

fn many_links_at_once(connect: Connect) {
    let links = 16;
    let start = Arc::new(Barrier::new(links));
    let pairs: Vec<_> = (0..links)
        .map(|i| {
            let start = start.clone();
            thread::spawn(move || {
                let (log, table) = (log(64), table(64));
                let (owner, peer) = connect(vec![log.clone(), table.clone()], vec![]);
                start.wait();
                for n in 1..=200 {
                    peer.write(LOG, 8, &[n + i as u64]).unwrap();
                    table.region.words()[8].store(n, Ordering::SeqCst);
                    assert_eq!(value(peer.read(TABLE, 8)).unwrap(), n);
                }
                // The read was posted after the write.
                assert_eq!(log.region.words()[8].load(Ordering::Acquire), 200 + i as u64);
                (owner, peer)
            })
        })
        .collect();
    for pair in pairs {
        let (owner, peer) = pair.join().unwrap();
        assert!(!owner.closed() && !peer.closed());
    }
}

fn threads_may_share_a_link(connect: Connect) {
    let (threads, writes) = (4, 5_000);
    let (log, table) = (log(64), table(64));
    let (_owner, peer) = connect(vec![log.clone(), table], vec![]);
    let posting: Vec<_> = (0..threads)
        .map(|t| {
            let peer = peer.clone();
            thread::spawn(move || {
                for n in 1..=writes {
                    peer.write(LOG, 8 + 8 * t, &[n; 8]).unwrap();
                }
                assert_eq!(value(peer.read(TABLE, 8)).unwrap(), 0);
            })
        })
        .collect();
    posting.into_iter().for_each(|thread| thread.join().unwrap());
    let words = &log.region.words()[8..8 + 8 * threads];
    assert!(words.iter().all(|word| word.load(Ordering::Acquire) == writes));
}

/// A waker that holds a link's last handle, as a task does that is dropped when it is woken.
struct LastHandle(Mutex<Option<Arc<dyn Link>>>, AtomicUsize);

impl Wake for LastHandle {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

fn the_last_handle_may_go_where_a_read_is_answered(connect: Connect) {
    let table = table(64);
    let (_owner, reader) = connect(vec![table], vec![]);
    let mut read = std::pin::pin!(reader.read(TABLE, 8));
    let last = Arc::new(LastHandle(Mutex::new(None), AtomicUsize::new(0)));
    // Locked, so that a thread of the link's that is quick to wake us waits until the handle is there.
    let mut held = last.0.lock().unwrap();
    let pending = read.as_mut().poll(&mut Context::from_waker(&Waker::from(last.clone()))).is_pending();
    *held = Some(reader);
    drop(held);
    if pending {
        wait_for("the waker", || last.1.load(Ordering::SeqCst) == 1);
        assert!(matches!(read.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(0))));
    }
}

/// Every test, once for each transport.
macro_rules! conformance {
    ($($test:ident)*) => {
        mod tcp {
            $(#[test] fn $test() { super::$test(super::common::tcp); })*
        }
        mod shm {
            $(#[test] fn $test() { super::$test(super::common::shm); })*
        }
        #[cfg(feature = "verbs")]
        mod verbs {
            $(
                #[test]
                #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
                fn $test() { super::$test(super::common::verbs); }
            )*
        }
    };
}

conformance! {
    writes_arrive_where_they_are_posted
    writes_become_visible_in_the_order_posted
    a_write_larger_than_a_frame_is_one_write
    what_is_posted_together_is_done_in_that_order
    a_write_now_is_a_write_and_a_ring_or_nothing
    reads_return_what_is_there
    reads_in_flight_get_each_its_own_answer
    both_sides_reach_each_other
    what_was_not_exported_is_refused_and_nothing_happens
    a_ring_wakes_the_sleeper_after_the_writes_before_it
    no_wake_up_is_lost
    the_end_of_a_peer_wakes_the_sleeping_owner
    close_wakes_the_sleeping_owner
    after_close_all_is_refused
    many_links_at_once
    threads_may_share_a_link
    the_last_handle_may_go_where_a_read_is_answered
}

#[test]
fn a_link_says_what_carries_it() {
    let (left, _right) = common::tcp(vec![], vec![]);
    assert_eq!((left.transport(), left.transport().to_string().as_str()), (Transport::Tcp, "tcp"));
    let (left, _right) = common::shm(vec![], vec![]);
    assert_eq!((left.transport(), left.transport().to_string().as_str()), (Transport::Shm, "shm"));
}
