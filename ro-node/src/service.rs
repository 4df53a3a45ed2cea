//! The RO's answers.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use headwater_node::{Answer, Call, Query, Service, watch};
use headwater_protocol::replication::{Refusal, ToRo, send};
use headwater_protocol::request::Request;
use headwater_protocol::response::Response;
use headwater_protocol::status::{NodeStatus, Positions, Role, UpstreamStatus};
use headwater_protocol::{Consistency, Error, Lsn, Served};
use headwater_timestamp::Nanos;
use tracing::debug;

use crate::gather::Gathered;
use crate::state::State;

/// The RO as its clients see it.
pub(crate) struct Ro {
    pub(crate) state: Arc<State>,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) cluster: String,
}

impl Service for Ro {
    fn call(self: &Arc<Self>, Call { request, arrival, deadline }: Call) -> Answer {
        let request = match Query::of(request) {
            Ok((query, consistency)) => return self.read(query, consistency, arrival, deadline),
            Err(request) => request,
        };
        match request {
            Request::CompareAndSet { .. } | Request::Begin { .. } | Request::Truncate { .. } => {
                let rw = self.state.about.lock().rw_address.clone();
                Answer::Now(Response::Error(Error::NotWritable { rw }))
            }
            Request::Watch { shard, from } => Answer::Many(watch(self.state.log.clone(), shard, from)),
            Request::Status => Answer::Now(self.status()),
            Request::Head { .. } | Request::Scan { .. } | Request::Shards { .. } => unreachable!("a query"),
            Request::Unwatch { .. } => unreachable!("the session answers it"),
        }
    }

    fn attach(self: &Arc<Self>, mut stream: TcpStream) {
        let rw = self.state.about.lock().rw_address.clone();
        let message = format!("this node is an RO; the RW is at {rw}");
        debug!("another RO wants to attach here; it is sent to the RW");
        // It fits the socket's buffer; if the peer is gone already there is nobody to tell.
        let _ = send(&mut stream, &ToRo::Refused { refusal: Refusal::NotRw, message });
    }

    fn connections(&self, open: u64) {
        self.state.counters.connections.store(open, Ordering::Relaxed);
    }
}

impl Ro {
    fn read(
        self: &Arc<Self>,
        query: Query,
        consistency: Consistency,
        arrival: Instant,
        deadline: Instant,
    ) -> Answer {
        let state = &self.state;
        let arrived = state.timer.nanos(arrival);
        let has_it = match consistency {
            Consistency::Strong => false,
            Consistency::AtLeast(lsn) => state.applied.get() >= lsn,
            Consistency::Bounded(age) => fresh_enough(state, age),
            Consistency::Eventual => true,
        };
        if has_it {
            return Answer::Now(state.answer(&query, Served::Local));
        }
        let state = self.state.clone();
        match consistency {
            Consistency::AtLeast(lsn) => self.later(deadline, async move {
                state.applied.reached(lsn).await;
                state.answer(&query, Served::Waited)
            }),
            // A read that may be so old is a strong one that arrived so much earlier.
            Consistency::Bounded(age) => {
                let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
                self.strong(query, Nanos(arrived.saturating_sub(age)), deadline)
            }
            Consistency::Strong | Consistency::Eventual => self.strong(query, Nanos(arrived), deadline),
        }
    }

    fn strong(self: &Arc<Self>, query: Query, arrival: Nanos, deadline: Instant) -> Answer {
        let gathered = Gathered::join(&self.state);
        self.clone().after_turn(query, arrival, deadline, gathered)
    }

    /// A strong read gives way before it asks: what else has arrived meanwhile is then served by the same timestamp. Where a fetch
    /// takes no time of its own, in which others could gather, it gives way again while more come.
    fn after_turn(
        self: Arc<Self>,
        query: Query,
        arrival: Nanos,
        deadline: Instant,
        mut gathered: Gathered,
    ) -> Answer {
        Answer::AfterTurn(Box::new(move || {
            if self.state.gathers_on(arrival, &mut gathered) {
                return self.after_turn(query, arrival, deadline, gathered);
            }
            drop(gathered);
            match self.state.strong_at_once(&query, arrival) {
                Some(response) => Answer::Now(response),
                None => {
                    let state = self.state.clone();
                    self.later(deadline, async move { state.strong(&query, arrival).await })
                }
            }
        }))
    }

    /// Waits for `answer`, at most until `deadline`; then says what it waited for.
    fn later(
        self: &Arc<Self>,
        deadline: Instant,
        answer: impl Future<Output = Response> + Send + 'static,
    ) -> Answer {
        let state = self.state.clone();
        let bounded = async move {
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(response) => response,
                Err(_) => {
                    state.counters.timed_out.fetch_add(1, Ordering::Relaxed);
                    let applied = state.applied.get();
                    Response::Error(Error::ReplicaBehind { applied, why: not_in_time(&state) })
                }
            }
        };
        Answer::Later(bounded.boxed())
    }

    fn status(&self) -> Response {
        let state = &self.state;
        let (about, upstream) = {
            let about = state.about.lock();
            (about.clone(), state.upstream.borrow().clone())
        };
        let applied = state.applied.get();
        let flushed = Lsn::new(state.flushed.load(Ordering::Relaxed));
        // As far as is known here: as published, or as a read has learnt.
        let visible = upstream.as_ref().map_or(flushed, |upstream| upstream.known().max(flushed));
        let mut status = NodeStatus {
            role: Role::Ro,
            name: self.name.clone(),
            address: self.address.clone(),
            cluster: self.cluster.clone(),
            cluster_id: about.cluster_id,
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: state.timer.seconds(),
            epoch: about.epoch,
            positions: Positions {
                flushed: Some(flushed),
                received: Some(Lsn::new(state.received.load(Ordering::Relaxed))),
                applied: Some(applied),
                ..Positions::default()
            },
            shards: state.log.len() as u64,
            entries: state.log.entries(),
            data_bytes: state.log.data_bytes(),
            connections: 0,
            served: Default::default(),
            timed_out: 0,
            strong_reads: 0,
            fetches: 0,
            disk_full: false,
            replicas: Vec::new(),
            upstream: Some(UpstreamStatus {
                address: about.rw_address,
                connected: upstream.is_some(),
                transport: upstream
                    .as_ref()
                    .map_or_else(String::new, |upstream| upstream.link.transport().to_string()),
                why: about.why,
                lease_ms: upstream.as_ref().map_or(0, |upstream| upstream.lease_left_us() / 1000),
                lag_bytes: visible.since(applied),
                lag_ms: state.age_us().map(|us| us / 1000),
            }),
        };
        state.counters.report(&mut status);
        match serde_json::to_vec(&status) {
            Ok(json) => Response::Status(json.into()),
            Err(error) => Response::Error(Error::InvalidArgument(format!("status: {error}"))),
        }
    }
}

fn fresh_enough(state: &State, age: Duration) -> bool {
    state.age_us().is_some_and(|us| u128::from(us) <= age.as_micros())
}

/// Why a read was not served in time.
fn not_in_time(state: &State) -> String {
    let upstream = state.upstream.borrow().clone();
    match upstream {
        None => format!("it is not attached to its RW: {}", state.about.lock().why),
        Some(upstream) if upstream.lease_left_us() == 0 => {
            "it has not heard from its RW for longer than its lease, and may not read strongly".into()
        }
        Some(_) => "it waited for more of the log".into(),
    }
}
