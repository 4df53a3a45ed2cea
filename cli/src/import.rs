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
    /// A folder: each subfolder a shard, each file NUMBER.json in it the entry of that version
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

impl ShardReport {
    fn new(shard: String) -> ShardReport {
        ShardReport {
            shard,
            outcome: Outcome::Error,
            first: None,
            last: None,
            entries: 0,
            added: 0,
            bytes: 0,
            error: None,
            unknown: false,
        }
    }
}

impl Report {
    fn new(shards: Vec<ShardReport>, ignored: u64, took: Duration) -> Report {
        let count = |outcome| shards.iter().filter(|shard| shard.outcome == outcome).count() as u64;
        Report {
            imported: count(Outcome::Imported),
            already_there: count(Outcome::AlreadyThere),
            failed: count(Outcome::Error),
            entries_added: shards.iter().map(|shard| shard.added).sum(),
            ignored,
            seconds: took.as_secs_f64(),
            shards,
        }
    }

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
    Report::new(shards, logs.ignored, started.elapsed())
}

async fn import_log(client: &Client, log: Log, progress: &Progress) -> ShardReport {
    let mut report = ShardReport::new(log.name);
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
    let of = Failure::of("looking what is there");
    let mut head = client.head(shard, Consistency::Strong).await.map_err(of)?.entry.map(|entry| entry.seqno);
    let begin = first_to_add(head, versions).map_err(Failure::Failed)?;
    compare(client, versions, begin).await?;
    progress.step(begin as u64);
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

/// The index of the first version that the shard, whose head is that, does not have.
fn first_to_add(head: Option<Seqno>, versions: &Versions) -> Result<usize, String> {
    let Some(head) = head else { return Ok(0) };
    match (head.get() + 1).checked_sub(versions.first.get()) {
        // What the shard has beyond the folder's last version is its own affair.
        Some(there) => Ok(usize::try_from(there).unwrap_or(usize::MAX).min(versions.sources.len())),
        None => Err(format!(
            "versions {} to {} are missing: the shard's head is {head}, and the folder begins at {}",
            head.get() + 1,
            versions.first.get() - 1,
            versions.first,
        )),
    }
}

/// Compares the versions before that index with what the shard has, byte for byte; what was truncated is not.
async fn compare(client: &Client, versions: &Versions, end: usize) -> Result<(), Failure> {
    let mut from = versions.first;
    while end > 0 && from <= versions.at(end - 1) {
        let page = client
            .scan(&versions.shard, from, SCAN_ENTRIES_MAX, Consistency::Strong)
            .await
            .map_err(Failure::of("comparing what is there"))?;
        for entry in &page.entries {
            let Some(source) = versions.source(entry.seqno) else { return Ok(()) };
            if source.read()? != entry.data {
                return Err(Failure::Failed(format!(
                    "version {} differs from what the shard has",
                    entry.seqno
                )));
            }
        }
        let Some(next) = page.entries.last().and_then(|entry| entry.seqno.next()) else { return Ok(()) };
        from = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::Source;

    fn seqno(number: u64) -> Seqno {
        Seqno::new(number).unwrap()
    }

    fn versions(first: u64, count: usize) -> Versions {
        let shard = headwater_protocol::ShardName::new("s").unwrap();
        Versions { shard, first: seqno(first), sources: vec![Source::BuiltIn(b""); count] }
    }

    #[test]
    fn only_what_is_new_is_added() {
        let first = |head: Option<u64>, versions: &Versions| first_to_add(head.map(seqno), versions);
        // Versions 5, 6, 7.
        let versions = versions(5, 3);
        assert_eq!(first(None, &versions), Ok(0));
        assert_eq!(first(Some(4), &versions), Ok(0));
        assert_eq!(first(Some(5), &versions), Ok(1));
        assert_eq!(first(Some(7), &versions), Ok(3));
        assert_eq!(first(Some(i64::MAX as u64), &versions), Ok(3));
        let error = first(Some(2), &versions).unwrap_err();
        assert!(error.contains("3 to 4 are missing") && error.contains("head is 2"), "{error}");
    }

    fn report(outcomes: &[(Outcome, bool)]) -> Report {
        let shards = outcomes.iter().map(|(outcome, unknown)| ShardReport {
            unknown: *unknown,
            outcome: *outcome,
            ..ShardReport::new("s".into())
        });
        Report::new(shards.collect(), 3, Duration::from_millis(5))
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst_shard() {
        use Outcome::{AlreadyThere, Error, Imported};
        assert_eq!(report(&[(Imported, false), (AlreadyThere, false)]).exit(), Exit::Done);
        assert_eq!(report(&[(Imported, false), (Error, false)]).exit(), Exit::Failed);
        assert_eq!(report(&[(Error, false), (Error, true)]).exit(), Exit::Unknown);
    }

    #[test]
    fn json_has_the_sums_and_each_shard() {
        let json =
            serde_json::to_value(report(&[(Outcome::AlreadyThere, false), (Outcome::Error, false)])).unwrap();
        for (key, number) in [("imported", 0), ("already_there", 1), ("failed", 1), ("ignored", 3)] {
            assert_eq!(json[key], number, "{key}");
        }
        assert_eq!(json["shards"][0]["outcome"], "already-there");
        assert!(json["shards"][0].get("unknown").is_none());
    }
}
