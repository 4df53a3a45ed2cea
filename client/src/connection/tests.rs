use std::pin::pin;
use std::task::{Context, Waker};

use futures_util::future::join_all;
use headwater_protocol::frame;
use headwater_protocol::limits::ENTRY_BYTES_MAX;
use headwater_protocol::response::Reflects;
use headwater_protocol::{Error, ErrorKind, Served};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::scripted::{LONG, Listener, SHORT, committed, encoded, head, seqno, shard};

fn head_request() -> Request {
    Request::Head { shard: shard(), consistency: Consistency::Strong }
}

fn write_request(data: impl Into<Bytes>) -> Request {
    Request::CompareAndSet { shard: shard(), expected: None, data: data.into() }
}

async fn open(listener: &Listener) -> Connection {
    Connection::open(&listener.address, LONG).await.unwrap()
}

fn waiting(connection: &Connection) -> usize {
    connection.0.shared.calls.lock().waiting.len()
}

#[tokio::test]
async fn many_calls_are_in_flight_and_answers_come_in_any_order() {
    const CALLS: u64 = 100;
    let node = Listener::greeting(async |mut peer| {
        let mut requests = Vec::new();
        while requests.len() < CALLS as usize {
            requests.push(peer.next().await.unwrap());
        }
        for frame in requests.iter().rev() {
            let Request::Truncate { cut, .. } = frame.request else { panic!("{frame:?}") };
            let answer = Response::Truncated { removed: cut.get(), lsn: Lsn::new(8) };
            peer.answer(frame.id, &answer).await;
        }
        peer.hang().await;
    })
    .await;
    let connection = open(&node).await;
    let name = shard();
    let calls = (0..CALLS).map(|number| connection.truncate(&name, seqno(number), LONG));
    for (number, truncated) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(truncated.unwrap().removed, number as u64);
    }
    assert_eq!(waiting(&connection), 0);
}

#[tokio::test]
async fn a_refusal_is_told_as_it_is() {
    let node = Listener::greeting(async |mut peer| {
        while let Some(frame) = peer.next().await {
            peer.answer(frame.id, &Response::Error(Error::DiskFull)).await;
        }
    })
    .await;
    let error = open(&node).await.call(write_request("x"), LONG).await.unwrap_err();
    assert_eq!(error, ClientError::Refused(Error::DiskFull));
    assert_eq!(error.kind(), ErrorKind::Determinate);
}

