//! verbs: what no other transport has. All but the first need two RDMA devices, whose addresses RDMA_ADDRESSES gives.

#![cfg(feature = "verbs")]
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{DEADLINE, tcp_sockets, value, verbs_addresses, wait_for};
use headwater_rdma::verbs::{self, Listener, Side, TOKEN_BYTES, Unavailable};
use headwater_rdma::{Access, BELL_WORDS, Export, Link, LinkError, Region, Why};
use rustix::process::{Pid, Signal, kill_process};

const LOG: u32 = 1;
const TABLE: u32 = 2;
const DATA: usize = BELL_WORDS;
const TOKEN: [u8; TOKEN_BYTES] = [9; TOKEN_BYTES];

/// More rings than a link has receives.
const RINGS: u64 = 500;

fn export(id: u32, words: usize, access: Access) -> Export {
    Export { id, region: Region::create("leak", words).unwrap(), access }
}

fn word(region: &Region, word: usize) -> u64 {
    region.words()[word].load(Ordering::Acquire)
}

/// Why the link is closed.
fn why(link: &dyn Link) -> Why {
    match link.ring(LOG) {
        Err(LinkError::Closed { why }) => why,
        other => panic!("the link is not closed: {other:?}"),
    }
}

#[test]
fn where_there_is_no_rdma_it_says_so() {
    match verbs::devices() {
        Ok(devices) => assert!(devices.iter().any(|device| device.ports.iter().any(|port| port.active))),
        Err(unavailable) => {
            assert!(!matches!(unavailable, Unavailable::NoSuchDevice(_)), "{unavailable}");
            let error = Listener::bind("127.0.0.1:0".parse().unwrap()).err().unwrap();
            assert!(matches!(error, LinkError::Io { .. }), "{error}");
            let error = verbs::route("127.0.0.1:1".parse().unwrap(), None, DEADLINE).err().unwrap();
            assert!(matches!(error, LinkError::Io { .. }), "{error}");
        }
    }
}

mod needs_devices {
    use super::*;

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn devices_are_found_by_name_and_address() {
        let devices = verbs::devices().unwrap();
        for address in verbs_addresses() {
            let device = devices
                .iter()
                .find(|device| device.ports[0].gids.iter().any(|gid| gid.ip() == Some(address)))
                .expect("the device that has the address");
            let port = &device.ports[0];
            assert!(port.active && !port.infiniband && port.number == 1 && port.mtu >= 256, "{device:?}");
            assert!(port.gids.iter().any(|gid| gid.to_string() == format!("{address} (RoCE v2)")));
            let found = verbs::address_of(&device.name).unwrap();
            assert!(port.gids.iter().any(|gid| gid.ip() == Some(found)));
        }
        assert!(matches!(verbs::address_of("no-such"), Err(Unavailable::NoSuchDevice(_))));
    }

