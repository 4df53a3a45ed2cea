//! The command as a process, where no node is needed: a log on disk, exit codes, errors.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use headwater_protocol::{Seqno, ShardName};
use headwater_shard_log::Change;
use headwater_wal::{Prepared, Wal, WalOptions, spawn_flusher};
use serde_json::Value;

const RING_BYTES: u64 = 64 << 10;

fn headwater(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headwater")).args(args).env_remove("HEADWATER_NODES").output().unwrap()
}

/// Its exit code, and its standard output as JSON lines.
fn json(args: &[&str]) -> (i32, Vec<Value>) {
    let output = headwater(args);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), lines)
}

/// A log of two appends and a truncate, stopped in order.
fn write_log(dir: &Path) {
    let options = WalOptions {
        dir: dir.to_owned(),
        cluster: "test".into(),
        segment_bytes: 64 << 10,
        lease: Duration::ZERO,
    };
    let words: Vec<AtomicU64> = (0..RING_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    let (wal, mut appender) = Wal::open(options, Arc::new(words), 0, RING_BYTES, &mut |_, _| Ok(())).unwrap();
    let flusher = spawn_flusher(wal, || {}, |_| {}, |error| panic!("{error}")).unwrap();
    let shard = ShardName::new("orders").unwrap();
    for number in 0..2 {
        let seqno = Seqno::new(number).unwrap();
        let change = Change::Append { shard: shard.clone(), seqno, data: Bytes::from_static(b"0123456789") };
        appender.append(&Prepared::new(&change)).unwrap();
    }
    let change = Change::Truncate { shard, cut: Seqno::new(1).unwrap() };
    appender.append(&Prepared::new(&change)).unwrap();
    appender.close().unwrap();
    flusher.stop();
}

#[test]
fn a_whole_log_is_checked_and_dumped() {
    let dir = tempfile::tempdir().unwrap();
    write_log(dir.path());
    let path = dir.path().to_str().unwrap();

    let (code, report) = json(&["wal", "check", path, "--json"]);
    assert_eq!((code, report.len()), (0, 1));
    assert_eq!((&report[0]["ok"], &report[0]["closed"]), (&true.into(), &true.into()));
    assert_eq!(report[0]["records"], 5);

    let (code, records) = json(&["wal", "dump", path, "--json"]);
    assert_eq!(code, 0);
    let kinds: Vec<_> = records.iter().map(|record| record["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["epoch-start", "append", "append", "truncate", "close"]);
    let second = &records[2];
    assert_eq!(
        (&second["shard"], &second["seqno"], &second["bytes"]),
        (&"orders".into(), &1.into(), &10.into())
    );
    assert_eq!(second["start"], records[1]["lsn"]);

    let from = second["start"].to_string();
    let (_, records) = json(&["wal", "dump", path, "--json", "--from", &from, "--limit", "1"]);
    assert_eq!((records.len(), &records[0]["seqno"]), (1, &1.into()));
}

#[test]
fn damage_is_named_with_file_and_position() {
    let dir = tempfile::tempdir().unwrap();
    write_log(dir.path());
    let path = dir.path().to_str().unwrap();
    let (_, records) = json(&["wal", "dump", path, "--json"]);
    let (file, offset) = (records[1]["file"].as_str().unwrap(), records[1]["offset"].as_u64().unwrap());
    let mut bytes = fs::read(file).unwrap();
    bytes[usize::try_from(offset).unwrap() + 60] ^= 1;
    fs::write(file, bytes).unwrap();

    let (code, report) = json(&["wal", "check", path, "--json"]);
    assert_eq!((code, &report[0]["ok"]), (6, &false.into()));
    assert_eq!(report[0]["damage"]["file"], file);
    assert_eq!(report[0]["damage"]["offset"], offset);

    let people = headwater(&["wal", "check", path]);
    assert_eq!(people.status.code(), Some(6));
    let text = String::from_utf8(people.stdout).unwrap();
    assert!(text.contains(file) && text.contains(&format!("byte {offset}")), "{text}");

    // What lies before the damage is still shown.
    let (code, records) = json(&["wal", "dump", path, "--json"]);
    assert_eq!((code, &records[0]["kind"]), (6, &"epoch-start".into()));
    assert_eq!(records[1]["error"]["exit"], 6);
}

#[test]
fn a_folder_without_a_log_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (code, lines) = json(&["wal", "check", dir.path().to_str().unwrap(), "--json"]);
    assert_eq!((code, &lines[0]["error"]["code"]), (1, &"wal".into()));
}

#[test]
fn a_node_that_is_not_there_is_named() {
    // Port 1 is nobody's.
    let (code, lines) = json(&["head", "orders", "--nodes", "127.0.0.1:1", "--json", "--deadline", "2s"]);
    assert_eq!((code, &lines[0]["error"]["code"]), (1, &"unreachable".into()));
    assert!(lines[0]["error"]["message"].as_str().unwrap().contains("127.0.0.1:1"));

    let people = headwater(&["head", "orders", "--nodes", "127.0.0.1:1"]);
    assert_eq!(people.status.code(), Some(1));
    assert!(people.stdout.is_empty());
    assert!(String::from_utf8(people.stderr).unwrap().contains("127.0.0.1:1"));
}

#[test]
fn what_cannot_be_understood_exits_with_2() {
    for args in [
        &["head"][..],
        &["head", "orders"],
        &["head", "", "--nodes", "a:1"],
        &["head", "orders", "--nodes", "a"],
        &["head", "orders", "--nodes", "a:1", "--consistency", "bounded"],
        &["cas", "orders", "data", "--nodes", "a:1"],
        &["truncate", "orders", "-1", "--nodes", "a:1"],
        &["scan", "orders", "--limit", "0", "--nodes", "a:1"],
        &["nonsense"],
    ] {
        let output = headwater(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn the_doctor_looks_at_the_machine_without_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let (code, lines) = json(&["doctor", "--json", "--data-dir", dir.path().to_str().unwrap()]);
    let checks = lines[0]["checks"].as_array().unwrap();
    assert_eq!(code, i32::from(lines[0]["worst"] == "fail"));
    for check in checks {
        assert!(check["verdict"] == "ok" || !check["advice"].as_str().unwrap().is_empty(), "{check}");
    }
    let (code, lines) = json(&["doctor", "--json", "--nodes", "127.0.0.1:1", "--deadline", "2s"]);
    assert_eq!((code, &lines[0]["worst"]), (1, &"fail".into()));
}