#[tokio::test]
async fn a_lost_connection_leaves_a_write_unknown_only_once_it_was_sent() {
    let after_request = Listener::greeting(async |mut peer| drop(peer.next().await)).await;
    let amid_answer = Listener::greeting(async |mut peer| {
        let id = peer.next().await.unwrap().id;
        let answer = encoded(id, &committed(1, 8));
        peer.stream.write_all(&answer[..answer.len() - 1]).await.unwrap();
    })
    .await;
    for node in [&after_request, &amid_answer] {
        let read = open(node).await.call(head_request(), LONG).await.unwrap_err();
        assert!(matches!(read, ClientError::ConnectionLost { in_flight_write: false, .. }), "{read}");
        assert_eq!(read.kind(), ErrorKind::Determinate);

        let connection = open(node).await;
        let write = connection.call(write_request("x"), LONG).await.unwrap_err();
        assert!(matches!(write, ClientError::ConnectionLost { in_flight_write: true, .. }), "{write}");
        assert_eq!(write.kind(), ErrorKind::Indeterminate);

        // The connection is known to be lost: this one is not sent.
        assert!(connection.is_closed());
        let unsent = connection.call(write_request("x"), LONG).await.unwrap_err();
        assert!(matches!(unsent, ClientError::Unreachable { .. }), "{unsent}");
        assert_eq!(unsent.kind(), ErrorKind::Determinate);
    }
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_dropped() {
    let node = Listener::greeting(async |mut peer| {
        let (read, write) = (peer.next().await.unwrap().id, peer.next().await.unwrap().id);
        let third = peer.next().await.unwrap().id;
        for (id, answer) in [(read, head(1, 8)), (write, committed(1, 8)), (third, head(3, 24))] {
            peer.answer(id, &answer).await;
        }
        peer.hang().await;
    })
    .await;
    let connection = open(&node).await;
    let read = connection.call(head_request(), SHORT).await.unwrap_err();
    assert!(matches!(read, ClientError::Timeout { in_flight_write: false, .. }), "{read}");
    let write = connection.call(write_request("x"), SHORT).await.unwrap_err();
    assert!(matches!(write, ClientError::Timeout { in_flight_write: true, .. }), "{write}");
    assert_eq!((read.kind(), write.kind()), (ErrorKind::Determinate, ErrorKind::Indeterminate));
    assert_eq!(connection.call(head_request(), LONG).await.unwrap(), head(3, 24));
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_nothing_behind() {
    let node = Listener::greeting(|peer| peer.hang()).await;
    let connection = open(&node).await;
    {
        let mut call = pin!(connection.call(head_request(), LONG));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(waiting(&connection), 1);
    }
    assert_eq!(waiting(&connection), 0);
    assert_eq!(connection.0.shared.room.available_permits(), IN_FLIGHT_BYTES_MAX / ROOM_BYTES);
}

#[tokio::test]
async fn what_is_in_flight_is_bounded() {
    let node = Listener::greeting(|peer| peer.hang()).await;
    let connection = open(&node).await;
    let fill = (0..IN_FLIGHT_BYTES_MAX / REQUEST_BYTES_MIN).map(|_| connection.call(head_request(), LONG));
    let mut fill = pin!(join_all(fill));
    // One poll does not reach them all: tokio has a task yield after so many.
    while waiting(&connection) < IN_FLIGHT_BYTES_MAX / REQUEST_BYTES_MIN {
        assert!(fill.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tokio::task::yield_now().await;
    }
    // It was never sent.
    let one_more = connection.call(write_request("x"), SHORT).await.unwrap_err();
    assert_eq!(one_more.kind(), ErrorKind::Determinate);
}

#[tokio::test]
async fn answers_that_cannot_be_are_told() {
    let reflects = Reflects { lsn: Lsn::ZERO, served: Served::Rw };
    let mut bad_name = encoded(2, &Response::Shards { names: vec![shard()], more: false, reflects });
    *bad_name.last_mut().unwrap() = 0xff;
    let mut unknown_kind = encoded(3, &committed(1, 8));
    unknown_kind[4] = 99;
    let another_requests = encoded(1, &committed(1, 8));
    let answers = Arc::new([another_requests, bad_name, unknown_kind]);
    let node = Listener::greeting(move |mut peer| {
        let answers = answers.clone();
        async move {
            for answer in answers.iter() {
                peer.next().await.unwrap();
                peer.stream.write_all(answer).await.unwrap();
            }
            peer.hang().await;
        }
    })
    .await;
    let connection = open(&node).await;
    let error = connection.head(&shard(), Consistency::Strong, LONG).await.unwrap_err();
    assert!(matches!(error, ClientError::Malformed { in_flight_write: false, .. }), "{error}");
    let error = connection.shards("", "", 1, Consistency::Strong, LONG).await.unwrap_err();
    assert!(error.to_string().contains("UTF-8"), "{error}");
    assert!(!connection.is_closed(), "the frame's borders were sound");
    let error = connection.call(write_request("x"), LONG).await.unwrap_err();
    assert!(matches!(error, ClientError::Malformed { in_flight_write: true, .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(error.to_string().contains("unknown response 99"), "{error}");

    let node = Listener::greeting(async |mut peer| {
        peer.next().await.unwrap();
        peer.stream.write_all(&[0xff; 64]).await.unwrap();
        peer.hang().await;
    })
    .await;
    let error = open(&node).await.call(head_request(), LONG).await.unwrap_err();
    assert!(error.to_string().contains("4294967295 bytes cannot be"), "{error}");
}

#[tokio::test]
async fn what_is_no_node_is_told() {
    async fn error(listener: Listener, timeout: Duration) -> (ClientError, String) {
        let error = Connection::open(&listener.address, timeout).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Determinate);
        let text = error.to_string();
        assert!(text.contains(&listener.address), "{text}");
        (error, text)
    }

    let web = Listener::raw(async |mut stream| {
        // Less than an opening, and the connection stays: what was said must be enough.
        stream.write_all(b"HTTP/1.1 400\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let (web, text) = error(web.await, LONG).await;
    assert!(matches!(web, ClientError::NotHeadwater { .. }) && text.contains("HTTP/1.1 400"), "{text}");

    let newer = Listener::raw(async |mut stream| {
        let mut opening = frame::opening(frame::CLIENT);
        opening[8] = 7;
        stream.write_all(&opening).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let (newer, text) = error(newer.await, LONG).await;
    assert!(matches!(newer, ClientError::NotHeadwater { .. }) && text.contains("version 7"), "{text}");

    let silent = Listener::raw(async |mut stream| drop(stream.read_to_end(&mut Vec::new()).await));
    let (silent, text) = error(silent.await, SHORT).await;
    assert!(matches!(silent, ClientError::Unreachable { .. }) && text.contains("does not say"), "{text}");

    let (leaves, text) = error(Listener::raw(async |stream| drop(stream)).await, LONG).await;
    assert!(matches!(leaves, ClientError::Unreachable { .. }), "{text}");

    for address in ["", "host", ":7000", "host:", "host:port", "host:70000"] {
        let error = Connection::open(address, LONG).await.err().unwrap();
        assert!(matches!(error, ClientError::InvalidArgument(_)), "{address}: {error}");
    }
}

#[tokio::test]
async fn what_no_frame_can_carry_is_not_sent() {
    let node = Listener::greeting(|peer| peer.hang()).await;
    let connection = open(&node).await;
    let error = connection.call(write_request(vec![0; ENTRY_BYTES_MAX + 1]), LONG).await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidArgument(_)), "{error}");
    let error = connection.shards(&"x".repeat(1025), "", 1, Consistency::Strong, LONG).await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidArgument(_)), "{error}");
}

/// The first frame is more than sockets hold, so the task writes the rest: frames must neither mix nor change order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_socket_keeps_frames_whole() {
    const CALLS: usize = 64;
    let node = Listener::greeting(async |mut peer| {
        for nth in 0..CALLS {
            let frame = peer.next().await.unwrap();
            assert_eq!(frame.id, nth as u64 + 1);
            let Request::CompareAndSet { data, .. } = frame.request else { panic!() };
            assert!(data.iter().all(|byte| usize::from(*byte) == nth));
            peer.answer(frame.id, &committed(nth as u64, 8)).await;
        }
        peer.hang().await;
    })
    .await;
    let connection = open(&node).await;
    let calls = (0..CALLS).map(|nth| {
        let bytes = if nth == 0 { 32 << 20 } else { 1 << 10 };
        connection.call(write_request(vec![nth as u8; bytes]), LONG)
    });
    for (nth, answer) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), committed(nth as u64, 8));
    }
    // Written directly again, once nothing is queued.
    let outbox = connection.0.shared.outbox.lock();
    assert!(!outbox.busy && outbox.bytes.is_empty());
}

/// Threads meet at an idle socket that takes only a part of a frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn frames_do_not_mix() {
    const CALLERS: u8 = 4;
    const FRAME_BYTES: usize = 3 << 20;
    let node = Listener::greeting(async |mut peer| {
        while let Some(frame) = peer.next().await {
            let Request::CompareAndSet { data, .. } = frame.request else { panic!() };
            assert_eq!(data, vec![data[0]; FRAME_BYTES]);
            peer.answer(frame.id, &committed(data[0].into(), 8)).await;
        }
    })
    .await;
    let connection = open(&node).await;
    for _ in 0..16 {
        let callers = (0..CALLERS).map(|caller| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call(write_request(vec![caller; FRAME_BYTES]), LONG).await })
        });
        for (caller, answer) in join_all(callers).await.into_iter().enumerate() {
            assert_eq!(answer.unwrap().unwrap(), committed(caller as u64, 8));
        }
    }
}

