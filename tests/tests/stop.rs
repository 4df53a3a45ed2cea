//! An orderly stop: nothing is lost, nobody is left without an answer, and everyone is told.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use bytes::{Bytes, BytesMut};
use headwater_client::{Cas, ClientError, Connection};
use headwater_protocol::frame::{CLIENT, OPENING_BYTES, opening};
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::status::NodeStatus;
use headwater_protocol::{Consistency, Error, Lsn, Seqno, ShardName};
use headwater_tests::cluster::{Cluster, PATIENCE, eventually};
use headwater_tests::load::Load;
use headwater_tests::snapshot::snapshot;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Writes until the node refuses. Gives what was acknowledged, and whether the last write was left without an answer.
async fn write_until_refused(rw: Connection, shard: ShardName) -> (Vec<Seqno>, bool) {
    let (mut head, mut acknowledged) = (None, Vec::new());
    loop {
        match rw.compare_and_set(&shard, head, Bytes::from("x"), PATIENCE).await {
            Ok(Cas::Committed(seqno, _)) => {
                head = Some(seqno);
                acknowledged.push(seqno);
            }
            Ok(other) => panic!("nobody else writes {shard}: {other:?}"),
            Err(ClientError::Refused(Error::Stopping) | ClientError::Unreachable { .. }) => {
                return (acknowledged, false);
            }
            Err(ClientError::ConnectionLost { .. }) => return (acknowledged, true),
            Err(other) => panic!("a write in flight is answered: {other:?}"),
        }
    }
}

/// The signal comes at another moment of the load each time.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_under_load_the_rw_answers_what_it_took_and_its_ros_end_equal() {
    for entries in [50, 200, 500, 900] {
        stop_under_load(entries).await;
    }
}

