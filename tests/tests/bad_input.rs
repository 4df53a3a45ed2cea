//! Strangers, the careless and the malicious: each is told what is wrong where there is someone to tell, and nobody else
//! notices.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use headwater_client::{Cas, Connection};
use headwater_protocol::frame::{CLIENT, OPENING_BYTES, REPLICATION, VERSION, opening, read_opening};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::{Consistency, Seqno, ShardName};
use headwater_tests::cluster::{Cluster, Node, PATIENCE, eventually, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

fn shard(name: &str) -> ShardName {
    ShardName::new(name).unwrap()
}

/// The node takes a write, or an RO has all of them: it works.
async fn assert_works(cluster: &Cluster) {
    let rw = cluster.rw.connect().await;
    let s = shard("works");
    let head = rw.head(&s, Consistency::Strong, PATIENCE).await.unwrap().entry.map(|entry| entry.seqno);
    let written = rw.compare_and_set(&s, head, Bytes::from("x"), PATIENCE).await.unwrap();
    let Cas::Committed(seqno, _) = written else { panic!("{written:?}") };
    for ro in &cluster.ros {
        let seen = ro.connect().await.head(&s, Consistency::Strong, PATIENCE).await.unwrap();
        assert_eq!(seen.entry.unwrap().seqno, seqno);
    }
}

/// Reads until the node closes; gives what came.
async fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    // A connection that is reset is closed as well.
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut got)).await;
    assert!(read.is_ok(), "the connection stays open");
    got
}

async fn greeted(address: &str, protocol: [u8; 8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&opening(protocol)).await.unwrap();
    let mut answer = [0; OPENING_BYTES];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(read_opening(&answer), (protocol, VERSION));
    stream
}

