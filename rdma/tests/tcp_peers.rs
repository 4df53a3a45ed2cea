//! tcp against peers that are not what they should be, their bytes made by hand.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use common::{DEADLINE, tcp_silent, tcp_sockets, value, wait_for};
use headwater_rdma::{Access, Export, Link, LinkError, Region, Violation, Why, tcp};

const LOG: u32 = 1;
const TABLE: u32 = 2;

/// "hwrdma", version 1.
const MAGIC: u64 = 0x0100_616d_6472_7768;
const ANNOUNCEMENT_WORDS: usize = 18;

const WRITE: u64 = 1;
const RING: u64 = 2;
const READ: u64 = 3;

/// What an honest peer that exports a log of 64 words and a table of 64 words announces.
fn announcement() -> [u64; ANNOUNCEMENT_WORDS] {
    let mut words = [0; ANNOUNCEMENT_WORDS];
    words[..6].copy_from_slice(&[MAGIC, 2, u64::from(LOG) | 1 << 32, 64, u64::from(TABLE) | 2 << 32, 64]);
    words
}

fn frame(operation: u64, region: u32, at: u64, payload: &[u64]) -> Vec<u64> {
    let head = [operation | (payload.len() as u64) << 8 | u64::from(region) << 32, at];
    [&head, payload].concat()
}