#[test]
fn what_a_socket_did_not_take_goes_before_what_came_meanwhile() {
    for (rest, meanwhile) in [("ab", "cd"), ("", "abcd"), ("abcd", "")] {
        let mut outbox = Outbox { bytes: BytesMut::from(meanwhile), busy: true };
        outbox.put_back(BytesMut::from(rest));
        assert_eq!(outbox.bytes, "abcd");
    }
}

#[tokio::test]
async fn the_last_clone_closes_the_connection() {
    let (told, mut closed) = tokio::sync::mpsc::channel(1);
    let node = Listener::greeting(move |peer| {
        let told = told.clone();
        async move {
            peer.hang().await;
            told.send(()).await.unwrap();
        }
    })
    .await;
    let connection = open(&node).await;
    drop(connection.clone());
    assert!(!connection.is_closed());
    drop(connection);
    closed.recv().await.unwrap();
}

#[tokio::test]
async fn the_node_is_told_to_answer_in_time() {
    let node = Listener::greeting(async |mut peer| {
        while let Some(frame) = peer.next().await {
            let answer = Response::Truncated { removed: frame.deadline_ms.into(), lsn: Lsn::ZERO };
            peer.answer(frame.id, &answer).await;
        }
    })
    .await;
    let connection = open(&node).await;
    let told = async |deadline| connection.truncate(&shard(), Seqno::ZERO, deadline).await.unwrap().removed;
    assert!((20_000..30_000).contains(&told(LONG).await));
    assert_eq!(told(Duration::MAX).await, u64::from(u32::MAX));
    // Not 0, which would be the node's default.
    assert_eq!(node_deadline_ms(Instant::now()), 1);
}