    /// The address of the other family that the device of `address` has.
    fn other_family(address: IpAddr) -> IpAddr {
        let devices = verbs::devices().unwrap();
        let mut ports = devices.iter().flat_map(|device| &device.ports);
        let ips = |port: &verbs::Port| port.gids.iter().filter_map(|gid| gid.ip()).collect::<Vec<_>>();
        let ips = ips(ports.find(|port| ips(port).contains(&address)).unwrap());
        let is_of_use = |ip: &IpAddr| match ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        ips.into_iter().filter(is_of_use).find(|ip| ip.is_ipv4() != address.is_ipv4()).unwrap()
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn links_go_by_ipv4_and_ipv6() {
        let [near, far] = verbs_addresses();
        for (near, far) in [(near, far), (other_family(near), other_family(far))] {
            let (log, table) = (export(LOG, 64, Access::Write), export(TABLE, 64, Access::Read));
            table.region.words()[9].store(5, Ordering::SeqCst);
            let (owner, peer) = common::verbs_between(near, far, vec![log.clone(), table], vec![]);
            peer.write(LOG, DATA, &[7]).unwrap();
            assert_eq!(value(peer.read(TABLE, 9)).unwrap(), 5);
            wait_for("the write", || word(&log.region, DATA) == 7);
            drop(owner);
        }
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn who_is_turned_down_hears_of_it() {
        let [near, far] = verbs_addresses();
        let listener = Listener::bind((far, 0).into()).unwrap();
        let address = listener.address().unwrap();
        assert_eq!(address.ip(), far);
        let route = verbs::route(address, Some(near), DEADLINE).unwrap();
        let (stream, _far) = tcp_sockets();
        let asking = thread::spawn(move || {
            let start = Instant::now();
            (
                verbs::link(Side::Connecting(route, TOKEN), stream, vec![], DEADLINE).err().unwrap(),
                start.elapsed(),
            )
        });
        let request = listener.accept().unwrap().unwrap();
        assert_eq!(request.token, TOKEN);
        drop(request);
        let (error, took) = asking.join().unwrap();
        refused(error);
        assert!(took < DEADLINE / 2);

        // Nobody listens there any more.
        drop(listener);
        let route = verbs::route(address, Some(near), DEADLINE).unwrap();
        let (stream, _far) = tcp_sockets();
        refused(verbs::link(Side::Connecting(route, TOKEN), stream, vec![], DEADLINE).err().unwrap());

        // No device leads there.
        let error = verbs::route("127.0.0.1:1".parse().unwrap(), None, DEADLINE).err().unwrap();
        assert!(matches!(error, LinkError::Io { .. }), "{error}");
    }

    fn refused(error: LinkError) {
        let LinkError::Io { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), ErrorKind::ConnectionRefused, "{error}");
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn a_host_that_is_not_there_is_not_waited_for() {
        let [near, _] = verbs_addresses();
        let nobody: IpAddr = match near {
            IpAddr::V4(ip) => IpAddr::from([ip.octets()[0], ip.octets()[1], ip.octets()[2], 77]),
            IpAddr::V6(ip) => {
                let mut segments = ip.segments();
                segments[7] = 77;
                IpAddr::from(segments)
            }
        };
        let start = Instant::now();
        let error = verbs::route((nobody, 1).into(), Some(near), Duration::from_secs(2)).err().unwrap();
        assert!(matches!(error, LinkError::Io { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(4), "it took {:?}", start.elapsed());
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn a_peer_that_does_not_go_on_is_not_waited_for() {
        let [near, far] = verbs_addresses();
        let timeout = Duration::from_millis(300);
        let listener = Listener::bind((far, 0).into()).unwrap();
        let connect = || verbs::route(listener.address().unwrap(), Some(near), DEADLINE).unwrap();

        // It takes no decision.
        let (stream, _far) = tcp_sockets();
        let error = verbs::link(Side::Connecting(connect(), TOKEN), stream, vec![], timeout).err().unwrap();
        let LinkError::Io { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), ErrorKind::TimedOut, "{error}");
        let request = listener.accept().unwrap().unwrap();

        // It goes away.
        let (stream, gone) = tcp_sockets();
        let asking = thread::spawn(move || verbs::link(Side::Accepting(request), stream, vec![], DEADLINE));
        drop(gone);
        let start = Instant::now();
        assert!(asking.join().unwrap().is_err());
        assert!(start.elapsed() < DEADLINE / 2);
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn undecided_requests_are_bounded() {
        let [near, far] = verbs_addresses();
        let listener = Listener::bind((far, 0).into()).unwrap();
        let address = listener.address().unwrap();
        let ask = || {
            let (stream, far) = tcp_sockets();
            let route = verbs::route(address, Some(near), DEADLINE).unwrap();
            let asking = thread::spawn(move || {
                verbs::link(Side::Connecting(route, TOKEN), stream, vec![], DEADLINE).map(drop).unwrap_err()
            });
            (asking, far)
        };
        let asked: Vec<_> = (0..16)
            .map(|_| {
                let asking = ask();
                (listener.accept().unwrap().unwrap(), asking)
            })
            .collect();
        // One more, while somebody goes on accepting.
        thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().unwrap().is_none());
            let (asking, _far) = ask();
            refused(asking.join().unwrap());
            listener.stop();
            assert!(accepting.join().unwrap(), "a request came that was one too many");
        });
        assert!(listener.accept().unwrap().is_none(), "stopped once is stopped for ever");
        for (request, (asking, _far)) in asked {
            drop(request);
            refused(asking.join().unwrap());
        }
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn a_region_holds_what_was_written_however_often_it_wraps() {
        const WORDS: usize = 40_000;
        let log = export(LOG, WORDS, Access::Write);
        let (_owner, writer) = common::verbs(vec![log.clone()], vec![]);
        let ring = DATA + 1..WORDS;
        let mut expected = vec![0u64; WORDS];
        let (mut at, mut next, mut random) = (ring.start, 1u64, 7u64);
        // Sizes from one word to more than a request, in no order, and such that places are hit at every offset.
        for round in 1..=3_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let size = match random >> 60 {
                0 => 8_193 + (random >> 40) as usize % 12_000,
                1..=4 => 1 + (random >> 40) as usize % 8_192,
                _ => 1 + (random >> 40) as usize % 40,
            };
            let words: Vec<u64> =
                (next..next + size as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            next += size as u64;
            let mut rest = &words[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(ring.end - at));
                writer.write(LOG, at, now).unwrap();
                expected[at..at + now.len()].copy_from_slice(now);
                (at, rest) = (if at + now.len() == ring.end { ring.start } else { at + now.len() }, later);
            }
            if round % 50 == 0 {
                writer.write(LOG, DATA, &[round]).unwrap();
                wait_for("the count", || word(&log.region, DATA) == round);
                for (i, expected) in expected.iter().enumerate().skip(DATA + 1) {
                    assert_eq!(word(&log.region, i), *expected, "word {i} after {round} writes");
                }
            }
        }
        assert!(!writer.closed());
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn reads_are_bounded_and_all_answered() {
        let table = export(TABLE, 64, Access::Read);
        table.region.words()[9].store(5, Ordering::SeqCst);
        let (_owner, reader) = common::verbs(vec![table], vec![]);
        let mut reads: Vec<_> = (0..10_000).map(|_| reader.read(TABLE, 9)).collect();
        let last = reads.pop().unwrap();
        // More were asked for than are taken; those taken are answered, the last first here.
        let _ = value(last);
        let (mut answered, mut refused) = (0, 0);
        for read in reads.into_iter().rev() {
            match value(read) {
                Ok(5) => answered += 1,
                Err(LinkError::TooManyReads(4096)) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(answered >= 4096, "{answered} answered, {refused} refused");
        assert_eq!(value(reader.read(TABLE, 9)).unwrap(), 5);
    }

    /// Links with a peer that is told more than was exported: `forge` changes what the owner announces on its way.
    fn forged(table: Export, forge: fn(&mut [u64])) -> (Arc<dyn Link>, Arc<dyn Link>) {
        const WORDS: usize = 34;
        let [near, far] = verbs_addresses();
        let ((owner_end, mut from_owner), (mut to_peer, peer_end)) = (tcp_sockets(), tcp_sockets());
        let listener = Listener::bind((far, 0).into()).unwrap();
        let address = listener.address().unwrap();
        let between = thread::spawn(move || {
            let mut bytes = [0; 8 * WORDS];
            from_owner.read_exact(&mut bytes).unwrap();
            let mut words: Vec<u64> =
                bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            forge(&mut words);
            to_peer
                .write_all(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
                .unwrap();
            to_peer.read_exact(&mut bytes).unwrap();
            from_owner.write_all(&bytes).unwrap();
            // Both stay open as long as the test runs.
            (from_owner, to_peer)
        });
        let owner = thread::spawn(move || {
            let request = listener.accept().unwrap().unwrap();
            verbs::link(Side::Accepting(request), owner_end, vec![table], DEADLINE).unwrap()
        });
        let route = verbs::route(address, Some(near), DEADLINE).unwrap();
        let peer = verbs::link(Side::Connecting(route, TOKEN), peer_end, vec![], DEADLINE).unwrap();
        std::mem::forget(between.join().unwrap());
        (owner.join().unwrap(), peer)
    }

    /// The device said so, or the owner, whose device told it first, was quicker to hang up.
    fn refused_by_device(why: &Why) {
        assert!(matches!(why, Why::AccessRefused | Why::PeerGone), "{why}");
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn the_device_refuses_what_was_not_exported() {
        // But for its bell, which the owner rings itself when the link ends.
        let untouched = |export: &Export| {
            export.region.words()[DATA..].iter().all(|word| word.load(Ordering::SeqCst) == 0)
        };
        // Told that it may write what is only to be read.
        let table = export(TABLE, 512, Access::Read);
        let (_owner, peer) = forged(table.clone(), |words| words[2] = u64::from(TABLE) | 1 << 32);
        peer.write(TABLE, DATA, &[1; 100]).unwrap();
        wait_for("the refusal", || peer.closed());
        refused_by_device(&why(&*peer));
        assert!(untouched(&table));

        // Told that it may read what is only to be written.
        let log = export(LOG, 512, Access::Write);
        let (_owner, peer) = forged(log, |words| words[2] = u64::from(LOG) | 2 << 32);
        assert!(value(peer.read(LOG, DATA)).is_err());
        refused_by_device(&why(&*peer));

        // Told that there is more than there is.
        let log = export(LOG, 512, Access::Write);
        let (_owner, peer) = forged(log.clone(), |words| words[3] = 4_096);
        peer.write(LOG, 511, &[1; 100]).unwrap();
        wait_for("the refusal", || peer.closed());
        refused_by_device(&why(&*peer));
        assert!(untouched(&log));
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn after_close_no_byte_lands() {
        for _ in 0..20 {
            let log = export(LOG, 2_048, Access::Write);
            let (owner, writer) = common::verbs(vec![log.clone()], vec![]);
            let started = Arc::new(AtomicU64::new(0));
            let writing = {
                let started = started.clone();
                thread::spawn(move || {
                    for n in 1.. {
                        started.store(n, Ordering::SeqCst);
                        if let Err(error) = writer.write(LOG, DATA, &[n; 1_000]) {
                            return (n, error);
                        }
                    }
                    unreachable!()
                })
            };
            wait_for("writes arrive", || word(&log.region, DATA) > 20);
            owner.close();
            let at_close: Vec<u64> = (DATA..DATA + 1_000).map(|i| word(&log.region, i)).collect();
            let (_, error) = writing.join().unwrap();
            assert!(matches!(error, LinkError::Closed { .. }), "{error}");
            let later: Vec<u64> = (DATA..DATA + 1_000).map(|i| word(&log.region, i)).collect();
            assert_eq!(at_close, later);
        }
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn a_network_that_is_cut_is_noticed_within_a_second() {
        // However often there is something to write: soft-RoCE itself does not notice while there is.
        for every_ms in [1, 20, 250] {
            let log = export(LOG, 64, Access::Write);
            let (owner, writer) = common::verbs(vec![log], vec![]);
            let [near, far] = verbs_addresses();
            let cut = Cut::new(&[(near, far), (far, near)]);
            let start = Instant::now();
            let error = loop {
                match writer.write(LOG, DATA, &[1]) {
                    Ok(()) => thread::park_timeout(Duration::from_millis(every_ms)),
                    Err(error) => break error,
                }
            };
            let took = start.elapsed();
            println!("writing every {every_ms} ms, a network that is cut was noticed after {took:?}");
            assert!(took <= Duration::from_secs(1), "it took {took:?}");
            assert!(matches!(error, LinkError::Closed { why: Why::NoAnswer }), "{error}");
            drop(cut);
            // The TCP connection, which does not go that way, tells the other side.
            wait_for("the other side hears of it", || owner.closed());
        }
    }

    /// A network on which nothing arrives, until this is dropped: one device, or each, has a wrong hardware address of the other's. (An interface
    /// that is down would do as well, but that soft-RoCE's connection manager does not survive it.)
    struct Cut(Vec<Vec<String>>);

    impl Cut {
        fn new(ways: &[(IpAddr, IpAddr)]) -> Cut {
            let cut = |(from, to): &(IpAddr, IpAddr)| {
                let way = vec![to.to_string(), "dev".into(), interface(*from)];
                neighbours("replace", &way, &["lladdr", "02:00:00:00:00:77", "nud", "permanent"]);
                way
            };
            Cut(ways.iter().map(cut).collect())
        }
    }

    impl Drop for Cut {
        fn drop(&mut self) {
            for way in &self.0 {
                neighbours("del", way, &[]);
            }
        }
    }

    fn neighbours(change: &str, way: &[String], to: &[&str]) {
        let done = Command::new("ip").args(["neigh", change]).args(way).args(to).status().unwrap();
        assert!(done.success(), "these tests need to be root");
    }

    /// The network interface of the device that has this address.
    fn interface(address: IpAddr) -> String {
        let devices = verbs::devices().unwrap();
        let has = |device: &&verbs::Device| device.ports[0].gids.iter().any(|gid| gid.ip() == Some(address));
        let device = &devices.iter().find(has).unwrap().name;
        let path = format!("/sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/0");
        std::fs::read_to_string(path).unwrap().trim().into()
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn writers_wait_for_room_and_lose_nothing() {
        let log = export(LOG, 4_096, Access::Write);
        let (_owner, writer) = common::verbs(vec![log.clone()], vec![]);
        // The NIC acknowledges nothing for a while, so that the queue fills up; not so long that it gives up.
        let [near, far] = verbs_addresses();
        let cut = Cut::new(&[(far, near)]);
        let posted = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let (writer, posted) = (writer.clone(), posted.clone());
                thread::spawn(move || {
                    for n in 1..=400u64 {
                        let at = DATA + 1_000 * t as usize;
                        writer.write(LOG, at, &vec![n; if n.is_multiple_of(7) { 1_000 } else { 3 }]).unwrap();
                        posted.fetch_add(1, Ordering::SeqCst);
                    }
                    writer.write(LOG, DATA + 1_000 * t as usize, &[t + 1_000]).unwrap();
                })
            })
            .collect();
        // As many as a send queue takes of them; the rest must wait.
        wait_for("the queue to fill up", || posted.load(Ordering::SeqCst) >= 190);
        thread::park_timeout(Duration::from_millis(50));
        assert!(posted.load(Ordering::SeqCst) < 256, "the send queue is overrun");
        drop(cut);
        for thread in threads {
            thread.join().unwrap();
        }
        for t in 0..4u64 {
            let at = DATA + 1_000 * t as usize;
            wait_for("the last write", || word(&log.region, at) == t + 1_000);
            assert_eq!(word(&log.region, at + 1), 400);
            assert_eq!(word(&log.region, at + 999), 399);
        }
    }
}

/// The peer in another process, which is killed at the end of the test however it ends.
struct Peer(Child, Arc<dyn Link>);

impl Peer {
    /// Runs the ignored test `role` in a process of its own and links with it.
    fn start(role: &str, exports: Vec<Export>) -> Peer {
        let [_, far] = verbs_addresses();
        let control = TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = Listener::bind((far, 0).into()).unwrap();
        let addresses = format!("{} {}", control.local_addr().unwrap(), listener.address().unwrap());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("peer::{role}"), "--ignored", "--nocapture"])
            .env(PEER, addresses)
            .spawn()
            .unwrap();
        let request = thread::spawn(move || listener.accept().unwrap().unwrap());
        let (stream, _) = control.accept().unwrap();
        let link = verbs::link(Side::Accepting(request.join().unwrap()), stream, exports, DEADLINE).unwrap();
        Peer(child, link)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops the process, and waits until it does stand still.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.0.id());
        let stopped = || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
        };
        wait_for("the peer stops", stopped);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const PEER: &str = "HEADWATER_RDMA_TEST_PEER";

mod peer {
    use super::*;

    /// The peer's end of [`Peer::start`].
    fn link(exports: Vec<Export>) -> Result<Arc<dyn Link>, LinkError> {
        let addresses = std::env::var(PEER).expect("only for a process that a test here has started");
        let (control, device) = addresses.split_once(' ').unwrap();
        let [near, _] = verbs_addresses();
        let route = verbs::route(device.parse().unwrap(), Some(near), DEADLINE).unwrap();
        let stream = TcpStream::connect(control).unwrap();
        verbs::link(Side::Connecting(route, TOKEN), stream, exports, DEADLINE)
    }

    #[test]
    #[ignore = "the peer of tests with two processes"]
    fn owner() {
        let (log, table) = (export(LOG, 64, Access::Write), export(TABLE, 64, Access::Read));
        table.region.words()[9].store(77, Ordering::SeqCst);
        let link = link(vec![log.clone(), table]).unwrap();
        // What it finds in its log it gives back; how often it was rung, too.
        while !link.closed() {
            let seen = log.region.rings();
            let found = [word(&log.region, DATA), word(&log.region, DATA + 1), log.region.rings().into()];
            if link.write(LOG, DATA, &found).is_err() || link.ring(LOG).is_err() {
                return;
            }
            log.region.sleep(seen, DEADLINE);
        }
    }

    #[test]
    #[ignore = "the peer of tests with two processes"]
    fn writer() {
        let link = link(vec![]).unwrap();
        for n in 1.. {
            if link.write(LOG, DATA, &[n; 32]).is_err() {
                return;
            }
        }
    }

    #[test]
    #[ignore = "the peer of tests with two processes"]
    fn poor() {
        let error = link(vec![export(LOG, 100_000, Access::Write)]).err().expect("so much may not be locked");
        let LinkError::Locked { bytes: 800_000, limit: Some(65_536), .. } = error else { panic!("{error}") };
        println!("{error}");
        assert!(error.to_string().contains("RLIMIT_MEMLOCK is 65536 bytes"), "{error}");
    }
}

mod two_processes {
    use super::*;

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn a_stopped_owner_takes_writes_and_answers_reads() {
        let own = export(LOG, 64, Access::Write);
        let peer = Peer::start("owner", vec![own.clone()]);
        let link = &peer.1;
        wait_for("the owner runs", || own.region.rings() > 0);
        peer.stop();
        let rings = own.region.rings();
        for n in 1..=RINGS {
            link.write(LOG, DATA, &[n]).unwrap();
            link.ring(LOG).unwrap();
        }
        // The read comes after the writes: once it is answered they are placed, though the owner has not run.
        assert_eq!(value(link.read(TABLE, 9)).unwrap(), 77);
        link.write(LOG, DATA + 1, &[1]).unwrap();
        assert!(!link.write_now(LOG, DATA + 2, &[1]).unwrap(), "no credit is left for another ring");
        assert_eq!(value(link.read(TABLE, 9)).unwrap(), 77);
        assert_eq!(own.region.rings(), rings, "it ran, though it was stopped");

        // It goes on: what was written is there, and the rings that were owed come too.
        peer.signal(Signal::CONT);
        wait_for("the owner finds the last write", || {
            word(&own.region, DATA) == RINGS && word(&own.region, DATA + 1) == 1
        });
        // And the next one, after all credits were used up.
        link.write(LOG, DATA + 1, &[2]).unwrap();
        link.ring(LOG).unwrap();
        wait_for("the owner is woken once more", || word(&own.region, DATA + 1) == 2);
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn rings_beyond_the_credits_are_not_lost() {
        let own = export(LOG, 64, Access::Write);
        let peer = Peer::start("owner", vec![own.clone()]);
        for round in 1..=20 {
            peer.stop();
            for _ in 0..RINGS {
                peer.1.ring(LOG).unwrap();
            }
            // After all others, with no credit left: only an owed ring tells of it.
            peer.1.write(LOG, DATA, &[round]).unwrap();
            peer.1.ring(LOG).unwrap();
            peer.signal(Signal::CONT);
            wait_for("the owner finds the write", || word(&own.region, DATA) == round);
        }
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn a_peer_that_is_killed_is_noticed_within_a_second() {
        let own = export(LOG, 64, Access::Write);
        let mut peer = Peer::start("owner", vec![own.clone()]);
        wait_for("the owner runs", || own.region.rings() > 0);
        let start = Instant::now();
        peer.0.kill().unwrap();
        wait_for("the end of the peer", || peer.1.closed());
        assert!(start.elapsed() < Duration::from_secs(1), "it took {:?}", start.elapsed());
        assert!(matches!(why(&*peer.1), Why::PeerGone), "{}", why(&*peer.1));
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn a_writer_that_was_stopped_cannot_write_after_close() {
        for _ in 0..10 {
            let log = export(LOG, 64, Access::Write);
            let mut peer = Peer::start("writer", vec![log.clone()]);
            wait_for("writes arrive", || word(&log.region, DATA) > 100);
            peer.stop();
            peer.1.close();
            let at_close: Vec<u64> = (0..64).map(|i| word(&log.region, i)).collect();
            peer.signal(Signal::CONT);
            assert!(peer.0.wait().unwrap().success());
            assert_eq!((0..64).map(|i| word(&log.region, i)).collect::<Vec<_>>(), at_close);
        }
    }

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn memory_that_may_not_be_locked_is_an_error_that_says_so() {
        let mut command = Command::new("sh");
        let exe = std::env::current_exe().unwrap();
        command.args(["-c", "ulimit -l 64 && exec \"$0\" \"$@\""]).arg(exe);
        // Root may lock what it likes.
        command.args(["--exact", "peer::poor", "--ignored", "--nocapture"]).uid(65534).gid(65534);
        let [_, far] = verbs_addresses();
        // It gives up before it asks for a connection.
        let control = TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = Listener::bind((far, 0).into()).unwrap();
        let addresses = format!("{} {}", control.local_addr().unwrap(), listener.address().unwrap());
        assert!(command.env(PEER, addresses).status().unwrap().success());
    }
}
