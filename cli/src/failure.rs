use std::io;
use std::path::{Path, PathBuf};

use headwater_client::ClientError;
use headwater_protocol::{Error, ErrorKind};
use headwater_wal::OpenError;
use thiserror::Error;

use crate::exit::Exit;

/// Why a command ended without what was asked for. Every text names the thing: the address, the file, the shard.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The command line or the configuration cannot be understood.
    #[error("{0}")]
    Usage(String),
    /// The cluster gave no answer, or a refusal.
    #[error("{of}: {source}")]
    Client {
        /// What was asked about: a shard, a node.
        of: String,
        /// Why.
        source: ClientError,
    },
    /// A file or a folder could not be used.
    #[error("cannot {op} {}: {source}", path.display())]
    File {
        /// What was tried: a verb.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A WAL could not be read to its end.
    #[error(transparent)]
    Wal(#[from] OpenError),
    /// Standard output takes nothing more.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// A signal ended it.
    #[error("interrupted")]
    Interrupted,
    /// Anything else; the text says it all.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// For `map_err`: says of which shard or node the error is.
    pub(crate) fn of(of: impl ToString) -> impl FnOnce(ClientError) -> Failure {
        move |source| Failure::Client { of: of.to_string(), source }
    }

    /// For `map_err`: names what was tried with which file.
    pub(crate) fn file(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::File { op, path: path.to_owned(), source }
    }

    /// The exit code that says so.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Failure::Usage(_) => Exit::Usage,
            Failure::Client { source, .. } if source.kind() == ErrorKind::Indeterminate => Exit::Unknown,
            Failure::Client { source: ClientError::Refused(Error::UnknownShard), .. } => Exit::Nothing,
            Failure::Wal(OpenError::Damaged(_) | OpenError::Header { .. }) => Exit::Damaged,
            Failure::Interrupted => Exit::Interrupted,
            Failure::Client { .. }
            | Failure::File { .. }
            | Failure::Wal(_)
            | Failure::Output(_)
            | Failure::Failed(_) => Exit::Failed,
        }
    }

    /// A word for it in `--json` output: the node's own word where a node refused.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Failure::Usage(_) => "usage",
            Failure::Client { source, .. } => match source {
                ClientError::Refused(error) => error.code().1,
                ClientError::Unreachable { .. } => "unreachable",
                ClientError::ConnectionLost { .. } => "connection-lost",
                ClientError::Timeout { .. } => "timeout",
                ClientError::NotHeadwater { .. } => "not-headwater",
                ClientError::NoRw { .. } => "no-rw",
                ClientError::Malformed { .. } => "malformed",
                ClientError::InvalidArgument(_) => "invalid-argument",
            },
            Failure::File { .. } => "file",
            Failure::Wal(_) => "wal",
            Failure::Output(_) => "output",
            Failure::Interrupted => "interrupted",
            Failure::Failed(_) => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(source: ClientError) -> Failure {
        Failure::of("shard a")(source)
    }

    #[test]
    fn exit_codes_say_whether_a_write_may_have_happened() {
        let timeout = |in_flight_write| {
            of(ClientError::Timeout { address: "a:1".into(), after: Duration::from_secs(1), in_flight_write })
        };
        assert_eq!(timeout(true).exit(), Exit::Unknown);
        assert_eq!(timeout(false).exit(), Exit::Failed);
        assert_eq!(of(Error::Unknown("flush".into()).into()).exit(), Exit::Unknown);
        assert_eq!(of(Error::Overloaded("ring".into()).into()).exit(), Exit::Failed);
        assert_eq!(of(Error::UnknownShard.into()).exit(), Exit::Nothing);
        assert_eq!(Failure::Usage("x".into()).exit() as u8, 2);
        assert_eq!(Failure::Interrupted.exit() as u8, 130);
    }

    #[test]
    fn a_refusal_keeps_its_word_and_names_its_shard() {
        let failure = of(Error::DiskFull.into());
        assert_eq!(failure.code(), "disk-full");
        assert!(failure.to_string().starts_with("shard a: "), "{failure}");
    }
}
