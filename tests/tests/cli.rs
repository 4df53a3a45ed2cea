//! The `headwater` command against a running cluster: whole logs in and out again, and what scripts rely on.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use headwater_tests::cluster::{Cluster, program};
use serde_json::Value;

/// Each log's files by number, each with its bytes.
type Logs = BTreeMap<String, BTreeMap<u64, Vec<u8>>>;

/// The logs of many real tables where they are at hand, else the few that the command brings along; and whether they are
/// the many.
fn real_logs() -> (PathBuf, bool) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = std::env::var_os("HEADWATER_SHARED_DATA").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| here.join("../../shared/data")).join("delta-logs");
    if shared.is_dir() { (shared, true) } else { (here.join("../cli/demo-logs"), false) }
}

fn read_logs(dir: &Path) -> Logs {
    let mut logs = Logs::new();
    for folder in fs::read_dir(dir).unwrap().map(|folder| folder.unwrap().path()).filter(|path| path.is_dir())
    {
        let mut log = BTreeMap::new();
        for file in fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()) {
            let number = file.file_name().unwrap().to_str().unwrap().strip_suffix(".json");
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                log.insert(number, fs::read(&file).unwrap());
            }
        }
        logs.insert(folder.file_name().unwrap().to_str().unwrap().into(), log);
    }
    logs
}

fn has_gap(log: &BTreeMap<u64, Vec<u8>>) -> bool {
    log.keys().zip(log.keys().skip(1)).any(|(one, next)| one + 1 != *next)
}

/// Runs the command; gives its exit code, and what it says, as JSON.
async fn headwater(cluster: &Cluster, args: &[&str]) -> (i32, Value) {
    let nodes: Vec<_> = cluster.nodes().map(|node| node.address().to_owned()).collect();
    let mut command = std::process::Command::new(program("headwater"));
    command.args(["--json", "--nodes", &nodes.join(",")]).args(args);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json = serde_json::from_str(text.lines().next().unwrap_or("null"));
    (output.status.code().unwrap(), json.unwrap_or_else(|e| panic!("{args:?}: {e}: {text}")))
}

/// Entries as large as real commits.
const LARGE: [(&str, &str); 2] = [("entry-bytes-max", "4MiB"), ("ring-bytes", "16MiB")];

#[tokio::test(flavor = "multi_thread")]
async fn real_logs_come_out_as_they_went_in() {
    let (dir, many) = real_logs();
    let logs = read_logs(&dir);
    let (gaps, whole): (Logs, Logs) = logs.into_iter().partition(|(_, log)| has_gap(log));
    let entries: usize = whole.values().map(BTreeMap::len).sum();
    if many {
        assert_eq!((whole.len(), gaps.len()), (53, 5));
    }
    let mut cluster = Cluster::start(&LARGE, &["shm", "tcp"]).await;
    let from = dir.to_str().unwrap();

    let (code, report) = headwater(&cluster, &["import", from]).await;
    assert_eq!(code, i32::from(!gaps.is_empty()), "a gap is an error, and no other log's");
    assert_eq!((&report["imported"], &report["failed"]), (&whole.len().into(), &gaps.len().into()));
    assert_eq!(report["entries_added"], entries);
    for shard in report["shards"].as_array().unwrap() {
        let is_gap = gaps.contains_key(shard["shard"].as_str().unwrap());
        let error = shard["error"].as_str();
        assert_eq!(error.is_some(), is_gap, "{shard}");
    }

    let (code, report) = headwater(&cluster, &["import", from]).await;
    assert_eq!(code, i32::from(!gaps.is_empty()));
    assert_eq!((&report["already_there"], &report["entries_added"]), (&whole.len().into(), &0.into()));

    // Also after a crash, and also from the ROs, where an export reads.
    cluster.crash_rw().await;
    let out = cluster.dir.path().join("out");
    let (code, report) = headwater(&cluster, &["export", out.to_str().unwrap()]).await;
    assert_eq!((code, &report["exported"]), (0, &whole.len().into()));
    assert!(read_logs(&out) == whole, "what came out is not what went in");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_say_how_it_went() {
    let cluster = Cluster::start(&[], &["shm"]).await;
    let run = async |args: &[&str]| headwater(&cluster, args).await;
    assert_eq!(run(&["head", "s"]).await.0, 5, "nothing there");
    let (code, written) = run(&["cas", "s", "--expected", "none", "a"]).await;
    assert_eq!((code, &written["seqno"]), (0, &0.into()));
    let (code, mismatch) = run(&["cas", "s", "--expected", "none", "b"]).await;
    assert_eq!((code, &mismatch["head"]), (3, &0.into()), "a mismatch, and the head");
    let (code, appended) = run(&["append", "s", "c"]).await;
    assert_eq!((code, &appended["seqno"]), (0, &1.into()));
    let (code, head) = run(&["head", "s"]).await;
    assert_eq!((code, &head["entry"]["data"]), (0, &"c".into()));
    let (code, scan) = run(&["scan", "s"]).await;
    assert_eq!((code, scan["entries"].as_array().unwrap().len()), (0, 2));
    let (code, cut) = run(&["truncate", "s", "1"]).await;
    assert_eq!((code, &cut["removed"]), (0, &1.into()));
    let (code, refused) = run(&["truncate", "s", "2"]).await;
    assert_eq!((code, &refused["error"]["code"]), (1, &"cut-above-head".into()));
    let (code, shards) = run(&["shards"]).await;
    assert_eq!((code, &shards["shards"][0]), (0, &"s".into()));

    let (code, status) = run(&["status"]).await;
    assert_eq!(code, 0);
    let nodes = status["nodes"].as_array().unwrap();
    let mut roles: Vec<_> = nodes.iter().map(|node| node["status"]["role"].as_str().unwrap()).collect();
    roles.sort_unstable();
    assert_eq!(roles, ["ro", "rw"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_and_a_killed_rws_log_can_be_checked_and_dumped() {
    let mut cluster = Cluster::start(&[], &[]).await;
    headwater(&cluster, &["append", "s", "one"]).await;
    headwater(&cluster, &["append", "s", "two"]).await;
    let data_dir = cluster.rw.data_dir().display().to_string();
    for _ in 0..2 {
        let (code, report) = headwater(&cluster, &["wal", "check", &data_dir]).await;
        assert_eq!((code, &report["ok"]), (0, &true.into()), "{report}");
        let (code, record) = headwater(&cluster, &["wal", "dump", &data_dir, "--limit", "1"]).await;
        assert_eq!((code, &record["kind"]), (0, &"epoch-start".into()));
        cluster.rw.kill();
    }
}

/// The shortest way to see it all: a cluster of its own, and its own verdict.
#[tokio::test(flavor = "multi_thread")]
async fn a_demo_is_right() {
    let cluster = Cluster::start(&[], &[]).await;
    let (code, report) = headwater(&cluster, &["demo", "--seconds", "2"]).await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["lost_writes"], &report["stale_strong_reads"]), (&0.into(), &0.into()));
    assert!(
        report["cas"]["count"].as_u64() > Some(0) && report["strong"]["count"].as_u64() > Some(0),
        "{report}"
    );
}
