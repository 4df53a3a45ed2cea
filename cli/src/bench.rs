mod workers;
mod report;

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use headwater_client::{Client, Connection, ReadFrom};
use headwater_protocol::status::{NodeStatus, Role};
use headwater_protocol::{Consistency, ShardName};

use crate::cluster::{self, ClusterArgs};
use crate::consistency;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::load::{self, Schedule};
use crate::output::Output;
use report::Report;
use workers::{Mixed, Reader, Stream, Target};

/// What to measure.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Compare-and-sets: one stream for each shard
    Cas(CasBench),
    /// Reads
    Read(ReadBench),
    /// Reads and compare-and-sets by the same clients
    Mixed(MixedBench),
}

/// How long and how hard.
#[derive(Args, Debug)]
struct LoadArgs {
    /// Seconds that are measured
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = positive)]
    seconds: f64,
    /// Seconds before that, which are not
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = not_negative)]
    warmup: f64,
    /// Start so many operations a second, whether earlier ones are done or not, and count each from when it should have
    /// started [default: each client starts one when its last is done]
    #[arg(long, value_name = "N", value_parser = positive)]
    rate: Option<f64>,
    /// Connections to each node
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Bytes of each entry
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    payload: usize,
}

#[derive(Args, Debug)]
pub(crate) struct CasBench {
    #[command(flatten)]
    load: LoadArgs,
    /// Shards that are written: bench/cas/0, 1, 2, …
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    shards: u32,
    /// After so many writes of a shard, remove the entries before them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    truncate_every: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct ReadBench {
    #[command(flatten)]
    load: LoadArgs,
    /// Shards that are read: bench/read/0, 1, 2, …
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    shards: u32,
    /// What is asked
    #[arg(long, value_enum, default_value_t = Op::Head)]
    op: Op,
    /// Entries of a scan, which are a shard's last
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    scan_limit: u32,
    /// Clients, each with one read in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// strong, eventual, at-least:LSN, or bounded:TIME
    #[arg(long, default_value = "strong", value_parser = consistency::parse)]
    consistency: Consistency,
    /// Read on this node only
    #[arg(long, value_name = "HOST:PORT")]
    node: Option<String>,
    /// A client writes beside: to other shards than are read, or to the same
    #[arg(long, value_enum)]
    while_writing: Option<Beside>,
}

#[derive(Args, Debug)]
pub(crate) struct MixedBench {
    #[command(flatten)]
    load: LoadArgs,
    /// Clients, each with one operation in flight; each writes a shard of its own and reads any
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Reads among a hundred operations
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u32).range(0..=100))]
    reads: u32,
    /// strong, eventual, at-least:LSN, or bounded:TIME
    #[arg(long, default_value = "strong", value_parser = consistency::parse)]
    consistency: Consistency,
}

/// What a read asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Op {
    /// The newest entry
    Head,
    /// The last entries
    Scan,
}

/// Where the client beside writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Beside {
    /// To a shard that nobody reads
    Other,
    /// To the shards that are read
    Same,
}

fn positive(text: &str) -> Result<f64, String> {
    not_negative(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("more than 0".into()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("a number, not {text:?}"))?;
    if (0.0..=1e9).contains(&number) { Ok(number) } else { Err("from 0 to 1,000,000,000".into()) }
}

impl LoadArgs {
    fn schedule(&self) -> Schedule {
        Schedule {
            warmup: Duration::from_secs_f64(self.warmup),
            measured: Duration::from_secs_f64(self.seconds),
            rate: self.rate,
        }
    }

    /// Clients with connections of their own.
    async fn clients(&self, nodes: &[String], deadline: Duration) -> Result<Vec<Client>, Failure> {
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            clients.push(cluster::connect(nodes.to_vec(), deadline, ReadFrom::Replicas).await?);
        }
        Ok(clients)
    }
}

/// The shards of a workload.
fn shard_names(workload: &str, count: u32) -> Result<Vec<ShardName>, Failure> {
    let name = |i| ShardName::new(&format!("bench/{workload}/{i}"));
    (0..count).map(name).collect::<Result<_, _>>().map_err(|e| Failure::Failed(e.to_string()))
}

/// Measures a running cluster.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, command: BenchCommand) -> Result<Exit, Failure> {
    let report = match command {
        BenchCommand::Cas(args) => cas(out, cluster, &args).await?,
        BenchCommand::Read(args) => read(out, cluster, &args).await?,
        BenchCommand::Mixed(args) => mixed(out, cluster, &args).await?,
    };
    out.emit(&report, || report.people(out))?;
    Ok(if report.errors == 0 { Exit::Done } else { Exit::Failed })
}

async fn cas(out: Output, cluster: &ClusterArgs, args: &CasBench) -> Result<Report, Failure> {
    let clients = args.load.clients(&cluster.nodes()?, cluster.deadline()?).await?;
    let streams = streams(&clients, shard_names("cas", args.shards)?, args.load.payload, args.truncate_every);
    let before = statuses(&clients[0], None).await;
    let measured = shown(out, load::run(streams, args.load.schedule()), &args.load).await;
    let after = statuses(&clients[0], None).await;
    let mut report = Report::new("cas", &args.load, args.shards, args.shards);
    report.measured(&measured);
    report.counters(&before, &after);
    Ok(report)
}

