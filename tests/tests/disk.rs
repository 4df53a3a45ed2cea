//! Disks that are full, taken, forbidden, someone else's, or damaged.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use headwater_client::{Cas, ClientError, Connection};
use headwater_protocol::{Consistency, Error, Seqno, ShardName};
use headwater_tests::cluster::{Cluster, Node, PATIENCE, eventually};
use headwater_tests::snapshot::snapshot;

/// A file system of its own, as large as is said. Unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None, and a line that says so, where this user may not mount.
    fn mount(at: &Path, bytes: u64) -> Option<SmallDisk> {
        fs::create_dir(at).unwrap();
        let size = format!("size={bytes}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        match mount {
            Ok(output) if output.status.success() => Some(SmallDisk(at.into())),
            other => {
                eprintln!("SKIPPED: a small disk cannot be mounted here: {other:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the node on it is killed afterwards, where a test fails.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn shard() -> ShardName {
    ShardName::new("s").unwrap()
}

async fn append(rw: &Connection, expected: Option<Seqno>) -> Result<Cas, ClientError> {
    rw.compare_and_set(&shard(), expected, Bytes::from(vec![5; 10_000]), PATIENCE).await
}

/// Writes until the disk is full; gives the head.
async fn fill(rw: &Connection, mut head: Option<Seqno>) -> Seqno {
    loop {
        match append(rw, head).await {
            Ok(Cas::Committed(seqno, _)) => head = Some(seqno),
            Err(ClientError::Refused(Error::DiskFull)) => return head.expect("there was room for one"),
            // The next segment is being made.
            Err(ClientError::Refused(Error::Overloaded(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// W5: refused before it is in the log, by an error that says why; reads go on; it heals by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_serves_reads_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&dir.path().join("disk"), 2 << 20) else { return };
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![0; 1 << 20]).unwrap();
    let data_dir = disk.0.join("data").display().to_string();
    let mut cluster = Cluster::start(&[("data-dir", &data_dir)], &["shm", "tcp"]).await;
    let rw = cluster.rw.connect().await;
    let head = fill(&rw, None).await;
    assert!(cluster.rw.status().await.disk_full);
    cluster.rw.logged("no room for the log").await;
    for node in cluster.nodes() {
        let seen = node.connect().await.head(&shard(), Consistency::Strong, PATIENCE).await.unwrap();
        assert_eq!(seen.entry.unwrap().seqno, head, "on {}", node.address());
    }
    // Nothing was taken that cannot be kept, and what was taken is kept, also by a start on the full disk.
    cluster.rw.kill();
    cluster.rw.start().await;
    cluster.all_attached().await;
    let rw = cluster.rw.connect().await;
    let seen = rw.head(&shard(), Consistency::Strong, PATIENCE).await.unwrap();
    assert_eq!(seen.entry.unwrap().seqno, head);
    let head = fill(&rw, Some(head)).await;

    fs::remove_file(&ballast).unwrap();
    let heals = || async {
        match append(&rw, Some(head)).await {
            Ok(Cas::Committed(seqno, _)) => Some(seqno),
            Err(ClientError::Refused(Error::DiskFull | Error::Overloaded(_))) => None,
            other => panic!("{other:?}"),
        }
    };
    let next = eventually("there is room again, and it is taken", heals).await;
    assert_eq!(Some(next), head.next());
    assert!(!cluster.rw.status().await.disk_full);
    let ours = snapshot(&rw, Consistency::Strong, PATIENCE).await.unwrap();
    for ro in &cluster.ros {
        let theirs = snapshot(&ro.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
        assert!(ours == theirs, "{} differs", ro.address());
    }
    drop(cluster);
}

/// Starts a node that cannot start, and gives what it says.
async fn fails_to_start(node: &mut Node) -> String {
    node.spawn();
    let status = node.exited().await;
    assert!(!status.success(), "{status}");
    node.log()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_is_one_nodes() {
    let cluster = Cluster::start(&[], &[]).await;
    let data_dir = cluster.rw.data_dir();
    let mut second = Node::rw(cluster.dir.path(), "second");
    second.set("data-dir", data_dir.display());
    let said = fails_to_start(&mut second).await;
    assert!(said.contains(&format!("{} is in use by another process", data_dir.display())), "{said}");
    assert!(append(&cluster.rw.connect().await, None).await.is_ok(), "the first is not disturbed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    // A file where a directory should be stops even a superuser.
    let path = dir.path().join("file");
    fs::write(&path, "not a directory").unwrap();
    let mut node = Node::rw(dir.path(), "rw");
    node.set("data-dir", path.join("data").display());
    let said = fails_to_start(&mut node).await;
    assert!(said.contains(path.to_str().unwrap()) && said.contains("not writable"), "{said}");

    let forbidden = dir.path().join("forbidden");
    fs::create_dir(&forbidden).unwrap();
    fs::set_permissions(&forbidden, Permissions::from_mode(0o500)).unwrap();
    if fs::write(forbidden.join("probe"), "").is_ok() {
        eprintln!("SKIPPED: no mode keeps this user out of a directory");
        return;
    }
    node.set("data-dir", forbidden.join("data").display());
    let said = fails_to_start(&mut node).await;
    assert!(said.contains(forbidden.to_str().unwrap()), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_another_cluster_or_another_shape_is_not_touched() {
    let mut cluster = Cluster::start(&[("cluster", "north")], &[]).await;
    append(&cluster.rw.connect().await, None).await.unwrap();
    cluster.rw.terminate();
    assert!(cluster.rw.exited().await.success());
    let rw = &mut cluster.rw;
    let said = fails_to_start(rw.set("cluster", "south")).await;
    assert!(said.contains("belongs to the cluster 'north', not 'south'"), "{said}");
    let said = fails_to_start(rw.set("cluster", "north").set("segment-bytes", "128KiB")).await;
    assert!(said.contains("segments of 65536 bytes, not 131072"), "{said}");
    rw.set("segment-bytes", "64KiB").start().await;
    let head = rw.connect().await.head(&shard(), Consistency::Strong, PATIENCE).await.unwrap();
    assert!(head.entry.is_some());
}

/// The segment files, in the log's order.
fn segments(data_dir: &Path) -> Vec<PathBuf> {
    let mut segments: Vec<_> = fs::read_dir(data_dir)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file() && path.metadata().unwrap().len() > 4096)
        .collect();
    segments.sort();
    segments
}

/// A byte that had been durable is not what it was: the log is not opened, for to start would lose acknowledged writes.
#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_middle_of_the_log_is_named_and_nothing_is_started_on_it() {
    let mut cluster = Cluster::start(&[], &[]).await;
    let rw = cluster.rw.connect().await;
    let mut head = None;
    for _ in 0..30 {
        match append(&rw, head).await.unwrap() {
            Cas::Committed(seqno, _) => head = Some(seqno),
            other => panic!("{other:?}"),
        }
    }
    cluster.rw.kill();
    let segments = segments(&cluster.rw.data_dir());
    assert!(segments.len() > 3, "{segments:?}");
    let damaged = &segments[1];
    let file = File::options().read(true).write(true).open(damaged).unwrap();
    let (mut byte, middle) = ([0], file.metadata().unwrap().len() / 2);
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], middle).unwrap();

    let said = fails_to_start(&mut cluster.rw).await;
    assert!(said.contains("the log is damaged at LSN"), "{said}");
    assert!(said.contains(damaged.to_str().unwrap()) && said.contains("(byte "), "{said}");
    // It did not mend it by cutting: put right, the log is whole.
    file.write_all_at(&byte, middle).unwrap();
    cluster.rw.start().await;
    let seen = cluster.rw.connect().await.head(&shard(), Consistency::Strong, PATIENCE).await.unwrap();
    assert_eq!(seen.entry.map(|entry| entry.seqno), head);
}
