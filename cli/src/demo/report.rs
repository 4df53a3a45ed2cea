use std::time::Duration;

use headwater_protocol::status::NodeStatus;
use serde::Serialize;

use super::DemoArgs;
use super::nodes::Nodes;
use crate::counters::{Counters, Served};
use crate::exit::Exit;
use crate::import;
use crate::load::{Measured, Summary};
use crate::output::{Output, Verdict};
use crate::units;

/// How a demo went.
#[derive(Serialize)]
pub(crate) struct Report {
    /// The folder that was imported; none if the built-in logs were.
    dir: Option<String>,
    /// Shards of the import that are wholly in the cluster. The workload's own (`demo/…`) are not counted.
    shards: u64,
    /// Entries of these shards.
    entries: u64,
    /// How long it wrote and read.
    seconds: u64,
    /// Compare-and-sets a second.
    cas_per_s: f64,
    /// Compare-and-sets.
    cas: Summary,
    /// Strong reads on the ROs.
    strong: Summary,
    /// Eventual reads on the ROs.
    eventual: Summary,
    /// Reads on the ROs by how they were served.
    served: Served,
    /// Timestamps fetched for each strong read; none if there was none.
    fetches_per_strong_read: Option<f64>,
    /// The ROs' lag.
    pub(crate) lag: Lag,
    /// Acknowledged writes that are not there at the end.
    pub(crate) lost_writes: u64,
    /// Strong reads that missed a write acknowledged before they were sent.
    pub(crate) stale_strong_reads: u64,
    /// Entries that were read with other bytes than were written, or out of place.
    pub(crate) wrong_entries: u64,
    /// The first of these, in words.
    pub(crate) first_violation: Option<String>,
    /// Operations that failed.
    errors: u64,
    /// The first of these failures.
    first_error: Option<String>,
    /// The comparison of all nodes at the end.
    pub(crate) verified: Verified,
    /// The nodes.
    nodes: Vec<NodeReport>,
    /// How the import went.
    import: import::Report,
}

/// The ROs' lag, as often as it was looked at.
#[derive(Serialize, Default)]
pub(crate) struct Lag {
    /// Flushed bytes that an RO had not applied, at most.
    pub(crate) bytes_max: u64,
    /// How far an RO's state was behind, at most, ms.
    pub(crate) ms_max: u64,
}

impl Lag {
    /// Takes an RO's status into account.
    pub(crate) fn look(&mut self, status: &NodeStatus) {
        if let Some(upstream) = &status.upstream {
            self.bytes_max = self.bytes_max.max(upstream.lag_bytes);
            self.ms_max = self.ms_max.max(upstream.lag_ms.unwrap_or(0));
        }
    }
}

/// The comparison of all nodes at the end, the workload's shards included.
#[derive(Serialize, Default)]
pub(crate) struct Verified {
    /// Shards on the RW.
    pub(crate) shards: u64,
    /// Entries on the RW.
    pub(crate) entries: u64,
    /// Shards that an RO holds otherwise than the RW.
    pub(crate) differences: Vec<String>,
}

#[derive(Serialize)]
struct NodeReport {
    name: &'static str,
    address: String,
}

impl Report {
    /// With what is known before the workload.
    pub(crate) fn new(args: &DemoArgs, nodes: &Nodes, import: import::Report) -> Report {
        Report {
            dir: args.dir.as_ref().map(|dir| dir.display().to_string()),
            shards: import.complete().count() as u64,
            entries: import.complete().map(|shard| shard.entries).sum(),
            seconds: args.seconds,
            cas_per_s: 0.0,
            cas: Summary::default(),
            strong: Summary::default(),
            eventual: Summary::default(),
            served: Served::default(),
            fetches_per_strong_read: None,
            lag: Lag::default(),
            lost_writes: 0,
            stale_strong_reads: 0,
            wrong_entries: 0,
            first_violation: None,
            errors: 0,
            first_error: None,
            verified: Verified::default(),
            nodes: nodes
                .all()
                .map(|node| NodeReport { name: node.name, address: node.address.clone() })
                .collect(),
            import,
        }
    }

