use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::Args;
use headwater_client::{Connection, ReadFrom};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cluster;
use crate::counters::Counters;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::import;
use crate::load::{self, Schedule};
use crate::logs::{self, Logs};
use crate::output::Output;

mod builtin;
mod nodes;
mod report;
mod verify;
mod workload;

use nodes::Nodes;
use report::{Lag, Report};
use verify::Content;
use workload::{EventualReader, Ledger, StrongReader, Writer};

/// Shards that are written at the same time, each by its one writer.
const WRITERS: usize = 8;
/// Strong readers of each RO.
const STRONG_READERS: u64 = 4;
/// Eventual readers of each RO.
const EVENTUAL_READERS: u64 = 2;

/// How long one write may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often the ROs' lag is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What to show.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// A folder of logs to import, as `import` takes it [default: a few that are built in]
    dir: Option<PathBuf>,
    /// How long to write and read; 0 only imports
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// By which transport both ROs attach [default: one by shm, one by tcp]
    #[arg(long, value_name = "auto|shm|verbs|tcp", value_parser = ["auto", "shm", "verbs", "tcp"])]
    transport: Option<String>,
    /// Leave the cluster up until Ctrl-C or SIGTERM
    #[arg(long)]
    hold: bool,
}

/// Starts a cluster here, imports logs, writes and reads, verifies, and cleans up.
pub(crate) async fn run(out: Output, args: DemoArgs) -> Result<Exit, Failure> {
    // Listened to from here on to the end: one that comes at any moment stops the nodes.
    let mut signals = Signals::listen()?;
    let (nodes, exit) = tokio::select! {
        shown = show(out, &args) => shown?,
        () = signals.next() => return Err(Failure::Interrupted),
    };
    if args.hold {
        signals.next().await;
    }
    drop(nodes);
    Ok(exit)
}

/// The signals by which somebody wants it to end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|e| Failure::Failed(format!("cannot listen for signals: {e}")));
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

async fn show(out: Output, args: &DemoArgs) -> Result<(Nodes, Exit), Failure> {
    let logs = args.dir.as_deref().map_or_else(|| Ok(builtin::logs()), logs::read)?;
    let mut nodes = Nodes::start(args.transport.as_deref()).await?;
    match exercise(out, args, logs, &nodes).await {
        Ok(exit) => Ok((nodes, exit)),
        // A node that ended is the reason for whatever else went wrong.
        Err(failure) => Err(nodes.check_alive().err().unwrap_or(failure)),
    }
}

async fn exercise(out: Output, args: &DemoArgs, logs: Logs, nodes: &Nodes) -> Result<Exit, Failure> {
    let client = cluster::connect(nodes.addresses(), DEADLINE, ReadFrom::Replicas).await?;
    let import = import::import(out, &client, logs).await;
    if args.hold {
        out.emit(&nodes.json(), || {
            let named = |node: &nodes::Node| format!("{} {}", node.name, node.address);
            let nodes: Vec<_> = nodes.all().map(named).collect();
            format!("the cluster is up: {}", nodes.join(", "))
        })?;
    }
    let rw = nodes.rw.connect().await?;
    let mut ros = Vec::new();
    for ro in &nodes.ros {
        ros.push(ro.connect().await?);
    }
    let ledger = Ledger::new(WRITERS);
    let mut report = Report::new(args, nodes, import);
    if args.seconds > 0 {
        let before = counters(&ros).await?;
        let schedule =
            Schedule { warmup: Duration::ZERO, measured: Duration::from_secs(args.seconds), rate: None };
        let writers = (0..WRITERS).map(|shard| Writer::new(client.session(), ledger.clone(), shard));
        let strong = ros.iter().flat_map(|ro| {
            (0..STRONG_READERS).map(|index| StrongReader::new(ro.clone(), ledger.clone(), index))
        });
        let eventual = ros.iter().flat_map(|ro| {
            (0..EVENTUAL_READERS).map(|index| EventualReader::new(ro.clone(), ledger.clone(), index))
        });
        let (writers, strong, eventual) = (writers.collect(), strong.collect(), eventual.collect());
        let loads = async {
            tokio::join!(
                load::run::<Writer>(writers, schedule),
                load::run::<StrongReader>(strong, schedule),
                load::run::<EventualReader>(eventual, schedule),
            )
        };
        let (loads, lag) = tokio::join!(loads, watch(out, &ros, &ledger, args.seconds));
        report.loads(&loads.0, &loads.1, &loads.2);
        report.lag = lag;
        report.counters(counters(&ros).await?.since(before));
    }
    verify(&mut report, &rw, &ros, &ledger).await?;
    out.emit(&report, || report.people(out))?;
    Ok(report.exit())
}

async fn counters(ros: &[Connection]) -> Result<Counters, Failure> {
    let mut statuses = Vec::new();
    for ro in ros {
        statuses.push(ro.status(DEADLINE).await.map_err(Failure::of(ro.address()))?);
    }
    Ok(Counters::of(&statuses))
}

/// Looks at the ROs' lag while the workload runs, and says how it goes.
async fn watch(out: Output, ros: &[Connection], ledger: &Arc<Ledger>, seconds: u64) -> Lag {
    let progress = out.progress("demo", seconds * 10);
    let mut lag = Lag::default();
    let mut look = tokio::time::interval(LOOK_EVERY);
    let started = tokio::time::Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) {
        look.tick().await;
        for ro in ros {
            // An RO that gives no status shows in the reads' errors.
            if let Ok(status) = ro.status(DEADLINE).await {
                lag.look(&status);
            }
        }
        let (writes, reads) = (ledger.writes.load(Relaxed), ledger.reads.load(Relaxed));
        let stale = ledger.stale.load(Relaxed);
        let done = started.elapsed().as_millis() as u64 / 100;
        progress.set(done, format!("{writes} writes, {reads} reads, {stale} stale; lag {} ms", lag.ms_max));
    }
    lag
}

async fn verify(
    report: &mut Report,
    rw: &Connection,
    ros: &[Connection],
    ledger: &Ledger,
) -> Result<(), Failure> {
    let on = |node: &Connection| Failure::of(format!("verifying {}", node.address()));
    report.lost_writes = verify::lost_writes(rw, ledger).await.map_err(on(rw))?;
    report.stale_strong_reads = ledger.stale.load(Relaxed);
    report.wrong_entries = ledger.wrong.load(Relaxed);
    report.first_violation = ledger.first_violation();
    let expected = Content::of(rw).await.map_err(on(rw))?;
    (report.verified.shards, report.verified.entries) = expected.count();
    for ro in ros {
        let content = Content::of(ro).await.map_err(on(ro))?;
        report.verified.differences.extend(content.differences(&expected));
    }
    Ok(())
}
