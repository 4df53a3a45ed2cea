//! Pairs of linked peers, for every transport.

// Each test program uses some of it.
#![allow(dead_code)]

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use headwater_rdma::{Export, Link, LinkError, Read, shm, tcp};

/// Longer than anything here takes, unless it is broken.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Makes a link between a side that exports the first and a side that exports the second.
pub(crate) type Connect = fn(Vec<Export>, Vec<Export>) -> (Arc<dyn Link>, Arc<dyn Link>);

/// Two connected TCP sockets.
pub(crate) fn tcp_sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
}

/// A pair over tcp.
pub(crate) fn tcp(left: Vec<Export>, right: Vec<Export>) -> (Arc<dyn Link>, Arc<dyn Link>) {
    tcp_silent(left, right, DEADLINE)
}

/// A pair over tcp that bears a silence of `silence_max`.
pub(crate) fn tcp_silent(
    left: Vec<Export>,
    right: Vec<Export>,
    silence_max: Duration,
) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (left_out, right_agent) = tcp_sockets();
    let (right_out, left_agent) = tcp_sockets();
    let right = thread::spawn(move || tcp::link(right_out, right_agent, right, silence_max).unwrap());
    let left = tcp::link(left_out, left_agent, left, silence_max).unwrap();
    (left, right.join().unwrap())
}

/// A pair over shm, both in this process.
pub(crate) fn shm(left: Vec<Export>, right: Vec<Export>) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (near, far) = UnixStream::pair().unwrap();
    let right = thread::spawn(move || shm::link(far, right, DEADLINE).unwrap());
    let left = shm::link(near, left, DEADLINE).unwrap();
    (left, right.join().unwrap())
}

/// Waits until `condition` holds; fails when it does not within [`DEADLINE`].
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
        thread::yield_now();
    }
}

/// The read's outcome.
pub(crate) fn value(read: Read) -> Result<u64, LinkError> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read)
}
