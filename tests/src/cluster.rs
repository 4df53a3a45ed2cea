//! Nodes as processes: started, killed, paused, stopped, started again on the same data and address.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use headwater_client::{Client, ClientError, Connection, Options, ReadFrom};
use headwater_protocol::Error;
use headwater_protocol::status::NodeStatus;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a condition may take to come true before a test gives it up: far longer than it ever should.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Lines of a node's log that a failed test shows.
const LOG_LINES_SHOWN: usize = 60;

/// Ports are taken from below the range from which the kernel picks those of outgoing connections: a node that is started
/// again must find its port free.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// The addresses of two RDMA devices, where the tests may use some: the RW's and the ROs'. `RDMA_ADDRESSES` names them, as
/// `scripts/soft-roce` sets it.
pub fn rdma_addresses() -> Option<(String, String)> {
    let all = std::env::var("RDMA_ADDRESSES").ok()?;
    let (rw, ros) = all.split_once(',').expect("RDMA_ADDRESSES has two addresses, or more");
    Some((rw.into(), ros.split(',').next().expect("a first part").into()))
}

/// Waits until `look` gives something. Panics, saying `what` did not happen, after [`PATIENCE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Asks until the node refuses because it is not far enough ([`Error::ReplicaBehind`]). Panics if it answers anything else:
/// a read that cannot be as strong as asked is never served weaker. That its word comes too late on a busy machine is no fault.
pub async fn assert_behind<T: Debug, F: Future<Output = Result<T, ClientError>>>(mut ask: impl FnMut() -> F) {
    loop {
        match ask().await {
            Err(ClientError::Refused(Error::ReplicaBehind { .. })) => return,
            Err(ClientError::Timeout { .. }) => {}
            other => panic!("neither stale nor weaker: {other:?}"),
        }
    }
}

/// The directory of the built programs: beside this test's own executable.
///
/// Panics where a program is missing, with what to do.
pub fn program(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a process knows its executable");
    // target/<profile>/deps/<test>
    let path = here.ancestors().nth(2).expect("tests are in target/<profile>/deps").join(name);
    assert!(path.is_file(), "{} is missing: run `cargo build --workspace` first", path.display());
    path
}

/// A port of this host that nobody listens on, and that no other caller gets.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Another test's process is likely to begin elsewhere.
    let first = (std::process::id() as u16).wrapping_mul(127) % count;
    for _ in 0..count {
        let port = PORTS.start + (first + NEXT.fetch_add(1, Ordering::Relaxed) % count) % count;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free in {PORTS:?}");
}

/// One node's process, running or not.
///
/// - Its address stays the same whenever it is started.
/// - Dropped, it is killed; while a test fails, the end of its log is shown.
pub struct Node {
    name: String,
    program: &'static str,
    dir: PathBuf,
    address: String,
    flags: BTreeMap<&'static str, String>,
    open_files: Option<u32>,
    process: Option<Child>,
}

impl Node {
    /// An RW that keeps its log in `dir/<name>`, not started yet: a small ring and small segments, so that tests get to
    /// their ends; a short lease, so that they get there quickly.
    pub fn rw(dir: &Path, name: &str) -> Node {
        let mut node = Node::new("rw-node", dir, name);
        let data_dir = dir.join(name);
        node.set("data-dir", data_dir.display())
            .set("ring-bytes", "256KiB")
            .set("entry-bytes-max", "16KiB")
            .set("segment-bytes", "64KiB")
            .set("lease", "100ms");
        if let Some((address, _)) = rdma_addresses() {
            node.set("rdma", address);
        }
        node
    }

    /// An RO of the RW at `rw`, not started yet. `transport`: `auto`, `shm`, `verbs` or `tcp`.
    pub fn ro(dir: &Path, name: &str, rw: &str, transport: &str) -> Node {
        let mut node = Node::new("ro-node", dir, name);
        node.set("rw", rw).set("transport", transport);
        if let Some((_, address)) = rdma_addresses() {
            node.set("rdma", address);
        }
        node
    }

    /// A node that another host runs, at `address`.
    pub fn elsewhere(address: &str) -> Node {
        let mut node = Node::new("", Path::new(""), address);
        node.address = address.into();
        node
    }

    /// Has it listen at `address` from the next start on.
    pub fn listen_at(&mut self, address: &str) {
        self.set("listen", address);
        self.address = address.into();
    }

    fn new(program: &'static str, dir: &Path, name: &str) -> Node {
        let address = format!("127.0.0.1:{}", free_port());
        let mut node = Node {
            name: name.into(),
            program,
            dir: dir.into(),
            address: address.clone(),
            flags: BTreeMap::new(),
            open_files: None,
            process: None,
        };
        let ready_file = node.ready_file();
        node.set("listen", address).set("name", name).set("ready-file", ready_file.display());
        node
    }

    /// Sets a flag, for the next start.
    pub fn set(&mut self, flag: &'static str, value: impl ToString) -> &mut Node {
        self.flags.insert(flag, value.to_string());
        self
    }

    /// Lets it have so many open files at most, from the next start on.
    pub fn limit_open_files(&mut self, open_files: u32) {
        self.open_files = Some(open_files);
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The RW's log directory.
    pub fn data_dir(&self) -> PathBuf {
        PathBuf::from(&self.flags["data-dir"])
    }

    fn ready_file(&self) -> PathBuf {
        self.dir.join(format!("{}.ready", self.name))
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// Everything that it has logged, in all its runs.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Starts the process and waits for nothing.
    pub fn spawn(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let _ = fs::remove_file(self.ready_file());
        let log = File::options().create(true).append(true).mode(0o644).open(self.log_file());
        let mut command = Command::new(program(self.program));
        if let Some(open_files) = self.open_files {
            command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {open_files} && exec \"$0\" \"$@\"")]);
            command.arg(program(self.program));
        }
        for (flag, value) in &self.flags {
            command.arg(format!("--{flag}")).arg(value);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log file can be made"));
        self.process = Some(command.spawn().expect("a built program can be started"));
    }