async fn mixed(out: Output, cluster: &ClusterArgs, args: &MixedBench) -> Result<Report, Failure> {
    let clients = args.load.clients(&cluster.nodes()?, cluster.deadline()?).await?;
    let own = shard_names("mixed", args.clients)?;
    fill(&clients[0], &own, 1, args.load.payload).await?;
    let streams = streams(&clients, own.clone(), args.load.payload, None);
    let workers = streams.into_iter().enumerate().map(|(i, stream)| {
        let target = Target::Cluster(clients[i % clients.len()].session());
        let reader = Reader::new(target, own.clone(), i, None, args.consistency, Duration::ZERO);
        Mixed::new(stream, reader, args.reads, i)
    });
    let before = statuses(&clients[0], None).await;
    let measured = shown(out, load::run(workers.collect(), args.load.schedule()), &args.load).await;
    let after = statuses(&clients[0], None).await;
    let mut report = Report::new("mixed", &args.load, args.clients, args.clients);
    report.consistency = Some(consistency::name(args.consistency));
    report.measured(&measured);
    report.counters(&before, &after);
    Ok(report)
}

async fn read(out: Output, cluster: &ClusterArgs, args: &ReadBench) -> Result<Report, Failure> {
    let deadline = cluster.deadline()?;
    let nodes = match (cluster.nodes_if_any()?, &args.node) {
        (nodes, Some(node)) if nodes.is_empty() => vec![node.clone()],
        _ => cluster.nodes()?,
    };
    let clients = args.load.clients(&nodes, deadline).await?;
    let shards = shard_names("read", args.shards)?;
    let scan = (args.op == Op::Scan).then_some(args.scan_limit);
    fill(&clients[0], &shards, scan.unwrap_or(1).into(), args.load.payload).await?;

    let mut targets = Vec::new();
    for client in &clients {
        targets.push(match &args.node {
            None => Target::Cluster(client.clone()),
            Some(node) => {
                let connection = Connection::open(node, deadline).await;
                Target::Node(connection.map_err(Failure::of(format!("node {node}")))?)
            }
        });
    }
    let readers: Vec<Reader> = (0..args.clients as usize)
        .map(|i| {
            let target = targets[i % targets.len()].session();
            Reader::new(target, shards.clone(), i, scan, args.consistency, deadline)
        })
        .collect();
    let before = statuses(&clients[0], args.node.as_deref()).await;
    let beside = match args.while_writing {
        None => Vec::new(),
        Some(Beside::Other) => streams(&clients[..1], shard_names("beside", 1)?, args.load.payload, None),
        Some(Beside::Same) => {
            vec![Stream::new(clients[0].session(), shards, args.load.payload, None)]
        }
    };
    let schedule = args.load.schedule();
    let loads = async {
        tokio::join!(load::run(readers, schedule), load::run(beside, Schedule { rate: None, ..schedule }))
    };
    let (measured, beside) = shown(out, loads, &args.load).await;
    let after = statuses(&clients[0], args.node.as_deref()).await;
    let mut report = Report::new("read", &args.load, args.clients, args.shards);
    report.consistency = Some(consistency::name(args.consistency));
    report.node = args.node.clone();
    report.measured(&measured);
    if args.while_writing.is_some() {
        report.beside(&beside);
    }
    report.counters(&before, &after);
    Ok(report)
}

fn streams(
    clients: &[Client],
    shards: Vec<ShardName>,
    payload: usize,
    truncate_every: Option<u64>,
) -> Vec<Stream> {
    let stream = |(i, shard): (usize, ShardName)| {
        let client = clients[i % clients.len()].session();
        Stream::new(client, vec![shard], payload, truncate_every)
    };
    shards.into_iter().enumerate().map(stream).collect()
}

/// Writes to each shard until it has that many entries.
async fn fill(client: &Client, shards: &[ShardName], entries: u64, payload: usize) -> Result<(), Failure> {
    for shard in shards {
        let of = || Failure::of(format!("shard {shard}"));
        let head = client.head(shard, Consistency::Strong).await.map_err(of())?;
        let there = head.entry.map_or(0, |entry| entry.seqno.get() + 1);
        for _ in there..entries {
            client.append(shard, workers::payload(payload)).await.map_err(of())?;
        }
    }
    Ok(())
}

/// Shows for how long it has run.
async fn shown<T>(out: Output, load: impl Future<Output = T>, args: &LoadArgs) -> T {
    let total = args.warmup + args.seconds;
    let progress = out.progress("bench", total.ceil() as u64);
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    tokio::pin!(load);
    loop {
        tokio::select! {
            done = &mut load => return done,
            _ = second.tick() => progress.step(1),
        }
    }
}

/// The statuses of the nodes that serve the reads: that one, or all ROs; the RW where there is no RO.
async fn statuses(client: &Client, node: Option<&str>) -> Vec<NodeStatus> {
    let all = client.status().await;
    let all: Vec<(String, NodeStatus)> =
        all.into_iter().filter_map(|(address, status)| Some((address, status.ok()?))).collect();
    let any_ro = all.iter().any(|(_, status)| status.role == Role::Ro);
    let wanted = |(address, status): &(String, NodeStatus)| match node {
        Some(node) => address == node || status.address == node,
        None => !any_ro || status.role == Role::Ro,
    };
    all.into_iter().filter(wanted).map(|(_, status)| status).collect()
}
