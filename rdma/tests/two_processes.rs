//! shm between two processes: this program runs itself again, one ignored test of it, as the peer.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use common::{DEADLINE, value, wait_for};
use headwater_rdma::{Access, BELL_WORDS, Export, Link, Region, shm};

const SOCKET: &str = "HEADWATER_RDMA_TEST_SOCKET";

const LOG: u32 = 1;
const TABLE: u32 = 2;
const ECHO: u32 = 3;

const COUNTER: usize = BELL_WORDS;
const DATA: usize = 64;
const WRITES: u64 = 100_000;
const ROUNDS: u64 = 20_000;

fn export(id: u32, access: Access) -> Export {
    Export { id, region: Region::create("test", 512).unwrap(), access }
}

/// The peer's process, killed at the end of the test however it ends.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the ignored test `role` in a process of its own and links with it.
fn with_peer(role: &str, exports: Vec<Export>) -> (Peer, Arc<dyn Link>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", role, "--ignored", "--nocapture"])
        .env(SOCKET, &socket)
        .spawn()
        .unwrap();
    let peer = Peer(peer);
    let (stream, _) = listener.accept().unwrap();
    (peer, shm::link(stream, exports, DEADLINE).unwrap())
}

/// The peer's end of [`with_peer`].
fn as_peer(exports: Vec<Export>) -> Arc<dyn Link> {
    let socket = std::env::var_os(SOCKET).expect("only for a process that a test here has started");
    shm::link(UnixStream::connect(socket).unwrap(), exports, DEADLINE).unwrap()
}

/// Sleeps on `region` until `news`.
fn sleep_until(region: &Region, news: impl Fn() -> bool) {
    loop {
        let seen = region.rings();
        if news() {
            return;
        }
        let start = Instant::now();
        region.sleep(seen, DEADLINE);
        assert!(start.elapsed() < DEADLINE / 2, "a wake-up was lost");
    }
}

#[test]
#[ignore = "the peer of writes_of_another_process_arrive_in_order"]
fn writer() {
    let link = as_peer(vec![]);
    for i in 1..=WRITES {
        link.write(LOG, DATA, &[i; 4]).unwrap();
        link.write(LOG, COUNTER, &[i]).unwrap();
    }
    assert_eq!(value(link.read(TABLE, DATA)).unwrap(), 42);
    // The owner has seen all when it closes.
    wait_for("the owner to finish", || link.closed());
}

#[test]
fn writes_of_another_process_arrive_in_order() {
    let (log, table) = (export(LOG, Access::Write), export(TABLE, Access::Read));
    table.region.words()[DATA].store(42, Ordering::SeqCst);
    let (mut peer, link) = with_peer("writer", vec![log.clone(), table]);
    let words = log.region.words();
    let mut seen = 0;
    while seen < WRITES {
        assert!(!link.closed(), "the writer is gone");
        seen = words[COUNTER].load(Ordering::Acquire);
        for word in &words[DATA..DATA + 4] {
            let found = word.load(Ordering::Relaxed);
            assert!(found >= seen, "the count says {seen}, the data before it {found}");
        }
        thread::yield_now();
    }
    link.close();
    assert!(peer.0.wait().unwrap().success());
}

#[test]
#[ignore = "the peer of no_wake_up_between_processes_is_lost"]
fn echo() {
    let own = export(ECHO, Access::Write);
    let link = as_peer(vec![own.clone()]);
    for round in 1..=ROUNDS {
        sleep_until(&own.region, || own.region.words()[COUNTER].load(Ordering::Acquire) == round);
        link.write(LOG, COUNTER, &[round]).unwrap();
        link.ring(LOG).unwrap();
    }
    wait_for("the owner to finish", || link.closed());
}

#[test]
fn no_wake_up_between_processes_is_lost() {
    let own = export(LOG, Access::Write);
    let (mut peer, link) = with_peer("echo", vec![own.clone()]);
    for round in 1..=ROUNDS {
        link.write(ECHO, COUNTER, &[round]).unwrap();
        link.ring(ECHO).unwrap();
        sleep_until(&own.region, || own.region.words()[COUNTER].load(Ordering::Acquire) == round);
    }
    link.close();
    assert!(peer.0.wait().unwrap().success());
}

#[test]
#[ignore = "the peer of the_death_of_a_process_wakes_the_sleeping_owner"]
fn victim() {
    let own = export(ECHO, Access::Write);
    let link = as_peer(vec![own.clone()]);
    link.write(LOG, COUNTER, &[1]).unwrap();
    link.ring(LOG).unwrap();
    own.region.sleep(own.region.rings(), DEADLINE);
    panic!("it should have been killed");
}

#[test]
fn the_death_of_a_process_wakes_the_sleeping_owner() {
    let own = export(LOG, Access::Write);
    let (mut peer, link) = with_peer("victim", vec![own.clone()]);
    sleep_until(&own.region, || own.region.words()[COUNTER].load(Ordering::Acquire) == 1);
    let sleeper = {
        let (own, link) = (own.region.clone(), link.clone());
        thread::spawn(move || sleep_until(&own, || link.closed()))
    };
    wait_for("the sleeper", || own.region.words()[1].load(Ordering::SeqCst) == 1);
    peer.0.kill().unwrap();
    sleeper.join().unwrap();
    assert!(link.write(ECHO, COUNTER, &[1]).is_err());
}
