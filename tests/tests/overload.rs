//! More is asked than can be done: it is refused at once, what is taken is served, and it is over when the load is (W6).

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headwater_client::{Cas, ClientError, Connection};
use headwater_protocol::{Consistency, Error, ErrorKind, ShardName};
use headwater_tests::cluster::{Cluster, PATIENCE, eventually};
use tokio::task::JoinSet;

const IN_FLIGHT_MAX: usize = 64;

#[derive(Default)]
struct Counts {
    committed: AtomicU64,
    overloaded: AtomicU64,
}

/// Writes new shards one after the other until told to stop.
async fn write_on(
    rw: Connection,
    name: usize,
    counts: Arc<Counts>,
    stop: tokio::sync::watch::Receiver<bool>,
) {
    for n in 0.. {
        if *stop.borrow() {
            return;
        }
        let shard = ShardName::new(&format!("{name}/{n}")).unwrap();
        match rw.compare_and_set(&shard, None, Bytes::from(vec![1; 200]), PATIENCE).await {
            Ok(Cas::Committed(..)) => drop(counts.committed.fetch_add(1, Ordering::Relaxed)),
            Err(error @ ClientError::Refused(Error::Overloaded(_))) => {
                assert_eq!(error.kind(), ErrorKind::Determinate);
                counts.overloaded.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn past_its_bound_the_rw_refuses_at_once_and_goes_on_serving() {
    let cluster = Cluster::start(&[("in-flight-max", "64")], &["shm"]).await;
    let counts = Arc::new(Counts::default());
    let stop = tokio::sync::watch::Sender::new(false);
    let mut clients = JoinSet::new();
    // Three times as many as may be in flight, on a few connections.
    let mut connections = Vec::new();
    for _ in 0..4 {
        connections.push(cluster.rw.connect().await);
    }
    for n in 0..3 * IN_FLIGHT_MAX {
        let rw = connections[n % connections.len()].clone();
        clients.spawn(write_on(rw, n, counts.clone(), stop.subscribe()));
    }
    let seen = |counts: &Counts| {
        (counts.committed.load(Ordering::Relaxed), counts.overloaded.load(Ordering::Relaxed))
    };
    let refused = || std::future::ready((seen(&counts).1 > 200).then_some(()));
    eventually("writes are refused", refused).await;
    let so_far = seen(&counts).0;
    let goes_on = || std::future::ready((seen(&counts).0 > so_far + 500).then_some(()));
    eventually("writes are acknowledged all the same", goes_on).await;
    // Reads do not queue behind writes.
    let ro = cluster.ros[0].connect().await;
    ro.shards("", "", 1, Consistency::Strong, Duration::from_secs(10)).await.unwrap();

    stop.send_replace(true);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    // The load is gone, and with it the refusals: as many as may be in flight are taken together.
    let refusals = seen(&counts).1;
    let mut last = JoinSet::new();
    for n in 0..IN_FLIGHT_MAX {
        let (rw, shard) = (connections[0].clone(), ShardName::new(&format!("last/{n}")).unwrap());
        last.spawn(async move { rw.compare_and_set(&shard, None, Bytes::new(), PATIENCE).await });
    }
    while let Some(write) = last.join_next().await {
        assert!(matches!(write.unwrap(), Ok(Cas::Committed(..))));
    }
    assert_eq!(seen(&counts).1, refusals);
    // Everything acknowledged is there, nothing that was refused.
    let entries = cluster.rw.status().await.entries;
    assert_eq!(entries, seen(&counts).0 + IN_FLIGHT_MAX as u64);
}

/// The ring is the other bound: entries so large that few fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_ring_full_of_what_is_not_flushed_refuses_too() {
    let cluster = Cluster::start(&[("ring-bytes", "64KiB")], &[]).await;
    let rw = cluster.rw.connect().await;
    let mut writes = JoinSet::new();
    for n in 0..200 {
        let (rw, shard) = (rw.clone(), ShardName::new(&format!("large/{n}")).unwrap());
        let data = Bytes::from(vec![1; 16 << 10]);
        writes.spawn(async move { rw.compare_and_set(&shard, None, data, PATIENCE).await });
    }
    let (mut committed, mut refused) = (0, 0);
    while let Some(write) = writes.join_next().await {
        match write.unwrap() {
            Ok(Cas::Committed(..)) => committed += 1,
            Err(ClientError::Refused(Error::Overloaded(_))) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(committed > 0 && refused > 0, "{committed} committed, {refused} refused");
    assert_eq!(cluster.rw.status().await.entries, committed);
}
