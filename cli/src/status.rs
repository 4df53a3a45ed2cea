use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use comfy_table::Cell;
use headwater_client::{ClientError, ReadFrom};
use headwater_protocol::status::{NodeStatus, Role, UpstreamStatus};
use headwater_protocol::{Lsn, Served};
use serde::Serialize;

use crate::cluster::ClusterArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Verdict};
use crate::units;

/// How to show it.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Show it again every second, until interrupted
    #[arg(long)]
    watch: bool,
}

/// What is known of one node.
#[derive(Serialize, Debug)]
#[serde(untagged)]
enum Node {
    Known { address: String, status: Box<NodeStatus> },
    Silent { address: String, error: String },
}

#[derive(Serialize, Debug)]
struct Report {
    nodes: Vec<Node>,
}

/// Shows every node of the cluster: those that were named, and those that they know.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: StatusArgs) -> Result<Exit, Failure> {
    let client = cluster.client(ReadFrom::Replicas).await?;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        let report = Report::of(client.status().await);
        out.emit(&report, || {
            let clear = if args.watch && out.is_terminal() { "\x1b[H\x1b[2J" } else { "" };
            format!("{clear}{}", report.people(out))
        })?;
        if !args.watch {
            return Ok(if report.any_known() { Exit::Done } else { Exit::Failed });
        }
    }
}

impl Report {
    fn of(answers: Vec<(String, Result<NodeStatus, ClientError>)>) -> Report {
        let mut nodes: Vec<Node> = answers
            .into_iter()
            .map(|(address, answer)| match answer {
                Ok(status) => Node::Known { address, status: Box::new(status) },
                Err(error) => Node::Silent { address, error: error.to_string() },
            })
            .collect();
        nodes.sort_by_key(|node| match node {
            Node::Known { address, status } => (status.role != Role::Rw, address.clone()),
            Node::Silent { address, .. } => (true, address.clone()),
        });
        Report { nodes }
    }

    fn any_known(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Known { .. }))
    }

    fn known(&self) -> impl Iterator<Item = &NodeStatus> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Known { status, .. } => Some(&**status),
            Node::Silent { .. } => None,
        })
    }

    fn people(&self, out: Output) -> String {
        format!("{}\n\n{}\n\n{}", self.nodes(out), self.positions(out), self.reads(out))
    }

    fn nodes(&self, out: Output) -> String {
        let numbers = ["epoch", "shards", "entries", "data", "clients"];
        let header =
            ["node", "address", "role", "epoch", "up", "shards", "entries", "data", "clients", "state"];
        let mut table = out.table(header, &numbers);
        for node in &self.nodes {
            match node {
                Node::Known { address, status } => {
                    let (verdict, state) = state(status);
                    table.add_row([
                        Cell::new(&status.name),
                        Cell::new(address),
                        Cell::new(role(status.role)),
                        Cell::new(status.epoch),
                        Cell::new(humantime::format_duration(Duration::from_secs(status.uptime_s))),
                        Cell::new(units::count(status.shards)),
                        Cell::new(units::count(status.entries)),
                        Cell::new(units::bytes(status.data_bytes)),
                        Cell::new(units::count(status.connections)),
                        out.verdict(verdict, state),
                    ]);
                }
                Node::Silent { address, error } => {
                    let mut row = vec![Cell::new("?"), Cell::new(address)];
                    row.resize(header.len() - 1, Cell::new(""));
                    row.push(out.verdict(Verdict::Fail, error));
                    table.add_row(row);
                }
            }
        }
        table.to_string()
    }

    fn positions(&self, out: Output) -> String {
        let header =
            ["node", "appended", "flushed", "visible", "received", "applied", "lag", "behind", "transport"];
        let mut table = out.table(header, &header[1..8]);
        for status in self.known() {
            let positions = &status.positions;
            let lsn = |lsn: Option<Lsn>| lsn.map_or_else(|| "-".into(), |lsn| units::count(lsn.get()));
            let upstream = status.upstream.as_ref();
            table.add_row([
                status.name.clone(),
                lsn(positions.appended),
                lsn(positions.flushed),
                lsn(positions.visible),
                lsn(positions.received),
                lsn(positions.applied),
                upstream.map_or_else(|| "-".into(), |up| units::bytes(up.lag_bytes)),
                match upstream {
                    None => "-".into(),
                    Some(up) => up
                        .lag_ms
                        .map_or_else(|| "unknown".into(), |ms| units::time(Duration::from_millis(ms))),
                },
                upstream.map_or_else(String::new, transport),
            ]);
        }
        table.to_string()
    }

    fn reads(&self, out: Output) -> String {
        let header = ["node", "strong reads", "fetches", "timed out", "reads by how they were served"];
        let mut table = out.table(header, &header[1..4]);
        for status in self.known() {
            table.add_row([
                status.name.clone(),
                units::count(status.strong_reads),
                units::count(status.fetches),
                units::count(status.timed_out),
                served(&status.served),
            ]);
        }
        table.to_string()
    }
}