    /// Takes over how the loads went.
    pub(crate) fn loads(&mut self, writes: &Measured, strong: &Measured, eventual: &Measured) {
        self.cas = writes.writes();
        self.cas_per_s = self.cas.per_s;
        self.strong = strong.reads();
        self.eventual = eventual.reads();
        let all = [writes, strong, eventual];
        self.errors = all.iter().map(|load| load.errors).sum();
        self.first_error = all.iter().find_map(|load| load.first_error.clone());
    }

    /// Takes over what the ROs counted meanwhile.
    pub(crate) fn counters(&mut self, counters: Counters) {
        self.served = counters.served;
        self.fetches_per_strong_read = counters.fetches_per_strong_read();
    }

    /// The exit code that says so. Gaps in the imported logs are the input's, not the demo's.
    pub(crate) fn exit(&self) -> Exit {
        let is_wrong = self.lost_writes + self.stale_strong_reads + self.wrong_entries > 0;
        if is_wrong || !self.verified.differences.is_empty() {
            Exit::Damaged
        } else if self.errors > 0 {
            Exit::Failed
        } else {
            Exit::Done
        }
    }

    /// For people: what went in, how it went, and whether it was right.
    pub(crate) fn people(&self, out: Output) -> String {
        let mut text = format!("{}\n", self.import.people(out));
        if self.seconds > 0 {
            text.push_str(&format!("\n{}\n{}\n", self.load_table(out), self.reads()));
        }
        text + &format!("\n{}", self.verdict_table(out))
    }

    fn load_table(&self, out: Output) -> String {
        let header = ["operation", "rate", "p50", "p99", "max"];
        let mut table = out.table(header, &header[1..]);
        let rows =
            [("compare-and-set", self.cas), ("strong reads", self.strong), ("eventual reads", self.eventual)];
        for (what, summary) in rows {
            let time = |us: f64| units::time(Duration::from_secs_f64(us / 1e6));
            let times = [time(summary.p50_us), time(summary.p99_us), time(summary.max_us)];
            let [p50, p99, max] = times;
            table.add_row([what.to_owned(), units::rate(summary.per_s), p50, p99, max]);
        }
        table.to_string()
    }

    fn reads(&self) -> String {
        let served = self.served;
        let fetches =
            self.fetches_per_strong_read.map_or_else(|| "no".into(), |fetches| format!("{fetches:.3}"));
        format!(
            "reads on the ROs: {} reused a timestamp, {} by the global one, {} by the shard's, {} by the page's, {} waited, \
             {} needed none; {fetches} fetches a strong read\nlag of the ROs: at most {} and {} ms",
            units::count(served.reused),
            units::count(served.global),
            units::count(served.shard),
            units::count(served.page),
            units::count(served.waited),
            units::count(served.local),
            units::bytes(self.lag.bytes_max),
            self.lag.ms_max,
        )
    }

    fn verdict_table(&self, out: Output) -> String {
        let mut table = out.table(["verified", "result"], &[]);
        let mut row = |what: &str, wrong: u64, text: String| {
            let verdict = if wrong == 0 { Verdict::Ok } else { Verdict::Fail };
            table.add_row([what.into(), out.verdict(verdict, text)]);
        };
        row("acknowledged writes lost", self.lost_writes, units::count(self.lost_writes));
        row("strong reads that were stale", self.stale_strong_reads, units::count(self.stale_strong_reads));
        row("entries with wrong bytes", self.wrong_entries, units::count(self.wrong_entries));
        let failed = self.first_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        row("operations that failed", self.errors, format!("{}{failed}", units::count(self.errors)));
        let verified = &self.verified;
        let nodes = match &verified.differences[..] {
            [] => format!(
                "all {} nodes hold the same {}",
                self.nodes.len(),
                units::of(verified.entries, "entry", "entries")
            ),
            differences => format!("these shards differ: {}", differences.join(", ")),
        };
        row("nodes, byte for byte", verified.differences.len() as u64, nodes);
        if let Some(violation) = &self.first_violation {
            row("the first violation", 1, violation.clone());
        }
        table.to_string()
    }
}
