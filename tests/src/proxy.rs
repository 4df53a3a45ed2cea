//! A network between two nodes: a TCP proxy that can be held up and cut.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// How the network is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Everything passes.
    Open,
    /// Nothing passes and nothing is refused: a black hole. What was on its way passes when it is opened again.
    Held,
    /// Nothing that the upstream sends on its n-th connection passes, counted from 0; all else does.
    HeldFromUpstream(usize),
    /// Every connection is closed, new ones at once.
    Cut,
}

/// The proxy. Dropped, it is a cut that nobody mends.
pub struct Proxy {
    address: String,
    mode: Arc<watch::Sender<Mode>>,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Listens on a port of its own and connects to `upstream` for everyone who comes.
    pub async fn start(upstream: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port can be had");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let mode = Arc::new(watch::Sender::new(Mode::Open));
        let accepted = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(accept(listener, upstream.to_owned(), mode.clone(), accepted.clone()));
        Proxy { address, mode, accepted, task }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Changes the network from here on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn accept(
    listener: TcpListener,
    upstream: String,
    mode: Arc<watch::Sender<Mode>>,
    accepted: Arc<AtomicUsize>,
) {
    // Dropped with this task, and with it every connection.
    let mut connections = JoinSet::new();
    while let Ok((downstream, _)) = listener.accept().await {
        let number = accepted.fetch_add(1, Ordering::Relaxed);
        connections.spawn(forward(downstream, upstream.clone(), number, mode.subscribe()));
        while connections.try_join_next().is_some() {}
    }
}

/// Carries one connection until either side ends it or the network is cut.
async fn forward(downstream: TcpStream, upstream: String, number: usize, mode: watch::Receiver<Mode>) {
    let mut cut = mode.clone();
    let carry = async {
        let mut passing = mode.clone();
        let _ = passing.wait_for(|mode| *mode != Mode::Held).await;
        let upstream = TcpStream::connect(&upstream).await?;
        downstream.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        let (from_downstream, to_downstream) = downstream.into_split();
        let (from_upstream, to_upstream) = upstream.into_split();
        let up_held = |mode: Mode| mode == Mode::Held;
        let down_held = move |mode: Mode| mode == Mode::Held || mode == Mode::HeldFromUpstream(number);
        tokio::select! {
            end = pump(from_downstream, to_upstream, mode.clone(), up_held) => end,
            end = pump(from_upstream, to_downstream, mode.clone(), down_held) => end,
        }
    };
    tokio::select! {
        // How a connection ends is its nodes' business.
        _ = carry => {}
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    is_held: impl Fn(Mode) -> bool,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        // Also the end of the stream is not seen through a black hole.
        let _ = mode.wait_for(|mode| !is_held(*mode)).await;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
    }
}
