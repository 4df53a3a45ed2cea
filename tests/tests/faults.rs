//! Nodes that stand still, die and are cut off: nobody waits for them, they come back by themselves, and meanwhile they say
//! rather than guess.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::time::Duration;

use bytes::Bytes;
use headwater_client::{Cas, ClientError, Connection};
use headwater_protocol::status::{NodeStatus, Role};
use headwater_protocol::{Consistency, Error, Seqno, ShardName};
use headwater_tests::cluster::{Cluster, Node, PATIENCE, assert_behind, eventually};
use headwater_tests::load::{Load, Progress};
use headwater_tests::proxy::{Mode, Proxy};
use headwater_tests::snapshot::snapshot;
use tokio::task::JoinSet;

/// For reads that are to be refused.
const SOON: Duration = Duration::from_millis(500);

fn shard() -> ShardName {
    ShardName::new("s").unwrap()
}

async fn append(rw: &Connection, expected: Option<Seqno>, bytes: usize) -> Seqno {
    match rw.compare_and_set(&shard(), expected, Bytes::from(vec![7; bytes]), PATIENCE).await.unwrap() {
        Cas::Committed(seqno, _) => seqno,
        other => panic!("nobody else writes: {other:?}"),
    }
}

async fn strong_head(node: &Connection, deadline: Duration) -> Result<Option<Seqno>, ClientError> {
    let head = node.head(&shard(), Consistency::Strong, deadline).await?;
    Ok(head.entry.map(|entry| entry.seqno))
}

