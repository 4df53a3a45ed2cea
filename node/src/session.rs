//! One client's connection: requests in, answers out, many in flight, one task.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use futures_util::future::{AbortHandle, Abortable, BoxFuture, FutureExt};
use futures_util::stream::{BoxStream, FuturesUnordered, StreamExt, StreamFuture};
use headwater_protocol::frame::{self, Frame, Outgoing};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::response::Response;
use headwater_protocol::{Error, Malformed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::debug;

use crate::{Answer, Call, Next, Service, Stop};

/// Requests in flight on one connection; more are left in the socket until some are answered.
const IN_FLIGHT_MAX: usize = 4096;
/// Bytes of answers that wait for a client to read them; while there are more, nothing more is read from it or done for it.
const OUT_BYTES_MAX: usize = 1 << 20;
/// How long a client may take nothing at all of what waits for it.
const STALL_MAX: Duration = Duration::from_secs(60);
/// When the node stops, a session goes on refusing what its client sends until nothing has come for so long: a connection
/// closed over unread requests would leave their outcomes unknown, and could take answers with it that are under way.
const QUIET: Duration = Duration::from_millis(50);
/// A client that is never quiet, or takes nothing, is left after so long all the same.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Room made before each read.
const READ_BYTES: usize = 16 << 10;

/// What a session needs to know of its node.
pub(crate) struct Limits {
    pub(crate) frame_bytes_max: usize,
    pub(crate) deadline: Duration,
}

/// Something in flight.
enum Pending {
    /// One answer, and whether it is a read's: then nothing is lost if it is never given.
    Answer(u64, bool, BoxFuture<'static, Response>),
    /// The next of a watch's answers, and those after it.
    Watch(u64, StreamFuture<BoxStream<'static, Response>>),
}

/// What came of it: for a watch that goes on, with what is to come.
type Done = (u64, Response, Option<BoxStream<'static, Response>>);

impl Future for Pending {
    type Output = Done;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        match self.get_mut() {
            Pending::Answer(id, _, answer) => answer.as_mut().poll(cx).map(|response| (*id, response, None)),
            Pending::Watch(id, next) => Pin::new(next).poll(cx).map(|next| match next {
                (Some(response), rest) => (*id, response, Some(rest)),
                (None, _) => (*id, Response::WatchEnded, None),
            }),
        }
    }
}

struct Session<S> {
    service: Arc<S>,
    limits: Arc<Limits>,
    pending: FuturesUnordered<Pending>,
    watches: HashMap<u64, AbortHandle>,
    out: Outgoing,
    /// What goes on after a turn of the scheduler: request, whether it is a read, and how.
    after_turn: VecDeque<(u64, bool, Next)>,
    /// Bytes still to come of a frame that was refused for its length.
    pass_over: usize,
    /// The node stops: what comes now is refused.
    stopping: bool,
}

/// Serves one client until it leaves, misbehaves, or the node stops. Opening already exchanged.
pub(crate) async fn run<S: Service>(
    mut stream: TcpStream,
    service: Arc<S>,
    limits: Arc<Limits>,
    stop: Stop,
) -> io::Result<()> {
    let mut session = Session {
        service,
        limits,
        pending: FuturesUnordered::new(),
        watches: HashMap::new(),
        out: Outgoing::default(),
        after_turn: VecDeque::new(),
        pass_over: 0,
        stopping: false,
    };
    let (mut reader, mut writer) = stream.split();
    let mut input = BytesMut::new();
    let (mut stall_max, mut stall_at) = (STALL_MAX, Instant::now() + STALL_MAX);
    let (mut quiet_at, mut leave_at) = (Instant::now(), Instant::now());
    let stopped = stop.stopped();
    tokio::pin!(stopped);

    // When what is in `input` had arrived.
    let mut arrival = Instant::now();

    loop {
        session.take(&mut input, arrival)?;
        if session.has_room() && !session.after_turn.is_empty() {
            tokio::task::yield_now().await;
            // What wants another turn comes again in the next round.
            for _ in 0..session.after_turn.len() {
                if let Some((id, read, next)) = session.after_turn.pop_front() {
                    session.take_answer(id, read, next());
                }
                if !session.has_room() {
                    break;
                }
            }
            if session.has_room() && !session.after_turn.is_empty() {
                continue;
            }
        }
        let served = session.in_flight() == 0 && !session.out.has_remaining();
        let room = session.has_room();
        tokio::select! {
            biased;
            // First, as what follows may be ready for ever.
            () = &mut stopped, if !session.stopping => {
                session.stop();
                (quiet_at, leave_at) = (Instant::now() + QUIET, Instant::now() + FAREWELL_MAX);
                (stall_max, stall_at) = (FAREWELL_MAX, stall_at.min(leave_at));
            }
            written = write_some(&mut writer, &mut session.out), if session.out.has_remaining() => {
                if written? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                let now = Instant::now();
                (quiet_at, stall_at) = (now + QUIET, now + stall_max);
            }
            Some(done) = session.pending.next(), if room => {
                session.finish(done);
                // What else is ready goes out in the same write.
                while session.has_room() && let Some(Some(done)) = session.pending.next().now_or_never() {
                    session.finish(done);
                }
            }
            read = read_some(&mut reader, &mut input),
                if room && session.in_flight() < IN_FLIGHT_MAX =>
            {
                if read? == 0 {
                    return Ok(());
                }
                arrival = Instant::now();
                quiet_at = arrival + QUIET;
            }
            () = tokio::time::sleep_until(quiet_at.min(leave_at).into()), if session.stopping && served => {
                return writer.shutdown().await;
            }
            () = tokio::time::sleep_until(stall_at.into()), if session.out.has_remaining() => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the client took nothing for {} s", stall_max.as_secs()),
                ));
            }
        }
        if !session.out.has_remaining() {
            stall_at = Instant::now() + stall_max;
        }
    }
}

