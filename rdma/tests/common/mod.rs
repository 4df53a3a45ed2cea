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

/// Why tests that need RDMA devices are ignored unless asked for.
#[cfg(feature = "verbs")]
pub(crate) const VERBS: &str = "RDMA_ADDRESSES";

/// The addresses of the two devices that tests may use, from the variable [`VERBS`]. It fails where there are none: who asks for these
/// tests has devices.
#[cfg(feature = "verbs")]
pub(crate) fn verbs_addresses() -> [std::net::IpAddr; 2] {
    let given = std::env::var(VERBS).expect("RDMA_ADDRESSES=ADDRESS,ADDRESS names two RDMA devices");
    let addresses: Vec<_> = given.split(',').map(|a| a.parse().expect("IP addresses")).collect();
    addresses.try_into().expect("two addresses")
}

/// A pair over verbs, each side on its own device.
#[cfg(feature = "verbs")]
pub(crate) fn verbs(left: Vec<Export>, right: Vec<Export>) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let [near, far] = verbs_addresses();
    verbs_between(near, far, left, right)
}

/// A pair over verbs, the left side at `near`, which asks, and the right at `far`.
#[cfg(feature = "verbs")]
pub(crate) fn verbs_between(
    near: std::net::IpAddr,
    far: std::net::IpAddr,
    left: Vec<Export>,
    right: Vec<Export>,
) -> (Arc<dyn Link>, Arc<dyn Link>) {
    use headwater_rdma::verbs;
    let (stream, accepted) = tcp_sockets();
    let listener = verbs::Listener::bind((far, 0).into()).unwrap();
    let address = listener.address().unwrap();
    let right = thread::spawn(move || {
        let request = listener.accept().unwrap().unwrap();
        assert_eq!(request.token, [7; verbs::TOKEN_BYTES]);
        verbs::link(verbs::Side::Accepting(request), accepted, right, DEADLINE).unwrap()
    });
    let route = verbs::route(address, Some(near), DEADLINE).unwrap();
    let left =
        verbs::link(verbs::Side::Connecting(route, [7; verbs::TOKEN_BYTES]), stream, left, DEADLINE).unwrap();
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
