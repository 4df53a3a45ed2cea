//! A cluster over RDMA, on one host with two devices: the RW on the first, the ROs on the second.
//!
//! `scripts/test-in-soft-roce -p headwater-tests --test rdma -- --ignored`

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::process::{Child, Command};
use std::time::Instant;

use bytes::Bytes;
use headwater_client::Cas;
use headwater_protocol::status::NodeStatus;
use headwater_protocol::{Consistency, ShardName};
use headwater_tests::cluster::{Cluster, Node, PATIENCE, eventually};
use headwater_tests::load::{Load, Progress};
use headwater_tests::snapshot::snapshot;

async fn work(progress: &Progress, writes: u64, reads: u64) {
    let (committed, read) = (progress.committed() + writes, progress.strong_reads() + reads);
    let look = || {
        let done = progress.committed() >= committed && progress.strong_reads() >= read;
        std::future::ready(done.then_some(()))
    };
    eventually("the clients get on", look).await;
}

fn is_by(transport: &str) -> impl Fn(&NodeStatus) -> bool {
    move |status| status.upstream.as_ref().is_some_and(|rw| rw.connected && rw.transport == transport)
}

async fn assert_equal(cluster: &Cluster) {
    let ours = snapshot(&cluster.rw.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
    for ro in &cluster.ros {
        let theirs = snapshot(&ro.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
        assert!(ours == theirs, "{} differs from the RW", ro.address());
    }
}

/// S1, W3, R1, E2, E3 by RDMA: strong reads on every node are checked against what was acknowledged, while the RW is killed
/// as it writes into the rings.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
async fn strong_reads_over_rdma_are_linearizable_also_when_the_rw_is_killed() {
    let mut cluster = Cluster::start(&[("lease", "1s")], &["verbs", "verbs"]).await;
    let mut load = Load::new(3);
    for _ in 0..3 {
        load.writer(&cluster.rw, 3000).await;
    }
    for node in cluster.nodes() {
        load.reader(node).await;
    }
    for _ in 0..3 {
        work(load.progress(), 30, 30).await;
        cluster.crash_rw().await;
        for ro in &cluster.ros {
            ro.until("it is back on verbs", is_by("verbs")).await;
        }
    }
    work(load.progress(), 30, 30).await;
    let counts = load.stop().await.assert_linearizable();
    assert!(counts.committed > 100 && counts.strong_reads > 100, "{counts:?}");
    assert_equal(&cluster).await;
}

/// The fetch of a timestamp is one-sided: the RW has no part in it, and answers while it stands still.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
async fn an_ro_fetches_timestamps_while_its_rw_stands_still() {
    // So that it keeps its right to read strongly for long enough.
    let cluster = Cluster::start(&[("lease", "30s")], &["verbs"]).await;
    let (rw, shard) = (cluster.rw.connect().await, ShardName::new("s").unwrap());
    let Cas::Committed(head, _) = rw.compare_and_set(&shard, None, Bytes::new(), PATIENCE).await.unwrap()
    else {
        panic!("nobody else writes");
    };
    let ro = cluster.ros[0].connect().await;
    cluster.ros[0].until("it has the write", |status| status.entries == 1).await;
    cluster.rw.pause();
    let fetched = cluster.ros[0].status().await.fetches;
    for _ in 0..20 {
        let read = ro.head(&shard, Consistency::Strong, PATIENCE).await.unwrap();
        assert_eq!(read.entry.map(|entry| entry.seqno), Some(head));
    }
    assert!(cluster.ros[0].status().await.fetches >= fetched + 20, "each read one after the other fetches");
    cluster.rw.resume();
}

/// A cluster whose RO is on verbs because it has no better choice, and clients at work.
async fn cluster_at_work() -> (Cluster, Load) {
    let mut cluster = Cluster::start(&[("lease", "1s")], &[]).await;
    // Or the RO would choose it.
    std::fs::remove_file(cluster.rw.data_dir().join("rw.sock")).unwrap();
    cluster.add_ro("auto").await;
    let ro = &cluster.ros[0];
    ro.until("it is on verbs", is_by("verbs")).await;
    let mut load = Load::new(2);
    load.writer(&cluster.rw, 1000).await;
    load.reader(ro).await;
    work(load.progress(), 20, 20).await;
    (cluster, load)
}

/// The RO has lost its RDMA: it goes on by tcp, and says why.
async fn assert_tcp_takes_over(ro: &Node, load: &Load) {
    let lost = Instant::now();
    ro.until("it notices", |status| !is_by("verbs")(status)).await;
    println!("noticed after {:?}", lost.elapsed());
    ro.until("it is on tcp", is_by("tcp")).await;
    work(load.progress(), 20, 20).await;
    let why = ro.status().await.upstream.unwrap().why;
    assert!(why.contains("no verbs: "), "{why}");
}

/// The ROs' plug is pulled, of the cable that `scripts/soft-roce` lays. Nothing is lost, and no read is wrong.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
async fn when_the_link_goes_down_tcp_takes_over_until_it_is_up_again() {
    let (cluster, load) = cluster_at_work().await;
    let ro = &cluster.ros[0];
    assert!(command(&["ip", "link", "set", "plug1", "down"]).wait().unwrap().success());
    assert_tcp_takes_over(ro, &load).await;
    assert!(command(&["ip", "link", "set", "plug1", "up"]).wait().unwrap().success());
    ro.until("it is on verbs again", is_by("verbs")).await;
    work(load.progress(), 20, 20).await;
    load.stop().await.assert_linearizable();
    assert_equal(&cluster).await;
}

/// The ROs' device is taken away. The kernel waits with that until the processes that have soft-RoCE's device open have ended (librdmacm keeps it
/// open), so that it cannot come back for them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
async fn when_the_device_is_removed_tcp_takes_over() {
    let (cluster, load) = cluster_at_work().await;
    let mut removal = command(&["rdma", "link", "delete", "rxe1"]);
    assert_tcp_takes_over(&cluster.ros[0], &load).await;
    load.stop().await.assert_linearizable();
    assert_equal(&cluster).await;
    drop(cluster);
    assert!(removal.wait().unwrap().success());
    // For the tests that follow.
    assert!(
        command(&["rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "port1"]).wait().unwrap().success()
    );
}

fn command(words: &[&str]) -> Child {
    Command::new(words[0]).args(&words[1..]).spawn().expect("the tool is there")
}

/// One RW and two ROs, each on a host of its own; each host runs this test, and `HOST` says which it is.
///
/// `scripts/test-in-soft-roce --hosts 3 -p headwater-tests --test rdma -- --ignored three_hosts`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs three hosts with RDMA devices: scripts/test-in-soft-roce --hosts 3"]
async fn three_hosts() {
    let host: usize = std::env::var("HOST").expect("HOST is set").parse().unwrap();
    let ips: Vec<String> = std::env::var("RDMA_ADDRESSES").unwrap().split(',').map(Into::into).collect();
    let dir = tempfile::tempdir().unwrap();
    let rw_address = format!("{}:7600", ips[0]);
    let ro_address = |host: usize| format!("{}:7601", ips[host]);
    if host > 0 {
        let mut ro = Node::ro(dir.path(), "ro", &rw_address, "verbs");
        ro.set("rdma", &ips[host]).listen_at(&ro_address(host));
        ro.start().await;
        ro.logged("the RW stopped in order").await;
        return;
    }
    let mut rw = Node::rw(dir.path(), "rw");
    rw.set("lease", "2s").listen_at(&rw_address);
    rw.start().await;
    let by_verbs =
        |status: &NodeStatus| status.replicas.iter().filter(|ro| ro.transport == "verbs").count() == 2;
    rw.until("both ROs are attached by verbs", by_verbs).await;
    let ros = [1, 2].map(|host| Node::elsewhere(&ro_address(host)));
    let mut load = Load::new(2);
    load.writer(&rw, 1000).await;
    load.writer(&rw, 1000).await;
    for node in [&rw, &ros[0], &ros[1]] {
        load.reader(node).await;
    }
    work(load.progress(), 40, 60).await;
    let counts = load.stop().await.assert_linearizable();
    println!("{counts:?}");
    let ours = snapshot(&rw.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
    for ro in &ros {
        let theirs = snapshot(&ro.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
        assert!(ours == theirs, "{} differs from the RW", ro.address());
    }
    rw.terminate();
    assert!(rw.exited().await.success());
}
