use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::StreamExt;
use futures_util::stream;
use headwater_client::{Cas, Client, ReadFrom};
use headwater_protocol::limits::SCAN_ENTRIES_MAX;
use headwater_protocol::{Consistency, Seqno};
use serde::Serialize;

use crate::cluster::ClusterArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::logs::{self, Log, Logs, Versions};
use crate::output::{Output, Progress, Verdict};
use crate::units;

/// Shards that are written at the same time. Each shard's entries go one after the other.
const SHARDS_AT_ONCE: usize = 8;

/// What to import.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// A folder: each subfolder a shard, each file <number>.json in it the entry of that version
    dir: PathBuf,
}

/// How an import went.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    /// Logs of which entries were added.
    pub(crate) imported: u64,
    /// Logs that were wholly there.
    pub(crate) already_there: u64,
    /// Logs that could not be imported.
    pub(crate) failed: u64,
    /// Entries that were added.
    pub(crate) entries_added: u64,
    /// Files and folders that are neither a log nor a version.
    pub(crate) ignored: u64,
    /// How long it took.
    pub(crate) seconds: f64,
    /// Each log.
    pub(crate) shards: Vec<ShardReport>,
}

/// How the import of one log went.
#[derive(Serialize, Debug)]
pub(crate) struct ShardReport {
    /// The shard.
    pub(crate) shard: String,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// The first version in the folder.
    pub(crate) first: Option<Seqno>,
    /// The last version in the folder.
    pub(crate) last: Option<Seqno>,
    /// Versions in the folder.
    pub(crate) entries: u64,
    /// Entries that were added.
    pub(crate) added: u64,
    /// Bytes of the entries that were added.
    pub(crate) bytes: u64,
    /// Why it was not imported.
    pub(crate) error: Option<String>,
    /// Whether a write's outcome is unknown.
    #[serde(skip)]
    unknown: bool,
}

/// How the import of one log ended.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// Entries were added.
    Imported,
    /// Nothing was left to add.
    AlreadyThere,
    /// See the error.
    Error,
}

impl Report {
    /// The exit code that says so.
    fn exit(&self) -> Exit {
        match self.failed {
            0 => Exit::Done,
            _ if self.shards.iter().any(|shard| shard.unknown) => Exit::Unknown,
            _ => Exit::Failed,
        }
    }

    /// Logs that are wholly in the cluster.
    pub(crate) fn complete(&self) -> impl Iterator<Item = &ShardReport> {
        self.shards.iter().filter(|shard| shard.outcome != Outcome::Error)
    }

    /// For people: what went wrong, then the sums.
    pub(crate) fn people(&self, out: Output) -> String {
        let mut table = out.table(["shard", "outcome", "versions", "added", "size"], &["added", "size"]);
        for shard in &self.shards {
            let (verdict, outcome) = match (shard.outcome, &shard.error) {
                (Outcome::Imported, _) => (Verdict::Ok, "imported".into()),
                (Outcome::AlreadyThere, _) => (Verdict::Ok, "already there".into()),
                (Outcome::Error, error) => (Verdict::Fail, error.clone().unwrap_or_default()),
            };
            let versions = match (shard.first, shard.last) {
                (Some(first), Some(last)) => format!("{first} to {last}"),
                _ => String::new(),
            };
            table.add_row([
                (&shard.shard).into(),
                out.verdict(verdict, outcome),
                versions.into(),
                units::count(shard.added).into(),
                units::bytes(shard.bytes).into(),
            ]);
        }
        format!(
            "{table}\n{} imported, {} already there, {} not imported; {} added in {}; {} ignored",
            units::of(self.imported, "shard", "shards"),
            units::count(self.already_there),
            units::count(self.failed),
            units::of(self.entries_added, "entry", "entries"),
            units::time(Duration::from_secs_f64(self.seconds)),
            units::of(self.ignored, "other file or folder", "other files and folders"),
        )
    }
}

/// Imports a folder of logs.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: ImportArgs) -> Result<Exit, Failure> {
    let logs = logs::read(&args.dir)?;
    let client = cluster.client(ReadFrom::Replicas).await?;
    let report = import(out, &client, logs).await;
    out.emit(&report, || report.people(out))?;
    Ok(report.exit())
}

