use headwater_protocol::Epoch;
use headwater_protocol::request::Request;
use headwater_protocol::response::Response;
use headwater_protocol::status::Role;
use tokio::io::AsyncWriteExt;

use super::*;
use crate::scripted::{
    LONG, Listener, Node, Reply, SHORT, committed, entry, head, ro, ro_of, rw, seqno, shard,
};

async fn connect(nodes: &[&Node], deadline: Duration) -> Client {
    let nodes = nodes.iter().map(|node| node.address()).collect();
    Client::connect(Options { nodes, deadline, ..Options::default() }).await.unwrap()
}

/// An address where nothing listens.
async fn gone() -> String {
    Node::start(ro(), |_, _| Reply::Hang).await.address()
}

fn behind() -> Reply {
    Reply::Answer(Response::Error(Error::ReplicaBehind { applied: Lsn::ZERO, why: "test".into() }))
}

fn consistencies(node: &Node) -> Vec<Consistency> {
    let consistency = |request| match request {
        Request::Head { consistency, .. } => consistency,
        other => panic!("{other:?}"),
    };
    node.seen().into_iter().map(consistency).collect()
}

#[tokio::test]
async fn reads_go_to_the_replicas_in_turn() {
    let one = Node::start(ro(), |_, _| Reply::Answer(head(1, 8))).await;
    let two = Node::start(ro(), |_, _| Reply::Answer(head(1, 8))).await;
    let main = Node::start(rw(&[&one, &two]), |_, _| Reply::Answer(head(1, 8))).await;
    let client = connect(&[&main], LONG).await;
    for _ in 0..10 {
        assert_eq!(client.head(&shard(), Consistency::Strong).await.unwrap().entry, Some(entry(1)));
    }
    assert_eq!((one.seen().len(), two.seen().len(), main.seen().len()), (5, 5, 0));

    for (read_from, nodes, asked) in [(ReadFrom::Rw, [&one, &two], 1), (ReadFrom::Named, [&main, &main], 2)] {
        let nodes = nodes.iter().map(|node| node.address()).chain([main.address()]).collect();
        let client = Client::connect(Options { nodes, read_from, ..Options::default() }).await.unwrap();
        client.head(&shard(), Consistency::Strong).await.unwrap();
        assert_eq!(main.seen().len(), asked);
    }
}

#[tokio::test]
async fn reads_fail_over_and_leave_a_failed_replica_alone() {
    let broken = Node::start(ro(), |_, _| Reply::Close).await;
    let sound = Node::start(ro(), |_, _| Reply::Answer(head(1, 8))).await;
    let main = Node::start(rw(&[&broken, &sound]), |_, _| Reply::Close).await;
    let client = connect(&[&main], LONG).await;
    for _ in 0..10 {
        client.head(&shard(), Consistency::Strong).await.unwrap();
    }
    assert_eq!(sound.seen().len(), 10);
    assert!(broken.seen().len() <= 2, "asked last for a while: {}", broken.seen().len());
    assert!(main.seen().is_empty());
}

#[tokio::test]
async fn a_read_that_no_replica_serves_is_forwarded_as_strong_as_it_was() {
    let late = Node::start(ro(), |_, _| behind()).await;
    let main = Node::start(rw(&[&late]), |_, _| Reply::Answer(head(1, 8))).await;
    connect(&[&main], LONG).await.head(&shard(), Consistency::Strong).await.unwrap();
    assert_eq!(consistencies(&late), [Consistency::Strong]);
    assert_eq!(consistencies(&main), [Consistency::Strong]);

    let options = Options { nodes: vec![main.address()], forward_to_rw: false, ..Options::default() };
    let client = Client::connect(Options { deadline: SHORT, ..options }).await.unwrap();
    let error = client.head(&shard(), Consistency::Strong).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Error::ReplicaBehind { .. })), "{error}");
    assert_eq!(main.seen().len(), 1);
    assert!(consistencies(&late).iter().all(|consistency| *consistency == Consistency::Strong));
}