fn send(mut socket: &TcpStream, words: &[u64]) {
    socket.write_all(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
}

fn receive(mut socket: &TcpStream, words: usize) -> Vec<u64> {
    let mut bytes = vec![0; 8 * words];
    socket.read_exact(&mut bytes).unwrap();
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// A link, and the peer's two sockets in the hands of the test.
struct Rigged {
    link: Arc<dyn Link>,
    log: Arc<Region>,
    table: Arc<Region>,
    /// Frames go in here, and answers come out.
    to_agent: TcpStream,
    /// The link's own frames come out here.
    from_initiator: TcpStream,
}

fn rigged(silence_max: Duration) -> Rigged {
    let (log, table) = (Region::create("log", 64).unwrap(), Region::create("table", 64).unwrap());
    let exports = vec![
        Export { id: LOG, region: log.clone(), access: Access::Write },
        Export { id: TABLE, region: table.clone(), access: Access::Read },
    ];
    let (out, from_initiator) = tcp_sockets();
    let (to_agent, agent) = tcp_sockets();
    send(&from_initiator, &announcement());
    let link = tcp::link(out, agent, exports, silence_max).unwrap();
    assert_eq!(receive(&to_agent, ANNOUNCEMENT_WORDS), announcement());
    Rigged { link, log, table, to_agent, from_initiator }
}

/// Why the link is closed.
fn why(link: &dyn Link) -> Why {
    match link.ring(LOG) {
        Err(LinkError::Closed { why }) => why,
        other => panic!("the link is not closed: {other:?}"),
    }
}

#[test]
fn frames_are_as_documented() {
    let peer = rigged(DEADLINE);
    peer.table.words()[9].store(77, Ordering::SeqCst);
    send(&peer.to_agent, &frame(WRITE, LOG, 10, &[5, 6]));
    send(&peer.to_agent, &frame(RING, LOG, 0, &[]));
    send(&peer.to_agent, &frame(READ, TABLE, 9, &[]));
    assert_eq!(receive(&peer.to_agent, 1), [77]);
    assert_eq!(peer.log.words()[10].load(Ordering::SeqCst), 5);
    assert_eq!(peer.log.words()[11].load(Ordering::SeqCst), 6);
    assert_eq!(peer.log.rings(), 1);

    peer.link.write(LOG, 10, &[5, 6]).unwrap();
    peer.link.ring(LOG).unwrap();
    let read = peer.link.read(TABLE, 9);
    let expected =
        [frame(WRITE, LOG, 10, &[5, 6]), frame(RING, LOG, 0, &[]), frame(READ, TABLE, 9, &[])].concat();
    assert_eq!(receive(&peer.from_initiator, expected.len()), expected);
    send(&peer.from_initiator, &[78]);
    assert_eq!(value(read).unwrap(), 78);
}

#[test]
fn frames_may_arrive_in_pieces() {
    let peer = rigged(DEADLINE);
    let frames = [frame(WRITE, LOG, 10, &[5, 6]), frame(READ, TABLE, 9, &[])].concat();
    for byte in frames.iter().flat_map(|word| word.to_le_bytes()) {
        (&peer.to_agent).write_all(&[byte]).unwrap();
    }
    assert_eq!(receive(&peer.to_agent, 1), [0]);
    assert_eq!(peer.log.words()[11].load(Ordering::SeqCst), 6);
}

#[test]
fn what_arrives_in_part_is_kept_until_the_rest_is_there() {
    let peer = rigged(DEADLINE);
    let to_bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    peer.table.words()[9].store(77, Ordering::SeqCst);
    let frames = to_bytes(&[frame(READ, TABLE, 8, &[]), frame(READ, TABLE, 9, &[])].concat());
    let (now, later) = frames.split_at(16 + 13);
    (&peer.to_agent).write_all(now).unwrap();
    assert_eq!(receive(&peer.to_agent, 1), [0]);
    (&peer.to_agent).write_all(later).unwrap();
    assert_eq!(receive(&peer.to_agent, 1), [77]);

    let reads = (peer.link.read(TABLE, 8), peer.link.read(TABLE, 9));
    let answers = to_bytes(&[1, 0x0203_0405_0607_0809]);
    let (now, later) = answers.split_at(8 + 5);
    (&peer.from_initiator).write_all(now).unwrap();
    assert_eq!(value(reads.0).unwrap(), 1);
    (&peer.from_initiator).write_all(later).unwrap();
    assert_eq!(value(reads.1).unwrap(), 0x0203_0405_0607_0809);
}

#[test]
fn an_agent_checks_for_itself() {
    let too_large = vec![1; 8193];
    let bad: &[(&str, Vec<u64>)] = &[
        ("past the end", frame(WRITE, LOG, 64, &[1])),
        ("across the end", frame(WRITE, LOG, 63, &[1, 1])),
        ("so far that it wraps", frame(WRITE, LOG, u64::MAX, &[1, 1])),
        ("into the bell", frame(WRITE, LOG, 7, &[1, 1])),
        ("into what may only be read", frame(WRITE, TABLE, 8, &[1])),
        ("into no region", frame(WRITE, 3, 8, &[1])),
        ("larger than any frame", frame(WRITE, LOG, 8, &too_large)),
        ("a ring where nothing may be written", frame(RING, TABLE, 0, &[])),
        ("a ring of nothing", frame(RING, 3, 0, &[])),
        ("a read of what may only be written", frame(READ, LOG, 8, &[])),
        ("a read past the end", frame(READ, TABLE, 64, &[])),
        ("a read with a payload", frame(READ, TABLE, 8, &[1])),
        ("no operation", frame(0, LOG, 8, &[1])),
        ("an operation of the future", frame(4, LOG, 8, &[1])),
    ];
    let bystander = rigged(DEADLINE);
    for (what, frame) in bad {
        let peer = rigged(DEADLINE);
        send(&peer.to_agent, frame);
        wait_for(what, || peer.link.closed());
        assert!(matches!(why(&*peer.link), Why::Violation(_)), "{what}: {}", why(&*peer.link));
        wait_for("the owner is told", || peer.log.rings() == 1 && peer.table.rings() == 1);
        for region in [&peer.log, &peer.table] {
            assert!(region.words()[1..].iter().all(|word| word.load(Ordering::SeqCst) == 0), "{what}");
        }
    }
    send(&bystander.to_agent, &frame(READ, TABLE, 8, &[]));
    assert_eq!(receive(&bystander.to_agent, 1), [0]);
    assert!(!bystander.link.closed());
}

#[test]
fn other_protocols_are_turned_away() {
    let peer = rigged(DEADLINE);
    (&peer.to_agent).write_all(b"GET / HTTP/1.1\r\nHost: headwater\r\n\r\n").unwrap();
    wait_for("the link closes", || peer.link.closed());
    assert!(matches!(why(&*peer.link), Why::Violation(Violation::Operation(b'G'))));

    for (found, greeting) in [("another magic", "GET / HTTP/1.1\r\n"), ("nothing", "")] {
        let (out, mut far) = tcp_sockets();
        let (_to_agent, agent) = tcp_sockets();
        far.write_all(greeting.as_bytes()).unwrap();
        far.write_all(&vec![b'\n'; 8 * ANNOUNCEMENT_WORDS * usize::from(!greeting.is_empty())]).unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        let error = tcp::link(out, agent, vec![], DEADLINE).err().unwrap();
        let expected = if greeting.is_empty() { ErrorKind::UnexpectedEof } else { ErrorKind::InvalidData };
        assert_eq!(error.kind(), expected, "{found}: {error}");
    }
}

#[test]
fn a_peer_that_announces_nonsense_is_turned_away() {
    let words = |change: &dyn Fn(&mut [u64])| {
        let mut words = announcement();
        change(&mut words);
        words
    };
    for (what, announced) in [
        ("too many regions", words(&|w| w[1] = 9)),
        ("no access", words(&|w| w[2] = u64::from(LOG))),
        ("unknown access", words(&|w| w[2] = u64::from(LOG) | 3 << 32)),
        ("one number twice", words(&|w| w[4] = w[2])),
        ("no room for a bell", words(&|w| w[3] = 7)),
        ("more than there is memory", words(&|w| w[3] = u64::MAX / 8)),
        ("another version", words(&|w| w[0] += 1 << 56)),
    ] {
        let (out, far) = tcp_sockets();
        let (_to_agent, agent) = tcp_sockets();
        send(&far, &announced);
        let error = tcp::link(out, agent, vec![], DEADLINE).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}: {error}");
    }
}

#[test]
fn an_answer_that_nobody_asked_for_closes_the_link() {
    let peer = rigged(DEADLINE);
    send(&peer.from_initiator, &[1]);
    wait_for("the link closes", || peer.link.closed());
    assert!(matches!(why(&*peer.link), Why::Violation(Violation::Unasked)));
}

#[test]
fn a_peer_that_dies_in_a_frame_places_nothing_of_it() {
    let peer = rigged(DEADLINE);
    let frame = frame(WRITE, LOG, 10, &[5, 6]);
    send(&peer.to_agent, &frame[..3]);
    peer.to_agent.shutdown(Shutdown::Write).unwrap();
    wait_for("the link closes", || peer.link.closed());
    assert!(matches!(why(&*peer.link), Why::PeerGone));
    assert_eq!(peer.log.words()[10].load(Ordering::SeqCst), 0);
}

/// Writes until the link fails, into a peer that reads nothing.
fn write_until_refused(link: Arc<dyn Link>) -> thread::JoinHandle<LinkError> {
    thread::spawn(move || {
        loop {
            if let Err(e) = link.write(LOG, 8, &[1; 56]) {
                return e;
            }
        }
    })
}

#[test]
fn close_frees_a_writer_that_waits_for_the_peer() {
    let peer = rigged(DEADLINE);
    let writers = [write_until_refused(peer.link.clone()), write_until_refused(peer.link.clone())];
    // Full is what the kernel says so: nothing more goes out.
    let mut unread = 0;
    let unsent = || rustix::io::ioctl_fionread(&peer.from_initiator).unwrap();
    wait_for("the connection is full", || {
        thread::park_timeout(Duration::from_millis(50));
        let before = std::mem::replace(&mut unread, unsent());
        before > 0 && before == unread
    });
    let start = Instant::now();
    peer.link.close();
    for writer in writers {
        assert!(matches!(writer.join().unwrap(), LinkError::Closed { why: Why::Here }));
    }
    assert!(start.elapsed() < DEADLINE / 2, "close did not free the writers, their deadline did");
}

#[test]
fn a_peer_that_takes_nothing_is_dead_after_a_while() {
    let silence_max = Duration::from_millis(200);
    let peer = rigged(silence_max);
    // It says something all the time, so that it is not its silence that ends the link.
    let to_agent = peer.to_agent.try_clone().unwrap();
    let chatting = thread::spawn(move || {
        let ring: Vec<u8> = frame(RING, LOG, 0, &[]).iter().flat_map(|word| word.to_le_bytes()).collect();
        while (&to_agent).write_all(&ring).is_ok() {
            thread::park_timeout(silence_max / 8);
        }
    });
    let error = write_until_refused(peer.link.clone()).join().unwrap();
    assert!(matches!(error, LinkError::Closed { why: Why::Stuck(_) }), "{error}");
    drop(peer);
    chatting.join().unwrap();
}

#[test]
fn a_silent_peer_is_dead_after_a_while() {
    let peer = rigged(Duration::from_millis(100));
    let start = Instant::now();
    wait_for("the link closes", || peer.link.closed());
    assert!(start.elapsed() >= Duration::from_millis(90));
    assert!(matches!(why(&*peer.link), Why::Silent(_)));
    wait_for("the owner is told", || peer.log.rings() == 1);
}

#[test]
fn a_peer_that_says_little_but_often_is_alive() {
    let silence_max = Duration::from_millis(400);
    let (log, other) = (Region::create("log", 64).unwrap(), Region::create("log", 64).unwrap());
    let export = |region: &Arc<Region>| Export { id: LOG, region: region.clone(), access: Access::Write };
    let (left, right) = tcp_silent(vec![export(&log)], vec![export(&other)], silence_max);
    let start = Instant::now();
    while start.elapsed() < silence_max * 2 {
        left.ring(LOG).unwrap();
        right.ring(LOG).unwrap();
        thread::park_timeout(silence_max / 8);
    }
    assert!(!left.closed() && !right.closed());
}

#[test]
fn reads_in_flight_are_bounded_and_fail_with_the_link() {
    let peer = rigged(DEADLINE);
    let reads: Vec<_> = (0..4096).map(|_| peer.link.read(TABLE, 8)).collect();
    assert!(matches!(value(peer.link.read(TABLE, 8)), Err(LinkError::TooManyReads(4096))));
    assert!(!peer.link.closed());
    peer.link.close();
    for read in reads {
        assert!(matches!(value(read), Err(LinkError::Closed { why: Why::Here })));
    }

    let peer = rigged(DEADLINE);
    let read = peer.link.read(TABLE, 8);
    peer.to_agent.shutdown(Shutdown::Write).unwrap();
    let error = value(read).unwrap_err();
    assert!(matches!(error, LinkError::Closed { why: Why::PeerGone }), "{error}");
}

#[test]
fn when_the_last_handle_is_gone_nothing_is_written_any_more() {
    for _ in 0..20 {
        let peer = rigged(DEADLINE);
        let to_agent = peer.to_agent.try_clone().unwrap();
        let writing = thread::spawn(move || {
            for n in 1.. {
                let bytes: Vec<u8> =
                    frame(WRITE, LOG, 8, &[n]).iter().flat_map(|word| word.to_le_bytes()).collect();
                if (&to_agent).write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        wait_for("writes arrive", || peer.log.words()[8].load(Ordering::SeqCst) > 100);
        drop(peer.link);
        let last = peer.log.words()[8].load(Ordering::SeqCst);
        writing.join().unwrap();
        assert_eq!(peer.log.words()[8].load(Ordering::SeqCst), last);
    }
}
