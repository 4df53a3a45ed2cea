use std::time::Duration;

use headwater_protocol::status::NodeStatus;
use serde::Serialize;

use super::LoadArgs;
use crate::counters::Counters;
use crate::load::{Measured, Summary};
use crate::output::Output;
use crate::units;

/// How a benchmark went.
#[derive(Serialize)]
pub(crate) struct Report {
    workload: &'static str,
    /// The one node that was read.
    pub(crate) node: Option<String>,
    /// How fresh the reads were.
    pub(crate) consistency: Option<String>,
    shards: u32,
    clients: u32,
    connections: u16,
    payload_bytes: usize,
    seconds: f64,
    /// Operations a second that were to be started; none in a closed loop.
    rate: Option<f64>,
    cas: Option<Summary>,
    read: Option<Summary>,
    /// Writes of the client beside.
    beside: Option<Summary>,
    /// Operations that failed.
    pub(crate) errors: u64,
    first_error: Option<String>,
    /// Operations that the rate wanted and no client was free for.
    unstarted: u64,
    /// Fetches for each strong read on the nodes that serve reads.
    fetches_per_strong_read: Option<f64>,
    /// What those nodes counted during the run, warm-up included.
    counters: Counters,
}

impl Report {
    /// With what is known before the run.
    pub(crate) fn new(workload: &'static str, args: &LoadArgs, clients: u32, shards: u32) -> Report {
        Report {
            workload,
            node: None,
            consistency: None,
            shards,
            clients,
            connections: args.connections,
            payload_bytes: args.payload,
            seconds: args.seconds,
            rate: args.rate,
            cas: None,
            read: None,
            beside: None,
            errors: 0,
            first_error: None,
            unstarted: 0,
            fetches_per_strong_read: None,
            counters: Counters::default(),
        }
    }

    /// Takes over how the load went.
    pub(crate) fn measured(&mut self, measured: &Measured) {
        let some = |summary: Summary| Some(summary).filter(|summary| summary.count > 0);
        self.cas = some(measured.writes());
        self.read = some(measured.reads());
        self.unstarted = measured.unstarted;
        self.failed(measured);
    }

    /// Takes over how the client beside did.
    pub(crate) fn beside(&mut self, measured: &Measured) {
        self.beside = Some(measured.writes());
        self.failed(measured);
    }

    fn failed(&mut self, measured: &Measured) {
        self.errors += measured.errors;
        self.first_error = self.first_error.take().or(measured.first_error.clone());
    }

    /// Takes over what the nodes counted meanwhile.
    pub(crate) fn counters(&mut self, before: &[NodeStatus], after: &[NodeStatus]) {
        self.counters = Counters::of(after).since(Counters::of(before));
        self.fetches_per_strong_read = self.counters.fetches_per_strong_read();
    }

    /// For people.
    pub(crate) fn people(&self, out: Output) -> String {
        let header = ["operation", "rate", "p50", "p90", "p99", "p99.9", "max", "count"];
        let mut table = out.table(header, &header[1..]);
        let rows = [("compare-and-set", self.cas), ("read", self.read), ("write beside", self.beside)];
        for (what, summary) in rows.into_iter().filter_map(|(what, summary)| Some((what, summary?))) {
            let time = |us: f64| units::time(Duration::from_secs_f64(us / 1e6));
            let quantiles = [summary.p50_us, summary.p90_us, summary.p99_us, summary.p999_us, summary.max_us];
            let [p50, p90, p99, p999, max] = quantiles.map(time);
            let (rate, count) = (units::rate(summary.per_s), units::count(summary.count));
            table.add_row([what.into(), rate, p50, p90, p99, p999, max, count]);
        }
        let served = self.counters.served;
        let mut text = format!("{}\n{table}\n", self.setting());
        if self.read.is_some() {
            let fetches = self.fetches_per_strong_read.map_or_else(|| "no".into(), |f| format!("{f:.3}"));
            text += &format!(
                "served: {} reused, {} global, {} shard, {} page, {} waited, {} local, {} rw; {fetches} fetches a strong read\n",
                units::count(served.reused),
                units::count(served.global),
                units::count(served.shard),
                units::count(served.page),
                units::count(served.waited),
                units::count(served.local),
                units::count(served.rw),
            );
        }
        if self.unstarted > 0 {
            let unstarted = units::count(self.unstarted);
            text += &format!(
                "{unstarted} operations were not even started: the rate is more than these clients get\n"
            );
        }
        if let Some(error) = &self.first_error {
            text += &format!(
                "{}, the first: {error}\n",
                units::of(self.errors, "operation failed", "operations failed")
            );
        }
        text
    }

    fn setting(&self) -> String {
        let loop_kind = self
            .rate
            .map_or_else(|| "closed loop".into(), |rate| format!("open loop at {}", units::rate(rate)));
        let consistency = self.consistency.as_ref().map_or_else(String::new, |c| format!(", {c}"));
        let node = self.node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
        format!(
            "{}{node}{consistency}: {}, {}, {}, {} a payload, {loop_kind}, {} s",
            self.workload,
            units::of(self.clients.into(), "client", "clients"),
            units::of(self.shards.into(), "shard", "shards"),
            units::of(self.connections.into(), "connection", "connections"),
            units::bytes(self.payload_bytes as u64),
            self.seconds,
        )
    }
}