    /// Starts it and waits until it serves.
    pub async fn start(&mut self) {
        self.spawn();
        self.ready().await;
    }

    /// Waits until it serves. Panics if it ends instead.
    pub async fn ready(&mut self) {
        let began = Instant::now();
        while !self.ready_file().exists() {
            if let Some(status) = self.ended() {
                panic!("{} ended with {status} instead of serving", self.name);
            }
            assert!(began.elapsed() < PATIENCE, "{} does not serve", self.name);
            tokio::time::sleep(LOOK).await;
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.try_wait().expect("the process is a child")
    }

    /// Whether the process is there.
    pub fn is_running(&mut self) -> bool {
        self.process.is_some() && self.ended().is_none()
    }

    /// The process's id. Panics if it is not running.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the node runs").id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process's id is not 0");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    /// Kills it as a crash would: nothing of it runs any more.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().and_then(|()| process.wait()).expect("a child can be killed");
        }
    }

    /// Stops it at whatever instruction it is at.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to stop in order, and does not wait for it.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended.
    pub async fn exited(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        let status = eventually(&what, || std::future::ready(self.ended())).await;
        self.process = None;
        status
    }

    /// A connection to it.
    pub async fn connect(&self) -> Connection {
        Connection::open(&self.address, PATIENCE).await.expect("a node that serves can be reached")
    }

    /// A client that asks this node, and for writes the RW that it knows of.
    pub async fn client(&self, deadline: Duration) -> Client {
        let options = Options {
            nodes: vec![self.address.clone()],
            deadline,
            read_from: ReadFrom::Named,
            forward_to_rw: false,
        };
        Client::connect(options).await.expect("a node that serves can be reached")
    }

    /// What it says of itself.
    pub async fn status(&self) -> NodeStatus {
        self.connect().await.status(PATIENCE).await.expect("every node answers a status")
    }

    /// Waits until what it says of itself meets `condition`.
    pub async fn until(&self, what: &str, condition: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        let what = format!("{}: {what}", self.name);
        let connection = self.connect().await;
        let look = || async {
            let status = connection.status(PATIENCE).await.expect("every node answers a status");
            condition(&status).then_some(status)
        };
        eventually(&what, look).await
    }

    /// Waits until an RO has its RW.
    pub async fn attached(&self) {
        let attached =
            |status: &NodeStatus| status.upstream.as_ref().is_some_and(|rw| rw.connected && rw.lease_ms > 0);
        self.until("it is attached and may read strongly", attached).await;
    }

    /// Waits until its log says `text`.
    pub async fn logged(&self, text: &str) {
        let what = format!("{} logs {text:?}", self.name);
        eventually(&what, || std::future::ready(self.log().contains(text).then_some(()))).await;
    }

    /// Bytes of memory that the process holds.
    pub fn memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the node runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.expect("a process has a VmRSS") << 10
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            eprintln!("--- the end of the log of {}\n{}", self.name, shown.join("\n"));
        }
    }
}

/// One RW and its ROs.
pub struct Cluster {
    /// The RW.
    pub rw: Node,
    /// The ROs, in the order asked for.
    pub ros: Vec<Node>,
    /// Where their files are; gone with the cluster.
    pub dir: TempDir,
}

impl Cluster {
    /// Starts an RW with these flags set and an RO for each transport, and waits until all are attached.
    pub async fn start(flags: &[(&'static str, &str)], transports: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut rw = Node::rw(dir.path(), "rw");
        for (flag, value) in flags {
            rw.set(flag, value);
        }
        rw.start().await;
        let mut cluster = Cluster { rw, ros: Vec::new(), dir };
        for transport in transports {
            cluster.add_ro(transport).await;
        }
        cluster
    }

    /// Starts one more RO and waits until it is attached. Gives its place in [`Cluster::ros`].
    pub async fn add_ro(&mut self, transport: &str) -> usize {
        let rw = self.rw.address().to_owned();
        self.add_ro_of(&rw, transport).await
    }

    /// The same, the RW being reached by another address.
    pub async fn add_ro_of(&mut self, rw: &str, transport: &str) -> usize {
        let name = format!("ro{}", self.ros.len());
        let mut ro = Node::ro(self.dir.path(), &name, rw, transport);
        ro.start().await;
        ro.attached().await;
        self.ros.push(ro);
        self.ros.len() - 1
    }

    /// Every node, the RW first.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        [&self.rw].into_iter().chain(&self.ros)
    }

    /// Kills the RW and starts it again on the same log and address; waits until every RO has found it.
    pub async fn crash_rw(&mut self) {
        self.rw.kill();
        self.rw.start().await;
        self.all_attached().await;
    }

    /// Waits until every RO follows the RW's present epoch and may read strongly.
    pub async fn all_attached(&self) {
        let epoch = self.rw.status().await.epoch;
        for ro in &self.ros {
            let attached = |status: &NodeStatus| {
                status.epoch == epoch
                    && status.upstream.as_ref().is_some_and(|rw| rw.connected && rw.lease_ms > 0)
            };
            ro.until("it follows the RW's epoch", attached).await;
        }
    }
}
