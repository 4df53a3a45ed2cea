use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::Connection;
use crate::client::Options;
use crate::scripted::{LONG, Listener, Node, Reply, SHORT, entry, ro, rw, seqno, shard};

fn watched(numbers: Range<u64>) -> Response {
    let lsn = Lsn::new(numbers.end * 8);
    Response::Watched { entries: numbers.map(entry).collect(), lsn }
}

async fn connect(nodes: &[&Node], deadline: Duration) -> Client {
    let nodes = nodes.iter().map(|node| node.address()).collect();
    Client::connect(Options { nodes, deadline, ..Options::default() }).await.unwrap()
}

/// Each node gives three entries from where it is asked and then ends, in every way in which one can.
#[tokio::test]
async fn a_watch_resumes_without_gap_or_repeat() {
    let three_and_end = |nth: usize, request: &Request| {
        let Request::Watch { from, .. } = request else { panic!("{request:?}") };
        let three = watched(from.get()..from.get() + 3);
        match nth % 3 {
            0 => Reply::AnswerAndClose(three),
            1 => Reply::Answers(vec![three, Response::WatchEnded]),
            _ => Reply::Answers(vec![three, Response::Error(Error::Stopping)]),
        }
    };
    let one = Node::start(ro(), three_and_end).await;
    let two = Node::start(ro(), three_and_end).await;
    let client = connect(&[&one, &two], LONG).await;
    let mut watch = client.watch(&shard(), seqno(4)).await.unwrap();
    for number in 4..100 {
        assert_eq!(watch.next().await.unwrap().unwrap(), entry(number));
    }
    assert!(one.seen().len() >= 10 && two.seen().len() >= 10);
    assert_eq!(client.position(), Lsn::new(100 * 8));
}

#[tokio::test]
async fn a_refused_watch_says_why_and_ends() {
    let refusal = Error::TooFarBack { lo: seqno(7) };
    let answer = Response::Error(refusal.clone());
    let main = Node::start(rw(&[]), move |_, _| Reply::Answer(answer.clone())).await;
    let client = connect(&[&main], LONG).await;
    let connection = Connection::open(&main.address(), LONG).await.unwrap();
    let name = shard();
    for watch in [client.watch(&name, seqno(1)).await, connection.watch(&name, seqno(1)).await] {
        let mut watch = watch.unwrap();
        assert_eq!(watch.next().await.unwrap(), Err(ClientError::Refused(refusal.clone())));
        assert_eq!(watch.next().await, None);
    }
    assert_eq!(main.seen().len(), 2);
}

#[tokio::test]
async fn a_gap_or_a_repeat_is_not_given_out() {
    for wrong in [watched(6..8), watched(4..8)] {
        let main = Node::start(rw(&[]), move |_, _| Reply::Answers(vec![watched(3..5), wrong.clone()])).await;
        let mut watch = connect(&[&main], LONG).await.watch(&shard(), seqno(3)).await.unwrap();
        for number in [3, 4] {
            assert_eq!(watch.next().await.unwrap().unwrap(), entry(number));
        }
        let error = watch.next().await.unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Malformed { .. }), "{error}");
        assert_eq!(watch.next().await, None);
    }
}

#[tokio::test]
async fn a_watch_gives_up_when_no_node_is_left() {
    let main = Node::start(rw(&[]), |_, _| Reply::Answer(watched(0..1))).await;
    let mut watch = connect(&[&main], SHORT).await.watch(&shard(), seqno(0)).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap(), entry(0));
    drop(main);
    let error = watch.next().await.unwrap().unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(watch.next().await, None);
}

/// The node gets rid of no more than sockets and two messages hold, until the consumer takes some.
#[tokio::test]
async fn a_slow_consumer_stops_the_reading() {
    const MESSAGES: u64 = 64;
    const MESSAGE_BYTES: usize = 4 << 20;
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let node = Listener::greeting(move |mut peer| {
        let count = count.clone();
        async move {
            let id = peer.next().await.unwrap().id;
            for number in 0..MESSAGES {
                let entries = vec![Entry { seqno: seqno(number), data: vec![0; MESSAGE_BYTES].into() }];
                peer.answer(id, &Response::Watched { entries, lsn: Lsn::new(8) }).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
            peer.hang().await;
        }
    })
    .await;
    let connection = Connection::open(&node.address, LONG).await.unwrap();
    let mut watch = connection.watch(&shard(), seqno(0)).await.unwrap();
    for number in 0..8 {
        assert_eq!(watch.next().await.unwrap().unwrap().seqno, seqno(number));
        // Whatever else can run does, before the next is taken.
        for _ in 0..5000 {
            tokio::task::yield_now().await;
        }
        let ahead = sent.load(Ordering::Relaxed).saturating_sub(number);
        // The kernel may be set to hold some tens of MiB.
        assert!(ahead < MESSAGES / 2, "{ahead} messages are held somewhere");
    }
}
