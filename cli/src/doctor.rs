mod machine;
mod measure;
mod rdma;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use headwater_client::{ClientError, Connection};
use headwater_protocol::status::{NodeStatus, Role};
use serde::Serialize;

use crate::cluster::ClusterArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Verdict};
use crate::units;

/// Round trips that are timed to each node.
const ROUND_TRIPS: usize = 20;

/// What to look at.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Where an RW keeps or would keep its log; its disk is measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    data_dir: PathBuf,
}

/// One thing that was looked at.
#[derive(Serialize, Debug)]
struct Check {
    check: String,
    verdict: Verdict,
    found: String,
    /// What to do about it; empty if nothing.
    advice: String,
}

impl Check {
    fn ok(check: &str, found: String) -> Check {
        Check { check: check.into(), verdict: Verdict::Ok, found, advice: String::new() }
    }

    fn warn(check: &str, found: String, advice: &str) -> Check {
        Check { check: check.into(), verdict: Verdict::Warn, found, advice: advice.into() }
    }

    fn fail(check: &str, found: String, advice: &str) -> Check {
        Check { check: check.into(), verdict: Verdict::Fail, found, advice: advice.into() }
    }

    /// Good if `is_good`, else a warning with that advice.
    fn good_if(is_good: bool, check: &str, found: String, advice: &str) -> Check {
        if is_good { Check::ok(check, found) } else { Check::warn(check, found, advice) }
    }
}

#[derive(Serialize, Debug)]
struct Report {
    worst: Verdict,
    checks: Vec<Check>,
}

/// Says what this machine offers, and whether the nodes can be reached.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: DoctorArgs) -> Result<Exit, Failure> {
    let (nodes, deadline) = (cluster.nodes_if_any()?, cluster.deadline()?);
    let mut checks = machine::checks();
    checks.extend(rdma::checks());
    // Before any traffic of its own: both measure what others would notice.
    let measured =
        tokio::task::spawn_blocking(move || [measure::fdatasync(&args.data_dir), measure::loopback()]);
    checks.extend(measured.await.map_err(|e| Failure::Failed(format!("a measurement failed: {e}")))?);
    for node in &nodes {
        match look_at(node, deadline).await {
            Ok((status, round_trip)) => {
                checks.push(of_node(node, &status, round_trip));
                if status.role == Role::Rw {
                    let node = node.clone();
                    let links = tokio::task::spawn_blocking(move || rdma::transports(&node, &status));
                    checks.extend(links.await.map_err(|e| Failure::Failed(format!("a link failed: {e}")))?);
                }
            }
            Err(error) => {
                let advice =
                    "check that the node runs, that it listens there, and that no firewall is between";
                checks.push(Check::fail(&format!("node {node}"), error.to_string(), advice));
            }
        }
    }
    let worst = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    let report = Report { worst, checks };
    out.emit(&report, || report.people(out))?;
    Ok(if worst == Verdict::Fail { Exit::Failed } else { Exit::Done })
}

/// A node's status, and the median of a few round trips to it.
async fn look_at(node: &str, deadline: Duration) -> Result<(NodeStatus, Duration), ClientError> {
    let connection = Connection::open(node, deadline).await?;
    let mut status = connection.status(deadline).await?;
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        status = connection.status(deadline).await?;
        times.push(started.elapsed());
    }
    times.sort();
    Ok((status, times[times.len() / 2]))
}

fn of_node(node: &str, status: &NodeStatus, round_trip: Duration) -> Check {
    let check = format!("node {node}");
    let role = match status.role {
        Role::Rw => "RW",
        Role::Ro => "RO",
    };
    let found = format!(
        "{role} {} of cluster {}, version {}, round trip {}",
        status.name,
        status.cluster,
        status.version,
        units::time(round_trip)
    );
    let away = status.upstream.as_ref().filter(|upstream| !upstream.connected);
    if status.disk_full {
        Check::fail(&check, format!("{found}; its disk is full"), "make room: writes resume by themselves")
    } else if let Some(upstream) = away {
        let found = format!("{found}; not attached to its RW {}: {}", upstream.address, upstream.why);
        Check::warn(&check, found, "strong reads fail there until it is; look at its log")
    } else {
        let is_same = status.version == env!("CARGO_PKG_VERSION");
        let advice =
            concat!("this program is version ", env!("CARGO_PKG_VERSION"), ": use the same everywhere");
        Check::good_if(is_same, &check, found, advice)
    }
}

impl Report {
    fn people(&self, out: Output) -> String {
        let mut table = out.table(["", "check", "found", "what to do"], &[]);
        for check in &self.checks {
            let word = match check.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "fail",
            };
            let verdict = out.verdict(check.verdict, word);
            table.add_row([verdict, (&check.check).into(), (&check.found).into(), (&check.advice).into()]);
        }
        table.to_string()
    }
}