async fn assert_equal(one: &Node, other: &Node) {
    let ours = snapshot(&one.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
    let theirs = snapshot(&other.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
    assert!(ours == theirs, "{} and {} differ", one.address(), other.address());
}

async fn committed(progress: &Progress, more: u64) {
    let until = progress.committed() + more;
    let look = || std::future::ready((progress.committed() >= until).then_some(()));
    eventually("writes are acknowledged", look).await;
}

/// S4, S5: the RW waits for nobody; who is more than a ring behind is fed from segments.
async fn a_paused_ro_catches_up(transport: &str) {
    // So that the link outlives the pause.
    let cluster = Cluster::start(&[("lease", "10s"), ("ring-bytes", "64KiB")], &[transport]).await;
    let ro = &cluster.ros[0];
    let mut load = Load::new(1);
    load.writer(&cluster.rw, 8000).await;
    load.reader(ro).await;
    committed(load.progress(), 10).await;
    ro.pause();
    // Several rings' worth, each byte of it acknowledged while the RO takes none.
    committed(load.progress(), 60).await;
    let meanwhile = cluster.rw.status().await;
    let (epoch, replica) = (meanwhile.epoch, &meanwhile.replicas[0]);
    let shipped = replica.shipped;
    assert!(
        shipped.since(replica.received) <= 64 << 10,
        "what it has not taken is not overwritten: {replica:?}"
    );
    assert!(meanwhile.positions.visible.unwrap().since(shipped) > 4 * (64 << 10), "{meanwhile:?}");
    ro.resume();
    let caught_up = meanwhile.positions.visible;
    ro.until("it catches up", |status| status.positions.applied >= caught_up).await;
    load.stop().await.assert_linearizable();
    assert_equal(&cluster.rw, ro).await;
    assert_eq!(ro.status().await.epoch, epoch);
    assert_eq!(ro.log().matches("follow: attached to the RW").count(), 1, "on the link that it had");
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_for_longer_than_the_ring_holds_an_ro_on_shm_catches_up() {
    a_paused_ro_catches_up("shm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_for_longer_than_the_ring_holds_an_ro_on_tcp_catches_up() {
    a_paused_ro_catches_up("tcp").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
async fn paused_for_longer_than_the_ring_holds_an_ro_on_verbs_catches_up() {
    a_paused_ro_catches_up("verbs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_ro_begins_again_and_is_equal() {
    let mut cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let mut load = Load::new(2);
    for _ in 0..2 {
        load.writer(&cluster.rw, 2000).await;
    }
    for _ in 0..3 {
        for ro in &mut cluster.ros {
            ro.kill();
            committed(load.progress(), 20).await;
            ro.start().await;
            ro.attached().await;
        }
    }
    load.stop().await.assert_linearizable();
    for ro in &cluster.ros {
        assert_equal(&cluster.rw, ro).await;
    }
    cluster.rw.until("it has forgotten the dead ones", |status| status.replicas.len() == 2).await;
}

/// Cut off, an RO says so, reads weakly on, and comes back by itself with all that it missed.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_that_is_cut_off_comes_back_by_itself() {
    let mut cluster = Cluster::start(&[], &[]).await;
    let proxy = Proxy::start(cluster.rw.address()).await;
    cluster.add_ro_of(proxy.address(), "tcp").await;
    let (ro, mut load) = (&cluster.ros[0], Load::new(1));
    load.writer(&cluster.rw, 2000).await;
    load.reader(ro).await;
    for mode in [Mode::Cut, Mode::Held] {
        committed(load.progress(), 10).await;
        proxy.set(mode);
        let away = |status: &NodeStatus| status.upstream.as_ref().is_some_and(|rw| !rw.connected);
        ro.until("it has noticed", away).await;
        let connection = ro.connect().await;
        let head = ShardName::new("load/0").unwrap();
        assert_behind(|| connection.head(&head, Consistency::Strong, SOON)).await;
        let weak = connection.head(&head, Consistency::Eventual, SOON).await.unwrap();
        assert!(weak.entry.is_some());
        cluster.rw.until("the RW has noticed too", |status| status.replicas.is_empty()).await;
        committed(load.progress(), 60).await;
        proxy.set(Mode::Open);
        ro.attached().await;
    }
    load.stop().await.assert_linearizable();
    assert_equal(&cluster.rw, ro).await;
}

/// E3, R6: an RO cannot tell an RW that stands still from one that another has replaced.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_rw_stands_still_nothing_is_read_strongly_once_the_lease_has_run_out() {
    // The link outlives the pause: only the lease stands between a reader and a timestamp that nobody renews.
    let cluster = Cluster::start(&[("lease", "1s")], &["shm", "tcp"]).await;
    let rw = cluster.rw.connect().await;
    let head = append(&rw, None, 100).await;
    for ro in &cluster.ros {
        assert_eq!(strong_head(&ro.connect().await, PATIENCE).await.unwrap(), Some(head));
    }
    cluster.rw.pause();
    for ro in &cluster.ros {
        let expired = |status: &NodeStatus| status.upstream.as_ref().is_some_and(|rw| rw.lease_ms == 0);
        ro.until("its lease runs out", expired).await;
        let connection = ro.connect().await;
        assert_behind(|| strong_head(&connection, SOON)).await;
        let weak = connection.head(&shard(), Consistency::Eventual, SOON).await.unwrap();
        assert_eq!(weak.entry.map(|entry| entry.seqno), Some(head));
    }
    cluster.rw.resume();
    let next = append(&rw, Some(head), 100).await;
    for ro in &cluster.ros {
        assert_eq!(strong_head(&ro.connect().await, PATIENCE).await.unwrap(), Some(next));
    }
}

/// E5: with the RW gone, every RO tells where it stands, serves what it may, and points writers to where the RW was.
#[tokio::test(flavor = "multi_thread")]
async fn with_the_rw_down_ros_answer_for_themselves() {
    let mut cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let head = append(&cluster.rw.connect().await, None, 100).await;
    let applied = cluster.rw.status().await.positions.visible;
    for ro in &cluster.ros {
        ro.until("it has the write", |status| status.positions.applied == applied).await;
    }
    let rw_address = cluster.rw.address().to_owned();
    cluster.rw.kill();
    for ro in &cluster.ros {
        let away = |status: &NodeStatus| status.upstream.as_ref().is_some_and(|rw| !rw.connected);
        let status = ro.until("it has noticed", away).await;
        assert_eq!((status.role, status.positions.applied), (Role::Ro, applied));
        let upstream = status.upstream.unwrap();
        assert_eq!((&upstream.address, upstream.lease_ms), (&rw_address, 0));
        assert!(!upstream.why.is_empty(), "it says why it is not attached");

        let connection = ro.connect().await;
        assert_behind(|| strong_head(&connection, SOON)).await;
        let weak = connection.head(&shard(), Consistency::Eventual, SOON).await.unwrap();
        assert_eq!(weak.entry.map(|entry| entry.seqno), Some(head));
        let at_least = Consistency::AtLeast(applied.unwrap());
        let known = connection.head(&shard(), at_least, SOON).await.unwrap();
        assert_eq!(known.entry.map(|entry| entry.seqno), Some(head));
        let write = connection.compare_and_set(&shard(), Some(head), Bytes::new(), SOON).await;
        let refusal = ClientError::Refused(Error::NotWritable { rw: rw_address.clone() });
        assert_eq!(write.unwrap_err(), refusal);
    }
    cluster.rw.start().await;
    cluster.all_attached().await;
    for ro in &cluster.ros {
        assert_eq!(strong_head(&ro.connect().await, PATIENCE).await.unwrap(), Some(head));
    }
}

/// An RO that never met an RW has no right to say that a shard is empty.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_that_never_met_its_rw_serves_nothing_strongly_until_it_does() {
    let mut cluster = Cluster::start(&[], &[]).await;
    let head = append(&cluster.rw.connect().await, None, 100).await;
    cluster.rw.kill();
    let mut ro = Node::ro(cluster.dir.path(), "early", cluster.rw.address(), "auto");
    ro.start().await;
    let early = ro.connect().await;
    assert_behind(|| strong_head(&early, SOON)).await;
    let upstream = ro.status().await.upstream.unwrap();
    assert!(!upstream.connected && upstream.why.contains(cluster.rw.address()), "{upstream:?}");
    cluster.rw.start().await;
    assert_eq!(strong_head(&ro.connect().await, PATIENCE).await.unwrap(), Some(head));
}

/// E3: the RO's link is a black hole and it still believes; the RW dies, and the next one takes writes. No strong read on the
/// RO may miss one of them.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_that_does_not_know_of_the_rws_end_serves_nothing_from_before_it() {
    let mut cluster = Cluster::start(&[("lease", "200ms")], &[]).await;
    let proxy = Proxy::start(cluster.rw.address()).await;
    cluster.add_ro_of(proxy.address(), "tcp").await;
    cluster.add_ro("shm").await;
    let mut load = Load::new(2);
    for _ in 0..2 {
        load.writer(&cluster.rw, 500).await;
    }
    for ro in &cluster.ros {
        load.reader(ro).await;
        load.reader(ro).await;
    }
    for round in 0..6 {
        committed(load.progress(), 20).await;
        // In half of the rounds it still gets timestamps and hears no log; in the others it gets nothing.
        let mode = if round % 2 == 0 { Mode::HeldFromUpstream(proxy.accepted() - 2) } else { Mode::Held };
        proxy.set(mode);
        cluster.rw.kill();
        cluster.rw.start().await;
        committed(load.progress(), 20).await;
        proxy.set(Mode::Open);
        cluster.all_attached().await;
    }
    let counts = load.stop().await.assert_linearizable();
    assert!(counts.strong_reads > 100, "{counts:?}");
    for ro in &cluster.ros {
        assert_equal(&cluster.rw, ro).await;
    }
}

/// E3, R6: an RO sleeps through the RW's end. When it wakes, the old timestamps are still in its reach, and whether it
/// looks at them before it notices is a matter of luck: so by then its lease must have run out, and the next RW must have
/// waited for that before it took a write.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_that_slept_through_the_rws_end_serves_nothing_from_before_it() {
    let mut cluster = Cluster::start(&[("lease", "300ms")], &["shm", "tcp"]).await;
    let mut head = append(&cluster.rw.connect().await, None, 100).await;
    for _ in 0..5 {
        let mut connections = Vec::new();
        for ro in &cluster.ros {
            strong_head(&ro.connect().await, PATIENCE).await.unwrap();
            for _ in 0..8 {
                connections.push(ro.connect().await);
            }
        }
        cluster.ros.iter().for_each(Node::pause);
        cluster.rw.kill();
        cluster.rw.start().await;
        head = append(&cluster.rw.connect().await, Some(head), 100).await;
        // Asked while it sleeps, so that the first thing it does is to answer.
        let mut reads = JoinSet::new();
        for connection in connections {
            reads.spawn(async move { strong_head(&connection, PATIENCE).await });
        }
        cluster.ros.iter().for_each(Node::resume);
        while let Some(read) = reads.join_next().await {
            assert_eq!(read.unwrap().unwrap(), Some(head), "a read sent after the acknowledgement");
        }
        cluster.all_attached().await;
    }
}

/// E3: the RW stands still, and another takes its place with a copy of its log. The ROs of the first cannot know, and still
/// have their right, for as long as the first was told to give it: before they have lost it the second takes no write, and shows nothing either,
/// as what it recovered may be news to them.
#[tokio::test(flavor = "multi_thread")]
async fn an_rw_in_anothers_place_serves_nobody_while_an_ro_may_still_read_for_the_first() {
    let cluster = Cluster::start(&[("lease", "2s")], &["shm", "tcp"]).await;
    let head = append(&cluster.rw.connect().await, None, 100).await;
    for ro in &cluster.ros {
        assert_eq!(strong_head(&ro.connect().await, PATIENCE).await.unwrap(), Some(head));
    }
    cluster.rw.pause();
    let mut second = Node::rw(cluster.dir.path(), "second");
    second.set("lease", "20ms");
    std::fs::create_dir(second.data_dir()).unwrap();
    for file in std::fs::read_dir(cluster.rw.data_dir()).unwrap().map(|file| file.unwrap()) {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), second.data_dir().join(file.file_name())).unwrap();
        }
    }
    second.spawn();
    while Connection::open(second.address(), SOON).await.is_err() {
        tokio::task::yield_now().await;
    }
    for ro in &cluster.ros {
        assert_eq!(
            ro.status().await.upstream.unwrap().lease_ms,
            0,
            "the second serves, so the first's ROs must not"
        );
    }
    second.ready().await;
    append(&second.connect().await, Some(head), 100).await;
    for ro in &cluster.ros {
        let connection = ro.connect().await;
        assert_behind(|| strong_head(&connection, SOON)).await;
    }
}

/// R5: what a restarted RW has read back counts as much as what it wrote itself, and an RO that is still fetching it has
/// nothing to say.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_that_begins_with_a_restarted_rw_shows_all_of_its_log_or_waits() {
    let mut cluster = Cluster::start(&[("ring-bytes", "64KiB")], &[]).await;
    let rw = cluster.rw.connect().await;
    let mut head = None;
    for _ in 0..200 {
        head = Some(append(&rw, head, 16_000).await);
    }
    cluster.rw.kill();
    cluster.rw.start().await;
    for transport in ["shm", "tcp"] {
        let mut ro = Node::ro(cluster.dir.path(), transport, cluster.rw.address(), transport);
        ro.start().await;
        // Answered as soon as it has the right to, and no sooner than it has the log.
        assert_eq!(strong_head(&ro.connect().await, PATIENCE).await.unwrap(), head, "on {transport}");
    }
}
