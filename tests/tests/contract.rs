//! Every operation of the contract, on every node, by every consistency; and every refusal.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::time::Duration;

use bytes::Bytes;
use headwater_client::{Cas, Client, ClientError, Connection, Options};
use headwater_protocol::status::Role;
use headwater_protocol::{Consistency, Entry, Error, ErrorKind, Lsn, Seqno, Served, ShardName};
use headwater_tests::cluster::{Cluster, PATIENCE, eventually};

fn shard(name: &str) -> ShardName {
    ShardName::new(name).unwrap()
}

fn seqno(number: u64) -> Seqno {
    Seqno::new(number).unwrap()
}

fn data(n: u64) -> Bytes {
    Bytes::from(format!("entry {n}"))
}

async fn write(rw: &Connection, shard: &ShardName, number: u64) -> Lsn {
    let expected = number.checked_sub(1).map(seqno);
    match rw.compare_and_set(shard, expected, data(number), PATIENCE).await.unwrap() {
        Cas::Committed(committed, lsn) if committed == seqno(number) => lsn,
        other => panic!("{number} should be next: {other:?}"),
    }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Error {
    match result {
        Err(ClientError::Refused(error)) => {
            assert_eq!(error.kind(), ErrorKind::Determinate);
            error
        }
        other => panic!("it should be refused: {other:?}"),
    }
}

/// Connections to the RW, to an RO on shm and to one on tcp.
async fn connections(cluster: &Cluster) -> [Connection; 3] {
    [cluster.rw.connect().await, cluster.ros[0].connect().await, cluster.ros[1].connect().await]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_serves_every_read_by_every_consistency() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    for (ro, transport) in cluster.ros.iter().zip(["shm", "tcp"]) {
        assert_eq!(ro.status().await.upstream.unwrap().transport, transport);
    }
    let nodes = connections(&cluster).await;
    let (rw, s) = (&nodes[0], shard("s"));
    for node in &nodes {
        let head = node.head(&s, Consistency::Strong, PATIENCE).await.unwrap();
        assert_eq!(head.entry, None, "never written");
        let scan = node.scan(&s, Seqno::ZERO, 10, Consistency::Strong, PATIENCE).await.unwrap();
        assert!(scan.entries.is_empty() && !scan.more);
    }
    let mut lsn = Lsn::ZERO;
    for n in 0..10 {
        let written = write(rw, &s, n).await;
        assert!(written > lsn);
        lsn = written;
    }
    // A first strong read on each, so that the weaker ones have all of it too.
    for node in &nodes {
        node.head(&s, Consistency::Strong, PATIENCE).await.unwrap();
        let consistencies = [
            Consistency::Strong,
            Consistency::AtLeast(lsn),
            Consistency::Bounded(Duration::from_millis(1)),
            Consistency::Bounded(Duration::from_secs(3600)),
            Consistency::Eventual,
        ];
        for consistency in consistencies {
            let at = || format!("{consistency:?} on {}", node.address());
            let head = node.head(&s, consistency, PATIENCE).await.unwrap();
            assert_eq!(head.entry, Some(Entry { seqno: seqno(9), data: data(9) }), "{}", at());
            assert!(head.reflects.lsn >= lsn, "{}", at());
            let is_rw = node.address() == cluster.rw.address();
            assert_eq!(head.reflects.served == Served::Rw, is_rw, "{}", at());

            let scan = node.scan(&s, seqno(3), 4, consistency, PATIENCE).await.unwrap();
            let expected: Vec<_> = (3..7).map(|n| Entry { seqno: seqno(n), data: data(n) }).collect();
            assert_eq!((&scan.entries, scan.more), (&expected, true), "{}", at());
            let scan = node.scan(&s, seqno(8), 100, consistency, PATIENCE).await.unwrap();
            assert_eq!((scan.entries.len(), scan.more), (2, false), "{}", at());
            let scan = node.scan(&s, seqno(10), 100, consistency, PATIENCE).await.unwrap();
            assert_eq!((scan.entries.len(), scan.more), (0, false), "{}", at());
            let names = node.shards("", "", 10, consistency, PATIENCE).await.unwrap();
            assert_eq!((names.names, names.more), (vec![s.clone()], false), "{}", at());
        }
    }
}

/// Read your writes: the LSN of a reply is a token on every node.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_a_token() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let nodes = connections(&cluster).await;
    let s = shard("s");
    for n in 0..50 {
        let lsn = write(&nodes[0], &s, n).await;
        for node in &nodes {
            let head = node.head(&s, Consistency::AtLeast(lsn), PATIENCE).await.unwrap();
            assert!(head.reflects.lsn >= lsn);
            assert_eq!(head.entry.unwrap().seqno, seqno(n), "on {}", node.address());
        }
    }
    let far = Consistency::AtLeast(Lsn::new(1 << 40));
    for node in &nodes {
        let result = node.head(&s, far, Duration::from_millis(300)).await;
        assert!(matches!(refusal(result), Error::ReplicaBehind { .. }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mismatch_is_an_answer_and_truncates_never_take_the_head() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let nodes = connections(&cluster).await;
    let (rw, s) = (&nodes[0], shard("s"));
    let cas = async |expected: Option<u64>| {
        rw.compare_and_set(&s, expected.map(seqno), data(99), PATIENCE).await.unwrap()
    };
    let head_of = |answer| match answer {
        Cas::Mismatch { head, .. } => head,
        other => panic!("{other:?}"),
    };
    assert_eq!(head_of(cas(Some(0)).await), None, "never written");
    for n in 0..6 {
        write(rw, &s, n).await;
    }
    for wrong in [None, Some(0), Some(4), Some(6), Some(i64::MAX as u64 - 1)] {
        assert_eq!(head_of(cas(wrong).await), Some(seqno(5)), "expecting {wrong:?}");
    }

    assert_eq!(refusal(rw.truncate(&shard("never"), seqno(0), PATIENCE).await), Error::UnknownShard);
    let above = refusal(rw.truncate(&s, seqno(6), PATIENCE).await);
    assert_eq!(above, Error::CutAboveHead { head: seqno(5) });
    assert_eq!(rw.truncate(&s, seqno(3), PATIENCE).await.unwrap().removed, 3);
    assert_eq!(rw.truncate(&s, seqno(2), PATIENCE).await.unwrap().removed, 0);
    assert_eq!(rw.truncate(&s, seqno(5), PATIENCE).await.unwrap().removed, 2);
    for node in &nodes {
        let scan = node.scan(&s, Seqno::ZERO, 10, Consistency::Strong, PATIENCE).await.unwrap();
        assert_eq!(scan.entries, [Entry { seqno: seqno(5), data: data(5) }], "on {}", node.address());
    }
    // Cut down to its head, it is still no shard that was never written.
    assert_eq!(head_of(cas(None).await), Some(seqno(5)));
    let begin = rw.begin(&s, seqno(7), data(7), PATIENCE).await;
    assert_eq!(refusal(begin), Error::NotEmpty { head: seqno(5) });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_may_begin_anywhere_and_ends_at_the_last_seqno() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let nodes = connections(&cluster).await;
    let (rw, s) = (&nodes[0], shard("late"));
    let last = i64::MAX as u64;
    rw.begin(&s, seqno(last - 1), data(1), PATIENCE).await.unwrap();
    let end = rw.compare_and_set(&s, Some(seqno(last - 1)), data(2), PATIENCE).await.unwrap();
    assert!(matches!(end, Cas::Committed(committed, _) if committed == Seqno::MAX));
    let beyond = rw.compare_and_set(&s, Some(Seqno::MAX), data(3), PATIENCE).await;
    assert!(matches!(refusal(beyond), Error::InvalidArgument(_)));
    for node in &nodes {
        let head = node.head(&s, Consistency::Strong, PATIENCE).await.unwrap();
        assert_eq!(head.entry.unwrap().seqno, Seqno::MAX, "on {}", node.address());
        for from in [0, last - 1] {
            let scan = node.scan(&s, seqno(from), 10, Consistency::Strong, PATIENCE).await.unwrap();
            assert_eq!((scan.entries.len(), scan.more), (2, false), "from {from} on {}", node.address());
        }
    }
    assert_eq!(rw.truncate(&s, Seqno::MAX, PATIENCE).await.unwrap().removed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_sizes_have_bounds_that_say_what_they_are() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let nodes = connections(&cluster).await;
    let rw = &nodes[0];
    let names = ["x".to_owned(), "ü".repeat(512), "a/b\0c\n".to_owned(), "日本語".to_owned()];
    for name in &names {
        write(rw, &shard(name), 0).await;
    }
    let largest = 16 << 10;
    for (number, bytes) in [(1, largest), (2, 0)] {
        let data = Bytes::from(vec![9; bytes]);
        let written = rw.compare_and_set(&shard("x"), Some(seqno(number - 1)), data, PATIENCE).await;
        assert!(matches!(written, Ok(Cas::Committed(..))), "{bytes} bytes: {written:?}");
    }
    let too_large = Bytes::from(vec![9; largest + 1]);
    let Error::InvalidArgument(text) =
        refusal(rw.compare_and_set(&shard("x"), Some(seqno(2)), too_large, PATIENCE).await)
    else {
        panic!("an entry that is too large is an invalid argument")
    };
    assert!(text.contains("16384") && text.contains("16385"), "{text}");
    for node in &nodes {
        let strong = Consistency::Strong;
        let scan = node.scan(&shard("x"), Seqno::ZERO, 10, strong, PATIENCE).await.unwrap();
        let sizes: Vec<_> = scan.entries.iter().map(|entry| entry.data.len()).collect();
        assert_eq!(sizes, [7, largest, 0]);
        let listed = node.shards("", "", 100, strong, PATIENCE).await.unwrap().names;
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(listed.iter().map(ShardName::as_str).collect::<Vec<_>>(), sorted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_are_paged_in_order() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let nodes = connections(&cluster).await;
    for n in 0..25 {
        write(&nodes[0], &shard(&format!("t/{n:02}")), 0).await;
    }
    write(&nodes[0], &shard("u"), 0).await;
    for node in &nodes {
        let (mut after, mut pages, mut names) = (String::new(), 0, Vec::new());
        loop {
            let page = node.shards("t/", &after, 10, Consistency::Strong, PATIENCE).await.unwrap();
            pages += 1;
            after = page.names.last().unwrap().as_str().to_owned();
            names.extend(page.names);
            if !page.more {
                break;
            }
        }
        let expected: Vec<_> = (0..25).map(|n| shard(&format!("t/{n:02}"))).collect();
        assert_eq!((pages, names), (3, expected), "on {}", node.address());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ro_takes_no_writes_and_says_who_does() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let s = shard("s");
    let refused = Error::NotWritable { rw: cluster.rw.address().into() };
    for ro in &cluster.ros {
        let ro = ro.connect().await;
        assert_eq!(refusal(ro.compare_and_set(&s, None, data(0), PATIENCE).await), refused);
        assert_eq!(refusal(ro.begin(&s, seqno(4), data(0), PATIENCE).await), refused);
        assert_eq!(refusal(ro.truncate(&s, seqno(0), PATIENCE).await), refused);
    }
    // A client that knows only an RO finds the RW by that.
    let options = Options { nodes: vec![cluster.ros[0].address().into()], ..Options::default() };
    let client = Client::connect(options).await.unwrap();
    assert_eq!(client.append(&s, data(0)).await.unwrap().0, Seqno::ZERO);
    let roles: Vec<_> = client.status().await.into_iter().map(|(_, status)| status.unwrap().role).collect();
    assert_eq!(roles.iter().filter(|role| **role == Role::Rw).count(), 1);
    assert_eq!(roles.len(), 3, "and the other nodes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_every_entry_in_order_or_says_where_the_log_begins() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let nodes = connections(&cluster).await;
    let (rw, s) = (&nodes[0], shard("s"));
    let mut watches = Vec::new();
    for node in &nodes {
        // Before the shard's first write.
        watches.push(node.watch(&s, Seqno::ZERO).await.unwrap());
    }
    for n in 0..200 {
        write(rw, &s, n).await;
    }
    for watch in &mut watches {
        for n in 0..200 {
            assert_eq!(watch.next().await.unwrap().unwrap(), Entry { seqno: seqno(n), data: data(n) });
        }
    }
    // What was given out already may go.
    rw.truncate(&s, seqno(150), PATIENCE).await.unwrap();
    write(rw, &s, 200).await;
    for (watch, node) in watches.iter_mut().zip(&nodes) {
        assert_eq!(watch.next().await.unwrap().unwrap().seqno, seqno(200));
        node.head(&s, Consistency::Strong, PATIENCE).await.unwrap();
        let mut late = node.watch(&s, seqno(149)).await.unwrap();
        let error = late.next().await.unwrap().unwrap_err();
        assert_eq!(error, ClientError::Refused(Error::TooFarBack { lo: seqno(150) }));
        assert!(late.next().await.is_none(), "nothing follows an error");
        let mut just = node.watch(&s, seqno(150)).await.unwrap();
        assert_eq!(just.next().await.unwrap().unwrap().seqno, seqno(150));
    }
}

/// A client's watch outlives the node that it is on.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_without_gaps_when_its_ro_dies() {
    let mut cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let options = Options { nodes: vec![cluster.rw.address().into()], ..Options::default() };
    let client = Client::connect(options).await.unwrap();
    let s = shard("s");
    let mut watch = client.watch(&s, Seqno::ZERO).await.unwrap();
    let mut next = 0;
    for at in [0, 1, 0, 1] {
        for _ in 0..20 {
            client.append(&s, data(next)).await.unwrap();
            assert_eq!(watch.next().await.unwrap().unwrap(), Entry { seqno: seqno(next), data: data(next) });
            next += 1;
        }
        cluster.ros[at].kill();
        client.append(&s, data(next)).await.unwrap();
        assert_eq!(watch.next().await.unwrap().unwrap().seqno, seqno(next));
        next += 1;
        cluster.ros[at].start().await;
        cluster.all_attached().await;
    }
}

/// What a status tells is what there is.
#[tokio::test(flavor = "multi_thread")]
async fn positions_and_counts_are_those_of_the_state() {
    let cluster = Cluster::start(&[], &["shm", "tcp"]).await;
    let rw = cluster.rw.connect().await;
    let mut lsn = Lsn::ZERO;
    for n in 0..5 {
        lsn = write(&rw, &shard("a"), n).await;
    }
    let status = cluster.rw.status().await;
    assert_eq!((status.shards, status.entries, status.data_bytes), (1, 5, 5 * 7));
    assert_eq!(status.positions.visible, Some(lsn));
    assert_eq!((status.positions.appended, status.positions.flushed), (Some(lsn), Some(lsn)));
    let has_all = |replica: &headwater_protocol::status::ReplicaStatus| {
        replica.applied == lsn && replica.received == lsn && replica.shipped == lsn && replica.lag_bytes == 0
    };
    let what = "the RW knows that both have everything";
    let look = || async { cluster.rw.status().await.replicas.iter().all(has_all).then_some(()) };
    eventually(what, look).await;
    for ro in &cluster.ros {
        let theirs = ro.status().await;
        assert_eq!((theirs.shards, theirs.entries, theirs.data_bytes), (1, 5, 5 * 7));
        assert_eq!((theirs.cluster_id, theirs.epoch), (status.cluster_id, status.epoch));
        assert_eq!((theirs.positions.applied, theirs.positions.received), (Some(lsn), Some(lsn)));
    }
}