async fn read_some(reader: &mut (impl AsyncReadExt + Unpin), input: &mut BytesMut) -> io::Result<usize> {
    input.reserve(READ_BYTES);
    reader.read_buf(input).await
}

async fn write_some(writer: &mut (impl AsyncWriteExt + Unpin), out: &mut Outgoing) -> io::Result<usize> {
    // One run of bytes needs no list of runs.
    if out.chunk().len() == out.remaining() {
        let written = writer.write(out.chunk()).await?;
        out.advance(written);
        Ok(written)
    } else {
        writer.write_buf(out).await
    }
}

impl<S: Service> Session<S> {
    /// Whether answers may be added to those that wait for the client.
    fn has_room(&self) -> bool {
        self.out.remaining() < OUT_BYTES_MAX
    }

    /// Requests that are taken and not answered.
    fn in_flight(&self) -> usize {
        self.pending.len() + self.after_turn.len()
    }

    /// Takes whole requests off `input`, as long as there is room for their answers.
    fn take(&mut self, input: &mut BytesMut, arrival: Instant) -> io::Result<()> {
        let frame_bytes_max = self.limits.frame_bytes_max;
        while self.has_room() && self.in_flight() < IN_FLIGHT_MAX {
            let passed = self.pass_over.min(input.len());
            input.advance(passed);
            self.pass_over -= passed;
            if let Some((id, bytes)) = frame::oversized(input, frame_bytes_max) {
                let error = format!("a request of {bytes} bytes; this node takes {frame_bytes_max} at most");
                self.answer(id, &Response::Error(Error::InvalidArgument(error)));
                self.pass_over = bytes;
                continue;
            }
            match frame::split(input, FRAME_BYTES_MAX) {
                Ok(Some(Frame { kind, id, body })) => match RequestFrame::decode(kind, id, body) {
                    Ok(frame) => self.start(frame, arrival),
                    Err(malformed) if malformed.is_argument() => {
                        self.answer(id, &Response::Error(Error::InvalidArgument(malformed.to_string())));
                    }
                    Err(malformed) => return Err(garbled(&malformed)),
                },
                Ok(None) => break,
                Err(malformed) => return Err(garbled(&malformed)),
            }
        }
        Ok(())
    }

    fn start(&mut self, frame: RequestFrame, arrival: Instant) {
        let RequestFrame { id, deadline_ms, request } = frame;
        if let Request::Unwatch { watch } = request {
            // It stays on the list until it has ended, so that its number is not taken again before.
            if let Some(watch) = self.watches.get(&watch) {
                watch.abort();
            }
            return;
        }
        if self.stopping {
            return self.answer(id, &Response::Error(Error::Stopping));
        }
        let patience = match deadline_ms {
            0 => self.limits.deadline,
            ms => Duration::from_millis(ms.into()),
        };
        let read = matches!(request, Request::Head { .. } | Request::Scan { .. } | Request::Shards { .. });
        if matches!(request, Request::Watch { .. }) && self.watches.contains_key(&id) {
            let error = format!("a watch with the number {id} is under way on this connection");
            return self.answer(id, &Response::Error(Error::InvalidArgument(error)));
        }
        let answer = self.service.call(Call { request, arrival, deadline: arrival + patience });
        self.take_answer(id, read, answer);
    }

    fn take_answer(&mut self, id: u64, read: bool, answer: Answer) {
        match answer {
            Answer::Now(response) => self.answer(id, &response),
            Answer::AfterTurn(_) | Answer::Later(_) if read && self.stopping => {
                self.answer(id, &Response::Error(Error::Stopping));
            }
            Answer::AfterTurn(next) => self.after_turn.push_back((id, read, next)),
            Answer::Later(response) => self.pending.push(Pending::Answer(id, read, response)),
            Answer::Many(responses) => {
                let (handle, registration) = AbortHandle::new_pair();
                self.watches.insert(id, handle);
                let responses = Abortable::new(responses, registration).boxed();
                self.pending.push(Pending::Watch(id, responses.into_future()));
            }
        }
    }

    /// The node stops: reads that wait are refused, watches end, and writes go on to their answers.
    fn stop(&mut self) {
        self.stopping = true;
        self.watches.drain().for_each(|(_, watch)| watch.abort());
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Answer(id, true, _) => self.answer(id, &Response::Error(Error::Stopping)),
                goes_on => self.pending.push(goes_on),
            }
        }
    }

    fn finish(&mut self, (id, response, rest): Done) {
        self.answer(id, &response);
        match rest {
            Some(rest) => self.pending.push(Pending::Watch(id, rest.into_future())),
            None => drop(self.watches.remove(&id)),
        }
    }

    fn answer(&mut self, id: u64, response: &Response) {
        response.encode(id, &mut self.out);
    }
}

fn garbled(malformed: &Malformed) -> io::Error {
    debug!(%malformed, "a client's frame makes no sense; its connection is closed");
    io::Error::new(io::ErrorKind::InvalidData, malformed.to_string())
}