/// In one phrase, whether the node does its work.
fn state(status: &NodeStatus) -> (Verdict, String) {
    match (&status.upstream, status.disk_full) {
        (_, true) => (Verdict::Fail, "disk full: writes are refused".into()),
        (Some(up), _) if !up.connected => (Verdict::Warn, format!("without its RW: {}", up.why)),
        (Some(_), _) => (Verdict::Ok, "follows its RW".into()),
        (None, _) => match &status.replicas[..] {
            [] => (Verdict::Ok, "no ROs attached".into()),
            replicas => {
                let names = replicas.iter().map(|ro| match ro.source.as_str() {
                    "ring" => format!("{} ({})", ro.name, ro.transport),
                    source => format!("{} ({}, from {source})", ro.name, ro.transport),
                });
                (Verdict::Ok, format!("ships to {}", names.collect::<Vec<_>>().join(", ")))
            }
        },
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Rw => "RW",
        Role::Ro => "RO",
    }
}

/// Which one, and why not a better one.
fn transport(upstream: &UpstreamStatus) -> String {
    match (upstream.connected, upstream.why.as_str()) {
        (false, _) => "none: not attached".into(),
        (true, "") => upstream.transport.clone(),
        (true, why) => format!("{} ({why})", upstream.transport),
    }
}

/// The ways that were used, in the order of [`Served::ALL`].
fn served(reads: &BTreeMap<String, u64>) -> String {
    let used = Served::ALL.iter().filter_map(|way| {
        let reads = reads.get(way.name()).copied().filter(|reads| *reads > 0)?;
        Some(format!("{} {}", way.name(), units::count(reads)))
    });
    used.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(role: &str, upstream: Value) -> NodeStatus {
        let status = json!({
            "role": role, "name": role, "address": "b:2", "cluster": "c", "cluster_id": null, "version": "0.1.0",
            "uptime_s": 5, "epoch": 1, "positions": { "applied": 4096 }, "shards": 1, "entries": 2, "data_bytes": 3,
            "connections": 0, "served": { "page": 1200, "rw": 0, "local": 7 }, "timed_out": 0, "strong_reads": 9,
            "fetches": 3, "upstream": upstream,
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn with_the_rw_down_its_ros_are_still_shown() {
        let away = json!({
            "address": "a:1", "connected": false, "transport": "", "why": "connection refused", "lease_ms": 0,
            "lag_bytes": 0, "lag_ms": 1500,
        });
        let refused = ClientError::Unreachable { address: "a:1".into(), why: "refused".into() };
        let report = Report::of(vec![("a:1".into(), Err(refused)), ("b:2".into(), Ok(node("ro", away)))]);
        assert!(report.any_known());
        let text = report.people(Output::new(false));
        for expected in ["a:1 cannot be reached", "without its RW: connection refused", "4,096", "1.50 s"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["nodes"][0]["error"].as_str().unwrap().contains("refused"));
        assert_eq!(json["nodes"][1]["status"]["positions"]["applied"], 4096);
    }

    #[test]
    fn only_ways_that_were_used_are_shown() {
        assert_eq!(served(&node("rw", Value::Null).served), "local 7, page 1,200");
    }
}