#[tokio::test]
async fn a_silent_replica_leaves_time_for_the_next_node() {
    let silent = Node::start(ro(), |_, _| Reply::Hang).await;
    let main = Node::start(rw(&[&silent]), |_, _| Reply::Answer(head(1, 8))).await;
    let deadline = Duration::from_secs(4);
    let client = connect(&[&main], deadline).await;
    let began = Instant::now();
    client.head(&shard(), Consistency::Strong).await.unwrap();
    assert_eq!(silent.seen().len(), 1);
    assert!(began.elapsed() < deadline * 9 / 10, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_wrong_request_is_not_asked_twice() {
    let no = || Reply::Answer(Response::Error(Error::InvalidArgument("test".into())));
    let replica = Node::start(ro(), move |_, _| no()).await;
    let main = Node::start(rw(&[&replica]), move |_, _| no()).await;
    let client = connect(&[&main], LONG).await;
    assert!(client.head(&shard(), Consistency::Strong).await.is_err());
    assert!(client.truncate(&shard(), seqno(1)).await.is_err());
    assert_eq!((replica.seen().len(), main.seen().len()), (1, 1));
}

/// Every way in which a write can stay unknown: the node must see it once.
#[tokio::test]
async fn a_write_is_never_sent_again_once_it_may_have_happened() {
    type Unknown = fn() -> Reply;
    let unknowns: [Unknown; 4] = [
        || Reply::Close,
        || Reply::Hang,
        || Reply::Answer(Response::Error(Error::Unknown("test".into()))),
        || Reply::Answer(Response::WatchEnded),
    ];
    for (nth, unknown) in unknowns.into_iter().enumerate() {
        let main = Node::start(rw(&[]), move |_, request| match request {
            Request::Head { .. } => Reply::Answer(head(1, 8)),
            _ => unknown(),
        })
        .await;
        let client = connect(&[&main], Duration::from_millis(400)).await;
        let (name, data) = (shard(), Bytes::from("x"));
        let errors = [
            client.compare_and_set(&name, None, data.clone()).await.unwrap_err(),
            client.begin(&name, seqno(1), data.clone()).await.unwrap_err(),
            client.truncate(&name, seqno(1)).await.unwrap_err(),
            client.append(&name, data).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Indeterminate, "{nth}: {error}");
        }
        let writes = main.seen().iter().filter(|request| operation::is_write(request)).count();
        assert_eq!(writes, 4, "{nth}");
    }
}

#[tokio::test]
async fn a_write_that_did_not_happen_is_sent_again() {
    let main = Node::start(rw(&[]), |nth, _| {
        let refusal = match nth {
            0 => Error::Overloaded("test".into()),
            1 => Error::Stopping,
            2 => Error::NotWritable { rw: String::new() },
            _ => return Reply::Answer(committed(5, 40)),
        };
        Reply::Answer(Response::Error(refusal))
    })
    .await;
    let client = connect(&[&main], LONG).await;
    let cas = client.compare_and_set(&shard(), Some(seqno(4)), Bytes::new()).await.unwrap();
    assert_eq!(cas, Cas::Committed(seqno(5), Lsn::new(40)));
    assert_eq!(main.seen().len(), 4);

    let full = Node::start(rw(&[]), |_, _| Reply::Answer(Response::Error(Error::DiskFull))).await;
    let error = connect(&[&full], LONG).await.truncate(&shard(), seqno(1)).await.unwrap_err();
    assert_eq!((error, full.seen().len()), (ClientError::Refused(Error::DiskFull), 1));
}

#[tokio::test]
async fn a_write_follows_the_rw() {
    let new = Node::start(rw(&[]), |_, _| Reply::Answer(committed(0, 8))).await;
    let hint = new.address();
    let old = Node::start(rw(&[]), move |_, _| {
        Reply::Answer(Response::Error(Error::NotWritable { rw: hint.clone() }))
    })
    .await;
    // By the hint.
    let client = connect(&[&old], LONG).await;
    client.begin(&shard(), seqno(0), Bytes::new()).await.unwrap();
    assert_eq!((old.seen().len(), new.seen().len()), (1, 1));

    // By asking around when it is gone.
    let replica = Node::start(ro_of(&new.address()), |_, _| Reply::Hang).await;
    let gone = Node::start(rw(&[&replica]), |_, _| Reply::Hang).await;
    let client = connect(&[&gone], LONG).await;
    drop(gone);
    while let Err(error) = client.begin(&shard(), seqno(0), Bytes::new()).await {
        // It may still have been sent on the connection that was ending.
        assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
    }
    assert_eq!(new.seen().len(), 2);
}

#[tokio::test]
async fn of_two_that_call_themselves_rw_the_newer_is_believed() {
    let newer = NodeStatus { epoch: Epoch::new(2), ..rw(&[]) };
    let newer = Node::start(newer, |_, _| Reply::Answer(committed(0, 8))).await;
    let deposed = Node::start(rw(&[]), |_, _| Reply::Hang).await;
    for order in [[&newer, &deposed], [&deposed, &newer]] {
        connect(&order, LONG).await.begin(&shard(), seqno(0), Bytes::new()).await.unwrap();
    }
    assert_eq!((newer.seen().len(), deposed.seen().len()), (2, 0));
}

#[tokio::test]
async fn without_an_rw_writes_say_so_and_reads_go_on() {
    let replica = Node::start(ro(), |_, _| Reply::Answer(head(1, 8))).await;
    let client = connect(&[&replica], SHORT).await;
    let error = client.truncate(&shard(), seqno(1)).await.unwrap_err();
    assert!(matches!(error, ClientError::NoRw { .. }), "{error}");
    assert!(error.to_string().contains(&replica.address()), "{error}");
    client.head(&shard(), Consistency::Eventual).await.unwrap();
}

#[tokio::test]
async fn a_session_carries_its_position() {
    let replica = Node::start(ro(), |nth, _| Reply::Answer(head(1, if nth == 0 { 8 } else { 96 }))).await;
    let main = Node::start(rw(&[&replica]), |nth, _| {
        let mismatch = Response::Mismatch { head: Some(seqno(3)), lsn: Lsn::new(64) };
        Reply::Answer(if nth == 0 { committed(1, 40) } else { mismatch })
    })
    .await;
    let client = connect(&[&main], LONG).await;
    let read = async |client: &Client| client.head(&shard(), Consistency::Eventual).await.unwrap();
    read(&client).await;
    client.compare_and_set(&shard(), None, Bytes::new()).await.unwrap();
    assert_eq!(client.position(), Lsn::new(40));
    read(&client).await;
    assert_eq!(client.position(), Lsn::new(96));

    // A position of its own; and what beat its write is behind that.
    let other = client.session();
    assert_eq!(other.position(), Lsn::ZERO);
    other.compare_and_set(&shard(), None, Bytes::new()).await.unwrap();
    read(&other.clone()).await;
    assert_eq!(other.position(), Lsn::new(96));
    let at_least = |lsn| Consistency::AtLeast(Lsn::new(lsn));
    assert_eq!(consistencies(&replica), [Consistency::Eventual, at_least(40), at_least(64)]);
}

#[tokio::test]
async fn a_bounded_read_does_not_go_back_within_a_session() {
    let replica = Node::start(ro(), |nth, _| Reply::Answer(head(1, [80, 72, 88][nth]))).await;
    let client = connect(&[&replica], LONG).await;
    let bounded = Consistency::Bounded(Duration::from_secs(1));
    for lsn in [80, 88] {
        assert_eq!(client.head(&shard(), bounded).await.unwrap().reflects.lsn, Lsn::new(lsn));
    }
    assert_eq!(consistencies(&replica), [bounded, bounded, Consistency::Strong]);
}

#[tokio::test]
async fn an_append_takes_the_head_from_the_mismatch() {
    let main = Node::start(rw(&[]), |nth, _| {
        let mismatch = |number| Response::Mismatch { head: Some(seqno(number)), lsn: Lsn::new(64) };
        Reply::Answer([head(1, 8), mismatch(5), mismatch(7), committed(8, 80)][nth].clone())
    })
    .await;
    let client = connect(&[&main], LONG).await;
    assert_eq!(client.append(&shard(), Bytes::from("x")).await.unwrap(), (seqno(8), Lsn::new(80)));
    let expected = |request| match request {
        Request::CompareAndSet { expected, .. } => expected.map(Seqno::get),
        Request::Head { .. } => None,
        other => panic!("{other:?}"),
    };
    let seen: Vec<_> = main.seen().into_iter().map(expected).collect();
    assert_eq!(seen, [None, Some(1), Some(5), Some(7)]);
}

#[tokio::test]
async fn one_reachable_node_is_enough_and_a_wrong_address_is_told() {
    let main = Node::start(rw(&[]), |_, _| Reply::Answer(head(1, 8))).await;
    let gone = gone().await;
    let web = Listener::raw(async |mut stream| {
        stream.write_all(b"HTTP/1.1 400 Bad\r\n").await.unwrap();
    })
    .await;
    let open = async |nodes: &[&str]| {
        let nodes = nodes.iter().map(|address| address.to_string()).collect();
        Client::connect(Options { nodes, ..Options::default() }).await.err()
    };
    assert_eq!(open(&[&gone, &web.address, &main.address()]).await, None);
    assert!(matches!(open(&[&gone]).await, Some(ClientError::Unreachable { .. })));
    assert!(matches!(open(&[&gone, &web.address]).await, Some(ClientError::NotHeadwater { .. })));
    assert!(matches!(open(&["nowhere", &main.address()]).await, Some(ClientError::InvalidArgument(_))));
    assert!(matches!(open(&[]).await, Some(ClientError::InvalidArgument(_))));
}

/// A node that others know by another name than it has itself.
#[tokio::test]
async fn a_node_of_two_addresses_is_asked_by_each_once() {
    let main = Node::start(rw(&[]), |_, _| Reply::Hang).await;
    let by_name = main.address().replace("127.0.0.1", "localhost");
    let replica = Node::start(ro_of(&by_name), |_, _| Reply::Hang).await;
    let began = Instant::now();
    let client = connect(&[&main, &replica], LONG).await;
    assert!(began.elapsed() < LONG / 2, "it does not ask until it is out of time");
    let roles = client.status().await.into_iter().map(|(_, status)| status.unwrap().role);
    assert_eq!(roles.collect::<Vec<_>>(), [Role::Rw, Role::Ro]);
}

#[tokio::test]
async fn status_is_of_every_node_once_also_with_the_rw_down() {
    let gone = gone().await;
    let replica = Node::start(ro_of(&gone), |_, _| Reply::Hang).await;
    // Named by two addresses.
    let by_name = replica.address().replace("127.0.0.1", "localhost");
    let nodes = vec![by_name.clone(), replica.address()];
    let client =
        Client::connect(Options { nodes, deadline: Duration::from_secs(1), ..Options::default() }).await;
    let client = client.unwrap();
    let (addresses, answers): (Vec<_>, Vec<_>) = client.status().await.into_iter().unzip();
    assert_eq!(addresses, [by_name, gone.clone()]);
    assert_eq!(answers[0].as_ref().unwrap().role, Role::Ro);
    assert!(matches!(answers[1], Err(ClientError::Unreachable { .. })));
    // It is known where the RW should be, so a write says that it is not there.
    let error = client.truncate(&shard(), seqno(1)).await.unwrap_err();
    assert!(matches!(&error, ClientError::Unreachable { address, .. } if *address == gone), "{error}");
}
