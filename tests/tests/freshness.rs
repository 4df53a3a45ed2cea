//! A strong read on an RO shows everything that was acknowledged before it was asked for; and where the RO is behind, it
//! waits for no more than it must.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater_client::{Cas, ClientError, Connection};
use headwater_protocol::{Consistency, Seqno, Served, ShardName};
use headwater_tests::cluster::{Cluster, PATIENCE, assert_behind};
use headwater_tests::history::History;
use headwater_tests::load::Load;
use headwater_tests::proxy::{Mode, Proxy};

const WRITERS: usize = 4;
const WRITES: u64 = 60;

fn shard(name: &str) -> ShardName {
    ShardName::new(name).unwrap()
}

async fn append(
    history: &History,
    rw: &Connection,
    shard: &ShardName,
    expected: Option<Seqno>,
) -> (Seqno, Bytes) {
    let next = expected.map_or(0, |expected| expected.get() + 1);
    let data = Bytes::from(format!("{shard}/{next}"));
    let call = rw.compare_and_set(shard, expected, data.clone(), PATIENCE);
    match history.compare_and_set(shard, expected, data.clone(), call).await.unwrap() {
        Cas::Committed(seqno, _) => (seqno, data),
        other => panic!("nobody else writes {shard}: {other:?}"),
    }
}

