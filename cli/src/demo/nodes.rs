use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt;

use headwater_client::Connection;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::failure::Failure;

/// How long a node may take to serve.
const START_MAX: Duration = Duration::from_secs(30);

/// How long a node may take to stop before it is killed, s.
const STOP_MAX_S: i64 = 5;

/// How often it is looked whether a node that starts is ready.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Lines of a node's log that are shown when it fails.
const LOG_LINES: usize = 10;

/// A cluster of processes: one RW and two ROs.
///
/// - It is stopped, and its files are removed, when this is dropped; ROs first.
pub(crate) struct Nodes {
    /// The ROs.
    pub(crate) ros: Vec<Node>,
    /// The RW.
    pub(crate) rw: Node,
    _dir: TempDir,
}

/// One node's process.
pub(crate) struct Node {
    /// Its name.
    pub(crate) name: &'static str,
    /// Where it serves clients.
    pub(crate) address: String,
    log: PathBuf,
    child: Child,
}

impl Nodes {
    /// Starts them, and waits until the ROs are attached, both by `transport` if one is given.
    pub(crate) async fn start(transport: Option<&str>) -> Result<Nodes, Failure> {
        let (rw_node, ro_node) = (program("rw-node")?, program("ro-node")?);
        let dir = tempfile::Builder::new()
            .prefix("headwater-demo-")
            .tempdir()
            .map_err(Failure::file("create a folder in", &std::env::temp_dir()))?;
        let data = dir.path().join("data").display().to_string();
        let rw = Node::start(&rw_node, "rw", dir.path(), &["--data-dir", &data]).await?;
        let mut ros = Vec::new();
        let ros_wanted = match transport {
            Some(transport) => [("ro-1", transport), ("ro-2", transport)],
            None => [("ro-shm", "shm"), ("ro-tcp", "tcp")],
        };
        for (name, transport) in ros_wanted {
            let args = ["--rw", &rw.address, "--transport", transport];
            ros.push(Node::start(&ro_node, name, dir.path(), &args).await?);
        }
        let mut nodes = Nodes { ros, rw, _dir: dir };
        for ro in &mut nodes.ros {
            ro.wait_until_attached().await?;
        }
        Ok(nodes)
    }

    /// An error that names the node if one ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), Failure> {
        self.rw.check_alive()?;
        self.ros.iter_mut().try_for_each(Node::check_alive)
    }

    /// Every node, the RW first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Node> {
        [&self.rw].into_iter().chain(&self.ros)
    }

    /// Where each serves.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.all().map(|node| node.address.clone()).collect()
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let native = |node: &Node| json!({ "native": node.address });
        json!({ "rw": native(&self.rw), "ros": self.ros.iter().map(native).collect::<Vec<_>>() })
    }
}

/// A program that lies beside this one.
fn program(name: &str) -> Result<PathBuf, Failure> {
    let me = std::env::current_exe().map_err(Failure::file("find", Path::new("headwater")))?;
    let path = me.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::Failed(format!(
        "{} is not there: the demo starts rw-node and ro-node from the folder of headwater; build or install all three",
        path.display()
    )))
}

impl Node {
    /// Starts a process and waits until it serves.
    async fn start(program: &Path, name: &'static str, dir: &Path, args: &[&str]) -> Result<Node, Failure> {
        let (log, ready) = (dir.join(format!("{name}.log")), dir.join(format!("{name}.ready")));
        let file = File::create(&log).map_err(Failure::file("create", &log))?;
        let mut command = Command::new(program);
        command
            .args(["--listen", "127.0.0.1:0", "--name", name, "--cluster", "demo", "--ready-file"])
            .arg(&ready)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            // A Ctrl-C in the terminal is for this program, which then stops its nodes in order.
            .process_group(0);
        // What is set for nodes of another cluster is not meant for these.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("HEADWATER_") {
                command.env_remove(variable);
            }
        }
        let child = command.spawn().map_err(Failure::file("start", program))?;
        let mut node = Node { name, address: String::new(), log, child };
        let started = Instant::now();
        loop {
            match fs::read_to_string(&ready) {
                Ok(text) if text.ends_with('\n') => {
                    node.address = text.trim().to_owned();
                    return Ok(node);
                }
                _ => node.check_alive()?,
            }
            if started.elapsed() > START_MAX {
                return Err(node.failed(&format!("did not serve within {START_MAX:?}")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// An error if its process ended.
    fn check_alive(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failed(&format!("ended by itself, {status}"))),
            Err(e) => Err(self.failed(&format!("cannot be looked at: {e}"))),
        }
    }

    fn failed(&self, what: &str) -> Failure {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let skipped = log.lines().count().saturating_sub(LOG_LINES);
        let lines: Vec<_> = log.lines().skip(skipped).collect();
        Failure::Failed(format!("node {} {what}; its log ends:\n{}", self.name, lines.join("\n")))
    }

    async fn wait_until_attached(&self) -> Result<(), Failure> {
        let of = || Failure::of(format!("node {} at {}", self.name, self.address));
        let connection = self.connect().await?;
        let started = Instant::now();
        loop {
            let upstream = connection.status(START_MAX).await.map_err(of())?.upstream;
            match upstream {
                Some(upstream) if upstream.connected => return Ok(()),
                Some(upstream) if started.elapsed() > START_MAX => {
                    let why = upstream.why;
                    return Err(Failure::Failed(format!(
                        "node {} does not attach to its RW: {why}",
                        self.name
                    )));
                }
                _ => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// A connection to this node alone.
    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        let of = Failure::of(format!("node {} at {}", self.name, self.address));
        Connection::open(&self.address, START_MAX).await.map_err(of)
    }
}

impl Drop for Node {
    /// Asks it to stop in order; kills it if it does not.
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        if let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) {
            let _ = kill_process(pid, Signal::TERM);
            let timeout = rustix::time::Timespec { tv_sec: STOP_MAX_S, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        }
        // After an orderly stop these only collect it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
