use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use figment::Figment;
use figment::providers::{Format, Toml};
use headwater_client::{Client, Options, ReadFrom};
use headwater_protocol::{Consistency, Seqno, ShardName};
use serde::Deserialize;

use crate::consistency;
use crate::failure::Failure;

/// Which cluster, and how long to wait for it.
#[derive(Args, Debug)]
pub(crate) struct ClusterArgs {
    /// Nodes of the cluster; one that answers is enough, the others are learnt from it
    #[arg(long, global = true, env = "HEADWATER_NODES", value_name = "HOST:PORT,…", value_delimiter = ',')]
    nodes: Vec<String>,
    /// A TOML file with any of nodes, deadline, consistency, from; flags win
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How long one operation may take, retries included [default: 5s]
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    deadline: Option<Duration>,
}

/// How a read is made.
#[derive(Args, Debug)]
pub(crate) struct ReadArgs {
    /// strong, eventual, at-least:LSN, or bounded:TIME [default: strong]
    #[arg(long, value_parser = consistency::parse)]
    consistency: Option<Consistency>,
    /// Which nodes answer [default: replicas]
    #[arg(long = "from", value_name = "NODES")]
    readers: Option<Readers>,
}

/// Which nodes answer reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Readers {
    /// The ROs; the RW where there is none, or where none could in time
    Replicas,
    /// The RW
    Rw,
}

/// What the file of `--config` may hold.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct File {
    nodes: Vec<String>,
    deadline: Option<String>,
    consistency: Option<String>,
    from: Option<Readers>,
}

impl ClusterArgs {
    /// The nodes that were named; an error if none was.
    pub(crate) fn nodes(&self) -> Result<Vec<String>, Failure> {
        let nodes = self.nodes_if_any()?;
        if nodes.is_empty() {
            let ways = "--nodes HOST:PORT, HEADWATER_NODES, or `nodes` in the file of --config";
            return Err(Failure::Usage(format!("no node is named: use {ways}")));
        }
        Ok(nodes)
    }

    /// The nodes that were named, maybe none.
    pub(crate) fn nodes_if_any(&self) -> Result<Vec<String>, Failure> {
        let nodes = if self.nodes.is_empty() { self.file()?.nodes } else { self.nodes.clone() };
        nodes.iter().try_for_each(|node| check_address(node))?;
        Ok(nodes)
    }

    /// How long one operation may take.
    pub(crate) fn deadline(&self) -> Result<Duration, Failure> {
        match (self.deadline, self.file()?.deadline) {
            (Some(deadline), _) => Ok(deadline),
            (None, Some(text)) => {
                humantime::parse_duration(&text).map_err(|e| self.wrong("deadline", &text, &e.to_string()))
            }
            (None, None) => Ok(Duration::from_secs(5)),
        }
    }

    /// A client, and the consistency of its reads.
    pub(crate) async fn connect(&self, read: &ReadArgs) -> Result<(Client, Consistency), Failure> {
        let file = self.file()?;
        let consistency = match (read.consistency, file.consistency) {
            (Some(consistency), _) => consistency,
            (None, Some(text)) => {
                consistency::parse(&text).map_err(|e| self.wrong("consistency", &text, &e))?
            }
            (None, None) => Consistency::Strong,
        };
        let read_from = match read.readers.or(file.from).unwrap_or(Readers::Replicas) {
            Readers::Replicas => ReadFrom::Replicas,
            Readers::Rw => ReadFrom::Rw,
        };
        Ok((self.client(read_from).await?, consistency))
    }

    /// A client that reads from there.
    pub(crate) async fn client(&self, read_from: ReadFrom) -> Result<Client, Failure> {
        connect(self.nodes()?, self.deadline()?, read_from).await
    }

    fn file(&self) -> Result<File, Failure> {
        self.config.as_deref().map_or_else(|| Ok(File::default()), read_file)
    }

    fn wrong(&self, key: &str, value: &str, why: &str) -> Failure {
        let file = self.config.as_deref().unwrap_or(Path::new("")).display();
        Failure::Usage(format!("{file}: {key} = {value:?}: {why}"))
    }
}

/// A client of the cluster that those nodes are of.
pub(crate) async fn connect(
    nodes: Vec<String>,
    deadline: Duration,
    read_from: ReadFrom,
) -> Result<Client, Failure> {
    let named = format!("connecting to {}", nodes.join(", "));
    let options = Options { nodes, deadline, read_from, forward_to_rw: true };
    Client::connect(options).await.map_err(Failure::of(named))
}

fn read_file(path: &Path) -> Result<File, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::file("read", path))?;
    Figment::from(Toml::string(&text))
        .extract()
        .map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))
}

fn check_address(address: &str) -> Result<(), Failure> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.map(str::parse::<u16>) {
        Some(Ok(port)) if port > 0 => Ok(()),
        _ => Err(Failure::Usage(format!("a node is named HOST:PORT, not {address:?}"))),
    }
}

/// For clap: a shard's name.
pub(crate) fn shard_name(text: &str) -> Result<ShardName, String> {
    ShardName::new(text).map_err(|e| e.to_string())
}

/// For clap: a seqno.
pub(crate) fn seqno(text: &str) -> Result<Seqno, String> {
    let number = text.parse().map_err(|_| format!("a seqno is a number from 0 to {}", Seqno::MAX))?;
    Seqno::new(number).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn args(nodes: &[&str], file: Option<&str>) -> (ClusterArgs, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let config = file.map(|text| {
            std::fs::write(dir.path().join("c.toml"), text).unwrap();
            dir.path().join("c.toml")
        });
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        (ClusterArgs { nodes, config, deadline: None }, dir)
    }

    #[test]
    fn flags_win_over_the_file() {
        let (args, _dir) = args(&["a:1"], Some("nodes = ['b:2', 'c:3']\ndeadline = '250ms'\n"));
        assert_eq!(args.nodes().unwrap(), ["a:1"]);
        assert_eq!(args.deadline().unwrap(), Duration::from_millis(250));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |nodes: &[&str], file| {
            let (args, _dir) = args(nodes, file);
            let failure = args.nodes().unwrap_err();
            assert_eq!(failure.exit(), Exit::Usage);
            failure.to_string()
        };
        assert!(error(&[], None).contains("--nodes"));
        assert!(error(&["localhost"], None).contains("\"localhost\""));
        assert!(error(&["a:0"], None).contains("\"a:0\""));
        assert!(error(&[":7"], None).contains("\":7\""));
        let unknown = error(&[], Some("node = ['a:1']\n"));
        assert!(unknown.contains("c.toml") && unknown.contains("node"), "{unknown}");
    }
}
