use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::StreamExt;
use futures_util::stream;
use headwater_client::{Client, ReadFrom};
use headwater_protocol::limits::SCAN_ENTRIES_MAX;
use headwater_protocol::{Consistency, Seqno, ShardName};
use serde::Serialize;

use crate::cluster::ClusterArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Verdict};
use crate::{shards, units};

/// Shards that are read at the same time.
const SHARDS_AT_ONCE: usize = 8;

/// Bytes of a file's name at most, on the file systems there are.
const FILE_NAME_BYTES_MAX: usize = 255;

/// What to export where.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// The folder to make, or an empty one: each shard becomes a subfolder, each entry a file <20 digits>.json in it
    dir: PathBuf,
    /// Only shards whose names begin with this
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix: String,
}

#[derive(Serialize, Debug)]
struct Report {
    exported: u64,
    failed: u64,
    entries: u64,
    bytes: u64,
    seconds: f64,
    shards: Vec<ShardReport>,
}

#[derive(Serialize, Debug)]
struct ShardReport {
    shard: ShardName,
    first: Option<Seqno>,
    last: Option<Seqno>,
    entries: u64,
    bytes: u64,
    error: Option<String>,
}

/// Exports shards into a folder that `import` can read. A shard that cannot be exported keeps no other from it.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: ExportArgs) -> Result<Exit, Failure> {
    let started = Instant::now();
    empty_folder(&args.dir)?;
    let client = cluster.client(ReadFrom::Replicas).await?;
    let names = shards::all(&client, &args.prefix, Consistency::Strong)
        .await
        .map_err(Failure::of(format!("shards beginning with {:?}", args.prefix)))?;
    let progress = out.progress("export", names.len() as u64);
    let shards: Vec<ShardReport> = stream::iter(names)
        .map(|shard| async {
            let report = export_shard(&client, shard, &args.dir).await;
            progress.step(1);
            report
        })
        .buffered(SHARDS_AT_ONCE)
        .collect()
        .await;
    drop(progress);
    let failed = shards.iter().filter(|shard| shard.error.is_some()).count() as u64;
    let report = Report {
        exported: shards.len() as u64 - failed,
        failed,
        entries: shards.iter().map(|shard| shard.entries).sum(),
        bytes: shards.iter().map(|shard| shard.bytes).sum(),
        seconds: started.elapsed().as_secs_f64(),
        shards,
    };
    out.emit(&report, || report.people(out, &args.dir))?;
    Ok(if report.failed == 0 { Exit::Done } else { Exit::Failed })
}

impl Report {
    fn people(&self, out: Output, dir: &Path) -> String {
        let mut table = out.table(["shard", "outcome", "versions", "size"], &["size"]);
        for shard in &self.shards {
            let outcome = match &shard.error {
                None => out.verdict(Verdict::Ok, "exported"),
                Some(error) => out.verdict(Verdict::Fail, error),
            };
            let versions = match (shard.first, shard.last) {
                (Some(first), Some(last)) => format!("{first} to {last}"),
                _ => String::new(),
            };
            let name = shard.shard.as_str().escape_debug().to_string();
            table.add_row([name.into(), outcome, versions.into(), units::bytes(shard.bytes).into()]);
        }
        format!(
            "{table}\n{} exported to {}, {} not; {}, {} in {}",
            units::of(self.exported, "shard", "shards"),
            dir.display(),
            units::count(self.failed),
            units::of(self.entries, "entry", "entries"),
            units::bytes(self.bytes),
            units::time(Duration::from_secs_f64(self.seconds)),
        )
    }
}

/// Makes the folder, or makes sure that nothing is in it: an export into older files would be neither.
fn empty_folder(dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(Failure::file("create", dir))?;
    match fs::read_dir(dir).map_err(Failure::file("read", dir))?.next() {
        None => Ok(()),
        Some(_) => {
            Err(Failure::Failed(format!("{} is not empty: export needs an empty folder", dir.display())))
        }
    }
}

async fn export_shard(client: &Client, shard: ShardName, dir: &Path) -> ShardReport {
    let mut report = ShardReport { shard, first: None, last: None, entries: 0, bytes: 0, error: None };
    if let Err(failure) = export_entries(client, dir, &mut report).await {
        report.error = Some(failure.to_string());
    }
    report
}

async fn export_entries(client: &Client, dir: &Path, report: &mut ShardReport) -> Result<(), Failure> {
    let name = folder_name(&report.shard).map_err(Failure::Failed)?;
    let folder = dir.join(name);
    fs::create_dir(&folder).map_err(Failure::file("create", &folder))?;
    let mut from = Seqno::ZERO;
    loop {
        let page = client
            .scan(&report.shard, from, SCAN_ENTRIES_MAX, Consistency::Strong)
            .await
            .map_err(Failure::of("reading"))?;
        for entry in &page.entries {
            if report.last.is_some() && entry.seqno != from {
                return Err(Failure::Failed(format!(
                    "truncated while it was exported: versions {from} to {} are gone",
                    entry.seqno.get() - 1
                )));
            }
            let file = folder.join(file_name(entry.seqno));
            fs::write(&file, &entry.data).map_err(Failure::file("write", &file))?;
            report.first.get_or_insert(entry.seqno);
            report.last = Some(entry.seqno);
            report.entries += 1;
            report.bytes += entry.data.len() as u64;
            let Some(next) = entry.seqno.next() else { return Ok(()) };
            from = next;
        }
        if !page.more || page.entries.is_empty() {
            return Ok(());
        }
    }
}

/// As table formats name their commits.
fn file_name(seqno: Seqno) -> String {
    format!("{:020}.json", seqno.get())
}

/// The shard's name, if a folder can have it.
fn folder_name(shard: &ShardName) -> Result<&str, String> {
    let name = shard.as_str();
    let why = if name == "." || name == ".." {
        "it means another folder"
    } else if name.contains('/') {
        "it has a slash"
    } else if name.contains('\0') {
        "it has a zero byte"
    } else if name.len() > FILE_NAME_BYTES_MAX {
        "it is too long for a file system"
    } else {
        return Ok(name);
    };
    Err(format!("the name cannot be a folder's: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_folder_cannot_have_are_refused() {
        let check = |name: &str| folder_name(&ShardName::new(name).unwrap()).map(str::to_owned);
        for good in ["orders", "…", ".hidden", "a b", "a\\b", "-", &"x".repeat(255)] {
            assert_eq!(check(good).unwrap(), good);
        }
        for bad in [".", "..", "a/b", "/", "../x", "a\0b", &"x".repeat(256)] {
            assert!(check(bad).unwrap_err().contains("cannot be a folder's"), "{bad:?}");
        }
    }

    #[test]
    fn files_are_named_as_they_were_imported() {
        assert_eq!(file_name(Seqno::ZERO), "00000000000000000000.json");
        assert_eq!(file_name(Seqno::MAX), "09223372036854775807.json");
    }

    #[test]
    fn only_an_empty_folder_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        empty_folder(&dir.path().join("new")).unwrap();
        empty_folder(&dir.path().join("new")).unwrap();
        let error = empty_folder(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
    }
}