/// Imports logs, several at once. A log that cannot be imported keeps no other from it.
pub(crate) async fn import(out: Output, client: &Client, logs: Logs) -> Report {
    let started = Instant::now();
    let steps =
        logs.logs.iter().flat_map(|log| &log.versions).map(|versions| versions.sources.len() as u64).sum();
    let progress = out.progress("import", steps);
    let shards: Vec<ShardReport> = stream::iter(logs.logs)
        .map(|log| import_log(client, log, &progress))
        .buffered(SHARDS_AT_ONCE)
        .collect()
        .await;
    let count = |outcome| shards.iter().filter(|shard| shard.outcome == outcome).count() as u64;
    Report {
        imported: count(Outcome::Imported),
        already_there: count(Outcome::AlreadyThere),
        failed: count(Outcome::Error),
        entries_added: shards.iter().map(|shard| shard.added).sum(),
        ignored: logs.ignored,
        seconds: started.elapsed().as_secs_f64(),
        shards,
    }
}

async fn import_log(client: &Client, log: Log, progress: &Progress) -> ShardReport {
    let mut report = ShardReport {
        shard: log.name,
        outcome: Outcome::Error,
        first: None,
        last: None,
        entries: 0,
        added: 0,
        bytes: 0,
        error: None,
        unknown: false,
    };
    let versions = match log.versions {
        Ok(versions) => versions,
        Err(error) => {
            report.error = Some(error);
            return report;
        }
    };
    report.first = Some(versions.first);
    report.last = Some(versions.last());
    report.entries = versions.sources.len() as u64;
    match import_versions(client, &versions, progress, &mut report).await {
        Ok(()) if report.added > 0 => report.outcome = Outcome::Imported,
        Ok(()) => report.outcome = Outcome::AlreadyThere,
        Err(failure) => {
            report.unknown = failure.exit() == Exit::Unknown;
            report.error = Some(failure.to_string());
        }
    }
    report
}

/// Adds what is new. Everything is checked before the first write: a log that cannot be whole leaves its shard untouched.
async fn import_versions(
    client: &Client,
    versions: &Versions,
    progress: &Progress,
    report: &mut ShardReport,
) -> Result<(), Failure> {
    let shard = &versions.shard;
    let mut head = compare(client, versions).await?;
    let begin = match head {
        None => 0,
        Some(head) => usize::try_from(head.get() + 1 - versions.first.get()).unwrap_or(usize::MAX),
    };
    progress.step(begin.min(versions.sources.len()) as u64);
    for (index, source) in versions.sources.iter().enumerate().skip(begin) {
        let seqno = versions.at(index);
        let data = source.read()?;
        let bytes = data.len() as u64;
        let of = || Failure::of(format!("version {seqno}"));
        if head.is_none() && seqno > Seqno::ZERO {
            client.begin(shard, seqno, data).await.map_err(of())?;
        } else {
            match client.compare_and_set(shard, head, data).await.map_err(of())? {
                Cas::Committed(..) => {}
                Cas::Mismatch { head, .. } => {
                    let found = head.map_or_else(|| "no entry".into(), |head| format!("{head} as its head"));
                    return Err(Failure::Failed(format!(
                        "version {seqno}: another writer was there, the shard has {found}"
                    )));
                }
            }
        }
        head = Some(seqno);
        report.added += 1;
        report.bytes += bytes;
        progress.step(1);
    }
    Ok(())
}

/// Compares what the shard has with the folder's versions, byte for byte, and gives its head. What was truncated is not
/// compared; what the shard has beyond the folder's last version is its own affair.
async fn compare(client: &Client, versions: &Versions) -> Result<Option<Seqno>, Failure> {
    let shard = &versions.shard;
    let of = || Failure::of("comparing what is there");
    let Some(head) = client.head(shard, Consistency::Strong).await.map_err(of())?.entry else {
        return Ok(None);
    };
    let head = head.seqno;
    if head.next().is_some_and(|next| next < versions.first) {
        return Err(Failure::Failed(format!(
            "versions {} to {} are missing: the shard's head is {head}, and the folder begins at {}",
            head.get() + 1,
            versions.first.get() - 1,
            versions.first,
        )));
    }
    let mut from = versions.first;
    while from <= head.min(versions.last()) {
        let page = client.scan(shard, from, SCAN_ENTRIES_MAX, Consistency::Strong).await.map_err(of())?;
        for entry in &page.entries {
            let Some(source) = versions.source(entry.seqno) else { break };
            if source.read()? != entry.data {
                return Err(Failure::Failed(format!(
                    "version {} differs from what the shard has",
                    entry.seqno
                )));
            }
        }
        let Some(next) = page.entries.last().and_then(|entry| entry.seqno.next()) else { break };
        from = next;
    }
    Ok(Some(head))
}