async fn stop_under_load(entries: u64) {
    let mut cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let mut writers = JoinSet::new();
    // Four connections, sixteen writes in flight on each, another as soon as one is answered.
    for _ in 0..4 {
        let rw = cluster.rw.connect().await;
        for _ in 0..16 {
            let shard = ShardName::new(&format!("w/{}", writers.len())).unwrap();
            let rw = rw.clone();
            writers.spawn(async move { (shard.clone(), write_until_refused(rw, shard).await) });
        }
    }
    cluster.rw.until("they write", |status| status.entries > entries).await;
    cluster.rw.terminate();
    let status = cluster.rw.exited().await;
    assert!(status.success(), "{status}");
    let mut acknowledged = Vec::new();
    while let Some(written) = writers.join_next().await {
        acknowledged.push(written.unwrap());
    }

    // The ROs were told that nothing follows, and have everything.
    let mut states = Vec::new();
    for ro in &cluster.ros {
        ro.logged("the RW stopped in order").await;
        states.push(snapshot(&ro.connect().await, Consistency::Eventual, PATIENCE).await.unwrap());
    }
    assert!(states[0] == states[1], "the ROs differ");
    assert!(cluster.rw.log().contains("the log is closed"), "with a record that says so");

    cluster.rw.start().await;
    let ours = snapshot(&cluster.rw.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
    assert!(ours == states[0], "what the ROs had at the end is what the log holds");
    for (shard, (seqnos, _)) in &acknowledged {
        let held: Vec<Seqno> = ours[shard].iter().map(|entry| entry.seqno).collect();
        assert_eq!(&held, seqnos, "{shard}: what is held and what was acknowledged");
    }
    let unanswered = acknowledged.iter().filter(|(_, (_, unanswered))| *unanswered).count();
    assert_eq!(unanswered, 0, "of {} writes in flight", acknowledged.len());
    cluster.all_attached().await;
}

/// A connection has many writes in flight: those that the RW has read are all answered.
#[tokio::test(flavor = "multi_thread")]
async fn writes_that_were_taken_are_answered_before_the_rw_ends() {
    let mut cluster = Cluster::start(&[], &[]).await;
    let rw = cluster.rw.connect().await;
    let mut writes = JoinSet::new();
    for n in 0..500 {
        let (rw, shard) = (rw.clone(), ShardName::new(&format!("s/{n}")).unwrap());
        let name = shard.clone();
        writes.spawn(async move {
            (name, rw.compare_and_set(&shard, None, Bytes::from(vec![1; 300]), PATIENCE).await)
        });
    }
    cluster
        .rw
        .until("some are in", |status| {
            status.positions.appended > status.positions.visible || status.shards > 0
        })
        .await;
    cluster.rw.terminate();
    assert!(cluster.rw.exited().await.success());
    cluster.rw.start().await;
    let held = snapshot(&cluster.rw.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
    let mut answered = 0;
    while let Some(write) = writes.join_next().await {
        match write.unwrap() {
            (shard, Ok(Cas::Committed(..))) => {
                assert!(held.contains_key(&shard), "{shard} was acknowledged");
                answered += 1;
            }
            (shard, Err(ClientError::Refused(Error::Stopping | Error::Overloaded(_)))) => {
                assert!(!held.contains_key(&shard), "{shard} was made, and refused");
            }
            (shard, Err(ClientError::ConnectionLost { .. } | ClientError::Unreachable { .. })) => {
                assert!(!held.contains_key(&shard), "{shard} was made, and not answered");
            }
            (shard, other) => panic!("{shard}: {other:?}"),
        }
    }
    assert!(answered > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_ro_leaves_quietly_and_comes_back() {
    let mut cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let mut load = Load::new(1);
    load.writer(&cluster.rw, 500).await;
    for ro in &cluster.ros {
        load.reader(ro).await;
    }
    for at in 0..cluster.ros.len() {
        let reads = load.progress().strong_reads() + 20;
        let progress = load.progress().clone();
        let read = || std::future::ready((progress.strong_reads() >= reads).then_some(()));
        eventually("both are read from", read).await;
        cluster.ros[at].terminate();
        let status = cluster.ros[at].exited().await;
        assert!(status.success(), "{status}");
        cluster.rw.until("it knows", |status: &NodeStatus| status.replicas.len() == 1).await;
        cluster.ros[at].start().await;
        cluster.all_attached().await;
    }
    load.stop().await.assert_linearizable();
}

/// E2: an orderly stop is no licence to give a position again.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_rw_stops_at_once_and_its_end_is_not_given_again() {
    let mut cluster = Cluster::start(&[], &["shm"]).await;
    let before = cluster.rw.status().await;
    cluster.rw.terminate();
    assert!(cluster.rw.exited().await.success());
    cluster.rw.start().await;
    let after = cluster.rw.status().await;
    assert!(after.positions.appended > before.positions.appended && after.epoch > before.epoch);
    cluster.all_attached().await;
}

/// S4: whoever cannot hear that nothing follows is not waited for, however far behind it is.
#[tokio::test(flavor = "multi_thread")]
async fn the_rw_stops_although_a_ros_ring_is_full_and_nobody_empties_it() {
    for transport in ["shm", "tcp"] {
        // So that the link outlives the pause, and a write that blocks on it blocks for long.
        let flags = [("lease", "30s"), ("ring-bytes", "64KiB")];
        let mut cluster = Cluster::start(&flags, &[transport]).await;
        let (rw, shard) = (cluster.rw.connect().await, ShardName::new("s").unwrap());
        cluster.ros[0].pause();
        let mut head = None;
        for _ in 0..64 {
            match rw.compare_and_set(&shard, head, Bytes::from(vec![7; 16_000]), PATIENCE).await.unwrap() {
                Cas::Committed(seqno, _) => head = Some(seqno),
                other => panic!("nobody else writes: {other:?}"),
            }
        }
        cluster.rw.terminate();
        let status = cluster.rw.exited().await;
        assert!(status.success(), "{transport}: {status}");
        cluster.rw.logged("did not apply the last of the log in time").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rw_stops_although_somebody_removed_its_socket() {
    let mut cluster = Cluster::start(&[], &["shm"]).await;
    std::fs::remove_file(cluster.rw.data_dir().join("rw.sock")).unwrap();
    cluster.rw.terminate();
    let status = cluster.rw.exited().await;
    assert!(status.success(), "{status}");
}

/// A number that is used again at once does not hide a watch from the node that stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_number_was_used_before_ends_when_its_node_stops() {
    let mut cluster = Cluster::start(&[], &[]).await;
    let mut stream = TcpStream::connect(cluster.rw.address()).await.unwrap();
    let watch = || Request::Watch { shard: ShardName::new("s").unwrap(), from: Seqno::ZERO };
    let mut bytes = BytesMut::from(&opening(CLIENT)[..]);
    for (id, request) in
        [(5, watch()), (6, Request::Unwatch { watch: 5 }), (5, watch()), (7, Request::Status)]
    {
        RequestFrame { id, deadline_ms: 0, request }.encode(&mut bytes);
    }
    stream.write_all(&bytes).await.unwrap();
    // Something is answered, so all of it was taken: the opening, and then a status or the end of the first watch.
    stream.read_exact(&mut [0; OPENING_BYTES + 8]).await.unwrap();
    cluster.rw.terminate();
    let status = cluster.rw.exited().await;
    assert!(status.success(), "{status}");
}

/// A read that waits for what may never come does not hold up the node that stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_waits_is_refused_when_its_node_stops() {
    let mut cluster = Cluster::start(&[], &["shm"]).await;
    let shard = ShardName::new("s").unwrap();
    let far = Consistency::AtLeast(Lsn::new(1 << 40));
    for stop_rw in [false, true] {
        let node = if stop_rw { &mut cluster.rw } else { &mut cluster.ros[0] };
        let connection = node.connect().await;
        let read = {
            let (connection, shard) = (connection.clone(), shard.clone());
            tokio::spawn(async move { connection.head(&shard, far, PATIENCE).await })
        };
        // Answered after the read was taken, as both go by one connection.
        connection.status(PATIENCE).await.unwrap();
        node.terminate();
        assert_eq!(read.await.unwrap().unwrap_err(), ClientError::Refused(Error::Stopping));
        assert!(node.exited().await.success());
    }
}
