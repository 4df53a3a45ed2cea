//! The RW's answers.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::FutureExt;
use headwater_node::{Answer, Call, Counters, Query, Service, Timer, watch};
use headwater_protocol::request::Request;
use headwater_protocol::response::Response;
use headwater_protocol::status::{NodeStatus, Positions, Role};
use headwater_protocol::{Consistency, Error, Served};
use headwater_wal::Wal;

use crate::attach::{Attacher, Stream};
use crate::commit::Commit;
use crate::write::Decided;

/// The RW as its clients see it.
pub(crate) struct Rw {
    pub(crate) commit: Arc<Commit>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) attacher: Arc<Attacher>,
    pub(crate) counters: Counters,
    pub(crate) timer: Timer,
}

impl Service for Rw {
    fn call(self: &Arc<Self>, Call { request, deadline, .. }: Call) -> Answer {
        let request = match Query::of(request) {
            Ok((query, consistency)) => return self.read(query, consistency, deadline),
            Err(request) => request,
        };
        match request {
            Request::CompareAndSet { shard, expected, data } => {
                self.write(deadline, |rw| rw.commit.writer.compare_and_set(shard, expected, data))
            }
            Request::Begin { shard, seqno, data } => {
                self.write(deadline, |rw| rw.commit.writer.begin(shard, seqno, data))
            }
            Request::Truncate { shard, cut } => {
                self.write(deadline, |rw| rw.commit.writer.truncate(shard, cut))
            }
            Request::Watch { shard, from } => Answer::Many(watch(self.commit.log.clone(), shard, from)),
            Request::Head { .. } | Request::Scan { .. } | Request::Shards { .. } => unreachable!("a query"),
            Request::Unwatch { .. } => unreachable!("the session answers it"),
            Request::Status => Answer::Now(self.status()),
        }
    }

    fn attach(self: &Arc<Self>, stream: TcpStream) {
        self.attacher.spawn(Stream::Tcp(stream));
    }

    fn connections(&self, open: u64) {
        self.counters.connections.store(open, Ordering::Relaxed);
    }
}

impl Rw {
    /// Decides at once; answers when what the answer rests on is durable and visible (W3, W4).
    fn write(self: &Arc<Self>, deadline: Instant, decide: impl FnOnce(&Rw) -> Decided) -> Answer {
        let Decided { response, after } = decide(self);
        if self.commit.visible().get() >= after {
            return Answer::Now(response);
        }
        let rw = self.clone();
        let is_write = !matches!(response, Response::Error(_) | Response::Mismatch { .. });
        let wait = async move {
            match tokio::time::timeout_at(deadline.into(), rw.commit.visible().reached(after)).await {
                Ok(()) => response,
                // Nothing of a write's own is in the log, so nothing about it is unknown (W8).
                Err(_) if !is_write => Response::Error(Error::Overloaded(
                    "the answer rests on a write that was not flushed in time; this one was not made".into(),
                )),
                Err(_) => Response::Error(Error::Unknown(format!(
                    "the write is in the log at LSN {after} and was not flushed in time"
                ))),
            }
        };
        Answer::Later(wait.boxed())
    }

    fn read(self: &Arc<Self>, query: Query, consistency: Consistency, deadline: Instant) -> Answer {
        // Every other consistency is met by what is visible here.
        let Consistency::AtLeast(lsn) = consistency else { return Answer::Now(self.answer(&query)) };
        if self.commit.visible().get() >= lsn {
            return Answer::Now(self.answer(&query));
        }
        let rw = self.clone();
        let wait = async move {
            match tokio::time::timeout_at(deadline.into(), rw.commit.visible().reached(lsn)).await {
                Ok(()) => rw.answer(&query),
                Err(_) => {
                    rw.counters.timed_out.fetch_add(1, Ordering::Relaxed);
                    let applied = rw.commit.visible().get();
                    let why = format!("it waited for LSN {lsn}, which this RW's log has not reached");
                    Response::Error(Error::ReplicaBehind { applied, why })
                }
            }
        };
        Answer::Later(wait.boxed())
    }

    fn answer(&self, query: &Query) -> Response {
        self.counters.served(Served::Rw);
        let visible = self.commit.visible().get();
        query.answer(&self.commit.log, visible, Served::Rw).0
    }

    fn status(&self) -> Response {
        let (commit, welcome) = (&self.commit, &self.attacher.welcome);
        let visible = commit.visible().get();
        let mut status = NodeStatus {
            role: Role::Rw,
            name: welcome.name.clone(),
            address: welcome.address.clone(),
            cluster: welcome.cluster.clone(),
            cluster_id: Some(welcome.cluster_id),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.timer.seconds(),
            epoch: self.wal.epoch(),
            positions: Positions {
                appended: Some(self.wal.appended()),
                flushed: Some(self.wal.flushed()),
                visible: Some(visible),
                received: None,
                applied: None,
            },
            shards: commit.log.len() as u64,
            entries: commit.log.entries(),
            data_bytes: commit.log.data_bytes(),
            connections: 0,
            served: Default::default(),
            timed_out: 0,
            strong_reads: 0,
            fetches: 0,
            disk_full: self.wal.disk_full(),
            replicas: commit.replicas.status(visible),
            upstream: None,
        };
        self.counters.report(&mut status);
        match serde_json::to_vec(&status) {
            Ok(json) => Response::Status(json.into()),
            Err(error) => Response::Error(Error::InvalidArgument(format!("status: {error}"))),
        }
    }
}