/// Each writer asks every RO for its shard right after each acknowledgement, by head and by scan; other shards are busy.
async fn every_acknowledged_write_is_seen_at_once(flags: &[(&'static str, &str)]) {
    let cluster = Cluster::start(flags, &["shm", "tcp"]).await;
    let mut load = Load::new(2);
    for _ in 0..2 {
        load.writer(&cluster.rw, 4000).await;
    }
    for ro in &cluster.ros {
        load.reader(ro).await;
    }
    let history = load.history().clone();
    let mut writers = Vec::new();
    for n in 0..WRITERS {
        let rw = cluster.rw.connect().await;
        let mut ros = Vec::new();
        for ro in &cluster.ros {
            ros.push(ro.connect().await);
        }
        writers.push(tokio::spawn(write_and_look(history.clone(), rw, ros, shard(&format!("own/{n}")))));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    load.stop().await;
    let counts = history.assert_linearizable();
    assert!(counts.committed as u64 > WRITERS as u64 * WRITES, "the others were busy too: {counts:?}");
}

async fn write_and_look(history: Arc<History>, rw: Connection, ros: Vec<Connection>, shard: ShardName) {
    let mut head = None;
    for n in 0..WRITES {
        let (seqno, data) = append(&history, &rw, &shard, head).await;
        head = Some(seqno);
        for ro in &ros {
            let strong = Consistency::Strong;
            let call = ro.head(&shard, strong, PATIENCE);
            let seen = history.head(&shard, strong, call).await.unwrap().entry.expect("it was written");
            assert_eq!((seen.seqno, &seen.data), (seqno, &data), "by head, on {}", ro.address());
            let from = Seqno::new(n.saturating_sub(2)).unwrap();
            let call = ro.scan(&shard, from, 10, strong, PATIENCE);
            let seen = history.scan(&shard, from, strong, call).await.unwrap().entries;
            assert_eq!(seen.last().map(|entry| entry.seqno), head, "by scan, on {}", ro.address());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strong_read_shows_what_was_acknowledged_before_it() {
    every_acknowledged_write_is_seen_at_once(&[]).await;
}

/// R4: every shard and every page shares one slot.
#[tokio::test(flavor = "multi_thread")]
async fn one_slot_for_all_is_as_right() {
    every_acknowledged_write_is_seen_at_once(&[("shard-slots", "1"), ("page-slots", "1")]).await;
}

/// A cluster whose RO does not hear the log any more, but can still fetch timestamps, and may for long.
struct Deaf {
    cluster: Cluster,
    proxy: Proxy,
    rw: Connection,
    ro: Connection,
    history: History,
}

impl Deaf {
    /// Shards `still` and `busy` have two pages of entries each; then the RO goes deaf.
    async fn new(flags: &[(&'static str, &str)]) -> Deaf {
        let flags: Vec<_> = [("lease", "30s"), ("page-entries", "4")].iter().chain(flags).copied().collect();
        let mut cluster = Cluster::start(&flags, &[]).await;
        let proxy = Proxy::start(cluster.rw.address()).await;
        cluster.add_ro_of(proxy.address(), "tcp").await;
        assert_eq!(proxy.accepted(), 2, "the log comes by the first connection, timestamps by the second");
        let (rw, ro) = (cluster.rw.connect().await, cluster.ros[0].connect().await);
        let deaf = Deaf { cluster, proxy, rw, ro, history: History::default() };
        for name in ["still", "busy"] {
            let mut head = None;
            for _ in 0..6 {
                head = Some(append(&deaf.history, &deaf.rw, &shard(name), head).await.0);
            }
            deaf.head(name, Duration::from_secs(20)).await.unwrap();
        }
        deaf.proxy.set(Mode::HeldFromUpstream(0));
        deaf
    }

    async fn write(&self, name: &str, expected: u64) {
        append(&self.history, &self.rw, &shard(name), Some(Seqno::new(expected).unwrap())).await;
    }

    async fn head(&self, name: &str, deadline: Duration) -> Result<(u64, Served), ClientError> {
        let (shard, strong) = (shard(name), Consistency::Strong);
        let head = self.history.head(&shard, strong, self.ro.head(&shard, strong, deadline)).await?;
        Ok((head.entry.expect("it was written").seqno.get(), head.reflects.served))
    }

    async fn scan(&self, name: &str, from: u64, limit: u32) -> Result<(usize, Served), ClientError> {
        let (shard, from, strong) = (shard(name), Seqno::new(from).unwrap(), Consistency::Strong);
        let call = self.ro.scan(&shard, from, limit, strong, SOON);
        let scan = self.history.scan(&shard, from, strong, call).await?;
        Ok((scan.entries.len(), scan.reflects.served))
    }
}

/// Long enough for a read that need not wait, short enough to wait for one that must.
const SOON: Duration = Duration::from_secs(1);

/// R3: shards and pages that did not change are read without the log; those that did are waited for.
#[tokio::test(flavor = "multi_thread")]
async fn an_ro_that_is_behind_serves_what_did_not_change_and_waits_for_what_did() {
    let deaf = Deaf::new(&[]).await;
    deaf.write("busy", 5).await;

    assert_eq!(deaf.head("still", SOON).await.unwrap(), (5, Served::Shard));
    // Entry 6 is on the second page: the first did not change.
    assert_eq!(deaf.scan("busy", 0, 3).await.unwrap(), (3, Served::Page));
    assert_behind(|| deaf.head("busy", SOON)).await;
    assert_behind(|| deaf.scan("busy", 2, 10)).await;
    assert_behind(|| deaf.scan("busy", 0, 4)).await;
    let (busy, new, strong) = (shard("busy"), shard("new"), Consistency::Strong);
    assert_behind(|| deaf.ro.shards("", "", 10, strong, SOON)).await;
    // A shard that is new to the RO has no pages there.
    append(&deaf.history, &deaf.rw, &new, None).await;
    assert_behind(|| deaf.ro.head(&new, strong, SOON)).await;

    // Weaker ones are served as asked for, and never taken for strong.
    let eventual = deaf.ro.head(&busy, Consistency::Eventual, SOON).await.unwrap();
    assert_eq!(eventual.entry.unwrap().seqno.get(), 5);
    let rw_lsn = deaf.rw.head(&busy, strong, SOON).await.unwrap().reflects.lsn;
    assert_behind(|| deaf.ro.head(&busy, Consistency::AtLeast(rw_lsn), SOON)).await;
    assert_behind(|| deaf.ro.head(&busy, Consistency::Bounded(Duration::from_millis(1)), SOON)).await;

    deaf.proxy.set(Mode::Open);
    assert_eq!(deaf.head("busy", PATIENCE).await.unwrap().0, 6);
    deaf.history.assert_linearizable();
}

/// A truncate changes the pages that it empties, and only those.
#[tokio::test(flavor = "multi_thread")]
async fn a_truncate_is_waited_for_where_it_changes_the_answer() {
    let deaf = Deaf::new(&[]).await;
    let busy = shard("busy");
    let cut = Seqno::new(3).unwrap();
    deaf.history.truncate(&busy, cut, deaf.rw.truncate(&busy, cut, PATIENCE)).await.unwrap();
    assert_behind(|| deaf.scan("busy", 0, 3)).await;
    assert_eq!(deaf.scan("busy", 4, 10).await.unwrap(), (2, Served::Page));
    assert_eq!(deaf.head("busy", SOON).await.unwrap(), (5, Served::Page));
    deaf.proxy.set(Mode::Open);
    let (shard, strong, from) = (busy, Consistency::Strong, Seqno::ZERO);
    let call = deaf.ro.scan(&shard, from, 10, strong, PATIENCE);
    assert_eq!(deaf.history.scan(&shard, from, strong, call).await.unwrap().entries.len(), 3);
    deaf.history.assert_linearizable();
}

/// R4: a collision costs waiting, nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn with_one_slot_everything_waits_and_nothing_is_stale() {
    let deaf = Deaf::new(&[("shard-slots", "1"), ("page-slots", "1")]).await;
    deaf.write("busy", 5).await;
    assert_behind(|| deaf.head("still", SOON)).await;
    assert_behind(|| deaf.scan("busy", 0, 3)).await;
    deaf.proxy.set(Mode::Open);
    assert_eq!(deaf.head("still", PATIENCE).await.unwrap().0, 5);
    deaf.history.assert_linearizable();
}

/// E3, R6: an RO that hears nothing loses its right to read strongly, although it could still fetch timestamps.
#[tokio::test(flavor = "multi_thread")]
async fn a_deaf_ro_serves_nothing_strongly_once_its_lease_has_run_out() {
    let deaf = Deaf::new(&[("lease", "2s")]).await;
    let expired = |status: &headwater_protocol::status::NodeStatus| {
        status.upstream.as_ref().is_some_and(|rw| rw.connected && rw.lease_ms == 0)
    };
    deaf.cluster.ros[0].until("its lease runs out while it is attached", expired).await;
    assert_behind(|| deaf.head("still", SOON)).await;
    deaf.proxy.set(Mode::Open);
    assert_eq!(deaf.head("still", PATIENCE).await.unwrap().0, 5);
}