/// Bytes that differ from run to run of this function, and are the same in every run of the test.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_closes_its_own_connection_and_no_other() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    for node in cluster.nodes() {
        let bystander = node.connect().await;
        for seed in 0..40 {
            // Instead of an opening; after one; after one of the other protocol.
            let mut stream = TcpStream::connect(node.address()).await.unwrap();
            let _ = stream.write_all(&noise(seed, 100 + seed as usize * 50)).await;
            assert_eq!(until_closed(stream).await, b"");
            for protocol in [CLIENT, REPLICATION] {
                let mut stream = greeted(node.address(), protocol).await;
                let mut bytes = noise(seed + 100, 2000);
                // A length that could be, so that it is the rest that is judged.
                bytes[..4].copy_from_slice(&(100 + seed as u32).to_le_bytes());
                let _ = stream.write_all(&bytes).await;
                // To be seen through, not waited for: what is cut short is an end.
                let _ = stream.shutdown().await;
                until_closed(stream).await;
            }
        }
        bystander.status(PATIENCE).await.unwrap();
        assert!(!node.log().contains("panicked"), "{}", node.log());
    }
    assert_works(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lengths_that_cannot_be_are_not_waited_for() {
    let cluster = Cluster::start(&[], &["shm"]).await;
    for node in cluster.nodes() {
        for length in [0, 1, 8, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
            let mut stream = greeted(node.address(), CLIENT).await;
            stream.write_all(&length.to_le_bytes()).await.unwrap();
            stream.write_all(&[1; 20]).await.unwrap();
            assert_eq!(until_closed(stream).await, b"", "a frame of {length} bytes");
        }
        // Every request cut short at every place: closed at once when the client says that no more comes.
        let mut frame = BytesMut::new();
        let request =
            Request::CompareAndSet { shard: shard("cut"), expected: None, data: Bytes::from("data") };
        RequestFrame { id: 7, deadline_ms: 0, request }.encode(&mut frame);
        for end in 0..frame.len() {
            let mut stream = greeted(node.address(), CLIENT).await;
            stream.write_all(&frame[..end]).await.unwrap();
            stream.shutdown().await.unwrap();
            assert_eq!(until_closed(stream).await, b"", "{end} bytes of a frame");
        }
    }
    let head = cluster.rw.connect().await.head(&shard("cut"), Consistency::Strong, PATIENCE).await.unwrap();
    assert_eq!(head.entry, None, "no part of a request is carried out");
    assert_works(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_told_which_one_it_met() {
    let cluster = Cluster::start(&[], &["shm"]).await;
    for node in cluster.nodes() {
        for protocol in [CLIENT, REPLICATION] {
            let mut stream = TcpStream::connect(node.address()).await.unwrap();
            let mut hello = opening(protocol);
            hello[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
            stream.write_all(&hello).await.unwrap();
            let got = until_closed(stream).await;
            assert_eq!(read_opening(got.as_slice().try_into().unwrap()), (protocol, VERSION));
        }
    }
    assert_works(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_connects_and_says_nothing_is_let_go() {
    let cluster = Cluster::start(&[], &["shm"]).await;
    let mut silent = JoinSet::new();
    for node in cluster.nodes() {
        for bytes in [0, 5] {
            let mut stream = TcpStream::connect(node.address()).await.unwrap();
            stream.write_all(&opening(CLIENT)[..bytes]).await.unwrap();
            silent.spawn(until_closed(stream));
        }
        let stream = greeted(node.address(), REPLICATION).await;
        silent.spawn(until_closed(stream));
    }
    assert_works(&cluster).await;
    while let Some(closed) = silent.join_next().await {
        closed.unwrap();
    }
}

/// Many large answers are asked for and none is read: it costs that client its answers, and the node little memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_costs_nobody_else_anything() {
    let cluster = Cluster::start(&[], &["shm"]).await;
    let (rw, s) = (cluster.rw.connect().await, shard("large"));
    let mut head = None;
    while head < Seqno::new(299).ok() {
        match rw.compare_and_set(&s, head, Bytes::from(vec![3; 16 << 10]), PATIENCE).await.unwrap() {
            Cas::Committed(seqno, _) => head = Some(seqno),
            other => panic!("{other:?}"),
        }
    }
    let mut requests = BytesMut::new();
    for id in 0..2000 {
        let (from, consistency) = (Seqno::ZERO, Consistency::Strong);
        let request = Request::Scan { shard: s.clone(), from, limit: 1000, bytes_max: u32::MAX, consistency };
        RequestFrame { id, deadline_ms: 0, request }.encode(&mut requests);
    }
    for node in cluster.nodes() {
        node.connect().await.head(&s, Consistency::Strong, PATIENCE).await.unwrap();
        let before = node.memory_bytes();
        let mut deaf = Vec::new();
        for _ in 0..8 {
            let mut stream = greeted(node.address(), CLIENT).await;
            // As much as the node takes; 10 GB of answers are asked for on each connection.
            let _ = tokio::time::timeout(Duration::from_millis(200), stream.write_all(&requests)).await;
            deaf.push(stream);
        }
        let other = node.connect().await;
        for _ in 0..50 {
            other.scan(&s, Seqno::ZERO, 10, Consistency::Strong, PATIENCE).await.unwrap();
        }
        let grown = node.memory_bytes().saturating_sub(before);
        assert!(grown < 128 << 20, "{} MiB more for 8 connections", grown >> 20);
    }
    assert_works(&cluster).await;
}

/// Clients leave the node the descriptors that it needs for the log and for its ROs, however many come.
#[tokio::test(flavor = "multi_thread")]
async fn clients_cannot_take_the_descriptors_that_the_log_needs() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::rw(dir.path(), "rw");
    node.limit_open_files(320);
    node.start().await;
    let (connection, shard) = (node.connect().await, ShardName::new("s").unwrap());
    let mut crowd = JoinSet::new();
    for _ in 0..400 {
        let address = node.address().to_owned();
        crowd.spawn(async move { Connection::open(&address, PATIENCE).await });
    }
    let (mut served, mut turned_away) = (Vec::new(), 0);
    while let Some(opened) = crowd.join_next().await {
        match opened.unwrap() {
            Ok(connection) => served.push(connection),
            Err(_) => turned_away += 1,
        }
    }
    assert!(served.len() < 320 && turned_away > 80, "{} served, {turned_away} not", served.len());
    // Many segments, each a file to be made and opened.
    let mut head = None;
    for _ in 0..64 {
        match connection.compare_and_set(&shard, head, Bytes::from(vec![7; 16_000]), PATIENCE).await.unwrap()
        {
            Cas::Committed(seqno, _) => head = Some(seqno),
            other => panic!("nobody else writes: {other:?}"),
        }
    }
    let mut ro = Node::ro(dir.path(), "ro", node.address(), "tcp");
    ro.start().await;
    ro.attached().await;
}

/// Each asks one thing while all the others are connected.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_are_served_at_once() {
    const CONNECTIONS: usize = 10_000;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < CONNECTIONS as u64 + 500) {
        eprintln!("SKIPPED: this process may open {:?} files", limit.maximum);
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let cluster = Cluster::start(&[], &["shm"]).await;
    for node in cluster.nodes() {
        let mut opening = JoinSet::new();
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let address = node.address().to_owned();
            opening.spawn(async move { Connection::open(&address, PATIENCE).await.unwrap() });
            if opening.len() >= 500 {
                connections.push(opening.join_next().await.unwrap().unwrap());
            }
        }
        while let Some(connection) = opening.join_next().await {
            connections.push(connection.unwrap());
        }
        let mut asked = JoinSet::new();
        for connection in &connections {
            let connection = connection.clone();
            asked.spawn(async move {
                connection.head(&shard("s"), Consistency::Strong, PATIENCE).await.unwrap();
            });
        }
        while let Some(answered) = asked.join_next().await {
            answered.unwrap();
        }
        let open = node.status().await.connections;
        assert!(open >= CONNECTIONS as u64, "{open} connections are open");
        assert!(node.memory_bytes() < 1 << 30, "{} MiB", node.memory_bytes() >> 20);
        drop(connections);
        let gone = |status: &headwater_protocol::status::NodeStatus| status.connections < 100;
        node.until("it has forgotten them", gone).await;
    }
    assert_works(&cluster).await;
}

/// Starts an RO of `rw` that must give up, and gives what it says.
async fn gives_up(cluster: &Cluster, name: &str, rw: &str, flags: &[(&'static str, &str)]) -> String {
    let mut ro = Node::ro(cluster.dir.path(), name, rw, "auto");
    for (flag, value) in flags {
        ro.set(flag, value);
    }
    ro.spawn();
    let status = ro.exited().await;
    assert_eq!(status.code(), Some(1), "{}", ro.log());
    ro.log()
}

/// Something else that listens: it greets so, and hangs up.
async fn stranger(greeting: &'static [u8]) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listening = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(greeting).await;
        }
    });
    (address, listening)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ro_pointed_at_the_wrong_thing_says_what_it_is_and_ends() {
    let cluster = Cluster::start(&[], &["shm"]).await;
    let (rw, ro) = (cluster.rw.address(), cluster.ros[0].address());

    let said = gives_up(&cluster, "of-an-ro", ro, &[]).await;
    assert!(said.contains(&format!("{ro} refuses: this node is an RO; the RW is at {rw}")), "{said}");

    let itself = format!("127.0.0.1:{}", free_port());
    let said = gives_up(&cluster, "of-itself", &itself, &[("listen", &itself)]).await;
    assert!(said.contains(&format!("{itself} refuses")), "{said}");

    let said = gives_up(&cluster, "of-another-cluster", rw, &[("cluster", "south")]).await;
    assert!(said.contains(r#"this is cluster "headwater", not "south""#), "{said}");

    // Something that greets first, as many do.
    let (address, listening) = stranger(b"SSH-2.0-OpenSSH_9.6\r\n").await;
    let said = gives_up(&cluster, "of-ssh", &address, &[]).await;
    assert!(said.contains(&format!("{address} is no Headwater node")), "{said}");
    listening.abort();
    // Something that hangs up: an RW does that too, when it stops or has too many connections. So it is tried again.
    let (address, listening) = stranger(b"").await;
    let mut ro = Node::ro(cluster.dir.path(), "of-nothing", &address, "auto");
    ro.start().await;
    ro.logged(&format!("{address}: it hangs up; is that a Headwater node?")).await;
    assert!(ro.is_running());
    listening.abort();
    assert_works(&cluster).await;
    assert_eq!(cluster.rw.status().await.replicas.len(), 1);
}

/// A transport that was asked for and is not there is an error that says why, not another transport.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_that_is_to_use_a_transport_that_is_not_there_says_so_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut rw = Node::rw(dir.path(), "rw");
    rw.set("rdma", "off");
    rw.start().await;
    std::fs::remove_file(rw.data_dir().join("rw.sock")).unwrap();
    let mut ro = Node::ro(dir.path(), "forced", rw.address(), "verbs");
    ro.spawn();
    assert!(!ro.exited().await.success());
    let log = ro.log();
    assert!(log.contains("verbs was asked for and cannot be had"), "{log}");
    // Left to choose, it takes what there is, and says why it is not more.
    let mut ro = Node::ro(dir.path(), "free", rw.address(), "auto");
    ro.start().await;
    ro.attached().await;
    let upstream = ro.status().await.upstream.unwrap();
    assert_eq!(upstream.transport, "tcp");
    assert!(upstream.why.contains("no shm: ") && upstream.why.contains("; no verbs: "), "{}", upstream.why);
}

/// The RW may only be late: an RO that finds nobody tries on, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_whose_rw_is_not_there_yet_tries_on() {
    let mut cluster = Cluster::start(&[], &[]).await;
    let mut late = Node::rw(cluster.dir.path(), "late");
    let mut ro = Node::ro(cluster.dir.path(), "ro", late.address(), "auto");
    ro.start().await;
    ro.logged("not attached to the RW; trying on").await;
    let upstream = ro.status().await.upstream.unwrap();
    assert!(!upstream.connected && upstream.why.contains("refused"), "{upstream:?}");
    late.start().await;
    ro.attached().await;
    cluster.ros.push(ro);
    cluster.rw = late;
    assert_works(&cluster).await;
}

/// Another cluster of the same name has taken the RW's address: the RO, which holds the first one's state, does not mix them.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_does_not_follow_another_cluster_that_took_its_rws_place() {
    let mut cluster = Cluster::start(&[], &["shm"]).await;
    assert_works(&cluster).await;
    let ro = &cluster.ros[0];
    let before = ro.status().await;
    cluster.rw.kill();
    let elsewhere = cluster.dir.path().join("elsewhere");
    cluster.rw.set("data-dir", elsewhere.display());
    cluster.rw.start().await;
    ro.logged("another cluster of the same name").await;
    let says_why = || async {
        let upstream = ro.status().await.upstream?;
        (!upstream.connected && upstream.why.contains("another cluster")).then_some(())
    };
    eventually("its status says why it is not attached", says_why).await;
    let after = ro.status().await;
    assert_eq!((after.cluster_id, after.positions.applied), (before.cluster_id, before.positions.applied));
    headwater_tests::cluster::assert_behind(|| async {
        ro.connect().await.head(&shard("works"), Consistency::Strong, Duration::from_millis(300)).await
    })
    .await;
}
